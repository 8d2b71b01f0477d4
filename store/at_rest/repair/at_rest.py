"""Locks a store at rest while one of the tools changes it: the lock, the marks, the way back.

All the tools keep these promises:

- Nothing is deleted. Files that are taken out go to `<root>/lost+found-<time>`, a name that
  RocketMQ and this broker leave alone, under the path they had.
- Before the first change the store says that it is not whole: `abort` is made, checkpoint and
  offsets file are set back to the beginning of the log. A crash anywhere then leaves a store that
  the next start, or the same command, run again, brings in order.
- At the end the store is opened and closed once as a broker does it (`recover`): that recovery
  decides in the end, and it leaves a cleanly stopped store.

Threads: the command's.
"""

import errno
import logging
import os
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import msgspec

from aerobee.config.model import Settings
from aerobee.store.disk.checkpoint import Checkpoint
from aerobee.store.disk.files import Clock, Files, ReadOnlyFiles
from aerobee.store.disk.lock import StoreLock
from aerobee.store.disk.offsets_file import DerivedMarks, Offsets, OffsetsFile
from aerobee.store.errors import StoreInUse, StoreLayoutError
from aerobee.store.inspect.store_files import StoreFiles
from aerobee.store.inspect.store_layout import ASIDE_PREFIX, survey
from aerobee.store.log.compiled import Compiled
from aerobee.store.recovery.opening import make_parts, open_parts
from aerobee.store.recovery.recovery_report import Progress, RecoveryReport

log = logging.getLogger("aerobee.store")

_COPY_BYTES = 4 << 20

#: Log offsets [start, end).
Range = tuple[int, int]


