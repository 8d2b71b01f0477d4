"""The content of an index file, read-only, in whatever state the file is.

The entries, read in order, determine what every slot must hold: each entry names the one before it
in its slot. A caller that has gone through the entries and noted the newest of each slot gets the
slots that hold something else (`wrong_slots`). The caller decides what to do with them: recovery
cuts off or makes again, the scrub repairs, the audit names each place.
"""

import sys
from array import array
from collections.abc import Callable, Iterator
from typing import NamedTuple

from aerobee.store.index.layout import (
    ENTRY,
    HEADER,
    HEADER_BYTES,
    INDEX_ENTRY_BYTES,
    SLOT_BYTES,
    entry_at,
    slot_at,
)

_CHUNK_ENTRIES = 50_000
_CHUNK_SLOTS = 500_000

#: An entry's key hash, log offset, seconds since the file's begin, number of the one before it.
Fields = tuple[int, int, int, int]


class IndexHeader(NamedTuple):
    """The header; `next_number` is the number of the entry to come, the first entry is 1."""

    begin_ms: int
    end_ms: int
    begin_offset: int
    end_offset: int
    used_slots: int
    next_number: int


class IndexView:
    """A file of `slots`, read with `read(position, size)`, which may give less and whose errors
    pass through."""

    def __init__(self, read: Callable[[int, int], bytes], slots: int) -> None:
        self._read = read
        self.slots = slots

    def header(self) -> IndexHeader | None:
        """The header, None if the file is too short for it."""
        data = self._read(0, HEADER_BYTES)
        return IndexHeader(*HEADER.unpack(data)) if len(data) == HEADER_BYTES else None

    def entry_position(self, number: int) -> int:
        """Where entry `number` is in the file."""
        return entry_at(self.slots, number)

    def chunks(
        self, count: int, most: int = _CHUNK_ENTRIES, number: int = 1
    ) -> Iterator[tuple[int, Iterator[Fields]]]:
        """(number of the first, fields of each) of the entries from `number` up to `count`, at
        most `most` at a time.

        Ends where the file does.
        """
        while number < count:
            size = INDEX_ENTRY_BYTES * min(most, count - number)
            data = self._read(self.entry_position(number), size)
            whole = data[: len(data) // INDEX_ENTRY_BYTES * INDEX_ENTRY_BYTES]
            yield number, ENTRY.iter_unpack(whole)
            if len(data) < size:
                return
            number += size // INDEX_ENTRY_BYTES

    def wrong_slots(
        self, newest: "array[int]", most: int = _CHUNK_SLOTS
    ) -> Iterator[list[tuple[int, int, int]]]:
        """(slot, entry it holds, entry it should hold) where these differ from `newest`, the newest
        entry of each slot; of `most` slots at a time."""
        for first in range(0, self.slots, most):
            count = min(most, self.slots - first)
            stored = array("i")
            stored.frombytes(self._read(slot_at(first), SLOT_BYTES * count))
            if sys.byteorder == "little":
                stored.byteswap()
            expected = newest[first : first + count]
            if stored == expected:
                yield []
                continue
            both = enumerate(zip(stored, expected, strict=True), first)
            yield [(slot, one, other) for slot, (one, other) in both if one != other]


def no_entries(slots: int) -> "array[int]":
    """Slots that hold no entry yet."""
    return array("i", bytes(SLOT_BYTES * slots))
