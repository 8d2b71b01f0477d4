"""Syncs that are believed only when the file system's journal is still there.

On ext4 a sync ends well although the transaction that made the file's new blocks its own has
failed: where another file's sync, or the kernel's own timer, met the disk's error first, that
transaction is neither running nor committing any more, and the kernel takes it for a transaction
that is on the disk (`jbd2_complete_transaction`, seen on Linux 6.18). Only the next attempt to
begin a transaction finds the journal aborted. After a restart such a file reads as zeros, and
acknowledged messages are gone.

So every sync is followed by an attempt: the removal of an attribute that no file has begins a
transaction and changes nothing, in two microseconds. A failure before the sync returned is known by
then; a later failure belongs to another sync.
"""

import errno
import fcntl
import os
import stat

_NO_SUCH_ATTRIBUTE = "user.aerobee.none"
# A journal that was given up, a file system that was shut down, or that found itself damaged. Any
# other answer speaks of attributes: the file has none, or this file system does not know them.
_GIVEN_UP = frozenset((errno.EROFS, errno.EIO, errno.ESHUTDOWN, errno.EUCLEAN))


def sync_data(fd: int) -> None:
    """Wait until the file's bytes, and what is needed to read them, are on the disk."""
    os.fdatasync(fd)
    _ask_journal(fd)


def sync_all(fd: int) -> None:
    """Sync data and all metadata (see `sync_data`); for a directory, its names."""
    os.fsync(fd)
    _ask_journal(fd)


def _ask_journal(fd: int) -> None:
    try:
        os.removexattr(fd, _NO_SUCH_ATTRIBUTE)
    except OSError as error:
        if error.errno not in _GIVEN_UP or _is_mounted_to_read(fd, error):
            return
        raise


def _is_mounted_to_read(fd: int, error: OSError) -> bool:
    """A file opened for reading on a read-only file system: nothing in it waits to be written."""
    if error.errno != errno.EROFS or stat.S_ISDIR(os.fstat(fd).st_mode):
        return False
    only_read = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
    return only_read and bool(os.fstatvfs(fd).f_flag & os.ST_RDONLY)
