"""Decides where a recovery begins to read, and below which log offset a bad record is damage.

Two ways lead to the same answer. By offset, if our own offsets file speaks of this directory:
nothing below its marks has to be read. By time, as the reference does, for directories that come
from elsewhere: reading begins at the last segment whose first record is older than the records that
the checkpoint knows to be synced, earlier where a queue has a hole. If that broker was killed since
the machine came up, all its bytes are there, and the last entry of its queues tells more than the
checkpoint.

This holds for the queues that are there. A queue whose directory or last files did not come along
with a copy would go on at a number that was given before. An offsets file, believed or not, knows
how many entries there were: if there are fewer now, all queues are compared with the whole log.
Without the file they are compared with the first records of each segment and the log's last
records: if a queue does not reach its record, the whole log is read.

The floor (`LogScanner`): by offset it is the flushed mark, and if the machine did not go down since
also every record that a queue names, because all stored bytes are there. By time it is the end of
the last record that a queue entry names and that names the entry back, or the beginning of the last
segment that begins with a sound record.

Reads only. Index files that are not whole are named: recovery removes them when the files on disk
have said that their keys are to be made again.
"""

import logging
from dataclasses import dataclass
from typing import NamedTuple

from aerobee.store.disk.checkpoint import Checkpoint
from aerobee.store.disk.offsets_file import Identity, Offsets
from aerobee.store.index.index_service import IndexService
from aerobee.store.log.scan.log_scanner import Tail
from aerobee.store.queues.queue_table import ConsumeQueueTable
from aerobee.store.recovery.cross_check import CrossCheck
from aerobee.store.segments.mapped_file_queue import MappedFileQueue

log = logging.getLogger("aerobee.store.recovery")

# Files of a queue, and of all of them, whose content a start looks at: a record or two each.
_MOST_LOOKS = 16
_ALL_LOOKS = 512


class Known(NamedTuple):
    """The known facts about the last run. `offsets` is None if the file is not believed."""

    clean_stop: bool
    offsets: Offsets | None
    #: The machine has not gone down since, and no write or sync failed (as far as can be told of
    #: another broker's run).
    nothing_lost: bool
    #: The content of an offsets file that is not believed, because it came with a copy or another
    #: broker has run since. It still knows how many entries there were.
    noted: Offsets | None = None


def known_of(
    offsets: Offsets | None, identity: Identity, clean_stop: bool, same_boot: bool
) -> Known:
    """Judges how far an offsets file is believed in a directory that is `identity` now.

    `same_boot`: the machine has not gone down since another broker was killed here.
    """
    if offsets is None:
        return Known(clean_stop, None, same_boot)
    stored = offsets.identity
    if (stored.lock_inode, stored.lock_mtime_ns) != (identity.lock_inode, identity.lock_mtime_ns):
        log.info("another broker, or a copy: recovering as without the offsets file")
        return Known(clean_stop, None, same_boot, offsets)
    same_run = bool(identity.boot_id) and stored.boot_id == identity.boot_id
    return Known(clean_stop, offsets, not offsets.poisoned and (clean_stop or same_run))


@dataclass(slots=True)
class RecoveryPlan:
    """The judgement of one store, right after loading."""

    #: Reading begins at `start`, making entries and keys of what is read at `dispatch_from`.
    start: int
    dispatch_from: int
    floor: int
    #: How a bad record above the floor is taken.
    tail: Tail
    #: Store time of the last record below `start` as far as known, else 0.
    last_store_ms: int
    why: str
    #: How many of the oldest index files are relied on; the others are removed before the scan
    #: makes them again. None: all stay.
    index_kept: int | None = None


