"""Tells which parts of a store are sound before it is recovered. Reads only.

The log and the consume queues vouch for each other: a record is sound if a queue entry names it and
it names the entry back (place, size, topic, queue, offset). A segment's beginning is a boundary
too. Where neither log nor queue can be believed alone, `recovery/recovery_plan.py` and the scanner
ask here.
"""

from collections.abc import Callable, Iterator, Sequence

from aerobee.protocol.errors import CorruptRecord
from aerobee.protocol.message.record_check import (
    CHECK_BODY,
    CHECK_NOTHING,
    RECORD,
    Checked,
    RecordHead,
    log_offset_of,
)
from aerobee.protocol.message.record_layout import SYS_TRANSACTION_PREPARED
from aerobee.store.disk.checkpoint import Checkpoint
from aerobee.store.index.index_service import IndexService
from aerobee.store.log.scan.boundaries import Boundaries, last_boundary, named_back
from aerobee.store.log.scan.segment_reader import MappedReader
from aerobee.store.queues.consume_queue import ConsumeQueue
from aerobee.store.queues.queue_table import ConsumeQueueTable
from aerobee.store.queues.queue_view import EMPTY, ENTRY, ENTRY_BYTES, QueueEntry, QueueView
from aerobee.store.segments.mapped_file_queue import MappedFileQueue

_CHUNK_ENTRIES = 3200
# Bytes that are read of each segment, and at the log's end, where nothing tells how many entries
# there were: hundreds of records, and thousands, in which queues in use are likely to be.
_SAMPLE_BYTES = 64 << 10
_TAIL_BYTES = 4 << 20
# Entries beside a wrong entry that tell whether it is wrong alone.
_BESIDE = 8


