"""Makes consume queues and index again from the commit log, without trust in the old ones.

They are built aside, below `<root>/rebuild`, by a broker's own parts, with another directory for
the derived files; so they come out as a broker would have written them. The old queues are used for
two things only: to find the next sound record after a damaged one, and to keep the numbering: a
queue never ends lower than before, the slots of lost messages become pre-blank.

To put them in place, the old directories go to lost+found, then the new directories take their
names. A file `complete` in `rebuild` says that its content is whole. A crash before that leaves the
store as it was; a crash later leaves directories missing, and the same command, run again, finishes
the move. (A broker started in between rebuilds what is missing; only the numbers of messages lost
at the end of a queue may then be given out again.)

Messages of topics that were deleted are still in the log; no queues are made for them.
"""

import logging
import os
from dataclasses import dataclass, field

from aerobee.protocol.message.record_check import Checked
from aerobee.protocol.names import SCHEDULE_TOPIC, SYSTEM_TOPICS, is_light
from aerobee.store.at_rest.repair.at_rest import StoreAtRest
from aerobee.store.disk.offsets_file import MOST_GAPS, DerivedMarks, Offsets, OffsetsFile
from aerobee.store.errors import MessageIllegal, StoreLayoutError
from aerobee.store.inspect.store_layout import REBUILD
from aerobee.store.log.commit_log import Appended
from aerobee.store.log.compiled import Derived
from aerobee.store.log.encoding import crc_checks
from aerobee.store.log.scan.log_scanner import LogScanner, MappedSegments, Tail
from aerobee.store.log.scan.sequence import Gap, Sequences
from aerobee.store.queues.consume_queue import ConsumeQueue
from aerobee.store.queues.queue_view import ENTRY, ENTRY_BYTES, PRE_BLANK
from aerobee.store.recovery.cross_check import CrossCheck
from aerobee.store.recovery.opening import LOG_SIZE_KEYS, StoreParts, make_parts
from aerobee.store.recovery.recovery_report import Progress

log = logging.getLogger("aerobee.store")

_COMPLETE = "complete"
_QUEUES, _EXTENSIONS, _INDEX = "consumequeue", "consumequeue_ext", "index"
_I32_MAX = 0x7FFFFFFF


@dataclass
class RebuildReport:
    """Counts of the new entries, and the directory of the old files."""

    records: int = 0
    queues: int = 0
    units: int = 0
    index_files: int = 0
    keys: int = 0
    # Slots without a message: for lost records, and to keep the numbering.
    blanked: int = 0
    # Messages of deleted topics, which get no queue.
    deleted: int = 0
    gaps: list[Gap] = field(default_factory=list)
    aside: str | None = None
    seconds: float = 0.0


def rebuild(
    rest: StoreAtRest,
    *,
    queues: bool = True,
    index: bool = True,
    progress: Progress | None = None,
    recover: bool = True,
) -> RebuildReport:
    """Make queues and index, or one of them, again; `rest` comes locked, and is recovered and
    closed here; without `recover` it stays locked.

    Raises StoreLayoutError or StoreSizeMismatch when the log is not whole (repair comes first), or
    when settings that the store was written with are missing; nothing was changed then.
    """
    started = rest.clock.monotonic()
    report = RebuildReport()
    # Old queues and new extension files, or the other way round, would hide messages.
    parts = ((_QUEUES, queues), (_EXTENSIONS, queues), (_INDEX, index))
    names = [name for name, wanted in parts if wanted]
    if not _left_complete(rest, names):
        _build(rest, names, report, progress)
    _put_in_place(rest, names)
    report.aside = rest.aside
    if recover:
        rest.recover(progress)
    report.seconds = rest.clock.monotonic() - started
    return report


def _left_complete(rest: StoreAtRest, names: list[str]) -> bool:
    """Whether an earlier run was broken off while it put the new directories in place."""
    files, built = rest.files, os.path.join(rest.root, REBUILD)
    there = [name for name in names if files.exists(os.path.join(built, name))]
    return (
        bool(there)
        and files.exists(os.path.join(built, _COMPLETE))
        and not any(files.exists(os.path.join(rest.root, name)) for name in there)
    )


def _build(
    rest: StoreAtRest, names: list[str], report: RebuildReport, progress: Progress | None
) -> None:
    files, built = rest.files, os.path.join(rest.root, REBUILD)
    files.remove_tree(built)
    rest.make_directory(built)
    settings = rest.settings.with_changes(
        store_path=built,
        commit_log_path=",".join(rest.settings.commit_log_directories),
        index_enabled=_INDEX in names,
    )
    parts = make_parts(settings, files, rest.clock, rest.compiled)
    offsets: Offsets | None = None
    if _QUEUES in names:
        rest.make_directory(parts.queues.directory)
    try:
        parts.segments.load(LOG_SIZE_KEYS)
        build = Build(rest, parts, report, queues=_QUEUES in names)
        build.run(progress)
        build.check()
        build.sync()
        offsets = build.offsets()
    finally:
        rest.store.close()
        parts.close(clean=False)
        if offsets is None:
            files.remove_tree(built)
    for name in names:
        if name != _EXTENSIONS:
            rest.make_directory(os.path.join(built, name))
    OffsetsFile(files, built).save(offsets)
    rest.distrust()
    files.close(files.open(os.path.join(built, _COMPLETE), create=True))
    files.sync_directory(built)


