"""The outline of a commit log, before it is scanned: its first times, its record starts, its end.

A log shows its end only by what comes last: zeros, or what a crash left. So three marks are looked
for here:

- Behind the last segment that begins with anything, segments were only made ahead of need.
- Up to the largest record end that any consume queue entry names, the log was whole once, and bytes
  there that are no record are damage. A store that was left open (its broker runs, or crashed) is
  read up to this mark only, because bytes after it may be half written.
- A store that was closed in order is read further, as long as records follow each other.

Without consume queues the last segment is read up to the first bytes that are no record and are
followed by no record within LOOK_AHEAD_BYTES.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Final, NamedTuple, TypeVar

from aerobee.pipeline.decode.record_starts import MAGICS
from aerobee.pipeline.errors import StoreReadError
from aerobee.pipeline.files.directory import File, FileReader, FileSystemPlace, Store
from aerobee.pipeline.files.entries import QueueEntries
from aerobee.protocol.message.record_layout import (
    BLANK_BYTES,
    LOG_OFFSET_POSITION,
    MESSAGE_MAGIC,
    MIN_RECORD_BYTES,
    SIZE_AND_MAGIC,
    SYS_FLAG_POSITION,
    store_timestamp_position,
)

#: This is more than the largest record of a broker with default settings (4 MiB and 64 KiB).
LOOK_AHEAD_BYTES: Final = 16 << 20
_HEAD_BYTES: Final = 112
# A DLedger entry: its own magic (1), size, index, term, position, channel, three checksums and
# lengths are 48 bytes; the message follows.
_DLEDGER_HEADER_BYTES: Final = 48
# So many queues at most are asked for a place where the log can be entered.
_QUEUES_ASKED: Final = 6
# Requests in flight at once where each costs a round trip.
_REMOTE_THREADS: Final = 16

A = TypeVar("A")
B = TypeVar("B")


class SegmentHead(NamedTuple):
    """The beginning of a segment: the store time in ms of its first record, None without a record;
    and whether it holds only zeros."""

    time_ms: int | None
    is_empty: bool


class LogEnd(NamedTuple):
    """The end of the log. Below `known` the log was whole once, so anything else there is damage;
    reading stops at `at` in any case; `look_ahead` bytes after `known` are searched for a record.
    """

    known: int
    at: int
    look_ahead: int


class LogOutline:
    """The commit log of a store, as far as planning needs to know it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.place = store.place
        self._heads: dict[int, SegmentHead] = {}
        if store.segments:
            self._refuse_dledger(store.segments[0])

    def heads(self, segments: Iterable[File]) -> list[SegmentHead]:
        """The beginnings of these segments; each is read once."""
        segments = list(segments)
        new = [segment for segment in segments if segment.start not in self._heads]
        for segment, head in zip(new, in_parallel(self.place, self._read_head, new), strict=True):
            self._heads[segment.start] = head
        return [self._heads[segment.start] for segment in segments]

    @cached_property
    def end(self) -> LogEnd:
        """Reads the ends of all consume queues, and the beginnings of the last segments."""
        segments = self.store.segments
        named = min(self.entry_end, self.store.log_end)
        tail = len(segments) - 1
        while tail > 0 and segments[tail].start >= named and self.heads([segments[tail]])[0][1]:
            tail -= 1
        if not named:
            return LogEnd(segments[tail].start, segments[tail].end, LOOK_AHEAD_BYTES)
        if self.store.was_left_open:
            return LogEnd(named, named, 0)
        return LogEnd(max(named, segments[tail].start), segments[tail].end, 0)

    @cached_property
    def entry_end(self) -> int:
        """The largest record end that any consume queue entry names; 0 if no entry names one."""
        queues = in_parallel(self.place, QueueEntries.record_end, self.queues())
        return max(queues, default=0)

    def queues(self, topics: Iterable[str] | None = None) -> list[QueueEntries]:
        """The consume queues (of these topics), the longest first."""
        listed = self.store.queues(topics)
        found = [QueueEntries(self.place, topic, number, files) for (topic, number), files in
                 listed.items()]  # fmt: skip
        return sorted(found, key=lambda queue: (-queue.size_bytes, queue.topic, queue.queue_id))

    def is_record(self, segment: File, log_offset: int) -> bool:
        """Whether a record begins there, to judge by its size, its magic and its own place."""
        with self.place.open(segment.path) as reader:
            return _is_record(reader, segment, log_offset)

    def split_points(self, segment: File, step: int, queues: list[QueueEntries]) -> Iterator[int]:
        """Record starts in a segment that entries name, about `step` bytes from each other."""
        target = segment.start + step
        asked = queues[:]
        if not asked or target >= segment.end - step // 4:
            return
        with self.place.open(segment.path) as reader:
            while target < segment.end - step // 4:
                found = _split_point(
                    reader, segment, target, min(target + step, segment.end), asked
                )
                if found is not None:
                    yield found
                target = max(target, found or 0) + step

    def _read_head(self, segment: File) -> SegmentHead:
        with self.place.open(segment.path) as reader:
            head = reader.read(0, _HEAD_BYTES)
        if len(head) < _HEAD_BYTES:
            return SegmentHead(None, not any(head))
        _, magic = SIZE_AND_MAGIC.unpack_from(head)
        own = int.from_bytes(head[LOG_OFFSET_POSITION : LOG_OFFSET_POSITION + 8], "big")
        if magic not in MAGICS or own != segment.start:
            return SegmentHead(None, not any(head[:BLANK_BYTES]))
        sys_flag = int.from_bytes(head[SYS_FLAG_POSITION : SYS_FLAG_POSITION + 4], "big")
        at = store_timestamp_position(sys_flag)
        return SegmentHead(int.from_bytes(head[at : at + 8], "big", signed=True), False)

    def _refuse_dledger(self, segment: File) -> None:
        with self.place.open(segment.path) as reader:
            head = reader.read(0, _DLEDGER_HEADER_BYTES + 8)
        inner = head[_DLEDGER_HEADER_BYTES + 4 :]
        if head[:4] == b"\0\0\0\1" and inner == MESSAGE_MAGIC.to_bytes(4, "big"):
            raise StoreReadError(
                f"{segment.path} is a DLedger log: its records are wrapped in entries of another "
                "format, which is not supported"
            )


def _split_point(
    reader: FileReader, segment: File, target: int, limit: int, asked: list[QueueEntries]
) -> int | None:
    for queue in asked[:_QUEUES_ASKED]:
        entry = queue.entry(queue.search(target))
        if entry is None or not target <= entry[0] < limit:
            continue
        if _is_record(reader, segment, entry[0]):
            # A queue that names a place here will name the next place as well.
            asked.remove(queue)
            asked.insert(0, queue)
            return entry[0]
    return None


def _is_record(reader: FileReader, segment: File, log_offset: int) -> bool:
    head = reader.read(log_offset - segment.start, _HEAD_BYTES)
    if len(head) < MIN_RECORD_BYTES:
        return False
    size, magic = SIZE_AND_MAGIC.unpack_from(head)
    own = int.from_bytes(head[LOG_OFFSET_POSITION : LOG_OFFSET_POSITION + 8], "big")
    fits = MIN_RECORD_BYTES <= size <= segment.end - log_offset
    return fits and magic in MAGICS and own == log_offset


def in_parallel(place: FileSystemPlace, work: Callable[[A], B], items: list[A]) -> list[B]:
    """Do the work for each item; several at once where each costs a round trip."""
    if place.is_local or len(items) < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(_REMOTE_THREADS) as pool:
        return list(pool.map(work, items))
