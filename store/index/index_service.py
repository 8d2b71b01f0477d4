"""The run of index files: keys go into the newest, queries walk back from it (FORMAT.md 6.3, 6.4).

A dispatch first calls `reserve` with the number of keys it brings, which makes the next file and
asks the disk for blocks as needed and may fail with nothing stored; then `put_keys` for each
message, which cannot fail; then `finish`.

A file that has become full is handed to `flush`, which syncs it and only then lets the checkpoint
know. Unlike the reference's, the newest file is synced too, also at close.

Threads: the store's caller, except `flush`. In a broker the flush thread calls it, but any thread
may: one flush at a time goes through the full files, and the next begins with the files that the
one before has left.
"""

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import NamedTuple

from aerobee.store.disk.checkpoint import Checkpoint
from aerobee.store.disk.files import Clock, Files
from aerobee.store.errors import StoreLayoutError
from aerobee.store.index.check import cut_uncounted, repair_index_file
from aerobee.store.index.index_file import IndexFile, IndexKey, WrongEntry, WrongLink, WrongSlot
from aerobee.store.index.layout import HASHED_BYTES, I32_MAX, KeyHashes, hash_key, index_file_bytes
from aerobee.store.log.commit_log import Appended
from aerobee.store.log.compiled import Compiled
from aerobee.store.segments.mapped_file_queue import check_file_size, check_is_file
from aerobee.store.store_stats import StoreStats

log = logging.getLogger("aerobee.store")

_SIZE_KEYS = "index_slots and index_entries (maxHashSlotNum, maxIndexNum)"
_NAME = re.compile(r"[0-9]{17}", re.ASCII)
_NAME_FORMAT = "%Y%m%d%H%M%S"
_HOUR_MS = 3_600_000
# Entries that `candidates` looks at: some ten milliseconds.
_WALK_MOST = 8192


class IndexHits(NamedTuple):
    """Log offsets that a look-up found, newest first, and how far the newest file has got."""

    log_offsets: list[int]
    last_ms: int
    last_offset: int


def is_index_name(name: str) -> bool:
    """Whether a file of that name is ours."""
    return _NAME.fullmatch(name) is not None


