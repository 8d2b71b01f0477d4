"""Compares consume queues with the log: each record in exactly its slot, each slot its record.

While the log is read, every record with a place in a queue is compared with the entry in its slot,
runs of them with one read. That settles uniqueness without remembering anything: a record has one
queue and one number, so it has one slot; an entry that named a record of another slot would not
compare equal for that record. A queue whose equal entries are as many as its entries that name a
record within the log is therefore right as a whole, and is only read through for order and holes.
In the other queues the record of each entry is read.

Reading a queue through finds wrong order, holes, lost slots, and entries that point nowhere.

Only the next number of a queue is kept in memory, and the runs of records that were not in their
slots, of which a sound store has none.

A topic that was deleted and made again numbers its messages anew; the old messages are in the log
and in no queue. The later records that took their numbers distinguish them from losses.
"""

import os
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from aerobee.protocol.names import LMQ_PREFIX, SCHEDULE_TOPIC, WAITING_TOPICS
from aerobee.store.inspect.audit_report import Counts, Findings
from aerobee.store.inspect.ext import Extensions
from aerobee.store.inspect.log_files import LogFiles, gap_at
from aerobee.store.inspect.queue_files import QueueFiles
from aerobee.store.inspect.store_files import StoreFiles
from aerobee.store.log.scan.sequence import Gap, Run, differences, runs_of
from aerobee.store.queues.consume_queue_ext import is_address
from aerobee.store.queues.queue_view import (
    EMPTY,
    ENTRY,
    ENTRY_BYTES,
    PRE_BLANK,
    PRE_BLANK_SIZE,
    names_record,
)

_I32_MAX = (1 << 31) - 1
_RUNS_MOST = 10_000
# An entry that names a record more segments than this beyond the log's end is damaged.
_MISSING_MOST = 1000


class Claim(NamedTuple):
    """A record's claim to a slot."""

    offset: int
    log_offset: int
    size: int
    tags_code: int


#: Claims by (topic, queue id), each queue's in log order: slots, and the entry for each.
Claims: TypeAlias = dict[tuple[str, int], tuple[list[int], list[bytes]]]


@dataclass(slots=True)
class _Run:
    """Records that follow each other and are not in their slots. These are all empty, or all
    `taken` by entries that name something else."""

    first: int
    first_log: int
    last_log: int
    taken: bool
    count: int = 1

    @property
    def end(self) -> int:
        """The slot after the last slot."""
        return self.first + self.count


@dataclass(slots=True)
class _State:
    """The facts about one queue that the log has shown so far."""

    expected: int | None = None
    equal: int = 0
    runs: list[_Run] = field(default_factory=list)
    runs_left_out: int = 0
    superseded: int = 0
    # Entries whose extension entry is missing: their number, and the slot of the first.
    ext_missing: tuple[int, int] = (0, 0)

    def claims(self, offset: int) -> bool:
        """Whether a record of the log belongs in the slot, and is not there."""
        return any(run.first <= offset < run.end for run in self.runs)


#: Slots [first, end).
Slots = tuple[int, int]


class LostByGap:
    """The messages that the damaged ranges of the log held, as far as entries still name them."""

    def __init__(self, gaps: Sequence[Gap]) -> None:
        self._gaps = sorted(gaps)
        # (queue, first slot, slot after the last) by the gap's start; adjoining ranges are joined.
        self.named: dict[int, list[tuple[str, int, int]]] = {}

    def __bool__(self) -> bool:
        return bool(self._gaps)

    def holds(self, log_offset: int) -> bool:
        """Whether the log offset lies in a gap."""
        return gap_at(self._gaps, log_offset) is not None

    def note(self, queue: str, offset: int, log_offset: int) -> bool:
        """Return whether the entry points into a gap, and remember its message then."""
        gap = gap_at(self._gaps, log_offset)
        if gap is None:
            return False
        known = self.named.setdefault(gap.start, [])
        if known and known[-1][0] == queue and known[-1][2] == offset:
            known[-1] = (queue, known[-1][1], offset + 1)
        else:
            known.append((queue, offset, offset + 1))
        return True


