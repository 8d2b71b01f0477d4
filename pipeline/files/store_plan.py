"""Plans how a store is read: which bytes of which segments, in how many partitions.

A chain of records can only be entered at a record's start. Consume queue entries name starts, so a
segment is cut where an entry names one and the record there agrees; without consume queues a
segment is one piece. Cuts are `splitBytes` from each other, and small pieces are put together up to
that size.

The plan leaves out what is not selected: segments by the store time of their first record (as far
as the broker's clock ran forward) and by log offset; with `use=auto` also pieces for which no
selected queue has an entry. Where the selected topics are a small share of the log, their entries
are followed instead (`use=consumequeue`): a partition is then a range of the log, with the entries
of each queue for it.

The plan is made where Spark plans, reads little, and consists of values that can be pickled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple, Self

from aerobee.pipeline.decode.selection import Selection
from aerobee.pipeline.errors import StoreReadError
from aerobee.pipeline.files.directory import (
    File,
    FileSystemPlace,
    Store,
    find_stores,
    require_topics,
)
from aerobee.pipeline.files.entries import ENTRY_BYTES, QueueEntries
from aerobee.pipeline.files.log_outline import LogOutline, in_parallel
from aerobee.pipeline.files.store_options import AUTO, COMMIT_LOG, CONSUME_QUEUE, StoreOptions
from aerobee.protocol.names import is_light

log = logging.getLogger("aerobee.pipeline")

#: `auto` follows entries if the selected queues have less than this share of the log: to read a
#: record by its entry costs about as much as to scan over eight.
ENTRIES_SHARE_MAX: Final = 1 / 8

#: Gives `count` bytes of the log from an offset on; all of them, or it raises.
Read = Callable[[int, int], bytes | memoryview]


class LogPiece(NamedTuple):
    """The records of one segment that begin in [start, end); a record begins at `start`.

    Bytes below `known_end` that are no record are damage. From there on they are the end of the
    data, unless records follow within `look_ahead` bytes. Records before `first_offset` are passed
    over. Without a path, that part of the log is in no file.
    """

    path: str
    file_start: int
    file_bytes: int
    start: int
    end: int
    known_end: int
    look_ahead: int = 0
    first_offset: int = 0
    is_sealed: bool = False

    @classmethod
    def of(cls, segment: File, start: int, end: int) -> Self:
        """The records of a segment in [start, end), all of which were there once."""
        return cls(segment.path, segment.start, segment.size, start, end, known_end=end)


@dataclass(frozen=True, slots=True)
class LogPart:
    """A partition of pieces of the log, which are scanned in order. The consume queues below
    `queue_root` say where records begin after damage."""

    place: FileSystemPlace
    pieces: tuple[LogPiece, ...]
    queue_root: str | None


class EntryRange(NamedTuple):
    """The entries [first, end) of a queue, counted from the first of these files."""

    topic: str
    queue_id: int
    files: tuple[File, ...]
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class EntriesPart:
    """A partition of the records that these entries name, in these segments."""

    place: FileSystemPlace
    queues: tuple[EntryRange, ...]
    segments: tuple[File, ...]


Part = LogPart | EntriesPart


def plan(options: StoreOptions, selection: Selection) -> list[Part]:
    """The partitions, in the order of the log. Raises StoreReadError."""
    stores = find_stores(options.paths)
    if options.use == CONSUME_QUEUE:
        for store in stores:
            if store.queue_root is None:
                raise StoreReadError(f"{store.name} has no consume queues for use=consumequeue")
        require_topics(stores, selection.topics or ())
    if selection.is_empty:
        return []
    return [part for store in stores for part in _Planner(store, options, selection).parts()]


class _Planner:
    def __init__(self, store: Store, options: StoreOptions, selection: Selection) -> None:
        self.store = store
        self.options = options
        self.selection = selection
        self.log = LogOutline(store)

    def parts(self) -> list[Part]:
        segments = self._segments()
        if not segments:
            return []
        chosen = self._selected_queues()
        if chosen is not None and self._follows_entries(chosen, segments):
            return list(self._entry_parts(chosen, segments))
        pieces = list(self._pieces(segments))
        if chosen and self.options.use == AUTO:
            pieces = [piece for piece in pieces if self._may_hold(piece, chosen)]
        return list(self._log_parts(pieces))

    # --- which segments --------------------------------------------------------------------

    def _segments(self) -> list[File]:
        """The segments that may hold selected records, to judge by log offset and time."""
        start, end = self.selection.start_offset or 0, self.selection.end_offset
        segments = [
            segment
            for segment in self.store.segments
            if segment.end > start and (end is None or segment.start < end)
        ]
        if not segments or not self.selection.has_times:
            return segments
        times = [head.time_ms for head in self.log.heads(segments)]
        first, last = 0, len(segments)
        for number, time_ms in enumerate(times):
            if time_ms is None:
                continue
            if self.selection.start_ms is not None and time_ms < self.selection.start_ms:
                first = number
            if self.selection.end_ms is not None and time_ms >= self.selection.end_ms:
                last = min(last, number)
        return segments[first:last]

    # --- by scanning ----------------------------------------------------------------------

    def _pieces(self, segments: list[File]) -> Iterator[LogPiece]:
        queues = self.log.queues()
        last = self.store.segments[-1]
        end = self.log.end if segments[-1] is last or self._near_the_end(segments[-1]) else None
        reading_end = end.at if end else last.end
        inner = [segment for segment in segments if segment.start < reading_end]
        if self.store.place.is_local:
            cuts = [self._cuts(segment, queues) for segment in inner]
        else:
            cuts = in_parallel(self.store.place, lambda one: self._cuts(one, self.log.queues()),
                               inner)  # fmt: skip
        if end is not None and self.store.was_left_open and self.log.entry_end:
            log.warning("%s was left open: it is read up to log offset %d, which its consume "
                        "queues name", self.store.name, end.at)  # fmt: skip
        for number, segment in enumerate(inner):
            is_last = number + 1 == len(inner)
            limit = segment.end if is_last else min(segment.end, inner[number + 1].start)
            selected_end = self.selection.end_offset
            for start, stop in pairwise([*cuts[number], limit]):
                stop = min(stop, reading_end, stop if selected_end is None else selected_end)
                if start < stop:
                    piece = LogPiece.of(segment, start, stop)
                    yield piece._replace(
                        known_end=end.known if end else stop,
                        look_ahead=end.look_ahead if end else 0,
                        first_offset=self.selection.start_offset or 0,
                        is_sealed=segment is not last,
                    )
            if not is_last and segment.end < inner[number + 1].start:
                missing = inner[number + 1].start
                yield LogPiece.of(File("", segment.start, 0), segment.end, missing)

    def _near_the_end(self, segment: File) -> bool:
        """Whether only segments without anything in them follow."""
        later = [one for one in self.store.segments if one.start > segment.start]
        return all(head.is_empty for head in self.log.heads(later[:1]))

    def _cuts(self, segment: File, queues: list[QueueEntries]) -> list[int]:
        """Where to enter a segment: its start, then record starts at a distance."""
        first = self.selection.start_offset or 0
        cuts = [segment.start, *self.log.split_points(segment, self.options.split_bytes, queues)]
        if segment.start < first < segment.end and self.log.is_record(segment, first):
            cuts = [first, *[cut for cut in cuts if cut > first]]
        while len(cuts) > 1 and cuts[1] <= first:
            del cuts[0]
        return cuts

    def _may_hold(self, piece: LogPiece, queues: Sequence[QueueEntries]) -> bool:
        """Whether a selected queue has an entry for the piece, or may lack entries there."""
        if piece.end > self.log.entry_end or not piece.path:
            return True
        for queue in queues:
            entry = queue.entry(queue.search(piece.start))
            if entry is not None and entry[0] < piece.end:
                return True
        return False

    def _log_parts(self, pieces: list[LogPiece]) -> Iterator[LogPart]:
        together: list[LogPiece] = []
        size = 0
        for piece in pieces:
            own = max(0, min(piece.end, max(piece.known_end, piece.start)) - piece.start)
            if together and size + own > self.options.split_bytes:
                yield LogPart(self.store.place, tuple(together), self.store.queue_root)
                together, size = [], 0
            together.append(piece)
            size += own
        if together:
            yield LogPart(self.store.place, tuple(together), self.store.queue_root)

    # --- by entries --------------------------------------------------------------------------

    def _selected_queues(self) -> list[QueueEntries] | None:
        """The consume queues that hold all that is selected; None if that is not known."""
        topics = self.selection.topics
        if self.options.use == COMMIT_LOG or self.store.queue_root is None:
            return None
        if self.options.use == AUTO and topics is None:
            return None
        queues = self.log.queues(None if topics is None else sorted(topics))
        found = {queue.topic for queue in queues}
        if self.options.use == AUTO and topics is not None and not topics <= found:
            return None
        ids = self.selection.queue_ids
        return [queue for queue in queues if ids is None or queue.queue_id in ids]

    def _follows_entries(self, queues: Sequence[QueueEntries], segments: Sequence[File]) -> bool:
        if self.options.use == CONSUME_QUEUE:
            return True
        if any(is_light(queue.topic) for queue in queues):
            # In the log these messages have other topics.
            return True
        whole = sum(segment.size for segment in segments)
        return self._bytes(self._ranges(queues, segments)) < whole * ENTRIES_SHARE_MAX

    def _ranges(
        self, queues: Sequence[QueueEntries], segments: Sequence[File]
    ) -> list[_QueueRange]:
        """The entries of each queue for these segments."""
        start = max(segments[0].start, self.selection.start_offset or 0)
        end = self.selection.end_offset
        if end is None and segments[-1] is not self.store.segments[-1]:
            end = segments[-1].end
        found = []
        for queue in queues:
            first = queue.search(start)
            last = queue.end() if end is None else queue.search(end)
            if first < last:
                found.append(_QueueRange(queue, first, last))
        return found

    def _bytes(self, ranges: Sequence[_QueueRange]) -> int:
        """The bytes of these entries' records, judged by a record in the middle of each queue."""
        total = 0
        for one in ranges:
            entry = one.queue.entry((one.first + one.end) // 2)
            total += (one.end - one.first) * (entry[1] if entry else 0)
        return total

    def _entry_parts(
        self, queues: Sequence[QueueEntries], segments: Sequence[File]
    ) -> Iterator[EntriesPart]:
        ranges = self._ranges(queues, segments)
        if not ranges:
            return
        count = max(1, -(-self._bytes(ranges) // self.options.split_bytes))
        largest = max(ranges, key=lambda one: one.end - one.first)
        length = largest.end - largest.first
        bounds: list[int] = []
        for number in range(1, count):
            entry = largest.queue.entry(largest.first + length * number // count)
            if entry is not None and entry[0] > (bounds[-1] if bounds else 0):
                bounds.append(entry[0])
        firsts = [one.first for one in ranges]
        log_start = segments[0].start
        for bound in [*bounds, None]:
            ends = [
                one.end if bound is None else min(one.end, max(first, one.queue.search(bound)))
                for one, first in zip(ranges, firsts, strict=True)
            ]
            entries = tuple(
                _range_of(one.queue, first, end)
                for one, first, end in zip(ranges, firsts, ends, strict=True)
                if first < end
            )
            if entries:
                near = tuple(
                    segment
                    for segment in self.store.segments
                    if segment.end > log_start and (bound is None or segment.start < bound)
                )
                yield EntriesPart(self.store.place, entries, near)
            firsts = ends
            log_start = bound or 0


class _QueueRange(NamedTuple):
    queue: QueueEntries
    first: int
    end: int


def _range_of(queue: QueueEntries, first: int, end: int) -> EntryRange:
    """The range, with only the files that hold its entries."""
    files = []
    passed = 0
    before = 0
    for file in queue.files:
        count = file.size // ENTRY_BYTES
        if passed + count > first and passed < end:
            files.append(file)
        elif not files:
            before += count
        passed += count
    return EntryRange(queue.topic, queue.queue_id, tuple(files), first - before, end - before)
