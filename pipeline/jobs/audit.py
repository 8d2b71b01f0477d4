"""The job `audit`: is a store sound? Reads the whole log and all consume queues, in parallel.

1. The rows of the log are counted, its damaged places found, the numbers of each queue summed up as
   runs where they are read.
2. The runs of each queue are checked (numbering.py). 3. Entries and the records they name are
compared, in pieces of the log (cross_check.py). 4. Entries and numbers show what damaged ranges
held (lost_messages.py). 5. Unique keys that occur twice in a topic are counted. 6. What is only a
symptom of another finding is dropped (findings.py).

The rows a pass needs of each record are small (no bodies, no properties) and kept on the executors'
disks between the passes, so the log itself is read once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from aerobee.pipeline.jobs.common.inputs import StoreInput
from aerobee.pipeline.jobs.common.job_result import DAMAGED, JobResult, size_text
from aerobee.pipeline.jobs.common.spark_session import step
from aerobee.pipeline.jobs.derived.cross_check import StoreFacts, cross_check
from aerobee.pipeline.jobs.derived.entries import (
    DELAY_LEVELS,
    ENTRIES,
    LogCounts,
    batch_of,
    count_rows,
    derived_frame,
)
from aerobee.pipeline.jobs.derived.findings import FINDINGS_DDL, KINDS, Finding, without_symptoms
from aerobee.pipeline.jobs.derived.lost_messages import Losses, damaged_stretches, find_losses
from aerobee.pipeline.jobs.derived.lost_report import lost_text, report_losses
from aerobee.pipeline.jobs.derived.numbering import (
    RUNS_DDL,
    check_numbering,
    restarts_of,
    run_rows,
    runs_in,
)
from aerobee.pipeline.jobs.derived.queue_files import QueueFile, entries_frame, queue_files
from aerobee.protocol.names import (
    DLQ_PREFIX,
    HALF_TOPIC,
    OP_HALF_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
)
from aerobee.store.inspect.finding_kinds import Level
from aerobee.store.log.scan.sequence import Gap
from aerobee.store.queues.delay_levels import DelayLevels

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Log offsets compared in one piece: some 3 million of the smallest records.
PIECE_BYTES: Final = 256 << 20
#: More findings than that are counted, not listed.
MOST_FINDINGS: Final = 100_000
#: Ends a damaged place that no record follows.
_NEVER: Final = 1 << 62
_FOLLOWING_DDL: Final = "number int, place bigint"
# Messages that a broker itself stores again under the key they had.
_COPIES = (SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, OP_HALF_TOPIC)


def audit(spark: SparkSession, store: StoreInput, *, delay_levels: str = DELAY_LEVELS) -> JobResult:
    """Audit a store. Frames: `findings` (FINDINGS_DDL), `damaged` (start, end, reason: places that
    cannot be read), `damage` (DAMAGE_DDL: ranges of them and what these held), `lost` (LOST_DDL:
    the same by queue).

    Exit code 1 when something is damaged. Raises what the reader raises in mode failfast.
    """
    passes = _Passes(spark, store, derived_frame(spark, store, DelayLevels(delay_levels)))
    try:
        step(spark, "reading the log")
        passes.survey()
        findings = passes.findings()
        passes.find_lost()
    finally:
        passes.close()
    return _report(spark, store, passes, findings)


class _Passes:
    """The passes over one store's rows, and what is known after each."""

    def __init__(self, spark: SparkSession, store: StoreInput, derived: DataFrame) -> None:
        self._spark = spark
        self._store = store
        self._derived = derived
        # Those that follow from the records.
        self._expected = derived.where("error is null").select(*ENTRIES.names)
        self._runs = self._expected.mapInArrow(run_rows, RUNS_DDL)
        # Those that are there.
        self._entries: DataFrame | None = None
        self.counts: LogCounts
        self.damaged: list[Gap] = []
        self.entries = 0
        self.losses = Losses([], [], {})

    def survey(self) -> None:
        """The rows of the log and its damaged places."""
        self.counts = count_rows(self._derived)
        self.damaged = _find_damaged(self._derived) if self.counts.bad else []
        self._runs = self._runs.persist()

    def close(self) -> None:
        """Free the frames that were kept between the passes."""
        for frame in (self._derived, self._runs, self._entries):
            if frame is not None:
                frame.unpersist()

    def findings(self) -> list[Finding]:
        """All findings, merged."""
        found = [damage_finding(one) for one in self.damaged]
        step(self._spark, "checking the numbers of the queues")
        judged = self._runs.groupBy("topic", "queueId").applyInArrow(
            _judge(self.damaged), FINDINGS_DDL
        )
        found += _collected(judged)
        files = queue_files(self._store.store())
        if files:
            step(self._spark, "comparing entries with records")
            found += self._compared(restarts_of(found), files)
        step(self._spark, "looking for keys stored twice")
        found += self._doubles()
        return without_symptoms(found)

    def _compared(
        self, restarts: dict[tuple[str, int], int], files: list[QueueFile]
    ) -> list[Finding]:
        from pyspark.sql import functions as f

        self._entries = entries = entries_frame(self._spark, files, self.counts.log_start).persist()
        ends = entries.where(f.col("logOffset") < self.counts.log_end).agg(
            f.max(f.col("logOffset") + f.col("size")), f.count("*")
        )
        end, self.entries = ends.collect()[0]
        queues = frozenset((file.topic, file.queue_id) for file in files)
        facts = StoreFacts(tuple(self.damaged), restarts, queues, end or 0)
        piece = f.expr(f"logOffset div {PIECE_BYTES}")
        pairs = (
            self._expected.withColumn("piece", piece)
            .groupBy("piece")
            .cogroup(entries.withColumn("piece", piece).groupBy("piece"))
        )
        return _collected(pairs.applyInArrow(_comparer(facts), FINDINGS_DDL))

    def find_lost(self) -> None:
        """Count what the damaged ranges held, after `findings`."""
        if not self.damaged:
            return
        step(self._spark, "counting what was lost in damaged ranges")
        ranges = damaged_stretches(self.damaged, self._end_of_damage())
        self.losses = find_losses(self._spark, ranges, self._runs, self._entries, MOST_FINDINGS)

    def _end_of_damage(self) -> int:
        """Where damage ends that no record follows: with the last record that an entry names there,
        or with the last file."""
        from pyspark.sql import functions as f

        end = self._store.store().log_end
        last = max(one.end for one in self.damaged)
        if last <= end or self._entries is None:
            return end
        place = f.col("logOffset")
        begin = max(one.start for one in self.damaged)
        there = self._entries.where((place >= begin) & (place < end))
        named: int | None = there.agg(f.max(place + f.col("size"))).collect()[0][0]
        return end if named is None else min(named, end)

    def _doubles(self) -> list[Finding]:
        from pyspark.sql import functions as f

        topic = f.col("topic")
        own = ~topic.isin(*_COPIES) & ~topic.startswith(RETRY_PREFIX)
        own &= ~topic.startswith(DLQ_PREFIX)
        twice = (
            self._derived.where(f.col("msgId").isNotNull() & own)
            .groupBy("topic", "msgId")
            .agg(f.count("*").alias("times"), f.max("logOffset").alias("last"))
            .where("times > 1")
        )
        return [
            Finding(
                "key-twice", row["topic"], None, None, row["last"], row["times"] - 1,
                f"the key {row['msgId']} was stored {row['times']} times",
            )
            for row in twice.limit(MOST_FINDINGS).collect()
        ]  # fmt: skip