@dataclass(frozen=True, slots=True)
class RecoveryPlanner:
    """Makes the plan for loaded `segments`, `queues` and `index`."""

    segments: MappedFileQueue
    queues: ConsumeQueueTable
    index: IndexService | None
    checkpoint: Checkpoint
    cross_check: CrossCheck
    known: Known

    def plan(self, remade_from: int | None = None) -> RecoveryPlan:
        """Judge. `remade_from`: the log offset from which queue files that were gone have to be
        filled. Raises OSError."""
        offsets = self.known.offsets
        plan = self._by_time() if offsets is None else self._by_offset(offsets)
        if remade_from is not None and remade_from < plan.dispatch_from:
            plan.dispatch_from = remade_from
            plan.why = "queue files were gone"
        for queue in self.queues:
            before = self.cross_check.before_unsound_end(queue, plan.dispatch_from)
            if before < plan.dispatch_from:
                plan.dispatch_from = before
                plan.why = f"the last unit of {queue.directory} names no message"
        self._look_for_others(plan)
        plan.dispatch_from = max(self.segments.min_offset, plan.dispatch_from)
        plan.start = max(self.segments.min_offset, min(plan.start, plan.dispatch_from))
        return plan

    def _look_for_others(self, plan: RecoveryPlan) -> None:
        """Look at a few entries of each queue, too few to take time worth mentioning."""
        offsets = self.known.offsets
        gaps = () if offsets is None else offsets.gaps
        looks = min(_MOST_LOOKS, _ALL_LOOKS // max(1, len(self.queues.queues)))
        for queue in self.queues if looks else ():
            if plan.dispatch_from <= self.segments.min_offset:
                return
            if self.cross_check.is_anothers(queue, looks, gaps):
                plan.dispatch_from = self.segments.min_offset
                plan.why = f"{queue.directory} names the messages of another queue"
                log.warning(
                    "queue made again, it holds another queue's entries path=%s", queue.directory
                )

    # --- by offset --------------------------------------------------------------------------

    def _by_offset(self, offsets: Offsets) -> RecoveryPlan:
        nothing_lost = self.known.nothing_lost
        marks = offsets.live if nothing_lost else offsets.synced
        floor = offsets.flushed
        named_end, store_ms = self.cross_check.last_named_end()
        if nothing_lost:
            floor = max(floor, named_end)
        if named_end < floor:
            # The file may have the time of a record before the last: the flush thread reads the
            # time first, then the mark, and appends go on in between.
            store_ms = max(store_ms, offsets.last_store_ms)
        plan = RecoveryPlan(
            offsets.flushed,
            marks.log_offset,
            floor,
            Tail.FOLLOWED if nothing_lost else Tail.TORN,
            store_ms,
            "the offsets file",
        )
        entries = self.queues.entries_below(marks.log_offset)
        if entries < marks.entries:
            plan.dispatch_from = self.segments.min_offset
            plan.why = f"{marks.entries - entries} queue entries are missing"
        elif nothing_lost and not self.known.clean_stop:
            # Later files are not synced yet, and a failed sync that nobody could note leaves a
            # hole.
            synced = offsets.synced.log_offset
            for queue in self.queues:
                if self.cross_check.is_below(queue, synced):
                    continue
                first = queue.first_at(synced)
                before = self.cross_check.before_first_hole(queue, plan.dispatch_from, first)
                plan.dispatch_from = min(plan.dispatch_from, before)
        self._index_by_offset(plan, offsets)
        return plan

    def _index_by_offset(self, plan: RecoveryPlan, offsets: Offsets) -> None:
        index = self.index
        if index is None or not self.segments.segments:
            return
        if any(name not in index.names for name in offsets.index_files):
            self._index_from(plan, index, 0)
            return
        if self.known.nothing_lost:
            keep = index.cut_uncounted()
            if index.end_offset < offsets.index_end:
                # A failed sync that nobody could note took the unsynced bytes, or somebody has put
                # back an older file.
                end = min(offsets.indexed, self.cross_check.index_end(index, len(index.files)))
                plan.dispatch_from = min(plan.dispatch_from, max(0, end))
        else:
            keep = index.whole_up_to(offsets.indexed)
            plan.dispatch_from = min(plan.dispatch_from, max(0, offsets.indexed))
        if keep < len(index.files) or index.damaged or offsets.indexed < 0:
            self._index_from(plan, index, keep)

    def _index_from(self, plan: RecoveryPlan, index: IndexService, keep: int) -> None:
        """Go on with the oldest `keep` files; read the records again that the others named."""
        plan.index_kept = keep
        plan.dispatch_from = min(plan.dispatch_from, self.cross_check.index_end(index, keep))

    # --- by time ----------------------------------------------------------------------------

    def _by_time(self) -> RecoveryPlan:
        cross_check = self.cross_check
        named_end, store_ms = cross_check.last_named_end()
        clean = self.known.clean_stop
        # One thread dispatches in the log's order, so all entries up to the last existing entry
        # were made.
        trusted = clean or self.known.nothing_lost
        start = named_end if trusted else cross_check.reference_start(self.checkpoint)
        plan = RecoveryPlan(
            start,
            start,
            max(named_end, cross_check.last_sound_start()),
            Tail.TORN,
            store_ms,
            "a clean stop" if clean else "the last entries" if trusted else "the checkpoint",
        )
        self._look_for_missing(plan)
        self._index_by_time(plan)
        if not clean:
            for queue in self.queues:
                before = cross_check.before_first_hole(queue, plan.dispatch_from)
                plan.dispatch_from = min(plan.dispatch_from, before)
        return plan

    def _look_for_missing(self, plan: RecoveryPlan) -> None:
        """Read again from where all queues are known to have been whole."""
        cross_check, noted = self.cross_check, self.known.noted
        if noted is not None:
            marks = noted.live
            missing = marks.entries - self.queues.entries_below(marks.log_offset)
            if missing > 0:
                plan.dispatch_from = self.segments.min_offset
                plan.why = f"{missing} queue entries are missing"
            elif marks.log_offset < plan.dispatch_from:
                plan.dispatch_from = cross_check.boundary_at(marks.log_offset)
            return
        beyond = cross_check.beyond_its_queue(cross_check.last_named_end()[0])
        if beyond is not None:
            plan.dispatch_from = self.segments.min_offset
            plan.why = f"no unit names the record at {beyond}"

    def _index_by_time(self, plan: RecoveryPlan) -> None:
        index = self.index
        if index is None or not self.segments.segments:
            return
        trusted = self.known.clean_stop or self.known.nothing_lost
        synced_ms = None if trusted else self.checkpoint.index_ms
        keep = index.count_reliable(self.segments.max_offset, synced_ms)
        if trusted and keep == len(index.files):
            keep = index.cut_uncounted()
        doubtful = keep < len(index.files) or bool(index.damaged)
        if not doubtful and synced_ms is None and index.files:
            return
        self._index_from(plan, index, keep)
