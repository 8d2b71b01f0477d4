"""Makes a backup of a store in a directory, or brings one up to date; a broker may run meanwhile.

The tables of one moment come first, then the log up to a mark that they need (`store_source.py`).
Segments are copied once; of the last one only the part up to the mark, and its new part the next
time. The manifest names each file once that is synced, so a backup may be broken off anywhere: the
next one goes on there, and until then the one before can be restored (`manifest.py`).

A segment that retention removes before it was copied is left out. A backup keeps what it has.
"""

import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial

import msgspec

from aerobee.config.model import Settings
from aerobee.protocol.checksum import crc32c
from aerobee.store.at_rest.backup import manifest as layout
from aerobee.store.at_rest.backup.copying import (
    PIECE_BYTES,
    Pace,
    despite_removals,
    make_directory,
    naming,
    opened,
    pieces,
    write_new,
)
from aerobee.store.at_rest.backup.manifest import (
    HEAD_BYTES,
    OFFSETS,
    QUEUES,
    CopiedFile,
    CopiedSegment,
    FileSizes,
    Manifest,
    Snapshot,
)
from aerobee.store.at_rest.backup.store_source import StoreSource
from aerobee.store.disk.files import Clock, Files
from aerobee.store.disk.offsets_file import encode
from aerobee.store.errors import BackupRefused
from aerobee.store.inspect.store_files import StoreFiles
from aerobee.store.inspect.store_layout import FoundFile, log_directories
from aerobee.store.recovery.recovery_report import Progress


@dataclass(frozen=True, kw_only=True)
class BackupOptions:
    """`rate` is in bytes a second, 0 for no limit. A broker's durable mark is waited for `wait_s`:
    ASYNC_FLUSH syncs the last bytes of a log that rests after 10 s."""

    rate: float = 0
    wait_s: float = 15.0
    progress: Progress | None = None


@dataclass
class BackupReport:
    """The bytes that were copied, and the log that can be restored from the backup now."""

    target: str
    mark: int = 0
    log_begins: int = 0
    segments: int = 0
    copied_bytes: int = 0
    tables: int = 0
    #: Names of segments that were removed from the store before they were copied.
    left_out: list[str] = field(default_factory=list)


def back_up(
    settings: Settings,
    target: str,
    given: Collection[str] = (),
    files: Files | None = None,
    clock: Clock | None = None,
    *,
    options: BackupOptions | None = None,
) -> BackupReport:
    """Copy what is new in the store below `settings.store_path` to the directory `target`.

    Raises NotAStore, StoreLayoutError or StoreSizeMismatch for the store, BackupRefused or
    BackupDamaged for the target, OSError. What was in the target before can be restored then.
    """
    files, clock, target = files or Files(), clock or Clock(), os.path.abspath(target)
    with closing(despite_removals(partial(StoreFiles, files, settings, given))) as store:
        check_apart(target, (store.root, *log_directories(store.settings)))
        _check_target(files, target)
        make_directory(files, target)
        with _locked(files, target):
            run = _Run(store, target, clock, options or BackupOptions())
            return run.run()


def check_apart(target: str, directories: Iterable[str]) -> None:
    """Refuse a backup inside one of a store's directories, and a store inside its backup. Raises
    BackupRefused."""
    there = os.path.realpath(target)
    for directory in directories:
        store = os.path.realpath(directory)
        if os.path.commonpath((there, store)) in (there, store):
            raise BackupRefused(
                f"{target} and {directory} lie in each other. A backup has to be somewhere else, "
                "best on another disk."
            )


def _check_target(files: Files, target: str) -> None:
    if files.exists(target) and not files.is_directory(target):
        raise BackupRefused(f"{target} is a file; name a directory for the backup")
    others = set(files.names(target)) - {layout.TEMPORARY, layout.LOCK, "lost+found"}
    if others and not layout.is_there(files, target):
        raise BackupRefused(
            f"{target} is not empty and is no backup: it has no file {layout.NAME!r}. Name an "
            "empty directory, a new one, or that of an earlier backup."
        )


