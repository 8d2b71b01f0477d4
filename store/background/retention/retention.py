"""Deletes old messages: plans, takes out of the log, removes from the disk; and trims the derived
files (store/FORMAT.md 10).

It has three steps, so that nothing that can take long happens on the thread that serves requests:
- `plan` on any thread: reads only. It is also the dry run: the segments that would go, the reason,
  and the groups that still need them.
- `detach` on the owner's thread: the log begins later from here on; one tuple replaces another.
- `dispose` on a worker: waits for readers, unmaps, removes, syncs (`disposal.py`).
Then queues and index follow in the same three steps (`queue_trim.py`). `run` does all of it, with a
way to the owner's thread passed in.

A process may die between any two steps: files that were detached and not removed are part of the
log again at the next start, and are deleted again. A broken store deletes nothing, so that the
cause can be looked at.

Only messages go that are durable, dispatched, and synced in their queue: a queue's numbering must
survive a power cut although the log can no longer tell it.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice

from aerobee.store.background.retention.deletion_plan import (
    Need,
    OffsetsByQueue,
    RetentionPlan,
    choose,
    needs_in_queue,
)
from aerobee.store.background.retention.disposal import (
    DeletionCounts,
    Detached,
    Removal,
    SegmentDisposal,
)
from aerobee.store.background.retention.queue_trim import QueueTrimmer
from aerobee.store.background.retention.segment_times import (
    MESSAGE,
    LastStored,
    SegmentPlace,
    last_stored,
)
from aerobee.store.background.retention.triggers import (
    FORCED,
    MANUAL,
    SPACE,
    Disks,
    RetentionRules,
    Verdict,
    judge,
)
from aerobee.store.disk.disk_watch import DiskWatch
from aerobee.store.disk.owner import OnOwner
from aerobee.store.disk.steady_time import SteadyTime
from aerobee.store.flush.offsets_keeper import OffsetsKeeper
from aerobee.store.index.index_service import IndexService
from aerobee.store.log.store_core import StoreCore
from aerobee.store.queues.snapshot import snapshot

log = logging.getLogger("aerobee.store.background.retention")

#: Runs that one manual request is good for (store/FORMAT.md 10.1).
MANUAL_RUNS = 20
# Queues that are trimmed in one go on the owner's thread: about a millisecond.
_TRIMS_AT_ONCE = 200
_NEEDS_LOGGED = 20


class Retention:
    """The deletion of an open store."""

    def __init__(
        self,
        core: StoreCore,
        index: IndexService | None,
        time: SteadyTime,
        offsets: OffsetsKeeper,
        disk: DiskWatch,
    ) -> None:
        """`time` is the clock that messages expire by."""
        self.store = store = core
        self._time = time
        self._offsets = offsets
        self._disk = disk
        self._settings = settings = core.settings
        self.counts = DeletionCounts()
        self.removal = Removal(store.files, store.health)
        self._disposal = SegmentDisposal(
            clock=store.clock,
            removal=self.removal,
            counts=self.counts,
            pause_s=settings.delete_commit_log_pause_ms / 1000,
            destroy_after_s=settings.destroy_segment_after_ms / 1000,
            redelete_s=settings.redelete_interval_ms / 1000,
        )
        self.trimmer = QueueTrimmer(
            files=store.files,
            table=store.queues,
            index=index,
            removal=self.removal,
            counts=self.counts,
            pause_s=settings.delete_consume_queue_pause_ms / 1000,
        )
        self._trimmed_to = 0
        self._manual_runs = 0
        # Nothing could be deleted the last time, although the disk was full.
        self._stuck = False
        self._times: dict[int, LastStored] = {}
        #: Held by a run, by the close, or by anything else that removes files.
        self.busy = threading.Lock()

    @property
    def _rules(self) -> RetentionRules:
        """The rules by today's settings: some of them may change while the store is open."""
        return RetentionRules.of(self._settings)

    def save_offsets(self) -> None:
        """Write down where log and queues begin, and which index files there are; before files
        go."""
        try:
            self._offsets.begin_later()
        except OSError as error:
            self.store.health.poison("writing the offsets file", error)

    # --- the three steps --------------------------------------------------------------------

    def plan(self, groups: Callable[[], OffsetsByQueue] | None = None) -> RetentionPlan:
        """Plan what would be deleted now. Any thread; changes nothing. Raises OSError.

        `groups` gives the committed offsets, and is called only if something would go.
        """
        store = self.store
        now_ms = self._time.now_ms()
        if store.health.broken is not None or self.removal.stopping:
            return RetentionPlan(now_ms, Verdict(()), stopped_by="the store has stopped")
        disks = Disks.ask(store.files, store.segments.paths.writable, store.queues.directory)
        hour = time.localtime(store.clock.now_ms() / 1000).tm_hour
        verdict = judge(self._rules, hour, disks, manual=self._manual_runs > 0)
        plan = self._choose(verdict, now_ms)
        if groups is None or plan.new_min is None:
            return plan
        return plan._replace(needs=tuple(self._needs(groups(), plan.new_min)))

    def detach(self, plan: RetentionPlan) -> list[Detached]:
        """Let the log begin where the plan says. Owner's thread; nothing is read or written."""
        if MANUAL in plan.verdict.triggers:
            self._manual_runs = max(0, self._manual_runs - 1)
        if not plan.doomed or self.removal.stopping:
            return []
        taken = self.store.segments.take_front([one.start for one in plan.doomed])
        since = self.store.clock.monotonic()
        return [
            Detached(segment, doomed.reason, since)
            for segment, doomed in zip(taken, plan.doomed, strict=False)
        ]

    def dispose(self, detached: Sequence[Detached]) -> int:
        """Remove the segments detached now or before; return how many. Worker thread."""
        removed = self._disposal.run(detached)
        for start in [start for start in self._times if start < self.store.segments.min_offset]:
            del self._times[start]
        if removed:
            self._disk.look(at_once=True)
        return removed

    # --- all of it --------------------------------------------------------------------------

    def run(
        self, on_owner: OnOwner, groups: Callable[[], OffsetsByQueue] | None = None
    ) -> RetentionPlan:
        """Do a run, on a worker thread; return its plan. Raises OSError if nothing can be read."""
        with self.busy:
            plan = self.plan(groups)
            detached = on_owner(partial(self.detach, plan))
            self._say(plan)
            if detached:
                self.counts.unconsumed += sum(need.messages for need in plan.needs)
                self.save_offsets()
            self.dispose(detached)
            self._trim(on_owner)
            return plan

    def arm(self) -> None:
        """Let the next runs not wait for the hour: somebody wants the expired segments gone now."""
        self._manual_runs = MANUAL_RUNS
        log.info("manual deletion asked for runs=%d", MANUAL_RUNS)

    @property
    def hanged(self) -> int:
        """Deleted segments whose readers, or whose disk, do not let go of them."""
        return self._disposal.hanged

    def close(self) -> None:
        """End a run that is under way, and remove all detached segments. Any thread."""
        self.removal.stop()
        with self.busy:
            if self.store.health.broken is None:
                self._disposal.finish()

    # --- planning ---------------------------------------------------------------------------

    def _choose(self, verdict: Verdict, now_ms: int) -> RetentionPlan:
        if self._disposal.blocked:
            stopped_by = "a segment deleted before cannot be removed yet"
            return RetentionPlan(now_ms, verdict, stopped_by=stopped_by)
        segments = self.store.segments.segments
        return choose(
            self._rules,
            verdict,
            [SegmentPlace(one.path, one.start, one.end) for one in segments],
            self._last_stored,
            self._offsets.safe_end,
            now_ms,
        )

    def _last_stored(self, segment: SegmentPlace, following: SegmentPlace) -> LastStored:
        known = self._times.get(segment.start)
        if known is None:
            written = self.store.segments.find(segment.start)
            if written is not None and written.last_store_ms:  # since the start, so it knows
                known = LastStored(written.last_store_ms, MESSAGE)
            else:
                known = last_stored(self.store.files, segment, following)
            self._times[segment.start] = known
        return known

    def _needs(self, groups: OffsetsByQueue, new_min: int) -> Iterator[Need]:
        for (topic, queue_id), offsets in groups.items():
            queue = self.store.queues.get(topic, queue_id)
            if queue is None or min(offsets.values(), default=queue.max_offset) >= queue.max_offset:
                continue
            try:
                with snapshot(self.store.files, queue) as copy:
                    keep_from = copy.first_at(new_min)
            except FileNotFoundError:  # its topic has been deleted meanwhile
                continue
            yield from needs_in_queue(offsets, topic, queue_id, copy.min_offset, keep_from)

    # --- queues and index -------------------------------------------------------------------

    def _trim(self, on_owner: OnOwner) -> None:
        store, trimmer = self.store, self.trimmer
        log_min = store.segments.min_offset
        if log_min > self._trimmed_to and store.health.broken is None:
            planned = trimmer.plan(log_min)
            trims = iter(planned)
            while portion := list(islice(trims, _TRIMS_AT_ONCE)):
                on_owner(partial(trimmer.apply, portion))
            if on_owner(partial(trimmer.apply_index, log_min)) or planned:
                self.save_offsets()
            self._trimmed_to = log_min
        if store.health.broken is None:
            trimmer.dispose()

    def _say(self, plan: RetentionPlan) -> None:
        """Log what goes; log once if nothing can go although the disk is full."""
        stuck = SPACE in plan.verdict.triggers and not plan.doomed
        if stuck and not self._stuck:
            log.warning(
                "the disk is fuller than its limit, and nothing can be deleted why=%r",
                plan.stopped_by,
            )
        self._stuck = stuck
        if plan.doomed:
            _log_doomed(plan)


def _log_doomed(plan: RetentionPlan) -> None:
    forced = [one for one in plan.doomed if one.reason == FORCED]
    log.log(
        logging.WARNING if forced else logging.INFO,
        "deleting segments=%d bytes=%d from=%d to=%d triggers=%s forced=%d",
        len(plan.doomed),
        plan.bytes,
        plan.doomed[0].start,
        plan.doomed[-1].end,
        ",".join(plan.verdict.triggers),
        len(forced),
    )
    for need in plan.needs[:_NEEDS_LOGGED]:
        log.warning(
            "deleted before it was consumed group=%s topic=%s queue=%d messages=%d from_offset=%d",
            need.group,
            need.topic,
            need.queue_id,
            need.messages,
            need.queue_offset,
        )
    if len(plan.needs) > _NEEDS_LOGGED:
        log.warning("and for more groups and queues count=%d", len(plan.needs) - _NEEDS_LOGGED)
