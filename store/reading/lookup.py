"""Looks in the log for the messages of queue entries that name no message of their queue.

Consume queues are derived: a wrong entry loses nothing, as long as no consumer passes over it. A
consumer that comes to it before the scrub does would pass over it for ever: its offset only grows.
So the message is looked for where it must be, between the messages of the nearest sound entries on
both sides, and the entry is written anew, exactly as by a rebuild from the log. All wrong entries
between these neighbours are looked for at once.

The neighbours of an entry may lie gigabytes apart, and the thread that serves pulls serves all
clients. So a search goes in turns: each pull that comes to the slot takes it on by a few hundred
KiB at most (`stats.lookup_bytes` adds them up), and is answered "ask again from there" until the
search has ended. The slots of a search without a find are remembered, and passed over then, like
those of damaged records: their messages are not in the log, or can be read no more.

A message is believed by the rules of `background/scrub/queue_repair.py`, with one difference. Where
a queue begins, the scrub waits for a whole pass, because a topic that was deleted and used again
has left messages with the same numbers. Here the search goes from the log's beginning then, and the
last message counts, if nothing was damaged after it.

Threads: the store's caller only.
"""

import enum
import logging
from collections.abc import Callable, Iterator

from aerobee.protocol.message.record_check import CHECK_NOTHING, Checked
from aerobee.protocol.message.record_layout import SYS_TRANSACTION_PREPARED
from aerobee.store.disk.files import is_full
from aerobee.store.dispatch.derived import Derivation
from aerobee.store.flush.offsets_keeper import OffsetsKeeper
from aerobee.store.log.scan.boundaries import Boundaries
from aerobee.store.log.scan.log_scanner import Batch, LogScanner, MappedSegments
from aerobee.store.log.scan.segment_reader import MappedReader, SegmentReader
from aerobee.store.log.scan.sequence import Sound, nearest_sound
from aerobee.store.log.store_core import StoreCore
from aerobee.store.queues.consume_queue import ConsumeQueue
from aerobee.store.queues.queue_view import ENTRY, ENTRY_BYTES, PRE_BLANK_SIZE, QueueEntry
from aerobee.store.queues.slots import OFFSETS_MARK
from aerobee.store.segments.mapped_file_queue import MappedFileQueue

log = logging.getLogger("aerobee.store")

# Bytes by which a pull may take a search on: the smallest records (91 bytes) in them take some
# milliseconds. A step without records is a look at a queue or two.
_TURN_BYTES = 256 << 10
_TURN_STEPS = 64
_STEP_BYTES = 32 << 10
# Slots in which a sound neighbour is looked for: a damaged page holds 205 entries.
_NEIGHBOURS = 512
# Searches under way, and queues whose lost slots are remembered.
_MOST_SEARCHES = 64
_MOST_QUEUES = 1024


class Outcome(enum.Enum):
    """The outcome of a look at a wrong entry."""

    #: Its message cannot be had: pass over it.
    LOST = enum.auto()
    #: The search goes on with the next pull that asks.
    PENDING = enum.auto()
    #: The slot is in order now: read it again.
    REPAIRED = enum.auto()


class _QuietReader(MappedReader):
    """The reader of a segment that consumers read: pages that they keep in memory stay there."""

    def reading_at(self, position: int) -> None:
        """Read nothing ahead."""

    def done(self) -> None:
        """Give nothing back."""


class _QuietSegments(MappedSegments):
    def __init__(self, segments: MappedFileQueue) -> None:
        super().__init__(segments)
        self._mapped = segments

    def readers(self, start: int) -> Iterator[SegmentReader]:
        for segment in list(self._mapped.segments):
            if segment.end > start:
                yield _QuietReader(segment)


