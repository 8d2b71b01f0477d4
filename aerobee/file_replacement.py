"""A file replaced as a whole: after a crash there is the old content or the new one, never a part.

The new content goes to `X.tmp` and is synced, the old content is kept as a backup if that is asked
for, then `X.tmp` is renamed over `X` and the directory is synced. The backup is a hard link to the
old file, which costs the same however large that is; where the file system has no hard links it is
a copy. This module is for small files that are written seldom: offsets, tables, states. The message
store does not come here, it has a door of its own to the disk (store/disk/files.py).

The cost of a megabyte is mostly the kernel's: pages for the new file, and the release of the old
file's. So the backup that is replaced may be kept, as `X.spare`, and the next content is written
over it, for a third less. Nobody else may see that: a spare that has another name, or that somebody
still reads, is not written to, and nothing that has to survive a crash is ever at that name.

Every function raises OSError and may be called from any thread, by one writer of a file at a time.
`sync` makes a descriptor durable: `os.fsync`, or a function that its caller trusts more.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

Sync = Callable[[int], None]
#: The content for a file, in one piece or in several, which need not be joined.
Content = bytes | Sequence[bytes]

# File systems without hard links, files that may not get one (of another user), or too many.
_NO_LINKS = frozenset((errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS))
#: The end of the name of a damaged file that is kept aside; a number may follow.
DAMAGED = ".damaged"
# To make a smaller file costs less than to keep its spare.
_SPARE_FROM = 256 << 10
# The most that one `writev` takes.
_PIECES = os.sysconf("SC_IOV_MAX")


def replace_file(
    path: Path,
    content: Content,
    *,
    backup: Path | None = None,
    keep_spare: bool = False,
    keep_mode: bool = False,
    mode: int = 0o666,
    sync: Sync = os.fsync,
) -> None:
    """Give `path` a new content; returns once it is on the disk.

    With `keep_mode` it has the rights that it had, whatever the umask is; `mode` is for a new file.

    What was there before becomes the content of `backup`, unless it was empty: an empty file is a
    damaged one, and must not push out a backup that can be read. With `keep_spare` the file that
    was the backup is used again by the next call, if it is large.
    """
    temporary = path.with_name(path.name + ".tmp")
    spare = path.with_name(path.name + ".spare")
    is_used = keep_spare and _take_spare(spare, temporary, _size_of(content))
    kept = _mode_of(path) if keep_mode else None
    if not is_used:
        # A file that a crash has left there would keep its own rights, and may be a link to
        # elsewhere.
        temporary.unlink(missing_ok=True)
    mode = mode if kept is None else kept
    write_synced(temporary, content, new=not is_used, used=is_used, mode=mode, sync=sync)
    try:
        if kept is not None:
            os.chmod(temporary, kept)
        if backup is not None and path.exists() and path.stat().st_size:
            if keep_spare:
                _set_aside(backup, spare)
            _keep(path, backup, mode, sync)
        os.replace(temporary, path)
        sync_directory(path.parent, sync=sync)
    except OSError:
        if keep_spare:
            # After a crash the spare may be the backup again.
            spare.unlink(missing_ok=True)
        raise


def _mode_of(path: Path) -> int | None:
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        return None


def _set_aside(backup: Path, spare: Path) -> None:
    """Give a large backup, which is to be replaced, a name that it keeps."""
    try:
        spare.unlink(missing_ok=True)
        if backup.stat().st_size >= _SPARE_FROM:
            os.link(backup, spare)
    except OSError:
        # There is no backup, or no second name for it: the next content gets a new file.
        return


def _take_spare(spare: Path, temporary: Path, size: int) -> bool:
    """Give the spare the name `temporary`, if it may be written to: when it is our own, has no
    other name, and no reader still has it open from the time when it was the file.

    It is left alone if `size` is of another eighth (`_eighth`): a file that grew a little at a time
    lies in many pieces, in memory and on the disk, and costs as much as a new one in the end.
    """
    try:
        descriptor = os.open(spare, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1 or found.st_uid != os.geteuid():
            return False
        if _eighth(found.st_size) != _eighth(size):
            return False
        # The kernel gives a lease for writing only if nobody else has the file open. An open in the
        # next microsecond makes it send a signal: SIGURG, which does nothing.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        os.rename(spare, temporary)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _keep(path: Path, backup: Path, mode: int, sync: Sync) -> None:
    """Give the file at `path` the name `backup` too."""
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
    # After a crash both may already name one file: then the rename did nothing.
    second.unlink(missing_ok=True)
    descriptor = os.open(backup, os.O_RDONLY)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def _size_of(content: Content) -> int:
    return len(content) if isinstance(content, bytes) else sum(map(len, content))


def _eighth(size: int) -> tuple[int, int]:
    """The power of two above a size, and the eighth of that power that the size is in."""
    bits = size.bit_length()
    return bits, size >> max(0, bits - 3)


def write_synced(
    path: Path,
    content: Content,
    *,
    new: bool = False,
    used: bool = False,
    mode: int = 0o666,
    sync: Sync = os.fsync,
) -> None:
    """Write a file and sync it; with `new` the name must be free. Its name may still be lost.

    With `used` the earlier bytes are written over: that costs less, and until the end the file has
    no valid content.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
    flags |= os.O_EXCL if new else 0 if used else os.O_TRUNC
    descriptor = os.open(path, flags, mode)
    try:
        size = _write_all(descriptor, [content] if isinstance(content, bytes) else content)
        if used:
            os.ftruncate(descriptor, size)
        sync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, pieces: Sequence[bytes]) -> int:
    """Write the pieces one after the other; returns the number of their bytes."""
    size = 0
    for first in range(0, len(pieces), _PIECES):
        some: list[bytes | memoryview] = list(pieces[first : first + _PIECES])
        while some:
            written = os.writev(descriptor, some)
            size += written
            while some and written >= len(some[0]):
                written -= len(some.pop(0))
            if written:
                some[0] = memoryview(some[0])[written:]
    return size


def free_name(path: Path) -> Path:
    """The name under which a damaged file is kept; no other file has it yet."""
    aside, number = path.with_name(path.name + DAMAGED), 1
    while os.path.lexists(aside):
        number += 1
        aside = path.with_name(f"{path.name}{DAMAGED}-{number}")
    return aside


def set_aside_of(path: Path) -> list[Path]:
    """The damaged contents of a file that are kept aside, in the order of their names."""
    return sorted(path.parent.glob(f"{path.name}{DAMAGED}*"))


def set_aside_in(directory: Path) -> list[Path]:
    """All that is kept aside in a directory."""
    return sorted(directory.glob(f"*{DAMAGED}*"))


def sync_directory(path: Path, *, sync: Sync = os.fsync) -> None:
    """Bring the names in a directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)
