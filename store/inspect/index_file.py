"""Reads one index file from its first entry to its last and checks that it is whole.

The entries, read in order, determine what every slot must hold: each entry names the one before it
in its slot, so a page that is missing, old or damaged shows up as an entry that points nowhere or a
slot that does not know its newest entry. What passes is found by every look-up.
"""

from collections.abc import Iterator

from aerobee.store.index.file import HEADER_BYTES, SLOT_BYTES, index_file_bytes
from aerobee.store.index.view import no_entries
from aerobee.store.inspect.report import Findings
from aerobee.store.inspect.store_files import StoreFiles

#: key hash, log offset, seconds since the file's begin, number in the file
Entry = tuple[int, int, int, int]


class IndexFileAudit:
    """One file. `entries` checks while it reads; the header is in attributes."""

    def __init__(
        self,
        store: StoreFiles,
        path: str,
        size: int,
        findings: Findings,
    ) -> None:
        self._findings = findings
        self._clean_stop = not store.left_open
        self.path = path
        self.most = store.sizes.index_entries
        self._view = store.index_view(path)
        self.begin_ms = self.end_ms = self.begin_offset = self.end_offset = 0
        self.used_slots = 0
        self.count = 1
        self.wrong_times = 0
        # Store time of the last entry's message; the caller sees messages and sets it.
        self.last_ms = 0
        # What the first entry's seconds were taken against (FORMAT.md 6.2), None if not known.
        self.preset_ms: int | None = None
        self.usable = self._read_header(size)

    def _read_header(self, size: int) -> bool:
        slots = self._view.slots
        if size != index_file_bytes(slots, self.most):
            self._say(
                "index-size",
                None,
                f"has {size} bytes instead of {index_file_bytes(slots, self.most)} "
                f"({slots} slots, {self.most} entries)",
            )
            return False
        header = self._view.header()
        assert header is not None  # it has its length
        self.begin_ms, self.end_ms, self.begin_offset, self.end_offset = header[:4]
        self.used_slots, count = header[4:]
        self.count = max(1, count)
        sane = (
            self.count <= self.most
            and self.used_slots >= 0
            and self.begin_ms >= 0
            and 0 <= self.begin_offset <= self.end_offset
        )
        if not sane:
            self._say("index-header", 0, f"its header cannot be right: {tuple(header)}")
        return sane

    def entries(self) -> Iterator[Entry]:
        """Those that can be right, in order; then slots and header are compared."""
        slots = self._view.slots
        newest = no_entries(slots)
        used = 0
        last_offset = 0
        first: Entry | None = None
        held: Entry | None = None
        for begin, chunk in self._view.chunks(self.count):
            for number, (key_hash, log_offset, seconds, previous) in enumerate(chunk, begin):
                if key_hash < 0 or seconds < 0 or log_offset < 0:
                    self._bad_entry(number, "its fields cannot be right")
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
        if held is not None:
            last_offset = held[1]
            first = first or held
            yield held
        for wrong in self._view.wrong_slots(newest):
            for slot, stored, expected in wrong:
                self._bad_slot(slot, stored, expected)
        self._check_header(first, last_offset, used)

    def entry_position(self, number: int) -> int:
        """Where entry `number` is in the file."""
        return self._view.entry_position(number)

    def check_end(self) -> None:
        """Does the header know the last message's time? To be called when `last_ms` is final."""
        if self.last_ms and self.end_ms != self.last_ms:
            self._say(
                "index-header",
                8,
                f"its header ends with the time {self.end_ms}, its last message has {self.last_ms}",
            )

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
        self._say("index-entry", self.entry_position(number), f"entry {number} {what}")

    def _say(self, kind: str, position: int | None, what: str) -> None:
        self._findings.add(kind, self.path, position, what)
