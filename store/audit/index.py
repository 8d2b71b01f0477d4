"""Holds the index files against the log: every key of every record, and nothing else.

Entries were made in the order of the log, so the log and all entries are read side by side. What
the files' own chains lead to is checked in `inspect/index_file.py`; both together say that a
look-up by a key finds its message. Entries of records the log does not have any
more are passed over.
"""

import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from aerobee.protocol.hashing import java_hash, java_hash_with_prefix
from aerobee.store.index.file import I32_MAX, slot_hash
from aerobee.store.inspect.index_file import Entry, IndexFileAudit
from aerobee.store.inspect.report import Counts, Findings
from aerobee.store.inspect.store_files import StoreFiles
from aerobee.store.scan.sequence import Gap

_PREFIXES_KEPT = 4096


@dataclass(slots=True)
class _Missing:
    """Records in a row whose keys are not in the index."""

    first_log: int
    last_log: int = 0
    messages: int = 0
    keys: int = 0


class IndexAudit:
    """Fed with the records of the log in order, then asked to `finish`. `gaps` may grow."""

    def __init__(
        self,
        store: StoreFiles,
        findings: Findings,
        counts: Counts,
        gaps: Sequence[Gap],
    ) -> None:
        self._findings = findings
        self._counts = counts
        self._gaps = gaps
        self._clean_stop = not store.left_open
        self._enabled = store.settings.index_enabled
        self._log_limit = 0
        self._prefixes: dict[str, int] = {}
        self._directory = os.path.join(store.root, "index")
        self._files = [
            IndexFileAudit(store, file.path, file.size, findings)
            for file in store.layout.index_files
        ]
        self._current: IndexFileAudit | None = None
        self._stream = self._entries()
        self._ahead: tuple[IndexFileAudit, Entry] | None = None
        self._missing: _Missing | None = None
        self._last_indexed = -1

    # --- while the log is read --------------------------------------------------------------

    def start(self, log_start: int, log_limit: int) -> None:
        """Pass over what is older than the log; entries at or above `log_limit` are nonsense."""
        self._log_limit = log_limit
        self._next()
        while self._ahead is not None and self._ahead[1][1] < log_start:
            self._next()

    def feed(self, topic: str, keys: tuple[str, ...], log_offset: int, store_ms: int) -> None:
        """The next record and the words it is to be found by."""
        ahead = self._ahead
        while ahead is not None and ahead[1][1] < log_offset:
            self._stray(ahead)
            ahead = self._next()
        if not keys and (ahead is None or ahead[1][1] > log_offset):
            return
        prefix = self._prefixes.get(topic) or self._prefix(topic)
        wanted = [slot_hash(java_hash_with_prefix(prefix, key)) for key in keys]
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
        """A record that stands for lost ones: entries that name it are theirs."""
        while self._ahead is not None and self._ahead[1][1] <= log_offset:
            if self._ahead[1][1] < log_offset:
                self._stray(self._ahead)
            self._next()

    def _compare(self, found: list[int], wanted: list[int], log_offset: int) -> None:
        lacking = Counter(wanted) - Counter(found)
        if not lacking:
            return  # some twice: the last record before a restart is indexed again by RocketMQ
        missing = self._missing
        if missing is None:
            missing = self._missing = _Missing(log_offset)
        missing.last_log = log_offset
        missing.messages += 1
        missing.keys += lacking.total()

    # --- at the end -------------------------------------------------------------------------

    def finish(self, log_end: int) -> None:
        """Entries that are left, keys that are missing at the end."""
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
        if self._in_gap(log_offset):
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

    def _in_gap(self, log_offset: int) -> bool:
        index = bisect_right(self._gaps, log_offset, key=lambda gap: gap.start) - 1
        return index >= 0 and log_offset < self._gaps[index].end

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

    def _prefix(self, topic: str) -> int:
        if len(self._prefixes) >= _PREFIXES_KEPT:
            self._prefixes.clear()
        prefix = self._prefixes[topic] = java_hash(topic + "#")
        return prefix


def _is_right(file: IndexFileAudit, number: int, seconds: int, store_ms: int) -> bool:
    """Whether an entry's seconds are those of its message; header times are noted on the way."""
    if number == file.count - 1:
        file.last_ms = store_ms
    if number > 1:
        return seconds == _seconds(store_ms, file.begin_ms)
    preset_ms = file.preset_ms
    seconds_right = preset_ms is None or seconds == _seconds(store_ms, preset_ms)
    return seconds_right and store_ms == file.begin_ms


def _seconds(store_ms: int, begin_ms: int) -> int:
    """What an entry holds of its message's time (store/FORMAT.md 6.2)."""
    if begin_ms <= 0 or store_ms <= begin_ms:
        return 0
    return min((store_ms - begin_ms) // 1000, I32_MAX)
