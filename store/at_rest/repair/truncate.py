"""Cuts the end of a store off: the log at a record's beginning, queues and index with it.

It brings a store back to some moment: before a producer went mad, before a test wrote into the
wrong broker. The bytes cut are kept in lost+found unless they are to be discarded, and zeroed in
place, so that nothing comes back to life when the log has grown past them.

The order is recovery's: groups' offsets first (read twice is better than skipped), then the mark up
to which the log is known to reach, then the log from its end, then the queues; the index is cut by
the recovery at the end. A crash anywhere leaves a store that starts.
"""

import os
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from aerobee.protocol.message.record_check import end_of, log_offset_of, store_ms_of
from aerobee.protocol.message.record_layout import SYS_TRANSACTION_PREPARED
from aerobee.store.at_rest.repair.at_rest import StoreAtRest
from aerobee.store.disk.offsets_file import DerivedMarks, Offsets, OffsetsFile
from aerobee.store.errors import NoSuchPlace
from aerobee.store.inspect.store_files import StoreFiles
from aerobee.store.recovery.opening import make_parts
from aerobee.store.recovery.recovery_report import Progress

# Segments are passed over by their first record's time, with this much care: a clock may have been
# set back.
_TIME_SLACK_MS = 600_000

#: Writes a table of the broker anew: path, content.
SaveTable = Callable[[str, Mapping[str, Any]], None]


@dataclass
class Cut:
    """Everything that a truncation would take away, from `log_offset` on."""

    log_offset: int
    log_end: int = 0
    last_kept_ms: int = 0
    first_ms: int = 0
    last_ms: int = 0
    records: int = 0
    # Messages by topic; half messages and rollbacks are in `records` only.
    topics: Counter[str] = field(default_factory=Counter)
    # Where each queue would end: (topic, queue id) -> next number, of those that lose something.
    queue_ends: dict[tuple[str, int], int] = field(default_factory=dict)
    segments: list[str] = field(default_factory=list)
    # The number of committed offsets above that, which would be set back.
    offsets: int = 0

    @property
    def bytes(self) -> int:
        """The bytes of the log that are cut."""
        return self.log_end - self.log_offset


def plan_cut(
    rest: StoreAtRest,
    *,
    at: int | None = None,
    after_ms: int | None = None,
    progress: Progress | None = None,
) -> Cut:
    """Plan a cut at log offset `at`, or after the last record stored up to `after_ms`.

    Changes nothing. Raises NoSuchPlace when no record begins at `at`, StoreLayoutError or
    StoreSizeMismatch when the store is not whole.
    """
    assert (at is None) != (after_ms is None)
    rest.check_loadable()
    with closing(rest.store):
        return _Planner(rest.store, progress).plan(at, after_ms)


