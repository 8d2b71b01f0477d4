"""Moves the bytes appended in buffers of the transient pool into the files, a moment later.

The mark `committed` tells how far that has got: bytes below can be read, dispatched and synced, and
outlive the process. It moves in the order of the log, also over segments that got no buffer and are
in their files anyhow.

CommitRealTimeService (store/FORMAT.md 4.4) looks at every `interval_ms`, or as soon as it is woken:
`least_pages` or more go to the file at once, fewer when `thorough_interval_ms` have passed since
the last commit; so a message after a pause goes at once. The store's listener, which may dispatch,
hears of it from the mark; then the flush service is woken.

A failed write poisons the store, as everywhere. The service waits only for a full disk (on file
systems where reserved blocks do not hold, docs/reliability.md 3.1): the bytes are safe in the
buffer, sends are refused meanwhile.
"""

import logging

from aerobee.store.disk.files import is_full
from aerobee.store.flush.services import FlushRealTimeService, FlushService
from aerobee.store.log.marks import PooledMarks
from aerobee.store.log.store_core import StoreCore

log = logging.getLogger("aerobee.store.pool")

#: The kind of refusal this service sets and lifts (`Health.refuse`).
COMMIT_BLOCKED = "commit blocked"
_PAGE_BITS = 12


class CommitRealTimeService(FlushService):
    """The thread that commits the segments, moves the mark, and then wakes `flusher`."""

    name = "aerobee-commit-log"

    def __init__(self, core: StoreCore, marks: PooledMarks, flusher: FlushRealTimeService) -> None:
        settings = core.settings
        super().__init__(
            core.clock, settings.commit_interval_ms, settings.commit_thorough_interval_ms
        )
        self._marks = marks
        self._segments = core.segments
        self._health = core.health
        self._least_pages = settings.commit_least_pages
        self._flusher = flusher

    def wake(self) -> None:
        """Wake the thread after an append, but only if it would commit."""
        if self._pages() >= self._least_pages or self._due_in_s() <= 0:
            self._wake.set()

    def _pages(self) -> int:
        """The number of whole pages that wait."""
        return (self._marks.written >> _PAGE_BITS) - (self._marks.committed >> _PAGE_BITS)

    def commit(self, least_pages: int) -> bool:
        """Commit the written bytes if they are `least_pages` or more, or end a segment; return
        whether the mark moved. One caller at a time. Never raises OSError: the health takes a
        failure."""
        marks = self._marks
        store_ms, target, committed = marks.written_ms, marks.written, marks.committed
        if target == committed or self._health.broken is not None:
            return False
        segment_bytes = self._segments.segment_bytes
        if self._pages() < least_pages and target // segment_bytes == committed // segment_bytes:
            return False
        for segment in self._segments.between(committed, target):
            end = min(segment.end, target)
            try:
                segment.commit(end - segment.start)
            except OSError as error:
                self._failed(segment.path, error)
                return False
            # The newest record below is known for the last segment only; an older time is right
            # too.
            marks.commit(end, store_ms if end == target else marks.committed_ms)
        self._health.allow(COMMIT_BLOCKED)
        return True

    def _failed(self, path: str, error: OSError) -> None:
        if not is_full(error):
            self._health.poison(f"the write of {path}", error)
            return
        self._health.refuse(
            COMMIT_BLOCKED,
            f"the disk is full: {path} cannot be written ({error.strerror}). What was acknowledged "
            "waits in memory; sends resume by themselves when there is room",
        )

    def _tick(self) -> bool:
        woken = self._pause(self._interval_s)
        if not self._turn(0 if self._due_in_s() <= 0 else self._least_pages) and woken:
            # The thread was woken while the last commit ran, perhaps for later bytes.
            self._pause(min(self._interval_s, self._due_in_s()))
            self._turn(0)
        return self._health.broken is None

    def _last(self) -> None:
        self._turn(0)

    def _turn(self, least_pages: int) -> bool:
        if not self.commit(least_pages):
            return False
        self._thorough_at = self._clock.monotonic()
        self._flusher.wake()
        return True
