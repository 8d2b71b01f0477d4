"""A broker with messages that groups have failed on, and commands that are run against it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from aerobee.cli.main import main
from aerobee.client.admin import Admin
from aerobee.client.consuming.pull_consumer import PullConsumer
from aerobee.client.message import Message, ReceivedMessage
from aerobee.client.producing.producer import Producer
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.testing import RunningBroker

Run = Callable[..., tuple[int, str, str]]
BROKER = "bee"


def runner(running: RunningBroker, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command against the broker: (exit code, standard output, standard error)."""

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([*arguments, "-n", running.name_server])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def send(running: RunningBroker, topic: str, *messages: Message) -> list[str]:
    """Send to the one queue of a topic, which is made if need be; the unique ids."""

    async def do() -> list[str]:
        async with Admin(running.name_server) as admin:
            if topic not in await admin.topics():
                await admin.create_topic(topic, queues=1)
        async with Producer(running.name_server, "P") as producer:
            where = MessageQueue(topic, BROKER, 0)
            return [(await producer.send(one, queue=where)).msg_id for one in messages]

    return asyncio.run(do())


def read(running: RunningBroker, topic: str, queue_id: int = 0) -> list[ReceivedMessage]:
    """All messages of a queue."""

    async def do() -> list[ReceivedMessage]:
        async with PullConsumer(running.name_server) as consumer:
            queue = MessageQueue(topic, BROKER, queue_id)
            found: list[ReceivedMessage] = []
            end = await consumer.max_offset(queue)
            offset = await consumer.min_offset(queue)
            while offset < end:
                result = await consumer.pull(queue, offset)
                found += result.messages
                offset = result.next_offset
            return found

    return asyncio.run(do())


def give_back(running: RunningBroker, group: str, topic: str, level: int) -> None:
    """A group gives all messages of a topic back, and has consumed them; a level below 0 makes
    them dead letters."""
    messages = read(running, topic)

    async def do() -> None:
        async with PullConsumer(running.name_server, group) as consumer:
            for message in messages:
                await consumer.send_back(message, level)
            await consumer.commit(messages[-1].queue, messages[-1].queue_offset + 1)

    asyncio.run(do())


def committed(running: RunningBroker, group: str, topic: str) -> int | None:
    """The offset of a group in the one queue of a topic."""

    async def do() -> int | None:
        async with PullConsumer(running.name_server, group) as consumer:
            return await consumer.committed(MessageQueue(topic, BROKER, 0))

    return asyncio.run(do())


def dead_letters(running: RunningBroker, group: str, topic: str, *bodies: bytes) -> list[str]:
    """Messages of a topic that the group gave up; their unique ids. The group's retry topic is
    there, because a message was given back once before."""
    send(running, f"{topic}Before", Message(f"{topic}Before", b"before"))
    give_back(running, group, f"{topic}Before", 5)
    ids = send(running, topic, *(Message(topic, body, tags="red", keys=("k",)) for body in bodies))
    give_back(running, group, topic, -1)
    return ids


def until(condition: Callable[[], bool], within_s: float = 10.0) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)
