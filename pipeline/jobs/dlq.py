"""The job `dlq`: which messages were given up, by whom, why and when; feeds `replay`.

A dead letter is in the topic `%DLQ%<group>`; its properties name the topic it came from. A broker
does not store why, but the count of tries shows it: they were used up, or the consumer gave up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from aerobee.client.administration.dead_letter_reasons import DEFAULT_TRIES, GIVEN_UP, USED_UP
from aerobee.pipeline.jobs.common.inputs import StoreInput
from aerobee.pipeline.jobs.common.job_result import JobResult, cell_text
from aerobee.pipeline.jobs.common.spark_session import step
from aerobee.protocol.names import DLQ_PREFIX

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS: Final = (
    "topic", "queueId", "queueOffset", "body", "properties", "keys", "tags", "msgId",
    "offsetMsgId", "bornTimestamp", "storeTimestamp", "reconsumeTimes", "commitLogOffset", "error",
)  # fmt: skip
_SAMPLE_CHARS = 120


def dead_letters(rows: DataFrame) -> DataFrame:
    """The dead letters among rows of a store or an archive, with `group`, `originTopic`, `tries`,
    `reason` and `originMsgId`."""
    from pyspark.sql import functions as f

    given = f.col("properties")["MAX_RECONSUME_TIMES"]
    most = f.coalesce(given.try_cast("int"), f.lit(DEFAULT_TRIES))
    # The broker counts the sending back that made it a dead letter, too (store/FORMAT.md 12.3).
    tries = f.col("reconsumeTimes") - 1
    return (
        rows.where(f.col("topic").startswith(DLQ_PREFIX))
        .withColumn("group", f.substring("topic", len(DLQ_PREFIX) + 1, 255))
        .withColumn("originTopic", f.col("properties")["RETRY_TOPIC"])
        .withColumn("originMsgId", f.col("properties")["ORIGIN_MESSAGE_ID"])
        .withColumn("tries", f.greatest(tries, f.lit(0)))
        .withColumn("reason", f.when(tries >= most, USED_UP).otherwise(GIVEN_UP))
    )


def dlq(
    spark: SparkSession, store: StoreInput, *, topics: Sequence[str] = (), samples: int = 3
) -> JobResult:
    """Frames: `letters` (each letter), `groups` (sums by group, topic and reason).

    `topics` are those the letters came from, or those they are in.
    """
    from pyspark.sql import functions as f

    result = JobResult("dlq")
    step(spark, "looking for dead letters")
    rows = store.rows(spark, COLUMNS)
    bad = rows.where("error is not null").count()
    letters = dead_letters(rows.where("error is null")).drop("error")
    if topics:
        letters = letters.where(f.col("originTopic").isin(*topics) | f.col("topic").isin(*topics))
    groups = letters.groupBy("group", "originTopic", "reason").agg(
        f.count("*").alias("messages"),
        f.min("tries").alias("triesMin"),
        f.max("tries").alias("triesMax"),
        f.min("storeTimestamp").alias("oldest"),
        f.max("storeTimestamp").alias("newest"),
    )
    summed = groups.orderBy(f.desc("messages"), "group").collect()
    total = sum(row["messages"] for row in summed)
    ends = letters.agg(f.min("commitLogOffset"), f.max("commitLogOffset")).collect()[0]
    result.facts = {
        "dead_letters": total,
        "bad_records": bad,
        "log_start": ends[0],
        "log_end": ends[1],
    }
    where = f" at log offsets {ends[0]} to {ends[1]}" if total else ""
    result.say("found", f"{total:,} dead letters{where}")
    result.say("bad", f"{bad:,} damaged places")
    result.table("by group, topic and reason", [row.asDict() for row in summed], 50)
    if samples:
        _add_samples(letters, result, samples)
    result.frames |= {"letters": letters, "groups": groups}
    return result


def _add_samples(letters: DataFrame, result: JobResult, samples: int) -> None:
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    order = Window.partitionBy("group", "originTopic").orderBy(f.desc("commitLogOffset"))
    newest = letters.withColumn("n", f.row_number().over(order)).where(f.col("n") <= samples)
    start = f.substring("body", 1, 4 * _SAMPLE_CHARS).alias("start")
    chosen = newest.select("group", "originTopic", "msgId", "keys", f.length("body"), start)
    found = []
    for row in chosen.orderBy("group", "originTopic").limit(100).collect():
        names = ("group", "topic", "id", "keys", "bytes", "body")
        shown = dict(zip(names, row, strict=True))
        found.append(shown | {"body": body_sample(bytes(row["start"]))})
    result.table(f"newest of each group (up to {samples})", found, 100)


def body_sample(start: bytes) -> str:
    """The first characters of a body on one line; bytes that are no text as hexadecimal."""
    try:
        # A character may be cut in two at the end.
        text = start.decode("utf-8", "strict" if len(start) < 4 * _SAMPLE_CHARS else "ignore")
    except UnicodeDecodeError:
        return f"0x{start[: _SAMPLE_CHARS // 2].hex()}"
    text = "".join(one if one.isprintable() else " " for one in text)
    return cell_text(text if len(text) <= _SAMPLE_CHARS else text[:_SAMPLE_CHARS] + "...")
