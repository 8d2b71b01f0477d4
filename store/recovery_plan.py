"""Judges a store before it is recovered: what is known to be sound, and where to begin reading.

Reads only, except that index files found not whole after a crash are removed: they are made again
by the walk that follows, and one that is left out would be found wanting again.

- `floor`: the end of the last record that a consume queue unit names and that names the unit back
  (place, size, topic, queue, offset), or the beginning of the last segment that begins with a sound
  record, whichever is larger. Sound records are known to stand up to there.
- `start`: after a clean stop everything was dispatched, so the named end will do. After a crash the
  reference's rule: the last segment whose first record is older than what the checkpoint knows to
  be synced. Earlier where a queue has a hole or the index is missing or not whole.
"""

from aerobee.protocol.errors import CorruptRecord
from aerobee.protocol.record import RECORD, RecordHead
from aerobee.store.checkpoint import Checkpoint
from aerobee.store.consume_queue import ConsumeQueue
from aerobee.store.index_service import IndexService
from aerobee.store.log_walk import check_at
from aerobee.store.mapped_file_queue import MappedFileQueue
from aerobee.store.queue_table import ConsumeQueueTable


class RecoveryPlan:
    """The judgement of one store, right after loading."""

    def __init__(
        self,
        segments: MappedFileQueue,
        queues: ConsumeQueueTable,
        index: IndexService | None,
        checkpoint: Checkpoint,
        *,
        clean_stop: bool,
    ) -> None:
        self._segments = segments
        self._queues = queues
        self._index = index
        self._checkpoint = checkpoint
        self._clean_stop = clean_stop
        self._named_end = segments.min_offset
        # Store time of the last named record, 0 without one.
        self.last_store_ms = 0
        self.index_removed: list[str] = []
        self.index_missing = False

    def floor(self) -> int:
        """Log offset below which a bad record is damage. To be called before `start`."""
        self._named_end = self._last_named_end()
        return max(self._named_end, self._last_sound_start())

    def start(self) -> int:
        """Log offset of the record to begin reading at."""
        start = self._named_end if self._clean_stop else self.reference_start()
        index_start = self._index_start()
        if index_start is not None:
            start = min(start, index_start)
        if not self._clean_stop:
            for queue in self._queues:
                start = min(start, self._before_first_hole(queue, start))
        return max(self._segments.min_offset, start)

    def _last_named_end(self) -> int:
        """Log offset behind the last record that a unit names and that names it back."""
        best = self._segments.min_offset
        last_units: list[tuple[int, ConsumeQueue, int]] = []
        for queue in self._queues:
            offset = _last_named(queue, queue.max_offset)
            unit = None if offset is None else queue.unit(offset)
            if unit is not None and offset is not None:
                last_units.append((unit[0], queue, offset))
        # Youngest first: the first sound one mostly decides.
        for log_offset, queue, last in sorted(last_units, key=lambda item: -item[0]):
            if log_offset < best:
                break
            before: int | None = last
            while before is not None:
                unit = queue.unit(before)
                if unit is None or unit[0] < best:
                    break
                head = self.named_back(queue, before, unit)
                if head is not None:
                    best = unit[0] + unit[1]
                    self.last_store_ms = head.store_timestamp_ms
                    break
                before = _last_named(queue, before)
        return best

    def named_back(
        self, queue: ConsumeQueue, offset: int, unit: tuple[int, int, int]
    ) -> RecordHead | None:
        """The record a unit names, if it is that queue's message of that offset and size."""
        log_offset, size, _ = unit
        segment = self._segments.find(log_offset)
        if segment is None:
            return None
        try:
            head = check_at(segment, log_offset, check_crc=False)
        except CorruptRecord:
            return None
        same = (
            head.kind == RECORD
            and head.size == size
            and head.queue_offset == offset
            and head.queue_id == queue.queue_id
            and head.topic == queue.topic
        )
        return head if same else None

    def _last_sound_start(self) -> int:
        """Beginning of the last segment that begins with a sound record; the first one counts."""
        for segment in reversed(self._segments.segments):
            try:
                check_at(segment, segment.start, check_crc=False)
            except CorruptRecord:
                continue
            return segment.start
        return self._segments.min_offset

    def reference_start(self) -> int:
        """The last segment whose first record's time the checkpoint has passed (spec 8.4)."""
        for segment in reversed(self._segments.segments):
            try:
                head = check_at(segment, segment.start, check_crc=False)
            except CorruptRecord:
                continue
            if 0 < head.store_timestamp_ms <= self._checkpoint.min_ms:
                return segment.start
        return self._segments.min_offset

    def _before_first_hole(self, queue: ConsumeQueue, start: int) -> int:
        """The record before the queue's first empty slot, `start` if there is no such slot."""
        for hole in queue.holes():
            before = _last_named(queue, hole)
            unit = None if before is None else queue.unit(before)
            return 0 if unit is None else unit[0]
        return start

    def _index_start(self) -> int | None:
        """Where to read from so that the index is whole; None if it is."""
        index = self._index
        if index is None or not self._segments.segments:
            return None
        synced_ms = None if self._clean_stop else self._checkpoint.index_ms
        keep = index.sound(self._segments.max_offset, synced_ms)
        doubtful = keep < len(index.files) or bool(index.damaged)
        self.index_removed = index.drop_from(keep)
        if not index.files:
            self.index_missing = True
            return self._segments.min_offset
        if self._clean_stop and not doubtful:
            return None
        return self.boundary_at(index.files[-1].end_offset)

    def boundary_at(self, log_offset: int) -> int:
        """`log_offset` if a record begins there, else the beginning of its segment."""
        segment = self._segments.find(log_offset)
        if segment is None:
            return self._segments.min_offset
        try:
            check_at(segment, log_offset, check_crc=False)
        except CorruptRecord:
            return segment.start
        return log_offset

    def is_sound(self, queue: ConsumeQueue, offset: int, unit: tuple[int, int, int]) -> bool:
        """Whether the record that a unit names is there and names the unit back."""
        return self.named_back(queue, offset, unit) is not None

    def next_named(self, log_offset: int, limit: int) -> int:
        """The next record in (log_offset, limit) that a unit names and that names it back."""
        nearest = limit
        for queue in self._queues:
            offset = queue.first_at(log_offset + 1)
            while offset < queue.max_offset:
                unit = queue.unit(offset)
                if unit is not None and unit[0] >= nearest:
                    break
                if unit is not None and self.named_back(queue, offset, unit) is not None:
                    nearest = unit[0]
                    break
                offset += 1
        return nearest


def _last_named(queue: ConsumeQueue, end: int) -> int | None:
    """The last queue offset below `end` whose unit names a record."""
    for offset in range(end - 1, queue.first_offset - 1, -1):
        if queue.unit(offset) is not None:
            return offset
    return None
