"""Dispatch: puts the log's messages into consume queues and index, which makes them visible.

Two ways lead to the same bytes. Fed: the append left the needed values in `CommitLog.pending`,
nothing is read back. Catching up: after an overflow or a failure the log is read from `dispatched`
on, and existing entries are left alone (`dispatcher.py`, which recovery uses too).

The owner passes the limit, `Marks.dispatchable`. Under SYNC_FLUSH that is the durable mark: no
consumer sees a message that a power cut could still take back, so no queue offset is ever given to
two messages (docs/reliability.md B4).

A round first reserves room in the index, then writes each queue's entries with one write, then puts
the keys (which cannot fail), then moves `dispatched`. So another try after a full disk repeats all
changes: the store refuses puts, remembers that it is late, and tries again. Any other failure
poisons it: a queue that cannot be written must not be served in part.

Threads: the store's caller only.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeAlias

from aerobee.protocol.message.record_check import CHECK_NOTHING, Checked
from aerobee.store.disk.files import is_full, is_passing
from aerobee.store.disk.store_health import DISK_FULL
from aerobee.store.dispatch.dispatcher import Dispatcher
from aerobee.store.index.index_service import IndexService
from aerobee.store.log.commit_log import Appended, CommitLog
from aerobee.store.log.compiled import Compiled, Derived
from aerobee.store.log.scan.boundaries import Boundaries
from aerobee.store.log.scan.log_scanner import LogScanner, MappedSegments
from aerobee.store.log.scan.sequence import Sequences, nothing_is_sound
from aerobee.store.log.store_core import StoreCore
from aerobee.store.queues.consume_queue import ConsumeQueue
from aerobee.store.queues.queue_view import ENTRY, ENTRY_BYTES
from aerobee.store.segments.results import Arrival

#: Messages of a round: some milliseconds.
ROUND_MOST = 1024
# Bytes of the log in a batch of a round that reads it.
_STEP_BYTES = 256 << 10

_pack_entry = ENTRY.pack

#: Entries of a round by their queue, with the slot of the first, in order.
Touched: TypeAlias = dict[ConsumeQueue, tuple[int, list[bytes]]]


class KnownGaps(Protocol):
    """Knows where the log is damaged (`flush/offsets_keeper.py`)."""

    @property
    def gaps(self) -> tuple[tuple[int, int], ...]:
        """Ranges [start, end) of the log that are known to hold no usable record, in order."""


class Reput:
    """Keeps queues and index up with the log."""

    def __init__(
        self,
        core: StoreCore,
        log: CommitLog,
        dispatcher: Dispatcher,
        index: IndexService | None,
        known: KnownGaps,
        *,
        compiled: Compiled | None = None,
    ) -> None:
        self._log = log
        self._dispatcher = dispatcher
        self._index = index
        self._known = known
        self._take = dispatcher.taker(CHECK_NOTHING, 0)
        self._health = core.health
        self._stats = core.stats
        self._marks = core.marks
        self._queues = core.queues
        self._compiled = compiled
        # Messages of the next round.
        self._round_most = ROUND_MOST

    def dispatch(self, limit: int, tell: bool = True) -> list[Arrival]:
        """Dispatch records below `limit`, in a round of about `ROUND_MOST` messages; return those
        that have become visible, in log order. There are more as long as `dispatched` moves.
        Without `tell` the list may be empty.

        Never raises OSError: the health takes a failure.
        """
        if self._marks.dispatched >= limit or self._health.broken is not None:
            return []
        log = self._log
        if not log.feeding:
            return self._catch_up(limit, tell)
        entries = log.take_pending(limit, self._round_most)
        if not entries:
            return self._dispatch_copies(limit, tell) if log.copies else []
        try:
            return self._dispatch_fed(entries, tell)
        except OSError as error:
            self._failed(error)
            return []
        except Exception:
            # This is a bug. The entries were taken, so only the log still has them; later entries
            # would leave a hole in their queues.
            self._log.stop_feeding()
            raise

    def _dispatch_fed(self, entries: list[Appended], tell: bool) -> list[Arrival]:
        index = self._index
        keys = 0
        if index is not None:
            keys = sum([len(entry[5]) for entry in entries])
            index.reserve(keys)
        arrivals, count = self._write_entries(entries, tell)
        if index is not None:
            index.put_entries(entries, keys)
            index.finish()
        # Numbering goes on by one with each message that has a queue.
        self._done(entries, count)
        return arrivals

    def _write_entries(self, entries: list[Appended], tell: bool) -> tuple[list[Arrival], int]:
        """Write the queues' entries; return the arrivals, and their number. Raises OSError."""
        if self._compiled is not None:
            arrivals, count, made = self._compiled.gather(entries, Arrival if tell else None)
            for queue, first, data in made:
                queue.write_entries(first, data)
            return arrivals, count
        touched: Touched = {}
        arrivals = self._gather(entries, touched)
        for queue, (first, packed) in touched.items():
            queue.write_entries(first, b"".join(packed))
        return arrivals, len(arrivals)

    def _gather(self, entries: list[Appended], touched: Touched) -> list[Arrival]:
        """Collect the queues' entries in `touched`. Raises OSError."""
        arrivals: list[Arrival] = []
        for queue, queue_offset, log_offset, size, tags_code, _, _, _ in entries:
            if queue is not None:
                of_queue = touched.get(queue)
                if of_queue is None:
                    of_queue = touched[queue] = queue_offset, []
                of_queue[1].append(_pack_entry(log_offset, size, tags_code))
                arrivals.append(Arrival(queue.topic, queue.queue_id, queue_offset, tags_code))
        return arrivals

    def count_again(self) -> None:
        """Count the queues' ends again, which have changed otherwise than by dispatch."""
        self._marks.count(self._queues.entries())

    def _done(self, entries: list[Appended], added: int | None = None) -> None:
        last = entries[-1]
        self._marks.dispatch(last[2] + last[3], last[6], added)
        self._stats.dispatched_messages += len(entries)

    # --- copies of a master's records ---------------------------------------------------------

    def _dispatch_copies(self, limit: int, tell: bool) -> list[Arrival]:
        """Dispatch copied records below `limit`, which were checked when they came."""
        arrivals: list[Arrival] = []
        copies, sequences, done = self._log.copies, Sequences(None, 0, nothing_is_sound), 0
        merged = False
        try:
            while copies and copies[0].end <= limit and done < ROUND_MOST:
                runs = self._derived_runs(limit)
                added = self._dispatcher.append_derived(runs) if runs else None
                if added is None:
                    first, merged = copies[0], True
                    arrivals += self._merge(first.derived, first.checked or (), sequences, tell)
                    done += self._copy_done(None)
                    continue
                for derived in runs:
                    if tell:
                        arrivals += _derived_arrivals(derived)
                    done += self._copy_done(added)
                    added = 0
        except OSError as error:
            self._failed(error)
        if merged:
            self.count_again()
        return arrivals

    def _derived_runs(self, limit: int) -> list[Derived]:
        """The first copies, as far as a compiled form has derived them, up to a round."""
        runs: list[Derived] = []
        records = 0
        for copied in self._log.copies:
            if copied.derived is None or copied.end > limit or records >= ROUND_MOST:
                break
            runs.append(copied.derived)
            records += copied.records
        return runs

    def _copy_done(self, added: int | None) -> int:
        """Move the mark past the first copy; how many records it had."""
        copied = self._log.copy_dispatched()
        self._marks.dispatch(copied.end, copied.store_ms or self._marks.dispatched_ms, added)
        self._stats.dispatched_messages += copied.records
        return copied.records

    # --- catching up ------------------------------------------------------------------------

    def _catch_up(self, limit: int, tell: bool) -> list[Arrival]:
        marks = self._marks
        start = marks.dispatched
        # A slave takes damage of its master as it is (replication/appender.py).
        gap = next((gap for gap in self._known.gaps if gap[1] > start), None)
        if gap is not None and gap[0] <= start:
            marks.dispatch(min(gap[1], limit), marks.dispatched_ms)
            return self._caught_up([])
        until = limit if gap is None else min(limit, gap[0])
        quick = self._quick(start, until, tell)
        if quick is not None:
            return quick
        # Nothing is looked for after a bad record: the log was checked when it was written.
        scan = LogScanner(
            MappedSegments(self._log.segments),
            0,
            Boundaries(list, lambda *_: False),
            CHECK_NOTHING,
            until=until,
            step_bytes=_STEP_BYTES,
            take=self._take,
        )
        arrivals: list[Arrival] = []
        sequences = Sequences(None, 0, nothing_is_sound)
        done = 0
        try:
            for batch in scan.batches(start):
                arrivals += self._merge(batch.derived, batch.records, sequences, tell)
                marks.dispatch(scan.end, batch.last_store_ms)
                self._stats.dispatched_messages += batch.size
                done += batch.size
                if done >= ROUND_MOST:
                    self.count_again()
                    return arrivals
        except OSError as error:
            self._failed(error)
            return arrivals
        if scan.end_reason is not None:
            self._health.poison("reading back the commit log", OSError(scan.end_reason))
            return arrivals
        if scan.end > marks.dispatched:
            marks.dispatch(scan.end, marks.dispatched_ms)
        return self._caught_up(arrivals)

    def _quick(self, start: int, until: int, tell: bool) -> list[Arrival] | None:
        """Catch up with some records that the compiled form takes, and that go on where their
        queues end: a slave has hardly others. None for others, of which nothing was done."""
        segment = self._log.segments.find(start)
        if self._take is None or segment is None:
            return None
        limit = min(until, start + _STEP_BYTES, segment.end) - segment.start
        derived = self._take(segment.view, start - segment.start, start, limit)
        if derived is None:
            return None
        try:
            added = self._dispatcher.append_derived((derived,))
        except OSError as error:
            self._failed(error)
            return []
        if added is None:
            return None
        self._marks.dispatch(derived.end, derived.store_ms, added)
        self._stats.dispatched_messages += derived.records
        if self._log.resume_feeding(derived.end):
            self._health.allow(DISK_FULL)
        return list(_derived_arrivals(derived)) if tell else []

    def _caught_up(self, arrivals: list[Arrival]) -> list[Arrival]:
        self.count_again()
        if self._log.resume_feeding(self._marks.dispatched):
            self._health.allow(DISK_FULL)
        return arrivals

    def _merge(
        self, derived: Derived | None, records: Sequence[Checked], sequences: Sequences, tell: bool
    ) -> list[Arrival]:
        """Bring records into queues and index, by what a compiled form has derived from them if it
        has. Raises OSError."""
        if derived is not None:
            self._dispatcher.merge_derived(derived, sequences)
            return list(_derived_arrivals(derived)) if tell else []
        entries = self._dispatcher.entries(records)
        if entries:
            self._dispatcher.merge(entries, sequences)
        return _arrivals(entries)

    def _failed(self, error: OSError) -> None:
        self._log.stop_feeding()
        if is_passing(error):
            want = "the disk is full" if is_full(error) else "too many files are open"
            self._health.refuse(
                DISK_FULL,
                f"{want}: the queues in {self._dispatcher.directory} or the index cannot be "
                f"written ({error}). The store goes on by itself when that has passed.",
            )
        else:
            self._health.poison("writing consume queues or index", error)


def _arrivals(entries: list[Appended]) -> list[Arrival]:
    return [
        Arrival(queue.topic, queue.queue_id, queue_offset, tags_code)
        for queue, queue_offset, _, _, tags_code, _, _, _ in entries
        if queue is not None
    ]


def _derived_arrivals(derived: Derived) -> Iterable[Arrival]:
    """The arrivals of records that a compiled form took: of each queue in order."""
    for queue, runs in derived.claims:
        for first, entries in runs:
            for slot, at in enumerate(range(0, len(entries), ENTRY_BYTES), first):
                yield Arrival(queue.topic, queue.queue_id, slot, ENTRY.unpack_from(entries, at)[2])
