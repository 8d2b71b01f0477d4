"""Pending work when a store changes hands: undecided transactions, messages that wait for their
delay or their time, offsets of a group that was reset. Java's broker, ours, and Java's again.

Clients are frames, so that the requests and answers of each are known. No times are looked at: any
broker that is there when a message is due delivers it, once.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.interop.brokers import Broker, StoreShape
from tests.interop.processes import wait_until
from tests.interop.stores.test_store_tools import tool
from tests.interop.wire import SEND_MESSAGE_V2, Stored, Wire, records

TOPIC, QUEUES = "pending", 2
QUERY_OFFSET, UPDATE_OFFSET, HEART_BEAT, END, CHECK = 14, 15, 34, 37, 39
RESET_MEMBER, RESET = 220, 222
COMMIT, ROLLBACK = 8, 12
HALF, CHECKS = "RMQ_SYS_TRANS_HALF_TOPIC", "CID_RMQ_SYS_TRANS"
DAY_MS = 86_400_000
LEVELS = "1s 9s 25s"


def shape(check_interval_ms: int) -> StoreShape:
    return StoreShape(
        segment_bytes=1 << 20,
        queue_segment_bytes=4_000,
        extra={
            "messageDelayLevel": LEVELS,
            "transactionTimeOut": "500",
            "transactionCheckInterval": str(check_interval_ms),
            # Copies are made in each round, whoever is there to be asked.
            "transactionCheckMax": "1000",
        },
    )


# A decision that comes after the next round is for a copy that Java has replaced, and the next one
# is delivered again (docs/decisions/0015-transactions.md).
JAVA, OURS = shape(2_500), shape(500)


@dataclass(frozen=True, slots=True)
class Transaction:
    """Where a half message lies, as its END_TRANSACTION says it."""

    group: str
    body: str
    half_offset: str
    log_offset: str

    def end(self, wire: Wire, decision: int, *, checked: bool = False) -> int:
        ext = {
            "producerGroup": self.group, "tranStateTableOffset": self.half_offset,
            "commitLogOffset": self.log_offset, "commitOrRollback": decision,
            "fromTransactionCheck": str(checked).lower(), "msgId": f"U{self.body}",
            "transactionId": f"U{self.body}",
        }  # fmt: skip
        return wire.call(END, ext).code


def begin(wire: Wire, group: str, body: str) -> Transaction:
    """Send a half message."""
    properties = {
        "TRAN_MSG": "true", "PGROUP": group, "UNIQ_KEY": f"U{body}", "KEYS": body, "WAIT": "true",
    }  # fmt: skip
    ext = {
        "a": group, "b": TOPIC, "c": "TBW102", "d": 4, "e": len(body) % QUEUES, "f": 4,
        "g": time.time_ns() // 1_000_000, "h": 0, "j": 0, "k": "false", "m": "false",
        "i": "\x02".join(f"{name}\x01{value}" for name, value in properties.items()),
    }  # fmt: skip
    sent = wire.done(SEND_MESSAGE_V2, ext, body.encode()).ext
    return Transaction(group, body, sent["queueOffset"], str(int(sent["msgId"][-16:], 16)))


class Producer:
    """A member of a group of producers, and what it is asked about."""

    def __init__(self, broker: Broker, group: str) -> None:
        self._group = group
        self.wire = broker.wire()
        self._seen = 0
        beat = {"clientID": f"p-{group}", "producerDataSet": [{"groupName": group}]}
        body = json.dumps({**beat, "consumerDataSet": []}).encode()
        self.wire.done(HEART_BEAT, {}, body)

    def asked(self) -> dict[str, Transaction]:
        """The transactions of the checks that have come so far, by body; the last check of each."""
        # After any answer, checks that came before are read.
        self.wire.max_offset(TOPIC, 0)
        found: dict[str, Transaction] = {}
        for code, ext, body in self.wire.requests:
            if code == CHECK:
                (message,) = records(body)
                found[message.body] = Transaction(
                    self._group, message.body, ext["tranStateTableOffset"], ext["commitLogOffset"]
                )
        return found

    def wait_asked(self, *bodies: str) -> dict[str, Transaction]:
        wait_until(lambda: {*bodies} <= self.asked().keys(), 60, f"{bodies} are asked about")
        return self.asked()


def delivered(broker: Broker) -> Counter[str]:
    """How often each body has come."""
    with broker.wire() as wire:
        return Counter([one.body for one in wire.read_topic(TOPIC, QUEUES)])


def wait_for(broker: Broker, *bodies: str) -> None:
    wait_until(lambda: {*bodies} <= delivered(broker).keys(), 60, f"{bodies} are delivered")


def offsets(wire: Wire, group: str) -> list[int]:
    asked = [{"consumerGroup": group, "topic": TOPIC, "queueId": each} for each in range(QUEUES)]
    return [int(wire.done(QUERY_OFFSET, ext).ext["offset"]) for ext in asked]


def commit(wire: Wire, group: str, told: dict[int, int]) -> None:
    for queue, offset in told.items():
        ext = {"consumerGroup": group, "topic": TOPIC, "queueId": queue, "commitOffset": offset}
        wire.done(UPDATE_OFFSET, ext)


def reset(broker: Broker, group: str, time_ms: int) -> None:
    """Reset as an administrator's tool does, with one member, which commits the offsets that it
    gets."""
    subscription = {"topic": TOPIC, "subString": "*", "expressionType": "TAG", "subVersion": 1}
    data = {
        "groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "subscriptionDataSet": [subscription],
    }  # fmt: skip
    beat = {"clientID": "c", "producerDataSet": [], "consumerDataSet": [data]}
    with broker.wire() as member, broker.wire() as tools:
        member.done(HEART_BEAT, {}, json.dumps(beat).encode())
        ext = {"topic": TOPIC, "group": group, "timestamp": time_ms, "isForce": "true"}
        tools.done(RESET, ext)

        def told() -> list[bytes]:
            member.max_offset(TOPIC, 0)
            return [body for code, _, body in member.requests if code == RESET_MEMBER]

        wait_until(lambda: bool(told()), 30, f"the member of {group} is told")
        # {"offsetTable":{{"brokerName":"...","queueId":0,"topic":"..."}:5}}
        found = re.findall(r'"queueId":(\d+)[^}]*\}:(\d+)', told()[0].decode())
        commit(member, group, {int(queue): int(offset) for queue, offset in found})


def half_progress(broker: Broker) -> tuple[int, int]:
    """How far the checks are with the half messages, and how many there are."""
    with broker.wire() as wire:
        ext = {"consumerGroup": CHECKS, "topic": HALF, "queueId": 0}
        return int(wire.done(QUERY_OFFSET, ext).ext["offset"]), wire.max_offset(HALF, 0)


def wait_all_decided(broker: Broker) -> None:
    """The broker has gone through its half messages and found none that is undecided."""

    def done() -> bool:
        at, end = half_progress(broker)
        return at == end

    wait_until(done, 60, f"{broker.kind} knows that all is decided")


def delay(wire: Wire, body: str, **properties: str) -> None:
    assert wire.send(TOPIC, 0, body.encode(), UNIQ_KEY=f"U{body}", **properties).code == 0


def plain(wire: Wire, turn: str) -> list[Stored]:
    for number in range(20):
        assert wire.send(TOPIC, number % QUEUES, f"{turn}-plain-{number}".encode()).code == 0
    wait_until(lambda: len(wire.read_topic(TOPIC, QUEUES)) >= 20, 30, "plain ones can be read")
    return wire.read_topic(TOPIC, QUEUES)


def exported(broker: Broker, *options: str) -> Any:
    broker.write_config()
    return tool(broker, "export-timers", *options)


def test_what_is_pending_wanders_between_the_brokers(
    new_broker: Callable[..., Broker], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    java, ours, again = (
        new_broker(kind, name, shape=JAVA if kind == "java" else OURS, store=store)
        for kind, name in (("java", "1-java"), ("our", "2-our"), ("java", "3-java"))
    )
    came: Counter[str] = Counter()

    # --- Java's
    java.start()
    java.create_topic(TOPIC, QUEUES)
    producer = Producer(java, "asked")
    with java.wire() as wire:
        stored = plain(wire, "a")
        commit(wire, "reset", dict.fromkeys(range(QUEUES), 10))
        commit(wire, "kept", {0: 3, 1: 4})
        reset(java, "reset", stored[4].store_ms)
        reset_offsets = offsets(wire, "reset")
        assert sum(reset_offsets) < 20
        for level in (1, 2, 3):
            delay(wire, f"a-level-{level}", DELAY=str(level))
        committed = begin(wire, "asked", "a-committed")
        rolled_back = begin(wire, "asked", "a-rolled-back")
        begin(wire, "asked", "a-asked")
        begin(wire, "absent", "a-absent")
        begin(wire, "asked", "a-committed-when-asked")
        assert committed.end(wire, COMMIT) == 0
        assert rolled_back.end(wire, ROLLBACK) == 0
        checks = producer.wait_asked("a-asked", "a-committed-when-asked")
        assert checks["a-committed-when-asked"].end(wire, COMMIT, checked=True) == 0
    wait_for(java, "a-committed", "a-committed-when-asked", "a-level-1")
    java.stop()
    came.update(["a-committed", "a-committed-when-asked", "a-level-1"])

    # --- ours
    ours.start()
    with ours.wire() as wire:
        assert offsets(wire, "reset") == reset_offsets
        assert offsets(wire, "kept") == [3, 4]
        producer, late = Producer(ours, "asked"), Producer(ours, "absent")
        checks = producer.wait_asked("a-asked") | late.wait_asked("a-absent")
        assert checks.keys() == {"a-asked", "a-absent"}
        # Java has not said how it was decided, so both answers are 0; nothing comes twice.
        assert committed.end(wire, COMMIT) == 0
        assert rolled_back.end(wire, COMMIT) == 0
        assert checks["a-asked"].end(wire, COMMIT, checked=True) == 0
        plain(wire, "b")
        delay(wire, "b-level-3", DELAY="3")
        now_ms = time.time_ns() // 1_000_000
        delay(wire, "b-soon", TIMER_DELAY_MS="100")
        delay(wire, "b-level-reaches", TIMER_DELIVER_MS=str(now_ms + 20_000))
        delay(wire, "b-far", TIMER_DELIVER_MS=str(now_ms + 30 * DAY_MS), KEYS="far")
        assert begin(wire, "asked", "b-committed").end(wire, COMMIT) == 0
        assert begin(wire, "asked", "b-rolled-back").end(wire, ROLLBACK) == 0
        begin(wire, "asked", "b-asked")
        begin(wire, "absent", "b-absent")
        late.wait_asked("b-absent")
        reset(ours, "kept", stored[2].store_ms)
        kept_offsets = offsets(wire, "kept")
        assert kept_offsets != [3, 4]
    wait_for(ours, "a-asked", "a-level-2", "b-soon", "b-committed")
    before_stop = delivered(ours)
    ours.stop()
    came.update(["a-asked", "a-level-2", "b-soon", "b-committed"])

    # --- what Java would keep for ever is made into what it delivers, or is named
    preview, report = exported(ours, "--dry-run"), exported(ours)
    for one in (preview, report):
        assert [kept["keys"] for kept in one["kept"]] == ["far"]
        # It was pending at the stop, unless all of this took longer than its time.
        assert one["exported"] <= 1
    assert report["exported"] == 1 or before_stop["b-level-reaches"] == 1

    # --- Java's again
    again.start()
    with again.wire() as wire:
        assert offsets(wire, "reset") == reset_offsets
        assert offsets(wire, "kept") == kept_offsets
        producer, late = Producer(again, "asked"), Producer(again, "absent")
        checks = producer.wait_asked("b-asked") | late.wait_asked("a-absent", "b-absent")
        assert checks.keys() == {"b-asked", "a-absent", "b-absent"}
        assert checks["b-asked"].end(wire, ROLLBACK, checked=True) == 0
        assert checks["a-absent"].end(wire, COMMIT, checked=True) == 0
        assert checks["b-absent"].end(wire, COMMIT, checked=True) == 0
    wait_for(again, "a-absent", "b-absent", "a-level-3", "b-level-3", "b-level-reaches")
    wait_all_decided(again)
    found = delivered(again)
    again.stop()
    came.update(["a-absent", "b-absent", "a-level-3", "b-level-3", "b-level-reaches"])
    came.update([f"{turn}-plain-{number}" for turn in "ab" for number in range(20)])
    assert found == came

    # --- nothing that is far ahead was lost meanwhile
    (far,) = exported(ours, "--dry-run")["kept"]
    assert far["keys"] == "far"
