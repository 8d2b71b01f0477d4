"""The answers to producers of one group and to a consumer, over all lives of a daemon.

A `Transaction` has a kind, which says how its producers decide: at once, at a check, never, twice,
and so on (`KINDS`). All of it follows from its number and the run's seed, so that any producer of
the group can decide any of them. Decisions are noted before they are sent, answers when they are
received; a request that a kill took has no answer.

Any thread.
"""

from __future__ import annotations

import random
import threading
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

TOPIC, QUEUES, GROUP = "Transacted", 2, "payers"
UNKNOWN, COMMIT, ROLLBACK = 0, 8, 12
#: Carried out; with 10 it is not known yet whether that is durable.
DONE = (0, 10)
#: How producers decide, and how often each kind is drawn.
KINDS = {
    "at once": 40,
    "at a check": 15,  # and first: not known yet
    "at a check, silent": 5,  # its producer has gone
    "never": 8,
    "never, silent": 2,
    "twice": 12,
    "contrary": 8,  # then the other way, which is refused
    "by another": 10,  # of the group
}
_SIZES = (20, 20, 200, 200, 900, 4_000)
_RECENT = 400
_WAIT_S = 240.0


@dataclass(slots=True)
class Decision:
    """One END_TRANSACTION; `code` is that of its answer, None without one."""

    what: int
    life: int
    # An answered decision went before it that was another one.
    contrary: bool = False
    code: int | None = None
    # That of the answer, in the log of a recorded disk.
    mark: int = -1

    @property
    def is_done(self) -> bool:
        """It was answered as carried out."""
        return self.code in DONE


class Check(NamedTuple):
    """A producer was asked; `times` is what the message said of how often, with this one."""

    life: int
    times: int
    log_offset: int


@dataclass(slots=True, eq=False)
class Transaction:
    """One of them; `half` is (queue offset, log offset) of its half message, None before that was
    answered."""

    number: int
    kind: str
    wish: int
    # Decided when it is asked about for the time of this number, or a later one.
    at_check: int
    queue_id: int
    body: bytes
    half: tuple[int, int] | None = None
    #: Its preparation was answered otherwise, by a machine that was too late, say.
    refused: bool = False
    mark: int = -1
    decisions: list[Decision] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)

    @classmethod
    def drawn(cls, seed: int, number: int, checks: int) -> Transaction:
        """`checks`: how often producers are asked."""
        rng = random.Random(f"{seed} transaction {number}")
        kind = rng.choices(list(KINDS), list(KINDS.values()))[0]
        wish = UNKNOWN if kind.startswith("never") else rng.choice((COMMIT, COMMIT, ROLLBACK))
        filler = rng.randbytes(rng.choice(_SIZES))
        body = b"%08d %08x " % (number, zlib.crc32(filler)) + filler
        return cls(
            number, kind, wish, rng.randrange(1, checks + 1), rng.randrange(QUEUES), body
        )  # fmt: skip

    def sent(self, what: int) -> bool:
        """Whether somebody has decided so, answered or not."""
        return any(one.what == what for one in self.decisions)

    def done(self, what: int) -> bool:
        """Whether that decision was answered as carried out."""
        return any(one.what == what and one.is_done for one in self.decisions)

    @property
    def settled_in(self) -> int | None:
        """The life in which a decision was first answered as carried out."""
        return min((one.life for one in self.decisions if one.is_done), default=None)


def number_of(body: bytes) -> int:
    """The number of a message's transaction."""
    return int(body[:8])


class Seen(NamedTuple):
    """A consumer got a message. `committed`: somebody had sent a commit of it by then."""

    queue_id: int
    queue_offset: int
    body: bytes
    committed: bool


class History:
    """Past events, and the next thing to do."""

    def __init__(
        self, seed: int, checks: int, producers: int, mark: Callable[[], int] = lambda: -1
    ) -> None:
        """`checks`: how often producers are asked; `mark` is called for each answer."""
        self.transactions: list[Transaction] = []
        self.seen: list[Seen] = []
        self.life = 0
        self.repeated = 0
        self.prepared = 0
        self.asked = 0
        #: New transactions are begun up to this number.
        self.goal = 0
        self._seed = seed
        self._checks = checks
        self._mark = mark
        self._recent: deque[Transaction] = deque(maxlen=_RECENT)
        self._errands: list[deque[Transaction]] = [deque() for _ in range(producers)]
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)

    # --- producers --------------------------------------------------------------------------

    def begin(self) -> Transaction | None:
        """The next transaction, None if there are to be no more."""
        with self._lock:
            if len(self.transactions) >= self.goal:
                return None
            one = Transaction.drawn(self._seed, len(self.transactions), self._checks)
            self.transactions.append(one)
            return one

    def was_prepared(self, one: Transaction, queue_offset: int, log_offset: int) -> None:
        """Its half message is stored."""
        mark = self._mark()
        with self._lock:
            one.mark = mark
            one.half = queue_offset, log_offset
            self.prepared += 1
            self._changed.notify_all()

    def was_refused(self, one: Transaction) -> None:
        """Its producer was not told that its half message is stored."""
        with self._lock:
            one.refused = True

    def decides(self, one: Transaction, what: int, *, contrary: bool = False) -> Decision:
        """A decision is about to be sent."""
        decision = Decision(what, self.life, contrary)
        with self._lock:
            if one.decisions:
                self.repeated += 1
            elif not contrary:
                self._recent.append(one)
            one.decisions.append(decision)
        return decision

    def answered(self, decision: Decision, code: int) -> None:
        """A decision was answered."""
        decision.mark = self._mark()
        decision.code = code

    def earlier(self, rng: random.Random) -> Transaction | None:
        """Some transaction that was decided lately, in this life or an earlier one; whether that
        was answered or not."""
        with self._lock:
            found = rng.choice(self._recent) if self._recent else None
        return found if found is not None and found.half is not None else None

    def leave_to(self, producer: int, one: Transaction) -> None:
        """That producer is to decide it."""
        self._errands[producer].append(one)

    def left_to(self, producer: int) -> Transaction | None:
        """A transaction that another producer has left to this producer."""
        errands = self._errands[producer]
        return errands.popleft() if errands else None

    def was_asked(self, number: int, check: Check) -> Transaction:
        """A producer was asked about a transaction."""
        with self._lock:
            one = self.transactions[number]
            one.checks.append(check)
            self.asked += 1
            self._changed.notify_all()
        return one

    # --- the consumer -----------------------------------------------------------------------

    def saw(self, queue_id: int, queue_offset: int, body: bytes) -> None:
        """A consumer got a message."""
        with self._lock:
            one = self.transactions[number_of(body)]
            self.seen.append(Seen(queue_id, queue_offset, body, one.sent(COMMIT)))

    # --- the test ---------------------------------------------------------------------------

    def wait_prepared(self, count: int) -> None:
        """Wait until this number of half messages is stored."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.prepared >= count, _WAIT_S)

    def wait_asked(self, count: int) -> None:
        """Until producers were asked so often."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.asked >= count, _WAIT_S)
