"""The commit log: the only place where a message becomes bytes of the store.

One writer at a time, under the put lock, gives the message its offsets and time, encodes it, copies
it after the last record, and moves the marks. A single message is a batch of its own. Nothing in
there waits for a disk, except a roll whose next segment is not ready. Marks move last, so an
exception leaves everything as it was, and the lock is a context manager, so it cannot stay shut
(docs/reliability.md B21).

A record is stored only if 8 bytes stay free after it. If not, a blank (8 bytes with the length of
the rest) ends the segment, and the record begins the next one. A batch goes into one segment as a
whole. The next segment is always made ahead of need, also after a segment that a restart goes on
with, so a roll does not wait for the disk. A segment that cannot be had is a StoreError, and
`problem` says why until it works again.

Appended messages are also remembered in `pending`, so that reput can feed the consume queues and
the index without reading them back. If nobody takes it, `pending` is given up above `PENDING_MOST`
and reput reads the log instead.

Threads: `put` and `put_batch` on any thread (in the broker: the event loop's); the marks and the
segments' `wrote` are read by the flush threads.
"""

import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, repeat
from typing import NamedTuple, TypeAlias

from aerobee.protocol.message.properties import decode_properties
from aerobee.protocol.message.record import StoreMessage, encode_blank
from aerobee.protocol.message.record_check import Checked
from aerobee.protocol.message.record_layout import (
    BLANK_BYTES,
    SYS_TRANSACTION_MASK,
    SYS_TRANSACTION_PREPARED,
    SYS_TRANSACTION_ROLLBACK,
)
from aerobee.store.disk.files import is_passing
from aerobee.store.errors import MessageIllegal, PageCacheBusy, StoreError, StoreNotWritable
from aerobee.store.log.collector import collector_paused
from aerobee.store.log.compiled import Derived
from aerobee.store.log.encoding import PLAIN, SEALED, check_batch, too_large
from aerobee.store.log.prepared_batch import Place, PreparedBatch
from aerobee.store.log.store_core import StoreCore
from aerobee.store.queues.consume_queue import ConsumeQueue
from aerobee.store.segments.allocate import AllocateMappedFileService, refusal
from aerobee.store.segments.mapped_file import MappedFile
from aerobee.store.segments.results import PutResult

#: The values of an append that dispatch needs: queue (None: no entry), queue offset, log offset,
#: size, tags code, keys, store time, topic.
Appended: TypeAlias = tuple[ConsumeQueue | None, int, int, int, int, tuple[str, ...], int, str]


class Copied(NamedTuple):
    """Records that were copied from a master's log: where they end, their number and the last store
    time; then what dispatch needs of them, in one of two forms, or of bytes that are no records
    neither."""

    end: int
    records: int = 0
    store_ms: int = 0
    derived: Derived | None = None
    checked: list[Checked] | None = None


PENDING_MOST = 65_536
# A lock held longer than this is not believed: the clock was changed (store/FORMAT.md 3.2).
_BUSY_MOST_NS = 10_000_000 * 1_000_000