class StoreAtRest:
    """A context manager: locks on entry. `settings` have the sizes of the files.

    `reading`: only to make plans; this works where nothing can be written. Entering raises
    NotAStore, StoreInUse, StoreSizeMismatch or OSError; nothing was changed then.
    """

    def __init__(
        self,
        settings: Settings,
        given: Collection[str] = (),
        files: Files | None = None,
        clock: Clock | None = None,
        *,
        reading: bool = False,
        compiled: Compiled | None = None,
    ) -> None:
        self._reading = reading
        # `abort` is ours from the first change on, and says nothing about the last run any more.
        self._changing = False
        self.files = files or (ReadOnlyFiles() if reading else Files())
        self.clock = clock or Clock()
        #: Reads plain records for a rebuild or a recovery; None without a compiled form.
        self.compiled = compiled
        self.settings = settings
        #: Names of the settings that somebody chose.
        self.given = given
        self.root = settings.store_path
        self._lock = StoreLock(self.files, self.root)
        self._checkpoint = Checkpoint(self.files, os.path.join(self.root, "checkpoint"))
        #: The files; after changes to them, `look` reads them anew. They were left open if the last
        #: run, or an earlier command of this kind, did not end in order.
        self.store: StoreFiles
        # The directory of what was taken out; made with the first file.
        self.aside: str | None = None

    def __enter__(self) -> Self:
        # If this is not a store: say so before the lock makes a directory of it.
        survey(self.files, self.settings)
        try:
            if self._reading:
                self._lock.take_to_read()
            else:
                self._take()
            self.look()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._lock.release()

    def _take(self) -> None:
        try:
            self._lock.take()
        except StoreInUse as error:
            raise StoreInUse(
                f"{self.root} is in use: a broker or another command runs on it (its file 'lock' "
                "is locked). This command needs a store at rest; stop the broker first."
            ) from error

    def look(self) -> None:
        """Read names, lengths and marks (again)."""
        store = StoreFiles(self.files, self.settings, self.given)
        if self._changing:
            store.left_open = self.store.left_open
        self.store, self.settings = store, store.settings

    def check_loadable(self) -> None:
        """Refuse a store that a start would refuse. Reads names and lengths only.

        Raises StoreLayoutError or StoreSizeMismatch, whose texts a start would give.
        """
        parts = make_parts(self.settings, self.files, self.clock)
        try:
            parts.load()
            segments = parts.segments.segments
            end = segments[-1].end if segments else 0
            if end < self.store.marks.flushed or not (segments or parts.queues.entries() == 0):
                raise StoreLayoutError(
                    f"the commit log ends at {end}, but it held messages beyond that: segments are "
                    "missing at its end. Restore them, or run 'aerobee store repair' to see what "
                    "is left."
                )
        finally:
            parts.close(clean=False)

    # --- changing ---------------------------------------------------------------------------

    def distrust(
        self, flushed: int | None = None, without: Collection[Range] = (), *, reaches: int = 0
    ) -> None:
        """Before the first change: let abort, checkpoint and offsets file say that queues and index
        have to be compared with the whole log. Raises OSError.

        `flushed` is the end that the log is known to reach from now on, if that changes; `without`
        are gaps that it will not have any more. `reaches` is the end that the log must have by an
        audit: if this is broken off, the next command or start knows it from the offsets file.
        """
        assert not self._reading
        self._changing = True
        self._lock.mark_open()
        self._checkpoint.load()
        self._checkpoint.logics_ms = self._checkpoint.index_ms = 0
        self._checkpoint.flush()
        offsets = self.store.marks.offsets
        start = DerivedMarks(0, 0)
        file = OffsetsFile(self.files, self.root)
        if reaches and not self.store.marks.ours:
            offsets = Offsets(reaches, 0, start, start, -1, (), (), file.identity())
        if offsets is not None:
            file.save(
                msgspec.structs.replace(
                    offsets,
                    flushed=max(reaches, offsets.flushed) if flushed is None else flushed,
                    synced=start,
                    live=start,
                    indexed=-1,
                    index_files=(),
                    gaps=tuple(gap for gap in offsets.gaps if not _within(gap, without)),
                )
            )

    @contextmanager
    def changing(self, path: str, *, create: bool = False) -> Iterator[int]:
        """Open a file to be changed, and sync it at the end. Raises OSError."""
        with self.files.opened(path, create=create) as fd:
            yield fd
            self.files.sync(fd)

    def take_out(self, path: str, name: str | None = None) -> str:
        """Move a file or directory to lost+found, where it keeps its name, or gets the name that
        the file `name` would have had there; return its new path."""
        target = os.path.join(self._aside(), self._name_below(name or path))
        self.make_directory(os.path.dirname(target))
        while self.files.exists(target):
            target += "~"
        try:
            self.files.rename(path, target)
        except OSError as error:
            if error.errno != errno.EXDEV or self.files.is_directory(path):
                raise
            self.copy(path, target)
            self.files.remove(path)
        self.files.sync_directory(os.path.dirname(target))
        self.files.sync_directory(os.path.dirname(path))
        log.warning("taken out path=%s now=%s", path, target)
        return target

    def keep_bytes(self, path: str, start: int, end: int, below: str = "") -> str:
        """Copy bytes [start, end) of a file to lost+found, there to the directory `below`, before
        they are overwritten."""
        name = f"{self._name_below(path)}.{start}-{end}"
        target = os.path.join(self._aside(), below, name)
        self.make_directory(os.path.dirname(target))
        self.copy(path, target, start, end)
        self.files.sync_directory(os.path.dirname(target))
        return target

    def asides(self) -> list[str]:
        """All lost+found directories, the newest first."""
        return [
            os.path.join(self.root, name)
            for name in reversed(self.files.names(self.root))
            if name.startswith(ASIDE_PREFIX)
        ]

    def recover(self, progress: Progress | None = None) -> RecoveryReport:
        """Open the store with a recovery, and close it in order. The lock is given back for it."""
        self._lock.release()
        parts = open_parts(self.settings, self.files, self.clock, progress, self.compiled)
        parts.close(clean=True)
        return parts.recovery

    # --- lost+found -------------------------------------------------------------------------

    def _aside(self) -> str:
        if self.aside is None:
            now_s = self.clock.now_ms() // 1000
            name = time.strftime(f"{ASIDE_PREFIX}%Y%m%d-%H%M%S", time.localtime(now_s))
            path = os.path.join(self.root, name)
            while self.files.exists(path):
                path += "~"
            self.make_directory(path)
            self.aside = path
        return self.aside

    def _name_below(self, path: str) -> str:
        """The path below the store's directory; for a log elsewhere, as if it were in there."""
        if path.startswith(self.root + os.sep):
            return os.path.relpath(path, self.root)
        return os.path.join("commitlog", os.path.basename(path))

    def make_directory(self, directory: str) -> None:
        """Make a directory with its parents, and their names durable."""
        for changed in self.files.make_directories(directory):
            self.files.sync_directory(changed)

    def copy(self, path: str, target: str, start: int = 0, end: int | None = None) -> None:
        """Copy a file's bytes, durably but for the new name, without the parts that were never
        written."""
        with (
            self.files.opened(path, read_only=True) as source,
            self.files.opened(target, create=True) as copy,
        ):
            stop = self.files.size(source) if end is None else end
            self.files.set_size(copy, stop - start)
            for begin, after in self.files.data_ranges(source, start, stop):
                for position in range(begin, after, _COPY_BYTES):
                    size = min(_COPY_BYTES, after - position)
                    data = self.files.read(source, position, size)
                    self.files.write(copy, position - start, data)
            self.files.sync(copy)


def _within(gap: Range, ranges: Collection[Range]) -> bool:
    return any(start <= gap[0] and gap[1] <= end for start, end in ranges)
