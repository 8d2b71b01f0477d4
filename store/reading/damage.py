"""Judges damage met while the store runs, record or queue entry, and reports it once.

A queue entry whose record does not check out has three explanations. The record is damaged: bytes
are lost, its place is remembered as a gap. The entry is wrong: it is derived, all messages are
there, and the scrub has it repaired. Or the bytes at hand do not tell; the scrub, which reads the
log in order, can tell.

In none of these cases a consumer gets a record that does not check out. Unless the record itself is
damaged, its message is looked for in the log (`lookup.py`) before any reader passes over the entry.
The CRC covers a record's body, so a flipped bit in its topic, queue id or queue offset leaves a
record that claims another slot. It is not believed if that slot belongs to another record or does
not exist.

Threads: `met` on the store's caller's; `note` and `forget` on any, guarded by a lock.
"""

import enum
import logging
import threading
from collections import deque
from typing import NamedTuple

from aerobee.protocol.errors import CorruptRecord
from aerobee.protocol.message.filler import is_filler
from aerobee.protocol.message.record_check import RECORD, RecordHead, check_record
from aerobee.protocol.message.record_layout import MESSAGE_MAGIC, SIZE_AND_MAGIC
from aerobee.store.flush.offsets_keeper import OffsetsKeeper
from aerobee.store.log.scan.boundaries import named_back
from aerobee.store.log.scan.segment_reader import MappedReader
from aerobee.store.log.store_core import StoreCore
from aerobee.store.queues.consume_queue import ConsumeQueue
from aerobee.store.queues.queue_table import ConsumeQueueTable
from aerobee.store.queues.queue_view import QueueEntry
from aerobee.store.queues.slots import names_slot
from aerobee.store.reading.lookup import EntryLookup, Outcome
from aerobee.store.segments.mapped_file import MappedFile
from aerobee.store.segments.mapped_file_queue import MappedFileQueue

log = logging.getLogger("aerobee.store")

# Places that are logged, some 200 bytes each; further places are only counted.
_MOST_REPORTED = 10_000


class DamageKind(enum.Enum):
    """The broken part; the values are the labels of the metric."""

    RECORD = "record"
    ENTRY = "unit"
    UNCLEAR = "unclear"


class Verdict(NamedTuple):
    """The meaning of an entry's failing record. A record's damage is at log offsets [start,
    end)."""

    kind: DamageKind
    start: int
    end: int
    reason: str


