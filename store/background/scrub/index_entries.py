"""Compares the records of a segment with their entries in the index.

The index has an entry for each key of each record, in the order of the log. So entries and the keys
of the records are two sequences that should agree, and a flipped bit in an entry, or a page that
was lost, shows as a place where they part and meet again. Between two places where they agree, as
many entries as keys are the entries of those keys, whatever they hold now; where the numbers differ
(records were damaged, or indexed twice over a restart), an entry that is one bit from a missing key
belongs to that key. Where the log has keys and the index nothing, nothing is wrong: it may have
been turned off, and its files expire on their own.

Differences are handed on, and repaired by the owner of the index (`queue_repair.py`).

Threads: the scrub's thread, which reads files through its own descriptors.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Generator, Iterator
from functools import partial
from typing import NamedTuple

from aerobee.protocol.message.record_check import Checked
from aerobee.store.disk.files import Files
from aerobee.store.dispatch.derived import keys_of
from aerobee.store.index.index_file import EntryKey, IndexFile, IndexKey, WrongEntry
from aerobee.store.index.index_service import IndexService
from aerobee.store.index.layout import KeyHashes
from aerobee.store.index.view import IndexView

log = logging.getLogger("aerobee.store.background.scrub")

# Keys gathered before entries are read, and how far ahead the two sequences are to meet again: a
# damaged page holds 205 entries.
_MOST_GATHERED = 4096
_WINDOW = 512
# Entries compared in one step.
_STEP_ENTRIES = 256
# Entries before the segment's that are looked at as well.
_BEFORE = 4
# With more wrong entries of a segment than this the file has to be made again.
_MOST_DIFFERENT = 65_536

_HASH_AND_OFFSET = struct.Struct(">iq")


class _Entry(NamedTuple):
    """An entry as it is in its file."""

    key: EntryKey
    seconds: int
    file: IndexFile
    number: int


class IndexEntryCheck:
    """The check of a segment that begins at log offset `start`; `close` it. A file that is deleted
    meanwhile, or that the disk refuses to give, ends the comparison."""

    def __init__(self, files: Files, index: IndexService, start: int) -> None:
        self._files = files
        self._start = start
        self._index_files = tuple([file for file in index.files if file.end_offset >= start])
        self._fds: dict[IndexFile, int] = {}
        self._hashes = KeyHashes()
        # Keys of the records that no entry was compared with yet.
        self._expected: list[IndexKey] = []
        # Entries that were read and not compared yet, and the place of the next entry.
        self._found: list[_Entry] = []
        self._next: tuple[int, int] | None = None
        # Whether the last entry and the last key that were compared agree.
        self._agrees = False
        # The last entry that agreed with its key, and whether its time agreed.
        self._last: tuple[_Entry, bool] | None = None
        #: Entries that do not fit their keys.
        self.wrong: list[WrongEntry] = []

    def close(self) -> None:
        """Close the index files."""
        for fd in self._fds.values():
            self._files.close(fd)
        self._fds = {}

    def feed(self, records: list[Checked]) -> None:
        """The next sound records of the segment."""
        if not self._index_files:
            return
        for record in records:
            log_offset, _, _, _, sys_flag, store_ms, topic = record[:7]
            hashes = self._hashes.of(topic, keys_of(sys_flag, record[-1]))
            self._expected += [(key_hash, log_offset, store_ms) for key_hash in hashes]

    def compare(self, *, all_of_them: bool = False) -> Iterator[None]:
        """Compare the gathered keys if they are enough to be worth it, in steps."""
        try:
            yield from self._compare(all_of_them=all_of_them)
        except OSError as error:
            self._index_files = ()
            self._expected.clear()
            if not isinstance(error, FileNotFoundError):  # deleted
                log.warning("index file not scrubbed error=%s", error)

    def _compare(self, *, all_of_them: bool) -> Iterator[None]:
        if len(self._expected) < (1 if all_of_them else _MOST_GATHERED):
            return
        if self._next is None:
            self._next = self._begin()
        least = 0 if all_of_them else _WINDOW
        while len(self._expected) > least and len(self.wrong) < _MOST_DIFFERENT:
            yield from self._read_ahead()
            if not self._found:
                self._expected.clear()
                return
            same = self._count_same()
            self._agrees = self._agrees or same > 0
            if not same:
                self._pass_difference()
            yield

    # --- the two sequences ----------------------------------------------------------------------

    def _count_same(self) -> int:
        """Take out the equal parts at the front of both, at most a step's; return how many."""
        same = 0
        pairs = zip(self._expected[:_STEP_ENTRIES], self._found[:_STEP_ENTRIES], strict=False)
        for expected, entry in pairs:
            if expected[:2] != entry.key:
                break
            same += 1
            is_right = _has_time_of(entry, expected)
            if not is_right and self._is_in_order(same, entry, expected):
                self._note(entry, expected)
            self._last = (entry, is_right)
        del self._expected[:same], self._found[:same]
        return same

    def _is_in_order(self, following: int, entry: _Entry, key: IndexKey) -> bool:
        """Whether the entry may be given the time of its record, which differs from its own, by the
        entries beside it. Those have to have the times of their records, or the file's begin is
        wrong. And nothing guards the store time of a record: if it fits worse than the entry's, the
        record is damaged, or a clock was set back, and the entry stays as it is."""
        seconds, beside = entry.file.seconds_of(key[2]), 0
        if self._last is not None and self._last[0].file is entry.file:
            before, is_right = self._last
            if before.number > 1:
                beside += 1
                if not is_right or before.seconds > seconds:
                    return False
        if following < min(len(self._found), len(self._expected)):
            after, expected = self._found[following], self._expected[following]
            if after.file is entry.file and after.key == expected[:2]:
                beside += 1
                if not _has_time_of(after, expected) or seconds > after.seconds:
                    return False
        return beside > 0

    def _pass_difference(self) -> None:
        """Go to the place where both meet again, and judge the entries and keys before it."""
        places: dict[EntryKey, int] = {}
        for place, expected in enumerate(self._expected[:_WINDOW]):
            places.setdefault(expected[:2], place)
        for entries, entry in enumerate(self._found[:_WINDOW]):
            keys = places.get(entry.key)
            if keys is not None:
                self._judge(entries, keys, are_between=self._agrees)
                return
        self._judge(_WINDOW, 0 if self._is_behind() else _WINDOW, are_between=False)

    def _is_behind(self) -> bool:
        """Whether the entries belong to records before those whose keys are looked for."""
        offsets = sorted([entry.key[1] for entry in self._found[:_WINDOW]])
        return offsets[len(offsets) // 2] < self._expected[0][1]

    def _judge(self, entries: int, keys: int, *, are_between: bool) -> None:
        """Judge the next `entries` and `keys`, of which none agree, and take them out."""
        found, expected = self._found[:entries], self._expected[:keys]
        self._agrees = False
        del self._found[:entries], self._expected[:keys]
        if are_between and len(found) == len(expected):
            for entry, key in zip(found, expected, strict=True):
                self._note(entry, key)
            return
        for key in expected:
            alike = [entry for entry in found if _differ_in_a_bit(entry.key, key[:2])]
            if len(alike) == 1:
                self._note(alike[0], key)

    def _note(self, entry: _Entry, key: IndexKey) -> None:
        self.wrong.append(WrongEntry(entry.file, entry.number, entry.key, entry.seconds, key))

    # --- reading --------------------------------------------------------------------------------

    def _begin(self) -> tuple[int, int]:
        """The place of the first entry of the segment, or of some entry before it."""
        file = self._index_files[0]
        low, high = 1, file.count
        while low < high:
            middle = (low + high) // 2
            near = [entry[1] for entry in self._fields(file, max(1, middle - 1), 3)]
            # One of them may be wrong.
            if near and sorted(near)[len(near) // 2] < self._start:
                low = middle + 1
            else:
                high = middle
        return 0, max(1, low - _BEFORE)

    def _read_ahead(self) -> Generator[None, None, None]:
        """Have entries at hand for as far as the sequences may be apart."""
        assert self._next is not None
        while len(self._found) < _WINDOW + _STEP_ENTRIES:
            place, number = self._next
            if place >= len(self._index_files):
                return
            file = self._index_files[place]
            fields = self._fields(file, number, _WINDOW)
            for key_hash, log_offset, seconds, _ in fields:
                self._found.append(_Entry((key_hash, log_offset), seconds, file, number))
                number += 1
            self._next = (place, number) if fields and number < file.count else (place + 1, 1)
            yield

    def _fields(self, file: IndexFile, number: int, most: int) -> list[tuple[int, int, int, int]]:
        """The fields of up to `most` entries from `number` on."""
        if file not in self._fds:
            self._fds[file] = self._files.open(file.path, read_only=True)
        view = IndexView(partial(self._files.read, self._fds[file]), file.slots)
        end = min(number + most, file.count)
        return [entry for _, entries in view.chunks(end, most, number) for entry in entries]


def _has_time_of(entry: _Entry, key: IndexKey) -> bool:
    """Whether the times agree; the first entry counts from the file before (FORMAT.md 6.2)."""
    return entry.number == 1 or entry.seconds == entry.file.seconds_of(key[2])


def _differ_in_a_bit(one: EntryKey, other: EntryKey) -> bool:
    first, second = _HASH_AND_OFFSET.pack(*one), _HASH_AND_OFFSET.pack(*other)
    differing = int.from_bytes(first, "big") ^ int.from_bytes(second, "big")
    return differing.bit_count() == 1
