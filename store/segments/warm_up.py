"""Makes each page of a new segment there before the writer comes to it, as an option.

A segment is touched all over with zeros, under SYNC_FLUSH synced on the way, locked in memory, and
announced to the kernel as needed; when it is full and synced it is unlocked again. The allocation
thread does it, with calls that let the other threads run, so a sender notices it only when segments
are filled faster than they are warmed (store/FORMAT.md 1.4; MappedFile.warmMappedFile).

Here it mostly costs: blocks are reserved anyhow, and syncs of a file that was written once with
zeros took three times as long as syncs of one that was only reserved (docs/reliability.md 3.3). It
is for disks and kernels that behave otherwise.

Segments that a restart goes on with are left as they are, and so are those written in buffers of
the transient pool, whose writer never touches the file's pages.
"""

import logging
import mmap

from aerobee.store.disk.files import Files
from aerobee.store.segments.allocate import MakeSegment
from aerobee.store.segments.mapped_file import MappedFile

log = logging.getLogger("aerobee.store.allocate")

_PAGE_BYTES = 4096
# Between two of these the thread may be stopped by others that want the interpreter.
_STEP_BYTES = 16 << 20


class WarmUp:
    """How segments are warmed: synced after each `sync_pages` pages, or not at all with None."""

    def __init__(self, files: Files, sync_pages: int | None) -> None:
        self._files = files
        self._sync_pages = sync_pages
        self._refused = False

    def touch(self, fd: int, memory: mmap.mmap) -> None:
        """Store zeros all over `memory`, the new and empty file of `fd`. Raises OSError."""
        size = len(memory)
        step = _STEP_BYTES if self._sync_pages is None else self._sync_pages * _PAGE_BYTES
        for position in range(0, size, step):
            self._files.zero_memory(memory, position, min(step, size - position))
            if self._sync_pages is not None:
                self._files.data_sync(fd)

    def lock(self, path: str, memory: mmap.mmap) -> bool:
        """Keep it in memory; whether that is allowed. Says once that it is not."""
        try:
            self._files.lock_memory(memory)
        except OSError as error:
            if not self._refused:
                log.warning(
                    "warmed segments are not locked in memory: raise the limit (ulimit -l, "
                    "LimitMEMLOCK=) to %d KiB or more path=%s error=%s",
                    2 * len(memory) >> 10,
                    path,
                    error,
                )
            self._refused = True
            return False
        return True

    def announce(self, path: str, memory: mmap.mmap) -> None:
        """Tell the kernel that all of it will be needed soon."""
        try:
            for position in range(0, len(memory), _STEP_BYTES):
                length = min(_STEP_BYTES, len(memory) - position)
                memory.madvise(mmap.MADV_WILLNEED, position, length)
        except OSError as error:  # advice that is not taken is no harm
            log.warning("advice refused path=%s error=%s", path, error)

    def unlock(self, path: str, memory: mmap.mmap) -> None:
        """End `lock`."""
        try:
            self._files.unlock_memory(memory)
        except OSError as error:  # it ends with the mapping anyway
            log.warning("segment not unlocked path=%s error=%s", path, error)


class WarmFile(MappedFile):
    """A segment that is warmed when it is made."""

    __slots__ = ("_locked", "_warm_up")

    def __init__(self, files: Files, path: str, start: int, size: int, warm_up: WarmUp) -> None:
        super().__init__(files, path, start, size)
        self._warm_up = warm_up
        self._locked = False

    def _open_for_appends(self) -> None:
        super()._open_for_appends()
        assert self._map is not None
        self._warm_up.touch(self._fd, self._map)
        self._locked = self._warm_up.lock(self.path, self._map)
        self._warm_up.announce(self.path, self._map)

    def seal(self) -> None:
        super().seal()
        if self._locked and self._map is not None:
            self._locked = False
            self._warm_up.unlock(self.path, self._map)


def warm_maker(files: Files, size: int, sync_pages: int | None) -> MakeSegment:
    """Makes segments of `size` bytes that are warmed before they are handed over."""
    warm_up = WarmUp(files, sync_pages)
    return lambda path, start: WarmFile(files, path, start, size, warm_up).make()
