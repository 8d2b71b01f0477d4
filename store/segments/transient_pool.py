"""A pool of locked memory that segments are written in before their bytes go to the files.

Appends then never wait for the page cache: not for its locks while the kernel writes pages back,
not for a page to be brought in. The price: bytes that were not yet committed to the file are lost
with the process, and consumers see a message only once it was committed (`commit_service.py`). The
pool works with ASYNC_FLUSH on a master only (store/FORMAT.md 4.3; TransientStorePool, MappedFile).

Each new segment borrows a buffer of its own size and gives it back when all of it is committed;
from then on it is an ordinary segment, read through its mapping. When none is free the segment is
an ordinary one from the beginning, or, with `fail_fast`, is not made at all.

Buffers are used again as they are. The bytes after the written part are left over from another
segment, so only the written part is ever committed: a segment that ended early, up to its blank.

Threads: the allocation thread borrows, the commit thread gives back, the owner opens and closes;
each step is one operation on a deque.
"""

import logging
import mmap
from collections import deque

from aerobee.store.disk.files import Files
from aerobee.store.errors import SegmentCreateFailed, StoreNotWritable
from aerobee.store.segments.allocate import MakeSegment
from aerobee.store.segments.mapped_file import MappedFile

log = logging.getLogger("aerobee.store.pool")

#: Free buffers of a store without a pool, as an answer to a client (docs/store.md).
NO_POOL = (1 << 31) - 1
_FEW = 0.4


class TransientStorePool:
    """`buffers` pieces of memory of `buffer_bytes` each, the size of a segment."""

    def __init__(self, files: Files, buffers: int, buffer_bytes: int) -> None:
        self._files = files
        self._buffers = buffers
        self._buffer_bytes = buffer_bytes
        self._memories: list[mmap.mmap] = []
        self._free: deque[memoryview] = deque()
        self._locked = 0

    def open(self) -> None:
        """Get the memory and lock it. Raises StoreNotWritable without enough memory.

        Memory that may not be locked is used all the same; at worst it is swapped out.
        """
        for _ in range(self._buffers):
            try:
                memory = self._files.anonymous(self._buffer_bytes)
            except (OSError, ValueError) as error:
                self.close()
                raise StoreNotWritable(
                    f"the transient pool takes {self._buffers} buffers of {self._buffer_bytes} "
                    f"bytes (transient_pool_buffers, commit_log_segment_bytes), which are not to "
                    f"be had: {error}. Make it smaller, or turn it off."
                ) from error
            self._memories.append(memory)
            self._free.append(memoryview(memory))
        self._lock()

    def _lock(self) -> None:
        for memory in self._memories:
            try:
                self._files.lock_memory(memory)
            except OSError as error:
                log.warning(
                    "the transient pool is not locked in memory, it may be swapped out: raise the "
                    "limit (ulimit -l, LimitMEMLOCK=) to %d KiB or more error=%s",
                    self._buffers * self._buffer_bytes >> 10,
                    error,
                )
                return
            self._locked += 1

    @property
    def free(self) -> int:
        """Buffers that nobody has."""
        return len(self._free)

    def borrow(self) -> memoryview | None:
        """A buffer, None if all are out. It holds left-over bytes."""
        try:
            buffer = self._free.popleft()
        except IndexError:
            return None
        if len(self._free) < self._buffers * _FEW:
            log.warning(
                "transient pool runs low: the files are written slower than messages come "
                "free=%d of=%d",
                len(self._free),
                self._buffers,
            )
        return buffer

    def give_back(self, buffer: memoryview) -> None:
        """Take a borrowed buffer back."""
        self._free.appendleft(buffer)

    def close(self) -> None:
        """Give the memory back to the system. All buffers are back by now."""
        assert len(self._free) == len(self._memories)
        for memory in self._memories[: self._locked]:
            try:
                self._files.unlock_memory(memory)
            except OSError as error:  # it ends with the mapping anyway
                log.warning("memory of the transient pool not unlocked error=%s", error)
        self._locked = 0
        while self._free:
            self._free.pop().release()
        for memory in self._memories:
            memory.close()
        self._memories = []


class PooledFile(MappedFile):
    """A segment written in `buffer`, which goes back to `pool`; `committed` bytes are in the file.

    The writer's `memory` is the buffer, the readers' `view` the file. The commit thread calls
    `commit`; `wrote` moves ahead of it.
    """

    def __init__(
        self,
        files: Files,
        path: str,
        start: int,
        size: int,
        *,
        pool: TransientStorePool,
        buffer: memoryview,
    ) -> None:
        super().__init__(files, path, start, size)
        self._pool = pool
        self._memory = buffer
        self.committed = 0
        # After this position there are only the zeros that the file was made with.
        self._content_end = size

    def _open_for_appends(self) -> None:
        buffer = self._memory
        self._open_map(read_only=True)
        self._memory = buffer

    def finish(self, blank: bytes) -> None:
        self._content_end = self.wrote + len(blank)
        super().finish(blank)

    def commit(self, position: int) -> None:
        """Write the bytes below `position` to the file. When all are written, the buffer goes back.

        Raises OSError; `committed` stays then, and trying again writes the same bytes once more.
        """
        if self._memory is None:
            return
        end = min(position, self._content_end)
        if end > self.committed:
            # Released even if the write fails and its error is kept: the memory is unmapped later.
            with self._memory[self.committed : end] as part:
                self._files.write(self._fd, self.committed, part)
        self.committed = position
        if position == self.size:
            self._give_back()

    def dismiss(self) -> bool:
        self._give_back()
        return super().dismiss()

    def close(self) -> None:
        self._give_back()
        super().close()

    def _give_back(self) -> None:
        buffer, self._memory = self._memory, None
        if buffer is not None:
            self._pool.give_back(buffer)


def pooled_maker(
    files: Files, pool: TransientStorePool, otherwise: MakeSegment, size: int, *, fail_fast: bool
) -> MakeSegment:
    """Makes segments of `size` bytes in buffers of `pool`. Without a free buffer `otherwise` makes
    the segment or, with `fail_fast`, it is refused (SegmentCreateFailed)."""

    def make(path: str, start: int) -> MappedFile:
        buffer = pool.borrow()
        if buffer is not None:
            segment = PooledFile(files, path, start, size, pool=pool, buffer=buffer)
            try:
                return segment.make()
            except OSError:
                segment.close()
                raise
        if fail_fast:
            raise SegmentCreateFailed(
                f"{path} is not made: all buffers of the transient pool wait to be written to the "
                "disk (transient_pool_fail_fast)"
            )
        log.warning("transient pool is empty, the segment is mapped instead path=%s", path)
        return otherwise(path, start)

    return make
