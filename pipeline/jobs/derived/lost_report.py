"""Reports what an audit found lost: lines, facts and frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from aerobee.pipeline.jobs.common.job_result import JobResult, size_text
from aerobee.pipeline.jobs.derived.lost_messages import DAMAGE_DDL, LOST_DDL, DamagedRange, Losses

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The most ranges in the facts, those with most messages; the frame has all.
MOST_IN_FACTS: Final = 1000
_MOST_LINES: Final = 20
_MOST_TOPICS: Final = 5


def report_losses(spark: SparkSession, result: JobResult, losses: Losses) -> None:
    """Put the lost messages into the report, the facts and the frames `damage` and `lost`."""
    ranges = losses.ranges
    largest = sorted(ranges, key=lambda one: (-one.messages, one.start))
    between = [row for row in losses.by_queue if row[2] > 1]
    result.facts |= {
        "damaged_ranges": len(ranges),
        "damaged_bytes": sum(one.bytes for one in ranges),
        "lost_messages": losses.messages,
        "lost_is_exact": losses.is_exact,
        "lost_by_topic": losses.by_topic,
        "lost_by_range": [one._asdict() for one in largest[:MOST_IN_FACTS]],
        "lost_between": [_between(row) for row in between[:MOST_IN_FACTS]],
    }
    if ranges:
        size = size_text(sum(one.bytes for one in ranges))
        result.say("lost", f"{lost_text(losses)}, in {len(ranges):,} damaged ranges ({size})")
        title = "damaged ranges of the log, and the messages in them"
        result.table(title, [_row(one) for one in largest], _MOST_LINES)
        title = "messages that were in one of several damaged ranges"
        result.table(title, [_between(row) for row in between], _MOST_LINES)
    result.frames["damage"] = spark.createDataFrame(ranges, DAMAGE_DDL)
    result.frames["lost"] = spark.createDataFrame(losses.by_queue, LOST_DDL)


def lost_text(losses: Losses) -> str:
    """How many messages were lost, in words."""
    if losses.messages or losses.is_exact:
        noun = "message" if losses.messages == 1 else "messages"
        return f"{_count(losses.messages, losses.is_exact)} {noun} lost"
    return "nothing tells how many messages were lost"


def _count(messages: int, is_exact: bool) -> str:
    if is_exact:
        return f"{messages:,}"
    return f"at least {messages:,}" if messages else "unknown"


def _row(one: DamagedRange) -> dict[str, Any]:
    topics = [f"{topic} {count:,}" for topic, count in one.topics.items()]
    more = len(topics) - _MOST_TOPICS
    return {
        "from": one.start,
        "to": one.end,
        "bytes": one.bytes,
        "messages": _count(one.messages, one.is_exact),
        "of": ", ".join(topics[:_MOST_TOPICS]) + (f" and {more} more topics" if more > 0 else ""),
    }


def _between(row: tuple[Any, ...]) -> dict[str, Any]:
    start, end, ranges, topic, queue_id, messages, _, _ = row
    return {
        "from": start, "to": end, "ranges": ranges, "topic": topic, "queue": queue_id,
        "messages": messages,
    }  # fmt: skip
