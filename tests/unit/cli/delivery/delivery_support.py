"""A broker with messages that groups have failed on, and commands that are run against it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

import pytest

from aerobee.cli.main import main
from aerobee.client.admin import Admin
from aerobee.client.consuming.pull_consumer import PullConsumer
from aerobee.client.message import Message, ReceivedMessage
from aerobee.client.producing.producer import Producer
from aerobee.protocol.bodies.common import MessageQueue


class Running(Protocol):
    """A broker of ours or RocketMQ's, and its name server."""

    @property
    def name_server(self) -> str:
        """Its address."""


Run = Callable[..., tuple[int, str, str]]
BROKER = "bee"


def runner(running: Running, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command against the broker: (exit code, standard output, standard error)."""

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([*arguments, "-n", running.name_server])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def send(running: Running, topic: str, *messages: Message, broker: str = BROKER) -> list[str]:
    """Send to the one queue of a topic, which is made if need be; the unique ids."""

    async def do() -> list[str]:
        async with Admin(running.name_server) as admin:
            if topic not in await admin.topics():
                await admin.create_topic(topic, queues=1)
                # Java's name server hears of it a moment later.
                while topic not in await admin.topics():  # noqa: ASYNC110 - nobody tells us
                    await asyncio.sleep(0.01)
        async with Producer(running.name_server, "P") as producer:
            where = MessageQueue(topic, broker, 0)
            return [(await producer.send(one, queue=where)).msg_id for one in messages]

    return asyncio.run(do())


def read(running: Running, topic: str, broker: str = BROKER) -> list[ReceivedMessage]:
    """All messages of the one queue of a topic."""

    async def do() -> list[ReceivedMessage]:
        async with PullConsumer(running.name_server) as consumer:
            queue = MessageQueue(topic, broker, 0)
            found: list[ReceivedMessage] = []
            end = await consumer.max_offset(queue)
            offset = await consumer.min_offset(queue)
            while offset < end:
                result = await consumer.pull(queue, offset)
                found += result.messages
                offset = result.next_offset
            return found

    return asyncio.run(do())


def give_back(running: Running, group: str, topic: str, level: int, broker: str = BROKER) -> None:
    """A group gives all messages of a topic back, and has consumed them; a level below 0 makes
    them dead letters."""
    messages = read(running, topic, broker)

    async def do() -> None:
        async with PullConsumer(running.name_server, group) as consumer:
            for message in messages:
                await consumer.send_back(message, level)
            await consumer.commit(messages[-1].queue, messages[-1].queue_offset + 1)

    asyncio.run(do())


def committed(running: Running, group: str, topic: str) -> int | None:
    """The offset of a group in the one queue of a topic."""

    async def do() -> int | None:
        async with PullConsumer(running.name_server, group) as consumer:
            return await consumer.committed(MessageQueue(topic, BROKER, 0))

    return asyncio.run(do())


def dead_letters(
    running: Running, group: str, topic: str, *bodies: bytes, broker: str = BROKER
) -> list[str]:
    """Messages of a topic that the group gave up; their unique ids. The group's retry topic is
    there, because a message was given back once before."""
    send(running, f"{topic}Before", Message(f"{topic}Before", b"before"), broker=broker)
    give_back(running, group, f"{topic}Before", 5, broker)
    messages = [Message(topic, body, tags="red", keys=("k",)) for body in bodies]
    ids = send(running, topic, *messages, broker=broker)
    give_back(running, group, topic, -1, broker)
    return ids


def until(condition: Callable[[], bool], within_s: float = 10.0) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)
