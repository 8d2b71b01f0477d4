"""Helpers of the tests of commands about groups: messages, members, and a run of a command."""

import json
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from aerobee.client import blocking_roles
from aerobee.client.message import Message, ReceivedMessage
from aerobee.client.options import ConsumeFrom, PushOptions
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.testing import RunningBroker

WAIT_S = 10.0
Run = Callable[..., tuple[int, str, str]]


def fill(
    running: RunningBroker, admin: blocking_roles.Admin, topic: str, messages: int = 3
) -> None:
    """Make a topic of one queue with this number of messages."""
    admin.create_topic(topic, queues=1)
    with blocking_roles.Producer(running.name_server, "P") as producer:
        where = MessageQueue(topic, "bee", 0)
        for number in range(messages):
            producer.send(Message(topic, b"%d" % number), queue=where)


def committed(run: Run, group: str, topic: str) -> int:
    code, out, _ = run("offset", "show", group, "--topic", topic, "--json")
    assert code == 0
    [one] = json.loads(out)
    offset: int | None = one["offset"]
    return -1 if offset is None else offset


@contextmanager
def consuming(running: RunningBroker, group: str, topic: str) -> Iterator[queue.Queue[bytes]]:
    """A member that is online; the bodies that it gets."""
    got: queue.Queue[bytes] = queue.Queue()

    def listener(messages: list[ReceivedMessage]) -> None:
        for message in messages:
            got.put(message.body)

    options = PushOptions(consume_from=ConsumeFrom.FIRST, offset_store_interval_s=0.05)
    consumer = blocking_roles.PushConsumer(running.name_server, group, listener, options)
    with consumer:
        consumer.subscribe(topic)
        yield got


def taken(got: queue.Queue[bytes], count: int) -> list[bytes]:
    return sorted(got.get(timeout=WAIT_S) for _ in range(count))


@contextmanager
def stuck(
    running: RunningBroker, admin: blocking_roles.Admin, group: str, topic: str, **options: Any
) -> Iterator[None]:
    """A member whose listener has been given messages, and never comes to an end with the first
    before the test does; with `orderly` it fails on it, again and again."""
    was_given, goes_on = threading.Event(), threading.Event()
    fails = options.get("orderly", False)

    def listener(_messages: list[ReceivedMessage]) -> None:
        was_given.set()
        if fails:
            raise RuntimeError("on purpose")
        goes_on.wait(WAIT_S)

    settings = PushOptions(offset_store_interval_s=0.02, close_timeout_s=0.1, **options)
    with blocking_roles.PushConsumer(running.name_server, group, listener, settings) as consumer:
        consumer.subscribe(topic)
        assert was_given.wait(WAIT_S)
        yield
        goes_on.set()