@contextmanager
def _locked(files: Files, target: str) -> Iterator[None]:
    """Keep other runs out of the target."""
    path = os.path.join(target, layout.LOCK)
    with opened(files, path, create=not files.exists(path)) as fd:
        if not files.try_lock(fd):
            raise BackupRefused(f"another backup writes to {target}; wait until it has ended")
        yield


class _Run:
    """One run, on a target that is locked."""

    def __init__(
        self, store: StoreFiles, target: str, clock: Clock, options: BackupOptions
    ) -> None:
        self._store = store
        self._files = store.files
        self._target = target
        self._clock = clock
        self._options = options
        self._source = StoreSource(store, clock)
        self._segment_bytes = store.sizes.segment_bytes
        self._report = BackupReport(target)
        self._manifest: Manifest

    def run(self) -> BackupReport:
        """Copy all that is new; what it did."""
        self._manifest = self._load()
        for found in self._source.segments():
            self._check_same(found)
        self._forget_old_tables()
        snapshot = self._copy_tables()
        self._copy_log(snapshot.mark)
        self._save(msgspec.structs.replace(self._manifest, snapshot=snapshot))
        self._forget_old_tables()
        restorable = self._manifest.restorable()
        report = self._report
        report.mark, report.tables = snapshot.mark, len(snapshot.files)
        report.segments = len(restorable)
        report.log_begins = restorable[0].start if restorable else snapshot.mark
        return report

    # --- the manifest -------------------------------------------------------------------------

    def _load(self) -> Manifest:
        """The manifest that is there, else a new one, which makes the directory a backup."""
        sizes = FileSizes(*self._store.sizes[:-1])
        if not layout.is_there(self._files, self._target):
            self._save(Manifest(sizes))
            return Manifest(sizes)
        found = layout.load(self._files, self._target)
        if found.segments and found.sizes.segment_bytes != sizes.segment_bytes:
            raise BackupRefused(
                f"{self._target} is a backup of another broker: its segments are those of "
                f"{found.sizes.segment_bytes} bytes, not {sizes.segment_bytes}"
            )
        return msgspec.structs.replace(found, sizes=sizes)

    def _save(self, manifest: Manifest) -> None:
        with naming(os.path.join(self._target, layout.NAME)):
            layout.save(self._files, self._target, manifest)
        self._manifest = manifest

    def _copied(self, start: int) -> CopiedSegment | None:
        return next((one for one in self._manifest.segments if one.start == start), None)

    # --- whether it is the same broker ----------------------------------------------------------

    def _check_same(self, found: FoundFile) -> None:
        """Refuse a store whose segment does not go on from the copy: head, and end if it grows."""
        copied = self._copied(found.start)
        if copied is None:
            return
        head = self._read(found.path, 0, min(HEAD_BYTES, copied.bytes))
        if head is None:
            return  # removed just now
        if crc32c(head) != copied.head_crc32c:
            raise self._other(copied, "begins with other bytes")
        if copied.bytes < self._segment_bytes:
            at = max(0, copied.bytes - HEAD_BYTES)
            end = self._read(found.path, at, copied.bytes)
            ours = self._read(os.path.join(self._target, copied.name), at, copied.bytes)
            if end is not None and end != ours:
                raise self._other(copied, f"has other bytes before log offset {copied.end}")

    def _read(self, path: str, start: int, end: int) -> bytes | None:
        try:
            return b"".join(
                data for _, data in pieces(self._files, path, start, end, keep_cached=True)
            )
        except FileNotFoundError:
            return None

    def _other(self, copied: CopiedSegment, what: str) -> BackupRefused:
        return BackupRefused(
            f"{self._target} is a backup of another broker, or of an earlier state of this one: "
            f"the store's segment {os.path.basename(copied.name)} {what}. Begin a new backup in "
            "an empty directory."
        )

    # --- tables ---------------------------------------------------------------------------------

    def _copy_tables(self) -> Snapshot:
        """The tables of now, with the mark that they need, in a directory that is synced."""
        name = self._free_name()
        root = os.path.join(self._target, name)
        make_directory(self._files, root)
        copied = [self._copy_table(root, *table) for table in self._source.tables(late=False)]
        mark, known = self._source.wait_for_mark(self._options.wait_s)
        if mark < self._manifest.end:
            raise BackupRefused(
                f"{self._target} reaches log offset {self._manifest.end}, the store only {mark}: "
                "it was truncated, or is another broker's. Begin a new backup in an empty "
                "directory."
            )
        copied += [self._copy_table(root, *table) for table in self._source.tables(late=True)]
        ends = msgspec.json.encode(self._source.queue_ends(mark))
        copied.append(self._copy_table(root, QUEUES, ends))
        if known is not None:
            copied.append(self._copy_table(root, OFFSETS, encode(known)))
        for directory in {os.path.dirname(os.path.join(root, one.name)) for one in copied}:
            self._files.sync_directory(directory)
        return Snapshot(mark, self._clock.now_ms(), name, tuple(copied))

    def _copy_table(self, root: str, name: str, data: bytes) -> CopiedFile:
        write_new(self._files, os.path.join(root, name), data)
        self._report.copied_bytes += len(data)
        return CopiedFile(name, len(data), crc32c(data))

    def _table_directories(self) -> list[str]:
        names = self._files.names(self._target)
        return [name for name in names if name.startswith(layout.TABLES)]

    def _free_name(self) -> str:
        numbers = [name.removeprefix(layout.TABLES) for name in self._table_directories()]
        last = max((int(text) for text in numbers if text.isdecimal()), default=0)
        return f"{layout.TABLES}{last + 1}"

    def _forget_old_tables(self) -> None:
        snapshot = self._manifest.snapshot
        for name in self._table_directories():
            if snapshot is None or name != snapshot.directory:
                self._files.remove_tree(os.path.join(self._target, name))

    # --- the log --------------------------------------------------------------------------------

    def _copy_log(self, mark: int) -> None:
        """Copy the segments below the mark, the oldest first."""
        wanted = []
        for found in self._source.segments():
            count = min(self._segment_bytes, mark - found.start)
            copied = self._copied(found.start)
            if count > (copied.bytes if copied else 0):
                wanted.append((found, count, copied))
        make_directory(self._files, os.path.join(self._target, layout.LOG))
        options = self._options
        pace = Pace(self._clock, options.rate, options.progress, "copying the log")
        pace.total = sum(count - (old.bytes if old else 0) for _, count, old in wanted)
        for found, count, copied in wanted:
            try:
                self._copy_segment(found, count, copied, pace)
            except FileNotFoundError as error:
                if error.filename != found.path:
                    raise
                self._report.left_out.append(found.name)
        self._report.copied_bytes += pace.done

    def _copy_segment(
        self, found: FoundFile, count: int, copied: CopiedSegment | None, pace: Pace
    ) -> None:
        """Copy a segment's bytes from the end of its copy to `count`, and note it."""
        files = self._files
        have = CopiedSegment(found.start, 0, 0, 0) if copied is None else copied
        path = os.path.join(self._target, have.name)
        new = pieces(files, found.path, have.bytes, count, keep_cached=count < self._segment_bytes)
        checksum, head = have.crc32c, have.head_crc32c
        with opened(files, path, create=not files.exists(path)) as fd:
            if files.size(fd) < have.bytes:
                raise BackupRefused(f"{path} is cut short; see 'aerobee store verify-backup'")
            for position, data in new:
                if position == have.bytes:
                    with naming(path):
                        files.set_size(fd, position)
                if len(data) < min(PIECE_BYTES, count - position):
                    raise _cut_short(found)
                head = (
                    crc32c(data[: HEAD_BYTES - position], head) if position < HEAD_BYTES else head
                )
                checksum = crc32c(data, checksum)
                with naming(path):
                    files.write(fd, position, data)
                pace.passed(len(data))
            with naming(path):
                files.sync(fd)
                files.forget_cached(fd)
        files.sync_directory(os.path.dirname(path))
        self._save(self._manifest.with_segment(CopiedSegment(found.start, count, checksum, head)))


def _cut_short(found: FoundFile) -> BackupRefused:
    return BackupRefused(
        f"{found.path} ends before its length is over; see 'aerobee store verify' of the store"
    )
