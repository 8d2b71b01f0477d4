"""Descriptors of consume queue files: a bounded number open, none lost before its last sync.

A store may hold thousands of queue files, more than a process may have open. Files are opened when
touched and closed when others need the room. A file with unsynced writes keeps its descriptor (the
kernel reports a failed write back once per open descriptor, docs/reliability.md 3.2); if all open
files are in that state, the one chosen to go is synced on the spot.

Threads: the store's caller opens, writes and evicts; the flush thread syncs, and so does the caller
what it evicts. `_lock` guards the open list and closing; a file is closed when nobody is syncing it
any more, or a sync of its descriptor's number could be that of another file by then. A file
that is on its way out and being synced is no longer `dirty` and not yet synced: a flush that is to
leave nothing unsynced waits for it (`wait_evicted`).
"""

import os
import resource
import threading
from collections import OrderedDict
from collections.abc import Iterable

from aerobee.store.disk.files import Files
from aerobee.store.disk.segment_names import segment_name

_MOST = 4096
_LEAST = 64


def default_capacity() -> int:
    """A quarter of the descriptors this process may have, at most 4,096."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = _MOST * 4 if soft == resource.RLIM_INFINITY else soft
    return max(_LEAST, min(_MOST, allowed // 4))


class QueueFile:
    """One consume queue segment; `start` is its byte offset in the queue. Open while `fd` >= 0."""

    __slots__ = (
        "directory",
        "end",
        "fd",
        "high",
        "start",
        "synced_high",
        "synced_writes",
        "syncing",
        "unlinked",
        "used",
        "writes",
    )

    def __init__(self, directory: str, start: int, size: int) -> None:
        # Its queue's text, not one more: a store may have a hundred thousand files.
        self.directory = directory
        self.start = start
        # Most queues have a single file: their numbers are one object.
        self.end = start + size if start else size
        self.fd = -1
        # Writes so far and those covered by a sync; equal when the file is clean.
        self.writes = 0
        self.synced_writes = 0
        # Bytes from the start of the file written so far, and those covered by a sync.
        self.high = 0
        self.synced_high = 0
        self.used = False
        # By how many threads.
        self.syncing = 0
        self.unlinked = False

    @property
    def path(self) -> str:
        """Where it is."""
        return os.path.join(self.directory, segment_name(self.start))


class DescriptorCache:
    """Opens queue files on demand; at most `capacity` at a time."""

    def __init__(
        self, files: Files, capacity: int | None = None, *, read_only: bool = False
    ) -> None:
        self.files = files
        self._read_only = read_only
        self._capacity = capacity or default_capacity()
        self._open: OrderedDict[QueueFile, None] = OrderedDict()
        self._lock = threading.Lock()
        # Files with writes the flush thread has not picked up yet.
        self.dirty: dict[QueueFile, None] = {}
        # Those among them in which something else stood before.
        self.rewritten: dict[QueueFile, None] = {}
        # Directories that have new names in them, or have lost some, in the order of that.
        self._changed_directories: list[str] = []
        # The file that the store's caller is syncing to close it, and why such a sync failed.
        self._evicted: QueueFile | None = None
        self._eviction_ended = threading.Condition(self._lock)
        self._failed: OSError | None = None

    def __len__(self) -> int:
        return len(self._open)

    def fd(self, file: QueueFile) -> int:
        """A descriptor of the file, valid until the next call on this thread."""
        file.used = True
        return file.fd if file.fd >= 0 else self._reopen(file)

    def create(self, file: QueueFile, size: int) -> None:
        """Make the file, `size` bytes of nothing, in a directory that is there; `file` and
        directory are to be synced."""
        self._reopen(file, size)
        self._changed_directories.append(file.directory)
        self.wrote(file, 0)

    def note_directories(self, directories: Iterable[str]) -> None:
        """These have new names in them, or have lost some, and are to be synced."""
        self._changed_directories += directories

    def take_directories(self) -> list[str]:
        """Flush thread: what is to be synced by now. The list stays the same one: what the caller's
        thread notes meanwhile is kept, and taken the next time."""
        taken = self._changed_directories[:]
        del self._changed_directories[: len(taken)]
        return taken

    def wrote(self, file: QueueFile, high: int, *, rewritten: bool = False) -> None:
        """Note a write that reached up to byte `high` of the file."""
        file.writes += 1
        if high > file.high:
            file.high = high
        if rewritten:
            self.rewritten[file] = None
        self.dirty[file] = None

    def sync(self, file: QueueFile) -> bool:
        """Sync the file; False if there was nothing to do. Raises OSError."""
        with self._lock:
            self.dirty.pop(file, None)
            self.rewritten.pop(file, None)
            if file.fd < 0 or file.writes == file.synced_writes:
                return False
            file.syncing += 1
            fd, writes, high = file.fd, file.writes, file.high
        try:
            self.files.data_sync(fd)
        finally:
            with self._lock:
                file.syncing -= 1
                if file.unlinked and not file.syncing:
                    self._close(file)
        with self._lock:
            # Two threads may sync it, and the sync that began first may end last.
            file.synced_writes = max(file.synced_writes, writes)
            file.synced_high = max(file.synced_high, high)
        return True

    def wait_evicted(self) -> None:
        """Flush thread: wait until a file that is being synced to be closed is synced.

        Raises the OSError of a sync that failed: nobody tries that again.
        """
        with self._eviction_ended:
            evicted = self._evicted
            self._eviction_ended.wait_for(lambda: evicted is None or self._evicted is not evicted)
            if self._failed is not None:
                raise self._failed

    def discard(self, file: QueueFile) -> None:
        """The file is about to be removed: close it, unsynced."""
        with self._lock:
            self.dirty.pop(file, None)
            self.rewritten.pop(file, None)
            file.unlinked = True
            if not file.syncing:
                self._close(file)

    def close(self) -> None:
        """Close all. The flush thread has ended and synced what was to be synced."""
        with self._lock:
            for file in list(self._open):
                self._close(file)

    def _reopen(self, file: QueueFile, new_bytes: int | None = None) -> int:
        """Open the file, or make it with that length."""
        assert file.fd < 0
        while len(self._open) >= self._capacity and self._evict():
            pass
        if new_bytes is None:
            fd = self.files.open(file.path, read_only=self._read_only)
        else:
            fd = self.files.create(file.path, new_bytes)
        with self._lock:
            file.fd = fd
            file.unlinked = False
            self._open[file] = None
        return fd

    def _evict(self) -> bool:
        """Close one file: the first found that was not used since the last round."""
        victim = self._victim()
        if victim is None:
            return False
        if victim.writes != victim.synced_writes:
            self._sync_evicted(victim)
        with self._lock:
            if not victim.syncing:
                self._close(victim)
        return True

    def _sync_evicted(self, victim: QueueFile) -> None:
        with self._lock:
            self._evicted = victim
        try:
            self.sync(victim)
        except OSError as error:
            self._failed = error
            raise
        finally:
            with self._eviction_ended:
                self._evicted = None
                self._eviction_ended.notify_all()

    def _victim(self) -> QueueFile | None:
        with self._lock:
            clean = dirty = None
            second_chance: list[QueueFile] = []
            for file in self._open:
                if file.syncing:
                    continue
                if file.used:
                    file.used = False
                    second_chance.append(file)
                elif file.writes == file.synced_writes:
                    clean = file
                    break
                elif dirty is None:
                    dirty = file
            for file in second_chance:
                self._open.move_to_end(file)
            return clean or dirty or next((f for f in self._open if not f.syncing), None)

    def _close(self, file: QueueFile) -> None:
        if file.fd >= 0:
            self.files.close(file.fd)
            file.fd = -1
            self._open.pop(file, None)
