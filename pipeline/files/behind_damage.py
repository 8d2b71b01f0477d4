"""Where a piece of the log goes on behind damage: the store's rule, asked by the reader of files.

The rule is `store/scan/resynchronise.py`, so that a job of Spark reads and reports of a damaged log
what recovery, scrub and verify do. The boundaries that it asks for are named by the store's consume
queues, which are listed when damage is met and not before.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from functools import cached_property
from typing import Any, Final, TypeVar

from aerobee.pipeline.decode.record_starts import MESSAGE_MAGIC_V2
from aerobee.pipeline.files.directory import File, Place, list_queues
from aerobee.pipeline.files.entries import ENTRY, ENTRY_BYTES, QueueEntries
from aerobee.pipeline.files.piece_scan import Read
from aerobee.pipeline.files.plan import LogPart, Piece
from aerobee.protocol.errors import CorruptRecord
from aerobee.protocol.message.record_check import CHECK_NOTHING, RECORD, RecordHead
from aerobee.protocol.message.record_layout import (
    HEADS,
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

_ANY_MAGIC = re.compile(b"\xda\xa3\x20[\xa7\xab]")
_MAGIC_BYTES: Final = 4
_HEAD_BYTES: Final = HEADS[0x30].size
_WINDOW_BYTES: Final = 1 << 20


class BehindDamage:
    """The rule for one piece."""

    def __init__(self, part: LogPart, piece: Piece, read: Read) -> None:
        self._part = part
        self._piece = piece
        self._reader = _PieceReader(piece, read)

    def has_whole(self, log_offset: int, base: int, data: bytes | memoryview) -> bool:
        """Whether all lengths of the record there agree; `data` from `base` on is at hand."""
        self._reader.look_at(base, data)
        return self._reader.claimed_sizes(log_offset, self._reader.end).agree

    def records(self, bad: int, end: int, base: int, data: bytes | memoryview) -> list[int]:
        """The records behind a bad one and before `end`; `data` from `base` on is at hand."""
        self._reader.look_at(base, data)
        found: list[int] = []
        log_offset = self.next(bad, end)
        while log_offset < end:
            claimed = self._reader.claimed_sizes(log_offset, end)
            if claimed.agree:
                found.append(log_offset)
                log_offset += claimed.by_field
            else:
                log_offset = self.next(log_offset, end)
        return found

    def next(self, bad: int, limit: int) -> int:
        """Where records go on behind what is none; `limit` if they do not before it."""
        is_content_damaged = self._reader.claimed_sizes(bad, limit).agree
        if is_content_damaged or self._part.queue_root is not None:
            limit = _finished(self._resynchroniser.below_floor(bad, limit))
        # A damaged size may lead to another record by chance, over sound ones in between.
        return limit if is_content_damaged else self.anything_sound(bad, limit)

    def anything_sound(self, bad: int, limit: int) -> int:
        """Where anything sound begins behind what is no record; `limit` if nothing does."""
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
        if not self._piece.file_start <= log_offset < self._reader.end:
            return False
        try:
            named_back(self._reader, queue, offset, log_offset, size)
        except CorruptRecord:
            return False
        return True


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
        #: Up to which log offset anything sound is looked for.
        self.search_end = piece.end

    def look_at(self, log_offset: int, data: bytes | memoryview) -> None:
        """These bytes are at hand."""
        self._window, self._window_start = data, log_offset - self.start

    def at(self, position: int, least: int) -> tuple[bytes | memoryview, int]:
        index = position - self._window_start
        if index < 0 or index + least > len(self._window):
            count = min(max(least, _WINDOW_BYTES), self.limit - position)
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
