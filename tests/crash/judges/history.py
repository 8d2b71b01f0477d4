"""The answers that clients got, the store found after a fault, and the promise made before it.

A `History` is written while a test runs: every send with its outcome, every message a consumer saw,
every topic whose creation was answered. `Found` is what a store holds after the fault, read by code
of the tests' own (`records.py`, `found.py`); parts that a test cannot see are None. `checker.py`
compares the two.

Outcomes: OK, the client was told that it is stored; FAIL, it was refused before anything was
stored; UNKNOWN, anything else, so both having it and not having it are right.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tests.crash.judges.records import Record, Unit

OK, FAIL, UNKNOWN = "ok", "fail", "unknown"
Queue = tuple[str, int]


@dataclass(slots=True)
class Sent:
    """One send. Bodies are all different. `mark` and `at` say when its answer was received."""

    producer: int
    sequence: int
    topic: str
    queue_id: int
    body: bytes
    properties: dict[str, str]
    outcome: str = UNKNOWN
    queue_offset: int = -1
    log_offset: int = -1
    mark: int = -1
    at: float = 0.0

    @property
    def name(self) -> str:
        return f"message {self.producer}-{self.sequence} of {self.topic}/{self.queue_id}"

    @property
    def place(self) -> tuple[str, int, int]:
        return self.topic, self.queue_id, self.queue_offset


@dataclass(slots=True)
class Seen:
    """A consumer was given `body` at this place."""

    topic: str
    queue_id: int
    queue_offset: int
    body: bytes
    mark: int = -1


@dataclass(slots=True)
class History:
    """`topics`: names whose creation was answered, with the mark of the answer."""

    sends: list[Sent] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    topics: dict[str, int] = field(default_factory=dict)

    def until(self, marks: Mapping[int, float]) -> History:
        """The history when only these marks had been made; later answers had not arrived."""
        return History(
            [
                one if one.mark in marks or one.outcome == FAIL else replace(one, outcome=UNKNOWN)
                for one in self.sends
            ],
            [one for one in self.seen if one.mark in marks],
            {name: mark for name, mark in self.topics.items() if mark in marks},
        )

    def acked(self) -> list[Sent]:
        return [one for one in self.sends if one.outcome == OK]


@dataclass(slots=True)
class Found:
    """A store after a fault. `ranges`: first offset and the one behind the last, by queue."""

    pulled: dict[Queue, list[Record]]
    ranges: dict[Queue, tuple[int, int]]
    log_start: int = 0
    log_end: int | None = None
    records: list[Record] | None = None
    units: dict[Queue, dict[int, Unit]] | None = None
    # Log offsets that a query by unique key returned.
    hits: dict[tuple[str, str], list[int]] | None = None
    gaps: int = 0
    topics: set[str] | None = None
    committed: dict[Queue, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Promise:
    """The promise of docs/reliability.md 1 for this run's fault.

    `durable`: every acked message survives (SYNC_FLUSH, or no power was lost). Otherwise a suffix
    may be gone: messages acked within `tail_s` before `cut_at`, or within `loss_s` if 20 KiB or
    more follow them. `damaged`: records the test damaged. `expiry`: segments may have gone.
    `holes`: messages as young as that may also be gone if others follow, if the store names the
    gap. `down`: from when to when no daemon ran; nobody could sync, so that time does not count.
    """

    durable: bool = True
    cut_at: float = 0.0
    loss_s: float = 0.0
    tail_s: float = 0.0
    down: tuple[float, float] = (0.0, 0.0)
    damaged: int = 0
    expiry: bool = False
    holes: bool = False
    segment_bytes: int = 0
    #: No group has committed more than there is; off after a loss, which consumers may have seen.
    commits: bool = True