class _Search:
    """The search for the messages of slots [low, high) of a queue, at log offsets [start, until).

    `is_bounded`: a sound entry of the same numbering lies before, so each claim is of it.
    """

    def __init__(
        self,
        queue: ConsumeQueue,
        low: int,
        high: int,
        *,
        scan: LogScanner,
        start: int,
        until: int,
        is_bounded: bool,
        derive: Callable[[list[Checked]], list[tuple[int, QueueEntry]]],
    ) -> None:
        self.queue, self.low, self.high = queue, low, high
        self.start = start
        self._until = until
        self._scan = scan
        self._steps: Iterator[Batch | None] = scan.steps(start)
        self.is_bounded = is_bounded
        self._derive = derive
        self._gaps = 0
        self.found: dict[int, QueueEntry] = {}

    @property
    def position(self) -> int:
        """Log offset up to which it has come; the scan has an end of its own only after its first
        step."""
        return max(self.start, self._scan.end)

    def turn(self, most_bytes: int) -> bool:
        """Go on for a little; return whether the search has ended. Raises OSError."""
        end = self.position + most_bytes
        for _ in range(_TURN_STEPS):
            if self._scan.end >= min(end, self._until):
                break
            batch = next(self._steps, self)
            if batch is self:
                return True
            self._take(batch)  # type: ignore[arg-type]
            if self.is_bounded and len(self.found) == self.high - self.low:
                return True
        return self._scan.end >= self._until

    def _take(self, batch: Batch | None) -> None:
        if len(self._scan.gaps) > self._gaps:
            self._gaps = len(self._scan.gaps)
            if not self.is_bounded:
                self.found.clear()  # the message may have been in the damaged part
        if batch is None:
            return
        queue = self.queue
        likely = [
            record
            for record in batch.records
            if (
                record[6] == queue.topic
                and record[2] == queue.queue_id
                and not record[4] & SYS_TRANSACTION_PREPARED
            )
            or OFFSETS_MARK in record[-1]
        ]
        for slot, entry in self._derive(likely):
            if self.low <= slot < self.high and not (self.is_bounded and slot in self.found):
                self.found[slot] = entry


