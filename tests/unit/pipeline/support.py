"""A broker inside the test process, with messages, for the parts that Spark's classes wrap."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from aerobee import testing
from aerobee.client.blocking_roles import Admin, Producer
from aerobee.client.message import Message
from aerobee.pipeline.brokers.offsets import Queue, Range
from aerobee.pipeline.source.range_rows import read_range
from aerobee.pipeline.source.source_options import SourceOptions, read_source_options
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.testing import RunningBroker

BROKER = "test-broker"
TOPIC = "orders"
QUIET = {"pullTimeoutMs": "300"}  # gives up after ten times this


def queue(number: int, topic: str = TOPIC) -> Queue:
    return Queue(topic, BROKER, number)


def options(broker: RunningBroker, streaming: bool = False, **given: str) -> SourceOptions:
    defaults = {"nameServer": broker.name_server, **QUIET}
    if not {"subscribe", "subscribePattern", "assign"} & set(given):
        defaults["topic"] = TOPIC
    return read_source_options({**defaults, **given}, streaming=streaming)


def create(broker: RunningBroker, topic: str = TOPIC, queues: int = 2) -> None:
    with Admin(broker.name_server) as admin:
        admin.create_topic(topic, queues=queues)


def send(
    broker: RunningBroker,
    bodies: Iterable[bytes],
    number: int = 0,
    topic: str = TOPIC,
    tags: Callable[[int], str] | None = None,
) -> None:
    """Sends to one queue, in order."""
    with Producer(broker.name_server) as producer:
        target = MessageQueue(topic, BROKER, number)
        for index, body in enumerate(bodies):
            message = Message(topic, body, tags=tags(index) if tags else "")
            producer.send(message, queue=target)


def bodies_of(wanted: SourceOptions, one: Range) -> list[bytes]:
    return [body for batch in read_range(wanted, one) for body in batch.column("body").to_pylist()]


@contextmanager
def running(**settings: Any) -> Iterator[RunningBroker]:
    with testing.broker(**settings) as broker:
        yield broker


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with running() as one:
        yield one
