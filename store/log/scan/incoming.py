"""Reads a segment into which records still arrive, from a master: the last one is seldom whole.

A part of a record is told from damage by what is there of it: a magic, a size that fits the
segment, its own place, and lengths that fit each other. So a damaged size does not have the reader
wait for a gigabyte that never was a record.
"""

import enum

from aerobee.protocol.message.properties import MAX_PROPERTIES_BYTES
from aerobee.protocol.message.record_layout import (
    BLANK_BYTES,
    BLANK_MAGIC,
    HEADS,
    LOG_OFFSET_POSITION,
    MAX_TOPIC_BYTES,
    MESSAGE_MAGIC,
    MIN_RECORD_BYTES,
    SIZE_AND_MAGIC,
)
from aerobee.store.log.scan.boundaries import Boundaries
from aerobee.store.log.scan.resynchronise import Resynchroniser
from aerobee.store.log.scan.segment_reader import Buffer, SegmentReader
from aerobee.store.segments.mapped_file import MappedFile

#: No queue says where records of the master begin.
NO_BOUNDARIES = Boundaries(list, lambda *_: False)

# Lengths of topic and properties, topic and properties.
_LEAST_AROUND = 3
_MOST_AROUND = _LEAST_AROUND + MAX_TOPIC_BYTES + MAX_PROPERTIES_BYTES
_SYS_FLAG_END = 40
# A longer record would have to be kept in memory until it is whole.
_MOST_RECORD_BYTES = 32 << 20


class Part(enum.Enum):
    """The kinds of bytes that are no whole record: a record's beginning, the blank that ends the
    segment (or a part of it), damage."""

    RECORD = enum.auto()
    BLANK = enum.auto()
    BAD = enum.auto()


class IncomingReader(SegmentReader):
    """Reads `data`, the bytes of `segment` from the log offset `start` on that have arrived."""

    def __init__(self, segment: MappedFile, start: int, data: memoryview) -> None:
        self._before = start - segment.start
        self._data = data
        super().__init__(segment.path, segment.start, segment.size, self._before + len(data))

    def at(self, position: int, least: int) -> tuple[Buffer, int]:
        return self._data, position - self._before

    def find(self, wanted: bytes, position: int, end: int) -> tuple[int | None, int]:
        low, high = position - self._before, end + len(wanted) - 1 - self._before
        found = bytes(self._data[low:high]).find(wanted)
        return (None, end) if found < 0 else (position + found, position + found + 1)

    def written_end(self, position: int) -> int:
        return max(position, self.limit)

    def part(self, log_offset: int) -> Part:
        """The kind of the bytes from `log_offset` on, where no whole sound record is."""
        left, room = self.end - log_offset, self.start + self.limit - log_offset
        if left < BLANK_BYTES:
            return Part.BLANK
        if room < BLANK_BYTES:
            return Part.RECORD
        size, magic = SIZE_AND_MAGIC.unpack_from(*self.at(log_offset - self.start, BLANK_BYTES))
        if magic == BLANK_MAGIC and size == left:
            return Part.BLANK
        if magic == MESSAGE_MAGIC and room < size <= left and self._fits(log_offset, size, room):
            return Part.RECORD
        return Part.BAD

    def _fits(self, log_offset: int, size: int, room: int) -> bool:
        """Whether `room` bytes may begin a sound record of `size` bytes."""
        if not MIN_RECORD_BYTES <= size <= _MOST_RECORD_BYTES:
            return False
        if room < _SYS_FLAG_END:
            return True
        if self.own_place(log_offset) != log_offset:
            return False
        data, index = self.at(log_offset - self.start, room)
        head = HEADS[data[index + _SYS_FLAG_END - 1] & 0x30]
        if room < head.size:
            return True
        body_length: int = head.unpack_from(data, index)[14]
        around = size - head.size - body_length
        return body_length >= 0 and _LEAST_AROUND <= around <= _MOST_AROUND

    def following(self, bad: int, check_crc: int) -> int | None:
        """Where the log goes on after the damage at `bad`; None while nothing sound has arrived
        after it. A segment that has arrived as a whole ends there."""
        look = Resynchroniser(self, NO_BOUNDARIES, check_crc)
        following = look.sound_follower(bad)
        if following is None:
            following = look.anything_sound(bad)
        if following is None and self.limit == self.size:
            return self.end
        return following


assert LOG_OFFSET_POSITION + 8 <= _SYS_FLAG_END
