"""The faulty twin of `store/disk/files.py`: fails where told, and forgets what was not synced.

It works on real files, so everything the store does really happens, and keeps beside them what a
disk would hold after a power cut: of each file the content of its last sync, of each directory the
names of its last sync. `power_cut` writes that out as a store directory of its own.

`tests/contract/storage/test_files.py` runs the same suite over this and the real one.
"""

import errno
import mmap
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from aerobee.store.disk.files import DiskSpace, Files

# Size of the disk that `full_ratio` is a share of.
_DISK_BYTES = 1_000_000


@dataclass
class Fault:
    """Fail calls of `operation` on paths with `part`: the `nth` from now, then `times` in all."""

    operation: str
    code: int
    part: str
    nth: int
    times: int

    def hits(self, operation: str, path: str) -> bool:
        if operation != self.operation or self.part not in path or not self.times:
            return False
        if self.nth > 1:
            self.nth -= 1
            return False
        self.times -= 1
        return True


class FaultyFiles(Files):
    """`root` is the directory whose power-cut image is kept."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._paths: dict[int, str] = {}
        self._faults: list[Fault] = []
        # (operation, path) of every call that a fault could hit.
        self.calls: list[tuple[str, str]] = []
        self.full_ratio = 0.0
        self._content: dict[str, bytes] = {}
        self._names: dict[str, set[str]] = {}
        # The image is of one moment, although threads of the store go on syncing.
        self._image = threading.Lock()
        self._keep_tree(self._root)

    def fail(
        self, operation: str, code: int = errno.EIO, part: str = "", nth: int = 1, times: int = -1
    ) -> None:
        """From the `nth` call on fail `times` times (-1: for ever, until `heal`)."""
        self._faults.append(Fault(operation, code, part, nth, times))

    def heal(self) -> None:
        """No more faults."""
        self._faults.clear()

    def count(self, operation: str, part: str = "") -> int:
        """Calls of an operation so far."""
        return sum(1 for name, path in self.calls if name == operation and part in path)

    def power_cut(self, target: Path) -> None:
        """Write to `target` what the disk would hold now."""
        with self._image:
            self._restore(self._root, target)

    # --- the operations ---------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> int:
        self._check("create" if create else "open", path)
        fd = super().open(path, create=create, read_only=read_only)
        self._paths[fd] = path
        return fd

    def create(self, path: str, size: int) -> int:
        return self.create_in_steps(path, size)

    def close(self, fd: int) -> None:
        self._paths.pop(fd, None)
        super().close(fd)

    def set_size(self, fd: int, size: int) -> None:
        self._check("set_size", self._paths[fd])
        super().set_size(fd, size)

    def reserve(self, fd: int, position: int, length: int) -> None:
        self._check("reserve", self._paths[fd])
        super().reserve(fd, position, length)

    def map(self, fd: int, size: int, *, read_only: bool = False) -> mmap.mmap:
        self._check("map", self._paths[fd])
        return super().map(fd, size, read_only=read_only)

    def anonymous(self, size: int) -> mmap.mmap:
        self._check("anonymous", "")
        return super().anonymous(size)

    def lock_memory(self, memory: mmap.mmap) -> None:
        self._check("lock_memory", "")
        super().lock_memory(memory)

    def unlock_memory(self, memory: mmap.mmap) -> None:
        self._check("unlock_memory", "")
        super().unlock_memory(memory)

    def zero_memory(self, memory: mmap.mmap, position: int, length: int) -> None:
        self._check("zero_memory", "")
        super().zero_memory(memory, position, length)

    def read(self, fd: int, position: int, size: int) -> bytes:
        self._check("read", self._paths[fd])
        return super().read(fd, position, size)

    def write(self, fd: int, position: int, data: bytes | bytearray | memoryview) -> None:
        self._check("write", self._paths[fd])
        super().write(fd, position, data)

    def data_sync(self, fd: int) -> None:
        self._check("data_sync", self._paths[fd])
        super().data_sync(fd)
        self._keep_content(fd)

    def sync(self, fd: int) -> None:
        self._check("sync", self._paths[fd])
        super().sync(fd)
        self._keep_content(fd)

    def each(self, call: Callable[[str], int], paths: Sequence[str]) -> list[int]:
        """One after the other, so that the n-th call is always the same one."""
        return [call(path) for path in paths]

    def sync_directory(self, path: str) -> None:
        self._check("sync_directory", path)
        super().sync_directory(path)
        with self._image:
            self._names[path] = set(os.listdir(path))

    def rename(self, source: str, target: str) -> None:
        self._check("rename", target)
        super().rename(source, target)
        with self._image:
            if source in self._content:
                self._content[target] = self._content.pop(source)
            if os.path.isdir(target):
                self._keep_renamed(source, target)

    def remove(self, path: str) -> None:
        self._check("remove", path)
        super().remove(path)

    def remove_tree(self, path: str) -> None:
        self._check("remove_tree", path)
        super().remove_tree(path)

    def make_directories(self, path: str, *, below: str | None = None) -> list[str]:
        self._check("make_directories", path)
        if not os.path.isdir(path):
            with self._image:
                self._forget_below(path)
        return super().make_directories(path, below=below)

    def modified_ms(self, path: str) -> int:
        self._check("modified_ms", path)
        return super().modified_ms(path)

    def is_alone(self, fd: int) -> bool:
        self._check("is_alone", self._paths[fd])
        return super().is_alone(fd)

    def disk_space(self, path: str) -> DiskSpace:
        self._check("disk_space", path)
        if not self.full_ratio:
            return super().disk_space(path)
        used = round(self.full_ratio * _DISK_BYTES)
        return DiskSpace(used, _DISK_BYTES - used)

    # --- what the disk holds ----------------------------------------------------------------

    def _check(self, operation: str, path: str) -> None:
        self.calls.append((operation, path))
        for fault in self._faults:
            if fault.hits(operation, path):
                raise OSError(fault.code, os.strerror(fault.code), path)

    def _keep_content(self, fd: int) -> None:
        size = os.fstat(fd).st_size
        content = os.pread(fd, size, 0)
        with self._image:
            self._content[self._paths[fd]] = content

    def _keep_renamed(self, source: str, target: str) -> None:
        """A directory has two names until its parent is synced; what it holds is the same."""
        for path in [path for path in self._names if (path + "/").startswith(source + "/")]:
            self._names[target + path.removeprefix(source)] = set(self._names[path])
        for path in [path for path in self._content if path.startswith(source + "/")]:
            self._content[target + path.removeprefix(source)] = self._content[path]

    def _forget_below(self, directory: str) -> None:
        """Forget a directory that was renamed or removed: another one is made in its place."""
        for path in [path for path in self._names if (path + "/").startswith(directory + "/")]:
            del self._names[path]
        for path in [path for path in self._content if path.startswith(directory + "/")]:
            del self._content[path]

    def _keep_tree(self, directory: str) -> None:
        """Keep the files that are there before the first call: they count as being on the disk."""
        if not os.path.isdir(directory):
            return
        self._names[directory] = set(os.listdir(directory))
        for name in self._names[directory]:
            path = os.path.join(directory, name)
            if os.path.isdir(path):
                self._keep_tree(path)
            else:
                self._content[path] = Path(path).read_bytes()

    def _restore(self, source: str, target: Path) -> None:
        target.mkdir(parents=True, exist_ok=True)
        for name in self._names.get(source, set()):
            path = os.path.join(source, name)
            if path in self._names or os.path.isdir(path):
                self._restore(path, target / name)
            else:
                (target / name).write_bytes(self._content.get(path, b""))
                # From before the machine came up again.
                os.utime(target / name, ns=(1, 1))
