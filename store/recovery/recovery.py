"""Recovers a store after a stop, clean or not: finds the log's end, brings everything else to it.

1. Judge what the last run left (`recovery/recovery_plan.py`): by our offsets file where it speaks
   of this directory, otherwise as the reference does, by the checkpoint's times. The answer is
   where to begin reading, and a floor: a bad record below is damage, above it a torn tail
   (`log/scan/resynchronise.py`).
2. If more is to be made again than the files on disk admit to be missing, let them say so first.
3. Scan. Each sound record goes to the queues and the index, which compare before they write.
4. Cut, the log first: segments above the end are removed, the rest of the last segment is zeroed,
   and so are queue entries at or above the end; stale bytes come back to life otherwise
   (docs/reliability.md B11). Entries of damaged records become pre-blank: their slot stays, and
   nobody is sent a record known to be bad. So do entries that lead to fillers: a repair, broken off
   before it came to the queues, has put those in the place of lost records.
5. Number. Each queue goes on after its last slot, whatever that holds.
6. Sync all of it, then the offsets file, then the checkpoint.

A crash anywhere in here does not change the decisions of the next try: step 4 does not move the
bytes below the end, and the queues only gain entries of records that were sound. Before reading
after a crash the kernel is made to forget its cache, which may hold bytes that a failed write never
brought to the disk.
"""

import logging
import os

import msgspec

from aerobee.protocol.message.filler import FILLER_TOPIC
from aerobee.protocol.message.record_check import CHECK_NOTHING, Checked, log_offset_of
from aerobee.store.disk.checkpoint import Checkpoint
from aerobee.store.disk.files import Clock, Files
from aerobee.store.disk.offsets_file import MOST_GAPS, ClockNote, DerivedMarks, Offsets, OffsetsFile
from aerobee.store.dispatch.dispatcher import Dispatcher
from aerobee.store.index.index_service import IndexService
from aerobee.store.inspect.start_checks import check_log, check_segment_names
from aerobee.store.log.commit_log import Appended
from aerobee.store.log.scan.log_scanner import LogScanner, MappedSegments
from aerobee.store.log.scan.sequence import Gap, Lagging, Sequences
from aerobee.store.queues.consume_queue import ConsumeQueue
from aerobee.store.queues.queue_table import ConsumeQueueTable
from aerobee.store.recovery.cross_check import CrossCheck
from aerobee.store.recovery.recovery_plan import RecoveryPlan, RecoveryPlanner, known_of
from aerobee.store.recovery.recovery_report import Progress, RecoveryReport
from aerobee.store.segments.mapped_file_queue import MappedFileQueue

log = logging.getLogger("aerobee.store.recovery")

_PROGRESS_BYTES = 64 << 20


