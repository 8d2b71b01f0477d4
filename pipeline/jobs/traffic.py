"""The job `traffic`: how many messages of what size came when, from whom, and how late.

Everything is summed by Spark; the report and the plots are made of the sums. A record counts as
what its topic says: a delayed message is in the log twice (waiting, and delivered), a retried one
once more for each try; those shares are shown. Rows that a sink of ours staged are no messages:
they have their share, and are in no other table.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from aerobee.pipeline.jobs.common.inputs import StoreInput
from aerobee.pipeline.jobs.common.job_result import JobResult, size_text
from aerobee.pipeline.jobs.common.left_out import STAGED
from aerobee.pipeline.jobs.common.spark_session import step
from aerobee.protocol.names import (
    DLQ_PREFIX,
    HALF_TOPIC,
    OP_HALF_TOPIC,
    RETRY_PREFIX,
    STAGE_TOPIC,
    WAITING_TOPICS,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

COLUMNS: Final = (
    "topic", "queueId", "tags", "bornTimestamp", "storeTimestamp", "bornHost", "recordSize",
    "commitLogOffset", "error",
)  # fmt: skip
#: Shares of the percentiles of sizes and latencies.
PERCENTILES: Final = (0.5, 0.9, 0.99, 0.999)
_MOST_GROUPS = 1000


def traffic(spark: SparkSession, store: StoreInput) -> JobResult:
    """Frames: `topics`, `tags`, `producers`, `queues`, `hours`, `minutes`, `kinds`, each with
    messages and bytes; topics and tags with percentiles of size and latency (ms)."""
    from pyspark import StorageLevel

    result = JobResult("traffic")
    step(spark, "summing up the log")
    everything = store.rows(spark, COLUMNS).persist(StorageLevel.DISK_ONLY)
    try:
        _sum(spark, everything, result)
    finally:
        everything.unpersist()
    return result


def _sum(spark: SparkSession, everything: DataFrame, result: JobResult) -> None:
    from pyspark.sql import functions as f

    rows = everything.where("error is null").withColumns(
        {
            "kind": _kind(),
            "latencyMs": f.unix_millis("storeTimestamp") - f.unix_millis("bornTimestamp"),
            "minuteMs": f.expr("unix_millis(storeTimestamp) div 60000 * 60000"),
            "hour": f.date_trunc("hour", "storeTimestamp"),
            "producer": f.regexp_replace("bornHost", r":[0-9]+$", ""),
        }
    )
    messages = rows.where(f.col("topic") != STAGE_TOPIC)
    spread = [*_percentiles("recordSize", "size"), *_percentiles("latencyMs", "latency")]
    early = f.count(f.when(f.col("latencyMs") < 0, 1)).alias("storedBeforeBorn")
    sums = {
        "topics": _grouped(messages, ["topic"], *spread, early),
        "tags": _grouped(messages, ["topic", "tags"], *spread),
        "producers": _grouped(messages, ["producer"]),
        "queues": _grouped(messages, ["topic", "queueId"]),
        "hours": _grouped(messages, ["hour", "topic"]),
        "minutes": _grouped(messages, ["minuteMs"]),
        "kinds": _grouped(rows, ["kind"]),
    }
    tables = {name: _collected(frame) for name, frame in sums.items()}
    # Frames of the sums only, so that nobody reads the log again to look at them.
    result.frames = {
        name: spark.createDataFrame(found, sums[name].schema) for name, found in tables.items()
    }
    bad = f.count(f.when(f.col("error").isNotNull(), 1))
    ends = everything.agg(bad, f.min("commitLogOffset"), f.max("commitLogOffset")).collect()[0]
    result.facts = {"bad_records": ends[0], "log_start": ends[1], "log_end": ends[2]}
    _report(result, tables)


def _kind() -> Column:
    from pyspark.sql import functions as f

    topic = f.col("topic")
    return (
        f.when(topic.isin(*WAITING_TOPICS), "waiting for their time")
        .when(topic == STAGE_TOPIC, STAGED)
        .when(topic.startswith(RETRY_PREFIX), "retries")
        .when(topic.startswith(DLQ_PREFIX), "dead letters")
        .when(topic.isin(HALF_TOPIC, OP_HALF_TOPIC), "transactions' own")
        .otherwise("messages")
    )


def _percentiles(column: str, name: str) -> list[Column]:
    from pyspark.sql import functions as f

    found = [
        f.percentile_approx(column, share).alias(f"{name}P{share * 100:g}".replace(".", "_"))
        for share in PERCENTILES
    ]
    return [*found, f.max(column).alias(f"{name}Max")]


def _grouped(rows: DataFrame, by: list[str], *more: Column) -> DataFrame:
    from pyspark.sql import functions as f

    sums = [f.count("*").alias("messages"), f.sum("recordSize").alias("bytes")]
    return rows.groupBy(*by).agg(*sums, *more)


def _collected(frame: DataFrame) -> list[dict[str, Any]]:
    """The groups with the most messages; those by time all of them."""
    from pyspark.sql import functions as f

    if frame.columns[0] in ("hour", "minuteMs"):
        found = frame.orderBy(frame.columns[0])
    else:
        found = frame.orderBy(f.desc("messages"), frame.columns[0]).limit(_MOST_GROUPS)
    return [row.asDict() for row in found.collect()]


def _report(result: JobResult, tables: dict[str, list[dict[str, Any]]]) -> None:
    facts = result.facts
    records = sum(row["messages"] for row in tables["kinds"])
    staged = sum(row["messages"] for row in tables["kinds"] if row["kind"] == STAGED)
    total = sum(row["bytes"] for row in tables["kinds"])
    pace = rate([(row["minuteMs"], row["messages"], row["bytes"]) for row in tables["minutes"]])
    facts |= {"records": records, "staged": staged, "bytes": total, "rate": pace._asdict()}
    facts["tables"] = {name: _plain(rows) for name, rows in tables.items() if name != "minutes"}
    result.say("read", f"{records:,} records, {size_text(total)}")
    result.say("range", f"log offsets {facts['log_start']} to {facts['log_end']}")
    result.say("bad", f"{facts['bad_records']:,} damaged places, left out")
    result.say(
        "rate",
        f"{pace.messages:,.1f} messages/s and {size_text(int(pace.bytes))}/s on the average, "
        f"{pace.peak_messages:,.1f}/s in the busiest minute",
    )
    kinds = [row | {"share %": 100 * row["messages"] / records} for row in tables["kinds"]]
    result.table("what the records are", kinds)
    result.table("by topic", [_shown(row, ("topic",)) for row in tables["topics"]])
    result.table("by tag", [_shown(row, ("topic", "tags")) for row in tables["tags"]])
    result.table("by producer", tables["producers"])
    result.table("queues used unevenly", hot_queues(tables["queues"]))


def _plain(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows in a form that JSON can hold."""
    return [
        {name: v.isoformat() if isinstance(v, datetime) else v for name, v in row.items()}
        for row in rows
    ]


