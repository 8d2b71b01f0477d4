"""Makes written bytes durable: the durable mark, and the threads that move it.

`CommitLogSync` moves the mark. One sync covers everything written before it began, so under
SYNC_FLUSH all sends that wait are completed by one fdatasync, and while it runs the next ones
gather (group commit). The mark moves to `committed` as read before the call, never after;
`committed` equals `written`, unless a transient pool (`commit_service.py`) keeps the newest bytes
out of the files.

The threads, of which a store has the first or the second, and the third:
- `GroupCommitService` (SYNC_FLUSH) syncs when asked to.
- `FlushRealTimeService` (ASYNC_FLUSH) looks every `flush_interval_ms` and syncs when
  `flush_least_pages` are new, and any new bytes every `flush_thorough_interval_ms`.
- `ConsumeQueueFlushService` does the same for consume queues and index, and writes the checkpoint
  and the offsets file with values taken before the sync they describe.

A failed sync is final (docs/reliability.md 3.2): the pages count as clean afterwards and a second
call succeeds without having written them. So the first error poisons the store and ends the thread;
the mark stays where it was.
"""

import logging
import threading
import time
from abc import ABC, abstractmethod

from aerobee.config.model import Settings
from aerobee.store.disk.disk_watch import DiskWatch
from aerobee.store.disk.files import Clock, is_out_of_descriptors
from aerobee.store.flush.offsets_keeper import OffsetsKeeper
from aerobee.store.index.index_service import IndexService
from aerobee.store.log.store_core import StoreCore

log = logging.getLogger("aerobee.store")

_PAGE_BITS = 12
# Slow disks stall for seconds and come back; a disk that is silent for longer has to show.
_STUCK_S = 20.0
# A start reads some 200 MB/s: the bytes of a tenth of a second are not worth a sync.
_LOOK_S = 0.2
_BEHIND_BYTES = 16 << 20


class CommitLogSync:
    """Syncs the commit log's segments and moves the durable mark."""

    def __init__(self, core: StoreCore) -> None:
        self._marks = core.marks
        self._segments = core.segments
        self._checkpoint = core.checkpoint
        self._health = core.health
        self._stats = core.stats
        self._progress = threading.Condition()

    def sync(self, least_pages: int = 0) -> bool:
        """Sync the new bytes, if they are `least_pages` or more; False when the store is broken."""
        if self._health.broken is not None:
            self._wake()  # another thread has broken it, and the waiting threads do not know it yet
            return False
        store_ms = self._marks.committed_ms
        target = self._marks.committed
        if not self._worth_it(target, least_pages):
            return True
        started_ns = time.perf_counter_ns()
        for segment in self._segments.between(self._marks.durable, target):
            try:
                segment.sync()
            except OSError as error:
                self._health.poison(f"the sync of {segment.path}", error)
                self._wake()
                return False
            if segment.end <= target:
                segment.seal()
        self._stats.commit_log_sync_times.add(time.perf_counter_ns() - started_ns)
        self._checkpoint.physic_ms = store_ms
        self._marks.sync(target)
        self._wake()
        return True

    def is_worth_it(self, least_pages: int) -> bool:
        """Whether `least_pages` pages are new, or a segment has become full."""
        return self._worth_it(self._marks.committed, least_pages)

    def _worth_it(self, target: int, least_pages: int) -> bool:
        durable = self._marks.durable
        if target <= durable:
            return False
        if (target >> _PAGE_BITS) - (durable >> _PAGE_BITS) >= least_pages:
            return True
        # A full segment does not wait for more pages.
        size = self._segments.segment_bytes
        return target // size != durable // size

    def _wake(self) -> None:
        with self._progress:
            self._progress.notify_all()

    def wait(self, log_offset: int, timeout_s: float) -> bool:
        """Wait until the mark has reached `log_offset`; False after the time-out or a failure."""
        marks, health = self._marks, self._health
        with self._progress:
            self._progress.wait_for(
                lambda: marks.durable >= log_offset or health.broken is not None, timeout_s
            )
        return marks.durable >= log_offset


