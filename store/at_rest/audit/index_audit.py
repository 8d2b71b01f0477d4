"""Compares the index files with the log: they must hold every key of every record, and nothing
else.

Entries were made in the order of the log, so the log and all entries are read side by side. Entries
of records that the log does not have any more are passed over. Within each file the entries, read
in order, determine what every slot must hold (`index/view.py`): a page that is missing, old or
damaged shows up as an entry that points nowhere or a slot that does not know its newest entry. Both
checks together show that a look-up by a key finds its message.
"""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from aerobee.store.index.layout import KeyHashes, index_file_bytes, seconds_since, slot_at
from aerobee.store.index.view import no_entries
from aerobee.store.inspect.audit_report import Counts, Findings
from aerobee.store.inspect.log_files import gap_at
from aerobee.store.inspect.store_files import StoreFiles
from aerobee.store.log.scan.sequence import Gap

#: key hash, log offset, seconds since the file's begin, number in the file
Entry = tuple[int, int, int, int]


class IndexFileAudit:
    """The audit of a file. `entries` checks while it reads; the header is in attributes."""

    def __init__(self, store: StoreFiles, path: str, size: int, findings: Findings) -> None:
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
        # The first entry's seconds count from here (FORMAT.md 6.2); None if that is not known.
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
        """The entries that can be right, in order; then slots and header are compared."""
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
                    # An entry beyond the next one is wrong if the next goes on from the one before.
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
        """The position of entry `number` in the file."""
        return self._view.entry_position(number)

    def check_end(self) -> None:
        """Check that the header has the last message's time. Call it when `last_ms` is final."""
        if self.last_ms and self.end_ms != self.last_ms:
            self._say(
                "index-header",
                8,
                f"its header ends with the time {self.end_ms}, its last message has {self.last_ms}",
            )

    def _bad_slot(self, slot: int, stored: int, wanted: int) -> None:
        position = slot_at(slot)
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


@dataclass(slots=True)
class _Missing:
    """Records in a row whose keys are not in the index."""

    first_log: int
    last_log: int = 0
    messages: int = 0
    keys: int = 0


