"""Plans a repair, step by step, from the findings of an audit. Changes nothing.

The order of the steps is the order of `repair.py`'s story; each says what it keeps and loses, in
offsets and messages, so that somebody can decide at night.
"""

import os
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Concatenate, ParamSpec

from aerobee.store.at_rest.repair import steps
from aerobee.store.at_rest.repair.at_rest import StoreAtRest
from aerobee.store.disk.segment_names import segment_name
from aerobee.store.inspect.audit_report import Report
from aerobee.store.inspect.log_files import gap_at
from aerobee.store.inspect.sizes import FOUND
from aerobee.store.inspect.store_layout import FoundFile

# More missing segments than this are no hole: some file has a wrong name.
_MISSING_MOST = 1000
_NAMES_SHOWN = 8

P = ParamSpec("P")

#: Findings that a rebuild of the queues repairs.
QUEUES_WRONG = frozenset(
    {"queue-missing", "queue-file-size", "queue-file-missing", "unit-missing", "unit-wrong"}
    | {"unit-tags", "unit-dangling", "unit-beyond-log", "unit-order", "queue-hole"}
    | {"record-stray", "rebuild-broken-off", "ext-file-size", "ext-wrong"}
)
INDEX_WRONG = frozenset(
    {"index-missing", "index-size", "index-header", "index-entry", "index-slot", "index-count"}
    | {"index-time", "key-missing", "key-stray", "rebuild-broken-off"}
)


@dataclass
class Step:
    """One thing to do, now, or without an `act` together with others at the end.

    `log` says that it changes the log. A step that is `first` clears the way for all others, and
    changes nothing that queues or index depend on.
    """

    what: str
    act: Callable[[StoreAtRest], object] | None = field(repr=False)
    keeps: str = "all messages"
    loses: str = "nothing"
    log: bool = False
    first: bool = False


@dataclass
class RepairPlan:
    """All steps in order; `impossible` names what no repair can do, and the way for a person."""

    report: Report
    steps: list[Step] = field(default_factory=list)
    impossible: list[str] = field(default_factory=list)
    queues: bool = False
    index: bool = False
    set_back: bool = False
    filled: list[tuple[int, int]] = field(default_factory=list)
    #: The ranges of `filled` that get fillers or blanks, in segments that are in their places
    #: already.
    overwritten: list[tuple[int, int]] = field(default_factory=list)

    @property
    def lost(self) -> int:
        """How many messages are lost that queues still name, or whose records are left out."""
        log = self.report.log
        named = [end - first for ranges in log.lost.values() for _, first, end in ranges]
        return sum(named) + len(log.strays)

    @property
    def anything(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.steps or self.queues or self.index)


def does(
    function: Callable[Concatenate[StoreAtRest, P], object], *args: P.args, **more: P.kwargs
) -> Callable[[StoreAtRest], object]:
    """The act of a step: the function, with all but the store given."""
    return lambda rest: function(rest, *args, **more)


def _take_out(path: str, why: str, **more: Any) -> Step:
    """Take out a file; `more` are fields of the step."""
    return Step(f"take out {path}{why}", does(StoreAtRest.take_out, path), **more)


