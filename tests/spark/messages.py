"""Messages for the Spark tests, sent by the project's own client, many at a time."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable

from aerobee.client.blocking_roles import Producer
from aerobee.client.message import Message
from aerobee.protocol.bodies.common import MessageQueue
from tests.interop.brokers import BROKER_NAME, Broker
from tests.interop.processes import wait_until

_names = itertools.count()
SEND_BATCH = 320


def new_topic(broker: Broker, queues: int = 2, prefix: str = "spark") -> str:
    """A topic that no other test has."""
    return broker.create_topic(f"{prefix}-{next(_names)}", queues)


def send(
    broker: Broker, topic: str, bodies: Iterable[bytes], queue: int = 0, batch: int = 1
) -> None:
    """Sends to one queue in order, as single messages or as batches."""
    target = MessageQueue(topic, BROKER_NAME, queue)
    end = 0
    with Producer(broker.name_server) as producer:
        for part in _parts([Message(topic, body) for body in bodies], batch):
            if batch == 1:
                sent = producer.send(part[0], queue=target)
            else:
                sent = producer.send_batch(part, queue=target)
            end = sent.queue_offset + len(part)
    _wait_readable(broker, topic, queue, end)


def send_messages(broker: Broker, messages: list[Message], queue: int = 0) -> None:
    ends: dict[str, int] = {}
    with Producer(broker.name_server) as producer:
        for message in messages:
            target = MessageQueue(message.topic, BROKER_NAME, queue)
            ends[message.topic] = producer.send(message, queue=target).queue_offset + 1
    for topic, end in ends.items():
        _wait_readable(broker, topic, queue, end)


def _wait_readable(broker: Broker, topic: str, queue: int, end: int) -> None:
    """A Java broker answers a send before its consumers, and its maximum offset, know of it."""
    with broker.wire() as wire:
        wait_until(lambda: wire.max_offset(topic, queue) >= end, 120, f"{end} messages", 0.005)


def _parts(messages: list[Message], size: int) -> Iterable[list[Message]]:
    for first in range(0, len(messages), size):
        yield messages[first : first + size]


def send_numbered(broker: Broker, topic: str, queue: int, numbers: range, batch: int) -> None:
    """Sends a message for each number: the number is its body, and in hexadecimal its msgId.

    Frames are made by hand here, a million of them in a few seconds.
    """
    pack = struct.Struct(">iiiii").pack
    header = {"a": "wire", "b": topic, "c": "TBW102", "d": 4, "e": queue, "f": 0, "g": 0, "h": 0,
              "i": "", "j": 0, "k": "false", "m": "true"}  # fmt: skip
    id_field = struct.pack(">H", len(b"UNIQ_KEY\x01") + 32) + b"UNIQ_KEY\x01"
    with broker.wire() as wire:
        for first in range(numbers.start, numbers.stop, batch):
            parts = []
            for number in range(first, min(first + batch, numbers.stop)):
                body = b"%d" % number
                size = 22 + len(body) + len(id_field) - 2 + 32
                parts.append(pack(size, 0, 0, 0, len(body)) + body + id_field + b"%032X" % number)
            answer = wire.done(SEND_BATCH, header, b"".join(parts))
    _wait_readable(broker, topic, queue, int(answer.ext["queueOffset"]) + len(parts))