class _Planner:
    """Looks for the place, then counts what follows it."""

    def __init__(self, files: StoreFiles, progress: Progress | None) -> None:
        self._progress = progress
        self._segments = files.layout.segments
        self._segment_bytes = files.sizes.segment_bytes
        self._files = files
        self._start = self._segments[0].start if self._segments else 0

    def plan(self, at: int | None, after_ms: int | None) -> Cut:
        """The cut, with what would go."""
        if at is not None:
            cut = self._at(at)
        else:
            assert after_ms is not None
            cut = self._after(after_ms)
        self._count(cut)
        return cut

    def _at(self, at: int) -> Cut:
        """The cut at a log offset, which must be where a record begins or ends."""
        if at < self._start:
            raise NoSuchPlace(f"the log begins at {self._start}; there is nothing at {at}")
        # At a segment's beginning the last record that stays is in the segment before.
        known = min(at, max(self._files.known_end, self._start + 1))
        begin = max(self._start, (known - 1) // self._segment_bytes * self._segment_bytes)
        scan = self._files.scanner()[0]
        below, end, last_ms = begin, begin, 0
        above = None
        for record in scan.records(begin):
            if log_offset_of(record) >= at:
                above = log_offset_of(record)
                break
            below, end, last_ms = log_offset_of(record), end_of(record), store_ms_of(record)
        if above is None and at > scan.end:
            raise NoSuchPlace(f"the log ends at {scan.end}; there is nothing at {at}")
        above = scan.end if above is None else above
        if at not in (end, above):
            nearest = below if at < end else end
            raise NoSuchPlace(
                f"no record begins at {at}; the nearest places are {nearest} and {above}"
            )
        return Cut(at, last_kept_ms=last_ms)

    def _after(self, after_ms: int) -> Cut:
        """The cut before the first record that was stored later."""
        begin = self._start
        for file in self._segments:
            first_ms = self._files.log.first_store_ms(file)
            if 0 < first_ms <= after_ms - _TIME_SLACK_MS:
                begin = file.start
        scan = self._files.scanner()[0]
        last_ms = 0
        for record in scan.records(begin):
            if store_ms_of(record) > after_ms:
                return Cut(log_offset_of(record), last_kept_ms=last_ms)
            last_ms = store_ms_of(record)
        return Cut(scan.end, last_kept_ms=last_ms)

    def _count(self, cut: Cut) -> None:
        scan = self._files.scanner()[0]
        # The queue offset of each queue's first message that is cut, by its record.
        numbers: dict[tuple[str, int], int] = {}
        for batch in scan.batches(cut.log_offset):
            cut.records += len(batch.records)
            cut.first_ms = cut.first_ms or store_ms_of(batch.records[0])
            for _, _, queue_id, number, sys_flag, store_ms, topic, *_ in batch.records:
                if not sys_flag & SYS_TRANSACTION_PREPARED:
                    cut.topics[topic] += 1
                    numbers.setdefault((topic, queue_id), number)
                cut.last_ms = max(cut.last_ms, store_ms)
            if self._progress is not None:
                done = scan.end - cut.log_offset
                self._progress("counting what goes", done, self._files.known_end - cut.log_offset)
        cut.log_end = max(scan.end, cut.log_offset)
        # The first segment stays whatever it holds: its name is where the log goes on.
        cut.segments = [
            file.path
            for file in self._segments
            if file.start >= cut.log_offset and file.start > self._start
        ]
        for key, queue in self._files.queues.items():
            end = queue.first_at(cut.log_offset)
            number = numbers.get(key, end)
            if number < end and not queue.read_entries(number, 1):
                end = number  # its file is missing, and so is the record of it
            if end < queue.max_offset:
                cut.queue_ends[key] = end
        cut.offsets = sum(1 for _ in self._files.tables().beyond(cut.queue_ends.get))


def truncate(
    rest: StoreAtRest,
    cut: Cut,
    save_table: SaveTable,
    *,
    discard: bool = False,
    progress: Progress | None = None,
) -> None:
    """Carry out a cut that was planned on the same locked store, which is given back recovered.

    The bytes cut are kept in lost+found unless `discard`. Raises OSError or StoreError.
    """
    for path, content in rest.store.tables().set_back(cut.queue_ends.get):
        save_table(path, content)
    rest.distrust(flushed=cut.log_offset)
    _cut_log(rest, cut, discard=discard)
    _save_marks(rest, cut, _cut_queues(rest, cut))
    rest.recover(progress)


def _save_marks(rest: StoreAtRest, cut: Cut, derived: DerivedMarks) -> None:
    """Write into the offsets file that the log reaches to the cut at most."""
    known = rest.store.marks.believed
    indexed = -1 if known is None else min(known.indexed, cut.log_offset)
    gaps = known.gaps if known is not None else ()
    renumbered = known.renumbered if known is not None else ()
    names = known.index_files if known is not None and indexed >= 0 else ()
    file = OffsetsFile(rest.files, rest.root)
    file.save(
        Offsets(
            flushed=cut.log_offset,
            last_store_ms=cut.last_kept_ms,
            synced=derived,
            live=derived,
            indexed=indexed,
            index_files=names,
            gaps=tuple(gap for gap in gaps if gap[1] <= cut.log_offset),
            identity=file.identity(),
            renumbered=tuple(one for one in renumbered if one[1] <= cut.log_offset),
        )
    )


def _cut_log(rest: StoreAtRest, cut: Cut, *, discard: bool) -> None:
    files = rest.files
    for path in reversed(cut.segments):
        if discard:
            files.remove(path)
            files.sync_directory(os.path.dirname(path))
        else:
            # A name that no repair takes for the name of a missing segment.
            rest.take_out(path, f"{path}.cut")
    for segment in rest.store.layout.segments:
        position = cut.log_offset - segment.start
        if segment.path in cut.segments or not 0 <= position < segment.size:
            continue
        with rest.changing(segment.path) as fd:
            high = files.last_nonzero(fd, position, segment.size)
            if high > position:
                if not discard:
                    rest.keep_bytes(segment.path, position, high)
                files.zero(fd, position, segment.size)


def _cut_queues(rest: StoreAtRest, cut: Cut) -> DerivedMarks:
    """Cut all queues; return how far they are known to follow the log then.

    If files were missing (they are made as a start makes them), or the last run did not end in
    order, nothing is known: the recovery at the end fills the queues from the log.
    """
    parts = make_parts(rest.settings, rest.files, rest.clock)
    try:
        parts.queues.load()
        whole = not rest.store.left_open and not any(queue.unmade for queue in parts.queues)
        for queue in parts.queues:
            queue.mend_files()
        for (topic, queue_id), end in cut.queue_ends.items():
            found = parts.queues.get(topic, queue_id)
            if found is not None:
                found.zero_from(end)
        parts.queues.flush(0)
        return DerivedMarks(cut.log_offset, parts.queues.entries()) if whole else DerivedMarks(0, 0)
    finally:
        parts.close(clean=False)
