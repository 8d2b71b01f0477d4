"""One index file: finds records by the hash of `topic#key`, newest first (store/FORMAT.md 6).
`layout.py` says where the parts of the file lie.

The file is sparse at its full length and mapped. Stores go only into ranges reserved before: the
slots when the file is made, entries a megabyte ahead, both by `reserve`, which may say ENOSPC while
nothing has been stored yet. `put` itself cannot fail.

The header is in attributes while the file is written and goes into the mapping once for each
dispatch (`write_header`), not for each key: the bytes come out the same, and an entry the header
does not count yet is not believed by any reader.

Threads: the store's caller puts and reads; `sync` may run on the flush thread.
"""

import mmap
from collections.abc import Generator, Iterator
from typing import NamedTuple, TypeAlias

from aerobee.store.disk.files import Files
from aerobee.store.errors import StoreLayoutError
from aerobee.store.index.layout import (
    ENTRY,
    HEADER,
    INDEX_ENTRY_BYTES,
    PREVIOUS_POSITION,
    SECONDS_POSITION,
    SLOT,
    SLOT_BYTES,
    entry_at,
    index_file_bytes,
    seconds_since,
    slot_at,
)
from aerobee.store.log.compiled import Compiled

# Entries of a slot that one step of a search looks at: a tenth of a millisecond.
_STEP_ENTRIES = 256
_AHEAD_ENTRIES = (1 << 20) // INDEX_ENTRY_BYTES
#: Stored hash (`slot_hash`), log offset and store time (ms) of one key of a record.
IndexKey: TypeAlias = tuple[int, int, int]
#: Stored hash and log offset of one key of a record.
EntryKey: TypeAlias = tuple[int, int]