class RepairPlanner:
    """Turns an audit into steps."""

    def __init__(self, rest: StoreAtRest, report: Report) -> None:
        self._rest = rest
        self._report = report
        self._kinds = report.findings.counts
        self._segment_bytes = rest.store.sizes.segment_bytes
        self._plan = RepairPlan(report)
        # Segments, by their start, that get another content than the audit has read.
        self._replaced: set[int] = set()

    def plan(self) -> RepairPlan:
        """Plan all steps, in order."""
        plan = self._plan
        if self._is_hopeless():
            return plan
        plan.steps += self._strays()
        plan.steps += self._misplaced()
        plan.steps += self._missing()
        plan.steps += self._lengths()
        plan.steps += self._front()
        plan.steps += self._gaps()
        plan.steps += self._claims()
        plan.steps += self._tail()
        plan.queues = bool(QUEUES_WRONG & self._kinds.keys() or self._replaced or plan.filled)
        plan.steps += self._tables()
        plan.steps += self._state()
        # Entries of lost records lead into the filled ranges.
        derived = bool(self._replaced or plan.filled) and self._rest.settings.index_enabled
        plan.index = bool(INDEX_WRONG & self._kinds.keys()) or derived
        plan.set_back = "offset-beyond" in self._kinds
        return plan

    def _is_hopeless(self) -> bool:
        impossible = self._plan.impossible
        is_empty = not self._rest.store.layout.segments
        if "log-missing" in self._kinds or (is_empty and "log-short" in self._kinds):
            impossible.append(
                "the whole commit log is missing. Mount or restore it; if it is elsewhere, give "
                "the broker's --config. To start with an empty one, and lose all there was, move "
                "consumequeue, index and offsets away yourself."
            )
        self._check_sizes()
        for finding in self._report.findings.of("start-refused"):
            impossible.append(f"a start is refused: {finding.what}")
        if "unreadable" in self._kinds:
            impossible.append(
                "the disk refuses to be read in places. Copy the directory to a sound disk first "
                "(what cannot be read may be left as zeros), then repair the copy."
            )
        return bool(impossible)

    def _check_sizes(self) -> None:
        """Refuse if the size of segments is a guess: it could cost messages."""
        rest, size = self._rest, self._segment_bytes
        sound = [file for file in rest.store.layout.segments if not file.start % size]
        ask = "Give the broker's: --config FILE, or --set mappedFileSizeCommitLog=BYTES"
        for file in sound:
            if file.size > size and steps.holds_records_from(rest.files, file, size):
                self._plan.impossible.append(
                    f"{file.path} holds records behind byte {size}, so segments are longer than "
                    f"that. {ask}."
                )
        guessed = rest.store.sizes.origins["segment"] == FOUND
        if guessed and len(sound) == 1 and self._report.log.end > sound[0].start + size:
            self._plan.impossible.append(
                f"{sound[0].path} was cut, or segments behind it are missing: messages up to log "
                f"offset {self._report.log.end} were there. How long a segment was cannot be told "
                f"from one file. {ask}."
            )

    # --- files in each other's way ----------------------------------------------------------

    def _strays(self) -> Iterator[Step]:
        layout = self._rest.store.layout
        stray = [(path, "is none of the store's files") for path, stops in layout.foreign if stops]
        stray += [(file.path, "has no length") for file in layout.unfinished]
        stray += [
            (file.path, "begins at no multiple of the segment size")
            for file in layout.segments
            if file.start % self._segment_bytes
        ]
        for path, why in stray:
            yield _take_out(path, f", which {why}")
        for file in layout.duplicates:
            yield self._duplicate(file)

    def _duplicate(self, file: FoundFile) -> Step:
        files = self._rest.files
        other = next(one for one in self._rest.store.layout.segments if one.start == file.start)
        if steps.same_bytes(files, file.path, other.path):
            return _take_out(file.path, f", which is the same as {other.path}")
        out, kept = file.path, other.path
        if steps.written(files, out) > steps.written(files, kept):
            out, kept = kept, out
            self._replaced.add(file.start)
        return _take_out(
            out,
            f"; {kept} has the same name and holds more",
            keeps=f"what is in {kept}",
            loses=f"what is only in {out}, from lost+found it can be looked into",
            log=out == other.path,
        )

    def _misplaced(self) -> Iterator[Step]:
        """Files with the records of another place go there, if nothing sound is in the way."""
        misplaced = self._report.log.misplaced
        free = {start for _, start, _ in misplaced}
        there = {file.start for file in self._rest.store.layout.segments}
        moves: list[tuple[str, int]] = []
        for path, start, own in misplaced:
            self._replaced.add(start)
            if own in there and own not in free:
                yield self._take_out_misplaced(path, start, own)
                continue
            there.add(own)
            free.discard(own)
            self._replaced.add(own)
            moves.append((path, own))
        if moves:
            names = ", ".join(f"{os.path.basename(path)} is {start:020d}" for path, start in moves)
            yield Step(
                f"give segments their own names: {names}",
                does(steps.put_in_places, moves),
                keeps="all their records",
                log=True,
            )
        self._arriving = {start for _, start in moves}
        self._leaving = {start for _, start, _ in misplaced} - self._arriving

    def _take_out_misplaced(self, path: str, start: int, own: int) -> Step:
        """The step for a file with the records of a segment that is there as well."""
        (other,) = [file.path for file in self._rest.store.layout.segments if file.start == own]
        same = steps.same_bytes(self._rest.files, path, other)
        what = "which is a copy of" if same else "which holds other records of the place of"
        loses = f"what log offsets {start} to {start + self._segment_bytes} held"
        if start >= self._report.log.end:
            loses = f"nothing, the log ends at {self._report.log.end}"
        return _take_out(
            path,
            f", {what} {segment_name(own)}",
            keeps="all records of that one",
            loses=f"{loses}{self._names(start)}",
            log=True,
        )

    def _missing(self) -> Iterator[Step]:
        layout, size = self._rest.store.layout, self._segment_bytes
        sound = [file for file in layout.segments if not file.start % size]
        starts = {file.start for file in sound} - self._leaving | self._arriving
        if not starts:
            return
        starts = yield from self._without_spare(starts)
        first = min(starts)
        while first and steps.in_lost_and_found(self._rest, first - size) is not None:
            first -= size  # a repair was broken off while it gave segments their names
        end = max(max(starts) + size, self._report.log.end)
        count = -(-(end - first) // size) - len(starts)
        if count > _MISSING_MOST:
            self._plan.impossible.append(
                f"{count} segments are missing below {max(starts)}. The last file's name is "
                "probably not its own: move it away, then repair."
            )
            return
        for start in range(first, end, size):
            if start in starts:
                continue
            self._replaced.add(start)
            near = max(
                (file for file in sound if file.start < start),
                default=sound[0],
                key=attrgetter("start"),
            )
            path = os.path.join(os.path.dirname(near.path), segment_name(start))
            found = steps.in_lost_and_found(self._rest, start)
            if found is not None:
                yield Step(
                    f"put back {found} as {path}",
                    does(steps.put_back, found, path),
                    keeps="its records",
                    log=True,
                )
                continue
            yield Step(
                f"make {path}, empty",
                does(steps.make_blank_segment, path),
                keeps="the numbering of the log and of all queues",
                loses=f"{size} bytes, log offsets {start} to {start + size}{self._names(start)}",
                log=True,
            )

    def _without_spare(self, starts: set[int]) -> Generator[Step, None, set[int]]:
        """Take out the last segments if they are empty and do not follow the log: they are no
        reason to make the segments before them. Returns the starts that stay."""
        spare = {start: path for path, start in self._report.log.spare}
        kept = set(starts)
        for start in sorted(spare, reverse=True):
            if start - self._segment_bytes not in starts and start == max(kept) != min(kept):
                kept.discard(start)
                why = ", which holds nothing and does not follow the log"
                yield _take_out(spare[start], why, log=True)
        return kept

    def _lengths(self) -> Iterator[Step]:
        for file in self._rest.store.layout.segments:
            if file.size == self._segment_bytes or file.start % self._segment_bytes:
                continue
            if file.start in self._replaced:
                continue
            longer = file.size > self._segment_bytes
            yield Step(
                f"bring {file.path} from {file.size} to {self._segment_bytes} bytes",
                does(steps.set_length, file.path),
                keeps="the bytes behind it in lost+found" if longer else "what is left of it",
                loses="nothing" if longer else "what stood behind the cut, see below",
                log=True,
            )

    def _front(self) -> Iterator[Step]:
        for finding in self._report.findings.of("log-front-missing"):
            yield Step(
                "let the log begin where its first file does",
                None,
                keeps="all that is there",
                loses=f"what is not there any more: {finding.what}",
                log=True,
            )

    # --- the log ----------------------------------------------------------------------------

    def _gaps(self) -> Iterator[Step]:
        size = self._segment_bytes
        for gap in self._report.gaps:
            start = gap.start
            while start < gap.end:
                end = min(gap.end, (start // size + 1) * size)
                if start // size * size not in self._replaced:
                    yield from self._gap(start, end, self._report.log.times.get(gap.start, 0))
                start = end
            self._plan.filled.append((gap.start, gap.end))

    def _gap(self, start: int, end: int, store_ms: int) -> Iterator[Step]:
        path = self._path(start)
        if not steps.can_fill(start, end, self._segment_bytes):
            self._plan.impossible.append(
                f"{path}: the {end - start} bytes from log offset {start} are too few for a record"
            )
            return
        self._plan.overwritten.append((start, end))
        yield Step(
            f"fill log offsets {start} to {end} of {path}",
            does(steps.fill, path, start, end, store_ms),
            keeps="everything before and behind, in RocketMQ too; the bytes in lost+found",
            loses=f"{end - start} bytes that are damaged already{self._names(start)}",
            log=True,
        )

    def _claims(self) -> Iterator[Step]:
        """The steps for records whose head is damaged: their queue has another message in their
        place."""
        for log_offset in self._report.log.strays:
            path = self._path(log_offset)
            start = log_offset // self._segment_bytes * self._segment_bytes
            file = FoundFile(path, start, self._segment_bytes)
            head = steps.head_at(self._rest.files, file, self._segment_bytes, log_offset - start)
            if head is None or start in self._replaced:
                continue
            end, store_ms = log_offset + head.size, head.store_timestamp_ms
            self._plan.filled.append((log_offset, end))
            self._plan.overwritten.append((log_offset, end))
            yield Step(
                f"fill the record at {log_offset} of {path}, whose topic, queue or number is "
                "damaged",
                does(steps.fill, path, log_offset, end, store_ms),
                keeps="its bytes, with the body, in lost+found",
                loses="this message, which no consumer gets: it says it is message "
                f"{head.queue_offset} of {head.topic}/{head.queue_id}",
                log=True,
            )

    def _tail(self) -> Iterator[Step]:
        if "log-trailing" not in self._kinds:
            return
        for path, position, high in self._report.log.tail:
            yield Step(
                f"zero {high - position} bytes of {path} from byte {position} on, behind the log's "
                "end",
                does(steps.zero, path, position, high),
                keeps="all messages; the bytes in lost+found",
                loses="nothing that is known",
            )

    # --- the rest ---------------------------------------------------------------------------

    def _tables(self) -> Iterator[Step]:
        for finding in self._report.findings.of("config-from-backup"):
            yield Step(
                f"put {finding.path}.bak in the place of {finding.path}, which {finding.what}",
                does(steps.restore_table, finding.path, f"{finding.path}.bak"),
                keeps="the table as it was one write earlier",
                loses="what that write changed; a start would lose the same",
            )
        for finding in self._report.findings.of("config-damaged"):
            yield Step(
                f"take out {finding.path} and its backup, neither of which can be read",
                does(steps.take_out_all, (finding.path, f"{finding.path}.bak")),
                loses="this table: a broker starts with an empty one",
            )
        # Queues that are made again mostly get their ends back, and then no offset is set back.
        which = ""
        if self._plan.queues:
            which = ", what is still beyond its queue when the queues are made again"
        for finding in self._report.findings.of("offset-beyond"):
            yield Step(
                f"set back, in {finding.path}{which}: {finding.what}",
                None,
                keeps="its messages",
                loses="nothing; it may get the last ones again",
            )

    def _state(self) -> Iterator[Step]:
        for finding in self._report.findings.of("not-a-file"):
            keeps = "all messages; the next start makes the file anew"
            yield _take_out(finding.path, f", which {finding.what}", keeps=keeps, first=True)
        for kind in ("checkpoint-damaged", "offsets-damaged"):
            for path in dict.fromkeys(one.path for one in self._report.findings.of(kind)):
                if self._rest.files.exists(path):
                    keeps = "all messages; the next start makes it anew"
                    yield _take_out(path, ", which is damaged", keeps=keeps)

    def _path(self, log_offset: int) -> str:
        start = log_offset // self._segment_bytes * self._segment_bytes
        found = [file.path for file in self._rest.store.layout.segments if file.start == start]
        assert found, log_offset
        return found[0]

    def _names(self, start: int) -> str:
        """The messages that entries name in the damaged range that begins at or holds `start`."""
        gap = gap_at(self._report.gaps, start)
        named = [] if gap is None else self._report.log.lost.get(gap.start, [])
        texts = [
            f"{queue} {first}" + (f" to {end - 1}" if end > first + 1 else "")
            for queue, first, end in named[:_NAMES_SHOWN]
        ]
        if len(named) > _NAMES_SHOWN:
            texts.append(f"{len(named) - _NAMES_SHOWN} more")
        return f": messages {', '.join(texts)}" if texts else ""
