"""Checks whether a store at rest is sound: reads all of it and reports every fault.

    layout    names and lengths, missing and foreign files     sizes    file sizes
    scan      sound records, gaps, the end of the log          sources  reading
    log       one pass over the log, feeding ...
    queues    ... each record in exactly its slot, and back (invariants I3 to I7)
    index     ... each key of each record found (I6)
    state     checkpoint, offsets, abort, lock                 config   the broker's tables

At last a broker's own parts check whether they would start.

It changes nothing, opens nothing for writing, and needs memory for the queues' states, one index
file's slots and a few megabytes of the log, whatever its length. It trusts no derived file, and
none of the code that wrote it: `protocol/message/record_check.py` checks records, and all other
checks are here.

The caller has locked the store (`disk/lock.py`): the writes of a running broker would look like
damage.
"""

import os
from collections.abc import Callable, Collection
from functools import partial

from aerobee.config.model import Settings
from aerobee.store.at_rest.audit.index_audit import IndexAudit
from aerobee.store.at_rest.audit.log_reading import LogAudit
from aerobee.store.at_rest.audit.queue_audit import LostByGap, QueueAudit
from aerobee.store.disk.files import Clock, Files, ReadOnlyFiles
from aerobee.store.errors import StoreError
from aerobee.store.inspect.audit_report import NO_FACTS, Counts, Findings, LogFacts, Report
from aerobee.store.inspect.ext import Extensions
from aerobee.store.inspect.finding_kinds import Level
from aerobee.store.inspect.start_checks import check_log, check_segment_names
from aerobee.store.inspect.state import check_checkpoint, check_lock, check_marks
from aerobee.store.inspect.store_files import StoreFiles
from aerobee.store.inspect.store_layout import check_segments, check_strays
from aerobee.store.recovery.opening import make_parts
from aerobee.store.recovery.recovery_report import Progress


def verify(
    settings: Settings,
    given: Collection[str] = (),
    files: Files | None = None,
    clock: Clock | None = None,
    progress: Progress | None = None,
) -> Report:
    """Check the store below `settings.store_path`, which the caller has locked.

    `given` names the settings that were chosen (attribute names): other sizes are found from the
    files. Raises NotAStore, StoreSizeMismatch, or OSError when something cannot be read for another
    reason than a bad disk.
    """
    files = files or ReadOnlyFiles()
    clock = clock or Clock()
    started = clock.monotonic()
    audit = _Audit(StoreFiles(files, settings, given), progress)
    try:
        audit.run()
    finally:
        audit.store.close()
    audit.say_unreadable()
    audit.say_refusal(clock)
    audit.counts.bytes_read = audit.store.sources.bytes_read()
    return Report(
        settings.store_path,
        audit.store.sizes,
        audit.counts,
        audit.findings,
        audit.facts,
        not audit.store.left_open,
        clock.monotonic() - started,
    )