class QueuePass:
    """The reading of a queue; `claimed` are the slots of records that are not in them, in order."""

    def __init__(
        self,
        queue: QueueFiles,
        findings: Findings,
        counts: Counts,
        lost: LostByGap,
        claimed: Sequence[Slots],
    ) -> None:
        self.queue = queue
        self._findings = findings
        self._counts = counts
        self._lost = lost
        self._claimed = sorted(claimed)
        # Entries that name a record within the log and outside of its gaps.
        self.named = 0
        # Entries at or above the log's end, and the slot of the first.
        self.beyond = 0
        self.beyond_first = 0
        self._last_log = -1
        self._empty: Slots = (0, 0)
        self._blank: Slots = (0, 0)

    def read(self, log_start: int, log_end: int) -> None:
        """Check order, holes and lost slots, and count the entries that name a place within the
        log."""
        for first, data in self.queue.chunks():
            count = len(data) // ENTRY_BYTES
            if data == PRE_BLANK * count:
                self._note_blank(first, first + count)
            else:
                self._read_chunk(first, data, log_start, log_end)
        self._note_empty(-1)
        self._note_blank(-1, -1)

    def _read_chunk(self, first: int, data: bytes, log_start: int, log_end: int) -> None:
        last, lost = self._last_log, self._lost
        entries = named = 0
        for offset, (log_offset, size, _) in enumerate(ENTRY.iter_unpack(data), first):
            if size <= 0 or size == PRE_BLANK_SIZE or log_offset < 0:
                if size == PRE_BLANK_SIZE:
                    self._note_blank(offset, offset + 1)
                else:
                    self._note_empty(offset)
                continue
            entries += 1
            if log_offset <= last:
                self._out_of_order(offset, log_offset, last)
            last = log_offset
            if log_start <= log_offset < log_end:
                named += 1
                if lost and lost.note(self.queue.name, offset, log_offset):
                    named -= 1
            elif log_offset >= log_end:
                self.beyond_first = self.beyond_first if self.beyond else offset
                self.beyond += 1
            else:
                self._counts.expired_units += 1
        self._last_log = last
        self._counts.units += entries
        self.named += named

    def ask(self, records: LogFiles, log_start: int, log_end: int) -> None:
        """Read the record of each entry, in a queue whose count is not right."""
        queue = self.queue
        for first, data in queue.chunks():
            for offset, (log_offset, size, _) in enumerate(ENTRY.iter_unpack(data), first):
                if not names_record(log_offset, size) or not log_start <= log_offset < log_end:
                    continue
                if self._lost.holds(log_offset) or self._is_claimed(offset, offset + 1):
                    continue
                problem = records.problem(queue, offset, log_offset, size)
                if problem is not None:
                    queue.note(
                        self._findings,
                        "unit-dangling",
                        offset,
                        f"the entry of message {offset} of {queue.name}: {problem}",
                    )

    def _is_claimed(self, first: int, end: int) -> bool:
        """Whether a record claims one of the slots."""
        index = bisect_right(self._claimed, (end - 1, 1 << 62)) - 1
        return index >= 0 and self._claimed[index][1] > first

    def _out_of_order(self, offset: int, log_offset: int, before: int) -> None:
        self.queue.note(
            self._findings,
            "unit-order",
            offset,
            f"message {offset} of {self.queue.name} is at log offset {log_offset}, the one before "
            f"it at {before}",
        )

    def _note_empty(self, offset: int) -> None:
        first, end = self._empty
        if offset == end and end > first:
            self._empty = (first, offset + 1)
            return
        if end > first and not self._is_claimed(first, end):
            self._note_range("queue-hole", first, end, "empty")
        self._empty = (offset, offset + 1)

    def _note_blank(self, offset: int, stop: int) -> None:
        first, end = self._blank
        self._counts.pre_blank_units += stop - offset
        if offset == end and end > first:
            self._blank = (first, stop)
            return
        if end > first and not self._is_claimed(first, end):
            self._note_range("slot-lost", first, end, "without a message")
        self._blank = (offset, stop)

    def _note_range(self, kind: str, first: int, end: int, what: str) -> None:
        text = f"slots {first} to {end - 1} of {self.queue.name} are {what}"
        if end == first + 1:
            text = f"slot {first} of {self.queue.name} is {what}"
        self.queue.note(self._findings, kind, first, text)