def _find_damaged(derived: DataFrame) -> list[Gap]:
    """The damaged places of the log, each up to the next record."""
    from pyspark.sql import functions as f

    places = sorted(derived.where("error is not null").select("logOffset", "error").collect())
    starts = np.array([row[0] for row in places], np.int64)
    records = derived.where("error is null").select("logOffset")
    following = records.mapInArrow(_following(starts), _FOLLOWING_DDL)
    first = following.groupBy("number").agg(f.min("place")).collect()
    return damaged_places([(row[0], row[1]) for row in places], dict(map(tuple, first)))


def damaged_places(places: Sequence[tuple[int, str]], following: Mapping[int, int]) -> list[Gap]:
    """Damaged places (start and reason, ascending) with their ends; `following` has, by the number
    of a damaged place, the first record after it, if that comes before the next damaged place."""
    first = [following.get(number, _NEVER) for number in range(len(places))]
    ends = [*accumulate(reversed(first), min)][::-1]
    ended = zip(places, ends, strict=True)
    return [Gap(start, end, reason) for (start, reason), end in ended]


def damage_finding(damaged: Gap) -> Finding:
    """The finding of a damaged place."""
    return Finding("record-damaged", None, None, None, damaged.start, 1, damaged.reason)


def _collected(frame: DataFrame) -> list[Finding]:
    return [Finding(*row) for row in frame.limit(MOST_FINDINGS).collect()]