class IndexNames:
    """Names of index files: the local wall time when they were made, to the millisecond.

    The order of names is the order of the files, so a new name is always above all names that there
    are or were: the clock may have been set back, and a file that was removed may be back after a
    power cut, and must not come after the file that was made in its place. Callers give `seen` the
    names that there are, in order.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = ""

    def seen(self, name: str) -> None:
        """Take note that there is a file of that name."""
        self._last = name

    def next(self) -> str:
        """A name for a new file."""
        self._last = self._following()
        return self._last

    def _following(self) -> str:
        last = self._last
        name = _name_at(self._clock.now_ms())
        if name > last:
            return name
        try:
            last_s = int(time.mktime(time.strptime(last[:14], _NAME_FORMAT)))
        except ValueError:  # digits that somebody else chose
            return f"{int(last) + 1:017d}"
        following_ms = last_s * 1000 + int(last[14:]) + 1
        name = _name_at(following_ms)
        # Where the local clock was put back by an hour, names of that hour exist twice.
        return name if name > last else _name_at(following_ms + _HOUR_MS)


def _name_at(time_ms: int) -> str:
    return f"{time.strftime(_NAME_FORMAT, time.localtime(time_ms // 1000))}{time_ms % 1000:03d}"


class IndexService:
    """Index files of `slots` and `entries` in `directory`."""

    def __init__(
        self,
        *,
        files: Files,
        clock: Clock,
        stats: StoreStats,
        checkpoint: Checkpoint,
        directory: str,
        slots: int,
        entries: int,
        compiled: Compiled | None = None,
    ) -> None:
        self._files = files
        self._stats = stats
        self._checkpoint = checkpoint
        self.directory = directory
        self._slots = slots
        self._entries = entries
        # Replaced as a whole, never changed: other threads may be reading the tuple that they took.
        self.files: tuple[IndexFile, ...] = ()
        # Made ahead by `reserve` for the dispatch that is going on.
        self._spare: list[IndexFile] = []
        # Full files that are not synced yet. The store's caller adds to them, a flush takes out.
        self._sealed: list[IndexFile] = []
        # Held by a flush: two at once would sync a file twice, and each would take out another one.
        self._flushing = threading.Lock()
        # Files with repaired entries that are not synced yet: the caller adds, a flush takes out.
        self._repaired: list[IndexFile] = []
        self.hashes = KeyHashes()
        self._new_names = False
        self._names = IndexNames(clock)
        # A power cut may have torn the entries of records from this log offset on.
        self._unsynced_from = 1 << 63
        self.foreign: list[str] = []
        self.damaged: list[str] = []
        # The compiled form that puts the keys of many messages; None without it.
        self._compiled = compiled

    # --- loading ----------------------------------------------------------------------------

    def load(self) -> None:
        """Open the files, oldest first. Raises StoreSizeMismatch; changes nothing.

        From the first file on that is empty (made ahead of a kill) or has a nonsensical header,
        files are left out and named in `damaged`. All are left out if a file begins before the end
        of the file before it: nobody knows which is a copy or has another file's name.
        """
        expected = index_file_bytes(self._slots, self._entries)
        for name in self._files.names(self.directory):
            path = os.path.join(self.directory, name)
            if not is_index_name(name):
                self.foreign.append(path)
                continue
            check_is_file(self._files, path)
            self._names.seen(name)
            size = self._files.size_of(path)
            if size:
                check_file_size(path, size, expected, _SIZE_KEYS)
            if self.damaged or size == 0:
                self.damaged.append(path)
                continue
            try:
                file = IndexFile.load(self._files, path, self._slots, self._entries)
            except StoreLayoutError:
                self.damaged.append(path)
                continue
            self.files = (*self.files, file)
            if file.count <= 1:
                self._leave_out_from(len(self.files) - 1)
            elif len(self.files) > 1 and file.begin_offset < self.files[-2].end_offset:
                self._leave_out_from(0)

    def _leave_out_from(self, number: int) -> None:
        """Leave out the files from the `number`-th on."""
        for file in self.files[number:]:
            file.close()
            self.damaged.append(file.path)
        self.files = self.files[:number]

    def count_reliable(self, log_end: int, synced_ms: int | None) -> int:
        """How many of the oldest files can be relied on, judged by `log_end` and after a crash.

        Files that name records at or above `log_end` are not counted. After a crash (`synced_ms`
        given) files with younger entries than that were perhaps not synced: they are read through.
        So are files after the first with that very time, and the newest, whatever their times: the
        clock may have been set back, or stand still. Raises OSError when the disk refuses.
        """
        times = [file.end_ms for file in self.files]
        last_synced = times.index(synced_ms) if synced_ms in times else len(times) - 2
        return self._count_whole(
            sum([file.end_offset < log_end for file in self.files]),
            lambda number, file: (
                synced_ms is not None and (file.end_ms > synced_ms or number > last_synced)
            ),
        )

    def _count_whole(
        self,
        most: int,
        is_in_doubt: Callable[[int, IndexFile], bool],
        check: Callable[[IndexFile], bool] = repair_index_file,
    ) -> int:
        """How many of the oldest `most` files are as they were: files in doubt have to pass
        `check`."""
        for number, file in enumerate(self.files[:most]):
            if not self._is_filled(number) or (is_in_doubt(number, file) and not check(file)):
                return number
        return most

    def _is_filled(self, number: int) -> bool:
        """Whether a file is full, as it was before the next was made. It is not full if it is an
        older copy, or a failed sync has lost its header."""
        return number == len(self.files) - 1 or self.files[number].full

    @property
    def paths(self) -> list[str]:
        """Paths of all files, damaged ones too."""
        return [file.path for file in self.files] + self.damaged

    @property
    def names(self) -> set[str]:
        """Names of all files, damaged ones too."""
        return {os.path.basename(path) for path in self.paths}

    def file_names(self) -> tuple[str, ...]:
        """Names of the files in use, oldest first."""
        return tuple([os.path.basename(file.path) for file in self.files])

    def cut_uncounted(self) -> int:
        """After a kill, nothing being lost: forget keys that the newest file does not count yet.

        Returns how many of the oldest files can be relied on. Each file but the newest was full
        once, or no file would follow it; if it is not full now, a failed sync that nobody could
        note took something.
        """
        most = len(self.files)
        return self._count_whole(most, lambda number, _: number == most - 1, cut_uncounted)

    def whole_up_to(self, log_offset: int) -> int:
        """After a power cut: how many of the oldest files can be relied on.

        Files with keys of records at or above `log_offset` were perhaps not synced: they are read
        through. So is the newest, whose header may be older than its slots. A file that has only
        such keys may follow a file whose very name was lost, so it goes. Raises OSError when the
        disk refuses.
        """
        self._unsynced_from = log_offset
        keep = sum([file.begin_offset < log_offset for file in self.files])
        return self._count_whole(
            keep, lambda number, file: file.end_offset >= log_offset or number == keep - 1
        )

    def sync_and_drop_caches(self, log_offset: int) -> None:
        """After a crash: see files with keys of records at or above `log_offset` as the disk has
        them, and have them and their names synced. Raises OSError.

        From the first file on that is empty or nonsense on the disk, all are `damaged`.
        """
        for number, file in enumerate(self.files):
            if file.end_offset < log_offset and file is not self.files[-1]:
                continue
            self._new_names = True
            try:
                file.sync_and_drop_cache()
                usable = file.count > 1
            except StoreLayoutError:
                usable = False
            if not usable:
                self._leave_out_from(number)
                return

    def loses_files(self, number: int | None) -> bool:
        """Whether `drop_from` would remove any file; `None` keeps all."""
        return number is not None and (number < len(self.files) or bool(self.damaged))

    def drop_from(self, number: int) -> list[str]:
        """Remove all but the oldest `number` files, and those that could not be read; return the
        paths."""
        removed = [file.path for file in self.files[number:]] + self.damaged
        for file in self.files[number:]:
            file.close()
        for path in removed:
            self._files.remove(path)
        self.files = self.files[:number]
        self.damaged = []
        self._new_names = self._new_names or bool(removed)
        return removed

    def take_below(self, log_offset: int) -> tuple[IndexFile, ...]:
        """Take out the oldest files that know no record at or above `log_offset`, never the last.
        Files that the flush thread still has to sync are not taken. All stay on the disk.
        """
        count = 0
        for file in self.files[:-1]:
            if file.end_offset >= log_offset or file in self._sealed or file in self._repaired:
                break
            count += 1
        taken, self.files = self.files[:count], self.files[count:]
        return taken

    # --- writing ----------------------------------------------------------------------------

    def reserve(self, keys: int) -> None:
        """Make room for `keys` more. Raises OSError with nothing stored."""
        if not keys:
            return
        current = self.files[-1] if self.files else None
        room = 0
        if current is not None and not current.full:
            current.reserve(keys)
            room = current.room
        for spare in self._spare:
            spare.reserve(keys)
            room += spare.room
        while room < keys:
            spare = self._create()
            self._spare.append(spare)
            spare.reserve(keys)
            room += spare.room

    def drop_spares(self) -> None:
        """Remove files that were made ahead for keys that turned out to be there. Raises OSError.

        Until the next dispatch nobody needs them, and a kill would leave them over.
        """
        while self._spare:
            self._spare.pop().remove()

    def put_keys(self, topic: str, keys: tuple[str, ...], log_offset: int, store_ms: int) -> None:
        """Index a message under its keys; room for them was reserved."""
        file = self.files[-1] if self.files else self._roll()
        for key_hash in self.hashes.of(topic, keys):
            if file.count >= file.entries:
                file = self._roll()
            file.put(key_hash, log_offset, store_ms)

    def put_entries(self, entries: list[Appended], keys: int) -> None:
        """Index the messages of one round of dispatch, whose keys are `keys` altogether, as
        `put_keys` does."""
        compiled = self._compiled
        if compiled is not None and self.files:
            file = self.files[-1]
            if file.room >= keys:
                hashes = self.hashes
                prefixes = (hashes.prefixes, hashes.prefix)
                compiled.put_keys(entries, file, *prefixes, hash_key)
                return
        for _, _, log_offset, _, _, own, store_ms, topic in entries:
            if own:
                self.put_keys(topic, own, log_offset, store_ms)

    def put_all(self, entries: Iterable[Appended]) -> None:
        """Index many messages, as `put_keys` does."""
        found: list[IndexKey] = []
        for _, _, log_offset, _, _, keys, store_ms, topic in entries:
            hashes = self.hashes.of(topic, keys)
            found += [(key_hash, log_offset, store_ms) for key_hash in hashes]
        done = 0
        while done < len(found):
            file = self.files[-1] if self.files else self._roll()
            if file.full:
                file = self._roll()
            part = found[done : done + file.room]
            file.put_all(part)
            done += len(part)

    def put_hashed(self, compiled: Compiled, hashed: bytes) -> None:
        """Put keys that a compiled form has hashed (`HASHED`); room for them was reserved."""
        done, count = 0, len(hashed) // HASHED_BYTES
        while done < count:
            file = self.files[-1] if self.files else self._roll()
            if file.full:
                file = self._roll()
            most = min(count - done, file.room)
            file.put_hashed(compiled, hashed, done, most)
            done += most

    def repair(self, file: IndexFile, wrong: WrongEntry | WrongLink | WrongSlot) -> bool:
        """Repair a fault found in a file in use; False if the fault is not there any more."""
        if file not in self.files:
            return False
        if isinstance(wrong, WrongEntry):
            repaired = file.repair_entry(wrong)
        elif isinstance(wrong, WrongLink):
            repaired = file.repair_link(wrong.number, wrong.found, wrong.expected)
        else:
            repaired = file.repair_slot(wrong.slot, wrong.expected, wrong.below)
        if repaired and file not in self._repaired:
            self._repaired.append(file)
        return repaired

    @property
    def end_offset(self) -> int:
        """Records above this log offset are not indexed; -1 while nothing is."""
        return self.files[-1].end_offset if self.files and self.files[-1].count > 1 else -1

    @property
    def looked_at(self) -> tuple[int, int]:
        """(log offset below which `put_missing_keys` does nothing, last one for which it looks)."""
        end = self.end_offset
        return min(end, self._unsynced_from), end

    def put_missing_keys(
        self, topic: str, keys: tuple[str, ...], log_offset: int, store_ms: int
    ) -> None:
        """Do `put_keys` for a record that may be indexed already, wholly or in part."""
        file = self.files[-1] if self.files else None
        if file is not None and log_offset <= file.end_offset and file.count > 1:
            if log_offset < min(file.end_offset, self._unsynced_from):
                return
            hashes = [(key, self.key_hash(topic, key)) for key in keys]
            missing = tuple(
                key
                for key, key_hash in hashes
                if not any(near.holds(key_hash, log_offset, store_ms) for near in self.files[-2:])
            )
            if log_offset < file.end_offset:
                return
            keys = missing
        self.put_keys(topic, keys, log_offset, store_ms)

    def finish(self) -> None:
        """End a dispatch: bring the headers up to date."""
        if self.files:
            self.files[-1].write_header()

    def _roll(self) -> IndexFile:
        file = self._spare.pop(0)
        if self.files:
            full = self.files[-1]
            full.write_header()
            file.begin_after(full)
            self._sealed.append(full)
        self.files = (*self.files, file)
        return file

    def _create(self) -> IndexFile:
        # Never the store's own directory, which may have been moved away.
        root = os.path.dirname(self.directory)
        for directory in self._files.make_directories(self.directory, below=root):
            self._files.sync_directory(directory)
        path = os.path.join(self.directory, self._names.next())
        file = IndexFile.create(self._files, path, self._slots, self._entries)
        self._new_names = True
        self._stats.index_files_created += 1
        return file

    # --- reading ----------------------------------------------------------------------------

    def find(
        self, topic: str, key: str, most: int, begin_ms: int, end_ms: int
    ) -> Generator[None, None, IndexHits]:
        """Log offsets of at most `most` records with (very likely) that key and a time in the
        range, in steps."""
        files = self.files
        found: list[int] = []
        key_hash = self.key_hash(topic, key)
        for file in reversed(files):
            if file.covers(begin_ms, end_ms):
                more = yield from file.select(key_hash, most - len(found), begin_ms, end_ms)
                found += more
            if file.begin_ms < begin_ms or len(found) >= most:
                break
        # A record may have been indexed twice over a restart.
        found = list(dict.fromkeys(found))
        if not files:
            return IndexHits(found, 0, 0)
        return IndexHits(found, files[-1].end_ms, files[-1].end_offset)

    def key_hash(self, topic: str, key: str) -> int:
        """The hash that is stored for a key."""
        return self.hashes.of(topic, (key,))[0]

    # --- the flush thread -------------------------------------------------------------------

    def flush(self, *, all_files: bool) -> None:
        """Sync the full files, and the newest one too with `all_files`. Raises OSError.

        Any thread may call this; files that another thread is syncing are synced when this returns.
        """
        with self._flushing:
            if self._new_names:
                self._new_names = False
                try:
                    self._files.sync_directory(self.directory)
                except OSError:
                    self._new_names = True
                    raise
            while self._sealed:
                file = self._sealed[0]
                end_ms = file.end_ms
                file.sync()
                self._checkpoint.index_ms = end_ms
                self._sealed.pop(0)
            for file in list(self._repaired):
                file.sync()
                self._repaired.remove(file)
                if file.dirty:  # more was repaired meanwhile: the next flush's
                    self._repaired.append(file)
            files = self.files
            if all_files and files and files[-1].dirty:
                files[-1].sync()

    def seal(self) -> None:
        """Sync all at close, and let the checkpoint say so: all is dispatched, and the owner is
        alone."""
        self.flush(all_files=True)
        if self.files:
            self._checkpoint.index_ms = self.files[-1].end_ms

    def close(self) -> None:
        """Close all files; files made ahead are removed; if that fails, by the next start."""
        for file in (*self.files, *self._spare):
            file.close()
        try:
            self.drop_spares()
        except OSError as error:
            log.warning("unused index file not removed path=%s %s", self.directory, error)


def candidates(
    files: Sequence[IndexFile], key_hash: int, begin_ms: int, end_ms: int
) -> Iterator[int]:
    """Log offsets with that stored hash whose time may be in the range, newest first.

    For queries that have found nothing otherwise. Where the clock was set back, the times in a
    file's header do not enclose those of its entries, and an entry that is older than the range may
    have younger ones after it in the chain; `IndexService.find` stops in both cases, as the
    reference does. This goes through the whole chain of the key's slot in every file. It has a
    bound: a slot may have millions of entries, so entries further back than `_WALK_MOST` are not
    found.
    """
    walks = (_chain(file, key_hash, begin_ms, end_ms) for file in reversed(files))
    for log_offset in islice(chain.from_iterable(walks), _WALK_MOST):
        if log_offset is not None:
            yield log_offset


def _chain(file: IndexFile, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int | None]:
    """Yield an item for each entry of the slot: its log offset, None if it cannot be meant.

    An entry has the seconds since the file's first message. They say nothing about the very first
    message (store/FORMAT.md 6.2), nor about messages stored before it or more than 68 years after
    it.
    """
    for number, entry_hash, log_offset, seconds in file.chain(key_hash):
        time_ms = file.begin_ms + seconds * 1000
        fits = begin_ms < time_ms + 1000 and time_ms <= end_ms
        unknown = number == 1 or seconds <= 0 or seconds == I32_MAX
        yield log_offset if entry_hash == key_hash and (fits or unknown) else None
