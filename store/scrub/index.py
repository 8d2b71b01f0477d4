"""Compares the entries of an index file with its slots, for the scrub.

The entries, read in order, determine what every slot must hold: each names the one before it in
its slot. A flipped bit in a hash, a link or a slot shows as an entry or slot that leads elsewhere;
its key finds nothing then. One in an entry's log offset shows if it is out of order; a query never
sends a record without the key. What is added meanwhile lies behind the entries counted at first.

Nothing is mended here: `aerobee store rebuild --index` makes the index again.

Threads: the scrub's own, with a descriptor of its own; in steps of well under a millisecond.
"""

import struct
import sys
from array import array
from collections.abc import Iterator

from aerobee.store.disk.files import Files
from aerobee.store.index.file import HEADER, HEADER_BYTES, INDEX_ENTRY_BYTES, SLOT_BYTES

_ENTRIES = struct.Struct(">iqii")
# Entries and slots looked at in one step.
_STEP_ENTRIES = 500
_STEP_SLOTS = 4096


class IndexFileCheck:
    """One file; `close` it. Raises OSError."""

    def __init__(self, files: Files, path: str, slots: int) -> None:
        self._files = files
        self._slots = slots
        self._fd = files.open(path, read_only=True)
        # Bytes read so far, for the rate.
        self.bytes_read = 0
        #: Entries and slots that do not agree with the others.
        self.wrong = 0

    def close(self) -> None:
        """Close the file."""
        self._files.close(self._fd)

    def run(self) -> Iterator[None]:
        """Look at all of it; a step after each portion."""
        newest = array("i")
        for first in range(0, self._slots, _STEP_SLOTS):
            newest.frombytes(bytes(SLOT_BYTES * min(_STEP_SLOTS, self._slots - first)))
            yield
        count = HEADER.unpack(self._read(0, HEADER_BYTES))[5]
        entries_at = HEADER_BYTES + SLOT_BYTES * self._slots
        number, last_offset = 1, -1
        while number < count:
            yield
            portion = min(_STEP_ENTRIES, count - number)
            data = self._read(entries_at + INDEX_ENTRY_BYTES * number, INDEX_ENTRY_BYTES * portion)
            if len(data) < INDEX_ENTRY_BYTES * portion:
                self.wrong += 1  # its count is wrong
                return
            for key_hash, log_offset, _, previous in _ENTRIES.iter_unpack(data):
                slot = key_hash % self._slots
                if key_hash < 0 or previous != newest[slot] or log_offset < last_offset:
                    self.wrong += 1
                newest[slot] = number
                last_offset = log_offset
                number += 1
        for first in range(0, self._slots, _STEP_SLOTS):
            yield
            stored = array("i")
            portion = min(_STEP_SLOTS, self._slots - first)
            stored.frombytes(self._read(HEADER_BYTES + SLOT_BYTES * first, SLOT_BYTES * portion))
            if sys.byteorder == "little":
                stored.byteswap()
            expected = newest[first : first + portion]
            if stored != expected:
                both = zip(stored, expected, strict=True)
                self.wrong += sum([one != two and one < count for one, two in both])

    def _read(self, position: int, size: int) -> bytes:
        self.bytes_read += size
        return self._files.read(self._fd, position, size)
