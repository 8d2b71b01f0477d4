"""Reads records of one segment file for an audit, whatever state the file is in."""

from aerobee.protocol.errors import CorruptRecord
from aerobee.protocol.message.record_check import BLANK, RecordHead, check_record
from aerobee.protocol.message.record_layout import (
    BLANK_BYTES,
    BLANK_MAGIC,
    MESSAGE_MAGIC,
    MIN_RECORD_BYTES,
    SIZE_AND_MAGIC,
)
from aerobee.store.inspect.layout import FoundFile
from aerobee.store.inspect.sources import Window

# A record larger than this must have lengths that add up before it is read as a whole.
_LARGE = 16 << 20


class SegmentReader:
    """Reads records of one segment file; positions are bytes in it."""

    def __init__(self, file: FoundFile, segment_bytes: int, window: Window) -> None:
        self.path = file.path
        self.start = file.start
        self.end = file.start + segment_bytes
        self.window = window
        # Bytes that are there, at most a segment's.
        self.limit = min(file.size, segment_bytes)

    def head_at(self, position: int, check_crc: int) -> tuple[RecordHead, int]:
        """The record or blank there, and where it begins in the window; raises CorruptRecord."""
        room = self.limit - position
        log_offset = self.start + position
        if room < BLANK_BYTES:
            raise CorruptRecord(f"{max(0, room)} bytes at {log_offset} cannot hold a record")
        window = self.window
        index = window.locate(position, BLANK_BYTES)
        size, magic = SIZE_AND_MAGIC.unpack_from(window.buffer, index)
        if magic == BLANK_MAGIC:
            if size != self.end - log_offset:
                raise CorruptRecord(f"blank at {log_offset} does not end with its segment")
            return RecordHead(BLANK, size), index
        if magic == MESSAGE_MAGIC and MIN_RECORD_BYTES <= size <= room:
            if size > _LARGE:
                self._check_lengths(position, size)
            index = window.locate(position, size)
        limit = min(len(window.buffer), index + room)
        return check_record(window.buffer, index, log_offset, limit, check_crc), index

    def _check_lengths(self, position: int, size: int) -> None:
        """Believe a very long record's length only if its fields add up to it."""
        window = self.window
        index = window.locate(position, 128)
        # Bits 4 and 5 of the last sysFlag byte lengthen the hosts from 8 to 20 bytes each.
        bits = window.buffer[index + 39]
        body_at = 88 + 12 * (bits >> 4 & 1) + 12 * (bits >> 5 & 1)
        body = int.from_bytes(window.buffer[index + body_at - 4 : index + body_at], "big")
        topic_at = body_at + body
        if topic_at + 3 > size:
            raise CorruptRecord(f"lengths of the record at {self.start + position} do not add up")
        index = window.locate(position + topic_at, 256)
        properties_at = 1 + window.buffer[index]
        place = index + properties_at
        properties = int.from_bytes(window.buffer[place : place + 2], "big")
        if topic_at + properties_at + 2 + properties != size:
            raise CorruptRecord(f"lengths of the record at {self.start + position} do not add up")
