"""Compares the entries of an index file with its slots, for the scrub.

A flipped bit in a link or a slot shows as an entry or slot that leads elsewhere; its key finds
nothing then (`index/view.py`). An entry's fields about its record are compared with the log
(`index_entries.py`); entries found wrong there, and repaired a moment later, are `known` here, or
each chain through them would look wrong as well. Where every entry belongs follows from the entries
alone, so links and slots can be repaired, whether or not an entry's record is still there: an entry
whose hash is wrong leads nowhere in any case. Entries that are added meanwhile come after the
entries counted at first.

Threads: the scrub's thread, on its own descriptor.
"""

from array import array
from collections.abc import Iterator, Mapping

from aerobee.store.disk.files import Files
from aerobee.store.index.index_file import EntryKey, WrongLink, WrongSlot
from aerobee.store.index.layout import SLOT_BYTES
from aerobee.store.index.view import IndexView

# Entries and slots looked at in one step.
_STEP_ENTRIES = 500
_STEP_SLOTS = 4096
_NOTHING_KNOWN: Mapping[int, EntryKey] = {}


class IndexFileCheck:
    """One file; `close` it. Raises OSError. `known` has, by number, the right hash and log offset
    of each entry that was found to be wrong."""

    def __init__(
        self, files: Files, path: str, slots: int, known: Mapping[int, EntryKey] = _NOTHING_KNOWN
    ) -> None:
        self._files = files
        self._view = IndexView(self._read, slots)
        self._known = known
        self._fd = files.open(path, read_only=True)
        # Bytes read so far, for the rate.
        self.bytes_read = 0
        #: Entries and slots that do not agree with the others.
        self.wrong = 0
        #: The links among them that can be repaired.
        self.links: list[WrongLink] = []
        self.slots: list[WrongSlot] = []

    def close(self) -> None:
        """Close the file."""
        self._files.close(self._fd)

    def run(self) -> Iterator[None]:
        """Check the whole file; a step after each portion."""
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
                if number in self._known:
                    key_hash, log_offset = self._known[number]
                slot = key_hash % slots
                if key_hash < 0 or log_offset < last_offset:
                    self.wrong += 1
                elif previous != newest[slot]:
                    self.wrong += 1
                    self.links.append(WrongLink(number, previous, newest[slot]))
                newest[slot] = number
                last_offset = log_offset
        if number + 1 < count:
            self.wrong += 1  # its count is wrong
            self.links.clear()
            return
        for wrong in self._view.wrong_slots(newest, _STEP_SLOTS):
            yield
            header = self._view.header() if wrong else None
            for slot, stored, expected in wrong:
                self.wrong += stored < count
                # Between the two counts the entry was added meanwhile; above both it may have been.
                if stored < count or (header is not None and stored >= header.next_number):
                    self.slots.append(WrongSlot(slot, expected, count))

    def _read(self, position: int, size: int) -> bytes:
        self.bytes_read += size
        return self._files.read(self._fd, position, size)
