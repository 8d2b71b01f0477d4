"""Makes the n-th call of the disk in memory fail, once or from then on.

Calls on names fail in the twin itself. Calls on descriptors fail below `Files`, in the `os` and
`mmap` that store/disk/files.py and store/disk/syncs.py see, so that their own loops over
short reads and writes are part of what is tested. The fault is in the call: nothing of it was done,
but for a short read or write, which did a part.
"""

import errno
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from aerobee.store.disk import files as files_module
from aerobee.store.disk import syncs as syncs_module
from aerobee.store.disk.files import DiskSpace
from tests.sim.disk.crash_model import CrashModel
from tests.sim.disk.recorded_files import Forgotten, RecordedFiles, SyncFailed

_ALL = frozenset(
    {"open", "create", "names", "size", "mkdir", "rename", "remove", "sync_directory", "disk_space"}
    | {"pread", "pwrite", "ftruncate", "posix_fallocate", "fdatasync", "fsync", "fstat", "mmap"}
    | {"removexattr"}
)
#: Which calls can fail in that way.
CALLS = {
    "EIO": _ALL,
    "ENOSPC": frozenset({"create", "mkdir", "rename", "pwrite", "posix_fallocate"}),
    "ENOSPC of a sync": frozenset({"fdatasync", "fsync", "sync_directory"}),
    "EINTR": frozenset(
        {"open", "create", "pread", "pwrite", "posix_fallocate", "fdatasync", "fsync"}
    ),
    "EMFILE": frozenset({"open", "create", "names", "sync_directory", "mmap"}),
    "ENOMEM": frozenset({"open", "create", "names", "mmap"}),
    "short": frozenset({"pread", "pwrite"}),
}


@dataclass
class Fault:
    """Fails the `nth` call that can fail as `kind`; `lasting` fails those after it as well."""

    kind: str
    nth: int
    lasting: bool
    healed: bool = False
    met: int = 0
    # The first call that failed.
    hit: str = ""

    def reaches(self, call: str) -> bool:
        """Whether this call is to fail."""
        if self.healed or call not in CALLS[self.kind]:
            return False
        self.met += 1
        fails = self.met == self.nth or (self.lasting and self.met > self.nth)
        if fails and not self.hit:
            self.hit = call
        return fails

    def check(self, call: str, path: str = "") -> None:
        """Raise if this call is to fail."""
        if self.reaches(call):
            code = getattr(errno, self.kind.split()[0])
            raise OSError(code, os.strerror(code), path or None)


class FailingFiles(RecordedFiles):
    """The recorded disk; `fault` is set by whoever wants one."""

    fault: Fault | None = None

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> int:
        self._check("create" if create else "open", path)
        return super().open(path, create=create, read_only=read_only)

    def names(self, path: str) -> list[str]:
        self._check("names", path)
        return super().names(path)

    def size_of(self, path: str) -> int:
        self._check("size", path)
        return super().size_of(path)

    def make_directories(self, path: str, *, below: str | None = None) -> list[str]:
        if not self.is_directory(path):
            self._check("mkdir", path)
        return super().make_directories(path, below=below)

    def rename(self, source: str, target: str) -> None:
        self._check("rename", target)
        super().rename(source, target)

    def remove(self, path: str) -> None:
        self._check("remove", path)
        super().remove(path)

    def remove_tree(self, path: str) -> None:
        self._check("remove", path)
        super().remove_tree(path)

    def sync_directory(self, path: str) -> None:
        self._check("sync_directory", path)
        super().sync_directory(path)

    def disk_space(self, path: str) -> DiskSpace:
        self._check("disk_space", path)
        return super().disk_space(path)

    def forget_cached(self, fd: int) -> None:
        """After a failed sync the disk's bytes appear, and those are the old ones.

        Not while the file is mapped: the kernel keeps what is in use.
        """
        file = self._open[fd][0]
        if SyncFailed(file.number) not in self.journal or self.is_mapped(file):
            return
        self.observe()
        content = CrashModel.at(self.start, self.journal).forget(file.number)
        if content is not None:
            os.ftruncate(file.open(), len(content))
            os.pwrite(file.open(), content, 0)
            self._known[file] = content
            self.journal.append(Forgotten(file.number))

    def _check(self, call: str, path: str) -> None:
        if self.fault is not None:
            self.fault.check(call, path)


class _FailingModule:
    """A module of the standard library, some of whose functions may fail."""

    def __init__(self, module: Any, fault: Fault, names: frozenset[str]) -> None:
        self._module = module
        for name in dir(module):
            value = getattr(module, name)
            setattr(self, name, self._failing(name, value, fault) if name in names else value)

    def _failing(self, name: str, function: Any, fault: Fault) -> Any:
        def call(*arguments: Any, **more: Any) -> Any:
            if fault.kind != "short":
                fault.check(name)
            elif fault.reaches(name):
                return _short(name, function, arguments)
            return function(*arguments, **more)

        return call


def _short(name: str, function: Any, arguments: tuple[Any, ...]) -> Any:
    """Half of what was asked for; a single byte wholly, the call always makes some progress."""
    fd, what, position = arguments
    if name == "pread":
        return function(fd, max(1, what // 2), position)
    return function(fd, memoryview(what)[: max(1, len(what) // 2)], position)


_OS_CALLS = frozenset(
    {"pread", "pwrite", "ftruncate", "posix_fallocate", "fdatasync", "fsync", "fstat"}
    | {"removexattr"}
)


@contextmanager
def failing(fault: Fault) -> Iterator[None]:
    """Calls that `Files` makes may fail by `fault` in here."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (files_module, syncs_module):
            patch.setattr(module, "os", _FailingModule(os, fault, _OS_CALLS))
        patch.setattr(files_module, "mmap", _FailingModule(mmap, fault, frozenset({"mmap"})))
        patch.setattr(FailingFiles, "fault", fault)
        yield
