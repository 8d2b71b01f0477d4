"""The store of one broker: opens its parts in order, wires them, closes them in order.

    put -> CommitLog -> (written) -> flush thread -> (durable) -> on_durable
              `-> pending -> dispatch -> consume queues, index -> (dispatched) -> get, query

`open` locks and recovers (`opening.py`), then wires and starts the rest. It raises, or returns a
store that works; nothing is half there.

Nothing here is on a request's path: `put`, `put_batch`, `get` and the rest are the parts' own
methods, under one name.

Threads: one thread (in the broker: the event loop's) calls everything except `wait_durable` and the
callbacks' side; flushing, allocation of segments and the scrub, nothing else, happen on threads of
the store.
"""

import logging
from collections.abc import Callable, Iterator

from aerobee.config.model import Settings
from aerobee.store.checks import Checks
from aerobee.store.deletion import make_deletion, steady_time
from aerobee.store.disk.disk_watch import DiskWatch
from aerobee.store.disk.files import Clock, Files
from aerobee.store.disk.owner import here
from aerobee.store.dispatch.extended_dispatch import ExtendedReput
from aerobee.store.dispatch.multi_dispatch import MultiDispatchLog
from aerobee.store.dispatch.reput import Reput
from aerobee.store.errors import StoreBroken
from aerobee.store.flush.commit_service import PooledCommits
from aerobee.store.flush.offsets_keeper import OffsetsKeeper
from aerobee.store.flush.services import (
    CommitLogSync,
    ConsumeQueueFlushService,
    FlushService,
    log_flusher,
)
from aerobee.store.log.commit_log import CommitLog
from aerobee.store.log.commits import Commits, DirectCommits
from aerobee.store.log.encoding import encoding_for
from aerobee.store.opening import StoreParts, open_parts
from aerobee.store.reading.delay_queues import DelayQueues
from aerobee.store.reading.search import Search
from aerobee.store.recovery.report import Progress, RecoveryReport
from aerobee.store.retention.queue_cleaning import QueueCleaner
from aerobee.store.retention.retention import Retention
from aerobee.store.segments.results import Arrival, GetResult, GetStatus, PutResult, QueryResult
from aerobee.store.stats_service import StoreStatsService

__all__ = [
    "Arrival",
    "GetResult",
    "GetStatus",
    "MessageStore",
    "PutResult",
    "QueryResult",
    "RecoveryReport",
]

log = logging.getLogger("aerobee.store")

_RETRY_S = 1.0