class EntryLookup:
    """Searches the log of one store. Records in the gaps that `offsets` knows are not believed."""

    def __init__(self, core: StoreCore, is_sound: Sound, offsets: OffsetsKeeper) -> None:
        self._segments = core.segments
        self._queues = core.queues
        self._levels = core.levels
        self._is_sound = is_sound
        self._health = core.health
        self._stats = core.stats
        self._marks = core.marks
        self._offsets = offsets
        self._searches: dict[ConsumeQueue, _Search] = {}
        # The ranges of slots whose messages were looked for in vain, by queue.
        self._lost: dict[ConsumeQueue, list[tuple[int, int]]] = {}
        # Entries that were found and could not be written.
        self._unwritten: dict[tuple[ConsumeQueue, int], QueueEntry] = {}

    def knows_lost(self, queue: ConsumeQueue, slot: int) -> bool:
        """Whether the slot's message was looked for in vain."""
        return any(low <= slot < high for low, high in self._lost.get(queue, ()))

    def look_up(self, queue: ConsumeQueue, slot: int, *, is_damage: bool = False) -> Outcome:
        """Look for the message of a wrong entry, for a few milliseconds at most. Raises OSError.

        `is_damage`: the record seems to be wrong. So a message is believed to be the slot's only if
        it stands between two messages of the same numbering.
        """
        if (queue, slot) in self._unwritten:
            return Outcome.REPAIRED
        if self.knows_lost(queue, slot):
            return Outcome.LOST
        search = self._searches.get(queue)
        if search is None or not search.low <= slot < search.high or self._is_stale(search):
            search = self._begin(queue, slot)
        if is_damage and not search.is_bounded:
            return Outcome.LOST
        before = search.position
        ended = search.turn(_TURN_BYTES)
        self._stats.lookup_bytes += max(0, search.position - before)
        if not ended:
            return Outcome.PENDING
        del self._searches[queue]
        return self._conclude(search, slot)

    def amended(self, queue: ConsumeQueue, first: int, entries: bytes) -> bytes:
        """Entries that were read from slot `first` on, with the found entries that were not
        written."""
        if not self._unwritten:
            return entries
        amended = bytearray(entries)
        for (of_queue, slot), entry in self._unwritten.items():
            position = (slot - first) * ENTRY_BYTES
            if of_queue is queue and 0 <= position < len(amended):
                ENTRY.pack_into(amended, position, *entry)
        return bytes(amended)

    # --- one search -------------------------------------------------------------------------

    def _is_stale(self, search: _Search) -> bool:
        """Whether the segment that it would read next has been deleted."""
        return search.position < self._segments.min_offset

    def _begin(self, queue: ConsumeQueue, slot: int) -> _Search:
        sound, end = self._is_sound, self._marks.readable
        low, before = nearest_sound(queue, range(slot - 1, slot - _NEIGHBOURS, -1), sound)
        high, after = nearest_sound(queue, range(slot + 1, slot + _NEIGHBOURS), sound)
        start = self._segments.min_offset if before is None else before
        scan = LogScanner(
            _QuietSegments(self._segments),
            end,
            Boundaries(lambda: self._queues, lambda view, offset, log_offset, size: (
                isinstance(view, ConsumeQueue)
                and sound(view, offset, QueueEntry(log_offset, size, 0))
            )),
            CHECK_NOTHING,
            until=end if after is None else after,
            step_bytes=_STEP_BYTES,
        )  # fmt: skip
        search = _Search(
            queue,
            max(low + 1, queue.first_offset),
            min(high, queue.max_offset),
            scan=scan,
            start=max(start, self._segments.min_offset),
            until=end if after is None else after,
            is_bounded=before is not None,
            derive=self._derivation_of(queue),
        )
        if len(self._searches) >= _MOST_SEARCHES:
            del self._searches[next(iter(self._searches))]
        self._searches[queue] = search
        return search

    def _derivation_of(
        self, queue: ConsumeQueue
    ) -> Callable[[list[Checked]], list[tuple[int, QueueEntry]]]:
        """A function from records to the slots that they claim in the queue, and their entries
        there."""
        own = (queue.topic, queue.queue_id)

        def listed(name: str, queue_id: int) -> ConsumeQueue | None:
            return queue if (name, self._queues.listed_id(name, queue_id)) == own else None

        derivation: Derivation[ConsumeQueue] = Derivation(
            {own: queue}, lambda _topic, _queue_id: None, listed, self._levels
        )

        def derive(records: list[Checked]) -> list[tuple[int, QueueEntry]]:
            return [
                (slot, QueueEntry(log_offset, size, code))
                for found, slot, log_offset, size, code, *_ in derivation.entries(records)
                if found is queue
            ]

        return derive

    def _conclude(self, search: _Search, slot: int) -> Outcome:
        """Write the found entries where that is allowed; return the outcome for `slot`."""
        queue = search.queue
        if self._queues.get(queue.topic, queue.queue_id) is not queue:
            return Outcome.LOST  # its topic was deleted meanwhile
        repaired = set()
        for one, entry in sorted(search.found.items()):
            if self._may_repair(queue, one, entry):
                self._write(queue, one, entry)
                repaired.add(one)
        if repaired:
            log.warning(
                "queue entries mended for a read path=%s units=%d first=%d",
                queue.directory, len(repaired), min(repaired),
            )  # fmt: skip
        if slot in repaired:
            return Outcome.REPAIRED
        if queue not in self._lost and len(self._lost) >= _MOST_QUEUES:
            del self._lost[next(iter(self._lost))]
        ranges = self._lost.setdefault(queue, [])
        low = search.low
        for one in (*sorted(repaired), search.high):
            if low < one:
                ranges.append((low, one))
            low = one + 1
        return Outcome.LOST

    def _may_repair(self, queue: ConsumeQueue, slot: int, entry: QueueEntry) -> bool:
        """Whether the slot is wrong, not blank, and `entry` names a whole message of that slot."""
        found = queue.read_entries(slot, 1)
        if not found or not queue.first_offset <= slot < queue.max_offset:
            return False
        present = QueueEntry.parse(found)
        if present.size == PRE_BLANK_SIZE or self._is_sound(queue, slot, present):
            return False
        # In a gap its own message is lost, whatever claims the slot now.
        for one in (present, entry):
            if one.names_record and any(
                start <= one.log_offset < end for start, end in self._offsets.gaps
            ):
                return False
        return self._is_sound(queue, slot, entry)

    def _write(self, queue: ConsumeQueue, slot: int, entry: QueueEntry) -> None:
        try:
            queue.write_entries(slot, ENTRY.pack(*entry))
        except OSError as error:
            if not is_full(error):
                self._health.poison("mending consume queues", error)
            self._unwritten[queue, slot] = entry
            return
        if slot < queue.min_offset:
            queue.correct_min_offset(self._segments.min_offset)
        self._stats.repaired_entries += 1
