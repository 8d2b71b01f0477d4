"""Messages that wait, by delay levels and by times of their own: their sender, and their judge.

The sender has many requests under way and keeps to a rate, so that what is late is the broker's
doing. The judge reads the log alone: each waiting record says when it is due, each delivered one
when it was stored.
"""

from __future__ import annotations

import bisect
import random
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tests.crash.judges.checker import Violation
from tests.crash.judges.records import Record, records_of
from tests.crash.running.link import PULL, SEND, SUCCESS, Link, pull_fields, send_fields

TOPIC = "Waiting"
LEVELS_MS = {1: 1_000, 2: 2_000, 3: 5_000}
#: Times of their own are up to so far ahead; messages more than two seconds ahead are rolled.
LONGEST_MS = 6_000
SETTINGS = {
    "delivery.message_delay_levels": "1s 2s 5s",
    "delivery.timer_roll_window_seconds": 2,
    "delivery.flush_delay_offset_interval_ms": 100,
    "store.commit_log_segment_bytes": 8 << 20,
    "store.consume_queue_segment_bytes": 60_000,
    # A busy machine is no reason for SYSTEM_BUSY: the sender keeps 256 under way.
    "limits.send_queue_wait_ms": 10_000,
}
#: Within so long of its time a message is on time.
ON_TIME_MS = 200
SCHEDULE, TIMER = "SCHEDULE_TOPIC_XXXX", "rmq_sys_aerobee_timer"
_UNDER_WAY = 256
_RATE = 2_500  # messages a second
_LOOK_S = 0.01


@dataclass
class Sender:
    """The sent messages, over all lives, by number."""

    rng: random.Random
    sent: int = 0
    acknowledged: set[int] = field(default_factory=set)

    def send_to(self, port: int, acknowledged: int) -> None:
        """Send until this number is acknowledged."""
        with Link(port) as link:
            waiting: dict[int, int] = {}
            begin, first = time.monotonic(), self.sent
            while len(self.acknowledged) < acknowledged:
                may = first + (time.monotonic() - begin) * _RATE
                while self.sent < may and len(waiting) < _UNDER_WAY:
                    waiting[self._ask(link)] = self.sent
                    self.sent += 1
                for answer in link.answers(_LOOK_S):
                    assert answer.code == SUCCESS, answer.remark
                    self.acknowledged.add(waiting.pop(answer.opaque))

    def _ask(self, link: Link) -> int:
        if self.rng.random() < 0.5:
            properties = {"DELAY": str(self.rng.choice(list(LEVELS_MS)))}
        else:
            properties = {"TIMER_DELAY_MS": str(self.rng.randrange(20, LONGEST_MS))}
        return link.ask(SEND, send_fields(TOPIC, 0, properties), b"%08d" % self.sent)


class Reader:
    """A consumer that reads on where it was."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self._position = 0

    def read_on(self, port: int) -> None:
        """Everything that is there by now."""
        with Link(port) as link:
            while True:
                answer = link.call(PULL, pull_fields(TOPIC, 0, self._position, 0))
                self._position = int(answer.ext["nextBeginOffset"])
                if answer.code != SUCCESS:
                    return
                self.seen.update(int(one.body) for one in records_of(answer.body))


@dataclass
class Judged:
    """`late_ms`: the delay of each message that came due while a broker was up."""

    wrong: list[Violation]
    came_again: int
    late_ms: list[int]

    @property
    def on_time(self) -> int:
        """How many came within `ON_TIME_MS`."""
        return bisect.bisect_right(self.late_ms, ON_TIME_MS)

    def percentile(self, share: float) -> int:
        """The lateness that this share stays below."""
        return self.late_ms[int(share * (len(self.late_ms) - 1))] if self.late_ms else 0


def judge(
    records: Iterable[Record], acknowledged: set[int], lives: Sequence[tuple[int, int]]
) -> Judged:
    """`lives`: from when to when a broker was up, in ms since 1970."""
    due: dict[int, int] = {}
    came: dict[int, list[int]] = defaultdict(list)
    for one in records:
        if one.topic == SCHEDULE:
            due.setdefault(int(one.body), one.store_ms + LEVELS_MS[one.queue_id + 1])
        elif one.topic == TIMER:
            due.setdefault(int(one.body), int(one.property("TIMER_DELIVER_MS")))
        elif one.topic == TOPIC:
            came[int(one.body)].append(one.store_ms)
    wrong = [
        Violation("lost", f"message {number} was acknowledged and did not come")
        for number in sorted(acknowledged - came.keys())
    ]
    wrong += [
        Violation("early", f"message {number} came {due[number] - min(times)} ms early")
        for number, times in came.items()
        if number in due and min(times) < due[number]
    ]
    wrong += [
        Violation("invented", f"message {number} came and never waited")
        for number in came
        if number not in due
    ]
    late = [
        min(times) - due[number]
        for number, times in came.items()
        if number in due and is_up(due[number], lives)
    ]
    again = sum(len(times) - 1 for times in came.values())
    return Judged(wrong, again, sorted(late))


def is_up(due_ms: int, lives: Sequence[tuple[int, int]]) -> bool:
    """Whether a broker was up then, and for as long behind it as a message may be late."""
    return any(begin <= due_ms and due_ms + ON_TIME_MS < end for begin, end in lives)
