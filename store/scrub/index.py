"""Compares the entries of an index file with its slots, for the scrub.

A flipped bit in a hash, a link or a slot shows as an entry or slot that leads elsewhere; its key
finds nothing then (`index/view.py`). One in an entry's log offset shows if it is out of order; a
query never sends a record without the key. What is added meanwhile lies behind the entries counted
at first.

Threads: the scrub's own, on a descriptor of its own.
"""

from array import array
from collections.abc import Iterator

from aerobee.store.disk.files import Files
from aerobee.store.index.file import SLOT_BYTES
from aerobee.store.index.view import IndexView

# Entries and slots looked at in one step.
_STEP_ENTRIES = 500
_STEP_SLOTS = 4096


class IndexFileCheck:
    """One file; `close` it. Raises OSError."""

    def __init__(self, files: Files, path: str, slots: int) -> None:
        self._files = files
        self._view = IndexView(self._read, slots)
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
        slots = self._view.slots
        newest = array("i")
        for first in range(0, slots, _STEP_SLOTS):
            newest.frombytes(bytes(SLOT_BYTES * min(_STEP_SLOTS, slots - first)))
            yield
        header = self._view.header()
        count = 1 if header is None else header.next_number
        number, last_offset = 0, -1
        for first, entries in self._view.chunks(count, _STEP_ENTRIES):
            yield
            number = first - 1
            for number, (key_hash, log_offset, _, previous) in enumerate(entries, first):
                slot = key_hash % slots
                if key_hash < 0 or previous != newest[slot] or log_offset < last_offset:
                    self.wrong += 1
                newest[slot] = number
                last_offset = log_offset
        if number + 1 < count:
            self.wrong += 1  # its count is wrong
            return
        for wrong in self._view.wrong_slots(newest, _STEP_SLOTS):
            yield
            self.wrong += sum([stored < count for _, stored, _ in wrong])

    def _read(self, position: int, size: int) -> bytes:
        self.bytes_read += size
        return self._files.read(self._fd, position, size)
