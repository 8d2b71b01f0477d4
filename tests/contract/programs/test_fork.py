"""A program forks while clients are open: the child has its own, and never uses the parent's."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator

import pytest

import aerobee.testing
from aerobee.client import Message, ProducerOptions, SendStatus
from aerobee.client import Producer as AsyncProducer
from aerobee.client.blocking_roles import Producer, PullConsumer, PushConsumer
from aerobee.remoting.calling.blocking_caller import BlockingCaller, ConnectOptions
from aerobee.testing import RunningBroker

_HANGS_S = 10


@pytest.fixture(scope="module")
def running() -> Iterator[RunningBroker]:
    with aerobee.testing.broker() as running:
        yield running


def in_child(work: Callable[[], object]) -> str:
    """The result or error of `work`, in a child by fork(), as a text."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        signal.alarm(_HANGS_S)
        try:
            text = str(work())
        except BaseException as error:  # noqa: BLE001  told to the parent
            text = f"{type(error).__name__}: {error}"
        os.write(writing, text.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as told:
        text = told.read().decode()
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, "the child hangs"
    return text


def send(producer: Producer, body: bytes = b"x") -> SendStatus:
    return producer.send(Message("T", body)).status


def test_a_childs_own_client_works_and_the_parents_goes_on(running: RunningBroker) -> None:
    def work() -> SendStatus:
        with Producer(running.name_server) as own:
            return send(own)

    with Producer(running.name_server) as producer:
        assert send(producer) is SendStatus.OK
        assert in_child(work) == str(SendStatus.OK)
        assert send(producer) is SendStatus.OK


def test_an_inherited_client_says_that_it_came_by_a_fork(running: RunningBroker) -> None:
    with Producer(running.name_server) as producer:
        send(producer)
        told = in_child(lambda: send(producer))
        assert told.startswith("InheritedClient: the client was opened in process ")
        assert "fork()" in told
        assert in_child(producer.close) == "None"
        assert send(producer) is SendStatus.OK


@pytest.mark.parametrize("role", ["pull", "push"])
def test_leaving_the_block_of_an_inherited_client_leaves_the_parents_alone(
    running: RunningBroker, role: str
) -> None:
    got: list[bytes] = []

    def listen(messages: list) -> None:  # type: ignore[type-arg]
        got.extend(message.body for message in messages)

    consumer: PullConsumer | PushConsumer
    if role == "pull":
        consumer = PullConsumer(running.name_server)
    else:
        consumer = PushConsumer(running.name_server, "G", listen)
    with consumer:
        assert in_child(lambda: consumer.__exit__(None, None, None)) == "None"
        if isinstance(consumer, PullConsumer):
            assert consumer.queues("T")
        else:
            consumer.subscribe("T")


def test_an_asyncio_client_does_not_write_into_its_parents_connection(
    running: RunningBroker,
) -> None:
    async def program() -> tuple[str, SendStatus]:
        async with AsyncProducer(running.name_server) as producer:
            await producer.send(Message("T", b"x"))

            async def of_the_child() -> object:
                try:
                    return await producer.send(Message("T", b"of the child"))
                finally:
                    await producer.close()

            def work() -> object:
                asyncio._set_running_loop(None)
                return asyncio.new_event_loop().run_until_complete(of_the_child())

            told = in_child(work)
            return told, (await producer.send(Message("T", b"x"))).status

    told, status = asyncio.run(program())
    assert told.startswith("InheritedClient: ")
    assert status is SendStatus.OK


def test_a_client_made_before_a_fork_and_started_behind_it_has_ids_of_its_own(
    running: RunningBroker,
) -> None:
    early = [Producer(running.name_server), PushConsumer(running.name_server, "G", print)]

    def ids() -> str:
        producer, consumer = early
        assert isinstance(producer, Producer)
        assert isinstance(consumer, PushConsumer)
        with producer, consumer:
            sent = producer.send(Message("T", b"x")).msg_id
            # The counter aside, which may differ by chance: process, and the number of the client.
            return f"{sent[8:20]} {consumer.client_id}"

    first, second = in_child(ids).split(), in_child(ids).split()
    assert len(first) == len(second) == 2
    assert first[0] != second[0]
    assert first[1] != second[1]


def test_a_connection_of_a_job_counts_as_closed_in_a_child(running: RunningBroker) -> None:
    def work() -> str:
        assert caller.closed
        try:
            caller.receive()
        except Exception as error:  # noqa: BLE001  told to the parent
            return str(error)
        return "nothing"

    with BlockingCaller(running.broker, ConnectOptions()) as caller:
        assert "by fork()" in in_child(work)
        assert not caller.closed


def test_a_child_that_leaves_the_block_neither_stops_nor_deletes_the_broker_of_a_test() -> None:
    leaving = aerobee.testing.broker()
    running = leaving.__enter__()
    try:
        assert in_child(lambda: leaving.__exit__(None, None, None)) == "False"
        assert running.store_path.is_dir()
        with Producer(running.name_server, options=ProducerOptions(retries=0)) as producer:
            assert send(producer) is SendStatus.OK
    finally:
        leaving.__exit__(None, None, None)
