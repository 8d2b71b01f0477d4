"""Fill a broker with 24,000 flushed messages, flip bits of some on the disk, see what is served.

For our broker (test_bit_flip.py) and the Java one beside it
(tests/interop/stores/test_bit_flip.py). Sends go out many at a time on one connection, by the
tests' own wire client.
"""

import json
import random
import struct
from typing import NamedTuple

from tests.interop.brokers import Broker
from tests.interop.wire import SEND_MESSAGE_V2, Stored, Wire

Place = tuple[int, int]

COUNT = 24_000
DAMAGED = 1_000
QUEUES = 4
TOPIC = "flip"
#: Where a record's body begins: both hosts of these records are IPv4.
BODY_AT = 88
_AT_ONCE = 200


class Sent(NamedTuple):
    """An acknowledged message; `log_offset` is the second half of its offset message id."""

    queue: int
    queue_offset: int
    log_offset: int
    body: str


def send_many(wire: Wire, topic: str, queues: int, bodies: list[str]) -> list[Sent]:
    """Send in turn to all queues of a topic; every message must be answered with SEND_OK."""
    sent: list[Sent] = []
    for start in range(0, len(bodies), _AT_ONCE):
        part = bodies[start : start + _AT_ONCE]
        asked: dict[int, tuple[int, str]] = {}
        frames: list[bytes] = []
        for number, body in enumerate(part, start):
            wire.opaque += 1
            asked[wire.opaque] = (number % queues, body)
            frames.append(_frame(wire.opaque, topic, number, number % queues, body))
        wire.socket.sendall(b"".join(frames))
        for _ in part:
            (size,) = struct.unpack(">I", wire._exactly(4))
            answer = wire._exactly(size)
            (word,) = struct.unpack_from(">I", answer)
            head = json.loads(answer[4 : 4 + (word & 0xFFFFFF)])
            assert head["code"] == 0, head
            queue, body = asked.pop(head["opaque"])
            fields = head["extFields"]
            log_offset = int(fields["msgId"][-16:], 16)
            sent.append(Sent(queue, int(fields["queueOffset"]), log_offset, body))
    return sent


def _frame(opaque: int, topic: str, number: int, queue: int, body: str) -> bytes:
    properties = f"WAIT\x01true\x02UNIQ_KEY\x01{number:032X}\x02KEYS\x01k{number}"
    fields = {
        "a": "wire", "b": topic, "c": "TBW102", "d": "4", "e": str(queue), "f": "0", "g": "0",
        "h": "0", "i": properties, "j": "0", "k": "false", "m": "false",
    }  # fmt: skip
    head = {"code": SEND_MESSAGE_V2, "flag": 0, "language": "OTHER", "opaque": opaque}
    header = json.dumps({**head, "version": 401, "extFields": fields}).encode()
    data = body.encode()
    return struct.pack(">II", 4 + len(header) + len(data), len(header)) + header + data


def bodies() -> list[str]:
    return [
        f"{number:06d}" + chr(97 + number % 26) * (40 + number * 7 % 200) for number in range(COUNT)
    ]


def fill(broker: Broker) -> list[Sent]:
    """Send all messages; each is acknowledged, so synced."""
    broker.create_topic(TOPIC, QUEUES)
    with broker.wire() as wire:
        sent = send_many(wire, TOPIC, QUEUES, bodies())
    sent.sort(key=lambda one: one.log_offset)
    return sent


def flip_body_bit(broker: Broker, one: Sent, rng: random.Random) -> str:
    """Flip a bit of the message's body on the disk; return a description."""
    size = broker.shape.segment_bytes
    start = one.log_offset // size * size
    path = broker.store / "commitlog" / f"{start:020d}"
    position = one.log_offset - start + BODY_AT + rng.randrange(len(one.body))
    bit = 1 << rng.randrange(7)  # still text, so that it can be read if it is served
    with path.open("r+b") as file:
        file.seek(position)
        (old,) = file.read(1)
        file.seek(position)
        file.write(bytes([old ^ bit]))
    return f"bit {bit:#04x} of byte {position} of {path.name}"


def served(broker: Broker) -> list[Stored]:
    with broker.wire() as wire:
        return wire.read_topic(TOPIC, QUEUES)


def compare(
    found: list[Stored], sent: list[Sent], damaged: list[Sent]
) -> tuple[set[Place], set[Place]]:
    """Places of sound messages that are not served, and of served ones that were not sent so."""
    there = {(one.queue, one.queue_offset): one.body for one in found}
    expected = {(one.queue, one.queue_offset): one.body for one in sent}
    for one in damaged:
        del expected[one.queue, one.queue_offset]
    missing = expected.keys() - there.keys()
    strange = {place for place, body in there.items() if expected.get(place) != body}
    print(f"served {len(found)} of {len(sent)}, {len(missing)} lost, {len(strange)} strange")
    return missing, strange
