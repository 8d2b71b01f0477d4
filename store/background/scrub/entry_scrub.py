"""Compares the records of a segment with the entries of the consume queues, both ways.

Each record's slot must hold its entry: slots are gathered by queue and read in runs. And each entry
into the segment must belong to a record: a record whose topic, queue or queue offset was changed by
a flipped bit is whole, but its own queue misses it, and has an entry without a record. Counting is
enough to see that; only if the count differs the entries are looked at.

Differences are handed on to the queues' owner (`queue_repair.py`) to be judged: it alone knows what
the queues hold now, because another thread dispatches, deletes topics and trims files meanwhile.

Threads: the scrub's thread, with its own copies of queues and its own descriptors.
"""

import logging
from array import array
from collections.abc import Iterator
from typing import NamedTuple

from aerobee.protocol.errors import CorruptRecord
from aerobee.protocol.message.record_check import Checked
from aerobee.protocol.names import SCHEDULE_TOPIC
from aerobee.store.disk.descriptors import DescriptorCache
from aerobee.store.disk.files import Files
from aerobee.store.dispatch.derived import Derivation, by_queue
from aerobee.store.log.scan.boundaries import Boundaries, named_back
from aerobee.store.log.scan.segment_reader import SegmentReader
from aerobee.store.log.scan.sequence import Run, differences, runs_of
from aerobee.store.queues.consume_queue import ConsumeQueue
from aerobee.store.queues.consume_queue_ext import is_address
from aerobee.store.queues.delay_levels import DelayLevels
from aerobee.store.queues.queue_table import ConsumeQueueTable
from aerobee.store.queues.queue_view import (
    ENTRY,
    ENTRY_BYTES,
    PRE_BLANK_SIZE,
    QueueEntry,
    QueueView,
)
from aerobee.store.queues.snapshot import Snapshot

log = logging.getLogger("aerobee.store.background.scrub")

# Records gathered before their queues are read: more of them make longer runs, but each takes up to
# 350 bytes.
_MOST_GATHERED = 4096
# Copies of queues that are kept; a new copy is made in some microseconds.
_MOST_COPIES = 512
# Queue files open at a time.
_DESCRIPTORS = 64
# Differences of one segment that are kept; more of them are a queue that has to be made again.
MOST_DIFFERENT = 262_144
# Slots compared or looked at in one step: some 0.2 ms at worst.
_RUN_ENTRIES = 512
_RUN_BYTES = _RUN_ENTRIES * ENTRY_BYTES


def is_same(queue: ConsumeQueue, expected: QueueEntry, found: QueueEntry) -> bool:
    """Whether a slot holds the entry of its record. A delayed message's delivery time may come from
    other levels than today's; an address in the extension stands for a tags code."""
    if not found.is_of_record(expected.log_offset, expected.size):
        return False
    return (
        expected.tags_code == found.tags_code
        or queue.topic == SCHEDULE_TOPIC
        or is_address(found.tags_code)
    )


class Orphan(NamedTuple):
    """An entry that no record of the log names back."""

    queue: ConsumeQueue
    queue_offset: int
    entry: QueueEntry