class _Audit:
    """The parts of an audit, and the order in which they run."""

    def __init__(self, store: StoreFiles, progress: Progress | None) -> None:
        self.store = store
        self._progress = progress or (lambda *_: None)
        self.findings = Findings()
        self.counts = Counts()
        self.facts = NO_FACTS
        self._segments = store.log.files
        self._tables = store.tables(self.findings, self.counts)
        self.scan, self.files_scanned = store.scanner()

    def run(self) -> None:
        """Run all checks."""
        findings, counts, scan = self.findings, self.counts, self.scan
        check_strays(self.store.files, self.store.layout, findings)
        self._check_queue_files()
        log_start = scan.end
        if self._segments:
            self._read(log_start)
        misplaced = {file.path for file, _ in self.files_scanned.misplaced}
        check_segments(self.store.layout, self.store.sizes.segment_bytes, findings, misplaced)
        counts.segments = len(self.store.layout.segments)
        counts.messages = counts.records - counts.half_messages - counts.rollbacks - counts.fillers
        counts.log_start, counts.blanks = log_start, self.files_scanned.blanks
        ends = [file.start + self.store.sizes.segment_bytes for file in self._segments[-1:]]
        counts.log_end = min([scan.end, *ends])
        self._tables.check_topics(self.store.queues)
        self._tables.check_offsets(self.store.queue_end)
        root = self.store.layout.root
        if self.store.left_open:
            abort = os.path.join(root, "abort")
            findings.add("left-open", abort, None, "the last run did not end in order")
        check_lock(self.store.files, root, findings)
        check_marks(self.store.marks, root, log_start, scan.end, findings)
        # The newest message may be among the lost messages.
        newest_ms = 0 if scan.gaps or self.files_scanned.tail else counts.last_store_ms
        check_checkpoint(self.store.files, root, newest_ms, findings)

    def _read(self, log_start: int) -> None:
        """Read the log with the index beside it, then the queues; then judge the log by both."""
        findings, counts, scan = self.findings, self.counts, self.scan
        store = self.store
        queues = QueueAudit(store, findings, counts, self._tables.topics(), self._extensions())
        index = IndexAudit(store, findings, counts, scan.gaps)
        log = LogAudit(store, scan, self.files_scanned, findings, counts)
        limit = max((file.start + file.size for file in self._segments), default=log_start)
        index.start(log_start, limit)
        log.run(queues, index, self._progress_in_log(log_start))
        self._lose_ends(queues)
        log.note_times()
        index.finish(scan.end)
        lost = LostByGap(scan.gaps)
        queues.finish(
            log_start, scan.end, lost, partial(self._progress, "reading the consume queues")
        )
        log.judge(lost)
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
        """Add to the gaps the part of the log that is known to have followed its readable end.

        Records that queues name were there; only after a power cut queues may be ahead of the log.
        No crash makes a file shorter, or gives it another's name.
        """
        scan, marks, size = self.scan, self.store.marks, self.store.sizes.segment_bytes
        was_changed = bool(self.files_scanned.misplaced) or any(
            file.size < size for file in self._segments
        )
        if not self.store.left_open or marks.nothing_lost or was_changed:
            self._lose_up_to(queues.named_end(scan.end))
        self._lose_up_to(marks.flushed)

    def _lose_up_to(self, known: int) -> None:
        """Add gaps up to `known`, which the log is known to have reached, after its last file too.

        Losses within the files and losses with missing files are two gaps.
        """
        end = self._segments[-1].start + self.store.sizes.segment_bytes
        self.scan.lose_up_to(min(known, end))
        self.scan.lose_up_to(known)

    def _check_queue_files(self) -> None:
        for found in self.store.layout.queues:
            self.store.queues[found.topic, found.queue_id].check_files(self.findings, found)
        if not self.store.layout.segments and self.store.name_anything():
            self.findings.add(
                "log-missing",
                self.store.layout.log_directories[0],
                None,
                "holds no segment, but consume queues name messages",
            )

    def _extensions(self) -> Extensions | None:
        """The extension files; None in a store that has no such files and needs none."""
        store = self.store
        if not store.layout.has_extensions and not store.settings.consume_queue_ext_enabled:
            return None
        store.extensions.check_files(self.findings)
        return store.extensions

    def say_unreadable(self) -> None:
        """Report the bytes that the disk refused; they are known when all files are closed."""
        for path, start, end in self.store.sources.unreadable():
            self.findings.add("unreadable", path, start, f"the disk refuses bytes {start} to {end}")

    def say_refusal(self, clock: Clock) -> None:
        """Report what a start would refuse, if no finding explains it.

        An audit checks more than a start does, but in another way: a store counts as sound only if
        a start's own checks pass as well.
        """
        if self.findings.count(Level.DAMAGE):
            return
        refusal = _start_refusal(self.store, clock)
        if refusal is not None:
            self.findings.add("start-refused", self.store.root, None, refusal)

    def _progress_in_log(self, start: int) -> Callable[[int], None]:
        end = start
        if self._segments:
            last = self._segments[-1]
            end = last.start + self.store.sources.get(last.path).last_nonzero(0, last.size)
        return lambda log_offset: self._progress("reading the log", log_offset - start, end - start)


def _start_refusal(store: StoreFiles, clock: Clock) -> str | None:
    """The reason why a broker's parts would refuse to start, None without one. Changes nothing.

    It does not check whether this user may write: the user of an audit is often not the broker's.
    """
    parts = make_parts(store.settings, store.files, clock)
    try:
        parts.load()
        if parts.files.exists(os.path.join(parts.root, "lock")):
            parts.make_recovery(store.settings).check()
        else:
            check_log(parts.segments, parts.queues, None, clean_stop=not store.left_open)
            check_segment_names(parts.files, parts.segments)
    except StoreError as error:
        return str(error)
    except OSError as error:
        return f"{error.filename or parts.root}: {error.strerror or error}"
    finally:
        parts.close(clean=False)
    return None