class Recovery:
    """One recovery of loaded `segments`, `queues` and `index`."""

    def __init__(
        self,
        *,
        files: Files,
        clock: Clock,
        segments: MappedFileQueue,
        queues: ConsumeQueueTable,
        index: IndexService | None,
        checkpoint: Checkpoint,
        offsets_file: OffsetsFile,
        dispatcher: Dispatcher,
        clean_stop: bool,
        same_boot: bool,
        check_crc: int,
        progress: Progress | None,
    ) -> None:
        self._files = files
        self._clock = clock
        self._segments = segments
        self._queues = queues
        self._index = index
        self._checkpoint = checkpoint
        self._offsets_file = offsets_file
        self._dispatcher = dispatcher
        self._check_crc = check_crc
        self._progress = progress
        self.report = RecoveryReport(clean_stop=clean_stop)
        self._identity = offsets_file.identity()
        self._known = known_of(offsets_file.load(), self._identity, clean_stop, same_boot)
        # The content of the offsets file now, None if it is not believed.
        self._noted = self._known.offsets
        self._cross_check = CrossCheck(segments, queues)
        # How many segments, from the oldest on, are still read through the kernel's cache.
        self._trusted = len(segments.segments)
        # Store time of the last record of the log, 0 if that is not known.
        self.last_store_ms = 0
        self._began = 0.0
        # Where the records that were read are fillers, neighbours taken together.
        self._filled: list[Gap] = []
        #: The content of the offsets file when this is done.
        self.offsets: Offsets | None = None

    def check(self) -> None:
        """Refuse a store that must not be touched; changes nothing. Raises StoreLayoutError or
        OSError."""
        known = self._known.offsets
        check_log(
            self._segments,
            self._queues,
            None if known is None else known.flushed,
            clean_stop=self._known.clean_stop,
        )
        check_segment_names(self._files, self._segments)

    def run(self) -> RecoveryReport:
        """Recover. Raises OSError, StoreLayoutError or StoreSizeMismatch."""
        self._began = self._clock.monotonic()
        report = self.report
        report.begins_at(self._segments.min_offset, self._known.offsets)
        report.foreign_files = self._foreign_files()
        unmade = [queue for queue in self._queues if queue.unmade]
        remade_from = min(map(self._cross_check.before_unmade, unmade), default=None)
        if remade_from is not None:  # once they are made, nobody sees that they were gone
            self._set_back_offsets(remade_from)
        if unmade:
            self._before_rewriting()
        for queue in self._queues:
            queue.mend_files()
        self._sync_and_drop_cache()
        plan = RecoveryPlanner(
            self._segments,
            self._queues,
            self._index,
            self._checkpoint,
            self._cross_check,
            self._known,
        ).plan(remade_from)
        report.why = plan.why
        self._set_back_marks(plan)
        if self._index is not None and plan.index_kept is not None:
            report.index_files_removed += self._index.drop_from(plan.index_kept)
        self._distrust_segments(plan.start)
        self.last_store_ms = plan.last_store_ms
        scan = self._scan(plan)
        report.log_end = scan.end
        report.gaps = scan.gaps
        self._cut_log(scan)
        self._cut_index(scan.end)
        for queue in self._queues:
            self._cut_queue(queue, scan)
        self._finish()
        report.seconds = self._clock.monotonic() - self._began
        report.write_log()
        return report

    # --- scanning ----------------------------------------------------------------------------

    def _set_back_marks(self, plan: RecoveryPlan) -> None:
        """If more is being made again than the files say is missing, let them say so first."""
        checkpoint = self._checkpoint
        index_goes = self._index is not None and self._index.loses_files(plan.index_kept)
        if index_goes or plan.index_kept == 0:
            checkpoint.index_ms = 0
        if plan.dispatch_from < self._cross_check.reference_start(checkpoint):
            checkpoint.logics_ms = checkpoint.index_ms = 0
        if self._segments.segments:
            checkpoint.flush()
        self._set_back_offsets(plan.dispatch_from, force=index_goes)

    def _set_back_offsets(self, start: int, *, force: bool = False) -> None:
        known = self._known.offsets
        if known is None:
            return
        if force or start < max(known.synced.log_offset, known.live.log_offset):
            derived = DerivedMarks(start, 0)
            self._note(
                msgspec.structs.replace(
                    known,
                    synced=derived,
                    live=derived,
                    indexed=min(known.indexed, start),
                    index_files=(),
                    index_end=-1,
                    rewriting=self._noted is not None and self._noted.rewriting,
                )
            )

    def _before_rewriting(self) -> None:
        """Entries that were synced are about to be taken back. If this is broken off, the files
        seem to end in entries that were synced, and the next try has to sync them all the same."""
        if self._noted is not None and not self._noted.rewriting:
            self._note(msgspec.structs.replace(self._noted, rewriting=True))

    def _note(self, offsets: Offsets) -> None:
        self._offsets_file.save(offsets)
        self._noted = offsets

    def _scan(self, plan: RecoveryPlan) -> LogScanner:
        start, dispatch_from = plan.start, plan.dispatch_from
        while True:
            scan = LogScanner(
                MappedSegments(self._segments),
                plan.floor,
                self._cross_check.boundaries,
                self._check_crc,
                tail=plan.tail,
                take=self._dispatcher.taker(self._check_crc, dispatch_from),
            )
            self.report.read_from = start
            self.report.records_read = 0
            self._filled = []
            try:
                self._dispatch(scan, start, dispatch_from, plan.floor)
            except Lagging as lag:
                log.info("queue lags behind, reading again from=%d", lag.log_offset)
                start = dispatch_from = lag.log_offset
                self._set_back_offsets(start)
                continue
            if dispatch_from > self.report.log_start and self._beginning_is_gone():
                start = dispatch_from = self.report.log_start
                log.warning("the first files of a queue are gone, reading again from=%d", start)
                self._set_back_offsets(start)
                continue
            if self._check_crc:
                # Below `dispatch_from` the records were read, but not compared with their entries.
                self._segments.note_checked_from(dispatch_from)
            return scan

    def _beginning_is_gone(self) -> bool:
        """Whether queues miss first files that nobody deleted; where nothing was noted, whether the
        log may still have messages for such files."""
        known = self._known.offsets
        if known is not None and known.queues_begin >= 0:
            return self._queues.beginnings() > known.queues_begin
        return any(self._cross_check.begins_late(queue) for queue in self._queues)

    def _dispatch(
        self, scan: LogScanner, start: int, dispatch_from: int, expected_end: int
    ) -> None:
        cross_check = self._cross_check
        sequences = Sequences(
            dispatch_from,
            self._segments.min_offset,
            cross_check.is_sound,
            cross_check.is_own,
            complete=self._known.offsets is not None,
            renumbered={} if self._known.offsets is None else dict(self._known.offsets.renumbered),
        )
        next_report = start + _PROGRESS_BYTES
        gaps_seen = 0
        for batch in scan.batches(start):
            self.report.records_read += batch.size
            self.last_store_ms = batch.last_store_ms
            if len(scan.gaps) > gaps_seen:
                sequences.lost += sum([gap.records for gap in scan.gaps[gaps_seen:]])
                gaps_seen = len(scan.gaps)
            if batch.derived is None:
                self._merge(batch.records, dispatch_from, sequences)
            else:
                self._dispatcher.merge_derived(batch.derived, sequences)
            log_offset = scan.end
            if log_offset >= next_report:
                next_report = log_offset + _PROGRESS_BYTES
                # Segments are reserved to their ends; the floor is where records are known to be.
                total = max(expected_end, log_offset) - start
                self._tell("reading the commit log", log_offset - start, total)
        sequences.finish()
        scan.gaps += sequences.strays
        self.report.further_strays = sequences.further_strays
        self.report.entries_written += sequences.written
        self.report.entry_conflicts += sequences.conflicts

    def _merge(self, records: list[Checked], dispatch_from: int, sequences: Sequences) -> None:
        if log_offset_of(records[0]) < dispatch_from:
            records = [record for record in records if log_offset_of(record) >= dispatch_from]
        unusable = self._dispatcher.unusable
        entries = self._dispatcher.entries(records)
        sequences.lost += self._dispatcher.unusable - unusable
        self._note_fillers(entries)
        self._dispatcher.merge(entries, sequences)

    def _note_fillers(self, entries: list[Appended]) -> None:
        for queue, _, start, size, _, _, _, topic in entries:
            if queue is None and topic == FILLER_TOPIC:
                if self._filled and self._filled[-1].end == start:
                    start = self._filled.pop().start
                self._filled.append(Gap(start, start + size, "filled by a repair"))

    # --- cutting ----------------------------------------------------------------------------

    def _cut_log(self, scan: LogScanner) -> None:
        segments = self._segments
        removed = segments.unfinished + segments.drop_from(scan.end)
        for path in segments.unfinished:
            self._files.remove(path)
        for directory in sorted({os.path.dirname(path) for path in removed}):
            self._files.sync_directory(directory)
        last = segments.last
        if last is not None and last.end > scan.end:
            last.wrote = max(0, scan.end - last.start)
            self.report.torn_bytes = last.zero_from(last.wrote)
            if self.report.torn_bytes:
                self.report.torn_reason = scan.end_reason
        self.report.segments_removed = removed

    def _cut_index(self, end: int) -> None:
        """Index files that name records the log no longer has are made again."""
        index = self._index
        if index is None:
            return
        keep = index.count_reliable(end, None)
        if keep == len(index.files):
            return
        start = self._cross_check.index_end(index, keep)
        self._set_back_offsets(start, force=True)
        self.report.index_files_removed += index.drop_from(keep)
        boundaries = self._cross_check.boundaries
        scan = LogScanner(MappedSegments(self._segments), end, boundaries, CHECK_NOTHING)
        for batch, *_ in scan.batches(start):
            self._dispatcher.reindex(self._dispatcher.entries(batch))

    # --- queues -----------------------------------------------------------------------------

    def _cut_queue(self, queue: ConsumeQueue, scan: LogScanner) -> None:
        """Cut the queue where the log ends, blank what is damaged, set its numbers.

        By now all records that the log has for the queue were compared with its entries and
        written. An entry that still names no message keeps only its slot, so that its number is not
        given out again.
        """
        for gap in (*scan.gaps, *self._filled):
            self._blank_gap(queue, gap)
        end = queue.max_offset
        while end > queue.first_offset:
            entry = queue.entry(end - 1)
            if entry is None and queue.is_pre_blank(end - 1):
                break
            if entry is not None and entry.end <= scan.end:
                break
            end -= 1
        if end < queue.max_offset:
            self.report.cut(queue, end)
            self._before_rewriting()
            queue.zero_from(end)
        self._blank_unsound_tail(queue)
        queue.correct_min_offset(self._segments.min_offset)
        queue.recovered()

    def _blank_gap(self, queue: ConsumeQueue, gap: Gap) -> None:
        offset = queue.first_at(gap.start)
        while offset < queue.max_offset:
            entry = queue.entry(offset)
            if entry is not None:
                if entry.log_offset >= gap.end:
                    return
                self._blank(queue, offset)
            offset += 1

    def _blank_unsound_tail(self, queue: ConsumeQueue) -> None:
        """The last entries must name their records; an entry that does not keeps only its slot.

        It is left over from a foreign recovery that cut the log but not the queue, or its record is
        damaged. Either way consumers may have seen its offset, so it is not given out again.
        """
        for offset in range(queue.max_offset - 1, queue.first_offset - 1, -1):
            entry = queue.entry(offset)
            if entry is None or entry.log_offset < self._segments.min_offset:
                return
            if self._cross_check.is_sound(queue, offset, entry):
                return
            self._blank(queue, offset)

    def _blank(self, queue: ConsumeQueue, offset: int) -> None:
        self._before_rewriting()
        queue.blank_out(offset)
        self.report.entries_blanked += 1

    # --- the rest ---------------------------------------------------------------------------

    def _sync_and_drop_cache(self) -> None:
        """Read what the disk has after a crash, or in files that others wrote, and have it synced.

        Our own unsynced bytes are above the flushed mark. Nothing is known about foreign files, and
        marks that say "synced" will rely on them: a cleanly stopped broker has synced them, a
        restored copy is perhaps not synced.
        """
        known = self._known.offsets
        if known is None:
            for segment in self._segments.segments:
                segment.sync_file()
        if known is None or not self._known.clean_stop:
            # Names that a killed process, or a recovery broken off, has written but not synced are
            # found in place, are not written again, and count as synced at the end.
            self._segments.sync_names()
            self._queues.sync_and_drop_caches(
                0 if known is None else known.synced.log_offset, self._is_synced
            )
            if self._index is not None:
                self._index.sync_and_drop_caches(0 if known is None else known.indexed)
        if self._known.clean_stop:
            return
        # In our files all bytes below the flushed mark are on the disk. In files of others the
        # unsynced bytes are in the last segment in use and the one before; a spare segment has
        # none.
        unsynced = self._segments.max_offset - 3 * self._segments.segment_bytes
        self._distrust_segments(unsynced if known is None else known.flushed)

    def _is_synced(self, queue: ConsumeQueue) -> bool:
        """Whether all bytes of a queue's files are known to be synced: neither dispatch nor a
        recovery that was broken off has written anything since the synced mark was moved."""
        known = self._known.offsets
        if known is None or not self._known.nothing_lost or known.rewriting:
            return False
        return self._cross_check.is_below(queue, known.synced.log_offset)

    def _distrust_segments(self, log_offset: int) -> None:
        """Read the segments from `log_offset` on as the disk has them. Oldest first: a power cut in
        here must not leave a later segment synced after a hole."""
        if self._known.clean_stop:
            return
        for segment in self._segments.segments[: self._trusted]:
            if segment.end > log_offset:
                segment.sync_and_drop_cache()
        count = sum([one.end <= log_offset for one in self._segments.segments])
        self._trusted = min(self._trusted, count)

    def _finish(self) -> None:
        """Sync what was changed; then the offsets file and the checkpoint may say so."""
        report = self.report
        report.queues = len(self._queues.queues)
        report.unusable_topics = self._dispatcher.unusable
        self._queues.flush(0)
        if self._index is not None:
            self._index.drop_spares()
            self._index.seal()
        self.offsets = self._offsets_now()
        report.known_gaps = self.offsets.gaps
        self._offsets_file.save_if_room(self.offsets)
        self._checkpoint.physic_ms = self._checkpoint.logics_ms = self.last_store_ms
        self._checkpoint.flush()
        for segment in self._segments.segments:
            segment.forget_pages()

    def _offsets_now(self) -> Offsets:
        end = self.report.log_end
        known = self._known.offsets
        gaps = set(known.gaps if known is not None else ())
        gaps |= {(gap.start, gap.end) for gap in self.report.gaps}
        first = self._segments.min_offset
        kept = sorted(gap for gap in gaps if gap[1] > first)
        derived = DerivedMarks(end, self._queues.entries())
        return Offsets(
            flushed=end,
            last_store_ms=self.last_store_ms,
            synced=derived,
            live=derived,
            indexed=-1 if self._index is None else end,
            index_files=() if self._index is None else self._index.file_names(),
            index_end=-1 if self._index is None else self._index.end_offset,
            gaps=tuple(kept[-MOST_GAPS:]),
            log_begins=first,
            queues_begin=self._queues.beginnings(),
            segment_bytes=self._segments.segment_bytes,
            identity=self._identity,
            clock=ClockNote() if known is None else known.clock,
            renumbered=() if known is None else known.renumbered,
        )

    def _foreign_files(self) -> list[str]:
        found = self._segments.foreign + self._queues.foreign
        return found + (self._index.foreign if self._index is not None else [])

    def _tell(self, what: str, done: int, total: int) -> None:
        elapsed_s = max(1e-6, self._clock.monotonic() - self._began)
        left_s = elapsed_s * (total - done) / max(1, done)
        log.info(
            "recovering step=%r done_mib=%d of_mib=%d mb_per_s=%.0f left_s=%.0f",
            what,
            done >> 20,
            total >> 20,
            done / elapsed_s / 1e6,
            left_s,
        )
        if self._progress is not None:
            self._progress(what, done, total)