class IndexFile:
    """An index file of `slots` and `entries` (entry 0 is never used, so one key less fits)."""

    def __init__(self, files: Files, path: str, slots: int, entries: int) -> None:
        self._files = files
        self._fd = -1
        self._map: mmap.mmap | None = None
        self.slots = slots
        self._reserved = 0
        self.path = path
        self.entries = entries
        self.begin_ms = self.end_ms = 0
        self.begin_offset = self.end_offset = 0
        self.used_slots = 0
        self.count = 1
        self.dirty = False

    @classmethod
    def create(cls, files: Files, path: str, slots: int, entries: int) -> "IndexFile":
        """Make an empty file, its slots reserved. Raises OSError; nothing is left behind then."""
        file = cls(files, path, slots, entries)
        file._fd = files.create(path, index_file_bytes(slots, entries))
        try:
            file.reserve(1)
            file._map = files.map(file._fd, index_file_bytes(slots, entries))
        except OSError:
            file.close()
            files.remove(path)
            raise
        return file

    @classmethod
    def load(cls, files: Files, path: str, slots: int, entries: int) -> "IndexFile":
        """An existing file of the right length; StoreLayoutError when its header is nonsense."""
        file = cls(files, path, slots, entries)
        file._fd = files.open(path)
        try:
            file._take_in()
        except (OSError, StoreLayoutError):
            file.close()
            raise
        return file

    def _take_in(self) -> None:
        """Map the file and take its header over."""
        self._map = self._files.map(self._fd, index_file_bytes(self.slots, self.entries))
        (self.begin_ms, self.end_ms, self.begin_offset, self.end_offset, self.used_slots, count) = (
            HEADER.unpack_from(self._map, 0)
        )
        self.count = max(1, count)
        sane = (
            self.count <= self.entries
            and 0 <= self.used_slots <= self.slots
            and 0 <= self.begin_offset <= self.end_offset
            and self.begin_ms >= 0
        )
        if not sane:
            raise StoreLayoutError(f"the header of {self.path} is damaged")

    @property
    def memory(self) -> mmap.mmap:
        """The file's mapping."""
        assert self._map is not None
        return self._map

    @property
    def full(self) -> bool:
        """Whether no further key fits."""
        return self.count >= self.entries

    @property
    def room(self) -> int:
        """Keys that still fit."""
        return self.entries - self.count if self.entries > self.count else 0

    def begin_after(self, previous: "IndexFile") -> None:
        """Take over the end of the file before, as the reference presets a new file's header."""
        self.begin_ms = self.end_ms = previous.end_ms
        self.begin_offset = self.end_offset = previous.end_offset

    def reserve(self, keys: int) -> None:
        """Make sure that `keys` more keys can be stored (as far as they fit). Raises OSError."""
        needed = min(self.count + keys, self.entries)
        if needed <= self._reserved:
            return
        if self._reserved == 0:
            self._files.reserve(self._fd, 0, entry_at(self.slots, 0))
            self._reserved = self.count
        ahead = min(needed + _AHEAD_ENTRIES, self.entries)
        start = entry_at(self.slots, self._reserved)
        self._files.reserve(self._fd, start, INDEX_ENTRY_BYTES * (ahead - self._reserved))
        self._reserved = ahead

    def put(self, key_hash: int, log_offset: int, store_ms: int) -> None:
        """Add a key's stored hash (`slot_hash`); the caller has reserved room for it."""
        memory = self._map
        count = self.count
        assert memory is not None
        assert count < self._reserved
        place = slot_at(key_hash % self.slots)
        (previous,) = SLOT.unpack_from(memory, place)
        if previous <= 0 or previous > count:
            previous = 0
            self.used_slots += 1
        seconds = self.seconds_of(store_ms)
        ENTRY.pack_into(
            memory, entry_at(self.slots, count), key_hash, log_offset, seconds, previous
        )
        SLOT.pack_into(memory, place, count)
        if count == 1:
            self.begin_offset = log_offset
            self.begin_ms = store_ms
        self.count = count + 1
        self.end_offset = log_offset
        self.end_ms = store_ms

    def seconds_of(self, store_ms: int) -> int:
        """The seconds in an entry of a record of that time, except in the file's first entry."""
        return seconds_since(self.begin_ms, store_ms)

    def put_all(self, keys: list[IndexKey]) -> None:
        """`put` for each of `keys`; a loop of its own, because rebuilds put millions."""
        memory = self._map
        assert memory is not None
        assert self.count + len(keys) <= self._reserved
        if self.count == 1 and keys:
            self.put(*keys[0])  # it sets the beginning
            keys = keys[1:]
        if not keys:
            return
        read_slot, write_slot, write_entry = SLOT.unpack_from, SLOT.pack_into, ENTRY.pack_into
        slots, count, used = self.slots, self.count, self.used_slots
        slots_begin, position = slot_at(0), entry_at(slots, count)
        last_ms = seconds = 0
        for key_hash, log_offset, store_ms in keys:
            place = slots_begin + SLOT_BYTES * (key_hash % slots)
            (previous,) = read_slot(memory, place)
            if previous <= 0 or previous > count:
                previous = 0
                used += 1
            if store_ms != last_ms:
                last_ms = store_ms
                seconds = self.seconds_of(store_ms)
            write_entry(memory, position, key_hash, log_offset, seconds, previous)
            write_slot(memory, place, count)
            count += 1
            position += INDEX_ENTRY_BYTES
        self.count, self.used_slots = count, used
        self.end_offset, self.end_ms = keys[-1][1], keys[-1][2]

    def put_hashed(self, compiled: Compiled, hashed: bytes, first: int, most: int) -> None:
        """`put` for `most` keys of `hashed` (`HASHED`) from the `first` on."""
        assert self.count + most <= self._reserved
        compiled.put_hashed(hashed, first, most, self)

    def write_header(self) -> None:
        """Bring the header in the file up to date."""
        assert self._map is not None
        HEADER.pack_into(
            self._map,
            0,
            self.begin_ms,
            self.end_ms,
            self.begin_offset,
            self.end_offset,
            self.used_slots,
            self.count,
        )
        self.dirty = True

    def covers(self, begin_ms: int, end_ms: int) -> bool:
        """Whether messages of that time may be in this file."""
        return (
            (begin_ms < self.begin_ms and end_ms > self.end_ms)
            or self.begin_ms <= begin_ms <= self.end_ms
            or self.begin_ms <= end_ms <= self.end_ms
        )

    def chain(self, key_hash: int) -> Iterator[tuple[int, int, int, int]]:
        """(number, key hash, log offset, seconds) of the hash's slot's entries, newest first."""
        memory = self._map
        if memory is None:
            return
        number = self.slot(key_hash % self.slots)
        while 0 < number < self.count:
            at = entry_at(self.slots, number)
            entry_hash, log_offset, seconds, previous = ENTRY.unpack_from(memory, at)
            yield number, entry_hash, log_offset, seconds
            # Entries only ever point back; a number that does not is damage, and would loop.
            if previous >= number:
                return
            number = previous

    def select(
        self, key_hash: int, most: int, begin_ms: int, end_ms: int
    ) -> Generator[None, None, list[int]]:
        """Log offsets with that stored hash and a time in the range, newest first. It goes in
        steps: a slot may have millions of entries.

        Entries know their time to the second only, so up to a second's worth before `begin_ms` is
        let through; the caller sees the records and can tell. (The reference misses some instead.)
        """
        found: list[int] = []
        for walked, (number, entry_hash, log_offset, seconds) in enumerate(self.chain(key_hash), 1):
            if seconds < 0 or len(found) >= most:
                break
            if not walked % _STEP_ENTRIES:
                yield
            # The difference of the first entry was taken against the file before (store/FORMAT.md
            # 6.2).
            time_ms = self.begin_ms + (0 if number == 1 else seconds * 1000)
            if entry_hash == key_hash and begin_ms < time_ms + 1000 and time_ms <= end_ms:
                found.append(log_offset)
            if time_ms + 1000 <= begin_ms:
                break
        return found

    def holds(self, key_hash: int, log_offset: int, store_ms: int) -> bool:
        """Whether the newest entries of the hash's slot name that record already.

        It repairs their seconds: a power cut may have torn them off, and nothing else shows it.
        """
        expected = self.seconds_of(store_ms)
        found = False
        for number, entry_hash, entry_offset, seconds in self.chain(key_hash):
            if entry_offset < log_offset:
                break
            if (entry_hash, entry_offset) == (key_hash, log_offset):
                found = True
                # The seconds of the very first entry are relative to the file before.
                if seconds != expected and number > 1:
                    self._set_seconds(number, expected)
        return found

    def _set_seconds(self, number: int, seconds: int) -> None:
        assert self._map is not None
        SLOT.pack_into(self._map, self.entry_position(number) + SECONDS_POSITION, seconds)
        self.dirty = True

    # --- repair of a file in use ----------------------------------------------------------------

    def repair_entry(self, wrong: "WrongEntry") -> bool:
        """Give an entry the hash, log offset and time of its key; False if it is no longer as it
        was found. Its link to the entry before it stays."""
        assert self._map is not None
        number = wrong.number
        key_hash, log_offset, seconds, previous = self.entry(number)
        if ((key_hash, log_offset), seconds) != (wrong.found, wrong.seconds):
            return False
        key_hash, log_offset, store_ms = wrong.key
        # The seconds of the very first entry are relative to the file before (store/FORMAT.md 6.2).
        if number > 1:
            seconds = self.seconds_of(store_ms)
        at = self.entry_position(number)
        ENTRY.pack_into(self._map, at, key_hash, log_offset, seconds, previous)
        self.dirty = True
        return True

    def repair_link(self, number: int, found: int, expected: int) -> bool:
        """Have an entry lead to `expected`; False if it does not lead to `found` now."""
        assert self._map is not None
        if self.entry(number)[3] != found:
            return False
        SLOT.pack_into(self._map, self.entry_position(number) + PREVIOUS_POSITION, expected)
        self.dirty = True
        return True

    def repair_slot(self, slot: int, expected: int, below: int) -> bool:
        """Have a slot lead to `expected`, its newest entry below `below`. Entries that were added
        since lead there: the oldest of them took over the wrong link. False if all is in order."""
        oldest, number = 0, self.slot(slot)
        while below <= number < self.count:
            oldest, number = number, self.entry(number)[3]
            if number >= oldest:
                break
        if number == expected:
            return False
        if oldest:
            return self.repair_link(oldest, number, expected)
        self.set_slot(slot, expected)
        return True

    # --- for the check after a crash (index/check.py) ----------------------------------------

    def read(self, position: int, size: int) -> bytes:
        """Bytes of the file."""
        return self._files.read(self._fd, position, size)

    def entry_position(self, number: int) -> int:
        """Where entry `number` is in the file."""
        return entry_at(self.slots, number)

    def entry(self, number: int) -> tuple[int, int, int, int]:
        """Entry `number`: key hash, log offset, seconds, number of the previous entry."""
        entry: tuple[int, int, int, int] = ENTRY.unpack(
            self.read(self.entry_position(number), INDEX_ENTRY_BYTES)
        )
        return entry

    def slot(self, slot: int) -> int:
        """Number of the newest entry of `slot`."""
        (number,) = SLOT.unpack(self.read(slot_at(slot), SLOT_BYTES))
        return int(number)

    def blank_entries(self, start: int, end: int) -> None:
        """Overwrite the entries [start, end) with zeros. Raises OSError."""
        self._files.zero(self._fd, self.entry_position(start), self.entry_position(end))
        self.dirty = True

    def leads_to(self, number: int, slot: int, wanted: int) -> bool:
        """Whether the uncounted entry `number` of `slot` leads back to the entry `wanted`."""
        while number >= self.count and number < self.entries:
            key_hash, _, _, previous = self.entry(number)
            if key_hash < 0 or key_hash % self.slots != slot or previous >= number:
                return False
            number = previous
        return number == wanted

    def set_slot(self, slot: int, number: int) -> None:
        """Make entry `number` the newest of `slot`."""
        assert self._map is not None
        SLOT.pack_into(self._map, slot_at(slot), number)
        self.dirty = True

    def sync_and_drop_cache(self) -> None:
        """See MappedFile.sync_and_drop_cache. Mapped pages are not forgotten, so the file is mapped
        anew.

        Raises OSError, or StoreLayoutError when the header turns out to be nonsense.
        """
        self._unmap()
        self._files.sync(self._fd)
        self._files.forget_cached(self._fd)
        self._take_in()

    def sync(self) -> None:
        """Wait until all that was put is on the disk. Raises OSError."""
        if self._fd >= 0:
            self.dirty = False
            self._files.data_sync(self._fd)

    def close(self) -> None:
        """Unmap and close."""
        self._unmap()
        if self._fd >= 0:
            self._files.close(self._fd)
            self._fd = -1

    def _unmap(self) -> None:
        if self._map is not None:
            self._map.close()
            self._map = None

    def remove(self) -> None:
        """Close and delete."""
        self.close()
        self._files.remove(self.path)


class WrongEntry(NamedTuple):
    """An entry that does not fit its key: the fields found in it, and the key it should be of."""

    file: IndexFile
    number: int
    found: EntryKey
    seconds: int
    key: IndexKey


class WrongLink(NamedTuple):
    """An entry that leads to another entry than the one before it in its slot."""

    number: int
    found: int
    expected: int


class WrongSlot(NamedTuple):
    """A slot that leads to another entry than its newest one of those below `below`."""

    slot: int
    expected: int
    below: int