class IndexAudit:
    """Takes the records of the log in order by `feed`, then `finish` ends it. `gaps` may grow."""

    def __init__(
        self, store: StoreFiles, findings: Findings, counts: Counts, gaps: Sequence[Gap]
    ) -> None:
        self._findings = findings
        self._counts = counts
        self._gaps = gaps
        self._clean_stop = not store.left_open
        self._enabled = store.settings.index_enabled
        self._log_limit = 0
        self._hashes = KeyHashes()
        self._directory = os.path.join(store.root, "index")
        self._files = [
            IndexFileAudit(store, file.path, file.size, findings)
            for file in store.layout.index_files
        ]
        self._stream = self._entries()
        self._ahead: tuple[IndexFileAudit, Entry] | None = None
        self._missing: _Missing | None = None
        self._last_indexed = -1

    # --- while the log is read --------------------------------------------------------------

    def start(self, log_start: int, log_limit: int) -> None:
        """Pass over entries that are older than the log; entries at or above `log_limit` are
        nonsense."""
        self._log_limit = log_limit
        self._next()
        while self._ahead is not None and self._ahead[1][1] < log_start:
            self._next()

    def feed(self, topic: str, keys: tuple[str, ...], log_offset: int, store_ms: int) -> None:
        """Take in the next record and the keys by which look-ups have to find it."""
        ahead = self._ahead
        while ahead is not None and ahead[1][1] < log_offset:
            self._stray(ahead)
            ahead = self._next()
        if not keys and (ahead is None or ahead[1][1] > log_offset):
            return
        wanted = self._hashes.of(topic, keys)
        found: list[int] = []
        while ahead is not None and ahead[1][1] == log_offset:
            file, (key_hash, _, seconds, number) = ahead
            found.append(key_hash)
            if not _is_right(file, number, seconds, store_ms):
                self._wrong_time(file, number, seconds, store_ms)
            if key_hash not in wanted:
                self._stray(ahead)
            ahead = self._next()
        if found != wanted:
            self._compare(found, wanted, log_offset)
        elif found:
            self._last_indexed = log_offset
            if self._missing is not None:
                self._say_missing()

    def filler(self, log_offset: int) -> None:
        """Take in a record that stands for lost records: entries that name it are theirs."""
        while self._ahead is not None and self._ahead[1][1] <= log_offset:
            if self._ahead[1][1] < log_offset:
                self._stray(self._ahead)
            self._next()

    def _compare(self, found: list[int], wanted: list[int], log_offset: int) -> None:
        lacking = Counter(wanted) - Counter(found)
        if not lacking:
            return  # RocketMQ indexes the last record before a restart again
        missing = self._missing
        if missing is None:
            missing = self._missing = _Missing(log_offset)
        missing.last_log = log_offset
        missing.messages += 1
        missing.keys += lacking.total()

    # --- at the end -------------------------------------------------------------------------

    def finish(self, log_end: int) -> None:
        """Report entries that are left, and keys that are missing at the end."""
        while self._ahead is not None:
            self._stray(self._ahead, log_end)
            self._next()
        if self._missing is not None:
            self._say_missing(at_end=True)
        for file in self._files:
            file.check_end()
            if file.wrong_times > 1:
                self._findings.add(
                    "index-time", file.path, None, f"{file.wrong_times} entries have a wrong time"
                )
        self._counts.index_files = len(self._files)

    def _say_missing(self, *, at_end: bool = False) -> None:
        missing, self._missing = self._missing, None
        assert missing is not None
        kind = "key-missing"
        what = (
            f"{missing.keys} keys of {missing.messages} messages at log offsets "
            f"{missing.first_log} to {missing.last_log} are not in the index"
        )
        if at_end and not self._enabled and missing.first_log > self._last_indexed:
            return  # keys are not indexed (any more), by the settings
        if not self._files:
            kind, what = "index-missing", f"there is no index; {what}"
        elif at_end and missing.first_log > self._last_indexed and not self._clean_stop:
            kind = "index-behind"
        self._findings.add(kind, self._directory, None, what, log_offset=missing.first_log)

    def _stray(self, ahead: tuple[IndexFileAudit, Entry], log_end: int | None = None) -> None:
        file, (_, log_offset, _, number) = ahead
        if gap_at(self._gaps, log_offset) is not None:
            return
        kind, what = "key-stray", "where no message with that key is"
        if log_end is not None and log_offset >= log_end:
            what = f"but the log ends at {log_end}"
            kind = "key-stray" if self._clean_stop else "index-torn"
        self._findings.add(
            kind,
            file.path,
            file.entry_position(number),
            f"entry {number} names log offset {log_offset}, {what}",
            log_offset=log_offset,
        )

    def _wrong_time(self, file: IndexFileAudit, number: int, seconds: int, store_ms: int) -> None:
        file.wrong_times += 1
        if file.wrong_times == 1:
            self._findings.add(
                "index-time",
                file.path,
                file.entry_position(number),
                f"entry {number} is {seconds} s after the file's begin {file.begin_ms}, its "
                f"message was stored at {store_ms}",
            )

    # --- entries of all files ---------------------------------------------------------------

    def _next(self) -> tuple[IndexFileAudit, Entry] | None:
        self._ahead = next(self._stream, None)
        return self._ahead

    def _entries(self) -> Iterator[tuple[IndexFileAudit, Entry]]:
        last = 0
        before: IndexFileAudit | None = None
        for file in self._files:
            if not file.usable:
                before = None
                continue
            if before is not None and before.count >= before.most:
                file.preset_ms = before.end_ms
            before = file
            for entry in file.entries():
                self._counts.index_entries += 1
                if entry[1] < last or entry[1] >= self._log_limit:
                    self._findings.add(
                        "index-entry",
                        file.path,
                        file.entry_position(entry[3]),
                        f"entry {entry[3]} names log offset {entry[1]}, which is not in its place "
                        f"between {last} and {self._log_limit}",
                        log_offset=entry[1],
                    )
                    continue
                last = entry[1]
                yield file, entry


def _is_right(file: IndexFileAudit, number: int, seconds: int, store_ms: int) -> bool:
    """Whether an entry's seconds are those of its message; header times are noted on the way."""
    if number == file.count - 1:
        file.last_ms = store_ms
    if number > 1:
        return seconds == seconds_since(file.begin_ms, store_ms)
    preset_ms = file.preset_ms
    seconds_right = preset_ms is None or seconds == seconds_since(preset_ms, store_ms)
    return seconds_right and store_ms == file.begin_ms
