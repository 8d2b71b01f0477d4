"""Reads the records of one segment, whatever state it is in, through one of two kinds of bytes.

A mapped segment is read at any place (`MappedReader`: recovery, rebuild). A file is read a window
at a time, past places that the disk refuses (`FileReader`: audit, scrub, tools). All callers ask a
`SegmentReader` and do not know which kind they have.

Places are log offsets here, except for `at` and its results: positions in the segment.
"""

from collections.abc import Iterator, Mapping
from typing import ClassVar, NamedTuple, TypeAlias

from aerobee.protocol.errors import CorruptRecord
from aerobee.protocol.message.record_check import (
    BLANK,
    Checked,
    RecordHead,
    announced_size,
    check_record,
    scan_records,
)
from aerobee.protocol.message.record_layout import (
    BLANK_BYTES,
    BLANK_MAGIC,
    HEADS,
    LOG_OFFSET_POSITION,
    MAGIC_POSITION,
    MESSAGE_MAGIC,
    MIN_RECORD_BYTES,
    SIZE_AND_MAGIC,
)
from aerobee.store.log.compiled import Derived, Take
from aerobee.store.log.scan.sources import Window
from aerobee.store.segments.mapped_file import MappedFile

Buffer: TypeAlias = bytes | memoryview

# The longest head, with two IPv6 hosts.
_HEAD_BYTES = HEADS[0x30].size
# A record larger than this must have two lengths that fit each other before it is read as a whole.
_LARGE = 16 << 20
# A mapped segment is read ahead by these bytes while the same number before them is scanned.
_AHEAD_BYTES = 8 << 20


class ClaimedSizes(NamedTuple):
    """The claims of a record that does not check out: its size in bytes by its own field and by its
    parts, 0 where that is not a size, and whether magic and own place are right."""

    by_field: int
    by_parts: int
    is_named: bool

    @property
    def agree(self) -> bool:
        """Whether all of it agrees: then its content is damaged, not where it ends."""
        return self.is_named and self.by_field == self.by_parts != 0


class SegmentReader:
    """One segment from log offset `start` to `end`, of which `limit` bytes are there."""

    #: The magics of records, with the bytes that a topic's length has then.
    topic_lengths: ClassVar[Mapping[int, int]] = {MESSAGE_MAGIC: 1}
    #: The bytes that these magics begin with.
    magic_bytes: ClassVar[bytes] = MESSAGE_MAGIC.to_bytes(4, "big")

    def __init__(self, path: str, start: int, size: int, limit: int, large: int = _LARGE) -> None:
        self.path = path
        self.start = start
        self.size = size
        self.end = start + size
        self.limit = limit
        self._large = large

    # --- the two kinds of bytes -------------------------------------------------------------

    def at(self, position: int, least: int) -> tuple[Buffer, int]:
        """A buffer, and the index of `position` in it: `least` bytes follow, fewer only at the
        end."""
        raise NotImplementedError

    def find(self, wanted: bytes, position: int, end: int) -> tuple[int | None, int]:
        """(where `wanted` stands next before `end`, None if it was not found so far; where to look
        on)."""
        raise NotImplementedError

    def written_end(self, position: int) -> int:
        """Position after the last byte that is not zero, at least `position`."""
        raise NotImplementedError

    def reading_at(self, position: int) -> None:
        """Take note that a scan has come to `position` and will go on from there."""

    def done(self) -> None:
        """Take note that a scan has read the segment to its end."""

    # --- records ----------------------------------------------------------------------------

    def head(self, log_offset: int, check_crc: int) -> RecordHead:
        """The record or blank there. Raises CorruptRecord, with the reason, without one."""
        position = log_offset - self.start
        room = self.limit - position
        if room < BLANK_BYTES:
            raise CorruptRecord(f"{max(0, room)} bytes at {log_offset} cannot hold a record")
        buffer, index = self.at(position, BLANK_BYTES)
        size, magic = SIZE_AND_MAGIC.unpack_from(buffer, index)
        if magic == BLANK_MAGIC:
            if size != self.size - position:
                raise CorruptRecord(f"blank at {log_offset} does not end with its segment")
            return RecordHead(BLANK, size)
        if magic == MESSAGE_MAGIC:
            if not MIN_RECORD_BYTES <= size <= room:
                raise CorruptRecord(f"record at {log_offset} claims {size} of {room} bytes")
            if len(buffer) - index < size:
                self._check_large(position, size)
                buffer, index = self.at(position, size)
        limit = min(len(buffer), index + room)
        return check_record(buffer, index, log_offset, limit, check_crc)

    def _check_large(self, position: int, size: int) -> None:
        """Refuse a damaged size, so that nobody reads a gigabyte for it."""
        if size > self._large:
            buffer, index = self.at(position, _HEAD_BYTES)
            if announced_size(buffer, index) != size:
                raise CorruptRecord(
                    f"lengths of the record at {self.start + position} do not add up"
                )

    def is_sound(self, log_offset: int, check_crc: int) -> bool:
        """Whether there is a record or blank."""
        try:
            self.head(log_offset, check_crc)
        except CorruptRecord:
            return False
        return True

    def scan(
        self, log_offset: int, end: int, check_crc: int, least: int = MIN_RECORD_BYTES
    ) -> tuple[list[Checked], Buffer, int]:
        """Sound records from `log_offset` on that end at or before `end`, as many as the buffer at
        hand holds; that buffer, and the index in it at which the first begins."""
        position = log_offset - self.start
        room = min(end - self.start, self.limit) - position
        buffer, index = self.at(position, min(least, self.limit - position))
        stop = min(len(buffer), index + room)
        return scan_records(buffer, index, log_offset, stop, check_crc), buffer, index

    def taken(self, log_offset: int, end: int, take: Take) -> Derived | None:
        """The result of `take` for records from `log_offset` on that end at or before `end`."""
        position = log_offset - self.start
        room = min(end - self.start, self.limit) - position
        buffer, index = self.at(position, min(MIN_RECORD_BYTES, self.limit - position))
        return take(buffer, index, log_offset, min(len(buffer), index + room))

    def record_bytes(self, log_offset: int, size: int) -> tuple[Buffer, int]:
        """A buffer with `size` bytes from `log_offset` on, and the index in it at which they
        begin."""
        return self.at(log_offset - self.start, size)

    def claimed_sizes(self, log_offset: int, end: int) -> ClaimedSizes:
        """The claims of the bytes there about a record that may end up to `end`."""
        position, limit = log_offset - self.start, min(end - self.start, self.limit)
        if limit - position < MIN_RECORD_BYTES:
            return ClaimedSizes(0, 0, False)
        buffer, index = self.at(position, min(_HEAD_BYTES, limit - position))
        size, magic = SIZE_AND_MAGIC.unpack_from(buffer, index)
        head = HEADS[buffer[index + 39] & 0x30]
        by_field = size if MIN_RECORD_BYTES <= size <= limit - position else 0
        length_bytes = self.topic_lengths.get(magic, 1)
        if limit - position < head.size + length_bytes + 2:
            return ClaimedSizes(by_field, 0, False)
        fields = head.unpack_from(buffer, index)
        is_named = magic in self.topic_lengths and fields[6] == log_offset
        body_length = fields[14]
        topic_at = position + head.size + body_length
        if body_length < 0 or topic_at + length_bytes + 2 > limit:
            return ClaimedSizes(by_field, 0, is_named)
        properties_at = topic_at + length_bytes + 2 + self._number(topic_at, length_bytes)
        if properties_at > limit:
            return ClaimedSizes(by_field, 0, is_named)
        parts_end = properties_at + self._number(properties_at - 2, 2)
        return ClaimedSizes(by_field, parts_end - position if parts_end <= limit else 0, is_named)

    def _number(self, position: int, size: int) -> int:
        buffer, index = self.at(position, size)
        return int.from_bytes(buffer[index : index + size], "big")

    def own_place(self, log_offset: int) -> int | None:
        """The log offset that the record there claims, None if the segment ends before that
        field."""
        position = log_offset - self.start + LOG_OFFSET_POSITION
        if position + 8 > self.limit:
            return None
        buffer, index = self.at(position, 8)
        return int.from_bytes(buffer[index : index + 8], "big", signed=True)

    def magics(self, start: int, end: int) -> Iterator[int | None]:
        """Log offsets in [start, end) with `magic_bytes` in the magic's place, in order.

        None now and then, when a long stretch has been read without a find.
        """
        position = start - self.start + MAGIC_POSITION
        stop = min(end - self.start + MAGIC_POSITION, self.limit)
        while position < stop:
            found, position = self.find(self.magic_bytes, position, stop)
            log_offset = None if found is None else self.start + found - MAGIC_POSITION
            yield log_offset if log_offset is None or log_offset < end else None


