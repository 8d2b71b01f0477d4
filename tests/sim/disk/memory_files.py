"""A disk in memory: the twin of `store/disk/files.py` that needs no directory.

Names are a table here; the bytes of a file are in a memory file of the kernel (memfd), so that a
descriptor is a real descriptor and a mapping a real one, and the code under `Files` that reads,
writes, zeroes and maps is the real code. A file that is only looked at and never opened stays the
`bytes` it came from: building a disk of thirty files costs next to nothing, which is what lets one
core try a thousand crash states in a few seconds.

Inode numbers follow from names and times from contents, so both survive a crash. `boot` names the
run of the machine: a power cut is followed by another one.

`image()` is the whole tree as a value; `MemoryFiles(root, image)` makes a disk of it again.

`tests/contract/storage/test_files.py` runs over this one too. One thread at a time.
"""

import errno
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from aerobee.store.disk.files import DiskSpace, Files

#: Content of each file by absolute path; None for a directory.
Image: TypeAlias = Mapping[str, bytes | None]

_FIRST_NS = 1_600_000_000_000_000_000
_DISK_BYTES = 1_000_000


class MemoryFile:
    """A file's content, wherever its names are. `number` is its inode's."""

    __slots__ = ("_image", "fd", "fixed_modified_ns", "number")

    def __init__(self, number: int, content: bytes = b"") -> None:
        self.number = number
        self._image = content
        # The memory file, once it was needed.
        self.fd = -1
        # Set by tests that play with times.
        self.fixed_modified_ns: int | None = None

    def open(self) -> int:
        """The memory file's own descriptor; it stays open as long as the file is known."""
        if self.fd < 0:
            self.fd = os.memfd_create("aerobee-sim", os.MFD_CLOEXEC)
            if self._image:
                os.write(self.fd, self._image)
        return self.fd

    @property
    def size(self) -> int:
        """Length in bytes."""
        return len(self._image) if self.fd < 0 else os.fstat(self.fd).st_size

    def content(self) -> bytes:
        """All bytes as they are now."""
        if self.fd < 0:
            return self._image
        return os.pread(self.fd, os.fstat(self.fd).st_size, 0)

    @property
    def modified_ns(self) -> int:
        """Another time for other content, so that it is the same again after a crash."""
        if self.fixed_modified_ns is not None:
            return self.fixed_modified_ns
        return _FIRST_NS + zlib.crc32(self.content())

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


