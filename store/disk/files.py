"""The only door to the operating system: files, mappings, syncs, locks and the clock.

Everything the store does to a disk goes through one `Files` object, so that tests can pass a twin
that fails on the n-th call or forgets what was not synced. What is here is what was measured to be
right (docs/reliability.md 3):

- Blocks are reserved with posix_fallocate before anything is stored through a mapping: on a full
  disk a store through an unreserved mapping kills the process, a failed reservation is ENOSPC.
- Syncs go by descriptor. A sync through the mapping holds the interpreter lock for its whole time.
- A new name is durable only after its directory was synced too.
- The lock is a POSIX record lock on byte 0 (what RocketMQ takes as well). Closing any descriptor
  of that file drops it, and the same process is granted it twice; `message_store` therefore opens
  it once and keeps a process-wide set of open directories besides.

Errors are the OSError of the call, with the file's name where the system gives one. EINTR is
retried by Python itself, short reads and writes here.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple

from aerobee.store.disk.syncs import sync_all, sync_data

_BOOT_ID_PATH = "/proc/sys/kernel/random/boot_id"
# A file's two times come from the kernel's coarse clock, which ticks every few milliseconds.
_SAME_TIME_NS = 20_000_000
_COPY_BYTES = 1 << 20
# Threads for many files, and the number of files that counts as many: an SSD, and the journal,
# serve eight syncs at a time in hardly more time than a single sync.
_THREADS = 8
_MANY_FILES = 64
# Errors of a system that cannot make a file without a name: the file system's, an old kernel's.
_NO_UNNAMED_FILES = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL)
_ZEROS = bytes(_COPY_BYTES)

# Memory calls that Python's mmap does not have, made through the C library. All of them let other
# Python threads run meanwhile: locking a buffer of 1 GiB takes about as long as filling it with
# zeros, more than a second. A mapping given to them must be writable (its address is not to be had
# otherwise) and stays open during the call by the reference that is held on it.
_libc = ctypes.CDLL(None, use_errno=True)
for _name in ("mlock", "munlock"):
    getattr(_libc, _name).argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    getattr(_libc, _name).restype = ctypes.c_int
_libc.memset.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
_libc.memset.restype = ctypes.c_void_p


class Clock:
    """Wall clock for what is stored, monotonic clock for intervals."""

    #: Nanoseconds since the epoch. The append path asks twice for each put, so no method wraps it.
    now_ns = staticmethod(time.time_ns)

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()


class DiskSpace(NamedTuple):
    """A file system as `df` counts it: what is kept for root alone is neither used nor free."""

    used_bytes: int
    free_bytes: int

    @property
    def used_ratio(self) -> float:
        """Used share, 0 to 1; 1 when there is nothing to use."""
        usable = self.used_bytes + self.free_bytes
        return self.used_bytes / usable if usable else 1.0


class Files:
    """The real operating system."""

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> int:
        """A descriptor of `path`; with `create` the file must not exist yet."""
        flags = os.O_CLOEXEC | (os.O_RDONLY if read_only else os.O_RDWR)
        if create:
            flags |= os.O_CREAT | os.O_EXCL
        return os.open(path, flags, 0o644)

    @contextmanager
    def opened(self, path: str, *, create: bool = False, read_only: bool = False) -> Iterator[int]:
        """Open a file (see `open`) and close it at the end of a `with`."""
        fd = self.open(path, create=create, read_only=read_only)
        try:
            yield fd
        finally:
            self.close(fd)

    def create(self, path: str, size: int) -> int:
        """A descriptor of a new file of `size` zero bytes; no blocks are reserved yet.

        Where the system can, the name appears with the full length: a process killed in between
        leaves no shorter file, with which the reference would refuse to start. Raises OSError, and
        leaves nothing behind.
        """
        try:
            fd = os.open(
                os.path.dirname(path) or ".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o644
            )
        except OSError as error:
            if error.errno in _NO_UNNAMED_FILES:
                return self.create_in_steps(path, size)
            raise
        try:
            os.ftruncate(fd, size)
            # Python follows the link only if it is given a descriptor, which is not used here.
            os.link(f"/proc/self/fd/{fd}", path, src_dir_fd=fd, follow_symlinks=True)
        except FileNotFoundError:  # no /proc here
            os.close(fd)
            return self.create_in_steps(path, size)
        except OSError:
            os.close(fd)
            raise
        return fd

    def create_in_steps(self, path: str, size: int) -> int:
        """`create` for file systems without unnamed files."""
        fd = self.open(path, create=True)
        try:
            self.set_size(fd, size)
        except OSError:
            self.close(fd)
            self.remove(path)
            raise
        return fd

    def close(self, fd: int) -> None:
        """Give a descriptor back."""
        os.close(fd)

    def size(self, fd: int) -> int:
        """Length of an open file in bytes."""
        return os.fstat(fd).st_size

    def size_of(self, path: str) -> int:
        """Length of a file in bytes."""
        return os.stat(path).st_size

    def identity(self, path: str) -> tuple[int, int]:
        """(inode, time of the last change of the content in ns): tells a file from its copies."""
        found = os.stat(path)
        return found.st_ino, found.st_mtime_ns

    def node(self, path: str) -> tuple[int, int]:
        """(device, inode) of what a path names."""
        found = os.stat(path)
        return found.st_dev, found.st_ino

    def node_of(self, fd: int) -> tuple[int, int]:
        """Device and number of an open file."""
        found = os.fstat(fd)
        return found.st_dev, found.st_ino

    def made_and_left(self, path: str) -> bool:
        """Whether a file was made since the machine came up, here, and never touched afterwards.

        The inode of a copy that kept its times has a later change; a file from before the last boot
        is older than the boot. A file with a time in the future is from before the clock was set
        back, and nobody can tell whether it is from before the boot as well.
        """
        found = os.stat(path)
        now_ns = time.time_ns()
        up_ns = now_ns - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        untouched = abs(found.st_ctime_ns - found.st_mtime_ns) < _SAME_TIME_NS
        return untouched and up_ns < found.st_mtime_ns <= now_ns

    def boot_id(self) -> str:
        """The name of this run of the kernel, another after each power cut; "" if not known."""
        try:
            with open(_BOOT_ID_PATH, encoding="ascii") as file:
                return file.read().strip()
        except OSError:
            return ""

    def set_size(self, fd: int, size: int) -> None:
        """Cut or lengthen (sparsely) to `size` bytes."""
        os.ftruncate(fd, size)

    def reserve(self, fd: int, position: int, length: int) -> None:
        """Make sure the disk has blocks for the range; bytes already there stay. May be ENOSPC."""
        if length > 0:
            os.posix_fallocate(fd, position, length)

    def map(self, fd: int, size: int, *, read_only: bool = False) -> mmap.mmap:
        """The whole file as shared memory."""
        access = mmap.ACCESS_READ if read_only else mmap.ACCESS_WRITE
        return mmap.mmap(fd, size, access=access)

    def anonymous(self, size: int) -> mmap.mmap:
        """Memory of no file, all zeros; gone with the process."""
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def lock_memory(self, memory: mmap.mmap) -> None:
        """Keep writable `memory` from being swapped out. Fails where RLIMIT_MEMLOCK forbids it."""
        _call_memory("mlock", memory)

    def unlock_memory(self, memory: mmap.mmap) -> None:
        """End `lock_memory`."""
        _call_memory("munlock", memory)

    def zero_memory(self, memory: mmap.mmap, position: int, length: int) -> None:
        """Store zeros through a writable mapping: each page of the range is there afterwards."""
        assert position >= 0
        assert 0 <= length <= len(memory) - position
        held = ctypes.c_char.from_buffer(memory)
        _libc.memset(ctypes.addressof(held) + position, 0, length)

    def read(self, fd: int, position: int, size: int) -> bytes:
        """Up to `size` bytes at `position`; fewer only at the end of the file."""
        data = os.pread(fd, size, position)
        if len(data) == size or not data:
            return data
        parts = [data]
        missing = size - len(data)
        while missing and (data := os.pread(fd, missing, position + size - missing)):
            parts.append(data)
            missing -= len(data)
        return b"".join(parts)

    def write(self, fd: int, position: int, data: bytes | bytearray | memoryview) -> None:
        """All of `data` at `position`."""
        written = os.pwrite(fd, data, position)
        if written != len(data):
            rest = memoryview(data)[written:]
            position += written
            while rest:
                written = os.pwrite(fd, rest, position)
                rest = rest[written:]
                position += written

    def data_sync(self, fd: int) -> None:
        """Wait until the file's bytes, and what is needed to read them, are on the disk."""
        sync_data(fd)

    def sync(self, fd: int) -> None:
        """Sync data and all metadata (see `data_sync`)."""
        sync_all(fd)

    def sync_directory(self, path: str) -> None:
        """Make creations, renames and removals of names in `path` durable."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            sync_all(fd)
        finally:
            os.close(fd)

    def forget_cached(self, fd: int) -> None:
        """Drop clean cached pages, so that the next read comes from the disk."""
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def data_ranges(self, fd: int, start: int, end: int) -> list[tuple[int, int]]:
        """Ranges of [start, end) that may hold something else than zeros, in order.

        A list, not a generator: a read up to a hole makes the kernel read ahead into the hole. What
        it has read counts as data, and the caller would follow that through the whole file.
        """
        ranges: list[tuple[int, int]] = []
        position = start
        while position < end:
            try:
                begin = os.lseek(fd, position, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # nothing but a hole up to the end of the file
                    break
                raise
            if begin >= end:
                break
            position = min(os.lseek(fd, begin, os.SEEK_HOLE), end)
            ranges.append((begin, position))
        return ranges

    def last_nonzero(self, fd: int, start: int, end: int) -> int:
        """Position after the last byte of [start, end) that is not zero; `start` if all are."""
        for begin, stop in reversed(self.data_ranges(fd, start, end)):
            while stop > begin:
                position = max(begin, stop - _COPY_BYTES)
                data = self.read(fd, position, stop - position)
                # Comparing is ten times faster than stripping, and most bytes are zeros.
                if data != _ZEROS[: len(data)]:
                    return position + len(data.rstrip(b"\0"))
                stop = position
        return start

    def synced_ends(self, paths: Sequence[str], size: int) -> list[int]:
        """Sync files of `size` bytes, forget what is cached of them, and read where they end: the
        position after the last byte of each that is not zero, as the disk has it.

        The threads of this call share nothing with other threads but the files. Raises OSError.
        """

        def synced_end(path: str) -> int:
            with self.opened(path) as fd:
                self.sync(fd)
                self.forget_cached(fd)
                return self.last_nonzero(fd, 0, size)

        return self.each(synced_end, paths)

    def each(self, call: Callable[[str], int], paths: Sequence[str]) -> list[int]:
        """The results of `call` for each path, on several threads where there are many. All calls
        have ended when it returns, or raises the error of one of them."""
        if len(paths) < _MANY_FILES:
            return [call(path) for path in paths]
        with ThreadPoolExecutor(_THREADS, "aerobee-start-sync") as threads:
            return list(threads.map(call, paths))

    def zero(self, fd: int, start: int, end: int) -> int:
        """Overwrite what is not zero in [start, end), return how many bytes; the reservation stays.

        Only chunks that hold something are written, so zeroing the unused rest of a reserved
        segment costs a look at its extents and no disk space on sparse files.
        """
        rewritten = 0
        for begin, stop in self.data_ranges(fd, start, end):
            for position in range(begin, stop, _COPY_BYTES):
                length = min(_COPY_BYTES, stop - position)
                data = self.read(fd, position, length)
                if data.count(0) != len(data):
                    self.write(fd, position, _ZEROS[:length])
                    rewritten += length
        return rewritten

    def rename(self, source: str, target: str) -> None:
        """Put `source` in the place of `target`, at once."""
        os.replace(source, target)

    def remove(self, path: str) -> None:
        """Remove a file's name."""
        os.unlink(path)

    def remove_tree(self, path: str) -> None:
        """Remove a directory with all it holds; absent is fine."""
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            return

    def make_directories(self, path: str, *, below: str | None = None) -> list[str]:
        """Make `path` with its parents; returns the directories that got a new name.

        The directory `below`, one of the parents, has to be there: FileNotFoundError otherwise. So
        a running store is not begun anew at a path from which it was moved away.
        """
        changed: list[str] = []
        missing: list[str] = []
        # A relative path's parents would end at "", which is never there.
        path = os.path.abspath(path)
        root = None if below is None else os.path.abspath(below)
        while not os.path.isdir(path):
            if path == root:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            missing.append(path)
            path = os.path.dirname(path)
        for directory in reversed(missing):
            os.mkdir(directory, 0o755)
            changed.append(os.path.dirname(directory))
        return changed

    def exists(self, path: str) -> bool:
        """Whether a file or directory of that name is there."""
        return os.path.exists(path)

    def is_directory(self, path: str) -> bool:
        """Whether `path` is a directory."""
        return os.path.isdir(path)

    def may_use(self, path: str, *, write: bool) -> bool:
        """Whether this user may read a file or directory, and `write` it, by its mode and mount."""
        wanted = os.R_OK | (os.W_OK if write else 0)
        if write and os.path.isdir(path):
            wanted |= os.X_OK
        return os.access(path, wanted, effective_ids=True)

    def names(self, path: str) -> list[str]:
        """Sorted names in a directory; none if it is not there."""
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def try_lock(self, fd: int, *, shared: bool = False) -> bool:
        """Lock byte 0 for this process; False if another process has it.

        Exclusively, which needs a descriptor to write with; or `shared` with other readers, which
        needs one to read with.
        """
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            fcntl.lockf(fd, kind | fcntl.LOCK_NB, 1, 0)
        except (BlockingIOError, PermissionError):  # EAGAIN or EACCES, POSIX leaves it open
            return False
        return True

    def modified_ms(self, path: str) -> int:
        """When the file was changed last, in milliseconds since the epoch."""
        return os.stat(path).st_mtime_ns // 1_000_000

    def is_alone(self, fd: int) -> bool:
        """Whether this writable descriptor is all that keeps its file: no name, no other
        descriptor, no mapping, of any process. False as well where the system cannot tell.
        """
        if os.fstat(fd).st_nlink:
            return False
        try:
            # Only the sole opener of a file gets this lease, which ends with the descriptor.
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except OSError:
            return False
        return True

    def disk_space(self, path: str) -> DiskSpace:
        """The space of the file system of `path`."""
        disk = os.statvfs(path)
        used = (disk.f_blocks - disk.f_bfree) * disk.f_frsize
        return DiskSpace(used, disk.f_bavail * disk.f_frsize)

    def used_ratio(self, path: str) -> float:
        """Used share of the file system, 0 to 1, as `df` shows it."""
        return self.disk_space(path).used_ratio


