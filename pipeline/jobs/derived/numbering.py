"""Whether the numbers of each queue follow each other, from runs instead of single records.

In the log the records of a queue are numbered 0, 1, 2 and so on. Each part of the log is summed up
on its own as runs of numbers without a step (a few for each queue and part, however many records),
and the runs of all parts, in the log's order, are judged together in one place.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

import pyarrow as pa

from aerobee.pipeline.jobs.derived.entries import batch_of
from aerobee.pipeline.jobs.derived.findings import Finding
from aerobee.store.log.scan.sequence import Gap


class OffsetRun(NamedTuple):
    """Slots [first, first + length) of a queue, claimed by records from `begin` to `last`."""

    topic: str
    queue_id: int
    first: int
    length: int
    begin: int
    last: int

    @property
    def end(self) -> int:
        """The slot after the last."""
        return self.first + self.length


class MissingNumbers(NamedTuple):
    """Slots [first, end) of a queue that damage explains the want of: `messages` of them are not
    in the log, between its records at log offsets `after` and `before`."""

    topic: str
    queue_id: int
    first: int
    end: int
    messages: int
    after: int
    before: int


_RUN_COLUMNS: Final = ("topic", "queueId", "slot", "logOffset")
RUNS_DDL: Final = (
    "topic string, queueId int, first bigint, length bigint, beginOffset bigint, lastOffset bigint"
)


def collect_runs(batches: Iterable[pa.RecordBatch]) -> list[OffsetRun]:
    """The runs of entries (schema ENTRIES), by queue and place. The entries of each queue come in
    their order; those without a place in a queue are passed over."""
    by_queue: dict[tuple[str, int], list[OffsetRun]] = {}
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in _RUN_COLUMNS]
        for topic, queue_id, slot, place in zip(*columns, strict=True):
            if queue_id >= 0:
                own = by_queue.setdefault((topic, queue_id), [])
                _append(own, OffsetRun(topic, queue_id, slot, 1, place, place))
    return sorted([run for own in by_queue.values() for run in own], key=_place)


def run_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`: the runs of one task's entries (RUNS_DDL)."""
    yield batch_of(collect_runs(batches), RUNS_DDL)


def runs_in(table: pa.Table) -> list[OffsetRun]:
    """The runs of a table (RUNS_DDL)."""
    rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
    return [OffsetRun(*row) for row in rows]


def _append(runs: list[OffsetRun], run: OffsetRun) -> None:
    """Append the next run of a queue; a run that goes on from the last is joined to it."""
    if runs and runs[-1].end == run.first:
        before = runs[-1]
        runs[-1] = before._replace(length=before.length + run.length, last=run.last)
    else:
        runs.append(run)


def _place(run: OffsetRun) -> tuple[str, int, int]:
    return run.topic, run.queue_id, run.begin


def check_numbering(runs: Iterable[OffsetRun], damaged: Sequence[Gap]) -> list[Finding]:
    """Find wrong numbers; a hole that a damaged part of the log explains is not wrong."""
    return _checked(runs, damaged).findings


def missing_numbers(runs: Iterable[OffsetRun], damaged: Sequence[Gap]) -> list[MissingNumbers]:
    """The holes that a damaged part of the log explains: what the queues lost there."""
    return _checked(runs, damaged).missing


def _checked(runs: Iterable[OffsetRun], damaged: Sequence[Gap]) -> _QueueCheck:
    by_queue: dict[tuple[str, int], list[OffsetRun]] = {}
    for run in sorted(runs, key=_place):
        _append(by_queue.setdefault((run.topic, run.queue_id), []), run)
    check = _QueueCheck(damaged)
    for own in by_queue.values():
        check.check(own)
    return check


def restarts_of(findings: Iterable[Finding]) -> dict[tuple[str, int], int]:
    """Where the numbering of a queue last began anew: log offset by (topic, queue id)."""
    return {
        (str(one.topic), int(one.queue_id or 0)): int(one.log_offset or 0)
        for one in findings
        if one.kind == "queue-restart"
    }