class MemoryDirectory:
    """A directory's names."""

    __slots__ = ("entries", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.entries: dict[str, MemoryFile | MemoryDirectory] = {}


Node: TypeAlias = MemoryFile | MemoryDirectory


class MemoryFiles(Files):
    """`root` and its parents exist from the beginning, and all that `image` holds.

    `numbers` are the inodes of paths in `image`, if they matter.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        image: Image | None = None,
        boot: str = "boot 1",
        numbers: Mapping[str, int] | None = None,
    ) -> None:
        self.root = os.fspath(root)
        self._boot = boot
        self._next_number = 0
        self._nodes: dict[str, Node] = {"/": MemoryDirectory(self._number())}
        self._open: dict[int, tuple[MemoryFile, str]] = {}
        # Share of the disk that is used.
        self.full_ratio = 0.0
        path = ""
        for part in self.root.strip("/").split("/"):
            path = f"{path}/{part}"
            self._add(path, MemoryDirectory(self._number()))
        known = numbers or {}
        for path, content in sorted((image or {}).items()):
            if path not in self._nodes:
                number = known.get(path) or self._number()
                self._add(
                    path,
                    MemoryDirectory(number) if content is None else MemoryFile(number, content),
                )
        self._next_number = max([self._next_number, *known.values()])
        self._from_image = {self._nodes[path].number for path in image or {}}

    def image(self) -> dict[str, bytes | None]:
        """Everything below the root as it is now."""
        return {
            path: node.content() if isinstance(node, MemoryFile) else None
            for path, node in self._nodes.items()
            if path.startswith(self.root) and path != self.root
        }

    # --- descriptors ------------------------------------------------------------------------

    def create(self, path: str, size: int) -> int:
        return self.create_in_steps(path, size)

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> int:
        path = absolute(path)
        node = self._nodes.get(path)
        if create:
            if node is not None:
                raise _error(errno.EEXIST, path)
            node = MemoryFile(self._number())
            self._link(path, node)
        if node is None:
            raise _error(errno.ENOENT, path)
        if isinstance(node, MemoryDirectory):
            raise _error(errno.EISDIR, path)
        flags = os.O_CLOEXEC | (os.O_RDONLY if read_only else os.O_RDWR)
        fd = os.open(f"/proc/self/fd/{node.open()}", flags)
        self._open[fd] = (node, path)
        return fd

    def close(self, fd: int) -> None:
        self._open.pop(fd, None)
        super().close(fd)

    def size_of(self, path: str) -> int:
        node = self._nodes.get(absolute(path))
        if node is None:
            raise _error(errno.ENOENT, path)
        return node.size if isinstance(node, MemoryFile) else 0

    def is_alone(self, fd: int) -> bool:
        """The disk in memory keeps a descriptor of its own, and so never can tell."""
        return False

    def each(self, call: Callable[[str], int], paths: Sequence[str]) -> list[int]:
        """One after the other: a seed decides all that happens here."""
        return [call(path) for path in paths]

    def forget_cached(self, fd: int) -> None:
        """There is no cache; what a failed write back leaves in it is `RecordedFiles`' affair."""

    # --- names ------------------------------------------------------------------------------

    def sync_directory(self, path: str) -> None:
        self._directory(absolute(path))

    def rename(self, source: str, target: str) -> None:
        source, target = absolute(source), absolute(target)
        node = self._nodes.get(source)
        if node is None:
            raise _error(errno.ENOENT, source)
        inside = [path for path in self._nodes if path.startswith(source + "/")]
        moved = {target + path[len(source) :]: self._nodes.pop(path) for path in inside}
        self._take(source)
        self._nodes.pop(target, None)
        self._add(target, node)
        self._nodes.update(moved)
        # The files in a renamed directory have other paths now.
        for path in [path for path in self._nodes if path.startswith(source + "/")]:
            self._nodes[target + path.removeprefix(source)] = self._nodes.pop(path)

    def remove(self, path: str) -> None:
        path = absolute(path)
        node = self._nodes.get(path)
        if node is None:
            raise _error(errno.ENOENT, path)
        if isinstance(node, MemoryDirectory):
            raise _error(errno.EISDIR, path)
        self._unlink(path)

    def remove_tree(self, path: str) -> None:
        path = absolute(path)
        inside = [name for name in self._nodes if name == path or name.startswith(path + "/")]
        for name in sorted(inside, reverse=True):
            self._unlink(name)

    def make_directories(self, path: str, *, below: str | None = None) -> list[str]:
        path = absolute(path)
        root = None if below is None else absolute(below)
        changed: list[str] = []
        missing: list[str] = []
        while not self.is_directory(path):
            if path == root:
                raise _error(errno.ENOENT, path)
            missing.append(path)
            path = os.path.dirname(path)
        for directory in reversed(missing):
            if directory in self._nodes:
                raise _error(errno.EEXIST, directory)
            self._link(directory, MemoryDirectory(self._number()))
            changed.append(os.path.dirname(directory))
        return changed

    def exists(self, path: str) -> bool:
        return absolute(path) in self._nodes

    def may_use(self, path: str, *, write: bool) -> bool:
        return self.exists(path)

    def is_directory(self, path: str) -> bool:
        return isinstance(self._nodes.get(absolute(path)), MemoryDirectory)

    def names(self, path: str) -> list[str]:
        node = self._nodes.get(absolute(path))
        if isinstance(node, MemoryFile):
            raise _error(errno.ENOTDIR, path)
        return [] if node is None else sorted(node.entries)

    def identity(self, path: str) -> tuple[int, int]:
        file = self._file(path)
        return zlib.crc32(absolute(path).encode()), file.modified_ns

    def modified_ms(self, path: str) -> int:
        return self._file(path).modified_ns // 1_000_000

    def set_modified_ns(self, path: str, modified_ns: int) -> None:
        """For tests: as `os.utime`."""
        self._file(path).fixed_modified_ns = modified_ns

    def made_and_left(self, path: str) -> bool:
        # The files of an image may be from before a power cut: times do not survive it here.
        file = self._file(path)
        return file.number not in self._from_image and file.fixed_modified_ns is None

    def boot_id(self) -> str:
        return self._boot

    def disk_space(self, path: str) -> DiskSpace:
        if absolute(path) not in self._nodes:
            raise _error(errno.ENOENT, path)
        used = round((self.full_ratio or 0.1) * _DISK_BYTES)
        return DiskSpace(used, _DISK_BYTES - used)

    # --- the table --------------------------------------------------------------------------

    def _number(self) -> int:
        self._next_number += 1
        return self._next_number

    def _file(self, path: str) -> MemoryFile:
        node = self._nodes.get(absolute(path))
        if not isinstance(node, MemoryFile):
            raise _error(errno.ENOENT if node is None else errno.EISDIR, path)
        return node

    def _directory(self, path: str) -> MemoryDirectory:
        node = self._nodes.get(path)
        if node is None:
            raise _error(errno.ENOENT, path)
        if isinstance(node, MemoryFile):
            raise _error(errno.ENOTDIR, path)
        return node

    def _link(self, path: str, node: Node) -> None:
        """A new name for a new file or directory."""
        self._add(path, node)

    def _unlink(self, path: str) -> None:
        """A name goes."""
        self._take(path)

    def _add(self, path: str, node: Node) -> None:
        directory, name = os.path.split(path)
        self._directory(directory).entries[name] = node
        self._nodes[path] = node

    def _take(self, path: str) -> None:
        directory, name = os.path.split(path)
        self._directory(directory).entries.pop(name)
        self._nodes.pop(path)


def absolute(path: str) -> str:
    """`path` from the root of the tree on."""
    return path if path.startswith("/") else os.path.abspath(path)


def _error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)
