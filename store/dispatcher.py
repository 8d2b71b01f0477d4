"""Brings records that were read from the log into consume queues and index, once or again.

Used by recovery and by a reput that is behind, where nobody knows what of it was done before. So
everything is compared first: a slot that holds the same unit is done, an empty or pre-blank one is
filled, another record in it gives way to the log's. The bytes are those the append would have led
to, which a test compares.
"""

from collections.abc import Iterable
from typing import NamedTuple

from aerobee.protocol.properties import decode_properties
from aerobee.protocol.record import (
    SYS_TRANSACTION_MASK,
    SYS_TRANSACTION_PREPARED,
    SYS_TRANSACTION_ROLLBACK,
    RecordHead,
    dispatch_fields,
)
from aerobee.store.commit_log import Appended
from aerobee.store.consume_queue import PRE_BLANK_SIZE, UNIT, UNIT_BYTES, ConsumeQueue
from aerobee.store.delay_levels import DelayLevels
from aerobee.store.errors import MessageIllegal
from aerobee.store.index_service import IndexService
from aerobee.store.mapped_file import MappedFile
from aerobee.store.queue_table import ConsumeQueueTable

_pack_unit = UNIT.pack


class Placed(NamedTuple):
    """A checked record and where it is."""

    log_offset: int
    segment: MappedFile
    head: RecordHead


class Merged(NamedTuple):
    """What bringing known records into the queues changed."""

    written: int
    conflicts: int


class Lagging(Exception):
    """A queue misses slots before a record: reading has to begin at `log_offset` instead."""

    def __init__(self, log_offset: int) -> None:
        super().__init__(log_offset)
        self.log_offset = log_offset


class Dispatcher:
    """Brings records that were read from the log into queues and index, once or again."""

    def __init__(
        self, queues: ConsumeQueueTable, index: IndexService | None, levels: DelayLevels
    ) -> None:
        self._queues = queues
        self._index = index
        self._levels = levels
        # Records whose topic cannot be a directory's name; they stay in the log only.
        self.unusable = 0

    def entry(self, placed: Placed) -> Appended | None:
        """What the append of this record would have left; None when it concerns nobody."""
        head = placed.head
        fields = dispatch_fields(
            placed.segment.view, placed.log_offset - placed.segment.start, head
        )
        transaction = head.sys_flag & SYS_TRANSACTION_MASK
        queue: ConsumeQueue | None = None
        tags_code = fields.tags_code
        if not transaction & SYS_TRANSACTION_PREPARED:
            try:
                queue = self._queues.obtain(fields.topic, fields.queue_id)
            except MessageIllegal:
                self.unusable += 1
                return None
            if queue.delayed:
                tags_code = self._delivery_time(placed, tags_code)
        keys = fields.keys if transaction != SYS_TRANSACTION_ROLLBACK else ()
        return (
            queue,
            head.queue_offset,
            placed.log_offset,
            head.size,
            tags_code,
            keys,
            head.store_timestamp_ms,
            fields.topic,
        )

    def merge(self, entries: Iterable[Appended], read_from: int | None) -> Merged:
        """Write what is missing; what is there already stays. Raises OSError.

        `read_from` is where the reading began: a queue whose end lies before that misses units that
        were not read, and `Lagging` says from where to read again. None: nothing was left out.
        """
        runs: dict[ConsumeQueue, UnitRuns] = {}
        entries = list(entries)
        for queue, queue_offset, log_offset, size, tags_code, _, _, _ in entries:
            if queue is not None:
                run = runs.get(queue)
                if run is None:
                    run = runs[queue] = UnitRuns(queue)
                run.add(queue_offset, _pack_unit(log_offset, size, tags_code))
        if read_from is not None:
            for run in runs.values():
                run.check_lag(read_from)
        self._reserve(entries)
        written = conflicts = 0
        for run in runs.values():
            result = run.merge()
            written += result.written
            conflicts += result.conflicts
        self.merge_keys(entries)
        return Merged(written, conflicts)

    def merge_keys(self, entries: Iterable[Appended]) -> None:
        """Index what is not indexed yet; room was reserved."""
        index = self._index
        if index is None:
            return
        for _, _, log_offset, _, _, keys, store_ms, topic in entries:
            if keys:
                index.put_missing_keys(topic, keys, log_offset, store_ms)
        index.finish()

    def _reserve(self, entries: list[Appended]) -> None:
        if self._index is not None:
            self._index.reserve(sum([len(entry[5]) for entry in entries]))

    def reindex(self, entries: list[Appended]) -> None:
        """Index only. Raises OSError."""
        self._reserve(entries)
        self.merge_keys(entries)

    def _delivery_time(self, placed: Placed, tags_code: int) -> int:
        head = placed.head
        start = placed.log_offset - placed.segment.start + head.properties_position
        text = bytes(placed.segment.view[start : start + head.properties_length])
        return self._levels.tags_code(
            head.topic, decode_properties(text), head.store_timestamp_ms, tags_code
        )


class UnitRuns:
    """Units of one queue read from the log, in log order, as runs of consecutive slots."""

    def __init__(self, queue: ConsumeQueue) -> None:
        self._queue = queue
        self._runs: list[tuple[int, list[bytes]]] = []

    def add(self, queue_offset: int, unit: bytes) -> None:
        """The next unit in log order."""
        runs = self._runs
        if runs and runs[-1][0] + len(runs[-1][1]) == queue_offset:
            runs[-1][1].append(unit)
        else:
            runs.append((queue_offset, [unit]))

    def check_lag(self, read_from: int) -> None:
        """Raise Lagging if slots before the first run are missing, and their records, as far as the
        queue's last unit tells, lie before `read_from`."""
        queue = self._queue
        if not queue.first_offset < queue.max_offset < self._runs[0][0]:
            return
        last = None
        for offset in range(queue.max_offset - 1, queue.first_offset - 1, -1):
            last = queue.unit(offset)
            if last is not None:
                break
        if last is not None and last[0] < read_from:
            raise Lagging(last[0])

    def merge(self) -> Merged:
        """Write the units that are not in the queue yet. Raises OSError."""
        written = conflicts = 0
        for first, units in self._runs:
            result = self._merge_run(first, b"".join(units))
            written += result.written
            conflicts += result.conflicts
        return Merged(written, conflicts)

    def _merge_run(self, first: int, data: bytes) -> Merged:
        queue = self._queue
        conflicts = 0
        count = len(data) // UNIT_BYTES
        while data and first < queue.max_offset:
            there = queue.read_units(first, count) or bytes(UNIT_BYTES)
            part = data[: len(there)]
            if there[: len(part)] != part:
                clash = _first_clash(there, part)
                if clash >= 0:
                    # Another record holds a slot that, by the log, is this one's: the numbering
                    # began anew here (its topic was deleted), or the file is damaged. The log
                    # decides, and whatever follows in the queue follows in the log too.
                    conflicts += 1
                    queue.zero_from(first + clash)
                break
            data = data[len(part) :]
            first += len(part) // UNIT_BYTES
        if data:
            queue.write_units(first, data)
        return Merged(len(data) // UNIT_BYTES, conflicts)


def _first_clash(there: bytes, wanted: bytes) -> int:
    """Index of the first unit that names another record than it should; -1 without one."""
    for index, (log_offset, size, tags_code) in enumerate(UNIT.iter_unpack(there[: len(wanted)])):
        if 0 < size < PRE_BLANK_SIZE:
            unit = _pack_unit(log_offset, size, tags_code)
            if unit != wanted[index * UNIT_BYTES : (index + 1) * UNIT_BYTES]:
                return index
    return -1
