"""Opening what a stop, clean or not, left behind: find the log's end, bring everything else to it.

1. Judge. The last record that a consume queue unit names and that names the unit back is a boundary
   known to be sound; so is the beginning of the last segment that begins with a sound record. Their
   larger one is the floor: below it a bad record is damage, above it a torn tail (`log_walk.py`).
2. Choose where to begin reading. After a clean stop all was dispatched, so at the named boundary.
   After a crash by the reference's rule: the last segment whose first record is older than what the
   checkpoint knows to be synced. Earlier if queues have holes or lag behind, or an index file is
   missing or not whole; from the beginning if there are no queues.
3. Walk. Each sound record goes to the queues and the index, which compare before they write.
4. Cut, the log first: segments behind the end go, the rest of the last one is zeroed, so are queue
   units at or above the end; stale bytes come back to life otherwise (reliability B11). Units of
   damaged records become pre-blank: their slot stays, and nobody is sent a record known to be bad.
5. Number. Each queue goes on behind its last slot, whatever that holds.
6. Sync all of it, then the checkpoint.

A crash anywhere in here changes nothing of what the next try decides: what stands below the end is
not moved by step 4, the queues only gain units of records that were sound, and the checkpoint is
set back first when more is being rebuilt than it knows of. Before reading after a crash the kernel
is made to forget its cache, which may hold bytes that a failed write never brought to the disk.
"""

import logging
from dataclasses import dataclass, field
from typing import Protocol

from aerobee.store.checkpoint import Checkpoint
from aerobee.store.commit_log import Appended
from aerobee.store.consume_queue import ConsumeQueue
from aerobee.store.dispatcher import Dispatcher
from aerobee.store.errors import StoreLayoutError
from aerobee.store.files import Clock, Files
from aerobee.store.index_service import IndexService
from aerobee.store.log_walk import LogWalk
from aerobee.store.mapped_file_queue import MappedFileQueue
from aerobee.store.queue_table import ConsumeQueueTable
from aerobee.store.recovery_plan import RecoveryPlan
from aerobee.store.sequence import Gap, Lagging, Sequences

log = logging.getLogger("aerobee.store.recovery")

_BATCH = 4096
_PROGRESS_BYTES = 64 << 20


class Progress(Protocol):
    """Told now and then how far a long start has got."""

    def __call__(self, what: str, done_bytes: int, total_bytes: int) -> None: ...


@dataclass
class RecoveryReport:
    """What was found and what was changed; all of it zero or empty on the first start."""

    clean_stop: bool = True
    log_start: int = 0
    log_end: int = 0
    read_from: int = 0
    records_read: int = 0
    # Bytes above the end that were not zero, and why the end is where it is.
    torn_bytes: int = 0
    torn_reason: str | None = None
    gaps: list[Gap] = field(default_factory=list)
    segments_removed: list[str] = field(default_factory=list)
    queues: int = 0
    units_written: int = 0
    unit_conflicts: int = 0
    queues_cut: int = 0
    units_blanked: int = 0
    index_files_removed: list[str] = field(default_factory=list)
    unusable_topics: int = 0
    foreign_files: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def summary(self) -> str:
        """One line for people: how the last run ended, what was found, what was changed."""
        if not self.log_end:
            return "a new, empty store"
        parts = [
            "clean stop" if self.clean_stop else "unclean stop",
            f"log {self.log_start}..{self.log_end}",
            f"{self.queues} queues",
            f"{self.records_read} records read in {self.seconds:.2f} s",
        ]
        if self.torn_bytes:
            parts.append(f"{self.torn_bytes} torn bytes cut")
        if self.units_written:
            parts.append(f"{self.units_written} queue units rebuilt")
        if self.gaps:
            lost = sum(gap.end - gap.start for gap in self.gaps)
            parts.append(f"DAMAGE: {len(self.gaps)} gaps of {lost} bytes, see the log")
        return ", ".join(parts)


