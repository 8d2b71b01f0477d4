"""Reads the messages of a queue, and single records. Searches are in `search.py`.

`get` follows the reference's scan of consume queue entries (store/FORMAT.md 5.7): the status of
each case, the size of an answer, the place to go on. Bodies are never copied: an answer has views
into the segments, and records that lie side by side share a view.

Nothing here trusts a derived file. A record is given for an entry that has its size, its queue's id
and its number. If another record or none is there, the message is looked for in the log
(`lookup.py`) before a reader passes over the entry; if it is not there either, the entry is passed
over like a deleted one and reported (`damage.py`). Queries and look-ups by id check the whole
record. Fillers, which a repair has put in the place of lost records (`protocol/message/filler.py`),
are messages for none of them, whatever leads there.

Old bytes are not trusted either: a start does not read the whole log, so in a segment that it
found, a record below `unchecked_below` is checked whole each time it is read, and must name its
queue and queue offset. The scrub moves that mark. For all other records, also those that this
process wrote, the price is one comparison of integers. `check_reads` can have all records checked,
or none.

Threads: the store's caller only.
"""

import os
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import NamedTuple, TypeAlias

from aerobee.config.model import Settings
from aerobee.protocol.errors import CorruptRecord
from aerobee.protocol.filters.property_filter import MessageFilter
from aerobee.protocol.message.filler import is_filler
from aerobee.protocol.message.record_check import CHECK_NOTHING, RECORD, RecordHead, check_record
from aerobee.protocol.message.record_layout import MESSAGE_MAGIC, MIN_RECORD_BYTES, SLOT_FIELDS
from aerobee.protocol.names import is_light
from aerobee.store.log.compiled import Compiled
from aerobee.store.log.store_core import StoreCore
from aerobee.store.queues.consume_queue import ConsumeQueue
from aerobee.store.queues.consume_queue_ext import MOST_ADDRESS
from aerobee.store.queues.queue_view import ENTRY, ENTRY_BYTES, PRE_BLANK_SIZE, QueueEntry
from aerobee.store.reading.damage import DamageReports
from aerobee.store.reading.judging import WANTED, Judging
from aerobee.store.reading.lookup import EntryLookup, Outcome
from aerobee.store.segments.mapped_file import MappedFile
from aerobee.store.segments.results import GetResult, GetStatus

_I32_BITS = 0xFFFFFFFF
_I32_SIGN = 0x80000000
# Below each place that an entry can name.
_NOWHERE = -(1 << 63)
#: At least this many entries are looked at, so that a sparse tag is found in few pulls.
LEAST_ENTRIES = 800
# Entries that one step of a large read looks at: a millisecond's worth.
_STEP_ENTRIES = 512
# The cost of judging messages by their properties, in tenths of a microsecond: the most for a step,
# which has room for this number of the cheapest messages, and for an answer.
_JUDGED_ENTRIES = 128
_JUDGED_STEP = 3_000
_JUDGED_COST = 100_000