class CrossCheck:
    """The judge of loaded `segments` and `queues`."""

    def __init__(self, segments: MappedFileQueue, queues: ConsumeQueueTable) -> None:
        self._segments = segments
        self._queues = queues
        self.boundaries = Boundaries(lambda: self._queues, self._names_back)

    def last_named_end(self) -> tuple[int, int]:
        """(log offset after the last record that an entry names and that names it back, its time).

        The time is that record's store time in milliseconds, 0 if there is no such record.
        """
        end, place = last_boundary(self._queues, self._names_back, self._segments.min_offset)
        head = None
        if place is not None:
            queue, offset = place
            entry = queue.entry(offset)
            head = None if entry is None else self.named_back(queue, offset, entry)
        return end, 0 if head is None else head.store_timestamp_ms

    def _names_back(self, queue: QueueView, offset: int, log_offset: int, size: int) -> bool:
        return self.named_back(queue, offset, QueueEntry(log_offset, size, 0)) is not None

    def named_back(self, queue: QueueView, offset: int, entry: QueueEntry) -> RecordHead | None:
        """The record an entry names, if it is that queue's message of that offset and size."""
        log_offset, size, _ = entry
        reader = self._reader(log_offset)
        if reader is None:
            return None
        try:
            return named_back(reader, queue, offset, log_offset, size)
        except CorruptRecord:
            return None

    def _reader(self, log_offset: int) -> MappedReader | None:
        segment = self._segments.find(log_offset)
        return None if segment is None else MappedReader(segment)

    def _head(self, log_offset: int, check_crc: int = CHECK_NOTHING) -> RecordHead | None:
        """The record or blank there, None without one."""
        reader = self._reader(log_offset)
        try:
            return None if reader is None else reader.head(log_offset, check_crc)
        except CorruptRecord:
            return None

    def last_sound_start(self) -> int:
        """Beginning of the last segment that begins with a sound record; the first one counts."""
        return self._last_start(lambda _head: True)

    def reference_start(self, checkpoint: Checkpoint) -> int:
        """The last segment whose first record's time the checkpoint has passed (FORMAT.md 8.4)."""
        return self._last_start(lambda head: 0 < head.store_timestamp_ms <= checkpoint.min_ms)

    def _last_start(self, fits: Callable[[RecordHead], bool]) -> int:
        for segment in reversed(self._segments.segments):
            head = self._head(segment.start)
            if head is not None and fits(head):
                return segment.start
        return self._segments.min_offset

    def beyond_its_queue(self, named_end: int) -> int | None:
        """A record whose queue ends before it, or is not there; otherwise None. Looks at the first
        records of each segment, and at the last records below `named_end`."""
        tail = self._first_named_at(max(named_end - _TAIL_BYTES, self._segments.min_offset))
        for segment in self._segments.segments:
            if segment.start >= named_end:
                break
            limit = min(named_end, segment.end)  # what follows will be read
            ranges = [(segment.start, min(segment.start + _SAMPLE_BYTES, limit))]
            if tail < limit:
                ranges.append((max(tail, segment.start), limit))
            for start, end in ranges:
                records = MappedReader(segment).scan(start, end, CHECK_NOTHING)[0]
                beyond = next((record for record in records if not self._reaches(record)), None)
                if beyond is not None:
                    return log_offset_of(beyond)
        return None

    def _first_named_at(self, log_offset: int) -> int:
        """The log offset of the first record at or above `log_offset` that any entry names."""
        offsets = ((queue, queue.first_at(log_offset)) for queue in self._queues)
        found = [queue.entry(offset) for queue, offset in offsets if offset < queue.max_offset]
        return min([one.log_offset for one in found if one is not None], default=1 << 63)

    def _reaches(self, record: Checked) -> bool:
        """Whether the record's queue, if it has one, goes on after it."""
        _, _, queue_id, queue_offset, sys_flag, _, topic = record[:7]
        queue = self._queues.get(topic, queue_id)
        if sys_flag & SYS_TRANSACTION_PREPARED:
            return True
        return queue is not None and queue_offset < queue.max_offset

    def before_first_hole(self, queue: ConsumeQueue, start: int, first: int | None = None) -> int:
        """The record before the queue's first empty slot, `start` if there is no such slot.

        Slots below the queue offset `first` are not looked at.
        """
        for hole in _holes(queue, queue.first_offset if first is None else first):
            before = queue.last_named(hole)
            return 0 if before is None else before.log_offset
        return start

    def is_anothers(self, queue: ConsumeQueue, looks: int, gaps: Sequence[tuple[int, int]]) -> bool:
        """Whether files of the queue seem to hold the entries of another queue, by a look at the
        first and the last entries of `looks` files at most. A single wrong entry does not count,
        nor an entry whose record is damaged or in one of the known `gaps`: the scrub repairs it."""
        files = queue.segments[:: max(1, -(-len(queue.segments) // max(1, looks)))]
        for file in files:
            first = file.start // ENTRY_BYTES
            end = min(file.end // ENTRY_BYTES, queue.max_offset)
            for slots in (range(first, end)[:_BESIDE], range(first, end)[-_BESIDE:]):
                if not self._names_another(queue, slots[0] if slots else end, gaps):
                    continue
                wrong = sum([self._names_another(queue, slot, gaps) for slot in slots])
                if wrong * 2 >= len(slots):
                    return True
        return False

    def _names_another(
        self, queue: ConsumeQueue, offset: int, gaps: Sequence[tuple[int, int]]
    ) -> bool:
        """Whether an entry names a sound record that is not the queue's message of that offset."""
        entry = queue.entry(offset)
        if entry is None or any(start <= entry.log_offset < end for start, end in gaps):
            return False
        head = self._head(entry.log_offset)
        return head is not None and head.kind == RECORD and not self.is_sound(queue, offset, entry)

    def is_below(self, queue: ConsumeQueue, log_offset: int) -> bool:
        """Whether all entries of the queue are of records below `log_offset`: the last slot of its
        last file says so, and that record names it back."""
        last = queue.max_offset - 1
        if not queue.segments or last * ENTRY_BYTES < queue.segments[-1].start:
            return False
        entry = queue.entry(last)
        is_lower = entry is not None and entry.log_offset < log_offset
        return is_lower and entry is not None and self.is_sound(queue, last, entry)

    def begins_late(self, queue: ConsumeQueue) -> bool:
        """Whether the log may have messages for files before the queue's first one. Deletion leaves
        a file that begins with a deleted message, but for the chance of an exact fit."""
        if not queue.first_offset:
            return False
        log_start = self._segments.min_offset
        first = queue.first_named(queue.first_offset, queue.max_offset)
        return not log_start if first is None else first.log_offset > log_start

    def before_unmade(self, queue: ConsumeQueue) -> int:
        """The record before the first slot of the queue's first missing file."""
        first = min(file.start for file in queue.unmade) // ENTRY_BYTES
        before = queue.last_named(first)
        return 0 if before is None else before.log_offset

    def before_unsound_end(self, queue: ConsumeQueue, start: int) -> int:
        """The last record below the queue's last entry that an entry of it names and that names the
        entry back, if the last entry does not; otherwise `start`, which is also the most.

        The last slot would be cut off as a slot above the log's end, or kept and never filled. An
        entry of a damaged record is no reason: reading further back would only take the old
        messages of a topic that was deleted for those of the new topic.
        """
        last = queue.max_offset - 1
        if last < queue.first_offset:
            return start
        for offset in range(last, queue.first_offset - 1, -1):
            entry = queue.entry(offset)
            if entry is not None and self.named_back(queue, offset, entry) is not None:
                return start if offset == last else min(start, entry.log_offset)
            if offset == last and (queue.is_pre_blank(last) or self._is_of_damaged(queue, last)):
                return start
        return 0

    def _is_of_damaged(self, queue: ConsumeQueue, offset: int) -> bool:
        """Whether an entry agrees in place and size with what is left of a record there."""
        entry = queue.entry(offset)
        reader = None if entry is None else self._reader(entry.log_offset)
        if entry is None or reader is None or self.is_sound(queue, offset, entry):
            return False
        claimed = reader.claimed_sizes(entry.log_offset, reader.end)
        is_damaged = not reader.is_sound(entry.log_offset, CHECK_BODY)
        return is_damaged and entry.size in (claimed.by_field, claimed.by_parts)

    def boundary_at(self, log_offset: int) -> int:
        """`log_offset` if a record begins there, else the beginning of its segment."""
        segment = self._segments.find(log_offset)
        if segment is None:
            return self._segments.min_offset
        return segment.start if self._head(log_offset) is None else log_offset

    def index_end(self, index: IndexService, keep: int) -> int:
        """The log offset from which the keys are made again that the oldest `keep` index files do
        not have."""
        if not keep:
            return self._segments.min_offset
        return self.boundary_at(index.files[keep - 1].end_offset)

    def is_sound(self, queue: ConsumeQueue, offset: int, entry: QueueEntry) -> bool:
        """Whether the record that an entry names is there and names the entry back."""
        return self.named_back(queue, offset, entry) is not None

    def is_own(self, queue: ConsumeQueue, log_offset: int) -> bool:
        """Whether the sound record at `log_offset` is the queue's own; it may also be dispatched to
        it."""
        head = self._head(log_offset)
        assert head is not None
        return head.topic == queue.topic and head.queue_id == queue.queue_id


def _holes(queue: ConsumeQueue, first: int) -> Iterator[int]:
    """Queue offsets of empty slots in [first, end), the first of each chunk that has one."""
    offset = max(first, queue.first_offset)
    while offset < queue.max_offset:
        data = queue.read_entries(offset, _CHUNK_ENTRIES)
        # Twenty zero bytes in a row are never part of two sound entries (sizes are below 2^31 and
        # at least 91), so only chunks with such a run are looked at entry by entry.
        if EMPTY in data:
            for index, (_, size, _) in enumerate(ENTRY.iter_unpack(data)):
                if size <= 0:
                    yield offset + index
                    break
        offset += max(1, len(data) // ENTRY_BYTES)
