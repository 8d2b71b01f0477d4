"""Finds how many messages of which topics damaged ranges of a log held, as far as that is known.

Either of two things shows a message that cannot be read any more:

- its consume queue entry, which points into the range: exactly this message, this topic and queue;
- where that is gone too, the numbers of its queue: the records before and after the damage show how
  many are missing between them. If several ranges lie between the two, nobody can say in which of
  them a message was; it is counted once, between the first and the last.

Neither shows a message without an entry: records that were not dispatched yet, half messages of a
broker of ours, the last messages of a queue without files. So a count is exact only where entries
account for all bytes of a range except fewer than the smallest record has; else it is a minimum. At
the end of a segment there may be up to a record's length of blank, which looks the same.

Entries and runs stay DataFrames; the driver gets a row for each range and queue.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from aerobee.pipeline.jobs.common.inputs import each_batch
from aerobee.pipeline.jobs.derived.entries import ENTRIES, ENTRIES_DDL, batch_of, schema_of
from aerobee.pipeline.jobs.derived.numbering import (
    RUNS_DDL,
    MissingNumbers,
    OffsetRun,
    missing_numbers,
    run_rows,
    runs_in,
)
from aerobee.protocol.message.record_layout import MIN_RECORD_BYTES
from aerobee.protocol.names import LMQ_PREFIX, is_light
from aerobee.store.log.scan.sequence import Gap

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Messages of one queue between log offsets `start` and `end`. These are the ends of one damaged
#: range or, where numbers show the loss, of the first and the last of several (`ranges`). `bytes`
#: are the entries'.
LOST_DDL: Final = (
    "start bigint, end bigint, ranges int, topic string, queueId int, messages bigint, "
    "bytes bigint, toldBy string"
)
#: A damaged range and what is known to have been in it and in no other.
DAMAGE_DDL: Final = (
    "start bigint, end bigint, bytes bigint, messages bigint, isExact boolean, "
    "topics map<string,bigint>, reason string"
)
BY_ENTRIES: Final = "entries"
BY_NUMBERS: Final = "numbers"
_WITHIN_DDL: Final = f"range int, {ENTRIES_DDL}"
_WITHIN: Final = schema_of(_WITHIN_DDL)


class DamagedRange(NamedTuple):
    """A range of the log between two sound records, or to the log's end, with what was lost."""

    start: int
    end: int
    bytes: int
    messages: int
    is_exact: bool
    topics: dict[str, int]
    reason: str


class Losses(NamedTuple):
    """Losses by range, by queue (rows of LOST_DDL, those with most messages), and by topic."""

    ranges: list[DamagedRange]
    by_queue: list[tuple[Any, ...]]
    by_topic: dict[str, int]

    @property
    def messages(self) -> int:
        """All that are known of."""
        return sum(self.by_topic.values())

    @property
    def is_exact(self) -> bool:
        """Whether there were no more."""
        return all(one.is_exact for one in self.ranges)


def damaged_stretches(damaged: Sequence[Gap], log_end: int) -> list[Gap]:
    """The damaged places, joined where no sound record lies between them, in order; the last ends
    at `log_end` at most."""
    found: list[Gap] = []
    for one in sorted(damaged):
        if found and one.start <= found[-1].end:
            found[-1] = found[-1]._replace(end=max(found[-1].end, one.end))
        else:
            found.append(one)
    return [one._replace(end=max(one.start, min(one.end, log_end))) for one in found]


def find_losses(
    spark: SparkSession,
    ranges: Sequence[Gap],
    runs: DataFrame,
    entries: DataFrame | None,
    most: int,
) -> Losses:
    """The losses in `ranges` (of damaged_stretches); of queues `most` rows. `runs` are
    those of the whole log (RUNS_DDL), `entries` all that name a place in it, if there are any."""
    from pyspark.sql import functions as f

    lost = _lost_messages(spark, ranges, runs, entries).persist()
    try:
        sums = lost.groupBy("topic").agg(f.sum("messages").alias("messages"))
        by_topic = {row[0]: row[1] for row in sums.orderBy(f.desc("messages"), "topic").collect()}
        largest = lost.orderBy(f.desc("messages"), "start", "topic", "queueId").limit(most)
        by_queue = [tuple(row) for row in largest.collect()]
        return Losses(_damage(ranges, lost), by_queue, by_topic)
    finally:
        lost.unpersist()


def _lost_messages(
    spark: SparkSession, ranges: Sequence[Gap], runs: DataFrame, entries: DataFrame | None
) -> DataFrame:
    """Rows of LOST_DDL: one row at most for a queue and range, and a row for a queue's hole."""
    if entries is None:
        within = spark.createDataFrame([], _WITHIN_DDL)
    else:
        within = entries.mapInArrow(each_batch(entries_within, ranges), _WITHIN_DDL)
    known = within.drop("range").mapInArrow(run_rows, RUNS_DDL)
    by_numbers = (
        runs.groupBy("topic", "queueId")
        .cogroup(known.groupBy("topic", "queueId"))
        .applyInArrow(_unexplained(ranges), LOST_DDL)
    )
    return _by_entries(spark, ranges, within).unionByName(by_numbers)


