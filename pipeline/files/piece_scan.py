"""Scans one piece of a commit log in chunks: where its records start, and what is no record.

Chains of records are followed many records at a time, in numpy (`record_starts.py`). Where a chain
breaks, at a damaged size word or magic or at the end of the data, the store's own rule says where
the log goes on (`store/scan/resynchronise.py`), so that a job of Spark reads and reports of a
damaged log what recovery, scrub and verify do. The boundaries that the rule asks for are named by
the store's consume queues, which are listed when damage is met and not before.

Nothing is decoded here; what comes out are positions whose size and magic have been looked at.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from aerobee.pipeline.decode.decode import gather
from aerobee.pipeline.decode.record_starts import MESSAGE_MAGIC_V2, record_starts
from aerobee.pipeline.files.directory import File, Place, list_queues
from aerobee.pipeline.files.entries import ENTRY, ENTRY_BYTES, QueueEntries
from aerobee.pipeline.files.plan import LogPart, Piece
from aerobee.protocol.errors import CorruptRecord
from aerobee.protocol.message.record_check import BLANK, CHECK_NOTHING, RECORD, RecordHead
from aerobee.protocol.message.record_layout import (
    HEADS,
    LOG_OFFSET_POSITION,
    MAGIC_POSITION,
    MIN_RECORD_BYTES,
    SIZE_AND_MAGIC,
    SYS_FLAG_POSITION,
)
from aerobee.store.queues.queue_view import QueueView
from aerobee.store.scan.boundaries import Boundaries, named_back
from aerobee.store.scan.resynchronise import Resynchroniser
from aerobee.store.scan.segment_reader import ClaimedSizes, SegmentReader

T = TypeVar("T")

#: Bytes read at once: some ten thousand records, and they stay in the processor's cache.
CHUNK_BYTES: Final = 4 << 20
#: The same where each read is a round trip.
REMOTE_CHUNK_BYTES: Final = 16 << 20

_ANY_MAGIC = re.compile(b"\xda\xa3\x20[\xa7\xab]")
_MAGIC_BYTES: Final = 4
_HEAD_BYTES: Final = HEADS[0x30].size
_WINDOW_BYTES: Final = 1 << 20


class Damage(NamedTuple):
    """What is no record: the log offset, and what is there instead."""

    log_offset: int
    reason: str


class Chunk(NamedTuple):
    """Bytes of the log from `log_offset` on, positions of records in them, damage found, and the
    log offset where the scan goes on."""

    data: bytes | memoryview
    log_offset: int
    starts: np.ndarray
    damage: list[Damage]
    next_offset: int


#: Gives `count` bytes of the log from an offset on, all of them or an error.
Read = Callable[[int, int], bytes | memoryview]


class PieceScan:
    """The scan of one piece; `chunks` once."""

    def __init__(self, part: LogPart, piece: Piece, read: Read, chunk_bytes: int) -> None:
        self._part = part
        self._piece = piece
        self._read = read
        self._chunk_bytes = chunk_bytes
        self._file_end = piece.file_start + piece.file_bytes
        self._reader = _PieceReader(piece, read)

    def chunks(self) -> Iterator[Chunk]:
        """Everything there is, in the order of the log."""
        piece = self._piece
        position = piece.start
        needed = 0
        while position < piece.end:
            # The piece's end is a record's start, or somewhere in a record that then is needed.
            base = position
            count = max(needed, min(self._chunk_bytes, piece.end - base))
            data = self._read(base, min(count, self._file_end - base))
            starts, position = self._starts(data, base)
            needed = 0
            damage: list[Damage] = []
            if position < piece.end:
                self._reader.look_at(base, data)
                last = base + int(starts[-1]) if len(starts) else position
                # Where a size word is damaged, what it leads to says nothing.
                if last < position and not self._reader.claimed_sizes(last, self._file_end).agree:
                    starts, position = starts[:-1], last
                else:
                    needed = self._rest_of_record(data, base, position)
                if not needed:
                    damage, position = self._go_on(position)
            yield Chunk(data, base, starts, damage, position)

    def between(self, chunk: Chunk, bad: int, end: int) -> list[int]:
        """Positions of the records behind a bad one at position `bad` and before `end`: its size
        may be what is wrong, and have led over them."""
        self._reader.look_at(chunk.log_offset, chunk.data)
        base = chunk.log_offset
        found: list[int] = []
        position = self._behind(base + bad, base + end)
        while position < base + end:
            claimed = self._reader.claimed_sizes(position, base + end)
            if claimed.agree:
                found.append(position - base)
                position += claimed.by_field
            else:
                position = self._behind(position, base + end)
        return found

    def _starts(self, data: bytes | memoryview, base: int) -> tuple[np.ndarray, int]:
        """Records that name their own place, and the log offset behind the last of them."""
        found = record_starts(data, 0, len(data))
        starts, stop = found.positions, found.end
        before_end = starts < self._piece.end - base
        if not before_end.all():
            stop = int(starts[~before_end][0])
            starts = starts[before_end]
        own = gather(data, starts + LOG_OFFSET_POSITION, ">i8") == starts + base
        if not own.all():
            wrong = int(np.argmin(own))
            stop = int(starts[wrong])
            starts = starts[:wrong]
        return starts, base + stop

    def _rest_of_record(self, data: bytes | memoryview, base: int, log_offset: int) -> int:
        """How much to read from a record on that is not whole in the data; 0 if there is none."""
        left, in_file = len(data) - (log_offset - base), self._file_end - log_offset
        if left < min(_HEAD_BYTES, in_file):
            return _HEAD_BYTES
        claimed = self._reader.claimed_sizes(log_offset, self._file_end)
        return claimed.by_field if claimed.agree else 0

    def _go_on(self, bad: int) -> tuple[list[Damage], int]:
        """The damage at `bad`, if it is any, and where the log goes on behind it."""
        piece = self._piece
        try:
            if self._reader.head(bad, CHECK_NOTHING).kind == BLANK:
                return [], piece.end
        except CorruptRecord:
            pass
        if bad >= piece.known_end:
            # Records may go on here, or a crash has left what is not one.
            limit = min(piece.end, bad + piece.look_ahead)
            following = self._anything_sound(bad, limit)
            return ([], piece.end) if following == limit else ([_damage(bad, following)], following)
        limit = min(piece.known_end, piece.end)
        following = self._behind(bad, limit)
        if following < limit:
            return [_damage(bad, following)], following
        return [Damage(bad, f"is no record, nor is anything behind it up to {limit}")], limit

    def _behind(self, bad: int, limit: int) -> int:
        """Where records go on behind what is none; `limit` if they do not before it."""
        is_content_damaged = self._reader.claimed_sizes(bad, limit).agree
        if is_content_damaged or self._part.queue_root is not None:
            limit = _finished(self._resynchroniser.below_floor(bad, limit))
        # A damaged size may lead to another record by chance, over sound ones in between.
        return limit if is_content_damaged else self._anything_sound(bad, limit)

    def _anything_sound(self, bad: int, limit: int) -> int:
        self._reader.window_bytes = _WINDOW_BYTES
        self._reader.search_end = limit
        following = self._resynchroniser.anything_sound(bad)
        return limit if following is None else min(following, limit)

    @cached_property
    def _resynchroniser(self) -> Resynchroniser:
        boundaries = Boundaries(self._queues, self._names_back)
        if self._part.queue_root is not None:
            return Resynchroniser(self._reader, boundaries, CHECK_NOTHING)
        # Nothing says where records begin, so each sound one is believed: a reader of a backup must
        # not lose a message for want of its consume queues.
        return Resynchroniser(self._reader, boundaries, CHECK_NOTHING, long_chain=1)

    def _queues(self) -> list[QueueView]:
        place, root = self._part.place, self._part.queue_root
        if root is None:
            return []
        found = list_queues(place, root)
        return [_QueueOfFiles(place, *key, files) for key, files in found.items()]

    def _names_back(self, queue: QueueView, offset: int, log_offset: int, size: int) -> bool:
        if not self._piece.file_start <= log_offset < self._file_end:
            return False
        try:
            named_back(self._reader, queue, offset, log_offset, size)
        except CorruptRecord:
            return False
        return True


def _damage(bad: int, following: int) -> Damage:
    return Damage(bad, f"is no record; the next one is at {following}")


def _finished(steps: Generator[Any, None, T]) -> T:
    """The result of a rule, which works in small steps for the sake of a running broker."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]