# On the executors


_Batches = Iterator[pa.RecordBatch]


def _following(starts: np.ndarray) -> Callable[[_Batches], _Batches]:
    def follow(batches: _Batches) -> _Batches:
        for batch in batches:
            places = batch.column("logOffset").to_numpy()
            yield batch_of(following_records(starts, places), _FOLLOWING_DDL)

    return follow


def following_records(starts: np.ndarray, places: np.ndarray) -> list[tuple[int, int]]:
    """For damaged places (ascending) with one of these records before the next damaged place: the
    number of the damaged place, and the first such record."""
    numbers = np.searchsorted(starts, places) - 1
    least = np.full(len(starts), _NEVER, np.int64)
    np.minimum.at(least, numbers[numbers >= 0], places[numbers >= 0])
    found = np.flatnonzero(least < _NEVER)
    return list(zip(found.tolist(), least[found].tolist(), strict=True))


def _judge(damaged: list[Gap]) -> Callable[[pa.Table], pa.Table]:
    def judged(runs: pa.Table) -> pa.Table:
        found = check_numbering(runs_in(runs), damaged)
        return pa.Table.from_batches([batch_of(found, FINDINGS_DDL)])

    return judged


def _comparer(facts: StoreFacts) -> Callable[[pa.Table, pa.Table], pa.Table]:
    def compared(expected: pa.Table, entries: pa.Table) -> pa.Table:
        found = cross_check(expected.select(ENTRIES.names), entries.select(ENTRIES.names), facts)
        return pa.Table.from_batches([batch_of(found, FINDINGS_DDL)])

    return compared


# The report


def _report(
    spark: SparkSession, store: StoreInput, passes: _Passes, findings: list[Finding]
) -> JobResult:
    result = JobResult("audit")
    by_level = {level: sum(one.level is level for one in findings) for level in Level}
    counts = passes.counts
    result.facts = {
        "log_start": counts.log_start,
        "log_end": counts.log_end,
        "records": counts.records,
        "bytes": counts.bytes,
        "units": passes.entries,
        "bad_records": counts.bad,
        **{level.value: count for level, count in by_level.items()},
        "kinds": {kind: sum(one.kind == kind for one in findings) for kind in KINDS},
    }
    result.say(
        "read", f"{counts.records:,} records, {size_text(counts.bytes)}, {passes.entries:,} entries"
    )
    result.say("range", f"log offsets {counts.log_start} to {counts.log_end}")
    result.say("bad", f"{counts.bad:,} damaged places")
    report_losses(spark, result, passes.losses)
    for kind in dict.fromkeys(one.kind for one in findings):
        of_kind = [one for one in findings if one.kind == kind]
        title = f"{KINDS[kind].level.value.upper()}  {kind}: {KINDS[kind].meaning}"
        result.table(title, [_row(one) for one in of_kind], 10)
    damage = by_level[Level.DAMAGE]
    verdict = "SOUND" if not damage else f"DAMAGED: {damage} finding{'s' * (damage > 1)}"
    warnings = by_level[Level.WARNING]
    verdict += f", {warnings} warnings" if warnings else ""
    verdict += f", {lost_text(passes.losses)}" if passes.losses.ranges else ""
    result.lines += ["", f"{store.paths[0]} is {verdict}"]
    result.code = DAMAGED if damage else 0
    result.frames["findings"] = spark.createDataFrame(findings, FINDINGS_DDL)
    result.frames["damaged"] = spark.createDataFrame(
        passes.damaged, "start bigint, end bigint, reason string"
    )
    return result


def _row(one: Finding) -> dict[str, Any]:
    return {
        "topic": one.topic,
        "queue": one.queue_id,
        "number": one.slot,
        "log offset": one.log_offset,
        "what": one.what,
    }
