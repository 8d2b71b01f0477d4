"""The loop thread of blocking clients: shared, counted, gone after the last."""

from __future__ import annotations

import asyncio
import threading
from inspect import iscoroutinefunction

import pytest

from aerobee import client
from aerobee.client import blocking_roles as blocking
from aerobee.client.errors import CallerError, ClientClosed
from aerobee.client.loop_thread import LoopThread
from aerobee.client.message import Message


def names() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


def test_clients_share_one_thread_which_ends_with_the_last() -> None:
    first, second = LoopThread.acquire(), LoopThread.acquire()
    assert first is second
    first.release()
    assert "aerobee-client" in names()
    second.release()
    assert "aerobee-client" not in names()


def test_results_and_errors_come_back() -> None:
    async def work(fail: bool) -> str:
        if fail:
            raise ValueError("told")
        return threading.current_thread().name

    thread = LoopThread.acquire()
    assert thread.run(work(False)) == "aerobee-client"
    with pytest.raises(ValueError, match="told"):
        thread.run(work(True))
    thread.release()


def test_many_threads_may_call_at_once() -> None:
    thread = LoopThread.acquire()
    barrier = asyncio.Barrier(8)
    results: list[bool] = []

    async def meet() -> None:
        await barrier.wait()  # passes only if all eight are running at the same time

    def call() -> None:
        thread.run(meet())
        results.append(True)

    callers = [threading.Thread(target=call) for _ in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(10)
    thread.release()
    assert len(results) == 8


def test_a_call_from_the_loop_itself_is_refused_instead_of_hanging() -> None:
    thread = LoopThread.acquire()

    async def nothing() -> None: ...

    async def call_again() -> None:
        thread.run(nothing())

    with pytest.raises(CallerError, match="event loop"):
        thread.run(call_again())
    thread.release()


def test_a_blocking_client_that_is_not_started_or_closed_says_so() -> None:
    producer = blocking.Producer("127.0.0.1:9")
    with pytest.raises(ClientClosed):
        producer.send(Message("T", b"x"))
    producer.start()
    producer.close()
    producer.close()
    with pytest.raises(ClientClosed):
        producer.send(Message("T", b"x"))
    assert "aerobee-client" not in names()


@pytest.mark.parametrize("name", ["Producer", "PullConsumer", "PushConsumer", "Admin"])
def test_blocking_clients_have_the_methods_of_the_asyncio_ones(name: str) -> None:
    role = getattr(client, name)
    awaited = {method for method in dir(role) if iscoroutinefunction(getattr(role, method))}
    assert {"__aenter__", "close"} < awaited
    # A broker's request to a client comes by `answer`; a program does not call it.
    asked = {method for method in awaited if method[0] != "_" and method != "answer"}
    assert asked <= set(dir(getattr(blocking, name)))
