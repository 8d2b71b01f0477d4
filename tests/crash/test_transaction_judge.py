"""The judge of transactions finds nothing in a sound log, and each thing that can be wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.crash.judges.records import Record
from tests.crash.transactions.history import (
    COMMIT,
    ROLLBACK,
    TOPIC,
    UNKNOWN,
    Check,
    Decision,
    History,
    Transaction,
)
from tests.crash.transactions.judge import ASIDE, HALF, OP, Rules, judge

RULES = Rules(checks=2, timeout_ms=100, interval_ms=50)
BORN_MS = 1_000
Log = list[Record]


def body(number: int) -> bytes:
    return b"%08d body" % number


class Sound:
    """Three transactions: committed at once, rolled back at the first check, put aside after two;
    and the log that they leave."""

    def __init__(self) -> None:
        self.log: Log = []
        self.history = History(1, RULES.checks, 1)
        committed = self.begin(0, COMMIT)
        rolled_back = self.begin(1, ROLLBACK)
        self.begin(2, UNKNOWN)
        self.decide(committed, COMMIT)
        self.put(TOPIC, body(0), queue_offset=0, flags=COMMIT)
        self.put(OP, b"0")
        self.ask(1, 1, 200)
        self.decide(rolled_back, ROLLBACK)
        self.put(OP, b"3")
        self.ask(2, 1, 200)
        self.ask(2, 2, 250)
        self.put(ASIDE, body(2), times=2)
        self.put(OP, b"5")
        self.history.seen = []
        self.history.saw(0, 0, body(0))

    def begin(self, number: int, wish: int) -> Transaction:
        half = self.put(HALF, body(number))
        one = Transaction(number, "at once", wish, 1, 0, body(number))
        one.half = half.queue_offset, half.log_offset
        self.history.transactions.append(one)
        return one

    def decide(self, one: Transaction, what: int) -> None:
        one.decisions.append(Decision(what, 1, code=0))

    def ask(self, number: int, times: int, after_ms: int) -> None:
        copy = self.put(HALF, body(number), times=times, store_ms=BORN_MS + after_ms)
        check = Check(1, times, copy.log_offset)
        self.history.transactions[number].checks.append(check)

    def put(
        self,
        topic: str,
        data: bytes,
        *,
        times: int = 0,
        store_ms: int = BORN_MS,
        queue_offset: int | None = None,
        flags: int = 0,
    ) -> Record:
        if queue_offset is None:
            queue_offset = sum(one.topic == topic for one in self.log)
        properties = b"TRANSACTION_CHECK_TIMES\1%d" % times if times else b""
        record = Record(
            topic, 0, queue_offset, len(self.log) * 100, 100, data, properties, store_ms, BORN_MS,
            flags,
        )  # fmt: skip
        self.log.append(record)
        return record

    def rules(self) -> set[str]:
        return {one.rule for one in judge(self.history, self.log, RULES)}

    def place(self, topic: str) -> int:
        """The place of the topic's last record in the log."""
        return max(number for number, one in enumerate(self.log) if one.topic == topic)

    def change(self, topic: str, **values: object) -> None:
        place = self.place(topic)
        self.log[place] = replace(self.log[place], **values)  # type: ignore[arg-type]


def test_a_sound_log_is_sound() -> None:
    assert Sound().rules() == set()


def forget(topic: str) -> Callable[[Sound], None]:
    return lambda sound: sound.log.pop(sound.place(topic)) and None


def twice(sound: Sound) -> None:
    sound.put(TOPIC, body(0), flags=COMMIT)


def uncommitted(sound: Sound) -> None:
    sound.put(TOPIC, body(2), flags=COMMIT)


def seen_early(sound: Sound) -> None:
    sound.history.saw(0, 0, body(2))


def overruled(sound: Sound) -> None:
    sound.decide(sound.history.transactions[1], COMMIT)


def refused(sound: Sound) -> None:
    sound.history.transactions[0].decisions.append(Decision(COMMIT, 1, code=1))


def asked_when_decided(sound: Sound) -> None:
    sound.ask(0, 1, 300)


def asked_in_a_later_life(sound: Sound) -> None:
    one = sound.history.transactions[1]
    one.checks[0] = one.checks[0]._replace(life=2)


def asked_and_not_noted(sound: Sound) -> None:
    sound.history.transactions[2].checks.append(Check(1, 2, 77))


def asked_early(sound: Sound) -> None:
    sound.change(HALF, store_ms=BORN_MS + 210)


def put_aside_early(sound: Sound) -> None:
    sound.log.pop(sound.place(HALF))
    sound.history.transactions[2].checks.pop()


def another_body(sound: Sound) -> None:
    sound.change(TOPIC, body=body(0) + b" and more")


@pytest.mark.parametrize(
    ("spoil", "rule"),
    [
        (forget(TOPIC), "delivered"),
        (forget(OP), "over"),
        (forget(ASIDE), "over"),
        (twice, "once"),
        (uncommitted, "visible"),
        (seen_early, "visible"),
        (lambda sound: sound.change(TOPIC, flags=0), "visible"),
        (lambda sound: sound.change(TOPIC, queue_id=1), "delivered"),
        (overruled, "overruled"),
        (refused, "refused"),
        (asked_when_decided, "asked"),
        (asked_in_a_later_life, "asked"),
        (asked_and_not_noted, "asked"),
        (asked_early, "counted"),
        (put_aside_early, "counted"),
        (another_body, "half"),
        (another_body, "seen"),
    ],
)
def test_what_is_wrong_has_its_rule(spoil: Callable[[Sound], None], rule: str) -> None:
    sound = Sound()
    spoil(sound)
    assert rule in sound.rules()