class ReadLimits(NamedTuple):
    """The limits of an answer: for messages that the page cache should have, and for older ones."""

    memory_bytes: int
    transfer_bytes_memory: int
    transfer_count_memory: int
    transfer_bytes_disk: int
    transfer_count_disk: int

    @classmethod
    def of(cls, settings: Settings) -> "ReadLimits":
        """The limits of the settings."""
        return cls(
            physical_memory_bytes() * settings.memory_ratio_percent // 100,
            settings.transfer_bytes_memory,
            settings.transfer_count_memory,
            settings.transfer_bytes_disk,
            settings.transfer_count_disk,
        )

    @classmethod
    def bulk(cls, settings: Settings) -> "ReadLimits":
        """The limits for callers that ask for large answers: a quarter for old messages, to spare
        the disk."""
        most = settings.transfer_bytes_bulk
        return cls(
            physical_memory_bytes() * settings.memory_ratio_percent // 100,
            most,
            settings.transfer_count_bulk,
            max(1, most // 4),
            settings.transfer_count_bulk,
        )


def physical_memory_bytes() -> int:
    """The machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


#: The log offset in a segment below which each record is checked, by the setting `check_reads`.
CHECKED_BELOW: dict[str, Callable[[MappedFile], int]] = {
    "unchecked": lambda segment: segment.start + segment.unchecked_below,
    "always": lambda segment: segment.end,
    "never": lambda segment: segment.start,
}


#: Hashes of tags, None for all messages.
Codes: TypeAlias = frozenset[int] | None
#: The most (bytes, messages) of an answer: with recent messages, with old messages.
Room: TypeAlias = tuple[tuple[int, int], tuple[int, int]]


class QueueReader:
    """Reads dispatched messages; `checked_below` is one of CHECKED_BELOW, and the queues have bit
    maps of `map_bytes`, 0 without bit maps."""

    def __init__(
        self,
        core: StoreCore,
        damage: DamageReports,
        lookup: EntryLookup,
        map_bytes: int,
        compiled: Compiled | None = None,
    ) -> None:
        self._marks = core.marks
        self._segments = core.segments
        self._queues = core.queues
        self._stats = core.stats
        self.limits = ReadLimits.of(core.settings)
        self._crc_check = damage.judge.crc_check
        self._damage = damage
        self._lookup = lookup
        #: The log offset in a segment below which each record is checked.
        self.checked_below = CHECKED_BELOW[core.settings.check_reads]
        self._judging = Judging(
            core.segments, damage.judge.is_sound, self.checked_below, core.stats, map_bytes
        )
        self._compiled = compiled

    # --- messages of a queue ----------------------------------------------------------------

    def get(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_messages: int,
        codes: frozenset[int] | None = None,
        max_bytes: int | None = None,
        limits: ReadLimits | None = None,
    ) -> GetResult:
        """Messages from `queue_offset` on whose tags code is in `codes` (None or empty: all).

        `limits` are the store's own unless others are given. The first message is given whatever
        its size. A `with` of the result releases its views.
        """
        queue, result = self._begin(topic, queue_id, queue_offset)
        if queue is not None:
            room = _room_of(limits or self.limits, max(1, max_messages), max_bytes)
            most = max(LEAST_ENTRIES, max_messages)
            if not self._look(queue, result, codes, room, most):
                self._over_hole(queue, result)
        return self._counted(result)

    def get_steps(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_messages: int,
        codes: frozenset[int] | None,
        max_bytes: int | None,
        limits: ReadLimits,
    ) -> Generator[None, None, GetResult]:
        """Do `get` in steps, for many messages. The caller has to run the steps to their end, or
        close them: they hold views. A queue that is deleted meanwhile ends them with the messages
        found so far."""
        queue, result = self._begin(topic, queue_id, queue_offset)
        if queue is None:
            return self._counted(result)
        room = _room_of(limits, max(1, max_messages), max_bytes)
        left = max(LEAST_ENTRIES, max_messages)
        try:
            while left > 0 and self._queues.get(topic, queue_id) is queue:
                before, most = result.next_offset, min(left, _STEP_ENTRIES)
                looked_at = self._look(queue, result, codes, room, most)
                if not looked_at and before == queue_offset:
                    self._over_hole(queue, result)
                if not looked_at or result.next_offset - before < looked_at or result.pending:
                    break
                left -= looked_at
                yield None
        except BaseException:
            result.release()
            raise
        return self._counted(result)

    def _begin(
        self, topic: str, queue_id: int, queue_offset: int
    ) -> tuple[ConsumeQueue | None, GetResult]:
        """The queue to read from and an answer to be filled; without a queue the answer is
        complete."""
        queue = self._queues.get(topic, queue_id)
        if queue is None or queue.max_offset == 0:
            return None, GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
        lowest, highest = queue.min_offset, queue.max_offset
        if lowest <= queue_offset < highest:
            status = GetStatus.NO_MATCHED_MESSAGE
            return queue, GetResult(status, queue_offset, lowest, highest)
        if queue_offset < lowest:
            return None, GetResult(GetStatus.OFFSET_TOO_SMALL, lowest, lowest, highest)
        if queue_offset == highest:
            return None, GetResult(GetStatus.OFFSET_OVERFLOW_ONE, queue_offset, lowest, highest)
        return None, GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, highest, lowest, highest)

    def _look(
        self, queue: ConsumeQueue, result: GetResult, codes: Codes, room: Room, most: int
    ) -> int:
        """Look at `most` entries more, as far as there is room; return how many were read, 0
        without further entries."""
        read = queue.read_coded if codes else queue.read_entries
        data = read(result.next_offset, most)
        if data and self._scan(queue, data, result, codes, room) and not result.count:
            # The entry in the way is repaired: its message is the first in the answer.
            first = result.next_offset
            amended = self._lookup.amended(queue, first, read(first, most))
            self._scan(queue, amended, result, codes, room)
        return len(data) // ENTRY_BYTES

    def _over_hole(self, queue: ConsumeQueue, result: GetResult) -> None:
        """Go on at the next file: nothing can be read where the answer begins."""
        result.status = GetStatus.OFFSET_FOUND_NULL
        result.next_offset = queue.next_file_offset(result.next_offset)

    def _counted(self, result: GetResult) -> GetResult:
        if result.count:
            self._stats.get_found += 1
            self._stats.get_messages += result.count
        else:
            self._stats.get_missed += 1
        return result

    def read(self, queue: ConsumeQueue, queue_offset: int, entries: bytes) -> GetResult:
        """The messages of entries that were read already; `queue_offset` is that of the first.

        Otherwise it works as `get`, but without counting: for the store's own use.
        """
        result = GetResult(
            GetStatus.NO_MATCHED_MESSAGE, queue_offset, queue.min_offset, queue.max_offset
        )
        room = _room_of(self.limits, len(entries) // ENTRY_BYTES, None)
        self._scan(queue, entries, result, None, room)
        return result

    def _stands(self, queue: ConsumeQueue, queue_offset: int, *fields: int) -> bool:
        """Whether the record that an entry of these fields names is there and names it back."""
        return self._damage.judge.is_sound(queue, queue_offset, QueueEntry._make(fields))

    def _met(self, queue: ConsumeQueue, queue_offset: int, *fields: int) -> Outcome:
        """Deal with an entry of these fields that gives a pull no message."""
        return self._damage.met(queue, queue_offset, QueueEntry._make(fields))

    def _scan(
        self, queue: ConsumeQueue, data: bytes, result: GetResult, codes: Codes, room: Room
    ) -> bool:
        """Add to `result` from the entries of `data`; return whether it ended before an entry that
        was wrong and is repaired now."""
        if self._compiled is None or self._marks.frozen_at is not None:
            return self._scan_closely(queue, data, result, codes, room)
        first, position = result.next_offset, 0
        if not first:
            # Records with number 0 are looked at closely, and so the beginning of each queue.
            repaired = self._scan_closely(queue, data[:ENTRY_BYTES], result, codes, room)
            if result.next_offset == first:
                return repaired
            position = ENTRY_BYTES
        while position < len(data):
            if self._scan_plain(self._compiled, queue, data, position, result, codes, room):
                return False
            reached = (result.next_offset - first) * ENTRY_BYTES
            if reached == position:
                return self._scan_closely(queue, data[position:], result, codes, room)
            position = reached
        return False

    def _scan_plain(
        self,
        compiled: Compiled,
        queue: ConsumeQueue,
        data: bytes,
        position: int,
        result: GetResult,
        codes: Codes,
        room: Room,
    ) -> bool:
        """Do `_scan_closely` from `position` on, as far as all is well in a segment; return whether
        the answer is full."""
        segment = self._segments.find(ENTRY.unpack_from(data, position)[0])
        if segment is None:
            return False
        old_below = self._marks.written - self.limits.memory_bytes
        runs: list[tuple[int, int]] = []
        # The mapping has to stay meanwhile, whatever else the interpreter does.
        segment.pins += 1
        try:
            looked_at, result.count, result.size, last, full = compiled.scan(
                data,
                position,
                result.next_offset,
                queue.queue_id,
                is_light(queue.topic),
                codes,
                segment.view,
                segment.start,
                max(segment.start, self.checked_below(segment)),
                segment.start + segment.wrote,
                old_below,
                room,
                result.count,
                result.size,
                runs,
            )
        finally:
            segment.pins -= 1
        for start, end in runs:
            result.add_view(segment, start, end)
        if looked_at:
            result.next_offset += looked_at
            result.suggest_slave = last < old_below
        if result.count:
            result.status = GetStatus.FOUND
        return full

    def _scan_closely(
        self, queue: ConsumeQueue, data: bytes, result: GetResult, codes: Codes, room: Room
    ) -> bool:
        """Do `_scan` for entries of any kind."""
        marks, find, unpack = self._marks, self._segments.find, SLOT_FIELDS.unpack_from
        frozen_at, memory_from = marks.frozen_at, marks.written - self.limits.memory_bytes
        (recent_bytes, recent_count), (old_bytes, old_count) = room
        segment: MappedFile | None = None
        run_start = run_end = checked_below = base = end = written_end = skip_until = 0
        count, size_sum = result.count, result.size
        scanned = last_seen = 0
        start, queue_id, is_listed = result.next_offset, queue.queue_id, is_light(queue.topic)
        status, outcome = GetStatus.NO_MATCHED_MESSAGE, Outcome.LOST
        for log_offset, size, tags_code in ENTRY.iter_unpack(data):
            slot = start + scanned
            if size == PRE_BLANK_SIZE:
                scanned += 1
                status = GetStatus.MESSAGE_WAS_REMOVING
                continue
            if frozen_at is not None and log_offset + size > frozen_at:
                status = status if scanned else GetStatus.OFFSET_OVERFLOW_ONE  # as at a queue's end
                break
            if count:
                if log_offset < memory_from:
                    if count >= old_count or size_sum + size > old_bytes:
                        break
                elif count >= recent_count or size_sum + size > recent_bytes:
                    break
            scanned += 1
            if skip_until and 0 < log_offset < skip_until:
                continue
            last_seen = log_offset
            if codes and size >= MIN_RECORD_BYTES and not _matches(tags_code, codes):
                continue
            if not base <= log_offset < end:
                if run_end > run_start and segment is not None:
                    result.add_view(segment, run_start, run_end)
                    run_start = run_end = 0
                segment, base, end, written_end = find(log_offset), 0, 0, _NOWHERE
                if segment is not None:
                    checked_below, base = self.checked_below(segment), segment.start
                    view, end, written_end = segment.view, segment.end, base + segment.wrote
            is_good = False
            if checked_below <= log_offset and MIN_RECORD_BYTES <= size <= written_end - log_offset:
                found, magic, found_id, number = unpack(view, log_offset - base)
                # Half messages, rollbacks and fillers have number 0; so 0 is looked at closely.
                if number > 0 and found == size and magic == MESSAGE_MAGIC:
                    is_good = (number == slot and found_id == queue_id) or is_listed
            if not is_good and (
                segment is None or not self._stands(queue, slot, log_offset, size, tags_code)
            ):
                # Deleted with its segment, like all below the log's beginning; or damaged.
                outcome = self._met(queue, slot, log_offset, size, tags_code)
                if outcome is not Outcome.LOST:
                    scanned -= 1
                    break
                status = GetStatus.MESSAGE_WAS_REMOVING
                if segment is None:
                    skip_until = self._segments.min_offset
                continue
            if log_offset != run_end:
                if run_end > run_start and segment is not None:
                    result.add_view(segment, run_start, run_end)
                run_start = log_offset
            run_end = log_offset + size
            count += 1
            size_sum += size
        if run_end > run_start and segment is not None:
            result.add_view(segment, run_start, run_end)
        result.next_offset += scanned
        result.count, result.size = count, size_sum
        result.status = GetStatus.FOUND if count else status
        if scanned:
            result.suggest_slave = last_seen < memory_from
        result.pending = outcome is Outcome.PENDING
        return outcome is Outcome.REPAIRED

    # --- by properties ----------------------------------------------------------------------

    def get_judged(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_messages: int,
        message_filter: MessageFilter,
        max_bytes: int | None = None,
        limits: ReadLimits | None = None,
    ) -> Generator[None, None, GetResult]:
        """Do `get_steps` for the messages that a filter over properties wants.

        An answer examines as many messages as with tags, or fewer if that takes long; the caller
        goes on at `next_offset`.
        """
        queue, result = self._begin(topic, queue_id, queue_offset)
        if queue is None:
            return self._counted(result)
        most = max(1, max_messages)
        room = _room_of(limits or self.limits, most, max_bytes)
        left, units = max(LEAST_ENTRIES, most), _JUDGED_COST
        try:
            while left > 0 and units > 0 and self._queues.get(topic, queue_id) is queue:
                before, missing = result.next_offset, room[0][1] - result.count
                ended, spent = self._judge(queue, result, message_filter, room, left, missing)
                if not spent and before == queue_offset:
                    self._over_hole(queue, result)
                left -= result.next_offset - before
                units -= spent
                if ended or result.count >= room[0][1]:
                    break
                yield None
        except BaseException:
            result.release()
            raise
        return self._counted(result)

    def _judge(
        self,
        queue: ConsumeQueue,
        result: GetResult,
        message_filter: MessageFilter,
        room: Room,
        most: int,
        missing: int,
    ) -> tuple[bool, int]:
        """Judge some entries and take the wanted ones; return whether that ended the answer, and
        the cost of judging, 0 without an entry."""
        first, empty = result.next_offset, not result.count
        most = min(most, _JUDGED_ENTRIES)
        data = queue.read_entries(first, most)
        if not data:
            return True, 0
        entries, spent = self._judging.judged(
            queue, first, data, message_filter, missing, _JUDGED_STEP
        )
        if self._scan(queue, entries, result, WANTED, room) and empty and not result.count:
            # The entry in the way is repaired: it is judged as it is now.
            amended = self._lookup.amended(queue, first, queue.read_entries(first, most))
            again = amended[(result.next_offset - first) * ENTRY_BYTES :]
            entries, more = self._judging.judged(
                queue, result.next_offset, again, message_filter, missing, _JUDGED_STEP
            )
            first, spent = result.next_offset, spent + more
            self._scan(queue, entries, result, WANTED, room)
        looked_at = len(entries) // ENTRY_BYTES
        return result.next_offset - first < looked_at or result.pending, spent

    def properties_at(self, topic: str, queue_id: int, queue_offset: int) -> bytes | None:
        """The stored properties of a message of a queue; None if it cannot be had."""
        queue = self._queues.get(topic, queue_id)
        entry = None if queue is None else queue.entry(queue_offset)
        if queue is None or entry is None or entry.end > self._marks.readable:
            return None
        return self._judging.properties(queue, queue_offset, entry)

    # --- single records ---------------------------------------------------------------------

    def record_at(self, log_offset: int) -> bytes | None:
        """The record that begins at `log_offset`, checked whole; None without one."""
        found = self.head_at(log_offset, check_crc=True)
        if found is None:
            return None
        segment, head = found
        position = log_offset - segment.start
        return bytes(segment.view[position : position + head.size])

    def records_from(self, log_offset: int, gaps: Iterable[tuple[int, int]]) -> Iterator[bytes]:
        """The records that follow each other from `log_offset` on, up to the first bytes that are
        no record.

        Known `gaps` (log offsets [start, end)), fillers, and blanks at a segment's end are passed
        over.
        """
        behind = {start: end for start, end in gaps if start < end}
        while True:
            while log_offset in behind:
                log_offset = behind[log_offset]
            found = self._piece_at(log_offset, CHECK_NOTHING)
            if found is None:
                return
            segment, head = found
            if head.kind == RECORD and not is_filler(head.topic, head.sys_flag):
                position = log_offset - segment.start
                yield bytes(segment.view[position : position + head.size])
            log_offset += head.size

    def store_time_at(self, log_offset: int) -> int:
        """Store time of the record at `log_offset` in milliseconds; -1 without one."""
        found = self.head_at(log_offset, check_crc=False)
        return -1 if found is None else found[1].store_timestamp_ms

    def head_at(self, log_offset: int, *, check_crc: bool) -> tuple[MappedFile, RecordHead] | None:
        """The checked head of the record that begins at `log_offset`, and its segment."""
        found = self._piece_at(log_offset, self._crc_check if check_crc else CHECK_NOTHING)
        if found is None or found[1].kind != RECORD:
            return None
        return None if is_filler(found[1].topic, found[1].sys_flag) else found

    def _piece_at(self, log_offset: int, checks: int) -> tuple[MappedFile, RecordHead] | None:
        """The head of the record or blank that begins at `log_offset`, and its segment."""
        segment = self._segments.find(log_offset)
        if segment is None or log_offset >= self._marks.readable:
            return None
        limit = min(segment.wrote, self._marks.readable - segment.start)
        position = log_offset - segment.start
        try:
            return segment, check_record(segment.view, position, log_offset, limit, checks)
        except CorruptRecord:
            return None

    def is_in_memory(self, topic: str, queue_id: int, queue_offset: int) -> bool:
        """Whether the message is near enough to the log's end to be in the page cache."""
        queue = self._queues.get(topic, queue_id)
        entry = None if queue is None else queue.entry(queue_offset)
        if entry is None:
            return False
        return self._marks.written - entry.log_offset <= self.limits.memory_bytes


def _room_of(limits: ReadLimits, max_messages: int, max_bytes: int | None) -> Room:
    return (
        _room(limits, max_messages, max_bytes, in_memory=True),
        _room(limits, max_messages, max_bytes, in_memory=False),
    )


def _room(
    limits: ReadLimits, max_messages: int, max_bytes: int | None, *, in_memory: bool
) -> tuple[int, int]:
    if in_memory:
        most_bytes, most_count = limits.transfer_bytes_memory, limits.transfer_count_memory
    else:
        most_bytes, most_count = limits.transfer_bytes_disk, limits.transfer_count_disk
    if max_bytes is not None:
        most_bytes = min(most_bytes, max_bytes)
    return most_bytes, min(most_count, max_messages)


def _matches(tags_code: int, codes: frozenset[int]) -> bool:
    if tags_code in codes:
        return True
    if -_I32_SIGN <= tags_code < _I32_SIGN:
        return False
    if tags_code <= MOST_ADDRESS:
        return True  # its extension entry is missing: the tags are unknown
    # Only the low 32 bits count.
    low = tags_code & _I32_BITS
    return (low ^ _I32_SIGN) - _I32_SIGN in codes