class MappedReader(SegmentReader):
    """Reads a segment that is mapped."""

    def __init__(self, segment: MappedFile) -> None:
        super().__init__(segment.path, segment.start, segment.size, segment.wrote)
        self._segment = segment
        self._asked = 0

    def at(self, position: int, least: int) -> tuple[Buffer, int]:
        return self._segment.view, position

    def find(self, wanted: bytes, position: int, end: int) -> tuple[int | None, int]:
        found = self._segment.find(wanted, position, end + len(wanted) - 1)
        return (None, end) if found < 0 else (found, found + 1)

    def reading_at(self, position: int) -> None:
        if position >= self._asked:
            self._asked = position + _AHEAD_BYTES
            self._segment.read_ahead(position, 2 * _AHEAD_BYTES)

    def done(self) -> None:
        self._segment.forget_pages()


class FileReader(SegmentReader):
    """Reads a segment's file, of which `file_bytes` are there, through a window of it."""

    def __init__(
        self,
        *,
        path: str,
        start: int,
        size: int,
        file_bytes: int,
        window: Window,
        large: int = _LARGE,
    ) -> None:
        super().__init__(path, start, size, min(file_bytes, size), large)
        self.window = window
        self._written = -1

    def at(self, position: int, least: int) -> tuple[Buffer, int]:
        index = self.window.locate(position, least)
        return self.window.buffer, index

    def find(self, wanted: bytes, position: int, end: int) -> tuple[int | None, int]:
        window = self.window
        index = window.locate(position, len(wanted))
        stop = min(len(window.buffer), index + end - position + len(wanted) - 1)
        found = window.buffer.find(wanted, index, stop)
        if found >= 0:
            return window.start + found, window.start + found + 1
        # The bytes may lie across the end of the window.
        return None, max(position + 1, window.start + stop - len(wanted) + 1)

    def written_end(self, position: int) -> int:
        if self._written < 0:
            self._written = self.window.source.last_nonzero(0, self.limit)
        return max(position, self._written)

    def moved_to(self, start: int) -> "FileReader":
        """A reader of these bytes that takes them for the segment that begins at `start`."""
        return FileReader(
            path=self.path,
            start=start,
            size=self.size,
            file_bytes=self.limit,
            window=self.window,
            large=self._large,
        )
