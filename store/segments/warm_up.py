"""Makes each page of a new segment there before the writer comes to it, as an option.

A segment is touched all over with zeros, under SYNC_FLUSH synced on the way, locked in memory, and
announced to the kernel as needed; when it is full and synced it is unlocked again. The allocation
thread does it, with calls that let the other threads run, so a sender notices it only when segments
are filled faster than they are warmed (store/FORMAT.md 1.4; MappedFile.warmMappedFile).

Here it mostly costs: blocks are reserved anyhow, and syncs of a file that was written once with
zeros took three times as long as syncs of a file that was only reserved (docs/reliability.md 3.3).
It is for disks and kernels that behave otherwise.

Segments that a restart goes on with are left as they are, and so are those written in buffers of
the transient pool, whose writer never touches the file's pages.
"""

import logging
import mmap
from collections.abc import Callable

from aerobee.store.disk.files import Files, SyncFailed
from aerobee.store.segments.allocate import MakeSegment
from aerobee.store.segments.mapped_file import MappedFile

log = logging.getLogger("aerobee.store.allocate")

_PAGE_BYTES = 4096
# Between two steps other threads may take the interpreter from this one.
_STEP_BYTES = 16 << 20


class WarmFile(MappedFile):
    """A segment that is warmed when it is made: synced after each `sync_pages` pages, or not at all
    with None. `refused` is called when the system does not lock memory."""

    def __init__(
        self,
        files: Files,
        path: str,
        start: int,
        size: int,
        *,
        sync_pages: int | None,
        refused: Callable[[str, OSError], None],
    ) -> None:
        super().__init__(files, path, start, size)
        self._sync_pages = sync_pages
        self._refused = refused
        self._locked = False

    def _open_for_appends(self) -> None:
        super()._open_for_appends()
        memory = self._map
        assert memory is not None
        step = _STEP_BYTES if self._sync_pages is None else self._sync_pages * _PAGE_BYTES
        for position in range(0, self.size, step):
            self._files.zero_memory(memory, position, min(step, self.size - position))
            if self._sync_pages is not None:
                with SyncFailed.marked():
                    self._files.data_sync(self._fd)
        try:
            self._files.lock_memory(memory)
            self._locked = True
        except OSError as error:
            self._refused(self.path, error)
        try:
            for position in range(0, self.size, _STEP_BYTES):
                length = min(_STEP_BYTES, self.size - position)
                memory.madvise(mmap.MADV_WILLNEED, position, length)
        except OSError as error:  # advice that is not taken is no harm
            log.warning("advice refused path=%s error=%s", self.path, error)

    def seal(self) -> None:
        super().seal()
        if self._locked and self._map is not None:
            self._locked = False
            try:
                self._files.unlock_memory(self._map)
            except OSError as error:  # it ends with the mapping anyway
                log.warning("segment not unlocked path=%s error=%s", self.path, error)


def warm_maker(files: Files, size: int, sync_pages: int | None) -> MakeSegment:
    """Makes segments of `size` bytes that are warmed before they are handed over."""
    said: list[str] = []

    def refused(path: str, error: OSError) -> None:
        if not said:
            log.warning(
                "warmed segments are not locked in memory: raise the limit (ulimit -l, "
                "LimitMEMLOCK=) to %d KiB or more path=%s error=%s",
                2 * size >> 10,
                path,
                error,
            )
        said.append(path)

    return lambda path, start: WarmFile(
        files, path, start, size, sync_pages=sync_pages, refused=refused
    ).make()
