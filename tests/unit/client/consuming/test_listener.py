"""The meaning of a listener's result, and where the listener runs."""

from __future__ import annotations

import functools
import threading

import pytest

from aerobee.client.consuming.listener import Consumed, ListenerCall
from aerobee.client.message import received
from aerobee.protocol.message.record import decode_record


@pytest.fixture
def messages(stored):
    return [received(decode_record(stored("T", 0, 0, b"x")), "a")]


async def outcome(listener, messages) -> Consumed:
    call = ListenerCall(listener, 1)
    try:
        return (await call.outcome(messages))[0]
    finally:
        call.close()


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (None, Consumed.SUCCESS),
        (Consumed.SUCCESS, Consumed.SUCCESS),
        (Consumed.RETRY, Consumed.RETRY),
        (True, Consumed.RETRY),
        (False, Consumed.RETRY),
    ],
)
async def test_a_result_means_the_same_from_a_function_and_a_coroutine(
    messages, result, expected
) -> None:
    async def coroutine(_):
        return result

    assert await outcome(coroutine, messages) is expected
    assert await outcome(lambda _: result, messages) is expected


async def test_an_exception_is_a_failure_and_is_logged(messages, caplog) -> None:
    def listener(_):
        raise ValueError("bug in the program")

    assert await outcome(listener, messages) is Consumed.RETRY
    assert "bug in the program" in caplog.text
    assert "queue=T/a/0" in caplog.text


class CallableObject:
    def __init__(self) -> None:
        self.thread = ""

    async def __call__(self, messages) -> None:
        self.thread = threading.current_thread().name


async def test_an_object_with_a_coroutine_call_runs_on_the_loop(messages) -> None:
    listener = CallableObject()
    assert await outcome(listener, messages) is Consumed.SUCCESS
    assert listener.thread == threading.current_thread().name


async def test_a_function_that_makes_a_coroutine_has_it_awaited(messages) -> None:
    async def listener(extra, messages):
        return Consumed.RETRY if extra else None

    wrapped = functools.partial(listener, True)
    assert await outcome(lambda m: wrapped(m), messages) is Consumed.RETRY
    assert await outcome(wrapped, messages) is Consumed.RETRY
