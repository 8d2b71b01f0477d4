"""The records that wait in the hours that are loaded, in the order of (action time, log offset).

Eight bytes a message: seconds are kept apart, and within one the millisecond (10 bits) and the log
offset (54 bits) make up one number. A second is put in order when it is the next one; most arrive
in order. One that does not, and is large, is dealt out by milliseconds in steps, so that nobody
waits for a sort of a million numbers: within a millisecond all are in the order of the log already.

Pure: no clock, no store.
"""

from __future__ import annotations

import heapq
from array import array

_OFFSET_BITS = 54
_OFFSET_MASK = (1 << _OFFSET_BITS) - 1
# Numbers that are sorted, or dealt out, in one go: half a millisecond's worth.
_STEP = 4096


class Wheel:
    """The wheel of one broker. Nothing may be added for a time before that taken out last."""

    def __init__(self) -> None:
        self._seconds: dict[int, array[int]] = {}
        self._order: list[int] = []  # a heap of the keys of `_seconds`
        self._mixed: set[int] = set()  # seconds whose numbers are not in order
        # The second that is being taken out: its numbers in order from `_at` on, those that came
        # since it was begun as a heap, and what is still to be dealt out.
        self._second = -1
        self._head: array[int] = array("Q")
        self._at = 0
        self._late: list[tuple[int, int]] = []
        self._deal: _Deal | None = None
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, action_ms: int, log_offset: int) -> None:
        """A message waits for its time."""
        second, ms = divmod(action_ms, 1000)
        number = ms << _OFFSET_BITS | log_offset
        self._count += 1
        if second <= self._second:
            heapq.heappush(self._late, (action_ms, log_offset))
            return
        numbers = self._seconds.get(second)
        if numbers is None:
            numbers = self._seconds[second] = array("Q")
            heapq.heappush(self._order, second)
        elif number < numbers[-1]:
            self._mixed.add(second)
        numbers.append(number)

    @property
    def next_ms(self) -> int | None:
        """No message waits for a time before this one; None if none waits."""
        if self._deal is not None:
            return self._second * 1000
        first = self.first()
        if first is not None:
            return first[0]
        return self._order[0] * 1000 if self._order else None

    def prepare(self, now_ms: int) -> bool:
        """Do a step towards `first`; whether another is needed before what is due at `now_ms` can
        be taken out."""
        if self._deal is not None:
            if self._deal.step():
                return True
            self._head, self._at, self._deal = self._deal.ordered(), 0, None
            return False
        if self.first() is None and self._order and self._order[0] * 1000 <= now_ms:
            self._begin()
        return self._deal is not None

    def _begin(self) -> None:
        second = self._second = heapq.heappop(self._order)
        numbers, self._at = self._seconds.pop(second), 0
        if second not in self._mixed:
            self._head = numbers
            return
        self._mixed.discard(second)
        if len(numbers) <= _STEP:
            self._head = array("Q", sorted(numbers))
        else:
            self._head, self._deal = array("Q"), _Deal(numbers)

    def first(self) -> tuple[int, int] | None:
        """(action time, log offset) of the first message of the second that was begun last; None
        if it has none left, or is not ready."""
        if self._deal is not None:
            return None
        late = self._late
        in_order = self._of_head()
        if in_order is None:
            return late[0] if late else None
        return min(late[0], in_order) if late else in_order

    def _of_head(self) -> tuple[int, int] | None:
        if self._at >= len(self._head):
            return None
        number = self._head[self._at]
        return self._second * 1000 + (number >> _OFFSET_BITS), number & _OFFSET_MASK

    def take(self) -> None:
        """Take out what `first` gives."""
        late = self._late
        in_order = self._of_head()
        if in_order is None or (late and late[0] < in_order):
            heapq.heappop(late)
        else:
            self._at += 1
            if self._at == len(self._head):
                self._head, self._at = array("Q"), 0
        self._count -= 1


class _Deal:
    """Puts the numbers of one second in order, in steps."""

    def __init__(self, numbers: array[int]) -> None:
        self._numbers = numbers
        self._at = 0
        self._by_ms: dict[int, array[int]] = {}

    def step(self) -> bool:
        """Deal out some numbers; whether there are more."""
        by_ms = self._by_ms
        part = self._numbers[self._at : self._at + _STEP]
        for number in part:
            ms = number >> _OFFSET_BITS
            found = by_ms.get(ms)
            if found is None:
                found = by_ms[ms] = array("Q")
            found.append(number)
        self._at += len(part)
        return self._at < len(self._numbers)

    def ordered(self) -> array[int]:
        """All of them in order."""
        found: array[int] = array("Q")
        for ms in sorted(self._by_ms):
            found.extend(self._by_ms.pop(ms))
        return found