class _QueueCheck:
    """The check of runs, queue by queue."""

    def __init__(self, damaged: Sequence[Gap]) -> None:
        ordered = sorted(damaged)
        self._damage_starts = [one.start for one in ordered]
        # How far those up to here reach.
        self._damage_ends = list(accumulate((one.end for one in ordered), max))
        self.findings: list[Finding] = []
        self.missing: list[MissingNumbers] = []

    def check(self, runs: list[OffsetRun]) -> None:
        """The runs of one queue, in order."""
        expected, last = self._first_expected(runs), runs[0].begin
        for number, run in enumerate(runs):
            if run.first == expected:
                expected, last = run.end, run.last
                continue
            following = self._going_on(runs, number + 1, expected)
            if following is not None and self._is_wrong(run, following, expected, last):
                self._single(run, expected)
                # Itself it is one of those that seem to be missing.
                self._missing(following, expected, last, following.first - expected - 1)
                expected = following.first
            elif run.first > expected:
                self._gap(run, expected, last)
                expected, last = run.end, run.last
            else:
                self._back(run, expected)
                expected, last = run.end, run.last

    @staticmethod
    def _first_expected(runs: list[OffsetRun]) -> int:
        """The number of the queue's first record, which the second may show to be a wrong one."""
        first = runs[0]
        if first.length == 1 and len(runs) > 1 and 0 < runs[1].first < first.first:
            return runs[1].first - 1
        return first.first

    @staticmethod
    def _going_on(runs: list[OffsetRun], start: int, expected: int) -> OffsetRun | None:
        """The run from `start` that the queue goes on with. A single record whose number goes back
        below those before it, or ahead of the next run of several, may have a wrong number
        itself."""
        candidates = []
        for number in range(start, len(runs)):
            run = runs[number]
            if run.length > 1 or run.first >= expected:
                candidates.append(run)
            if run.length > 1:
                break
        most = candidates[-1].first if candidates else 0
        return next((run for run in candidates if run.first <= most), None)

    def _is_wrong(self, run: OffsetRun, following: OffsetRun, expected: int, last: int) -> bool:
        """Whether it is one record with a wrong number: the next goes on as if this one had the
        number expected, or were not there, or as damage beside them explains."""
        skipped = following.first - expected
        if run.length > 1 or skipped < 0:
            return False
        fits = expected <= run.first < following.first
        return skipped <= 1 or (not fits and self._is_damaged(last, following.begin))

    def _is_damaged(self, after: int, before: int) -> bool:
        count = bisect_left(self._damage_starts, before)
        return count > 0 and after < self._damage_ends[count - 1]

    def _single(self, run: OffsetRun, expected: int) -> None:
        kind = "queue-repeat" if run.first < expected else "queue-offset"
        self._say(kind, run, run.first, 1, f"says it is message {run.first}, where {expected} fits")

    def _gap(self, run: OffsetRun, expected: int, last: int) -> None:
        count = run.first - expected
        if self._is_damaged(last, run.begin):
            self._missing(run, expected, last, count)
            return
        text = f"{count} messages from {expected} on are not in the log before {run.begin}"
        self._say("queue-gap", run, expected, count, text)

    def _missing(self, run: OffsetRun, expected: int, last: int, count: int) -> None:
        """Before this run `count` messages from `expected` on are lost, if damage is there."""
        if count > 0 and self._is_damaged(last, run.begin):
            slots = (run.topic, run.queue_id, expected, run.first)
            self.missing.append(MissingNumbers(*slots, count, last, run.begin))

    def _back(self, run: OffsetRun, expected: int) -> None:
        if run.first == 0:
            self._say("queue-restart", run, 0, 1, f"begins anew at {run.begin}, after {expected}")
            return
        count = min(run.end, expected) - run.first
        text = f"gives {count} numbers from {run.first} on again, which go to {expected - 1}"
        self._say("queue-repeat", run, run.first, count, text)

    def _say(self, kind: str, run: OffsetRun, slot: int, count: int, what: str) -> None:
        finding = Finding(kind, run.topic, run.queue_id, slot, run.begin, count, what)
        self.findings.append(finding)