def _put_in_place(rest: StoreAtRest, names: list[str]) -> None:
    files, built = rest.files, os.path.join(rest.root, REBUILD)
    there = [name for name in names if files.exists(os.path.join(built, name))]
    # The queues are moved last: as long as they are there, all can be made again with their
    # numbers.
    for name in reversed(names):
        is_replaced = name in there or (name == _EXTENSIONS and _QUEUES in there)
        if is_replaced and files.exists(os.path.join(rest.root, name)):
            rest.take_out(os.path.join(rest.root, name))
    for name in there:
        files.rename(os.path.join(built, name), os.path.join(rest.root, name))
        files.sync_directory(rest.root)
        files.sync_directory(built)
    offsets = OffsetsFile(files, built).load()
    if offsets is not None:
        OffsetsFile(files, rest.root).save(offsets)
    files.remove_tree(built)
    files.sync_directory(rest.root)


class Build:
    """A scan of the log into the new, empty `parts`."""

    def __init__(
        self, rest: StoreAtRest, parts: StoreParts, report: RebuildReport, *, queues: bool
    ) -> None:
        self._rest = rest
        self._parts = parts
        self._report = report
        self._with_queues = queues
        self._old = rest.store
        self._topics = rest.store.tables().topics()
        self._last_store_ms = 0
        self._scan: LogScanner

    def run(self, progress: Progress | None) -> None:
        """Read the log and write queues and index."""
        parts, rest = self._parts, self._rest
        segments = parts.segments
        self._check_log()
        if rest.store.left_open:
            for segment in segments.segments:
                segment.sync_and_drop_cache()
        cross_check = CrossCheck(segments, parts.queues)
        floor = self._old.known_end
        lasting = rest.store.marks.nothing_lost or not rest.store.left_open
        start = segments.min_offset
        check_crc = crc_checks(verify_property_crc=rest.settings.verify_property_crc)
        self._scan = LogScanner(
            MappedSegments(segments),
            min(floor, segments.max_offset),
            self._old.boundaries,
            check_crc,
            tail=Tail.FOLLOWED if lasting else Tail.TORN,
            take=parts.dispatcher.taker(check_crc, start),
        )
        known = rest.store.marks.believed
        sequences = Sequences(
            start,
            start,
            cross_check.is_sound,
            cross_check.is_own,
            renumbered={} if known is None else dict(known.renumbered),
        )
        gaps_seen = 0
        for batch in self._scan.batches(start):
            self._report.records += batch.size
            self._last_store_ms = batch.last_store_ms
            sequences.lost += sum([gap.records for gap in self._scan.gaps[gaps_seen:]])
            gaps_seen = len(self._scan.gaps)
            if batch.derived is None:
                self._merge(batch.records, sequences)
            else:
                parts.dispatcher.merge_derived(self._wanted(batch.derived), sequences)
            if progress is not None:
                progress("reading the log", self._scan.end - start, floor - start)
        sequences.finish()
        self._report.gaps = self._scan.gaps + sequences.strays
        if self._with_queues:
            self._keep_numbers()

    def _check_log(self) -> None:
        """Refuse a log that is missing, or shorter than it was."""
        segments = self._parts.segments
        end = segments.segments[-1].end if segments.segments else 0
        if end < self._rest.store.marks.flushed or (not end and self._old.name_anything()):
            raise StoreLayoutError(
                f"the commit log ends at {end}, but it held messages beyond that: segments are "
                "missing at its end. Restore them, or run 'aerobee store repair' to see what is "
                "left. Nothing was changed."
            )

    def _merge(self, records: list[Checked], sequences: Sequences) -> None:
        dispatcher = self._parts.dispatcher
        unusable = dispatcher.unusable
        entries = dispatcher.entries(records)
        sequences.lost += dispatcher.unusable - unusable
        dispatcher.merge([self._taken(entry) for entry in entries], sequences)

    def _taken(self, entry: Appended) -> Appended:
        """The entry, without its queue if that is not to be made."""
        queue = entry[0]
        if queue is None or self._is_wanted(queue, 1):
            return entry
        return (None, *entry[1:])

    def _wanted(self, derived: Derived) -> Derived:
        """The values that follow from many records, without the queues that are not to be made."""
        claims = [
            (queue, runs)
            for queue, runs in derived.claims
            if self._is_wanted(queue, sum([len(data) for _, data in runs]) // ENTRY_BYTES)
        ]
        return derived._replace(claims=claims)

    def _is_wanted(self, queue: ConsumeQueue, messages: int) -> bool:
        """Whether a queue is to be made; if not, its `messages` are counted."""
        if self._with_queues and not self._is_deleted(queue):
            return True
        self._report.deleted += messages * self._with_queues
        return False

    def _is_deleted(self, queue: ConsumeQueue) -> bool:
        if self._topics is None or queue.topic in self._topics or is_light(queue.topic):
            return False
        known = (queue.topic, queue.queue_id) in self._old.queues
        return not known and queue.topic not in SYSTEM_TOPICS

    def _keep_numbers(self) -> None:
        """Let no queue end lower than it did; entries that a power cut may take back do not
        count."""
        end = self._scan.end
        lasting = self._rest.store.marks.nothing_lost or not self._rest.store.left_open
        for key, old in self._old.queues.items():
            top = old.max_offset if lasting else old.first_at(end)
            if not top:
                continue
            try:
                queue = self._parts.queues.obtain(*key)
            except MessageIllegal:
                continue  # a directory that no message can have led to
            if not queue.segments:
                # All its messages are gone: only its numbers are left.
                first = min(old.first_at(self._parts.segments.min_offset), top - 1)
                queue.write_entries(first, PRE_BLANK)
                self._report.blanked += 1
            while queue.max_offset < top:
                count = min(top - queue.max_offset, 4096)
                queue.write_entries(queue.max_offset, PRE_BLANK * count)
                self._report.blanked += count

    def check(self) -> None:
        """Refuse a result that lacks entries of the store, because settings it was made with are
        missing."""
        if not self._with_queues:
            return
        start = self._parts.segments.min_offset
        for (topic, queue_id), old in self._old.queues.items():
            queue = self._parts.queues.get(topic, queue_id)
            made = queue is not None and queue.first_named(0, queue.max_offset) is not None
            first = old.first_named(old.first_at(start), old.max_offset)
            if made or first is None:
                continue
            if self._old.log.problem(old, *first) is None:
                raise StoreLayoutError(
                    f"the queue {old.name} would be gone: its messages are listed in other "
                    "queues' messages (enableMultiDispatch). Give the broker's configuration "
                    "with --config."
                )
        for queue in self._parts.queues:
            if queue.topic == SCHEDULE_TOPIC:
                self._check_delays(queue)

    def _check_delays(self, queue: ConsumeQueue) -> None:
        old = self._old.queues.get((queue.topic, queue.queue_id))
        if old is None or "message_delay_levels" in self._rest.given:
            return
        for first, data in old.chunks():
            for offset, (log_offset, size, due_ms) in enumerate(ENTRY.iter_unpack(data), first):
                entry = queue.entry(offset)
                if entry is None or not entry.is_of_record(log_offset, size):
                    continue
                if entry.tags_code != due_ms > _I32_MAX:
                    raise StoreLayoutError(
                        f"message {offset} of {old.name} is due at {due_ms}, but at "
                        f"{entry.tags_code} by the delay levels that this command knows. Give "
                        "the broker's configuration with --config."
                    )

    def sync(self) -> None:
        """Sync all of it, and the log that it was made from."""
        parts, report = self._parts, self._report
        for segment in parts.segments.segments:
            segment.sync_file()
        parts.queues.flush(0)
        report.queues = len([queue for queue in parts.queues if queue.segments])
        report.units = sum(queue.max_offset - queue.first_offset for queue in parts.queues)
        if parts.index is not None:
            parts.index.seal()
            report.index_files = len(parts.index.files)
            report.keys = sum(file.count - 1 for file in parts.index.files)

    def offsets(self) -> Offsets:
        """The content of the offsets file once all is in place."""
        rest, parts, end = self._rest, self._parts, self._scan.end
        known = rest.store.marks.believed
        derived = DerivedMarks(0, 0)
        if self._with_queues:
            derived = DerivedMarks(end, parts.queues.entries())
        elif not rest.store.left_open:
            derived = DerivedMarks(
                end, sum(queue.max_offset for queue in self._old.queues.values())
            )
        elif known is not None:
            derived = known.synced
        indexed = -1
        names: tuple[str, ...] = ()
        if parts.index is not None:
            indexed, names = end, parts.index.file_names()
        elif known is not None:
            indexed, names = known.indexed, known.index_files
        gaps = {(gap.start, gap.end) for gap in self._report.gaps}
        gaps |= set(known.gaps if known is not None else ())
        kept = sorted(gap for gap in gaps if gap[1] > parts.segments.min_offset)
        return Offsets(
            flushed=end,
            last_store_ms=self._last_store_ms,
            synced=derived,
            live=derived,
            indexed=indexed,
            index_files=names,
            gaps=tuple(kept[-MOST_GAPS:]),
            identity=OffsetsFile(rest.files, rest.root).identity(),
            renumbered=() if known is None else known.renumbered,
        )