class MessageStore:
    """An open store. Made by `open`; see the module's story."""

    def __init__(self, settings: Settings, parts: StoreParts) -> None:
        self._parts = parts
        self._clock = parts.clock
        self._queues = parts.queues
        self._sync_flush = settings.flush_disk_type == "SYNC_FLUSH"
        self._retried_at = 0.0
        self._kept_arrivals: list[Arrival] = []
        # How closing went, None before it.
        self._closed: bool | None = None
        self.stats = parts.stats
        self.stats_service = StoreStatsService(parts.stats, parts.clock)
        self.recovery = parts.recovery
        self._health = parts.health
        self._disk = DiskWatch(
            parts.files,
            parts.clock,
            self._health,
            parts.log_directories,
            parts.queue_directory,
            settings.disk_warning_ratio,
        )
        self._log = self._make_log(settings)
        self._log.resume(parts.recovery.log_end, parts.last_store_ms)
        self._log.before_refusal = self._try_again
        self.commits = self._make_commits(settings)
        self._mark = self.commits.mark
        self._sync = CommitLogSync(
            self._log, self._mark, parts.checkpoint, self._health, parts.stats
        )
        self._reput = (ExtendedReput if settings.consume_queue_ext_enabled else Reput)(
            self._log, parts.dispatcher, parts.index, self._health, self.stats, parts.queues.entries
        )
        self._reput.dispatched_ms = parts.last_store_ms
        assert parts.offsets is not None
        self._time = steady_time(settings, parts)
        self._offsets = OffsetsKeeper(
            parts.offsets_file,
            parts.offsets,
            parts.index,
            lambda: (self._sync.durable, parts.checkpoint.physic_ms),
            lambda: self._reput.mark,
            self._time.note,
            lambda: (parts.segments.min_offset, parts.queues.beginnings()),
        )
        self.checks = Checks(
            settings,
            parts,
            self._log,
            self._mark,
            self._offsets,
            lambda: min(self.durable, self.dispatched),
        )
        self._reader = self.checks.make_reader()
        self._health.freeze = lambda: self._reader.freeze(self._sync.durable)
        self._health.note = self._note_broken
        self.retention, self.cleaning = self._make_deletion(settings)
        self._flusher = self._make_flusher(settings)
        self.commits.connect(self._flusher.wake)
        self._queue_flusher = self._make_queue_flusher(settings)
        self._expose(settings)

    @classmethod
    def open(
        cls,
        settings: Settings,
        files: Files | None = None,
        clock: Clock | None = None,
        progress: Progress | None = None,
    ) -> "MessageStore":
        """Lock, recover and start the store below `settings.store_path`.

        Raises StoreInUse, StoreSizeMismatch, StoreLayoutError or StoreNotWritable, whose texts say
        what to do; nothing was changed then. Raises StoreBroken when the disk refuses to be read or
        synced.
        """
        parts = open_parts(settings, files or Files(), clock or Clock(), progress)
        parts.open_pool()
        store = cls(settings, parts)
        store._start()
        return store

    def _expose(self, settings: Settings) -> None:
        """The request path: the parts' own methods, not one call more."""
        search = Search(self._queues, self._parts.index, self._reader, settings.query_max_messages)
        self.put = self._log.put
        self.put_batch = self._log.put_batch
        self.get = self._reader.get
        self.record_at = self._reader.record_at
        self.records_from = self._reader.records_from
        self.is_in_memory = self._reader.is_in_memory
        self.query = search.query
        self.offset_by_time = search.offset_by_time
        self.store_time = search.store_time
        self.earliest_store_time = search.earliest_store_time
        self.wait_durable = self._sync.wait
        self.request_flush = self.commits.wake
        self.sync_soon = self._flusher.hurry
        self.delays = DelayQueues(self._queues, self._reader, self._parts.levels)
        # Called by `close` when all that can be is durable, while the directory is still ours.
        self.before_unlock: Callable[[], None] = lambda: None

    def _make_log(self, settings: Settings) -> CommitLog:
        parts = self._parts
        return (MultiDispatchLog if settings.multi_dispatch else CommitLog)(
            parts.segments,
            parts.allocator,
            parts.queues,
            parts.levels,
            self._health,
            parts.stats,
            parts.clock,
            encoding_for(append_property_crc=settings.append_property_crc),
            settings.max_message_bytes,
            settings.page_cache_busy_timeout_ms,
        )

    def _make_flusher(self, settings: Settings) -> FlushService:
        return log_flusher(settings, self._sync, self._clock)

    def _make_commits(self, settings: Settings) -> Commits:
        pool = self._parts.pool
        if pool is None:
            return DirectCommits(self._log)
        return PooledCommits(settings, pool, self._log, self._health, self._clock)

    def _make_queue_flusher(self, settings: Settings) -> ConsumeQueueFlushService:
        return ConsumeQueueFlushService(
            self._queues,
            self._parts.index,
            self._parts.checkpoint,
            self._offsets,
            self._health,
            self.stats,
            self._clock,
            lambda: self._reput.dispatched_ms,
            self._disk.look,
            settings.consume_queue_flush_interval_ms,
            settings.consume_queue_flush_least_pages,
            settings.consume_queue_flush_thorough_interval_ms,
        )

    def _make_deletion(self, settings: Settings) -> tuple[Retention, QueueCleaner]:
        return make_deletion(
            settings,
            self._parts,
            self._time,
            self._log,
            self._reput,
            self._offsets,
            lambda: self._sync.durable,
            lambda: self._disk.look(at_once=True),
            self._dispatch_now,
        )

    def _start(self) -> None:
        error = self._log.prepare()
        if error is not None:
            log.error("the last segment cannot be written now reason=%s", error)
        self._disk.look()
        self.commits.start()
        self._flusher.start()
        self._queue_flusher.start()
        self.checks.start()

    def make_segment_ahead(self) -> None:
        """Have a segment made before the first put asks for one, which would wait for the disk."""
        self._log.make_ahead()

    # --- marks and callbacks ----------------------------------------------------------------

    @property
    def written(self) -> int:
        """Log offset behind the last appended byte."""
        return self._log.written

    @property
    def committed(self) -> int:
        """Log offset up to which the bytes are in the files: all, unless a pool holds some back."""
        return self._mark.committed

    @property
    def durable(self) -> int:
        """Log offset up to which a completed sync has reached."""
        return self._sync.durable

    @property
    def dispatched(self) -> int:
        """Log offset up to which messages are visible."""
        return self._reput.dispatched

    @property
    def min_log_offset(self) -> int:
        """First log offset there is."""
        return self._log.min_offset

    @property
    def on_durable(self) -> Callable[[int], None] | None:
        """Called on the flush thread with the new durable mark after each sync that moved it."""
        return self._sync.on_durable

    @on_durable.setter
    def on_durable(self, callback: Callable[[int], None] | None) -> None:
        self._sync.on_durable = callback

    @property
    def on_broken(self) -> Callable[[StoreBroken], None] | None:
        """Called once when the store breaks, on the thread that saw the failure."""
        return self._health.on_broken

    @on_broken.setter
    def on_broken(self, callback: Callable[[StoreBroken], None] | None) -> None:
        self._health.on_broken = callback

    def dispatch(self) -> list[Arrival]:
        """Make visible what may be: everything committed, under SYNC_FLUSH everything durable.

        Returns the messages that became visible, in log order. Cheap when there is nothing to do.
        Does not raise: a full disk refuses puts and is tried again, other failures break the store.
        """
        arrivals = self._reput.dispatch(
            self._sync.durable if self._sync_flush else self._mark.committed
        )
        if self._kept_arrivals:
            arrivals = self._kept_arrivals + arrivals
            self._kept_arrivals = []
        return arrivals

    def _try_again(self) -> None:
        """Before a put is refused: perhaps the disk has room again."""
        now = self._clock.monotonic()
        if self._health.refused_for_now and now - self._retried_at >= _RETRY_S:
            self._retried_at = now
            self._disk.look(at_once=True)
            self._dispatch_now()

    def _dispatch_now(self) -> None:
        """Dispatch in between; the next `dispatch` tells what has arrived."""
        self._kept_arrivals = self.dispatch()

    @property
    def log_directories(self) -> tuple[str, ...]:
        """All directories that commit log segments are in."""
        return self._parts.log_directories

    @property
    def queue_directory(self) -> str:
        """The directory of the consume queues."""
        return self._parts.queue_directory

    # --- queues -----------------------------------------------------------------------------

    def min_offset(self, topic: str, queue_id: int) -> int:
        """First queue offset there is; 0 for an unknown queue."""
        queue = self._queues.get(topic, queue_id)
        return 0 if queue is None else queue.min_offset

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Queue offset behind the last visible message; 0 for an unknown queue."""
        queue = self._queues.get(topic, queue_id)
        return 0 if queue is None else queue.max_offset

    def queues(self) -> Iterator[tuple[str, int]]:
        """(topic, queue id) of all queues that hold or held messages."""
        return iter(list(self._queues.queues))

    def delete_topic(self, topic: str) -> int:
        """As `cleaning.remove_topics`, all of it on this thread."""
        return self.cleaning.remove_topics([topic], here)

    @property
    def known_gaps(self) -> tuple[tuple[int, int], ...]:
        """Log offsets [start, end) known to hold no usable record, found now or before."""
        return self.checks.known_gaps

    # --- state ------------------------------------------------------------------------------

    def not_writable_reason(self) -> str | None:
        """Why puts are refused now, None when they are not."""
        return self._health.reason() or self._log.problem

    def is_page_cache_busy(self) -> bool:
        """Whether an append has been waiting for memory for too long."""
        return self._log.busy()

    # --- closing ----------------------------------------------------------------------------

    def threads_alive(self) -> bool:
        """Whether the flush threads run as they should; a broken store has stopped its own."""
        services = (self.commits, self._flusher, self._queue_flusher)
        return self._health.broken is not None or all(service.alive for service in services)

    def close(self) -> bool:
        """Stop in order: puts, commit, log and queue flush, allocation, checkpoint, lock.

        True if all is durable and dispatched; then the next start trusts it. Otherwise `abort`
        stays and the next start recovers. Once closed, the same answer again.
        """
        if self._closed is not None:
            return self._closed
        self._closed = False
        self.checks.stop()
        self.retention.close()
        self.cleaning.close()
        self._health.close()
        self.commits.stop()
        self._flusher.stop()
        self.dispatch()
        self._queue_flusher.stop()
        clean = self._seal()
        self.before_unlock()
        self._parts.let_go(clean=clean)
        self._closed = clean
        return clean

    def _note_broken(self) -> None:
        """Have the next start distrust what this one believes to have written."""
        try:
            self._offsets.save(poisoned=True)
        except OSError as error:
            log.error("cannot note that the store is broken path=%s %s", self._parts.root, error)

    def _seal(self) -> bool:
        if self._health.broken is not None:
            self._note_broken()
            return False
        parts = self._parts
        try:
            marks = self._offsets.take()
            parts.queues.flush(0)
            if parts.index is not None:
                parts.index.seal()
            self._offsets.synced(marks)
            self._offsets.save()
            parts.checkpoint.flush()
        except OSError as error:
            self._health.poison("the last sync of queues, index and marks", error)
            return False
        return self.durable == self.dispatched == self.written