class Judge:
    """Distinguishes damaged records from wrong entries; reads only. Store's caller thread."""

    def __init__(
        self, segments: MappedFileQueue, queues: ConsumeQueueTable, crc_check: int
    ) -> None:
        self._segments = segments
        self._queues = queues
        self.crc_check = crc_check

    def is_sound(self, queue: ConsumeQueue, offset: int, entry: QueueEntry) -> bool:
        """Whether the record that an entry names checks out whole and names the entry back."""
        log_offset, size, _ = entry
        segment = self._segments.find(log_offset)
        if segment is None:
            return False
        position = log_offset - segment.start
        if segment.unreadable and _touches(segment.unreadable, position, size):
            return False
        try:
            named_back(MappedReader(segment), queue, offset, log_offset, size, self.crc_check)
        except CorruptRecord:
            return False
        return True

    def judge(self, queue: ConsumeQueue, offset: int, entry: QueueEntry) -> Verdict | None:
        """The fault of an entry and its record; None without a fault, or if the record was removed
        with its segment."""
        log_offset, size, _ = entry
        if size <= 0:
            return _wrong(entry, "the slot is empty, between slots that are not")
        segment = self._segments.find(log_offset)
        if segment is None or log_offset + size > self._segments.max_offset:
            return self._outside(queue, offset, entry)
        position = log_offset - segment.start
        if segment.unreadable and _touches(segment.unreadable, position, size):
            return Verdict(
                DamageKind.RECORD, log_offset, log_offset + size, "the disk cannot read it"
            )
        try:
            head = check_record(segment.view, position, log_offset, segment.wrote, self.crc_check)
        except CorruptRecord as error:
            if self._stands_there(segment, entry):
                return Verdict(DamageKind.RECORD, log_offset, log_offset + size, str(error))
            return Verdict(DamageKind.UNCLEAR, log_offset, log_offset + size, str(error))
        if head.kind != RECORD:
            return _wrong(entry, "it names the blank end of a segment")
        if is_filler(head.topic, head.sys_flag):
            reason = "it was lost, a repair has filled its place"
            return Verdict(DamageKind.RECORD, log_offset, log_offset + head.size, reason)
        if not names_slot(segment.view, position, head, queue.topic, queue.queue_id, offset):
            return self._named_elsewhere(queue, offset, entry, head)
        if head.size != size:
            return _wrong(entry, f"it gives its record {size} bytes, the record has {head.size}")
        return None

    def is_damaged(self, log_offset: int) -> bool:
        """Whether there is no sound record of a message at that place."""
        segment = self._segments.find(log_offset)
        if segment is None:
            return True
        position = log_offset - segment.start
        try:
            head = check_record(segment.view, position, log_offset, segment.wrote, self.crc_check)
        except CorruptRecord:
            return True
        return head.kind != RECORD or is_filler(head.topic, head.sys_flag)

    def _outside(self, queue: ConsumeQueue, offset: int, entry: QueueEntry) -> Verdict | None:
        first = self._segments.min_offset
        if 0 <= entry.log_offset < first:
            before = queue.entry(offset - 1) if offset > queue.first_offset else None
            if before is None or before.log_offset < first:
                return None
        return _wrong(
            entry, f"it names {entry.log_offset}, the log is {first} to {self._segments.max_offset}"
        )

    def _stands_there(self, segment: MappedFile, entry: QueueEntry) -> bool:
        """Whether a record, damaged as it is, stands at the entry's place.

        It does if two of size, magic and own place are right, or a sound record follows: one
        flipped bit leaves two, a place in the middle of something else has none.
        """
        log_offset, size, _ = entry
        reader = MappedReader(segment)
        own = reader.own_place(log_offset)
        if own is None:
            return False
        found, magic = SIZE_AND_MAGIC.unpack_from(segment.view, log_offset - segment.start)
        if (found == size) + (magic == MESSAGE_MAGIC) + (own == log_offset) >= 2:
            return True
        return reader.is_sound(log_offset + size, self.crc_check)

    def _named_elsewhere(
        self, queue: ConsumeQueue, offset: int, entry: QueueEntry, head: RecordHead
    ) -> Verdict:
        """Judge a whole record that says that it belongs to another queue, or to another slot of
        this one.

        The entry is wrong if the slot that the record claims names it, or is free and fits it.
        """
        log_offset = entry.log_offset
        claim = (
            f"it says it is message {head.queue_offset} of queue {head.queue_id} of {head.topic}"
        )
        other = self._queues.get(head.topic, head.queue_id)
        if not self._fits(queue, offset, log_offset):
            return _wrong(entry, f"its record is not in order with its neighbours' ({claim})")
        if other is not None and head.queue_offset < other.max_offset:
            found = other.entry(head.queue_offset)
            if found is not None and found.log_offset == log_offset:
                return _wrong(entry, claim)
            is_free = found is None or not self.is_sound(other, head.queue_offset, found)
            if is_free and self._fits(other, head.queue_offset, log_offset):
                return _wrong(entry, claim)
        return Verdict(
            DamageKind.RECORD, log_offset, log_offset + head.size, f"{claim}, which it is not"
        )

    def _fits(self, queue: ConsumeQueue, offset: int, log_offset: int) -> bool:
        """Whether a record there may have that slot: the sound entries beside it are in order."""
        before, after = self._sound_entry(queue, offset - 1), self._sound_entry(queue, offset + 1)
        return (before is None or before.log_offset < log_offset) and (
            after is None or log_offset < after.log_offset
        )

    def _sound_entry(self, queue: ConsumeQueue, offset: int) -> QueueEntry | None:
        entry = queue.entry(offset) if offset >= queue.first_offset else None
        return entry if entry is not None and self.is_sound(queue, offset, entry) else None


class ScrubRequests:
    """The requests to the scrub of one store, which may have none: then nobody takes them."""

    def __init__(self, segments: MappedFileQueue) -> None:
        self._segments = segments
        # Segments asked for, by their beginnings.
        self._asked: deque[int] = deque()
        self.pass_asked = False
        #: Ends the scrub's wait for something to do.
        self.woken = threading.Event()
        #: Whether nothing is being read, nor was anything asked for. The scrub's to set.
        self.idle = False

    def ask(self, log_offset: int) -> None:
        """Have the segment of `log_offset` read next."""
        segment = self._segments.find(log_offset)
        if segment is not None and segment.start not in self._asked:
            self.idle = False
            self._asked.append(segment.start)
            self.woken.set()

    def ask_pass(self) -> None:
        """Have the whole log read once more, soon."""
        self.idle = False
        self.pass_asked = True
        self.woken.set()

    def take(self) -> MappedFile | None:
        """The segment to read now; None if none was asked for."""
        while self._asked:
            segment = self._segments.find(self._asked.popleft())
            if segment is not None:
                return segment
        return None

    def wait(self, seconds: float) -> None:
        """Wait so long, or until something is asked for."""
        self.idle = not self._asked and not self.pass_asked
        self.woken.wait(seconds)
        self.idle = False