class EntryCheck:
    """The check of one segment: log offsets from `start` to `end`."""

    def __init__(
        self, files: Files, queues: ConsumeQueueTable, levels: DelayLevels, start: int, end: int
    ) -> None:
        self._queues = queues
        self._derivation = Derivation(queues.queues, queues.get, self._listed, levels)
        self._start = start
        self._end = end
        self._cache = DescriptorCache(files, _DESCRIPTORS, read_only=True)
        self._copies: dict[ConsumeQueue, Snapshot] = {}
        self._gathered: dict[ConsumeQueue, tuple[list[int], list[bytes]]] = {}
        self._count = 0
        # Slots that hold their right entries, as ranges in order: first, end, first, end and so on.
        # Plain numbers, for a segment may have messages of a hundred thousand queues.
        self._right: dict[ConsumeQueue, array[int]] = {}
        #: Claims to slots, some of which hold something else.
        self.runs: list[tuple[ConsumeQueue, Run]] = []
        self.orphans: list[Orphan] = []
        #: Whether all could be compared, and all differences are in `runs` and `orphans`.
        self.complete = True
        self._different = 0

    def close(self) -> None:
        """Close the queue files."""
        self._cache.close()

    def feed(self, records: list[Checked]) -> None:
        """Take in the next sound records of the segment."""
        for queue, (offsets, entries) in by_queue(self._derivation.entries(records)).items():
            known = self._gathered.setdefault(queue, ([], []))
            known[0].extend(offsets)
            known[1].extend(entries)
            self._count += len(entries)

    def _listed(self, name: str, queue_id: int) -> ConsumeQueue | None:
        return self._queues.get(name, self._queues.listed_id(name, queue_id))

    # --- records against entries --------------------------------------------------------------

    def compare(self, *, all_of_them: bool = False) -> Iterator[None]:
        """Compare the gathered records if they are enough to be worth it; a step after each run."""
        if self._count < _MOST_GATHERED and not all_of_them:
            return
        gathered, self._gathered = self._gathered, {}
        self._count = 0
        for queue, (offsets, entries) in gathered.items():
            for run in runs_of(offsets, b"".join(entries)):
                for part in run.parts(_RUN_ENTRIES):
                    self._compare_run(queue, part)
                    yield

    def _compare_run(self, queue: ConsumeQueue, run: Run) -> None:
        copy = self._copy(queue)
        # Slots outside belong to messages of a deleted topic, or to files that were trimmed. Slots
        # below the queue's beginning count: it may begin too late because they are damaged.
        run = run.part(copy.first_offset, copy.max_offset)
        found = self._read(copy, run.first, run.end)
        if found is None:
            return
        different, right = 0, run.first
        for slot, one, other in differences(run.first, run.entries, found):
            if not is_same(queue, QueueEntry.parse(one), QueueEntry.parse(other)):
                self._is_right(queue, right, slot)
                different, right = different + 1, slot + 1
        self._is_right(queue, right, run.end)
        if different:
            self._different += different
            self.complete = self.complete and self._different <= MOST_DIFFERENT
            if self._different <= MOST_DIFFERENT:
                self.runs.append((queue, run))

    def _is_right(self, queue: ConsumeQueue, low: int, high: int) -> None:
        if low == high:
            return
        ranges = self._right.get(queue)
        if ranges is None:
            self._right[queue] = array("q", (low, high))
        elif ranges[-1] == low:
            ranges[-1] = high
        else:
            ranges.extend((low, high))

    # --- entries against records --------------------------------------------------------------

    def look_for_orphans(self) -> Iterator[None]:
        """After all records: find the entries into the segment that no record has; in steps."""
        for queue in self._queues:
            yield from self._orphans_of(queue, self._copy(queue))
            yield

    def _orphans_of(self, queue: ConsumeQueue, copy: ConsumeQueue) -> Iterator[None]:
        right = self._right.get(queue, array("q"))
        if len(right) == 2 and self._reaches_out(copy, right[0], right[1]):
            return
        low = max(copy.first_at(self._start), copy.min_offset)
        end = copy.first_at(self._end)
        for begin, stop in zip([*right[::2], end], [*right[1::2], end], strict=True):
            # Slots between two ranges of right slots.
            while low < min(begin, end):
                yield
                data = copy.read_entries(low, min(begin, end) - low)[:_RUN_BYTES]
                if not data:
                    return
                for slot, (log_offset, size, code) in enumerate(ENTRY.iter_unpack(data), low):
                    if 0 < size < PRE_BLANK_SIZE and self._start <= log_offset < self._end:
                        entry = QueueEntry(log_offset, size, code)
                        self.orphans.append(Orphan(queue, slot, entry))
                low += len(data) // ENTRY_BYTES
            low = max(low, stop)

    def _reaches_out(self, copy: ConsumeQueue, low: int, high: int) -> bool:
        """Whether the slots on both sides of [low, high) lead to other segments, or do not
        exist."""
        before, after = copy.entry(low - 1), copy.entry(high)
        return (
            low <= copy.min_offset or (before is not None and before.log_offset < self._start)
        ) and (high >= copy.max_offset or (after is not None and after.log_offset >= self._end))

    def boundaries(self, reader: SegmentReader) -> Boundaries:
        """The places in the segment where records begin by the queues. Queue files that cannot be
        read name no place."""

        def names_back(queue: QueueView, offset: int, log_offset: int, size: int) -> bool:
            try:
                named_back(reader, queue, offset, log_offset, size)
            except CorruptRecord:
                return False
            return True

        return Boundaries(lambda: [self._new_copy(queue) for queue in self._queues], names_back)

    # --- reading ----------------------------------------------------------------------------

    def _copy(self, queue: ConsumeQueue) -> Snapshot:
        copy = self._copies.get(queue)
        if copy is None:
            if len(self._copies) >= _MOST_COPIES:
                self._copies.clear()
            copy = self._copies[queue] = self._new_copy(queue)
        return copy

    def _new_copy(self, queue: ConsumeQueue) -> Snapshot:
        return Snapshot(self._cache, queue, self._failed)

    def _read(self, copy: Snapshot, low: int, high: int) -> bytes | None:
        """The entries of slots [low, high); None if the files are gone or cannot be read."""
        parts: list[bytes] = []
        while low < high:
            part = copy.read_entries(low, high - low)
            if not part:
                return None
            parts.append(part)
            low += len(part) // ENTRY_BYTES
        return b"".join(parts)

    def _failed(self, copy: ConsumeQueue, error: OSError) -> None:
        if isinstance(error, FileNotFoundError):
            return  # trimmed, or the topic was deleted
        self.complete = False
        log.warning("queue not readable path=%s %s", copy.directory, error)