def is_full(error: OSError) -> bool:
    """Whether the error says that the disk, or the share of it we may use, is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def is_out_of_descriptors(error: OSError) -> bool:
    """Whether a file could not be opened because too many are open; no open file was harmed."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


def is_passing(error: OSError) -> bool:
    """Whether a call failed for want of room or descriptors, which come back by themselves."""
    return is_full(error) or is_out_of_descriptors(error)


def is_refused(error: OSError) -> bool:
    """Whether the error says that we may not write there."""
    return error.errno in (errno.EROFS, errno.EACCES, errno.EPERM)


class SyncFailed(OSError):
    """A file that was being made could not be synced. To throw it away may not be enough: without
    a journal, the sync of a new file syncs its directory too, and whoever syncs that directory next
    is not told of the error again (docs/reliability.md 3.2)."""

    @classmethod
    @contextmanager
    def marked(cls) -> Iterator[None]:
        """Raise the OSError of a sync as SyncFailed."""
        try:
            yield
        except OSError as error:
            raise cls(error.errno, error.strerror, error.filename) from error


class ReadOnlyFiles(Files):
    """The operating system for whoever only looks: a write to what it has opened fails.

    Plans and checks use the parts that a broker is made of. Those open files to write to them
    later. Here the opening has to work where nothing can be written, and to change nothing.
    """

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> int:
        """A descriptor of the existing `path` to read with."""
        return super().open(path, read_only=True)

    def map(self, fd: int, size: int, *, read_only: bool = False) -> mmap.mmap:
        """The whole file as shared memory that cannot be written."""
        return super().map(fd, size, read_only=True)


def _call_memory(name: str, memory: mmap.mmap) -> None:
    held = ctypes.c_char.from_buffer(memory)
    if getattr(_libc, name)(ctypes.addressof(held), len(memory)):
        code = ctypes.get_errno()
        raise OSError(code, f"{name} of {len(memory)} bytes: {os.strerror(code)}")
