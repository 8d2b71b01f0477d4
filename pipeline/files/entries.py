"""Reads consume queues, and finds the entry for a log offset by binary search.

A queue is the row of its files; entry k is its k-th 20 bytes, wherever the first file begins. Log
offsets grow along a queue. Slots that are not used yet (size 0 or less) come last and count as
infinitely far; pre-blank entries, which name no message, count as the entry before them. An entry
is not believed: it names a place, and the record there must agree.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from typing import Final

import numpy as np

from aerobee.pipeline.files.directory import File, FileReader, FileSystemPlace

ENTRY: Final = np.dtype([("logOffset", ">i8"), ("size", ">i4"), ("tagsCode", ">i8")])
ENTRY_BYTES: Final = ENTRY.itemsize
PRE_BLANK_SIZE: Final = 0x7FFFFFFF
_NEVER: Final = (1 << 63) - 1

# A search reads blocks, because its last steps all fall into one block. 512 entries are 10 KiB,
# which cost hardly more to read than 20 bytes.
_BLOCK_ENTRIES: Final = 512
_BLOCKS_KEPT: Final = 64


class QueueEntries:
    """The entries of one consume queue, counted from the start of its first file."""

    def __init__(
        self, place: FileSystemPlace, topic: str, queue_id: int, files: tuple[File, ...]
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.files = files
        self._place = place
        self._counts = [file.size // ENTRY_BYTES for file in files]
        self._firsts = [sum(self._counts[:number]) for number in range(len(files))]
        self.capacity = sum(self._counts)
        self._blocks: OrderedDict[int, np.ndarray] = OrderedDict()
        self._reader: FileReader | None = None

    @property
    def size_bytes(self) -> int:
        """The length of all files together: a longer queue knows more places."""
        return sum(file.size for file in self.files)

    def search(self, log_offset: int) -> int:
        """The first entry that names this log offset or a higher one."""
        return bisect_left(range(self.capacity), log_offset, key=self._key)

    def end(self) -> int:
        """The number after the last entry in use."""
        return self.search(_NEVER)

    def entry(self, number: int) -> tuple[int, int] | None:
        """(log offset, size) of the record that the entry names; None for an empty entry."""
        if not 0 <= number < self.capacity:
            return None
        block = self._block(number // _BLOCK_ENTRIES)
        entry = block[number % _BLOCK_ENTRIES]
        position, size = int(entry["logOffset"]), int(entry["size"])
        return (position, size) if 0 < size < PRE_BLANK_SIZE and position >= 0 else None

    def record_end(self) -> int:
        """The log offset after the last record that the entries name; 0 without entries."""
        last = self.entry(self.end() - 1)
        return sum(last) if last else 0

    def read(self, first: int, end: int) -> np.ndarray:
        """The entries [first, end), as ENTRY."""
        parts = [np.empty(0, ENTRY)]
        while first < end:
            number = bisect_right(self._firsts, first) - 1
            count = min(end, self._firsts[number] + self._counts[number]) - first
            place = (first - self._firsts[number]) * ENTRY_BYTES
            data = self._bytes(self.files[number].path, place, count * ENTRY_BYTES)
            found = np.frombuffer(data[: len(data) // ENTRY_BYTES * ENTRY_BYTES], ENTRY)
            parts.append(found)
            # If the file has lost its end meanwhile, entries there are not used.
            parts.append(np.zeros(count - len(found), ENTRY))
            first += count
        return np.concatenate(parts)

    def close(self) -> None:
        """Close the open file."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _bytes(self, path: str, position: int, count: int) -> bytes:
        if self._place.is_local:
            # A store may have ten thousand queues, more than a process may have open files.
            with self._place.open(path) as reader:
                return reader.read(position, count)
        # Elsewhere opening costs a round trip, and takes no descriptor.
        if self._reader is None or self._reader.path != path:
            self.close()
            self._reader = self._place.open(path)
        return self._reader.read(position, count)

    def _key(self, number: int) -> int:
        block = self._block(number // _BLOCK_ENTRIES)
        at = number % _BLOCK_ENTRIES
        sizes = block["size"]
        while at > 0 and sizes[at] == PRE_BLANK_SIZE:
            at -= 1
        if sizes[at] == PRE_BLANK_SIZE:
            return -1
        return int(block["logOffset"][at]) if sizes[at] > 0 else _NEVER

    def _block(self, number: int) -> np.ndarray:
        block = self._blocks.get(number)
        if block is None:
            first = number * _BLOCK_ENTRIES
            block = self.read(first, min(first + _BLOCK_ENTRIES, self.capacity))
            self._blocks[number] = block
            if len(self._blocks) > _BLOCKS_KEPT:
                self._blocks.popitem(last=False)
        return block