class QueueAudit:
    """Takes the claims of the log in order by `feed`, then `finish` ends it."""

    def __init__(
        self,
        store: StoreFiles,
        findings: Findings,
        counts: Counts,
        known_topics: frozenset[str] | None,
        extensions: Extensions | None,
    ) -> None:
        self._directory = os.path.join(store.root, "consumequeue")
        self._queues = store.queues
        self._records = store.log
        self._findings = findings
        self._counts = counts
        self._known_topics = known_topics
        self._strict_delays = "message_delay_levels" in store.given
        self._extensions = extensions
        self._clean_stop = not store.left_open
        self._entered = store.marks.entered
        self._states: dict[tuple[str, int], _State] = {}
        # Log offsets of single records whose claims are not believed.
        self.strays: list[int] = []

    # --- while the log is read --------------------------------------------------------------

    def feed(self, claims: Claims) -> None:
        """Take in the next claims of the log, by queue, those of a queue in log order."""
        for key, (offsets, entries) in claims.items():
            state = self._states.get(key)
            if state is None:
                state = self._states[key] = _State()
            queue = self._queues.get(key)
            for run in runs_of(offsets, b"".join(entries)):
                self._run(queue, state, run)

    def _run(self, queue: QueueFiles | None, state: _State, run: Run) -> None:
        first, expected = run
        there = b"" if queue is None else queue.read_over_files(first, run.end)
        different = list(differences(first, expected, there))
        # A damaged record may claim any number; a new beginning has its entries, or no queue.
        believed = queue is None or not different or different[0].offset > first
        if state.expected is not None and first < state.expected and believed:
            self._restarted(state, first)
        state.expected = run.end
        state.equal += run.length - len(different)
        for offset, entry, found in different:
            self._differs(queue, state, Claim(offset, *ENTRY.unpack(entry)), found)

    def _restarted(self, state: _State, first: int) -> None:
        """Numbers from `first` on are given out again: records that claimed them before are in no
        queue."""
        kept: list[_Run] = []
        for run in state.runs:
            if run.end <= first:
                kept.append(run)
                continue
            over = run.end - max(run.first, first)
            state.superseded += over
            run.count -= over
            if run.count:
                kept.append(run)
        state.runs = kept

    def _differs(self, queue: QueueFiles | None, state: _State, claim: Claim, entry: bytes) -> None:
        taken = False
        if entry and entry != EMPTY and entry != PRE_BLANK:
            log_offset, size, tags_code = ENTRY.unpack(entry)
            if (log_offset, size) == claim[1:3]:
                state.equal += 1
                assert queue is not None
                self._other_tags(queue, claim, tags_code)
                return
            taken = names_record(log_offset, size)
        last = state.runs[-1] if state.runs else None
        if last is not None and last.end == claim.offset and last.taken == taken:
            last.count += 1
            last.last_log = claim.log_offset
        elif len(state.runs) < _RUNS_MOST:
            state.runs.append(_Run(claim.offset, claim.log_offset, claim.log_offset, taken))
        else:
            state.runs_left_out += 1

    def _other_tags(self, queue: QueueFiles, claim: Claim, tags_code: int) -> None:
        delayed = queue.topic in WAITING_TOPICS
        kind, whose = "unit-tags", "unit"
        if self._extensions is not None and is_address(tags_code):
            key = (queue.topic, queue.queue_id)
            found = self._extensions.tags_code(key, tags_code, delayed=delayed)
            if found is None:
                state = self._states[key]
                count, first = state.ext_missing
                state.ext_missing = (count + 1, first if count else claim.offset)
                return
            kind, whose, tags_code = "ext-wrong", "extension unit", found
        if tags_code == claim.tags_code:
            return
        by_levels = queue.topic == SCHEDULE_TOPIC and not self._strict_delays
        if by_levels and tags_code > _I32_MAX:
            return  # a delivery time, by delay levels that are not known here
        queue.note(
            self._findings,
            kind,
            claim.offset,
            f"the {whose} of message {claim.offset} of {queue.name} has the tags code {tags_code}, "
            f"its record makes it {claim.tags_code}",
            claim.log_offset,
        )

    # --- at the end -------------------------------------------------------------------------

    def named_end(self, log_end: int) -> int:
        """The log offset that the log must have reached for the entries at the ends of the queues,
        `log_end` or more. An entry in a slot that a record of the log claims is damaged, and does
        not count."""
        best = log_end
        for key, queue in self._queues.items():
            state = self._states.get(key) or _State()
            named = queue.last_named(queue.max_offset)
            while named is not None and named.log_offset >= best:
                offset, log_offset, size = named
                if not state.claims(offset) and self._records.may_be(
                    log_offset, size, log_end, _MISSING_MOST
                ):
                    best = log_offset + size
                    break
                named = queue.last_named(offset)
        return best

    def finish(
        self, log_start: int, log_end: int, lost: LostByGap, progress: Callable[[int, int], None]
    ) -> None:
        """Judge the records that were not in their slots, and read each queue through.

        `lost` gets the entries that point into a damaged range; `progress` gets the bytes read and
        the bytes in all.
        """
        for key, state in self._states.items():
            if key not in self._queues and state.runs:
                self._without_queue(key, state)
        total = sum(queue.used_bytes for queue in self._queues.values())
        done = 0
        for key, queue in self._queues.items():
            progress(done, total)
            done += queue.used_bytes
            self._finish_queue(queue, self._states.get(key) or _State(), log_start, log_end, lost)
        progress(total, total)

    def _finish_queue(
        self, queue: QueueFiles, state: _State, log_start: int, log_end: int, lost: LostByGap
    ) -> None:
        self._counts.queues += 1
        if state.superseded:
            self._findings.add(
                "numbering-restarted",
                queue.directory,
                None,
                f"{state.superseded} messages of {queue.name} in the log were numbered before its "
                "numbering began anew",
            )
        taken = [(run.first, run.end) for run in state.runs]
        through = QueuePass(queue, self._findings, self._counts, lost, taken)
        through.read(log_start, log_end)
        if through.beyond:
            queue.note(
                self._findings,
                "unit-beyond-log" if self._clean_stop else "unit-torn",
                through.beyond_first,
                f"{through.beyond} entries of {queue.name}, from message {through.beyond_first} "
                f"on, name log offsets at or above {log_end}, where the log ends",
            )
        count, first = state.ext_missing
        if count:
            queue.note(
                self._findings,
                "ext-missing",
                first,
                f"{count} entries of {queue.name}, the first that of message {first}, have their "
                "tags in extension units that are not there, or do not add up",
            )
        if through.named != state.equal:
            through.ask(self._records, log_start, log_end)
        for run in state.runs:
            self._judge_run(queue, run)
        if state.runs_left_out:
            self._findings.add(
                "unit-missing",
                queue.directory,
                None,
                f"{state.runs_left_out} more messages of {queue.name} are not in their slots",
            )

    def _without_queue(self, key: tuple[str, int], state: _State) -> None:
        topic, queue_id = key
        first = state.runs[0]
        kind = "queue-missing"
        deleted = self._known_topics is not None and topic not in self._known_topics
        if deleted and not topic.startswith(LMQ_PREFIX):
            kind = "topic-deleted"
        elif (
            not self._clean_stop and self._entered is not None and first.first_log >= self._entered
        ):
            kind = "queue-behind"
        count = sum(run.count for run in state.runs)
        self._findings.add(
            kind,
            os.path.join(self._directory, topic, str(queue_id)),
            None,
            f"{count} messages of {topic}/{queue_id} (numbers {first.first} to "
            f"{max(run.end for run in state.runs) - 1}) are in the log, the queue has no directory",
            log_offset=first.first_log,
            queue_offset=first.first,
        )

    def _judge_run(self, queue: QueueFiles, run: _Run) -> None:
        names = f"message {run.first} of {queue.name}"
        where = f"the record at {run.first_log}"
        if run.count > 1:
            names = f"messages {run.first} to {run.end - 1} of {queue.name}"
            where = f"{run.count} records from {run.first_log} to {run.last_log}"
        kind, what = "unit-missing", f"{where}, {names}, not in the queue"
        if run.taken:
            kind, what = self._judge_taken(queue, run, where, names)
        elif run.first > queue.max_offset:
            kind = "record-stray"
            what = f"{where} should be {names}, which ends before message {queue.max_offset}"
        elif run.first == queue.max_offset and not self._clean_stop:
            kind, what = "queue-behind", f"{where}, {names}, not in the queue yet"
        if kind == "record-stray" and run.count == 1:
            self.strays.append(run.first_log)
        queue.note(self._findings, kind, run.first, what, run.first_log)

    def _judge_taken(self, queue: QueueFiles, run: _Run, where: str, names: str) -> tuple[str, str]:
        """Judge which record has the slot: the record that its entry names, if it names the slot
        back."""
        entry = queue.entry(run.first)
        assert entry is not None
        problem = self._records.problem(queue, run.first, entry.log_offset, entry.size)
        if problem is None:
            so_is = f"but so should that at {entry.log_offset}"
            return "record-stray", f"{where} should be {names}, {so_is}"
        return "unit-wrong", f"{where}, {names}, not in the queue; the entry there: {problem}"
