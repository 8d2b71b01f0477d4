"""Is a store sound? Reads everything a store at rest holds and says all that is wrong with it.

    layout    names and lengths, missing and foreign files     sizes    file sizes
    scan      sound records, gaps, the end of the log          sources  reading
    log       one pass over the log, feeding ...
    queues    ... each record in exactly its slot, and back (invariants I3 to I7)
    index     ... each key of each record found (I6)
    state     checkpoint, offsets, abort, lock                 config   the broker's tables
    start     whether a start would be refused

It changes nothing, opens nothing for writing, and needs memory for the queues' states, one index
file's slots and a few megabytes of the log, however long that is. It trusts no derived file, and
none of the code that wrote them: records are checked by `protocol/message/record_check.py`,
and everything else here.

The caller has locked the store (`disk/lock.py`): what a running broker does meanwhile would look
like damage.
"""

import os
from collections.abc import Callable, Collection

from aerobee.config.model import Settings
from aerobee.protocol.names import is_light
from aerobee.store.audit.index import IndexAudit
from aerobee.store.audit.log import LogAudit
from aerobee.store.audit.queue_pass import LostByGap
from aerobee.store.audit.queues import QueueAudit
from aerobee.store.audit.start import start_refusal, with_sizes
from aerobee.store.disk.files import Clock, Files, ReadOnlyFiles
from aerobee.store.inspect.config import Tables
from aerobee.store.inspect.ext import Extensions
from aerobee.store.inspect.kinds import Level
from aerobee.store.inspect.layout import Layout, check_segments, check_strays, survey
from aerobee.store.inspect.log_files import LogFiles
from aerobee.store.inspect.queue_files import QueueSet
from aerobee.store.inspect.report import NO_FACTS, Counts, Findings, LogFacts, Report, Sizes
from aerobee.store.inspect.sizes import find_sizes
from aerobee.store.inspect.state import (
    check_abort,
    check_checkpoint,
    check_lock,
    check_marks,
    read_marks,
    was_left_open,
)
from aerobee.store.log.encoding import crc_checks
from aerobee.store.queues.delay_levels import DelayLevels
from aerobee.store.recovery.report import Progress
from aerobee.store.scan.sources import Sources


def verify(
    settings: Settings,
    given: Collection[str] = (),
    files: Files | None = None,
    clock: Clock | None = None,
    progress: Progress | None = None,
) -> Report:
    """Check the store below `settings.store_path`, which the caller has locked.

    `given` names the settings that were chosen (attribute names): sizes that were not are found
    from the files. Raises NotAStore, StoreSizeMismatch, or OSError when something cannot be read
    for another reason than a bad disk.
    """
    files = files or ReadOnlyFiles()
    clock = clock or Clock()
    started = clock.monotonic()
    layout = survey(files, settings)
    sizes = find_sizes(files, layout, settings, given)
    audit = _Audit(files, settings, given, layout, sizes, progress)
    try:
        audit.run()
    finally:
        audit.sources.close()
    audit.say_unreadable()
    audit.say_refusal(clock)
    audit.counts.bytes_read = audit.sources.bytes_read()
    return Report(
        settings.store_path,
        sizes,
        audit.counts,
        audit.findings,
        audit.facts,
        audit.clean_stop,
        clock.monotonic() - started,
    )


