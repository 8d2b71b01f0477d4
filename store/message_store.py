"""The store of a broker: opens its parts in order, wires them, closes them in order.

    put -> CommitLog -> (written) -> flush thread -> (durable) -> listener
              `-> pending -> dispatch -> consume queues, index -> (dispatched) -> get, query
    the marks in brackets: `marks.py`
    get -> Reader -> (record does not check out) -> DamageReports -> log, counters, offsets file
    Scrub (own thread) -> Findings -> QueueRepair (store's caller) -> consume queues, DamageReports

`open` locks and recovers (`opening.py`), then wires and starts the rest. It raises, or returns a
store that works as a whole.

Without a scrub (`scrub_bytes_per_second` 0) damage is found by reads only, and nobody repairs
entries. The parts that delete, `retention` by time and space and `cleaning` on request, share one
lock (one thread removes files at a time), one way of removing files, and one trimmer.

Threads: one thread (in the broker: the event loop's) calls everything except `wait_durable`;
flushing, allocation of segments and the scrub, nothing else, happen on threads of the store, and so
the listener is called there.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from aerobee.config.model import Settings
from aerobee.protocol.message.record_check import CHECK_BODY
from aerobee.store.background.retention.queue_cleaning import QueueCleaner
from aerobee.store.background.retention.retention import Retention
from aerobee.store.background.retention.triggers import RetentionRules
from aerobee.store.background.scrub.queue_repair import QueueRepair
from aerobee.store.background.scrub.scrub import Scrub
from aerobee.store.disk.disk_watch import DiskWatch
from aerobee.store.disk.files import Clock, Files
from aerobee.store.disk.owner import here
from aerobee.store.disk.steady_time import SteadyTime
from aerobee.store.disk.store_health import Breaking, Health
from aerobee.store.disk.store_place import PlaceWatch
from aerobee.store.dispatch.extended_dispatch import ExtendedReput
from aerobee.store.dispatch.multi_dispatch import MultiDispatchLog
from aerobee.store.dispatch.reput import Reput
from aerobee.store.errors import StoreBroken, StoreError
from aerobee.store.flush.commit_service import CommitRealTimeService
from aerobee.store.flush.offsets_keeper import OffsetsKeeper
from aerobee.store.flush.services import (
    CommitLogSync,
    ConsumeQueueFlushService,
    FlushRealTimeService,
    GroupCommitService,
)
from aerobee.store.log.commit_log import CommitLog
from aerobee.store.log.compiled import Compiled
from aerobee.store.log.encoding import crc_checks
from aerobee.store.log.marks import Marks, PooledMarks, StoreListener
from aerobee.store.log.scan.log_scanner import LogScanner, MappedSegments
from aerobee.store.log.store_core import StoreCore
from aerobee.store.reading.damage import DamageKind, DamageReports, Judge, ScrubRequests, Verdict
from aerobee.store.reading.delay_queues import DelayQueues
from aerobee.store.reading.lookup import EntryLookup
from aerobee.store.reading.queue_reader import QueueReader
from aerobee.store.reading.search import Search
from aerobee.store.reading.timer_queues import TimerQueues
from aerobee.store.recovery.cross_check import CrossCheck
from aerobee.store.recovery.opening import StoreParts, open_parts
from aerobee.store.recovery.recovery_report import Progress
from aerobee.store.segments.allocate import AllocateMappedFileService
from aerobee.store.segments.results import Arrival
from aerobee.store.segments.transient_pool import NO_POOL
from aerobee.store.store_stats import StoreStatsService

if TYPE_CHECKING:
    from aerobee.store.log.replication.appender import Appender
    from aerobee.store.log.replication.feed import Feed
    from aerobee.store.log.replication.log_ranges import LogRanges

log = logging.getLogger("aerobee.store")

_RETRY_S = 1.0
#: The wait for messages to become durable, or visible: many times a healthy sync.
DURABLE_S: Final = 5.0


class _StoreBreaking(Breaking):
    """A sync or write has failed: stop reading at what is durable, and note it on the disk."""

    def __init__(
        self, root: str, marks: Marks, offsets: OffsetsKeeper, listener: StoreListener
    ) -> None:
        self._root = root
        self._marks = marks
        self._offsets = offsets
        self._listener = listener

    def begins(self, *, gone: bool) -> None:
        self._marks.freeze()
        if not gone:
            self.note()

    def ended(self, error: StoreBroken) -> None:
        self._listener.broken(error)

    def note(self) -> None:
        """Have the next start check what this one believes to have written."""
        try:
            self._offsets.save(poisoned=True)
        except OSError as error:
            log.error("cannot note that the store is broken path=%s %s", self._root, error)


class MessageStore:
    """An open store. Made by `open`; see the module's story."""

    def __init__(
        self,
        settings: Settings,
        parts: StoreParts,
        compiled: Compiled | None = None,
        listener: StoreListener | None = None,
    ) -> None:
        self._parts = parts
        self._compiled = compiled
        listener = listener or StoreListener()
        #: How far the log has got.
        self.marks = (Marks if parts.pool is None else PooledMarks)(
            settings, parts.recovery.log_end, parts.last_store_ms, listener, parts.queues.entries()
        )
        #: Hears of filters from whoever knows them; None where no bit maps are made.
        self.bit_maps = parts.maps
        self._queues = parts.queues
        self._retried_at = 0.0
        self._kept_arrivals: list[Arrival] = []
        # The result of `close`, None before it.
        self._closed: bool | None = None
        self.stats, self.recovery = parts.stats, parts.recovery
        self.stats_service = StoreStatsService(parts.stats, parts.clock)
        self.log_directories = parts.segments.paths.writable
        self.queue_directory = parts.queues.directory
        self._build_core(settings, listener)
        self._allocator = self._make_allocator()
        #: Appends: `put`, `put_batch`, and what the compiled form writes.
        self.log = self._make_log()
        self._reput = self._make_reput()
        self._build_flushing()
        self._build_reading()
        self._build_deletion()

    @classmethod
    def open(
        cls,
        settings: Settings,
        files: Files | None = None,
        clock: Clock | None = None,
        progress: Progress | None = None,
        compiled: Compiled | None = None,
        listener: StoreListener | None = None,
    ) -> MessageStore:
        """Lock, recover and start the store below `settings.store_path`; `compiled` serves plain
        input, `listener` gets the moves of marks and a failure.

        Raises StoreInUse, StoreSizeMismatch, StoreLayoutError or StoreNotWritable, whose texts name
        the remedy; nothing was changed then. Raises StoreBroken when the disk refuses to be read or
        synced.
        """
        parts = open_parts(settings, files or Files(), clock or Clock(), progress, compiled)
        parts.open_pool()
        store = cls(settings, parts, compiled, listener)
        store._start()
        return store

    @property
    def frozen(self) -> bool:
        """Whether reading stops at the mark that held before a failure."""
        return self.marks.frozen_at is not None

    # --- building ---------------------------------------------------------------------------

    def _build_core(self, settings: Settings, listener: StoreListener) -> None:
        """The offsets file, the health, and the core, which the other parts are given."""
        parts, marks = self._parts, self.marks
        assert parts.offsets is not None
        self._time = SteadyTime(
            parts.clock,
            RetentionRules.of(settings).retention_ms,
            parts.offsets.clock,
            parts.last_store_ms,
        )
        self._offsets = OffsetsKeeper(
            file=parts.offsets_file,
            start=parts.offsets,
            index=parts.index,
            marks=marks,
            checkpoint=parts.checkpoint,
            time=self._time,
            segments=parts.segments,
            queues=parts.queues,
        )
        directories = parts.root, *self.log_directories, self.queue_directory
        self._breaking = _StoreBreaking(parts.root, marks, self._offsets, listener)
        self._health = Health(self._breaking, PlaceWatch(parts.files, directories, parts))
        self._core = StoreCore(
            settings=settings,
            files=parts.files,
            clock=parts.clock,
            stats=parts.stats,
            health=self._health,
            checkpoint=parts.checkpoint,
            levels=parts.levels,
            segments=parts.segments,
            queues=parts.queues,
            marks=marks,
        )

    def _make_allocator(self) -> AllocateMappedFileService:
        parts = self._parts
        return AllocateMappedFileService(
            files=parts.files,
            clock=parts.clock,
            segment_bytes=parts.segments.segment_bytes,
            path_for=parts.segments.paths.path_for,
            make=parts.make_segment,
            health=self._health,
        )

    def _make_log(self) -> CommitLog:
        kind = MultiDispatchLog if self._core.settings.multi_dispatch else CommitLog
        place = None if self._compiled is None else self._compiled.place
        return kind(self._core, self._allocator, self._try_again, place)

    def _make_reput(self) -> Reput:
        parts = self._parts
        given = self._core, self.log, parts.dispatcher, parts.index, self._offsets
        if self._core.settings.consume_queue_ext_enabled:
            return ExtendedReput(*given, maps=parts.maps)
        return Reput(*given, compiled=self._compiled)

    def _build_flushing(self) -> None:
        """The services that move the committed and the durable mark, and the watch of the disks."""
        self._sync = CommitLogSync(self._core)
        self._flusher = self._make_flusher()
        self._commits = None
        if isinstance(self.marks, PooledMarks):
            self._commits = CommitRealTimeService(self._core, self.marks, self._flusher)
        self._disk = DiskWatch(
            files=self._parts.files,
            clock=self._parts.clock,
            health=self._health,
            log_directories=self.log_directories,
            queue_directory=self.queue_directory,
            warning_ratio=self._core.settings.disk_warning_ratio,
        )
        self._queue_flusher = self._make_queue_flusher()

    def _make_flusher(self) -> FlushRealTimeService:
        settings = self._core.settings
        kind = GroupCommitService if settings.sync_flush else FlushRealTimeService
        return kind(settings, self._sync, self._parts.clock)

    def _make_queue_flusher(self) -> ConsumeQueueFlushService:
        return ConsumeQueueFlushService(self._core, self._parts.index, self._offsets, self._disk)

    def _build_reading(self) -> None:
        """The readers, and the scrub, which looks for damage."""
        parts, core, settings = self._parts, self._core, self._core.settings
        crc_check = crc_checks(verify_property_crc=settings.verify_property_crc)
        judge = Judge(parts.segments, parts.queues, crc_check)
        lookup = EntryLookup(core, judge.is_sound, self._offsets)
        requests = ScrubRequests(parts.segments)
        scrubs = settings.scrub_bytes_per_second > 0
        self._damage = DamageReports(
            core, judge, lookup, self._offsets, requests if scrubs else None
        )
        map_bytes = 0 if parts.maps is None else parts.maps.map_bytes
        #: Reads messages of a queue and records of the log.
        self.reader = QueueReader(core, self._damage, lookup, map_bytes, self._compiled)
        #: Finds by key and by time.
        self.search = Search(self._queues, parts.index, self.reader, settings.query_max_messages)
        self.delays = DelayQueues(self._queues, self.reader, parts.levels)
        self.timers = TimerQueues(self._queues, self.reader)
        self._queue_repair = QueueRepair(
            core=core,
            index=parts.index,
            damage=self._damage,
            offsets=self._offsets,
            flusher=self._queue_flusher,
            requests=requests,
        )
        # Close and repair may come from two threads.
        self._repair_lock = threading.Lock()
        self._repairs = True
        self._scrub = None
        if scrubs:
            self._scrub = Scrub(core, parts.index, self._damage, self._queue_repair, requests)

    def _build_deletion(self) -> None:
        self.retention = Retention(
            self._core, self._parts.index, self._time, self._offsets, self._disk
        )
        self.cleaning = QueueCleaner(
            self.retention, self.log, self._offsets, self._reput, self._dispatch_now
        )

    def _start(self) -> None:
        error = self.log.prepare()
        if error is not None:
            log.error("the last segment cannot be written now reason=%s", error)
        self._disk.look()
        if self._commits is not None:
            self._commits.start()
        self._flusher.start()
        self._queue_flusher.start()
        if self._scrub is not None:
            self._scrub.start()

    # --- marks ------------------------------------------------------------------------------

    @property
    def written(self) -> int:
        """Log offset after the last appended byte."""
        return self.marks.written

    @property
    def committed(self) -> int:
        """Log offset up to which the bytes are in the files: all, unless a pool holds some back."""
        return self.marks.committed

    @property
    def durable(self) -> int:
        """Log offset up to which a completed sync has reached."""
        return self.marks.durable

    @property
    def dispatched(self) -> int:
        """Log offset up to which messages are visible."""
        return self.marks.dispatched

    @property
    def min_log_offset(self) -> int:
        """First log offset of the log."""
        return self.log.min_offset

    def request_flush(self) -> None:
        """Have an append committed, or synced, as soon as the settings say."""
        (self._commits or self._flusher).wake()

    def wait_durable(self, log_offset: int, timeout_s: float) -> bool:
        """Wait until the durable mark has reached `log_offset`; False after the time-out or a
        failure. Any thread."""
        return self._sync.wait(log_offset, timeout_s)

    def wait_all_durable(self) -> bool:
        """Have all that is written synced, and wait for that, `DURABLE_S` at most; False after the
        time-out or a failure. On a worker."""
        self.sync_soon()
        return self.wait_durable(self.written, DURABLE_S)

    def sync_soon(self) -> None:
        """Sync without waiting for the interval: somebody waits for the bytes in the files now."""
        self._flusher.hurry()

    def dispatch(self) -> list[Arrival]:
        """Make messages visible: everything committed, under SYNC_FLUSH everything durable.

        Returns the messages that became visible, in log order. It is cheap when there is nothing to
        do. It does not raise: a full disk refuses puts and is tried again, other failures break the
        store.
        """
        arrivals, more = self.dispatch_round()
        while more:
            further, more = self.dispatch_round()
            arrivals += further
        return arrivals

    def dispatch_round(self, tell: bool = True) -> tuple[list[Arrival], bool]:
        """Do `dispatch` for some thousand messages at most; also return whether there are more.
        Without `tell` the list may be empty."""
        marks = self.marks
        limit, before = marks.dispatchable, marks.dispatched
        arrivals = self._reput.dispatch(limit, tell)
        if self._kept_arrivals:
            arrivals = self._kept_arrivals + arrivals
            self._kept_arrivals = []
        return arrivals, before < marks.dispatched < limit

    def _try_again(self) -> None:
        """Try again before a put is refused: perhaps the disk has room again."""
        now = self._parts.clock.monotonic()
        if self._health.refused_for_now and now - self._retried_at >= _RETRY_S:
            self._retried_at = now
            self._disk.look(at_once=True)
            self._dispatch_now()

    def _dispatch_now(self) -> None:
        """Dispatch in between; the next `dispatch` returns the arrivals."""
        self._kept_arrivals = self.dispatch()

    # --- replication ------------------------------------------------------------------------

    def make_feed(self) -> Feed:
        """The rules by which this store, a master's, gives its log to slaves."""
        # Most stores need neither these modules nor those of a slave.
        from aerobee.store.log.replication.feed import Feed

        return Feed(self._core)

    def make_appender(self) -> Appender:
        """The rules by which this store, a slave's, takes the log of its master."""
        from aerobee.store.log.replication.appender import Appender, Checking

        crc_check = max(CHECK_BODY, self._damage.judge.crc_check)
        take = self._parts.dispatcher.taker(crc_check, 0)
        return Appender(self._core, self.log, Checking(crc_check, take), self._damage)

    def refuse_puts(self) -> None:
        """Take no message by a put until `number_on`: a master's records alone go into the log.
        This is no fault: readiness does not know it."""
        self._health.take_puts(taken=False)

    def number_on(self) -> None:
        """This store's own messages follow those of the appender, which takes no more blocks: their
        numbers go on at the ends of the queues. All that is written is dispatched by now."""
        assert self.marks.dispatched == self.marks.written
        for queue in self._queues:
            queue.number_on()
        self._health.take_puts(taken=True)

    def make_log_ranges(self) -> LogRanges:
        """Reads parts of the log, for a comparison with another broker's."""
        from aerobee.store.log.replication.log_ranges import LogRanges

        return LogRanges(self._core)

    # --- queues -----------------------------------------------------------------------------

    def min_offset(self, topic: str, queue_id: int) -> int:
        """First queue offset of the queue; 0 for an unknown queue."""
        queue = self._queues.get(topic, queue_id)
        return 0 if queue is None else queue.min_offset

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Queue offset after the last visible message; 0 for an unknown queue."""
        queue = self._queues.get(topic, queue_id)
        return 0 if queue is None else queue.max_offset

    def newest_of(self, topic: str) -> int:
        """The log offset of the newest message that a topic's queues have; -1 without any."""
        newest = -1
        for queue in [one for one in self._queues if one.topic == topic]:
            entry = queue.entry(queue.max_offset - 1) if queue.max_offset else None
            if entry is not None:
                newest = max(newest, entry.log_offset)
        return newest

    def queues(self) -> Iterator[tuple[str, int]]:
        """(topic, queue id) of all queues that hold or held messages."""
        return iter(list(self._queues.queues))

    def delete_topic(self, topic: str) -> int:
        """Do `cleaning.remove_topics` for a topic, all of it on this thread."""
        return self.cleaning.remove_topics([topic], here)

    # --- damage -----------------------------------------------------------------------------

    def repair_queues(self) -> int:
        """Resolve findings of the scrub for a few milliseconds; return the number of repaired queue
        entries.

        The store's caller calls it about once a second; see `QueueRepair.repair`.
        """
        with self._repair_lock:
            return self._queue_repair.repair() if self._repairs else 0

    def look_for_damage(self, log_offset: int) -> None:
        """Check every record from `log_offset` on, some 200 MB/s on the caller's thread. Damage is
        logged, counted, and from now on one of `known_gaps`."""
        segments = self._parts.segments
        boundaries = CrossCheck(segments, self._queues).boundaries
        crc_check = self._damage.judge.crc_check
        scan = LogScanner(MappedSegments(segments), self.written, boundaries, crc_check)
        for _ in scan.batches(log_offset):
            pass
        known = self.known_gaps
        for gap in scan.gaps:
            if not any(start <= gap.start and gap.end <= end for start, end in known):
                self._damage.note(Verdict(DamageKind.RECORD, *gap), None)

    def settings_changed(self, settings: Settings) -> None:
        """Take over live settings (config/loading/reload.py) that have other values in `settings`,
        the object that the store was opened with. The parts read them there; only the clock keeps a
        copy."""
        self._time.hold_for(RetentionRules.of(settings).retention_ms)

    @property
    def unchecked_bytes(self) -> int:
        """Bytes of the log that were not checked since the store was opened, or are damaged."""
        return sum([segment.unchecked_below for segment in self._parts.segments.segments])

    @property
    def known_gaps(self) -> tuple[tuple[int, int], ...]:
        """Log offsets [start, end) that are known to hold no usable record, found now or before."""
        first = self.log.min_offset
        return tuple([gap for gap in self._offsets.gaps if gap[1] > first])

    # --- state ------------------------------------------------------------------------------

    def look_whether_there(self) -> None:
        """Stop if the directory was taken away or replaced. Call it some times a second, from any
        thread."""
        self._health.look_whether_there()

    def check_there(self) -> None:
        """Raises OSError where nothing of this store may be written any more. Any thread."""
        self._health.look_whether_there()
        if (gone := self._health.gone) is not None:
            raise FileNotFoundError(f"the store is gone: {gone}")

    def gone_error(self) -> StoreError | None:
        """The error that refuses a put if the store was taken away, None as far as is known."""
        return None if self._health.gone is None else self._health.error()

    @property
    def free_buffers(self) -> int:
        """Buffers of the transient pool that are free; NO_POOL without one."""
        pool = self._parts.pool
        return NO_POOL if pool is None else pool.free

    def not_writable_reason(self) -> str | None:
        """The reason why puts are refused now, None when they are not."""
        return self._health.reason() or self.log.problem

    def threads_alive(self) -> bool:
        """Whether the flush threads run as they should; a broken store has stopped its own."""
        services = (self._commits, self._flusher, self._queue_flusher)
        return self._health.broken is not None or all(
            service is None or service.alive for service in services
        )

    # --- closing ----------------------------------------------------------------------------

    def close(self, before_release: Callable[[], None] | None = None) -> bool:
        """Stop in order: puts, commit, log and queue flush, allocation, checkpoint, lock.

        `before_release` is called when all possible bytes are durable and the directory is still
        ours. True if all is durable and dispatched; then the next start trusts it. Otherwise
        `abort` stays and the next start recovers. A second call returns the same answer.
        """
        if self._closed is not None:
            return self._closed
        self._closed = False
        if self._scrub is not None:
            self._scrub.stop()
        with self._repair_lock:
            self._repairs = False
        self.retention.close()
        self.cleaning.close()
        self._health.close()
        if self._commits is not None:
            self._commits.stop()
        self._flusher.stop()
        self.dispatch()
        self._queue_flusher.stop()
        clean = self._seal()
        if before_release is not None:
            before_release()
        allocator_closed = self._close_allocator()
        self._parts.close(clean=clean and allocator_closed)
        self._closed = clean
        return clean

    def _close_allocator(self) -> bool:
        try:
            self._allocator.close()
        except OSError as error:
            log.error("closing the store path=%s error=%s", self._parts.root, error)
            return False
        return True

    def _seal(self) -> bool:
        if self._health.broken is not None:
            if self._health.gone is None:
                self._breaking.note()
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