class CommitLog:
    """Appends to the segments and moves the mark `written`."""

    def __init__(
        self,
        core: StoreCore,
        allocator: AllocateMappedFileService,
        before_refusal: Callable[[], None],
        place: Place | None = None,
    ) -> None:
        """`place` is the compiled form of `PreparedBatch.placed` and the segment's `append`."""
        settings, stats = core.settings, core.stats
        self.marks = marks = core.marks
        self.segments = core.segments
        last = core.segments.last
        if last is not None and last.wrote < last.size:
            last.last_store_ms = marks.written_ms
        self._place = place
        self._allocator = allocator
        self._segment_bytes = core.segments.segment_bytes
        self._queues = core.queues
        self._queue_of = core.queues.queues
        self._levels = core.levels
        self._health = core.health
        self._stats = stats
        self._times = stats.append_times
        self._now_ns = core.clock.now_ns
        self._encoding = SEALED if settings.append_property_crc else PLAIN
        self._encode = self._encoding.encode
        self._safe_properties = self._encoding.safe_properties
        self._max_message_bytes = settings.max_message_bytes
        self._busy_timeout_ns = settings.page_cache_busy_timeout_ms * 1_000_000
        # Called before a put is refused for the store's state, which the call may repair.
        self._before_refusal = before_refusal
        self._lock = threading.Lock()
        # The time when the lock was taken, 0 while nobody holds it.
        self._held_since_ns = 0
        self._active: MappedFile | None = None
        # The reason why the last attempt to open or make a segment failed, None if it worked.
        self.problem: str | None = None
        self.pending: list[Appended] = []
        # On a slave: the copies of its master's records instead, in order.
        self.copies: deque[Copied] = deque()
        self._copied_records = 0
        # Whether `pending` has every append from `dispatched` on. Reput sets it.
        self.feeding = True

    # --- appending --------------------------------------------------------------------------

    def put(self, message: StoreMessage) -> PutResult:
        """Append a message. Raises a StoreError; then nothing was changed."""
        now_ns = self._now_ns()
        if self._health.refusing or self._held_since_ns:
            self._check_state(now_ns)
        if (
            len(message.properties) > self._safe_properties
            or len(message.body) > self._max_message_bytes
        ):
            self._check_sizes(message)
        queue = self._queue_of.get((message.topic, message.queue_id)) or self._obtain(message)
        self._lock.acquire()
        try:
            self._held_since_ns = now_ns
            entries = self._append((message,), queue, now_ns // 1_000_000)
        finally:
            self._held_since_ns = 0
            self._lock.release()
        _, queue_offset, log_offset, size, _, _, store_ms, _ = entries[0]
        stats = self._stats
        stats.appended_messages += 1
        stats.appended_bytes += size
        self._times.add(self._now_ns() - now_ns)
        return PutResult(log_offset, size, log_offset + size, queue_offset, store_ms)

    def put_batch(self, messages: Sequence[StoreMessage]) -> PutResult:
        """Append messages of one queue side by side in one segment, or none of them.

        Raises a StoreError; then nothing was changed. The result has the place of the first, the
        sum of sizes, the count, and the log offset of each.
        """
        now_ns = self._now_ns()
        if self._health.refusing or self._held_since_ns:
            self._check_state(now_ns)
        try:
            check_batch(messages, self._max_message_bytes, self._encoding)
        except StoreError as error:
            raise self._counted(error) from None
        queue = self._obtain(messages[0])
        with self._lock:
            self._held_since_ns = now_ns
            try:
                # This is not a subclass's rule for single messages: a batch has one queue only.
                entries = CommitLog._append(self, messages, queue, now_ns // 1_000_000)
            finally:
                self._held_since_ns = 0
        _, queue_offset, log_offset, _, _, _, store_ms, _ = entries[0]
        end = _end(entries[-1])
        offsets = tuple([entry[2] for entry in entries])
        result = PutResult(
            log_offset, end - log_offset, end, queue_offset, store_ms, len(entries), offsets
        )
        self._count_batch(result, now_ns)
        return result

    def _count_batch(self, result: PutResult, began_ns: int) -> None:
        stats = self._stats
        stats.appended_messages += result.count
        stats.appended_bytes += result.size
        self._times.add(self._now_ns() - began_ns)

    # --- for code that writes records in the segment's mapping itself (native/) ---------------

    def known_queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """A queue that has messages, or had. The caller forgets it when `queues_removed` moves."""
        return self._queue_of.get((topic, queue_id))

    @property
    def queues_removed(self) -> int:
        """The number of queues that have been deleted."""
        return self._queues.removed

    @property
    def safe_properties(self) -> int:
        """The bytes of stored properties that fit a record whatever they hold."""
        return self._safe_properties

    def claim(self) -> MappedFile | None:
        """Take the put lock, for records that are written after the last one; return the segment to
        write in. None: messages have to be stored by `put` now."""
        if (
            self._health.refusing
            or self._held_since_ns
            or not self.feeding
            or len(self.pending) > PENDING_MOST
            or self._active is None
            or not self._lock.acquire(blocking=False)
        ):
            return None
        self._held_since_ns = self._now_ns()
        return self._active

    def claimed_ms(self) -> int:
        """Store time of records that are appended under the claim, ms."""
        assert self._active is not None
        return max(self._held_since_ns // 1_000_000, self._active.last_store_ms)

    def release(self, wrote: int, entries: list[Appended]) -> None:
        """End a claim: the records up to the position `wrote` are in place, and `entries` has their
        values. Their queues have their numbering already."""
        began_ns, segment = self._held_since_ns, self._active
        assert segment is not None
        try:
            if entries:
                size = wrote - segment.wrote
                segment.last_store_ms = store_ms = entries[-1][6]
                segment.wrote = wrote
                self.marks.write(segment.start + wrote, store_ms)
                self.pending += entries
                stats, count = self._stats, len(entries)
                stats.appended_messages += count
                stats.appended_bytes += size
                self._times.add_many((self._now_ns() - began_ns) // count, count)
        finally:
            self._held_since_ns = 0
            self._lock.release()

    def prepare_batch(self) -> PreparedBatch:
        """An empty batch, to which messages are added before `put_prepared`."""
        return PreparedBatch(self._max_message_bytes, self._encoding, self._counted)

    def put_prepared(self, batch: PreparedBatch) -> PutResult:
        """Do `put_batch` for a batch whose records are ready but for their places.

        The result has no place of each: they follow each other with the lengths of `batch.sizes`.
        """
        now_ns = self._now_ns()
        if self._health.refusing or self._held_since_ns:
            self._check_state(now_ns)
        queue = self._obtain(batch.first)
        with self._lock, collector_paused():
            self._held_since_ns = now_ns
            try:
                result = self._append_prepared(batch, queue, now_ns // 1_000_000)
            finally:
                self._held_since_ns = 0
        self._count_batch(result, now_ns)
        return result

    def _append_prepared(self, batch: PreparedBatch, queue: ConsumeQueue, now_ms: int) -> PutResult:
        segment = self._active or self._activate()
        if segment.start + segment.wrote + batch.size + BLANK_BYTES > segment.end:
            self._roll(segment, batch.size)
            return self._append_prepared(batch, queue, now_ms)
        # The clock was set back: times within a segment never are.
        store_ms = max(now_ms, segment.last_store_ms)
        log_offset = segment.start + segment.wrote
        queue_offset = queue.next_offset
        if len(batch.sizes) > PENDING_MOST:
            # A long list would be given up at the next append.
            self.stop_feeding()
        entries = _entries(batch, queue, log_offset, store_ms) if self.feeding else []
        place = (queue_offset, log_offset, store_ms)
        if self._place is not None and not batch.sealed:
            segment.append_placed(partial(batch.copy, self._place, *place), store_ms)
        else:
            segment.append(batch.placed(*place), store_ms)
        self._appended(segment, store_ms, entries, queue, queue_offset + len(batch.sizes))
        return PutResult(
            log_offset,
            batch.size,
            log_offset + batch.size,
            queue_offset,
            store_ms,
            len(batch.sizes),
        )

    def _append(
        self, messages: Sequence[StoreMessage], queue: ConsumeQueue, now_ms: int
    ) -> list[Appended]:
        """Encode messages of one queue, store them side by side in one segment, move the marks."""
        segment = self._active or self._activate()
        store_ms = now_ms
        if now_ms < segment.last_store_ms:
            # The clock was set back: times within a segment never are.
            store_ms = segment.last_store_ms
        log_offset = segment.start + segment.wrote
        next_offset = queue.next_offset
        records: list[bytes] = []
        entries: list[Appended] = []
        encode = self._encode
        for message in messages:
            place: ConsumeQueue | None = queue
            queue_offset = next_offset
            tags_code = message.tags_code
            keys = message.keys
            transaction = message.sys_flag & SYS_TRANSACTION_MASK
            if transaction & SYS_TRANSACTION_PREPARED:
                # Half messages and rollbacks have no place in a consume queue.
                place, queue_offset = None, 0
                if transaction == SYS_TRANSACTION_ROLLBACK:
                    keys = ()
            else:
                next_offset += 1
                if queue.delayed:
                    tags_code = self._delivery_time(message, store_ms)
            record = encode(message, queue_offset, log_offset, store_ms)
            size = len(record)
            records.append(record)
            entries.append(
                (place, queue_offset, log_offset, size, tags_code, keys, store_ms, message.topic)
            )
            log_offset += size
        if log_offset + BLANK_BYTES > segment.end:
            self._roll(segment, log_offset - segment.start - segment.wrote)
            return CommitLog._append(self, messages, queue, now_ms)
        segment.append(records, store_ms)
        self._appended(segment, store_ms, entries, queue, next_offset)
        return entries

    def _appended(
        self,
        segment: MappedFile,
        store_ms: int,
        entries: list[Appended],
        queue: ConsumeQueue,
        next_offset: int,
    ) -> None:
        """The segment has the records: move the mark. `entries` are all of them while feeding."""
        self.marks.write(segment.start + segment.wrote, store_ms)
        queue.next_offset = next_offset
        if self.feeding:
            if len(self.pending) > PENDING_MOST:
                self.stop_feeding()
            else:
                self.pending += entries

    # --- segments ---------------------------------------------------------------------------

    def prepare(self) -> StoreError | None:
        """Open the last segment for writing ahead of the first put, if it has room; return the
        error that would refuse it, None when all is well."""
        with self._lock:
            last = self.segments.last
            if last is None or last.wrote == last.size:
                return None
            try:
                self._open(last)
            except StoreError as error:
                return error
        return None

    def make_ahead(self) -> None:
        """Have the next segment made, without waiting for it."""
        with self._lock:
            last = self.segments.last
            self._allocator.prepare(last.end if last is not None else self.marks.written)

    def _activate(self) -> MappedFile:
        """The segment to write to, with its successor under way, if no segment is active yet."""
        last = self.segments.last
        if last is None or last.wrote == last.size:
            last = self._take(last.end if last is not None else self.marks.written)
            self.segments.append(last)
        else:
            self._open(last)
            self._allocator.prepare(last.end)
        self._active = last
        return last

    def _roll(self, segment: MappedFile, size: int) -> None:
        """Close `segment` with a blank and go to the next one, which has room for `size`."""
        if size + BLANK_BYTES > segment.size:
            raise self._counted(
                MessageIllegal(
                    f"a record of {size} bytes does not fit a segment of {segment.size}; "
                    "commit_log_segment_bytes (mappedFileSizeCommitLog) would have to be larger"
                )
            )
        following = self._take(segment.end)
        segment.finish(encode_blank(segment.size - segment.wrote))
        self.segments.append(following)
        self.marks.write(segment.end, self.marks.written_ms)
        self._active = following

    def _open(self, last: MappedFile) -> None:
        """Make the last segment, which recovery has left, writable. Raises StoreError."""
        if last.active:
            return
        try:
            last.activate(last.wrote)
        except OSError as error:
            raise self._no_segment(
                refusal(last.path, error, copies_only=self._health.copies_only)
            ) from error
        self.problem = None

    def _take(self, start: int) -> MappedFile:
        """The new segment that begins at `start`. Raises StoreError."""
        segment = self._taken(self._allocator.take, start)
        assert segment is not None
        return segment

    def _taken(self, take: Callable[[int], MappedFile | None], start: int) -> MappedFile | None:
        """Take a segment by `take`; None while it is being made. Raises StoreError."""
        try:
            segment = take(start)
        except StoreError as error:
            raise self._no_segment(error) from error
        except OSError as error:
            raise self._no_segment(
                refusal(str(error.filename), error, copies_only=self._health.copies_only)
            ) from error
        if segment is not None:
            self._stats.segments_created += 1
            self.problem = None
        return segment

    def _no_segment(self, error: StoreError) -> StoreError:
        self.problem = str(error)
        return self._counted(error)

    # --- copies of a master's records (replication/appender.py) -------------------------------

    def segment_for_copy(self, log_offset: int) -> MappedFile | None:
        """The segment that bytes of a master's log go into, from `log_offset` on, where this log
        goes on; None while it is being made. Raises StoreError."""
        if self._health.broken is not None:
            raise self._health.broken
        last = self.segments.last
        if last is not None and last.wrote < last.size:
            self._open(last)
            self._active = last
            return last
        start = last.end if last is not None else log_offset - log_offset % self._segment_bytes
        segment = self._taken(self._allocator.take_ready, start)
        if segment is None:
            return None
        self.segments.append(segment)
        self._active = segment
        return segment

    def copy(self, segment: MappedFile, data: memoryview, copied: Copied) -> None:
        """Append bytes of a master's log to the segment, which `copied` tells of. Raises
        StoreBroken."""
        try:
            segment.copy(data)
        except OSError as error:
            if is_passing(error):
                # On some file systems reserved blocks do not help. Nothing was moved.
                raise self._no_segment(
                    refusal(segment.path, error, copies_only=self._health.copies_only)
                ) from error
            self._health.poison(f"writing {segment.path}", error)
            assert self._health.broken is not None
            raise self._health.broken from error
        with self._lock:
            if copied.records:
                segment.last_store_ms = copied.store_ms
            segment.wrote += len(data)
            self.problem = None
            self.marks.write(copied.end, copied.store_ms or self.marks.written_ms)
            if segment.wrote == segment.size:
                self._active = None
            if self.feeding:
                self.copies.append(copied)
                self._copied_records += copied.records + 1
                if self._copied_records > PENDING_MOST:
                    self.stop_feeding()
        self._stats.appended_messages += copied.records
        self._stats.appended_bytes += len(data)

    def copy_dispatched(self) -> Copied:
        """Take out the first of `copies`, which is dispatched."""
        copied = self.copies.popleft()
        self._copied_records -= copied.records + 1
        return copied

    # --- the rest ---------------------------------------------------------------------------

    @property
    def min_offset(self) -> int:
        """First log offset of the log."""
        return self.segments.min_offset

    def stop_feeding(self) -> None:
        """Give `pending` up: reput will read the log instead."""
        self.pending = []
        self.copies.clear()
        self._copied_records = 0
        self.feeding = False

    def take_pending(self, limit: int, most: int = PENDING_MOST) -> list[Appended]:
        """The entries of `pending` that end at or below `limit`, which are removed: the first
        `most`, with the rest of the last one's record."""
        with self._lock:
            pending = self.pending
            if len(pending) <= most and pending and pending[-1][2] + pending[-1][3] <= limit:
                self.pending = []
                return pending
            count = bisect_right(pending, limit, key=_end)
            if count > most:
                count = bisect_right(pending, _end(pending[most - 1]), key=_end)
            taken = pending[:count]
            del pending[:count]
            return taken

    def resume_feeding(self, dispatched: int) -> bool:
        """Collect appends in `pending` again if everything up to now is dispatched."""
        with self._lock:
            if dispatched == self.marks.written:
                self.feeding = True
            return self.feeding

    def forget_queue_of(self, topic: str) -> None:
        """Let pending messages of a topic whose queues are being deleted get no entries any
        more."""
        with self._lock:
            self.pending = [
                (None, *entry[1:]) if entry[0] is not None and entry[7] == topic else entry
                for entry in self.pending
            ]

    def forget_copies(self) -> None:
        """Let reput read what was copied and is not dispatched from the log: it names queues that
        are about to leave."""
        with self._lock:
            if self.copies:
                self.stop_feeding()

    def busy(self) -> bool:
        """Whether an append has held the put lock for longer than the setting allows."""
        since_ns = self._held_since_ns
        return bool(since_ns) and self._busy_timeout_ns < self._now_ns() - since_ns < _BUSY_MOST_NS

    def _check_state(self, now_ns: int) -> None:
        if self._health.refusing:
            self._before_refusal()
        error = self._health.error()
        if error is None and self._health.copies_only:
            error = StoreNotWritable("this log is a slave's: its master's messages alone go there")
        if error is not None:
            raise self._counted(error)
        held_ns = now_ns - self._held_since_ns
        if self._held_since_ns and self._busy_timeout_ns < held_ns < _BUSY_MOST_NS:
            raise self._counted(
                PageCacheBusy(
                    f"an append has been waiting for memory for {held_ns // 10**6} ms; the disk "
                    "does not keep up"
                )
            )

    def _check_sizes(self, message: StoreMessage) -> None:
        error = too_large(message, self._max_message_bytes, self._encoding)
        if error is not None:
            raise self._counted(error)

    def _obtain(self, message: StoreMessage) -> ConsumeQueue:
        try:
            return self._queues.admit(message.topic, message.queue_id)
        except StoreError as error:
            raise self._counted(error) from error

    def _delivery_time(self, message: StoreMessage, store_ms: int) -> int:
        return self._levels.tags_code(
            message.topic, decode_properties(message.properties), store_ms, message.tags_code
        )

    def _counted(self, error: StoreError) -> StoreError:
        self._stats.put_failed(type(error).__name__)
        return error


def _entries(
    batch: PreparedBatch, queue: ConsumeQueue, log_offset: int, store_ms: int
) -> list[Appended]:
    """The entries of a batch whose first record is at `log_offset`, before the queue's next offset
    moves."""
    return list(
        zip(
            repeat(queue),
            range(queue.next_offset, queue.next_offset + len(batch.sizes)),
            accumulate(batch.sizes, initial=log_offset),
            batch.sizes,
            batch.tags_codes,
            batch.keys,
            repeat(store_ms),
            repeat(batch.first.topic),
            strict=False,
        )
    )


def _end(entry: Appended) -> int:
    return entry[2] + entry[3]