def _damage(ranges: Sequence[Gap], lost: DataFrame) -> list[DamagedRange]:
    """Each range with its sums of `lost` (LOST_DDL), in the order of the log."""
    from pyspark.sql import functions as f

    rows = (
        lost.where("ranges = 1")
        .groupBy("start", "topic")
        .agg(f.sum("messages"), f.sum(f.coalesce("bytes", f.lit(0))))
        .collect()
    )
    topics: dict[int, dict[str, int]] = {}
    sizes: dict[int, int] = {}
    for start, topic, messages, size in rows:
        topics.setdefault(start, {})[topic] = messages
        sizes[start] = sizes.get(start, 0) + size
    found = []
    for one in ranges:
        own = dict(sorted(topics.get(one.start, {}).items(), key=lambda item: (-item[1], item[0])))
        size = one.end - one.start
        is_exact = size - sizes.get(one.start, 0) < MIN_RECORD_BYTES
        found.append(
            DamagedRange(
                one.start, one.end, size, sum(own.values()), is_exact, own, one.reason
            )
        )  # fmt: skip
    return found


def _by_entries(spark: SparkSession, ranges: Sequence[Gap], within: DataFrame) -> DataFrame:
    """A message that several queues have an entry of counts once, as its own topic's."""
    from pyspark.sql import functions as f

    is_further = f.col("topic").startswith(LMQ_PREFIX)
    own = f.min(f.struct(is_further.alias("isFurther"), "topic", "queueId")).alias("own")
    messages = within.groupBy("range", "logOffset").agg(own, f.max("size").alias("size"))
    sums = messages.groupBy("range", "own.topic", "own.queueId").agg(
        f.count("*").alias("messages"), f.sum("size").alias("bytes")
    )
    places = spark.createDataFrame(
        [(number, one.start, one.end) for number, one in enumerate(ranges)],
        "range int, start bigint, end bigint",
    )
    return sums.join(places, "range").select(
        "start", "end", f.lit(1).alias("ranges"), "topic", "queueId", "messages", "bytes",
        f.lit(BY_ENTRIES).alias("toldBy"),
    )  # fmt: skip


# On the executors


def entries_within(entries: pa.RecordBatch, ranges: Sequence[Gap]) -> pa.RecordBatch:
    """The entries that point into a range, with its number; no size leads out of it."""
    starts = np.array([one.start for one in ranges], np.int64)
    ends = np.array([one.end for one in ranges], np.int64)
    places = entries.column("logOffset").to_numpy()
    numbers = np.searchsorted(starts, places, side="right") - 1
    rows = np.flatnonzero((numbers >= 0) & (places < ends[numbers]))
    kept, numbers = entries.take(pa.array(rows)), numbers[rows]
    size = np.clip(kept.column("size").to_numpy(), 0, ends[numbers] - places[rows])
    arrays = [pa.array(numbers.astype(np.int32))]
    for name in ENTRIES.names:
        is_size = name == "size"
        arrays.append(pa.array(size.astype(np.int32)) if is_size else kept.column(name))
    return pa.RecordBatch.from_arrays(arrays, schema=_WITHIN)


def still_missing(
    missing: Sequence[MissingNumbers], known: Sequence[OffsetRun], ranges: Sequence[Gap]
) -> Iterator[tuple[int, int, int, str, int, int, None, str]]:
    """Rows (LOST_DDL) for the messages of one queue that are missing and have no entry among
    `known`, the runs of slots whose entries point into a range."""
    starts = [one.start for one in ranges]
    range_ends = [one.end for one in ranges]
    known = sorted(known, key=lambda run: run.first)
    firsts = np.array([run.first for run in known], np.int64)
    ends = np.array([run.end for run in known], np.int64)
    for one in missing:
        # A message in a light queue is its own topic's message.
        inside = np.clip(np.minimum(ends, one.end) - np.maximum(firsts, one.first), 0, None)
        left = one.messages - int(inside.sum())
        # The ranges between the two records.
        first, end = bisect_right(range_ends, one.after), bisect_left(starts, one.before)
        if left > 0 and first < end and not is_light(one.topic):
            where = (starts[first], range_ends[end - 1], end - first)
            yield *where, one.topic, one.queue_id, left, None, BY_NUMBERS


def _unexplained(ranges: Sequence[Gap]) -> Callable[[pa.Table, pa.Table], pa.Table]:
    def left(runs: pa.Table, known: pa.Table) -> pa.Table:
        missing = missing_numbers(runs_in(runs), ranges)
        rows = list(still_missing(missing, runs_in(known), ranges))
        return pa.Table.from_batches([batch_of(rows, LOST_DDL)])

    return left
