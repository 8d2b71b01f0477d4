"""Finds where a piece of the log goes on after damage, by the rule of the store.

The rule is `store/log/scan/resynchronise.py`, so that a Spark job reads the same records of a
damaged log as recovery, scrub and verify. It asks for boundaries of records, which consume queues
name; these are listed only when damage is met.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from functools import cached_property
from typing import Any, ClassVar, Final, TypeVar

from aerobee.pipeline.decode.record_starts import MESSAGE_MAGIC_V2
from aerobee.pipeline.files.directory import File, FileSystemPlace, list_queues
from aerobee.pipeline.files.entries import ENTRY, ENTRY_BYTES, QueueEntries
from aerobee.pipeline.files.store_plan import LogPart, LogPiece, Read
from aerobee.protocol.errors import CorruptRecord
from aerobee.protocol.message.record_check import CHECK_NOTHING, RECORD, RecordHead
from aerobee.protocol.message.record_layout import MESSAGE_MAGIC, SIZE_AND_MAGIC
from aerobee.store.log.scan.boundaries import Boundaries, named_back
from aerobee.store.log.scan.resynchronise import Resynchroniser
from aerobee.store.log.scan.segment_reader import SegmentReader
from aerobee.store.queues.queue_view import QueueView

T = TypeVar("T")

_WINDOW_BYTES: Final = 1 << 20


class BehindDamage:
    """The rule, for one piece of the log."""

    def __init__(self, part: LogPart, piece: LogPiece, read: Read) -> None:
        self._part = part
        self._piece = piece
        self._reader = _PieceReader(piece, read)

    def has_whole(self, log_offset: int, base: int, data: bytes | memoryview) -> bool:
        """Whether all lengths of the record there agree; `data` holds the log from `base` on."""
        self._reader.look_at(base, data)
        return self._reader.claimed_sizes(log_offset, self._reader.end).agree

    def records(self, bad: int, end: int, base: int, data: bytes | memoryview) -> list[int]:
        """The records after a bad record and before `end`; `data` holds the log from `base` on."""
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
        """The first record after `bad`, which is no record; `limit` if no record begins before
        it."""
        is_content_damaged = self._reader.claimed_sizes(bad, limit).agree
        if is_content_damaged or self._part.queue_root is not None:
            limit = _finished(self._resynchroniser.below_floor(bad, limit))
        # A damaged size may lead to another record by chance, and pass over sound ones in between.
        return limit if is_content_damaged else self.anything_sound(bad, limit)

    def anything_sound(self, bad: int, limit: int) -> int:
        """The first sound bytes after `bad`, which is no record; `limit` without sound bytes."""
        self._reader.search_end = limit
        following = self._resynchroniser.anything_sound(bad)
        return limit if following is None else min(following, limit)

    @cached_property
    def _resynchroniser(self) -> Resynchroniser:
        boundaries = Boundaries(self._queues, self._names_back)
        if self._part.queue_root is not None:
            return Resynchroniser(self._reader, boundaries, CHECK_NOTHING)
        # No queue names boundaries, so each sound record is believed: a reader of a backup must not
        # lose a message because its consume queues are missing.
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
    """The result of a rule; it works in small steps, as a running broker needs it."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]


class _QueueOfFiles(QueueView):
    """A consume queue, in the form that the store's rules read."""

    __slots__ = ("_base", "_entries", "max_offset", "queue_id", "segment_bytes", "topic")

    def __init__(
        self, place: FileSystemPlace, topic: str, queue_id: int, files: tuple[File, ...]
    ) -> None:
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
        # In the byte order of files, which numpy has turned round.
        return self._entries.read(first - self._base, end - self._base).astype(ENTRY).tobytes()


class _PieceReader(SegmentReader):
    """The segment of a piece, in the form that the store's rules read; 5.x's records count, too."""

    topic_lengths: ClassVar = {MESSAGE_MAGIC: 1, MESSAGE_MAGIC_V2: 2}
    magic_bytes = MESSAGE_MAGIC.to_bytes(4, "big")[:3]

    def __init__(self, piece: LogPiece, read: Read) -> None:
        super().__init__(piece.path, piece.file_start, piece.file_bytes, piece.file_bytes)
        self._read = read
        self._window: bytes | memoryview = b""
        self._window_start = 0
        #: The log offset up to which the rule looks for anything sound.
        self.search_end = piece.end

    def look_at(self, log_offset: int, data: bytes | memoryview) -> None:
        """Take these bytes of the log, which were read already."""
        self._window, self._window_start = data, log_offset - self.start

    def at(self, position: int, least: int) -> tuple[bytes | memoryview, int]:
        index = position - self._window_start
        if index < 0 or index + least > len(self._window):
            count = min(max(least, _WINDOW_BYTES), self.limit - position)
            self._window = self._read(self.start + position, count)
            self._window_start, index = position, 0
        return self._window, index

    def written_end(self, position: int) -> int:
        """The position after the last byte before `search_end` that is not zero."""
        end = self.search_end - self.start
        while end > position:
            first = max(position, end - _WINDOW_BYTES)
            buffer, index = self.at(first, end - first)
            rest = bytes(buffer[index : index + end - first]).rstrip(b"\0")
            if rest:
                return first + len(rest)
            end = first
        return position

    def find(self, wanted: bytes, position: int, end: int) -> tuple[int | None, int]:
        buffer, index = self.at(position, min(len(wanted), self.limit - position))
        match = re.compile(re.escape(wanted)).search(buffer, index)
        if match is None:
            # A match may lie across the end of the window.
            return None, position + max(1, len(buffer) - index - len(wanted) + 1)
        found = position + match.start() - index
        return (found, found + 1) if found < end else (None, end)

    def head(self, log_offset: int, check_crc: int) -> RecordHead:
        claimed = self.claimed_sizes(log_offset, self.end)
        if claimed.agree:
            buffer, index = self.at(log_offset - self.start, SIZE_AND_MAGIC.size)
            if SIZE_AND_MAGIC.unpack_from(buffer, index)[1] == MESSAGE_MAGIC_V2:
                return RecordHead(RECORD, claimed.by_field)
        return super().head(log_offset, check_crc)
