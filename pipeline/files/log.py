"""What is known of a commit log before it is walked: its first times, its record starts, its end.

A log tells where it ends only by what comes last: zeros, or what a crash left. So three marks are
made out here, from the least trusted to the most:

- behind the last segment that begins with anything, there are only segments made ahead of need;
- up to the largest record end that any consume queue entry names, the log was whole once: what is
  no record there is damage. A store that was left open (a broker runs on it, or crashed) is read up
  to there and no further, because bytes behind may be half written;
- of a store that ended in order, records that follow on from there are read as well, up to the
  first thing that is none.

Without consume queues the last segment is read up to the first thing that is no record and that
none follows within LOOK_AHEAD_BYTES.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Final, NamedTuple, TypeVar

from aerobee.pipeline.decode.record_starts import MAGICS
from aerobee.pipeline.errors import StoreReadError
from aerobee.pipeline.files.directory import File, Place, Reader, Store
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

#: More than the largest record there is by default (4 MiB and 64 KiB).
LOOK_AHEAD_BYTES: Final = 16 << 20
_HEAD_BYTES: Final = 112
# A DLedger entry: its own magic (1), size, index, term, position, channel, three checksums and
# lengths are 48 bytes; the message follows.
_DLEDGER_HEADER_BYTES: Final = 48
# How many queues are asked for a place to enter the log at.
_QUEUES_ASKED: Final = 6
# Requests in flight where each is a round trip.
_REMOTE_THREADS: Final = 16

A = TypeVar("A")
B = TypeVar("B")


class Head(NamedTuple):
    """The beginning of a segment: the first record's store time in ms if there is a record, and
    whether there is nothing at all."""

    time_ms: int | None
    is_empty: bool


class End(NamedTuple):
    """Where the log ends: records below `known` were there once, whatever is there now; reading
    stops at `at` in any case; `look_ahead` bytes are searched behind `known`."""

    known: int
    at: int
    look_ahead: int


class Log:
    """The commit log of one store, as far as planning needs to know it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.place = store.place
        self._heads: dict[int, Head] = {}
        if store.segments:
            self._refuse_dledger(store.segments[0])

    def heads(self, segments: Iterable[File]) -> list[Head]:
        """The beginnings of these segments, each read once."""
        segments = list(segments)
        new = [segment for segment in segments if segment.start not in self._heads]
        for segment, head in zip(new, in_parallel(self.place, self._read_head, new), strict=True):
            self._heads[segment.start] = head
        return [self._heads[segment.start] for segment in segments]

    @cached_property
    def end(self) -> End:
        """Reads the ends of all consume queues, and the beginnings of the last segments."""
        segments = self.store.segments
        named = min(self.entry_end, self.store.log_end)
        tail = len(segments) - 1
        while tail > 0 and segments[tail].start >= named and self.heads([segments[tail]])[0][1]:
            tail -= 1
        if not named:
            return End(segments[tail].start, segments[tail].end, LOOK_AHEAD_BYTES)
        if self.store.was_left_open:
            return End(named, named, 0)
        return End(max(named, segments[tail].start), segments[tail].end, 0)

    @cached_property
    def entry_end(self) -> int:
        """The largest record end that any consume queue entry names; 0 without any."""
        queues = in_parallel(self.place, QueueEntries.record_end, self.queues())
        return max(queues, default=0)

    def queues(self, topics: Iterable[str] | None = None) -> list[QueueEntries]:
        """The consume queues (of these topics); those with most entries first."""
        listed = self.store.queues(topics)
        found = [QueueEntries(self.place, topic, number, files) for (topic, number), files in
                 listed.items()]  # fmt: skip
        return sorted(found, key=lambda queue: (-queue.size_bytes, queue.topic, queue.queue_id))

    def is_record(self, segment: File, log_offset: int) -> bool:
        """Whether something with a record's size, magic and own place stands there."""
        with self.place.open(segment.path) as reader:
            return _is_record(reader, segment, log_offset)

    def split_points(self, segment: File, step: int, queues: list[QueueEntries]) -> Iterator[int]:
        """Record starts within a segment, about `step` bytes from each other, named by entries."""
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

    def _read_head(self, segment: File) -> Head:
        with self.place.open(segment.path) as reader:
            head = reader.read(0, _HEAD_BYTES)
        if len(head) < _HEAD_BYTES:
            return Head(None, not any(head))
        _, magic = SIZE_AND_MAGIC.unpack_from(head)
        own = int.from_bytes(head[LOG_OFFSET_POSITION : LOG_OFFSET_POSITION + 8], "big")
        if magic not in MAGICS or own != segment.start:
            return Head(None, not any(head[:BLANK_BYTES]))
        sys_flag = int.from_bytes(head[SYS_FLAG_POSITION : SYS_FLAG_POSITION + 4], "big")
        at = store_timestamp_position(sys_flag)
        return Head(int.from_bytes(head[at : at + 8], "big", signed=True), False)

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
    reader: Reader, segment: File, target: int, limit: int, asked: list[QueueEntries]
) -> int | None:
    for queue in asked[:_QUEUES_ASKED]:
        entry = queue.entry(queue.search(target))
        if entry is None or not target <= entry[0] < limit:
            continue
        if _is_record(reader, segment, entry[0]):
            # A queue that names a place here will name the next one as well.
            asked.remove(queue)
            asked.insert(0, queue)
            return entry[0]
    return None


def _is_record(reader: Reader, segment: File, log_offset: int) -> bool:
    head = reader.read(log_offset - segment.start, _HEAD_BYTES)
    if len(head) < MIN_RECORD_BYTES:
        return False
    size, magic = SIZE_AND_MAGIC.unpack_from(head)
    own = int.from_bytes(head[LOG_OFFSET_POSITION : LOG_OFFSET_POSITION + 8], "big")
    fits = MIN_RECORD_BYTES <= size <= segment.end - log_offset
    return fits and magic in MAGICS and own == log_offset


def in_parallel(place: Place, work: Callable[[A], B], items: list[A]) -> list[B]:
    """The work done for each item, several at once where each is a round trip."""
    if place.is_local or len(items) < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(_REMOTE_THREADS) as pool:
        return list(pool.map(work, items))
