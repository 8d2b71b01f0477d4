"""Reads one index file from its first entry to its last and checks that it is whole.

The entries, read in order, determine what every slot must hold: each entry names the one before it
in its slot, so a page that is missing, old or damaged shows up as an entry that points nowhere or a
slot that does not know its newest entry. What passes is found by every look-up.
"""

import sys
from array import array
from collections.abc import Iterator
from struct import Struct

from aerobee.store.index.file import (
    HEADER,
    HEADER_BYTES,
    INDEX_ENTRY_BYTES,
    SLOT_BYTES,
    index_file_bytes,
)
from aerobee.store.inspect.layout import FoundFile
from aerobee.store.inspect.report import Findings
from aerobee.store.scan.sources import Sources

ENTRIES = Struct(">iqii")
_CHUNK_ENTRIES = 50_000
_CHUNK_SLOTS = 500_000

#: key hash, log offset, seconds since the file's begin, number in the file
Entry = tuple[int, int, int, int]


class IndexFileAudit:
    """One file. `entries` checks while it reads; the header is in attributes."""

    def __init__(
        self,
        sources: Sources,
        file: FoundFile,
        slots: int,
        entries: int,
        findings: Findings,
        *,
        clean_stop: bool,
    ) -> None:
        self._sources = sources
        self._findings = findings
        self._clean_stop = clean_stop
        self.path = file.path
        self.slots = slots
        self.most = entries
        self.entries_at = HEADER_BYTES + SLOT_BYTES * slots
        self.begin_ms = self.end_ms = self.begin_offset = self.end_offset = 0
        self.used_slots = 0
        self.count = 1
        self.wrong_times = 0
        # Store time of the last entry's message; the caller sees messages and sets it.
        self.last_ms = 0
        # What the first entry's seconds were taken against (FORMAT.md 6.2), None if not known.
        self.preset_ms: int | None = None
        self.usable = self._read_header(file)

    def _read_header(self, file: FoundFile) -> bool:
        if file.size != index_file_bytes(self.slots, self.most):
            self._say(
                "index-size",
                None,
                f"has {file.size} bytes instead of {index_file_bytes(self.slots, self.most)} "
                f"({self.slots} slots, {self.most} entries)",
            )
            return False
        fields = HEADER.unpack(self._sources.get(self.path).read(0, HEADER_BYTES))
        self.begin_ms, self.end_ms, self.begin_offset, self.end_offset = fields[:4]
        self.used_slots, count = fields[4:]
        self.count = max(1, count)
        sane = (
            self.count <= self.most
            and self.used_slots >= 0
            and self.begin_ms >= 0
            and 0 <= self.begin_offset <= self.end_offset
        )
        if not sane:
            self._say("index-header", 0, f"its header cannot be right: {fields}")
        return sane

    def entries(self) -> Iterator[Entry]:
        """Those that can be right, in order; then slots and header are compared."""
        newest = array("i", bytes(SLOT_BYTES * self.slots))
        slots = self.slots
        used = 0
        last_offset = 0
        first: Entry | None = None
        held: Entry | None = None
        for number, data in self._chunks():
            for key_hash, log_offset, seconds, previous in ENTRIES.iter_unpack(data):
                if key_hash < 0 or seconds < 0 or log_offset < 0:
                    self._bad_entry(number, "its fields cannot be right")
                    number += 1
                    continue
                slot = key_hash % slots
                if previous != newest[slot]:
                    self._bad_entry(
                        number,
                        f"names entry {previous} as the one before it in slot {slot}, which is "
                        f"entry {newest[slot]}",
                    )
                used += newest[slot] == 0
                newest[slot] = number
                if held is not None:
                    # One that is beyond the next, which goes on from the one before, is wrong.
                    if held[1] > log_offset >= last_offset:
                        self._bad_entry(held[3], f"names log offset {held[1]}, out of order")
                    else:
                        last_offset = held[1]
                        first = first or held
                        yield held
                held = (key_hash, log_offset, seconds, number)
                if log_offset < last_offset:
                    self._bad_entry(number, f"names log offset {log_offset}, out of order")
                    held = None
                number += 1
        if held is not None:
            last_offset = held[1]
            first = first or held
            yield held
        self._check_slots(newest)
        self._check_header(first, last_offset, used)

    def check_end(self) -> None:
        """Does the header know the last message's time? To be called when `last_ms` is final."""
        if self.last_ms and self.end_ms != self.last_ms:
            self._say(
                "index-header",
                8,
                f"its header ends with the time {self.end_ms}, its last message has {self.last_ms}",
            )

    def _chunks(self) -> Iterator[tuple[int, bytes]]:
        number = 1
        while number < self.count:
            count = min(_CHUNK_ENTRIES, self.count - number)
            source = self._sources.get(self.path)
            data = source.read(
                self.entries_at + INDEX_ENTRY_BYTES * number, INDEX_ENTRY_BYTES * count
            )
            yield number, data
            number += count

    def _check_slots(self, newest: "array[int]") -> None:
        for first in range(0, self.slots, _CHUNK_SLOTS):
            count = min(_CHUNK_SLOTS, self.slots - first)
            stored = array("i")
            source = self._sources.get(self.path)
            stored.frombytes(source.read(HEADER_BYTES + SLOT_BYTES * first, SLOT_BYTES * count))
            if sys.byteorder == "little":
                stored.byteswap()
            wanted = newest[first : first + count]
            if stored == wanted:
                continue
            for index in range(count):
                if stored[index] != wanted[index]:
                    self._bad_slot(first + index, stored[index], wanted[index])

    def _bad_slot(self, slot: int, stored: int, wanted: int) -> None:
        position = HEADER_BYTES + SLOT_BYTES * slot
        if stored >= self.count and not self._clean_stop:
            self._say("index-torn", position, f"slot {slot} holds entry {stored}, not counted yet")
            return
        self._say("index-slot", position, f"slot {slot} holds {stored}, its newest entry: {wanted}")

    def _check_header(self, first: Entry | None, last_offset: int, used: int) -> None:
        if first is None:
            return
        if (self.begin_offset, self.end_offset) != (first[1], last_offset):
            self._say(
                "index-header",
                16,
                f"its header says log offsets {self.begin_offset} to {self.end_offset}, its "
                f"entries go from {first[1]} to {last_offset}",
            )
        # RocketMQ before 4.7.1 counted entries here.
        if self.used_slots not in (used, self.count - 1):
            self._say(
                "index-count", 32, f"its header counts {self.used_slots} slots in use, there are "
                f"{used}"
            )  # fmt: skip

    def _bad_entry(self, number: int, what: str) -> None:
        self._say(
            "index-entry", self.entries_at + INDEX_ENTRY_BYTES * number, f"entry {number} {what}"
        )

    def _say(self, kind: str, position: int | None, what: str) -> None:
        self._findings.add(kind, self.path, position, what)
