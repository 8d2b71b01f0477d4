"""The job `replay`: selected messages of a store or an archive, back into a topic.

Body, tags, keys and the user's properties stay; what a delivery added is left out. The properties
REPLAYED_FROM (topic, queue, number and id of the original) and REPLAYED_BORN_TIME (ms, its own time
of birth) are added, so that consumers can recognise a replayed message and drop a message they
have.

Records that are no messages are left out and counted (left_out.py). A delayed message counts as its
delivered copy, so a message that still waits at the end of the log is not sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from aerobee.pipeline.errors import OptionError
from aerobee.pipeline.jobs.archive import COLUMNS as ARCHIVE_COLUMNS
from aerobee.pipeline.jobs.archive import read_archive
from aerobee.pipeline.jobs.common.inputs import StoreInput
from aerobee.pipeline.jobs.common.job_result import JobFailed, JobResult
from aerobee.pipeline.jobs.common.left_out import WAITING, not_sent
from aerobee.pipeline.jobs.common.spark_session import step
from aerobee.protocol.message.record_layout import (
    SYS_COMPRESSED,
    SYS_COMPRESSION_MASK,
    SYS_COMPRESSION_ZLIB,
)
from aerobee.protocol.names import DLQ_PREFIX, RETRY_PREFIX

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

REPLAYED_FROM: Final = "REPLAYED_FROM"
REPLAYED_BORN_TIME: Final = "REPLAYED_BORN_TIME"
#: Properties that a producer, broker or delivery sets; a replayed message gets its own. TAGS and
#: KEYS go in columns of their own.
LEFT_OUT: Final = (
    "TAGS", "KEYS", "UNIQ_KEY", "WAIT", "DELAY", "REAL_TOPIC", "REAL_QID", "RETRY_TOPIC",
    "ORIGIN_MESSAGE_ID", "RECONSUME_TIME", "MAX_RECONSUME_TIMES", "TRAN_MSG", "PGROUP",
    "TRAN_PREPARED_QUEUE_OFFSET", "TRANSACTION_CHECK_TIMES", "CHECK_IMMUNITY_TIME_IN_SECONDS",
    "MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME", "CLUSTER", "MSG_REGION", "TRACE_ON",
    "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET", "__CRC32#", "SPARK_ID",
)  # fmt: skip
_PACKED = (
    f"(sysFlag & {SYS_COMPRESSED}) != 0 AND "
    f"(sysFlag & {SYS_COMPRESSION_MASK}) NOT IN (0, {SYS_COMPRESSION_ZLIB})"
)
_WHY = "whyLeftOut"
_SINK_DDL = "topic string, body binary, tags string, keys string, properties map<string,string>"
# A batch is sent at once, so it is cut to the number that fits into this part of a second.
_TICKS = 10


def replayable(rows: DataFrame, topic: str | None = None) -> DataFrame:
    """Rows for the sink: topic, body, tags, keys, properties. Without `topic` each message goes
    where it came from, retries and dead letters to their original topic."""
    from pyspark.sql import functions as f

    where = f.lit(topic) if topic else _origin()
    kept = f.map_filter("properties", lambda name, _: ~name.isin(*LEFT_OUT))
    source = f.concat_ws("/", "topic", "queueId", "queueOffset", "msgId")
    born = f.unix_millis("bornTimestamp").cast("string")
    names = (REPLAYED_FROM, REPLAYED_BORN_TIME)
    kept = f.map_filter(kept, lambda name, _: ~name.isin(*names))
    added = f.create_map(f.lit(names[0]), source, f.lit(names[1]), born)
    return rows.select(
        where.alias("topic"), "body", "tags", "keys", f.map_concat(kept, added).alias("properties")
    )


def _origin() -> Column:
    from pyspark.sql import functions as f

    topic = f.col("topic")
    returned = topic.startswith(RETRY_PREFIX) | topic.startswith(DLQ_PREFIX)
    properties = f.col("properties")
    asked = f.coalesce(properties["RETRY_TOPIC"], properties["REAL_TOPIC"], topic)
    return f.when(returned, asked).otherwise(topic)


def replay(
    spark: SparkSession,
    source: StoreInput | str,
    name_servers: str,
    *,
    topic: str | None = None,
    where: str | None = None,
    topics: Sequence[str] = (),
    begin_ms: int | None = None,
    end_ms: int | None = None,
    rate: float | None = None,
    dry_run: bool = False,
    sink: dict[str, str] | None = None,
) -> JobResult:
    """Send the messages of a store, or of the archive at that place, that `where` (SQL on the
    columns), topics and store times select. `rate` is messages a second; `sink` are further options
    of the sink.

    Frames: `messages` (those that are, or would be, sent), `topics` (their number for each). Raises
    JobFailed when a message would go where nobody may send, and before anything is read when
    nothing can be sent at all: nobody answers, an option is wrong.
    """
    result = JobResult("replay")
    options = {"nameServer": name_servers} | (sink or {})
    if not dry_run:
        step(spark, f"looking for the brokers of {name_servers}")
        _check_sink(options)
    step(spark, "selecting messages")
    every, bad = _rows(spark, source)
    rows = _selected(every, topics, begin_ms, end_ms)
    if where:
        rows = rows.where(where)
    rows = rows.withColumn(_WHY, not_sent(topics, where))
    found, others = _counted(rows)
    waiting = _still_waiting(spark, source, rows) if WAITING in others else 0
    rows = rows.where(f"{_WHY} is null").drop(_WHY)
    messages = replayable(rows.orderBy("commitLogOffset"), topic)
    counts = messages.groupBy("topic").count().orderBy("topic")
    targets = [row.asDict() for row in counts.collect()]
    _check_targets([row["topic"] for row in targets])
    result.facts = {
        "messages": found[0],
        "log_start": found[1],
        "log_end": found[2],
        "bad_records": bad,
        "left_out": others,
        "still_waiting": waiting,
        "dry_run": dry_run,
    }
    _report(result)
    result.table("to topic", targets, 50)
    result.frames |= {"messages": messages, "topics": counts}
    if dry_run:
        result.lines += ["", "nothing was sent (dry run)"]
    elif found[0]:
        step(spark, f"sending {found[0]:,} messages")
        _send(messages, options, rate, result)
    return result


def still_waiting(waiting: DataFrame, rows: DataFrame) -> int:
    """The number of these waiting copies that no delivered copy follows in `rows`.

    A delivered copy has the original's topic, unique key and time of birth; a message that waits
    again and again (retries) has a delivered copy for each time, so each is looked for after its
    own place.
    """
    from pyspark.sql import functions as f

    meant, unique = f.col("properties")["REAL_TOPIC"], f.col("properties")["UNIQ_KEY"]
    born, place = f.col("bornTimestamp"), f.col("commitLogOffset")
    one = waiting.select(
        meant.alias("topic1"), unique.alias("key1"), born.alias("born1"), place.alias("place1")
    )
    two = rows.select(
        f.col("topic").alias("topic2"),
        unique.alias("key2"),
        born.alias("born2"),
        place.alias("place2"),
    )
    is_delivered = (
        (f.col("topic1") == f.col("topic2"))
        & f.col("key1").eqNullSafe(f.col("key2"))
        & f.col("born1").eqNullSafe(f.col("born2"))
        & (f.col("place2") > f.col("place1"))
    )
    return int(one.join(two, is_delivered, "left_anti").count())


def _counted(rows: DataFrame) -> tuple[tuple[int, int | None, int | None], dict[str, int]]:
    """Messages with their first and last log offset, and the number of rows that are no messages,
    by reason."""
    from pyspark.sql import functions as f

    place = f.col("commitLogOffset")
    sums = rows.groupBy(_WHY).agg(f.count("*"), f.min(place), f.max(place)).collect()
    found = next(((row[1], row[2], row[3]) for row in sums if row[0] is None), (0, None, None))
    return found, {row[0]: row[1] for row in sums if row[0] is not None}


def _report(result: JobResult) -> None:
    facts = result.facts
    at = f" at log offsets {facts['log_start']} to {facts['log_end']}" if facts["messages"] else ""
    result.say("selected", f"{facts['messages']:,} messages{at}")
    for why, count in sorted(facts["left_out"].items()):
        result.say("left out", f"{count:,} records: {why}")
    if facts["still_waiting"]:
        text = "delayed messages are not delivered yet, and so not sent"
        result.say("waiting", f"{facts['still_waiting']:,} {text}")
    result.say("bad", f"{facts['bad_records']:,} damaged places or unreadable bodies, left out")


def _rows(spark: SparkSession, source: StoreInput | str) -> tuple[DataFrame, int]:
    if isinstance(source, str):
        rows = read_archive(spark, source)
        # In an archive bodies are as their producer packed them; sent as plain bodies nobody could
        # read them.
        return rows.where(f"NOT ({_PACKED})"), rows.where(_PACKED).count()
    rows = source.rows(spark, [*ARCHIVE_COLUMNS, "error"], checkCrc="true")
    return rows.where("error is null"), rows.where("error is not null").count()


def _still_waiting(spark: SparkSession, source: StoreInput | str, rows: DataFrame) -> int:
    """How many of the waiting copies in `rows` were not delivered, at whatever time."""
    step(spark, "looking for the delivered copies of delayed messages")
    if isinstance(source, str):
        every = read_archive(spark, source)
    else:
        columns = ("topic", "properties", "bornTimestamp", "commitLogOffset", "error")
        every = replace(source, topics=(), end_ms=None).rows(spark, columns)
        every = every.where("error is null")
    return still_waiting(rows.where(f"{_WHY} = '{WAITING}'"), every)


def _selected(
    rows: DataFrame, topics: Sequence[str], begin_ms: int | None, end_ms: int | None
) -> DataFrame:
    from pyspark.sql import functions as f

    if topics:
        rows = rows.where(f.col("topic").isin(*topics))
    stored = f.unix_millis("storeTimestamp")
    if begin_ms is not None:
        rows = rows.where(stored >= begin_ms)
    return rows if end_ms is None else rows.where(stored < end_ms)


def _check_sink(options: dict[str, str]) -> None:
    """Refuse the options that the write would refuse, after hours of reading."""
    from pyspark.sql.types import StructType

    from aerobee.pipeline.sink.schema import SinkSchemaError
    from aerobee.pipeline.sink.write_plan import SinkPlanError, plan_write

    try:
        plan_write(options, StructType.fromDDL(_SINK_DDL).fields, streaming=False)
    except (OptionError, SinkPlanError, SinkSchemaError) as error:
        raise JobFailed(str(error)) from error


def _check_targets(topics: Sequence[str]) -> None:
    from aerobee.protocol.names import NO_SEND_TOPICS

    for topic in topics:
        if topic in NO_SEND_TOPICS or topic.startswith(DLQ_PREFIX):
            raise JobFailed(
                f"messages of {topic} cannot be sent there; select others with --where, or name a "
                "topic for all of them with --to"
            )


def _send(
    messages: DataFrame, options: dict[str, str], rate: float | None, result: JobResult
) -> None:
    from aerobee.pipeline.jobs.common.inputs import register_topics
    from aerobee.pipeline.sink.write_plan import is_job_done

    result.facts["sent"] = 0
    if is_job_done(options):
        result.lines += ["", f"nothing sent: job {options['jobId']} was done before"]
        return
    register_topics(messages.sparkSession)
    if rate:
        # One task, so that the rate is the rate, and the order of the log is kept.
        messages = messages.coalesce(1).mapInArrow(lambda rows: rate_limited(rows, rate), _SINK_DDL)
    messages.write.format("rocketmq").options(**options).mode("append").save()
    result.facts["sent"] = result.facts["messages"]
    result.say("sent", f"{result.facts['messages']:,} messages to {options['nameServer']}")


def rate_limited(
    batches: Iterator[pa.RecordBatch],
    rate: float,
    now: Callable[[], float] = time.monotonic,
    wait: Callable[[float], None] = time.sleep,
) -> Iterator[pa.RecordBatch]:
    """Hand the rows on, at most `rate` of them a second on the average and about a tenth of that at
    once. A slow reader does not get later what it left unused."""
    assert rate > 0
    most = max(1, int(rate / _TICKS))
    due = now()
    for batch in batches:
        for first in range(0, batch.num_rows, most):
            left = due - now()
            if left > 0:
                wait(left)
            piece = batch.slice(first, most)
            due = max(due, now()) + piece.num_rows / rate
            yield piece
