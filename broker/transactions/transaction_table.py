"""Which transactions are undecided, which were decided lately, and how far the checks have come.

Everything here follows from the two queues: a half message that no op message names and no copy
replaces is undecided (`pending`). The table is made of them at the start (`transaction_log.py`),
each put changes it as reading it again would.

A transaction begins with a half message, its origin, and goes on in copies: each check stores the
message again, and only the newest copy is pending. So that a decision is recognised whichever of
them it names, the newest copy is known by the origin's queue offset, and by what all copies share
(`Fingerprint`): copies that RocketMQ made do not name their origin.

Progress, as RocketMQ keeps it: the half queue's is the first half message that is pending, or
decided without having its op message, and the op queue's the first op message that names one at or
after it. What lies before is never looked at again.

Decisions are remembered, the newest `REMEMBERED` of them: a decision that comes again is answered
by what was decided.

Loop thread only. Pure: no store, no clock.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import NamedTuple

from aerobee.broker.transactions.forms import ASIDE, Fingerprint, Half

#: Decisions that are remembered, some 200 bytes each: 4 MB.
REMEMBERED = 20_000


class Pending(NamedTuple):
    """One undecided half message; `origin` as `Half.origin`, `fingerprint` of copies only."""

    log_offset: int
    store_ms: int
    check_after_ms: int
    origin: int
    fingerprint: Fingerprint | None = None


class TransactionTable:
    """The undecided half messages of one broker, by their queue offsets."""

    def __init__(self) -> None:
        self._pending: dict[int, Pending] = {}
        # Their queue offsets in order, with those of some that are not pending any more. Each part
        # lies after the one before; the first is what a round of checks has passed.
        self._passed: deque[int] = deque()
        self._order: deque[int] = deque()
        # The newest copy, by the origin's queue offset and by what copies share.
        self._by_origin: dict[int, int] = {}
        self._by_fingerprint: dict[Fingerprint, int] = {}
        self._decided: OrderedDict[int, int] = OrderedDict()
        # Decided half messages whose op messages could not be stored yet.
        self._owed: set[int] = set()
        # The half messages that op messages name, from the op queue's progress on.
        self._ops: deque[int] = deque()
        self._first_op = 0
        self._end = 0

    def __len__(self) -> int:
        return len(self._pending)

    def __contains__(self, offset: int) -> bool:
        return offset in self._pending

    def clear(self) -> None:
        """Know nothing, as when it was built."""
        self._pending.clear()
        self._passed.clear()
        self._order.clear()
        self._by_origin.clear()
        self._by_fingerprint.clear()
        self._decided.clear()
        self._owed.clear()
        self._ops.clear()
        self._first_op = self._end = 0

    def begin(self, half_end: int, op_offset: int) -> None:
        """Set where the queues are, before anything is added."""
        self._end, self._first_op = half_end, op_offset

    # --- undecided ones ---------------------------------------------------------------------

    def get(self, offset: int) -> Pending | None:
        """The undecided half message there."""
        return self._pending.get(offset)

    def add(self, offset: int, pending: Pending) -> None:
        """A half message was stored, after all others."""
        self._pending[offset] = pending
        self._order.append(offset)
        self._end = max(self._end, offset + 1)
        if pending.origin != offset:
            self._by_origin[pending.origin] = offset
        if pending.fingerprint is not None:
            self._by_fingerprint[pending.fingerprint] = offset

    def remove(self, offset: int) -> None:
        """It is decided, or replaced by a copy, or gone."""
        pending = self._pending.pop(offset, None)
        if pending is None:
            return
        if self._by_origin.get(pending.origin) == offset:
            del self._by_origin[pending.origin]
        fingerprint = pending.fingerprint
        if fingerprint is not None and self._by_fingerprint.get(fingerprint) == offset:
            del self._by_fingerprint[fingerprint]

    def newest_of(self, half: Half) -> int | None:
        """Where the undecided half message of this one's transaction lies; None: it is decided, or
        was put aside."""
        origin = half.origin
        if origin is not None:
            if half.message.queue_offset in self._pending and half.is_half:
                return half.message.queue_offset
            if (newest := self._by_origin.get(origin)) is not None:
                return newest
            if origin in self._pending:
                return origin
        fingerprint = half.fingerprint
        return None if fingerprint is None else self._by_fingerprint.get(fingerprint)

    def due(self, end: int) -> Iterator[tuple[int, Pending]]:
        """Each undecided half message before queue offset `end`, in order, for one round of checks.

        It may be removed and others added meanwhile. A round that was not run to its end is begun
        anew with the next one.
        """
        self._order.extendleft(reversed(self._passed))
        self._passed.clear()
        while self._order and self._order[0] < end:
            offset = self._order[0]
            pending = self._pending.get(offset)
            if pending is not None:
                yield offset, pending
            if self._order and self._order[0] == offset:
                self._order.popleft()
            if offset in self._pending:
                self._passed.append(offset)

    @property
    def end(self) -> int:
        """The queue offset after the last half message."""
        return self._end

    @property
    def first(self) -> int:
        """The queue offset of the first half message that is undecided, or decided without an op
        message; `end` without one."""
        return min([self.first_pending, *self._owed])

    def all_pending(self) -> list[Pending]:
        """Those that are undecided now."""
        return list(self._pending.values())

    @property
    def first_pending(self) -> int:
        """The queue offset of the first that is undecided; `end` without one."""
        for part in (self._passed, self._order):
            while part and part[0] not in self._pending:
                part.popleft()
            if part:
                return part[0]
        return self._end

    # --- decisions --------------------------------------------------------------------------

    def remember(self, offset: int, decision: int) -> None:
        """How the half message there was decided."""
        self._decided[offset] = decision
        self._decided.move_to_end(offset)
        if len(self._decided) > REMEMBERED:
            self._decided.popitem(last=False)

    def decision(self, half: Half) -> int | None:
        """How its transaction was decided, None if nothing is remembered of it. A copy that was put
        aside may have been decided since by the name of another one."""
        known = self._decided.get(half.message.queue_offset) if half.is_half else None
        if known in (None, ASIDE) and half.origin is not None:
            return self._decided.get(half.origin, known)
        return known

    def op_owed(self, half_offset: int) -> None:
        """The half message there is decided, its op message will come."""
        self._owed.add(half_offset)

    def op_stored(self, half_offset: int) -> None:
        """An op message was stored after all others; it names that half message."""
        self._owed.discard(half_offset)
        self._ops.append(half_offset)

    @property
    def ops(self) -> int:
        """Op messages after the op queue's progress."""
        self._pass_ops(self.first)
        return len(self._ops)

    def progress(self) -> tuple[int, int]:
        """The progress in the half and in the op queue."""
        first = self.first
        self._pass_ops(first)
        return first, self._first_op

    def _pass_ops(self, first: int) -> None:
        ops = self._ops
        while ops and ops[0] < first:
            ops.popleft()
            self._first_op += 1
