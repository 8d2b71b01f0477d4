"""Pages of a file that the kernel writes when it likes, not when their owner syncs them."""

from __future__ import annotations

import ctypes
import os

_WRITE_AND_WAIT = 1 | 2 | 4  # SYNC_FILE_RANGE_WAIT_BEFORE | _WRITE | _WAIT_AFTER
_libc = ctypes.CDLL(None, use_errno=True)


def written_back(fd: int, start: int = 0, length: int = 0) -> None:
    """These bytes (to the end if `length` is 0) are on the disk when this returns; that they are
    the file's is in a transaction of its file system that still runs."""
    at = (ctypes.c_int64(start), ctypes.c_int64(length), ctypes.c_uint(_WRITE_AND_WAIT))
    if _libc.sync_file_range(fd, *at):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
