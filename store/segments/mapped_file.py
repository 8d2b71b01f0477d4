"""One commit log segment: a file of fixed length, mapped, written from front to back.

Life: reserved (made and mapped by the allocation service, nobody's yet) -> active (the writer
stores into `memory` and moves `wrote` last) -> sealed (full; its descriptor closes after its last
sync, the mapping stays for readers) -> closed, or dismissed (taken out of the list to be deleted,
unmapped by a worker). Segments found at start are sealed, except the last one, which recovery
reopens for writing with `activate`.

Invariants
- Bytes below `wrote` never change while the store is open; nobody reads above it.
- The mapping never outlives its blocks: every byte from `wrote` on was reserved before the segment
  became active, so a store into it cannot fault on a full disk.
- One descriptor lives from creation to the last sync, because the kernel reports a failed write
  back once per open descriptor (docs/reliability.md 3.2).
- `pins` counts views handed out; it is touched by the store's caller thread only. A closed mapping
  goes away with its last view (Python keeps it for them), so closing never pulls memory away.
"""

import mmap
from collections.abc import Callable, Iterable
from typing import Self

from aerobee.store.disk.files import Files, SyncFailed
from aerobee.store.errors import StoreLayoutError

_FORGET_BYTES = 16 << 20


class MappedFile:
    """A segment; `start` is its first log offset, `end` is the log offset after its last byte."""

    def __init__(self, files: Files, path: str, start: int, size: int) -> None:
        self._files = files
        self._fd = -1
        self._map: mmap.mmap | None = None
        self._memory: memoryview | None = None
        self._view: memoryview | None = None
        self.path = path
        self.start = start
        self.size = size
        self.end = start + size
        # Bytes written; moved by the writer after the bytes are in place.
        self.wrote = 0
        # Records at positions below this were not checked since the store was opened (recovery and
        # scrub move it); what this process wrote is as it wrote it.
        self.unchecked_below = 0
        # Ranges of positions that the disk does not give (the scrub finds them): touched through
        # the mapping they would end the process.
        self.unreadable: tuple[tuple[int, int], ...] = ()
        # Store time of the last record, for the checkpoint and for monotone times in a segment.
        self.last_store_ms = 0
        self.pins = 0

    def make(self) -> Self:
        """Make the file, all blocks reserved, synced and mapped. The directory is not synced yet.

        Raises OSError (ENOSPC when the disk is full; SyncFailed); nothing is left behind then. The
        length is set before the blocks are reserved: reserving lengthens a file bit by bit, and a
        crash in between would leave a file of a wrong size.
        """
        files = self._files
        self._fd = files.create(self.path, self.size)
        try:
            files.reserve(self._fd, 0, self.size)
            with SyncFailed.marked():
                files.sync(self._fd)
            self._open_for_appends()
        except OSError:
            self.close()
            files.remove(self.path)
            raise
        return self

    @classmethod
    def load(cls, files: Files, path: str, start: int, size: int) -> "MappedFile":
        """An existing file, taken as full; it is opened when first read."""
        segment = cls(files, path, start, size)
        segment.wrote = segment.unchecked_below = size
        return segment

    def activate(self, wrote: int) -> None:
        """Go on writing at `wrote`: reserve what is left, then map for writing.

        Raises OSError (ENOSPC when the disk is full). A segment taken over from RocketMQ is sparse;
        this keeps its bytes and gives it blocks before the first store.
        """
        fd = self._files.open(self.path)
        try:
            self._check_size(fd)
            self._files.reserve(fd, wrote, self.size - wrote)
        except (OSError, StoreLayoutError):
            self._files.close(fd)
            raise
        self._drop_map()
        self._close_fd()
        self._fd = fd
        self._open_map(read_only=False)
        self.wrote = wrote
        self.unchecked_below = min(self.unchecked_below, wrote)

    @property
    def active(self) -> bool:
        """Whether the segment is open for writing."""
        return self._memory is not None

    @property
    def descriptor(self) -> int:
        """The descriptor of the open file, -1 without one."""
        return self._fd

    @property
    def memory(self) -> memoryview:
        """The writer's view of the whole file, while it is open for writing."""
        assert self._memory is not None
        return self._memory

    @property
    def view(self) -> memoryview:
        """The readers' view of the whole file, mapped when first asked for."""
        if self._view is None:
            if self._fd < 0:
                self._fd = self._files.open(self.path, read_only=True)
            self._check_size(self._fd)
            self._open_map(read_only=True)
            self._close_fd()
        assert self._view is not None
        return self._view

    def find(self, pattern: bytes, position: int, end: int) -> int:
        """First position in [position, end) of the file at which `pattern` stands, or -1."""
        assert self.view  # mapped by now
        assert self._map is not None
        return self._map.find(pattern, position, end)

    def append(self, records: Iterable[bytes | memoryview], store_ms: int) -> None:
        """Copy `records`, for which there is room, after the written bytes; the mark moves last.

        Only the writer calls this. `store_ms` is the store time of the last record. Records are
        copied one after another: the C library copies in an order of its own, and a process that is
        killed in the middle of one copy for all would leave sound records after a record without a
        head.
        """
        memory = self._memory
        assert memory is not None
        end = self.wrote
        for record in records:
            start, end = end, end + len(record)
            memory[start:end] = record
        self.last_store_ms = store_ms
        self.wrote = end

    def append_placed(self, place: Callable[[memoryview, int], int], store_ms: int) -> None:
        """Append records that `place` copies to a position of the file's memory, in the order of
        `append`; `place` returns their bytes."""
        size = place(self.memory, self.wrote)
        self.last_store_ms = store_ms
        self.wrote += size

    def finish(self, blank: bytes) -> None:
        """End the segment with `blank`: the next record does not fit. Only the writer calls
        this."""
        self.append((blank,), self.last_store_ms)
        self.wrote = self.size

    def finish_unopened(self, blank: bytes) -> None:
        """Do `finish` and sync at once, for a segment that is not to be opened for writing."""
        assert not self.active
        with self._files.opened(self.path) as fd:
            self._files.write(fd, self.wrote, blank)
            self._files.sync(fd)
        self.wrote = self.size

    def copy(self, data: memoryview) -> None:
        """Write `data`, for which there is room, after the written bytes, past the mapping; the
        caller moves `wrote`. Only the writer calls this. Raises OSError."""
        self._files.write(self._fd, self.wrote, data)

    def commit(self, position: int) -> None:
        """Bring the bytes written below `position` into the file: a mapping's bytes are there."""

    def sync(self) -> None:
        """Wait until the stored bytes are on the disk."""
        if self._fd >= 0:
            self._files.data_sync(self._fd)

    def seal(self) -> None:
        """Close the descriptor: after the last sync of a full segment it is of no use any more."""
        assert self.wrote == self.size
        self._close_fd()
        if self._map is not None:
            self._map.madvise(mmap.MADV_NORMAL)

    def sync_and_drop_cache(self) -> None:
        """Push out and drop cached pages before a recovery reads, so that reads show the disk.

        After a failed write back the cache may hold bytes that the disk does not
        (docs/reliability.md 3.2). Raises OSError when the disk refuses again.
        """
        self._drop_map()
        self.sync_file(forget=True)

    def sync_file(self, *, forget: bool = False) -> None:
        """Sync a segment that is not open, whoever wrote it. Raises OSError."""
        with self._files.opened(self.path, read_only=True) as fd:
            self._files.sync(fd)
            if forget:
                self._files.forget_cached(fd)

    def zero_from(self, position: int) -> int:
        """Overwrite with zeros from `position` to the file's end, and sync. Returns the bytes
        rewritten.

        A file with nothing there is not opened for writing: it may be on a read-only disk.
        """
        with self._files.opened(self.path, read_only=True) as fd:
            if self._files.last_nonzero(fd, position, self.size) <= position:
                return 0
        with self._files.opened(self.path) as fd:
            rewritten = self._files.zero(fd, position, self.size)
            self._files.sync(fd)
        return rewritten

    def forget_pages(self) -> None:
        """Give back the memory that reading has mapped; the kernel's cache keeps the bytes.

        It goes piece by piece: the call stops all other threads, a quarter of a second for 1 GiB.
        """
        if self._map is not None:
            for position in range(0, self.size, _FORGET_BYTES):
                length = min(_FORGET_BYTES, self.size - position)
                self._map.madvise(mmap.MADV_DONTNEED, position, length)

    def read_ahead(self, position: int, length: int) -> None:
        """Have the kernel bring that range into its cache while the caller does something else."""
        start = position - position % mmap.PAGESIZE
        length = min(position + length, self.size) - start
        if self._map is not None and length > 0:
            self._map.madvise(mmap.MADV_WILLNEED, start, length)

    def pin(self, position: int, end: int) -> memoryview:
        """The bytes [position, end) of the file; the mapping stays until `unpin`."""
        view = self.view[position:end]
        self.pins += 1
        return view

    def unpin(self) -> None:
        """Take note that a view of `pin` was released."""
        assert self.pins > 0
        self.pins -= 1

    def dismiss(self) -> bool:
        """Unmap now, for a segment that nobody can find any more; False while a view is still out.

        Any thread may call this. Unmapping a gigabyte takes tens of milliseconds: `mmap.close` lets
        the other threads run meanwhile, dropping the last reference to a mapping would not.
        """
        if self.pins:
            return False
        for view in (self._memory, self._view):
            if view is not None:
                view.release()
        self._memory = self._view = None
        if self._map is not None:
            try:
                self._map.close()
            except BufferError:  # somebody has a view without a pin
                return False
            self._map = None
        self._close_fd()
        return True

    def close(self) -> None:
        """Close the descriptor, and unmap as soon as the last view is gone."""
        self._drop_map()
        self._close_fd()

    def _open_for_appends(self) -> None:
        self._open_map(read_only=False)

    def _open_map(self, *, read_only: bool) -> None:
        self._map = self._files.map(self._fd, self.size, read_only=read_only)
        whole = memoryview(self._map)
        self._view = whole.toreadonly()
        self._memory = None if read_only else whole
        if not read_only:
            # The writer touches each page once. Reading ahead of it would fill the cache with
            # zeros: 8 MiB at a time on common disks, and appends wait for it.
            self._map.madvise(mmap.MADV_RANDOM)

    def _drop_map(self) -> None:
        # No mmap.close(): it fails while views are out. Dropping the last reference unmaps.
        self._map = self._memory = self._view = None

    def _close_fd(self) -> None:
        if self._fd >= 0:
            self._files.close(self._fd)
            self._fd = -1

    def _check_size(self, fd: int) -> None:
        found = self._files.size(fd)
        if found != self.size:
            # A mapping longer than its file faults when read.
            raise StoreLayoutError(
                f"{self.path} has changed to {found} bytes while the store was open; it had "
                f"{self.size}. Restore it from a backup and restart."
            )
