"""A file replaced as a whole: after a crash there is the old content or the new one, never a part.

The new content goes to `X.tmp` and is synced, the old one is kept as a backup where that is asked
for, then `X.tmp` is renamed over `X` and the directory is synced. The backup is a second name of
the old file, which costs the same however large it is, and loses the first with the rename; where
the file system knows no second names it is a copy. It is for small files that are
written seldom: offsets, tables, states. The message store does not come here, it has a door of its
own to the disk (store/disk/files.py).

Every function raises OSError and may be called from any thread, by one writer of a file at a time.
`sync` is what makes a descriptor durable: `os.fsync`, or what its caller trusts more.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

Sync = Callable[[int], None]

# File systems without hard links, files that may not get one (of another user), or too many.
_NO_LINKS = frozenset((errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS))


def replace_file(
    path: Path,
    content: bytes,
    *,
    backup: Path | None = None,
    mode: int = 0o666,
    sync: Sync = os.fsync,
) -> None:
    """Give `path` a new content; returns once it is on the disk.

    What was there before becomes the content of `backup`, unless it was empty: an empty file is a
    damaged one, and must not push out a backup that can be read.
    """
    temporary = path.with_name(path.name + ".tmp")
    write_synced(temporary, content, mode=mode, sync=sync)
    if backup is not None and path.exists() and path.stat().st_size:
        _keep(path, backup, mode, sync)
    os.replace(temporary, path)
    sync_directory(path.parent, sync=sync)


def _keep(path: Path, backup: Path, mode: int, sync: Sync) -> None:
    """Give what is at `path` the name `backup` too."""
    second = backup.with_name(backup.name + ".tmp")
    second.unlink(missing_ok=True)
    try:
        os.link(path, second)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        write_synced(backup, path.read_bytes(), mode=mode, sync=sync)
        return
    os.replace(second, backup)
    # Both names may be of one file already, after a crash: then nothing was replaced.
    second.unlink(missing_ok=True)
    descriptor = os.open(backup, os.O_RDONLY)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def write_synced(
    path: Path,
    content: bytes,
    *,
    new: bool = False,
    mode: int = 0o666,
    sync: Sync = os.fsync,
) -> None:
    """Write a file and sync it; with `new` there must be none. Its name may still be lost."""
    with open(
        path, "xb" if new else "wb", opener=lambda name, flags: os.open(name, flags, mode)
    ) as file:
        file.write(content)
        file.flush()
        sync(file.fileno())


def sync_directory(path: Path, *, sync: Sync = os.fsync) -> None:
    """The names in a directory are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)
