"""Files of a process that is killed at its n-th change of a file or name."""

import os
from pathlib import Path

from aerobee.store.disk import lock as store_lock
from aerobee.store.disk.files import Files


class Crashed(BaseException):
    """The process is no more: nothing catches this, and nothing is written behind it."""


class CrashingFiles(Files):
    """Raises at the `nth` change and at every later one."""

    def __init__(self, nth: int) -> None:
        self._left = nth
        self._open: set[int] = set()

    def give_back(self, root: Path) -> None:
        """Close and unlock what the killed process had open, as the system would."""
        store_lock._open_directories.discard(os.path.realpath(root))
        for fd in self._open:
            os.close(fd)
        self._open.clear()

    def _change(self) -> None:
        self._left -= 1
        if self._left <= 0:
            raise Crashed

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> int:
        if create:
            self._change()
        fd = super().open(path, create=create, read_only=read_only)
        self._open.add(fd)
        return fd

    def create(self, path: str, size: int) -> int:
        return self.create_in_steps(path, size)

    def close(self, fd: int) -> None:
        self._open.discard(fd)
        super().close(fd)

    def set_size(self, fd: int, size: int) -> None:
        self._change()
        super().set_size(fd, size)

    def write(self, fd: int, position: int, data: bytes | bytearray | memoryview) -> None:
        self._change()
        super().write(fd, position, data)

    def rename(self, source: str, target: str) -> None:
        self._change()
        super().rename(source, target)

    def remove(self, path: str) -> None:
        self._change()
        super().remove(path)

    def remove_tree(self, path: str) -> None:
        self._change()
        super().remove_tree(path)

    def make_directories(self, path: str, *, below: str | None = None) -> list[str]:
        if not os.path.isdir(path):
            self._change()
        return super().make_directories(path, below=below)
