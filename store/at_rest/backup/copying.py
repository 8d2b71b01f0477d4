"""Copies parts of files in pieces, with their CRC-32C, no faster than asked for.

What was copied is dropped from the page cache, so that a backup does not push out what a broker's
consumers read. Errors of the system get the name of the file, which calls on descriptors leave out.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from aerobee.protocol.checksum import crc32c
from aerobee.store.disk.files import Clock, Files
from aerobee.store.errors import BackupDamaged
from aerobee.store.recovery.recovery_report import Progress

T = TypeVar("T")

PIECE_BYTES = 4 << 20
_TRIES = 4


class Pace:
    """Counts the bytes of one step for its progress, and waits where they come too fast.

    `most` is the rate in bytes a second, 0 for no limit; `total` all bytes of the step `what`.
    """

    def __init__(
        self, clock: Clock, most: float = 0, progress: Progress | None = None, what: str = ""
    ) -> None:
        self._clock = clock
        self._most = most
        self._progress = progress
        self._what = what
        self._started = clock.monotonic()
        self.done = 0
        self.total = 0

    def passed(self, count: int) -> None:
        """Count bytes that were copied or read."""
        self.done += count
        if self._progress is not None:
            self._progress(self._what, self.done, self.total)
        if self._most:
            ahead_s = self.done / self._most - (self._clock.monotonic() - self._started)
            if ahead_s > 0:
                time.sleep(ahead_s)


@contextmanager
def naming(path: str) -> Iterator[None]:
    """An OSError raised in here names a file, `path` if the system named none."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = path
        raise


@contextmanager
def opened(files: Files, path: str, *, create: bool = False, read: bool = False) -> Iterator[int]:
    """`Files.opened`, whose errors name the file."""
    with naming(path), files.opened(path, create=create, read_only=read) as fd:
        yield fd


def pieces(
    files: Files, path: str, start: int, end: int, *, keep_cached: bool = False
) -> Iterator[tuple[int, bytes]]:
    """(position, bytes) of a file's range, in order; shorter only where the file ends.

    Without `keep_cached` the file's pages are dropped at the end. Raises OSError.
    """
    with opened(files, path, read=True) as fd:
        for position in range(start, end, PIECE_BYTES):
            with naming(path):
                data = files.read(fd, position, min(PIECE_BYTES, end - position))
            yield position, data
        if not keep_cached:
            files.forget_cached(fd)


def copy_checked(
    files: Files,
    source: str,
    target: str,
    expected: tuple[int, int],
    pace: Pace,
    *,
    up_to: int | None = None,
    size: int = 0,
) -> None:
    """Copy a file of a backup to the new file `target`, and sync that.

    `expected` are the bytes and the CRC-32C that the manifest says; only the first `up_to` bytes
    are written, and the file gets `size` bytes at least. Raises BackupDamaged or OSError.
    """
    count, checksum = expected
    stop = count if up_to is None else min(up_to, count)
    with opened(files, target, create=True) as fd:
        found = 0
        for position, data in pieces(files, source, 0, count):
            found = crc32c(data, found)
            with naming(target):
                files.write(fd, position, data[: max(0, stop - position)])
            pace.passed(len(data))
        if found != checksum:
            raise BackupDamaged(f"{source} is damaged: its CRC-32C is not the manifest's")
        with naming(target):
            if size > stop:
                files.set_size(fd, size)
            files.sync(fd)
            files.forget_cached(fd)


def despite_removals(look: Callable[[], T]) -> T:
    """The result of `look`, which is called again if a running broker removes a file meanwhile.
    Raises FileNotFoundError if that happens each time."""
    for _ in range(_TRIES):
        try:
            return look()
        except FileNotFoundError:
            continue
    return look()


def make_directory(files: Files, path: str) -> None:
    """Make a directory with its parents, and their names durable. Raises OSError."""
    for changed in files.make_directories(path):
        files.sync_directory(changed)


def write_new(files: Files, path: str, data: bytes) -> None:
    """Write a small new file and sync it; its directory is the caller's to sync. Raises OSError."""
    make_directory(files, os.path.dirname(path))
    with opened(files, path, create=True) as fd, naming(path):
        files.write(fd, 0, data)
        files.sync(fd)


def read_whole(files: Files, path: str) -> bytes:
    """All bytes of a small file. Raises OSError."""
    with opened(files, path, read=True) as fd, naming(path):
        return files.read(fd, 0, files.size(fd))