class FlushService(ABC):
    """A thread that calls `_tick` again and again until it says False or is stopped.

    Too few pages are taken all the same when the thorough interval is over.
    """

    name = "aerobee-flush"

    def __init__(self, clock: Clock, interval_ms: int, thorough_interval_ms: int) -> None:
        self._clock = clock
        self._interval_s = interval_ms / 1000
        self._thorough_s = thorough_interval_ms / 1000
        self._thorough_at = clock.monotonic()
        self._wake = threading.Event()
        self._stopping = False
        self._turned_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread runs, and is not stuck in one call (a disk that does not answer)."""
        overdue_s = time.monotonic() - self._turned_at - self._interval_s
        return self._thread.is_alive() and overdue_s < _STUCK_S

    def stop(self) -> None:
        """End the thread; it finishes its work first."""
        self._stopping = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping:
            self._turned_at = time.monotonic()
            if not self._tick():
                return
        self._last()

    def _pause(self, seconds: float) -> bool:
        """Wait for `seconds`, or until somebody wakes the thread; return whether somebody did."""
        woken = self._wake.wait(seconds)
        if not self._stopping:
            self._wake.clear()
        return woken

    def _due_in_s(self) -> float:
        """Seconds until the thorough interval is over; not above 0 if it is."""
        return self._thorough_at + self._thorough_s - self._clock.monotonic()

    @abstractmethod
    def _tick(self) -> bool:
        """One turn of the thread; False if it is to end."""

    @abstractmethod
    def _last(self) -> None:
        """Finish the work, when the thread is stopped."""


class FlushRealTimeService(FlushService):
    """ASYNC_FLUSH: syncs at intervals; with `timed` nothing shortens them."""

    name = "aerobee-flush-commit-log"

    def __init__(self, settings: Settings, sync: CommitLogSync, clock: Clock) -> None:
        super().__init__(clock, settings.flush_interval_ms, settings.flush_thorough_interval_ms)
        self._sync = sync
        self._least_pages = settings.flush_least_pages
        self._timed = settings.flush_timed
        self._hurried = False

    def wake(self) -> None:
        """End the pause, unless it is `timed`, if the thread would then do something."""
        if not self._timed and (self._is_due() or self._sync.is_worth_it(self._least_pages)):
            self._wake.set()

    def hurry(self) -> None:
        """Do not wait for the interval: somebody waits for the bytes in the files now."""
        self._hurried = True
        self._wake.set()

    def _is_due(self) -> bool:
        return self._hurried or self._due_in_s() <= 0

    def _tick(self) -> bool:
        self._pause(self._interval_s)
        if not self._is_due():
            return self._sync.sync(self._least_pages)
        self._hurried = False
        self._thorough_at = self._clock.monotonic()
        return self._sync.sync()

    def _last(self) -> None:
        self._sync.sync()


class GroupCommitService(FlushRealTimeService):
    """SYNC_FLUSH: syncs as soon as one put asks for it; one sync serves all puts that wait.

    The interval only matters for appends whose owner never asks.
    """

    name = "aerobee-group-commit"

    def wake(self) -> None:
        self._wake.set()

    def _is_due(self) -> bool:
        return True


class ConsumeQueueFlushService(FlushService):
    """Syncs consume queues and index, keeps checkpoint and offsets file, looks at the disk.

    One round at a time, whichever thread asks for it: a round takes its marks, and all unsynced
    files, for itself. Another round beside it would find nothing left to sync, and call its own,
    newer marks synced while the first still waits for the disk.
    """

    name = "aerobee-flush-queues"

    def __init__(
        self, core: StoreCore, index: IndexService | None, offsets: OffsetsKeeper, disk: DiskWatch
    ) -> None:
        settings = core.settings
        super().__init__(
            core.clock,
            settings.consume_queue_flush_interval_ms,
            settings.consume_queue_flush_thorough_interval_ms,
        )
        self._queues = core.queues
        self._index = index
        self._checkpoint = core.checkpoint
        self._offsets = offsets
        self._health = core.health
        self._stats = core.stats
        self._marks = core.marks
        self._disk = disk
        self._least_pages = settings.consume_queue_flush_least_pages
        self._round = threading.Lock()

    def hurry(self) -> None:
        """Have files synced now, in which old entries were repaired. Any thread."""
        self._wake.set()

    def _tick(self) -> bool:
        if self._wait():
            return True  # stopping
        self._disk.look()
        if self._due_in_s() > 0:
            return self.flush(self._least_pages)
        self._thorough_at = self._clock.monotonic()
        return self.flush(0)

    def _last(self) -> None:
        self.flush(0)

    def _wait(self) -> bool:
        """Wait for the interval, or until `hurry`; True if stopping. Under load the offsets file is
        saved more often: records stored since are read again after a crash."""
        left_s = self._interval_s
        while left_s > 0:
            slice_s = min(left_s, _LOOK_S)
            if self._pause(slice_s):
                return self._stopping
            left_s -= slice_s
            if self._offsets.behind_bytes >= _BEHIND_BYTES and not self._save():
                break
        return False

    def _save(self) -> bool:
        try:
            self._offsets.save()
        except OSError as error:
            self._health.poison("the sync of the offsets file", error)
            return False
        return True

    def flush(self, least_pages: int) -> bool:
        """Sync files with at least `least_pages` new pages; with 0 all, and the checkpoint follows.

        False when the store is broken. Any thread.
        """
        with self._round:
            return self._flush(least_pages)

    def _flush(self, least_pages: int) -> bool:
        if self._health.broken is not None:
            return False
        store_ms = self._marks.dispatched_ms
        marks = self._offsets.take()
        try:
            self._stats.queue_syncs += self._queues.flush(least_pages)
            if self._index is not None:
                self._index.flush(all_files=least_pages == 0)
            if least_pages == 0:
                self._offsets.synced(marks)
                self._checkpoint.logics_ms = store_ms
                self._checkpoint.flush()
            self._offsets.save()
        except OSError as error:
            if is_out_of_descriptors(error):
                log.warning("queues and index not synced, will be tried again error=%s", error)
                return True
            self._health.poison("the sync of queues, index, checkpoint or offsets file", error)
            return False
        return True
