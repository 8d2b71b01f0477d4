"""Mounts and loop devices of the crash tests, all of which are taken down again.

Straight system calls instead of mount(8) and losetup(8): a crash state costs a few of them, and
there are hundreds. A loop device is made with the flag that lets it go with its last user, so a
device whose test died with the machine's mount table still in order does not stay.

`Stack` takes things down in reverse order, each tried even if an earlier step failed. A mount that
cannot be unmounted (a file still open) is detached, so that the machine is clean, and reported as
an error.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import gc
import os
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

_MNT_DETACH = 2
_MS_NOATIME = 1024
_LOOP_CONFIGURE, _LOOP_CTL_GET_FREE = 0x4C0A, 0x4C82
_LO_FLAGS_AUTOCLEAR = 4
# struct loop_config: descriptor, block size, then loop_info64 (flags at 52 of its 232 bytes).
_LOOP_CONFIG = struct.Struct("<II52xI176x64x")
_TRIES = 50
_BUSY_S = 5.0

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> None:
    if result:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), what)


def mount(source: str, target: Path, kind: str, options: str = "") -> None:
    """mount(2). Raises OSError."""
    _checked(
        _libc.mount(
            source.encode(), str(target).encode(), kind.encode(), _MS_NOATIME, options.encode()
        ),
        f"mount {source} on {target}",
    )


def sync_file_system(fd: int) -> None:
    """syncfs(2): the file system that has this file, and no other, on which other tests may rely
    on what has not been synced. Raises OSError."""
    _checked(_libc.syncfs(fd), f"syncfs of {fd}")


def unmount(target: Path) -> None:
    """umount(2); waits a little for what is just being closed. Raises OSError, detached then."""
    deadline = time.monotonic() + _BUSY_S
    while True:
        if not _libc.umount2(str(target).encode(), 0):
            return
        code = ctypes.get_errno()
        if code != errno.EBUSY or time.monotonic() > deadline:
            _libc.umount2(str(target).encode(), _MNT_DETACH)
            raise OSError(code, os.strerror(code), f"umount {target}")
        gc.collect()  # a mapping goes with its last reference
        time.sleep(0.02)


def attach_loop(image: Path) -> tuple[str, int]:
    """Make `image` a block device: its path, and a descriptor that keeps it until it is used."""
    backing = os.open(image, os.O_RDWR | os.O_CLOEXEC)
    try:
        for _ in range(_TRIES):
            device, fd = _free_loop()
            # Auto-clear from the start: no moment in which a dead test would leave it attached.
            config = bytearray(_LOOP_CONFIG.pack(backing, 0, _LO_FLAGS_AUTOCLEAR))
            try:
                fcntl.ioctl(fd, _LOOP_CONFIGURE, config)
            except OSError as error:
                os.close(fd)
                if error.errno != errno.EBUSY:  # somebody else was quicker
                    raise
                continue
            return device, fd
    finally:
        os.close(backing)
    raise OSError(errno.EBUSY, "no loop device could be had", str(image))


def _free_loop() -> tuple[str, int]:
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    try:
        number = fcntl.ioctl(control, _LOOP_CTL_GET_FREE)
    finally:
        os.close(control)
    device = f"/dev/loop{number}"
    return device, os.open(device, os.O_RDWR | os.O_CLOEXEC)


@contextlib.contextmanager
def mounted_image(image: Path, target: Path, options: str = "") -> Iterator[Path]:
    """An ext4 image mounted at `target` for the length of a `with` block."""
    device, fd = attach_loop(image)
    try:
        mount(device, target, "ext4", options)
    finally:
        os.close(fd)  # from here on the mount keeps the device
    try:
        yield target
    finally:
        unmount(target)


class Stack:
    """Things that have to be taken down, last first; `close` may be called twice."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []

    def add(self, undo: Callable[[], object]) -> None:
        self._undo.append(undo)

    def close(self) -> None:
        failures: list[Exception] = []
        while self._undo:
            try:
                self._undo.pop()()
            except Exception as error:  # noqa: BLE001 - the others have to be tried as well
                failures.append(error)
        if failures:
            raise ExceptionGroup("not everything could be taken down", failures)
