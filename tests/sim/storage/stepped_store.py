"""The real store with its threads taken away: flushing and allocation happen when the test says so.

With threads the order of what reaches the disk would change from run to run, and no crash state
could be built a second time. Here each service's work is a call: `sync_log`, `flush_queues`,
`allocate`. The services' work is untouched.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aerobee.protocol.message.properties import decode_properties
from aerobee.protocol.message.record import StoreMessage
from aerobee.store.errors import StoreBroken
from aerobee.store.message_store import MessageStore
from aerobee.store.segments.allocate import AllocateMappedFileService
from aerobee.store.segments.mapped_file import MappedFile
from tests.unit.store.support import FIRST_MS, ManualClock


class SteppedClock(ManualClock):
    """Intervals pass only when the test lets them, and independently of the wall clock."""

    def __init__(self, now_ms: int = FIRST_MS) -> None:
        super().__init__(now_ms)
        self.passed_s = 0.0

    def monotonic(self) -> float:
        return self.passed_s


class _NoThread:
    """Stands where the allocation service keeps its thread."""

    def join(self) -> None:
        """Ended already."""


class SteppedAllocator(AllocateMappedFileService):
    """Makes segments in the caller's thread: a segment that is waited for at once, others with
    `run`."""

    def take(self, start: int, timeout_s: float = 0.0) -> MappedFile:
        self.prepare(start)
        if start in self._requested:
            self._requested.remove(start)
            self._make(start)
        return super().take(start, timeout_s)

    def run(self) -> bool:
        """Do the work that the thread would have done by now; return whether there was any."""
        if not self._requested:
            return False
        while self._requested:
            self._make(self._requested.popleft())
        return True

    def _request(self, start: int) -> None:
        self._thread = self._thread or _NoThread()  # type: ignore[assignment]
        super()._request(start)


class SteppedStore(MessageStore):
    """Opened and closed as the real one; between that, the test does the threads' turns."""

    def _make_allocator(self) -> AllocateMappedFileService:
        allocator = super()._make_allocator()
        allocator.__class__ = SteppedAllocator
        return allocator

    def _make_flusher(self) -> Any:
        return _without_thread(super()._make_flusher())

    def _make_queue_flusher(self) -> Any:
        return _without_thread(super()._make_queue_flusher())

    # --- turns of the threads ---------------------------------------------------------------

    def sync_log(self, least_pages: int = 0) -> bool:
        """The flush thread's turn; False when the store is broken."""
        return self._sync.sync(least_pages)

    def flush_queues(self, *, thorough: bool) -> bool:
        """The queue flush thread's turn; False when the store is broken."""
        return self._queue_flusher.flush(0 if thorough else 1)

    def allocate(self) -> bool:
        """The allocation thread's turn; whether it had anything to do."""
        allocator = self._allocator
        assert isinstance(allocator, SteppedAllocator)
        return allocator.run()

    # --- what only tests ask ----------------------------------------------------------------

    @property
    def broken(self) -> StoreBroken | None:
        """Why the store has stopped, None while it works."""
        return self._health.broken

    @property
    def open_now(self) -> bool:
        """Whether nobody has closed it yet."""
        return self._closed is None

    def delivery_time(self, one: StoreMessage, store_ms: int) -> int:
        """The tags code of a delayed message's unit."""
        return self._parts.levels.tags_code(
            one.topic, decode_properties(one.properties), store_ms, one.tags_code
        )

    def abandon(self) -> None:
        """Give descriptors and the lock back without writing: the process is dead."""
        parts = self._parts
        parts.queues.close()
        if parts.index is not None:
            for file in [*parts.index.files, *parts.index._spare]:
                file.close()
        parts.segments.close()
        for segment in self._allocator._ready.values():
            segment.close()
        parts.lock.release()


def _without_thread(service: Any) -> Any:
    def stop() -> None:
        service._stopping = True
        service._last()

    service.start = lambda: None
    service.stop = stop
    return service


@contextmanager
def opened(store: SteppedStore) -> Iterator[SteppedStore]:
    """The store, let go of at the end whatever happens."""
    try:
        yield store
    finally:
        store.abandon()
