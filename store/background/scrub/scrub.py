"""The scrub: reads a store in the background and finds damage before a consumer does.

A start reads the log from where the last run ended, so damage before that is not known. The scrub
reads it, oldest segment first, and again every `scrub_interval_hours`; a segment that a read has
found damage in comes first. It verifies records (`log/scan/log_scanner.py`) and compares them with
the consume queues (`background/scrub/entry_scrub.py`); a pass ends with the index files
(`background/scrub/index_scrub.py`). A segment in order needs no checks when it is read
(`MappedFile.unchecked_below`). In other segments damaged records are reported and remembered as
gaps, and differences of the queues go to their owner (`queue_repair.py`).

It reads only bytes that are durable and dispatched, by pread on its own descriptors, and holds
nothing while it waits: a segment may be deleted meanwhile, its topic too.

The work comes in steps of well under a millisecond. Between two steps the thread waits as long as
the rates of bytes and of processor time ask for, and at least a little: it never keeps the
interpreter from the event loop for longer than a step. `stats.scrub_steps` tells how long they
were.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence

from aerobee.store.background.scrub.entry_scrub import EntryCheck
from aerobee.store.background.scrub.index_entries import IndexEntryCheck
from aerobee.store.background.scrub.index_scrub import IndexFileCheck
from aerobee.store.background.scrub.queue_repair import Findings, IndexFindings, QueueRepair
from aerobee.store.index.index_file import EntryKey, IndexFile, WrongEntry, WrongLink, WrongSlot
from aerobee.store.index.index_service import IndexService
from aerobee.store.log.scan.log_scanner import LogScanner, OneSegment
from aerobee.store.log.scan.segment_reader import FileReader
from aerobee.store.log.scan.sequence import Gap
from aerobee.store.log.scan.sources import Source, Window, ranges_of
from aerobee.store.log.store_core import StoreCore
from aerobee.store.reading.damage import DamageKind, DamageReports, ScrubRequests, Verdict
from aerobee.store.reading.queue_reader import ReadLimits
from aerobee.store.segments.mapped_file import MappedFile

log = logging.getLogger("aerobee.store.background.scrub")

#: A start has other things to do first.
FIRST_AFTER_S = 3.0
_IDLE_S = 1.0
# Work between two waits, and the least such wait: enough for others to take the interpreter.
_STEP_NS = 300_000
_LEAST_WAIT_S = 0.0002
# A changed rate is seen after this wait at the latest.
_LONGEST_WAIT_S = 1.0
# Bytes of the log that are read at a time, and checked in one step: the smallest records (91 bytes)
# in them take half a millisecond.
_PIECE_BYTES = 64 << 10
_STEP_BYTES = 32 << 10
# Pages of old segments are given back each time this much was read: they were not in memory before.
_FORGET_BYTES = 16 << 20
# Wrong links and slots of an index file that are repaired: a file with more has to be made again.
_MOST_REPAIRED = 4096
# Wrong index entries of a segment that are named singly.
_MOST_NAMED = 100


class Scrub:
    """Checks one store."""

    name = "aerobee-scrub"

    def __init__(
        self,
        core: StoreCore,
        index: IndexService | None,
        damage: DamageReports,
        queue_repair: QueueRepair,
        requests: ScrubRequests,
    ) -> None:
        self._settings = settings = core.settings
        self._files = core.files
        self._clock = core.clock
        self._segments = core.segments
        self._queues = core.queues
        self._levels = core.levels
        self._damage = damage
        self._queue_repair = queue_repair
        self._health = core.health
        self._stats = core.stats
        self._marks = core.marks
        self._memory_bytes = ReadLimits.of(settings).memory_bytes
        self._crc_check = damage.judge.crc_check
        self._index = index
        self.requests = requests
        self._interval_s = settings.scrub_interval_hours * 3600.0
        # Segments of the pass under way.
        self._pass: deque[MappedFile] | None = None
        self._pass_damaged = 0
        # The damage that was reported of segments, by their beginnings.
        self._reported: dict[int, list[tuple[int, int]]] = {}
        # Index files with wrong links and slots, by path, and their wrong entries: all that were
        # counted, and those of the pass under way with their right fields.
        self._wrong_index: dict[str, int] = {}
        self._counted_entries: set[tuple[str, int]] = set()
        self._known_entries: dict[str, dict[int, EntryKey]] = {}
        # The first pass covers what the start found and did not read.
        self._next_pass_at = core.clock.monotonic() + FIRST_AFTER_S
        self._first = True
        self._stopping = threading.Event()
        self._free_at = 0.0
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)

    # --- from other threads -----------------------------------------------------------------

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, in the middle of a segment if need be."""
        self._stopping.set()
        self.requests.woken.set()
        if self._thread.ident is not None:
            self._thread.join()

    # --- passes -----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self.requests.woken.clear()
                segment = None if self._health.broken is not None else self._next()
                if segment is not None:
                    self._scrub(segment)
                    continue
                self.requests.wait(_IDLE_S)
        except Exception:
            # The top of the thread. The store goes on, and checks its reads as before.
            log.exception("scrub ended by a bug")

    def _next(self) -> MappedFile | None:
        """The segment to read now, None if there is nothing to do."""
        if (segment := self.requests.take()) is not None:
            return segment
        if self._pass is None:
            self._pass = self._begin_pass()
        while self._pass:
            segment = self._pass.popleft()
            if self._segments.find(segment.start) is segment:
                return segment
        if self._pass is not None:
            self._end_pass()
        return None

    def _begin_pass(self) -> deque[MappedFile] | None:
        due = self._clock.monotonic() >= self._next_pass_at
        if not due and not self.requests.pass_asked:
            return None
        whole = self.requests.pass_asked or not self._first
        self._first = self.requests.pass_asked = False
        found = [
            segment
            for segment in self._segments.segments
            if (whole or segment.unchecked_below) and segment.start < self._marks.settled
        ]
        self._pass_damaged = 0
        self._stats.scrub_left_bytes = sum([segment.size for segment in found])
        if found:
            log.info("scrub begins segments=%d whole=%s", len(found), whole)
        return deque(found)

    def _end_pass(self) -> None:
        for file in () if self._index is None else self._index.files:
            if not self._scrub_index(file):
                return
        self._known_entries = {}
        self._pass = None
        self._next_pass_at = (
            self._clock.monotonic() + self._interval_s if self._interval_s else float("inf")
        )
        self._queue_repair.take(None)
        self._stats.scrub_passes += 1
        self._stats.scrub_left_bytes = 0
        log.info(
            "scrub ended bytes=%d damaged_segments=%d longest_step_ms=%.3f",
            self._stats.scrub_bytes,
            self._pass_damaged,
            self._stats.scrub_steps.max_ns / 1e6,
        )

    def _scrub_index(self, file: IndexFile) -> bool:
        """Compare an index file's entries with its slots; False when the store is being closed."""
        path = file.path
        try:
            known = self._known_entries.get(path, {})
            check = IndexFileCheck(self._files, path, file.slots, known)
        except OSError as error:
            if not isinstance(error, FileNotFoundError):  # deleted
                log.warning("index file not scrubbed path=%s %s", path, error)
            return True
        read, began = 0, time.thread_time_ns()
        try:
            for _ in check.run():
                spent = time.thread_time_ns() - began
                if spent < _STEP_NS:
                    continue
                fresh, read = check.bytes_read - read, check.bytes_read
                if self._wait(fresh, spent):
                    return False
                began = time.thread_time_ns()
        except OSError as error:
            log.warning("index file not scrubbed path=%s %s", path, error)
            return True
        finally:
            check.close()
        places: list[WrongLink | WrongSlot] = [*check.links, *check.slots]
        repairs = check.wrong <= len(places) <= _MOST_REPAIRED
        if check.wrong and self._wrong_index.get(path) != check.wrong:
            fresh = max(0, check.wrong - self._wrong_index.get(path, 0))
            self._wrong_index[path] = check.wrong
            self._say_index_damage(path, check.wrong, fresh, repairs=repairs)
        if places and repairs:
            self._wrong_index.pop(path, None)
            self._queue_repair.take(IndexFindings(file, places))
        return True

    def _take_wrong_entries(self, wrong: Sequence[WrongEntry]) -> None:
        """Report which entries of index files are wrong, and have them repaired."""
        for file in dict.fromkeys([one.file for one in wrong]):
            of_file = [one for one in wrong if one.file is file]
            known = self._known_entries.setdefault(file.path, {})
            known.update((one.number, one.key[:2]) for one in of_file)
            places = {(file.path, one.number) for one in of_file}
            fresh = len(places - self._counted_entries)
            self._counted_entries |= places
            if fresh:
                self._say_index_damage(file.path, len(places), fresh, repairs=True)
            for one in of_file[:_MOST_NAMED] if fresh else ():
                log.error(
                    "wrong index entry path=%s entry=%d hash=%d log_offset=%d seconds=%d "
                    "expected_hash=%d expected_log_offset=%d",
                    file.path, one.number, *one.found, one.seconds, *one.key[:2],
                )  # fmt: skip
            self._queue_repair.take(IndexFindings(file, of_file))

    def _say_index_damage(self, path: str, places: int, fresh: int, *, repairs: bool) -> None:
        self._stats.damage_found["index"] += fresh
        log.error(
            "damage in an index file path=%s places=%d advice=%s",
            path,
            places,
            "some keys find nothing until the scrub has mended it; look at the disk and the memory"
            if repairs
            else "some keys find nothing; stop, 'aerobee store rebuild --index', start",
        )

    # --- one segment ------------------------------------------------------------------------

    def _scrub(self, segment: MappedFile) -> None:
        limit = min(self._marks.settled - segment.start, segment.size)
        if limit <= 0:
            return
        in_pass = self._pass is not None
        unchecked_below = segment.unchecked_below
        try:
            source = Source(self._files, segment.path, segment.size)
        except FileNotFoundError:
            return  # deleted
        except OSError as error:
            log.warning("segment not scrubbed path=%s %s", segment.path, error)
            return
        entries = EntryCheck(
            self._files, self._queues, self._levels, segment.start, segment.start + limit
        )
        window = Window(source, _PIECE_BYTES)
        reader = FileReader(
            path=segment.path,
            start=segment.start,
            size=segment.size,
            file_bytes=segment.size,
            window=window,
            large=_STEP_BYTES,
        )
        keys = (
            None
            if self._index is None
            else IndexEntryCheck(self._files, self._index, segment.start)
        )
        boundaries = entries.boundaries(reader)
        end = segment.start + limit
        scan = LogScanner(
            OneSegment(reader), end, boundaries, self._crc_check, until=end, step_bytes=_STEP_BYTES
        )
        try:
            done = self._paced(segment, self._work(scan, entries, keys), source)
        finally:
            source.close()
            entries.close()
            if keys is not None:
                keys.close()
        self._stats.scrub_left_bytes = sum([waiting.size for waiting in self._pass or ()])
        if done:
            findings = Findings(
                segment,
                unchecked_below,
                entries.runs,
                entries.orphans,
                _with_reasons(scan.gaps, segment.start, ranges_of(source.unreadable)),
                entries.complete,
                in_pass,
            )
            self._conclude(findings, source)
            if keys is not None and entries.complete:
                # Nothing guards a record's topic and keys. A record that its own queue does not
                # know is damaged itself, and says nothing about the index.
                doubtful = {orphan.entry.log_offset for orphan in entries.orphans}
                self._take_wrong_entries([one for one in keys.wrong if one.key[1] not in doubtful])

    def _work(
        self, scan: LogScanner, entries: EntryCheck, keys: IndexEntryCheck | None
    ) -> Iterator[None]:
        """Do all work for a segment, in steps."""
        for batch in scan.steps(scan.end):
            yield
            if batch is None:
                continue
            entries.feed(batch.records)
            yield
            yield from entries.compare()
            if keys is not None:
                keys.feed(batch.records)
                yield
                yield from keys.compare()
        yield from entries.compare(all_of_them=True)
        yield from entries.look_for_orphans()
        if keys is not None:
            yield from keys.compare(all_of_them=True)

    def _paced(self, segment: MappedFile, work: Iterator[None], source: Source) -> bool:
        """Do the work at the rate; False when the segment is gone, or the store is closed."""
        read = forgotten = 0
        began = time.thread_time_ns()
        for _ in work:
            spent = time.thread_time_ns() - began
            fresh = source.bytes_read - read
            if spent < _STEP_NS and not fresh:
                continue
            read += fresh
            self._stats.scrub_bytes += fresh
            if source.bytes_read - forgotten >= _FORGET_BYTES:
                forgotten = source.bytes_read
                self._forget(segment, source)
            if self._wait(fresh, spent) or self._segments.find(segment.start) is not segment:
                return False
            began = time.thread_time_ns()
        self._forget(segment, source)
        return True

    def _wait(self, fresh: int, spent_ns: int) -> bool:
        """Wait as long as the rates ask for after a step that read `fresh` bytes and took
        `spent_ns` of processor time; return whether the store is being closed."""
        self._stats.scrub_steps.add(spent_ns)
        now = self._clock.monotonic()
        due = self._due_s(fresh, spent_ns)
        self._free_at = max(now, self._free_at) + due
        while not self._stopping.wait(
            min(max(_LEAST_WAIT_S, self._free_at - now), _LONGEST_WAIT_S)
        ):
            now = self._clock.monotonic()
            if self._free_at <= now:
                return False
            # The rates may be changed meanwhile: the rest of the wait is counted by the new rates.
            changed = self._due_s(fresh, spent_ns)
            self._free_at = now + (self._free_at - now) * changed / due
            due = changed
        return True

    def _due_s(self, fresh: int, spent_ns: int) -> float:
        """Seconds that a step may take by the rate of bytes and by that of processor time."""
        settings = self._settings
        return max(
            fresh / settings.scrub_bytes_per_second,
            spent_ns / 1e7 / settings.scrub_processor_percent,
        )

    def _forget(self, segment: MappedFile, source: Source) -> None:
        if segment.end <= self._marks.written - self._memory_bytes:
            source.forget_cached()

    def _conclude(self, findings: Findings, source: Source) -> None:
        segment = findings.segment
        segment.unreadable = tuple(ranges_of(source.unreadable))
        if findings.gaps:
            self._pass_damaged += 1
            self._report(findings)
        if findings.gaps or findings.runs or findings.orphans or not findings.complete:
            self._queue_repair.take(findings)
        elif segment.unchecked_below == findings.unchecked_below:
            segment.unchecked_below = 0

    def _report(self, findings: Findings) -> None:
        gaps = findings.gaps
        places = [(gap.start, gap.end) for gap in gaps]
        if self._reported.get(findings.segment.start) != places:  # it is read again, when asked
            self._reported[findings.segment.start] = places
            log.error(
                "damage in a log segment path=%s places=%d bytes=%d first_log_offset=%d",
                findings.segment.path,
                len(gaps),
                sum([gap.end - gap.start for gap in gaps]),
                gaps[0].start,
            )
        for gap in gaps:
            verdict = Verdict(DamageKind.RECORD, gap.start, gap.end, gap.reason)
            self._damage.note(verdict, self._slot_of(gap, findings))

    def _slot_of(self, gap: Gap, findings: Findings) -> tuple[str, int, int] | None:
        """The queue and queue offset of the message that was there, if an entry still names it."""
        for queue, queue_offset, entry in findings.orphans:
            if gap.start <= entry.log_offset < gap.end:
                return queue.topic, queue.queue_id, queue_offset
        return None


def _with_reasons(
    gaps: Sequence[Gap], start: int, unreadable: Sequence[tuple[int, int]]
) -> list[Gap]:
    """The gaps of the segment that begins at `start`, saying where the disk is the reason."""
    return [
        gap._replace(reason=f"the disk cannot read it ({gap.reason})")
        if any(start + low < gap.end and gap.start < start + high for low, high in unreadable)
        else gap
        for gap in gaps
    ]