class Recovery:
    """One recovery of loaded `segments`, `queues` and `index`."""

    def __init__(
        self,
        files: Files,
        clock: Clock,
        segments: MappedFileQueue,
        queues: ConsumeQueueTable,
        index: IndexService | None,
        checkpoint: Checkpoint,
        dispatcher: Dispatcher,
        *,
        clean_stop: bool,
        check_crc: bool,
        progress: Progress | None,
    ) -> None:
        self._files = files
        self._clock = clock
        self._segments = segments
        self._queues = queues
        self._index = index
        self._checkpoint = checkpoint
        self._dispatcher = dispatcher
        self._clean_stop = clean_stop
        self._check_crc = check_crc
        self._progress = progress
        self.report = RecoveryReport(clean_stop=clean_stop)
        self._plan = RecoveryPlan(segments, queues, index, checkpoint, clean_stop=clean_stop)
        # How many segments, from the oldest on, are still read through the kernel's cache.
        self._trusted = len(segments.segments)
        # Store time of the last record of the log, 0 if that is not known.
        self.last_store_ms = 0

    def check(self) -> None:
        """Refuse what must not be touched; changes nothing. Raises StoreLayoutError."""
        if self._segments.segments:
            return
        for queue in self._queues:
            if queue.first_named(queue.first_offset, queue.max_offset) is not None:
                raise StoreLayoutError(
                    f"{queue.directory} names messages, but {self._segments.directory} holds no "
                    "commit log. Is its volume not mounted? To start empty, move consumequeue "
                    "and index away as well."
                )

    def run(self) -> RecoveryReport:
        """Recover. Raises OSError, StoreLayoutError or StoreSizeMismatch."""
        started = self._clock.monotonic()
        report = self.report
        report.log_start = self._segments.min_offset
        report.foreign_files = self._foreign_files()
        if not self._clean_stop:
            # Unsynced bytes are in the last one in use, the one before, and none in a spare one.
            self._distrust_segments(self._segments.max_offset - 3 * self._segments.segment_bytes)
            self._queues.distrust_caches()
        for queue in self._queues:
            queue.remove_unfinished()
        floor = self._plan.floor()
        start = self._plan.start()
        self._set_back_checkpoint(start)
        self._distrust_segments(start)
        self.last_store_ms = self._plan.last_store_ms
        walk = self._walk(start, floor)
        report.log_end = walk.end
        report.gaps = walk.gaps
        self._cut_log(walk)
        self._cut_index(walk.end)
        for queue in self._queues:
            self._settle(queue, walk)
        self._finish()
        report.seconds = self._clock.monotonic() - started
        self._log_report()
        return report

    # --- walking ----------------------------------------------------------------------------

    def _set_back_checkpoint(self, start: int) -> None:
        """If more is being rebuilt than the checkpoint says is missing, let it say so first."""
        checkpoint = self._checkpoint
        if self._plan.index_removed or self._plan.index_missing:
            checkpoint.index_ms = 0
        if start < self._plan.reference_start():
            checkpoint.logics_ms = checkpoint.index_ms = 0
        if self._segments.segments:
            checkpoint.flush()
        self.report.index_files_removed += self._plan.index_removed

    def _walk(self, start: int, floor: int) -> LogWalk:
        while True:
            walk = LogWalk(self._segments, floor, self._plan.next_named, self._check_crc)
            self.report.read_from = start
            self.report.records_read = 0
            try:
                self._dispatch(walk, start)
            except Lagging as lag:
                log.info("queue lags behind, reading again from=%d", lag.log_offset)
                start = lag.log_offset
                continue
            return walk

    def _dispatch(self, walk: LogWalk, start: int) -> None:
        sequences = Sequences(start, self._segments.min_offset, self._plan.is_sound)
        batch: list[Appended] = []
        total = max(0, self._segments.max_offset - start)
        next_report = start + _PROGRESS_BYTES
        gaps_seen = 0
        for placed in walk.records(start):
            self.report.records_read += 1
            self.last_store_ms = placed.head.store_timestamp_ms
            entry = self._dispatcher.entry(placed)
            if entry is not None:
                batch.append(entry)
            else:
                sequences.lost += 1
            if len(walk.gaps) > gaps_seen:
                sequences.lost += sum([gap.records for gap in walk.gaps[gaps_seen:]])
                gaps_seen = len(walk.gaps)
            if len(batch) >= _BATCH:
                self._dispatcher.merge(batch, sequences)
                batch = []
            if placed.log_offset >= next_report:
                next_report = placed.log_offset + _PROGRESS_BYTES
                self._tell("reading the commit log", placed.log_offset - start, total)
        self._dispatcher.merge(batch, sequences)
        sequences.finish()
        walk.gaps += sequences.strays
        self.report.units_written += sequences.written
        self.report.unit_conflicts += sequences.conflicts

    # --- cutting ----------------------------------------------------------------------------

    def _cut_log(self, walk: LogWalk) -> None:
        segments = self._segments
        removed = segments.unfinished + segments.drop_from(walk.end)
        for path in segments.unfinished:
            self._files.remove(path)
        if removed:
            self._files.sync_directory(segments.directory)
        last = segments.last
        if last is not None and last.end > walk.end:
            last.wrote = max(0, walk.end - last.start)
            self.report.torn_bytes = last.zero_from(last.wrote)
            if self.report.torn_bytes:
                self.report.torn_reason = walk.end_reason
        self.report.segments_removed = removed

    def _cut_index(self, end: int) -> None:
        """Index files that name records the log no longer has are made again."""
        index = self._index
        if index is None:
            return
        keep = index.sound(end, None)
        if keep == len(index.files):
            return
        self.report.index_files_removed += index.drop_from(keep)
        start = self._segments.min_offset
        if index.files:
            start = self._plan.boundary_at(index.files[-1].end_offset)
        walk = LogWalk(self._segments, end, self._plan.next_named, False)
        batch: list[Appended] = []
        for placed in walk.records(start):
            entry = self._dispatcher.entry(placed)
            if entry is not None:
                batch.append(entry)
            if len(batch) >= _BATCH:
                self._dispatcher.reindex(batch)
                batch = []
        self._dispatcher.reindex(batch)

    def _settle(self, queue: ConsumeQueue, walk: LogWalk) -> None:
        """Cut the queue where the log ends, blank what is damaged, set its numbers."""
        for gap in walk.gaps:
            self._blank_gap(queue, gap)
        end = queue.max_offset
        while end > queue.first_offset:
            unit = queue.unit(end - 1)
            if unit is None and queue.is_pre_blank(end - 1):
                break
            if unit is not None and unit[0] + unit[1] <= walk.end:
                break
            end -= 1
        if end < queue.max_offset:
            queue.zero_from(end)
            self.report.queues_cut += 1
        self._blank_unsound_tail(queue)
        queue.correct_min_offset(self._segments.min_offset)
        queue.next_offset = queue.max_offset

    def _blank_unsound_tail(self, queue: ConsumeQueue) -> None:
        """The last units must name their records; one that does not keeps its slot only.

        It is left over from a foreign recovery that cut the log but not the queue, or its record is
        damaged. Either way consumers may have seen its offset, so it is not given out again.
        """
        for offset in range(queue.max_offset - 1, queue.first_offset - 1, -1):
            unit = queue.unit(offset)
            if unit is None or unit[0] < self._segments.min_offset:
                return
            if self._plan.named_back(queue, offset, unit) is not None:
                return
            queue.blank_out(offset)
            self.report.units_blanked += 1

    def _blank_gap(self, queue: ConsumeQueue, gap: Gap) -> None:
        offset = queue.first_at(gap.start)
        while offset < queue.max_offset:
            unit = queue.unit(offset)
            if unit is not None:
                if unit[0] >= gap.end:
                    return
                queue.blank_out(offset)
                self.report.units_blanked += 1
            offset += 1

    # --- the rest ---------------------------------------------------------------------------

    def _distrust_segments(self, log_offset: int) -> None:
        """After a crash: read the segments from `log_offset` on as the disk has them."""
        if self._clean_stop:
            return
        segments = self._segments.segments[: self._trusted]
        for segment in reversed(segments):
            if segment.end <= log_offset:
                break
            segment.distrust_cache()
            self._trusted -= 1

    def _finish(self) -> None:
        """Sync what was changed; then the checkpoint may say so."""
        report = self.report
        report.queues = len(self._queues.queues)
        report.unusable_topics = self._dispatcher.unusable
        self._queues.flush(0)
        if self._index is not None:
            self._index.seal()
        self._checkpoint.physic_ms = self._checkpoint.logics_ms = self.last_store_ms
        self._checkpoint.flush()
        for segment in self._segments.segments:
            segment.forget_pages()

    def _foreign_files(self) -> list[str]:
        found = self._segments.foreign + self._queues.foreign
        return found + (self._index.foreign if self._index is not None else [])

    def _tell(self, what: str, done: int, total: int) -> None:
        log.info("recovery step=%r done=%d of=%d", what, done, total)
        if self._progress is not None:
            self._progress(what, done, total)

    def _log_report(self) -> None:
        report = self.report
        log.info(
            "recovered clean_stop=%s log=%d..%d read_from=%d records=%d queues=%d "
            "units_written=%d seconds=%.3f",
            report.clean_stop,
            report.log_start,
            report.log_end,
            report.read_from,
            report.records_read,
            report.queues,
            report.units_written,
            report.seconds,
        )
        if report.torn_bytes:
            log.warning(
                "torn tail cut at=%d bytes=%d reason=%s",
                report.log_end,
                report.torn_bytes,
                report.torn_reason,
            )
        for gap in report.gaps:
            log.error("damaged log from=%d to=%d reason=%s", gap.start, gap.end, gap.reason)
        for path in report.foreign_files:
            log.warning("not a store file, left alone path=%s", path)