class DamageReports:
    """Reports each damage once, counts it, has it remembered and looked into. `lookup` finds the
    messages of wrong entries.

    `offsets` remembers a place without a usable record; `scrub`, None where a store has no scrub,
    has the segment there read as a whole.
    """

    def __init__(
        self,
        core: StoreCore,
        judge: Judge,
        lookup: EntryLookup,
        offsets: OffsetsKeeper,
        scrub: ScrubRequests | None,
    ) -> None:
        self.judge = judge
        self._lookup = lookup
        self._segments = core.segments
        self._stats = core.stats
        self._offsets = offsets
        self._scrub = scrub
        self._reported: set[tuple[str, int, int] | int] = set()
        # Entries that reads have come to and passed over.
        self._passed_over: set[tuple[ConsumeQueue, int, QueueEntry]] = set()
        self._silent = False
        self._lock = threading.Lock()

    def met(self, queue: ConsumeQueue, offset: int, entry: QueueEntry) -> Outcome:
        """Deal with an entry whose record a read cannot send; returns what the read does next."""
        place = (queue, offset, entry)
        if place in self._passed_over:
            self._stats.damaged_reads += 1
            return Outcome.LOST
        verdict = self.judge.judge(queue, offset, entry)
        if verdict is None:
            return Outcome.LOST  # with its segment
        is_damage = verdict.kind is DamageKind.RECORD
        outcome = Outcome.LOST
        if not is_damage or not self.judge.is_damaged(entry.log_offset):
            outcome = self._lookup.look_up(queue, offset, is_damage=is_damage)
        if outcome is Outcome.PENDING:
            return outcome
        if outcome is Outcome.REPAIRED:
            verdict = verdict._replace(kind=DamageKind.ENTRY)
        else:
            self._stats.damaged_reads += 1
            if len(self._passed_over) < _MOST_REPORTED:
                self._passed_over.add(place)
        slot = (queue.topic, queue.queue_id, offset)
        if self.note(verdict, slot) and self._scrub is not None:
            self._scrub.ask(verdict.start)
        if outcome is Outcome.REPAIRED:
            self.forget(slot)
        return outcome

    def note_gap(self, start: int, end: int, reason: str) -> None:
        """Do `note` for damage that no queue names. Any thread."""
        self.note(Verdict(DamageKind.RECORD, start, end, reason), None)

    def note(self, verdict: Verdict, slot: tuple[str, int, int] | None) -> bool:
        """Report and remember a finding; `slot` is the queue and offset by which it was found.

        False if it was known.
        """
        kind, start, end, reason = verdict
        key: tuple[str, int, int] | int = start
        if kind is not DamageKind.RECORD and slot is not None:
            key = slot
        with self._lock:
            known = key in self._reported
            full = len(self._reported) >= _MOST_REPORTED
            if not full:
                self._reported |= {key} if slot is None else {key, slot}
            if known or self._silent:
                return False
            self._silent = full
            self._stats.damage_found[kind.value] += 1
        if full:
            log.error("too much damage to name each place, reads that meet it are counted")
        if kind is DamageKind.RECORD:
            self._offsets.add_gap(start, end)
            self._check_reads_of(start)
        topic, queue_id, offset = slot or ("?", -1, -1)
        advice = _BY_HAND if self._scrub is None else _BY_SCRUB
        log.error(
            "%s log_offset=%d size=%d topic=%s queue=%d queue_offset=%d reason=%s advice=%s",
            _TEXTS[kind], start, end - start, topic, queue_id, offset, reason, advice[kind],
            # Each lost message is named; wrong entries may be very many.
            extra=None if kind is DamageKind.ENTRY else {"each": True},
        )  # fmt: skip
        return True

    def forget(self, slot: tuple[str, int, int]) -> None:
        """Note that the slot is in order; new damage of it is reported again."""
        with self._lock:
            self._reported.discard(slot)

    def _check_reads_of(self, log_offset: int) -> None:
        """Check each record of that segment from now on: where one is damaged, others may be."""
        segment = self._segments.find(log_offset)
        if segment is not None:
            segment.unchecked_below = segment.wrote


_TEXTS = {
    DamageKind.RECORD: "damaged record, it is not sent and consumers go on behind it",
    DamageKind.ENTRY: "wrong queue entry, its message is whole but may have been passed over",
    DamageKind.UNCLEAR: "damaged record or wrong queue entry, nothing is sent for it",
}
_LOOK = "look at the disk and the memory of this machine; docs/operations.md has more"
_BY_HAND = {
    DamageKind.RECORD: _LOOK,
    DamageKind.ENTRY: f"stop the broker and run 'aerobee store rebuild', which mends it; {_LOOK}",
    DamageKind.UNCLEAR: f"stop the broker and run 'aerobee store verify', which finds out; {_LOOK}",
}
_BY_SCRUB = {
    DamageKind.RECORD: _LOOK,
    DamageKind.ENTRY: f"the scrub mends it; {_LOOK}",
    DamageKind.UNCLEAR: f"the scrub finds out which; {_LOOK}",
}


def _touches(ranges: tuple[tuple[int, int], ...], position: int, size: int) -> bool:
    return any(low < position + size and position < high for low, high in ranges)


def _wrong(entry: QueueEntry, reason: str) -> Verdict:
    return Verdict(
        DamageKind.ENTRY, entry.log_offset, entry.log_offset + max(0, entry.size), reason
    )