def _shown(row: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """The columns of a row for the report; the frame has all of them."""
    values = ("messages", "bytes", "sizeP50", "sizeP99", "latencyP50", "latencyP99", "latencyMax")
    return {name: row[name] for name in (*names, *values)}


def hot_queues(queues: list[dict[str, Any]], times_mean: float = 2.0) -> list[dict[str, Any]]:
    """Topics with a queue that has at least that many times the mean of all their queues."""
    by_topic: dict[str, dict[int, int]] = {}
    for row in queues:
        by_topic.setdefault(row["topic"], {})[row["queueId"]] = row["messages"]
    found = []
    for topic, counts in sorted(by_topic.items()):
        one = skew(counts)
        if one.queues > 1 and one.times_mean >= times_mean:
            found.append(
                {
                    "topic": topic,
                    "queues": one.queues,
                    "busiest": one.busiest,
                    "share %": 100 * one.share,
                    "times mean": one.times_mean,
                }
            )
    return found


class Rate(NamedTuple):
    """Messages and bytes a second over the whole time, and in the busiest minute."""

    seconds: float
    messages: float
    bytes: float
    peak_messages: float
    peak_bytes: float
    peak_minute_ms: int


def rate(minutes: Sequence[tuple[int, int, int]]) -> Rate:
    """The rate from sums a minute: (its begin in ms, messages, bytes), in any order, quiet minutes
    left out.

    The whole time is from the first minute to the end of the last.
    """
    if not minutes:
        return Rate(0.0, 0.0, 0.0, 0.0, 0.0, 0)
    seconds = (max(one[0] for one in minutes) - min(one[0] for one in minutes)) / 1000 + 60
    busiest = max(minutes, key=lambda one: (one[1], one[2]))
    return Rate(
        seconds,
        sum(one[1] for one in minutes) / seconds,
        sum(one[2] for one in minutes) / seconds,
        busiest[1] / 60,
        max(one[2] for one in minutes) / 60,
        busiest[0],
    )


class Skew(NamedTuple):
    """How a topic's messages are spread over its queues: the share of the busiest queue, and how
    many times the mean that is."""

    queues: int
    busiest: int
    share: float
    times_mean: float


def skew(counts: dict[int, int]) -> Skew:
    """The skew of messages by queue id (at least one queue, at least one message)."""
    total = sum(counts.values())
    busiest = max(sorted(counts), key=lambda queue_id: counts[queue_id])
    most = counts[busiest]
    return Skew(len(counts), busiest, most / total, most * len(counts) / total)