class _QueueOfFiles(QueueView):
    """A consume queue as the store's rules read it."""

    __slots__ = ("_base", "_entries", "max_offset", "queue_id", "segment_bytes", "topic")

    def __init__(self, place: Place, topic: str, queue_id: int, files: tuple[File, ...]) -> None:
        self.topic, self.queue_id = topic, queue_id
        self.segment_bytes = files[0].size
        self._entries = QueueEntries(place, topic, queue_id, files)
        self._base = files[0].start // ENTRY_BYTES
        self.max_offset = self._base + self._entries.end()

    @property
    def first_offset(self) -> int:
        return self._base

    def read_entries(self, first: int, count: int) -> bytes:
        end = min(first + count, self.max_offset)
        # In the byte order of files; numpy has turned it round.
        return self._entries.read(first - self._base, end - self._base).astype(ENTRY).tobytes()


class _PieceReader(SegmentReader):
    """A piece's segment as the store's rules read it; records of 5.x are records, too."""

    def __init__(self, piece: Piece, read: Read) -> None:
        super().__init__(piece.path, piece.file_start, piece.file_bytes, piece.file_bytes)
        self._read = read
        self._window: bytes | memoryview = b""
        self._window_start = 0
        #: How much is read at once: more than is asked for only where damage was met.
        self.window_bytes = _HEAD_BYTES
        #: Up to which log offset anything sound is looked for.
        self.search_end = piece.end

    def look_at(self, log_offset: int, data: bytes | memoryview) -> None:
        """These bytes are at hand."""
        self._window, self._window_start = data, log_offset - self.start

    def at(self, position: int, least: int) -> tuple[bytes | memoryview, int]:
        index = position - self._window_start
        if index < 0 or index + least > len(self._window):
            count = min(max(least, self.window_bytes), self.limit - position)
            self._window = self._read(self.start + position, count)
            self._window_start, index = position, 0
        return self._window, index

    def written_end(self, position: int) -> int:
        """Behind the last byte up to `search_end` that is not zero."""
        end = self.search_end - self.start
        while end > position:
            first = max(position, end - _WINDOW_BYTES)
            buffer, index = self.at(first, end - first)
            rest = bytes(buffer[index : index + end - first]).rstrip(b"\0")
            if rest:
                return first + len(rest)
            end = first
        return position

    def magics(self, start: int, end: int) -> Iterator[int | None]:
        position = start - self.start + MAGIC_POSITION
        stop = min(end - self.start + MAGIC_POSITION, self.limit)
        while position < stop:
            buffer, index = self.at(position, min(_MAGIC_BYTES, self.limit - position))
            match = _ANY_MAGIC.search(buffer, index)
            if match is None:
                # It may lie across the end of the window.
                position += max(1, len(buffer) - index - _MAGIC_BYTES + 1)
                yield None
                continue
            found = position + match.start() - index
            if found >= stop:
                return
            yield self.start + found - MAGIC_POSITION
            position = found + 1

    def head(self, log_offset: int, check_crc: int) -> RecordHead:
        size = self._size_of_v2(log_offset, self.end)
        return RecordHead(RECORD, size) if size else super().head(log_offset, check_crc)

    def claimed_sizes(self, log_offset: int, end: int) -> ClaimedSizes:
        size = self._size_of_v2(log_offset, end)
        return ClaimedSizes(size, size, True) if size else super().claimed_sizes(log_offset, end)

    def _size_of_v2(self, log_offset: int, end: int) -> int:
        """The size of a record whose topic has a length of two bytes; 0 if none is there."""
        position, limit = log_offset - self.start, min(end - self.start, self.limit)
        if limit - position < MIN_RECORD_BYTES:
            return 0
        buffer, index = self.at(position, min(_HEAD_BYTES, limit - position))
        size, magic = SIZE_AND_MAGIC.unpack_from(buffer, index)
        head = HEADS[buffer[index + SYS_FLAG_POSITION + 3] & 0x30]
        if magic != MESSAGE_MAGIC_V2 or not head.size < size <= limit - position:
            return 0
        fields = head.unpack_from(buffer, index)
        topic_at = position + head.size + fields[14]
        if fields[6] != log_offset or fields[14] < 0 or topic_at + 2 > limit:
            return 0
        properties_at = topic_at + 4 + self._number(topic_at, 2)
        if properties_at > limit:
            return 0
        whole = properties_at + self._number(properties_at - 2, 2) == position + size
        return size if whole else 0
