"""Load for a master, as frames that are sent without waiting: sends of any size, batches, delays,
transactions, from hosts of both families.

Real clients send besides; with frames alone some ten thousand messages take seconds.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from tests.interop.brokers import Broker
from tests.interop.wire import SEND_MESSAGE_V2, Answer, Wire

SEND_BATCH, END_TRANSACTION = 320, 37
HALF, COMMIT, ROLLBACK = 4, 8, 12
OUTSTANDING = 128
GROUP = "load"
# Answers to messages that are stored; the other three say what is not known of their copies.
SEND_OK, FLUSH_TIMEOUT, SLAVE_TIMEOUT, NO_SLAVE = 0, 10, 12, 11
STORED = {SEND_OK, FLUSH_TIMEOUT, SLAVE_TIMEOUT, NO_SLAVE}


@dataclass(slots=True)
class Sent:
    """The answers that came."""

    #: Bodies that consumers get, each once.
    bodies: set[str] = field(default_factory=set)
    #: How often each code came for a send.
    codes: Counter[int] = field(default_factory=Counter)


@dataclass(slots=True)
class _Request:
    """A request whose answer has not come."""

    bodies: tuple[str, ...]
    #: The decision for a half message, 0 for other messages.
    decision: int = 0
    ends_transaction: bool = False


class _Connection:
    """One connection with its outstanding requests."""

    def __init__(self, wire: Wire, topic: str, queues: int, sent: Sent) -> None:
        self._wire = wire
        self._topic = topic
        self._queues = queues
        self._sent = sent
        self._waiting: dict[int, _Request] = {}
        self._number = 0

    def send(self, body: str, properties: dict[str, str], decision: int = 0) -> None:
        flag = HALF if decision else 0
        number = self._ask(SEND_MESSAGE_V2, properties, body.encode(), flag=flag)
        self._waiting[number] = _Request((body,), decision)
        self._take(OUTSTANDING)

    def send_batch(self, bodies: list[str], properties: dict[str, str]) -> None:
        text = _text(properties).encode()
        parts = []
        for body in bodies:
            data = body.encode()
            size = 22 + len(data) + len(text)
            head = struct.pack(">iiiii", size, 0, 0, 0, len(data))
            parts.append(head + data + struct.pack(">h", len(text)) + text)
        number = self._ask(SEND_BATCH, {}, b"".join(parts), batch="true")
        self._waiting[number] = _Request(tuple(bodies))
        self._take(OUTSTANDING)

    def _ask(
        self,
        code: int,
        properties: dict[str, str],
        body: bytes,
        *,
        flag: int = 0,
        batch: str = "false",
    ) -> int:
        self._number += 1
        ext = {
            "a": GROUP, "b": self._topic, "c": "TBW102", "d": 4,
            "e": self._number % self._queues, "f": flag, "g": 1_700_000_000_000, "h": 0,
            "i": _text(properties), "j": 0, "k": "false", "m": batch,
        }  # fmt: skip
        return self._wire.ask(code, ext, body)

    def finish(self) -> None:
        self._take(0)

    def _take(self, most: int) -> None:
        """Take answers until `most` requests wait at most."""
        while len(self._waiting) > most:
            number, answer = self._wire.next_answer()
            self._answered(self._waiting.pop(number), answer)

    def _answered(self, request: _Request, answer: Answer) -> None:
        if request.ends_transaction:
            assert answer.code in STORED, answer
            self._sent.bodies.update(request.bodies)
            return
        self._sent.codes[answer.code] += 1
        if answer.code not in STORED:
            return
        if request.decision == 0:
            self._sent.bodies.update(request.bodies)
            return
        number = self._wire.ask(
            END_TRANSACTION,
            {
                "producerGroup": GROUP, "tranStateTableOffset": answer.ext["queueOffset"],
                "commitLogOffset": int(answer.ext["msgId"][-16:], 16),
                "commitOrRollback": request.decision, "fromTransactionCheck": "false",
                "msgId": "", "transactionId": "",
            },
        )  # fmt: skip
        committed = request.bodies if request.decision == COMMIT else ()
        self._waiting[number] = _Request(committed, ends_transaction=True)


def load(
    broker: Broker, topic: str, queues: int, count: int, *, prefix: str, chance: Random
) -> Sent:
    """Send `count` messages from an IPv4 and an IPv6 address, and wait for all answers."""
    sent = Sent()
    with Wire(f"127.0.0.1:{broker.port}", 60) as four, Wire(f"[::1]:{broker.port}", 60) as six:
        connections = [_Connection(wire, topic, queues, sent) for wire in (four, six)]
        numbers = iter(range(count))
        for number in numbers:
            _send_one(connections[chance.randrange(2)], number, numbers, prefix, chance)
        for connection in connections:
            connection.finish()
    return sent


def _send_one(
    connection: _Connection, number: int, numbers: Iterator[int], prefix: str, chance: Random
) -> None:
    """Send the message of that number; a batch takes some of the next numbers too."""
    body = f"{prefix}-{number}"
    properties = {
        "KEYS": body, "TAGS": f"T{number % 3}", "UNIQ_KEY": f"U{body}", "WAIT": "true",
    }  # fmt: skip
    kind = chance.random()
    if kind < 0.02:
        connection.send(body, {**properties, "DELAY": str(chance.randrange(1, 3))})
    elif kind < 0.05:
        half = {**properties, "TRAN_MSG": "true", "PGROUP": GROUP}
        connection.send(body, half, chance.choice((COMMIT, COMMIT, ROLLBACK)))
    elif kind < 0.1:
        bodies = [body, *(f"{prefix}-{n}" for n in _some(numbers, chance.randrange(1, 20)))]
        connection.send_batch(bodies, {"TAGS": "batch", "WAIT": "true"})
    elif kind < 0.11:
        connection.send(f"{body}-{'x' * chance.randrange(40_000)}", properties)
    else:
        connection.send(f"{body}-{'y' * chance.randrange(300)}", properties)


def _some(numbers: Iterator[int], count: int) -> list[int]:
    return [number for number, _ in zip(numbers, range(count), strict=False)]


def _text(properties: dict[str, str]) -> str:
    return "\x02".join(f"{name}\x01{value}" for name, value in properties.items())
