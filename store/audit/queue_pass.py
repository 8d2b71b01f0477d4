"""Reads one consume queue from front to back: order, holes, lost slots, entries that point nowhere.

What the log has said about the queue before (`audit/queues.py`) comes in as counts and as the slots
that records claim but do not have; those are reported there.
"""

from bisect import bisect_right
from collections.abc import Sequence

from aerobee.store.inspect.log_files import LogFiles
from aerobee.store.inspect.queue_files import QueueFiles
from aerobee.store.inspect.report import Counts, Findings
from aerobee.store.queues.queue_view import (
    ENTRY,
    ENTRY_BYTES,
    PRE_BLANK,
    PRE_BLANK_SIZE,
    names_record,
)
from aerobee.store.scan.sequence import Gap

#: Slots [first, end).
Slots = tuple[int, int]


class LostByGap:
    """Which messages the damaged ranges of the log held, as far as entries still name them."""

    def __init__(self, gaps: Sequence[Gap]) -> None:
        self._gaps = sorted(gaps)
        self._starts = [gap.start for gap in self._gaps]
        # By the gap's start: (queue, first slot, slot behind the last), adjoining ones as one.
        self.named: dict[int, list[tuple[str, int, int]]] = {}

    def __bool__(self) -> bool:
        return bool(self._gaps)

    def holds(self, log_offset: int) -> bool:
        """Whether the log offset lies in a gap."""
        index = bisect_right(self._starts, log_offset) - 1
        return index >= 0 and log_offset < self._gaps[index].end

    def note(self, queue: str, offset: int, log_offset: int) -> bool:
        """Whether the entry points into a gap; its message is remembered then."""
        if not self.holds(log_offset):
            return False
        start = self._starts[bisect_right(self._starts, log_offset) - 1]
        known = self.named.setdefault(start, [])
        if known and known[-1][0] == queue and known[-1][2] == offset:
            known[-1] = (queue, known[-1][1], offset + 1)
        else:
            known.append((queue, offset, offset + 1))
        return True


class QueuePass:
    """One queue; `claimed` are the slots of records that are not in them, in order."""

    def __init__(
        self,
        queue: QueueFiles,
        findings: Findings,
        counts: Counts,
        lost: LostByGap,
        claimed: Sequence[Slots],
    ) -> None:
        self.queue = queue
        self._findings = findings
        self._counts = counts
        self._lost = lost
        self._claimed = sorted(claimed)
        # Entries that name a record within the log and outside of its gaps.
        self.named = 0
        # Entries at or above the log's end, and the first one's slot.
        self.beyond = 0
        self.beyond_first = 0
        self._last_log = -1
        self._empty: Slots = (0, 0)
        self._blank: Slots = (0, 0)

    def read(self, log_start: int, log_end: int) -> None:
        """Order, holes, lost slots, and how many entries name something within the log."""
        for first, data in self.queue.chunks():
            count = len(data) // ENTRY_BYTES
            if data == PRE_BLANK * count:
                self._note_blank(first, first + count)
            else:
                self._read_chunk(first, data, log_start, log_end)
        self._note_empty(-1)
        self._note_blank(-1, -1)

    def _read_chunk(self, first: int, data: bytes, log_start: int, log_end: int) -> None:
        last, lost = self._last_log, self._lost
        entries = named = 0
        for offset, (log_offset, size, _) in enumerate(ENTRY.iter_unpack(data), first):
            if size <= 0 or size == PRE_BLANK_SIZE or log_offset < 0:
                if size == PRE_BLANK_SIZE:
                    self._note_blank(offset, offset + 1)
                else:
                    self._note_empty(offset)
                continue
            entries += 1
            if log_offset <= last:
                self._out_of_order(offset, log_offset, last)
            last = log_offset
            if log_start <= log_offset < log_end:
                named += 1
                if lost and lost.note(self.queue.name, offset, log_offset):
                    named -= 1
            elif log_offset >= log_end:
                self.beyond_first = self.beyond_first if self.beyond else offset
                self.beyond += 1
            else:
                self._counts.expired_units += 1
        self._last_log = last
        self._counts.units += entries
        self.named += named

    def ask(self, records: LogFiles, log_start: int, log_end: int) -> None:
        """What does each entry point to? For queues whose count is not right."""
        queue = self.queue
        for first, data in queue.chunks():
            for offset, (log_offset, size, _) in enumerate(ENTRY.iter_unpack(data), first):
                if not names_record(log_offset, size) or not log_start <= log_offset < log_end:
                    continue
                if self._lost.holds(log_offset) or self._is_claimed(offset, offset + 1):
                    continue
                problem = records.problem(queue, offset, log_offset, size)
                if problem is not None:
                    queue.note(
                        self._findings,
                        "unit-dangling",
                        offset,
                        f"the unit of message {offset} of {queue.name}: {problem}",
                    )

    def _is_claimed(self, first: int, end: int) -> bool:
        """Whether a record claims one of the slots."""
        index = bisect_right(self._claimed, (end - 1, 1 << 62)) - 1
        return index >= 0 and self._claimed[index][1] > first

    def _out_of_order(self, offset: int, log_offset: int, before: int) -> None:
        self.queue.note(
            self._findings,
            "unit-order",
            offset,
            f"message {offset} of {self.queue.name} is at log offset {log_offset}, the one before "
            f"it at {before}",
        )

    def _note_empty(self, offset: int) -> None:
        first, end = self._empty
        if offset == end and end > first:
            self._empty = (first, offset + 1)
            return
        if end > first and not self._is_claimed(first, end):
            self._note_range("queue-hole", first, end, "empty")
        self._empty = (offset, offset + 1)

    def _note_blank(self, offset: int, stop: int) -> None:
        first, end = self._blank
        self._counts.pre_blank_units += stop - offset
        if offset == end and end > first:
            self._blank = (first, stop)
            return
        if end > first and not self._is_claimed(first, end):
            self._note_range("slot-lost", first, end, "without a message")
        self._blank = (offset, stop)

    def _note_range(self, kind: str, first: int, end: int, what: str) -> None:
        text = f"slots {first} to {end - 1} of {self.queue.name} are {what}"
        if end == first + 1:
            text = f"slot {first} of {self.queue.name} is {what}"
        self.queue.note(self._findings, kind, first, text)
