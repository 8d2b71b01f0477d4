"""A consume queue: for each message of a (topic, queue id), the place of its record in the log.

Entries (RocketMQ: units) of 20 bytes: log offset i64, record size i32, tags code i64. The entry
of queue offset k is at byte k x 20 of the queue, always (docs/reliability.md B16): a queue offset
that has no message is filled with a pre-blank entry (0, 2147483647, 0), never closed up.

Which entries count, learned from the reference's defects (store/FORMAT.md 8.6): a size <= 0 is an
empty slot, wherever it stands; a pre-blank holds its slot but names no record.

`QueueView` only reads, alike over a running broker's queue (`consume_queue.py`) and over files
in whatever state they are in (`inspect/queue_files.py`). Offsets are queue offsets unless a name
says bytes or log.
"""

import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

from aerobee.protocol.layouts import positions

ENTRY_BYTES = 20
ENTRY = struct.Struct(">qiq")
#: Where log offset, size and tags code of an entry lie.
ENTRY_POSITIONS = positions(ENTRY)
PRE_BLANK_SIZE = 0x7FFFFFFF
PRE_BLANK = ENTRY.pack(0, PRE_BLANK_SIZE, 0)
EMPTY = bytes(ENTRY_BYTES)

CHUNK_ENTRIES = 3200
BLANK_CHUNK = PRE_BLANK * CHUNK_ENTRIES
# Entries read at first, at a beginning or on the way back from an end, where most often the very
# first one answers; and then at a time on the way back.
FEW_ENTRIES = 8
_BACK_ENTRIES = 64


def names_record(log_offset: int, size: int) -> bool:
    """Whether an entry with these fields names a record: it is neither empty nor pre-blank."""
    return 0 < size < PRE_BLANK_SIZE and log_offset >= 0


class QueueEntry(NamedTuple):
    """An entry's fields. The record takes `size` bytes of the log from `log_offset` on."""

    log_offset: int
    size: int
    tags_code: int

    @classmethod
    def parse(cls, data: bytes, position: int = 0) -> "QueueEntry":
        """The entry at a byte position."""
        return cls._make(ENTRY.unpack_from(data, position))

    @property
    def names_record(self) -> bool:
        """It is neither empty nor pre-blank."""
        return names_record(self.log_offset, self.size)

    @property
    def end(self) -> int:
        """Log offset behind its record."""
        return self.log_offset + self.size

    def is_of_record(self, log_offset: int, size: int) -> bool:
        """Whether it names the record there."""
        return self.log_offset == log_offset and self.size == size


class NamedRecord(NamedTuple):
    """That the entry of a queue offset names a record."""

    queue_offset: int
    log_offset: int
    size: int


class QueueView(ABC):
    """Reading of one queue, whose slots go from `first_offset` to `max_offset`. A subclass gives
    the bytes with `read_entries`."""

    __slots__ = ()

    directory: str
    topic: str
    queue_id: int
    segment_bytes: int
    max_offset: int

    @property
    @abstractmethod
    def first_offset(self) -> int:
        """First slot that has a file."""

    @abstractmethod
    def read_entries(self, first: int, count: int) -> bytes:
        """Up to `count` entries from `first` on, within one file; empty without entries."""

    @property
    def name(self) -> str:
        """The queue as people write it."""
        return f"{self.topic}/{self.queue_id}"

    def entry(self, offset: int) -> QueueEntry | None:
        """The entry of a slot, None where it is empty, blank or absent."""
        data = self.read_entries(offset, 1)
        if len(data) < ENTRY_BYTES:
            return None
        entry = QueueEntry.parse(data)
        return entry if entry.names_record else None

    def is_pre_blank(self, offset: int) -> bool:
        """Whether the slot is held by an entry that names no record."""
        return self.read_entries(offset, 1) == PRE_BLANK

    def next_file_offset(self, offset: int) -> int:
        """First queue offset of the file after that which holds `offset`, or would hold it."""
        entries = self.segment_bytes // ENTRY_BYTES
        return (offset // entries + 1) * entries

    def read_over_files(self, first: int, end: int) -> bytes:
        """The entries of [first, end); slots without a file are empty. Fewer behind the end."""
        parts: list[bytes] = []
        end = min(end, self.max_offset)
        while first < end:
            data = self.read_entries(first, end - first)
            if not data:
                data = EMPTY * (min(self.next_file_offset(first), end) - first)
            parts.append(data)
            first += len(data) // ENTRY_BYTES
        return b"".join(parts)

    def chunks(self) -> Iterator[tuple[int, bytes]]:
        """(first slot, entries) of all that the files hold, in order."""
        offset = self.first_offset
        while offset < self.max_offset:
            data = self.read_entries(offset, min(CHUNK_ENTRIES, self.max_offset - offset))
            if data:
                yield offset, data
                offset += len(data) // ENTRY_BYTES
            else:
                offset = self.next_file_offset(offset)

    def first_named(self, start: int, end: int) -> NamedRecord | None:
        """The record that the first entry of [start, end) to name one names."""
        chunk = FEW_ENTRIES
        while start < end:
            data = self.read_entries(start, min(chunk, end - start))
            if not data:
                start = self.next_file_offset(start)
                continue
            chunk = CHUNK_ENTRIES
            if data != BLANK_CHUNK[: len(data)] and data.count(0) != len(data):
                for index, (log_offset, size, _) in enumerate(ENTRY.iter_unpack(data)):
                    if 0 < size < PRE_BLANK_SIZE and log_offset >= 0:
                        return NamedRecord(start + index, log_offset, size)
            start += len(data) // ENTRY_BYTES
        return None

    def last_named(self, end: int) -> NamedRecord | None:
        """The record that the last entry below `end` names."""
        entries = self.segment_bytes // ENTRY_BYTES
        chunk = FEW_ENTRIES
        while end > self.first_offset:
            start = max(self.first_offset, end - chunk, (end - 1) // entries * entries)
            chunk = _BACK_ENTRIES
            data = self.read_entries(start, end - start)
            for index in range(len(data) // ENTRY_BYTES - 1, -1, -1):
                log_offset, size, _ = ENTRY.unpack_from(data, index * ENTRY_BYTES)
                if names_record(log_offset, size):
                    return NamedRecord(start + index, log_offset, size)
            end = start
        return None

    def first_at(self, log_offset: int) -> int:
        """Queue offset of the first entry that names a record at or above `log_offset`.

        `max_offset` without such an entry. Log offsets grow along a queue, so this is a binary
        search.
        """
        low, high = self.first_offset, self.max_offset
        # Nothing of most queues was deleted, and few entries are above the marks of a store: so the
        # first one and one near the end are asked first.
        first = self.entry(low)
        if first is not None and first.log_offset >= log_offset:
            return low
        middle = max(low, high - FEW_ENTRIES)
        while low < high:
            found = self.first_named(middle, high)
            if found is not None and found.log_offset < log_offset:
                low = found.queue_offset + 1
            else:
                high = middle
            middle = (low + high) // 2
        found = self.first_named(low, self.max_offset)
        return self.max_offset if found is None else found.queue_offset