class _Audit:
    """The parts of one audit, and the order they run in."""

    def __init__(
        self,
        files: Files,
        settings: Settings,
        given: Collection[str],
        layout: Layout,
        sizes: Sizes,
        progress: Progress | None,
    ) -> None:
        self._files = files
        self._settings = settings
        self._given = given
        self._layout = layout
        self._sizes = sizes
        self._progress = progress
        self.findings = Findings()
        self.counts = Counts()
        self.facts = NO_FACTS
        self.sources = Sources(files)
        self.clean_stop = not was_left_open(files, layout.root)
        self._log = LogFiles(self.sources, layout.segments, sizes.segment_bytes)
        self._segments = self._log.files
        self._queues = QueueSet(self.sources, layout.queues, sizes.queue_bytes, self._log)
        self._marks = read_marks(files, layout.root)
        self._tables = Tables(files, layout, self.findings, self.counts)
        self.scan, self.files_scanned = self._log.scanner(
            self._queues.boundaries,
            max(self._queues.named_end(), self._log.last_sound_start(), self._marks.flushed),
            crc_checks(verify_property_crc=settings.verify_property_crc),
            torn_above=not self.clean_stop and not self._marks.nothing_lost,
        )

    def run(self) -> None:
        """All checks."""
        findings, counts, scan = self.findings, self.counts, self.scan
        check_strays(self._files, self._layout, findings)
        self._check_queue_files()
        log_start = scan.end
        if self._segments:
            self._read(log_start)
        misplaced = {file.path for file, _ in self.files_scanned.misplaced}
        check_segments(self._layout, self._sizes.segment_bytes, findings, misplaced)
        counts.segments = len(self._layout.segments)
        counts.messages = counts.records - counts.half_messages - counts.rollbacks - counts.fillers
        counts.log_start, counts.blanks = log_start, self.files_scanned.blanks
        ends = [file.start + self._sizes.segment_bytes for file in self._segments[-1:]]
        counts.log_end = min([scan.end, *ends])
        self._tables.check_offsets(self._max_offset)
        root = self._layout.root
        check_abort(self._files, root, findings)
        check_lock(self._files, root, findings)
        check_marks(self._marks, root, log_start, scan.end, findings)
        # The newest message may be among those that are lost.
        newest_ms = 0 if scan.gaps or self.files_scanned.tail else counts.last_store_ms
        check_checkpoint(self._files, root, newest_ms, findings)

    def _read(self, log_start: int) -> None:
        """The log with the index beside it, then the queues, then what both say of the log."""
        findings, counts, scan = self.findings, self.counts, self.scan
        root = self._layout.root
        queues = QueueAudit(
            os.path.join(root, "consumequeue"),
            self._queues,
            self._log,
            findings,
            counts,
            self._tables.topics(),
            extensions=self._extensions(),
            strict_delays="message_delay_levels" in self._given,
            clean_stop=self.clean_stop,
        )
        index = IndexAudit(
            self.sources,
            os.path.join(root, "index"),
            self._layout.index_files,
            self._sizes,
            findings,
            counts,
            scan.gaps,
            enabled=self._settings.index_enabled,
            clean_stop=self.clean_stop,
        )
        levels = DelayLevels(self._settings.message_delay_levels)
        log = LogAudit(
            self._layout.log_directories[0],
            scan,
            self.files_scanned,
            self._segments,
            self._sizes.segment_bytes,
            levels,
            findings,
            counts,
            self._further_queue,
        )
        limit = max((file.start + file.size for file in self._segments), default=log_start)
        index.start(log_start, limit)
        log.run(queues.feed, index.feed, index.filler, self._progress_in_log(log_start))
        self._lose_ends(queues)
        log.note_times()
        index.finish(scan.end)
        lost = LostByGap(scan.gaps)
        queues.finish(log_start, scan.end, lost, self._progress_in_queues)
        log.judge(lost, self._marks, clean_stop=self.clean_stop)
        self.facts = LogFacts(
            scan.gaps,
            lost.named,
            log.times,
            [(file.path, position, high) for file, position, high in self.files_scanned.tail],
            [(file.path, file.start, own) for file, own in self.files_scanned.misplaced],
            [(file.path, file.start) for file in self.files_scanned.spare],
            queues.strays,
            scan.end,
        )

    def _lose_ends(self, queues: QueueAudit) -> None:
        """What is known to have been behind the end of what can be read.

        What queues name was there; only after a power cut they may be ahead of the log. No crash
        makes a file shorter, or gives it another's name.
        """
        scan, marks, size = self.scan, self._marks, self._sizes.segment_bytes
        was_changed = bool(self.files_scanned.misplaced) or any(
            file.size < size for file in self._segments
        )
        if self.clean_stop or marks.nothing_lost or was_changed:
            self._lose_up_to(queues.named_end(scan.end))
        self._lose_up_to(marks.flushed)

    def _lose_up_to(self, known: int) -> None:
        """The log is known to have gone on to `known`, behind its last file too.

        What is lost of the files and what is lost with missing ones are two gaps.
        """
        end = self._segments[-1].start + self._sizes.segment_bytes
        self.scan.lose_up_to(min(known, end))
        self.scan.lose_up_to(known)

    def _check_queue_files(self) -> None:
        for found in self._layout.queues:
            self._queues.queues[found.topic, found.queue_id].check_files(self.findings, found)
        if not self._layout.has_log and self._queues.name_anything():
            self.findings.add(
                "log-missing",
                self._layout.log_directories[0],
                None,
                "holds no segment, but consume queues name messages",
            )

    def _extensions(self) -> Extensions | None:
        """The extension files; None in a store that has none and is to have none."""
        if not self._layout.has_extensions and not self._settings.consume_queue_ext_enabled:
            return None
        extensions = Extensions(self.sources, self._layout, self._sizes.extension_bytes)
        extensions.check_files(self.findings)
        return extensions

    def _further_queue(self, name: str, queue_id: int) -> tuple[str, int] | None:
        """The queue that a message of `queue_id` was multi-dispatched to under that name.

        None if there is no such queue, and the settings do not say that there should be one.
        """
        settings = self._settings
        keys = [(name, 0), (name, queue_id)] if is_light(name) else [(name, queue_id)]
        if not settings.lmq_enabled:
            keys.reverse()
        known = [key for key in keys if key in self._queues.queues]
        return known[0] if known else keys[0] if settings.multi_dispatch else None

    def _max_offset(self, key: tuple[str, int]) -> int | None:
        queue = self._queues.queues.get(key)
        return None if queue is None else queue.max_offset

    def say_unreadable(self) -> None:
        """What the disk refused; known when all files are closed."""
        for path, start, end in self.sources.unreadable():
            self.findings.add("unreadable", path, start, f"the disk refuses bytes {start} to {end}")

    def say_refusal(self, clock: Clock) -> None:
        """What a start would stumble over, if nothing that was found explains it."""
        if self.findings.count(Level.DAMAGE):
            return
        settings = with_sizes(self._settings, self._sizes)
        refusal = start_refusal(settings, self._files, clock)
        if refusal is not None:
            self.findings.add("start-refused", self._layout.root, None, refusal)

    def _progress_in_log(self, start: int) -> Callable[[int], None]:
        end = start
        if self._segments:
            last = self._segments[-1]
            end = last.start + self.sources.get(last.path).last_nonzero(0, last.size)
        return lambda log_offset: self._tell("reading the log", log_offset - start, end - start)

    def _progress_in_queues(self, done: int, total: int) -> None:
        self._tell("reading the consume queues", done, total)

    def _tell(self, what: str, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(what, done, total)
