"""Runs one stream until it is stopped, has read what there was, or cannot go on.

Spark's checkpoint says which messages a batch has, the same ones when it is repeated; the tables
take each batch once (tables/). So a kill at any moment, of the driver, a worker or a broker, costs
the batch that was open, which the next run writes.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from aerobee.pipeline.jobs.checks import ParseTime, check_master
from aerobee.pipeline.jobs.common.inputs import register_topics
from aerobee.pipeline.jobs.common.job_result import JobFailed, JobResult, key_values
from aerobee.pipeline.jobs.common.spark_session import open_session, spark_version
from aerobee.pipeline.jobs.stream.bodies import IS_BAD, bad_rows, decoded, json_schema
from aerobee.pipeline.jobs.stream.failures import as_arguments, stream_failure
from aerobee.pipeline.jobs.stream.job_plan import JobPlan, TablePlan, as_uri, read_plan
from aerobee.pipeline.jobs.stream.reports import Report, Stopping
from aerobee.pipeline.jobs.stream.stream_memory import Memory, only_run
from aerobee.pipeline.jobs.stream.tables.delta import DeltaTable
from aerobee.pipeline.jobs.stream.tables.iceberg import IcebergTable
from aerobee.pipeline.jobs.stream.tables.packages import (
    check_asked,
    check_packages,
    no_packages,
    settings_of,
)
from aerobee.pipeline.jobs.stream.tables.parquet import ParquetTable
from aerobee.pipeline.jobs.stream.tables.table import Stream, Table
from aerobee.pipeline.jobs.targets.hadoop import open_target
from aerobee.pipeline.source.batch_plan import SubscribedQueues
from aerobee.pipeline.source.source_options import read_source_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Say = Callable[[str], None]
_POLL_S = 0.25


def run_stream(
    parsed: argparse.Namespace,
    parse_time: ParseTime,
    explained: Callable[[Exception, str], JobFailed],
    say: Say | None = None,
    spark: SparkSession | None = None,
) -> JobResult:
    """Run the stream that `parsed` (arguments.py) asks for. Raises JobFailed.

    `explained` makes the sentence of an error that any job may meet.
    """
    conf = key_values(parsed.conf, "--conf")
    check_master(parsed.master)
    plan = read_plan(parsed, parse_time)
    own = spark is None
    with only_run(plan), Stopping() as stopping:
        try:
            if spark is None:
                check_asked(plan, parsed.packages, spark_version())
                settings = settings_of(plan, parsed.packages, conf)
                spark = open_session(f"stream {plan.what}", parsed.master, settings)
            # The session has set its own ways with signals.
            stopping.listen()
            return _run(spark, plan, stopping, None if parsed.quiet else say)
        except JobFailed:
            raise
        except Exception as error:
            asked = settings_of(plan, parsed.packages, conf).get("spark.jars.packages")
            known = stream_failure(error, plan) or no_packages(error, asked)
            raise (known or as_arguments(explained(error, plan.mode))) from error
        finally:
            if own and spark is not None:
                with contextlib.suppress(Exception):
                    # After a signal to all processes of a service the JVM may be gone already.
                    spark.stop()


def _run(spark: SparkSession, plan: JobPlan, stopping: Stopping, say: Say | None) -> JobResult:
    check_packages(spark, plan)
    register_topics(spark)
    batches = Batches(spark, plan, say)
    query = _started(spark, plan, batches)
    report = Report(plan, say)
    watch(query, stopping, report, batches)
    return report.result(stopping.asked)


def watch(query: Any, stopping: Stopping, report: Report, batches: Batches) -> None:
    """Follow the query to its end, or stop it when that is asked. Raises the error that it failed
    of: that of a batch rather than Spark's account of it."""
    try:
        while query.isActive and not stopping.asked:
            query.awaitTermination(_POLL_S)
            report.look(query)
        if not stopping.asked:
            # A query that has failed since the last look says so here.
            query.awaitTermination()
    except Exception as error:
        # A run that is asked to end may be cut off in a batch, which the next run writes.
        if not stopping.asked:
            raise batches.failed or error from error
    finally:
        # The JVM may be gone, by the signal that reached us.
        with contextlib.suppress(Exception):
            query.stop()
            report.look(query)


class BatchFailed(Exception):
    """A batch has failed. Spark is given this in place of the error itself: of that it would make
    pages, with regular expressions for which those are too long."""


class Batches:
    """Writes each batch to one table or two, and now and then compacts the table."""

    def __init__(self, spark: SparkSession, plan: JobPlan, say: Say | None) -> None:
        self._plan, self._say = plan, say
        memory = Memory(open_target(spark, plan.checkpoint), plan)
        if memory.is_new:
            _find_topics(plan)
        schema = _json_schema(spark, plan, memory)
        source = spark.readStream.format("rocketmq").options(**plan.source).load()
        self.decoded = decoded(source, plan, schema)
        self._table = _table(spark, plan, plan.table, memory)
        self._bad: Table | None = None
        kept = schema.jsonValue() if schema is not None else memory.schema
        # The stream's id must be kept before a table is marked with it.
        memory.keep(kept, {})
        tables = {plan.table.place: (self._table, self.decoded.all(self.decoded.rows).schema)}
        if plan.bad_table is not None:
            self._bad = _table(spark, plan, plan.bad_table, memory)
            tables[plan.bad_table.place] = (self._bad, bad_rows(self.decoded.rows).schema)
        # All are checked first: a table that is refused leaves no other one made.
        for place, (table, rows) in tables.items():
            table.check(rows, memory.table(place))
        begun = {
            place: table.begin(rows, memory.table(place)) for place, (table, rows) in tables.items()
        }
        memory.keep(kept, begun)
        #: The error of a batch, at first hand.
        self.failed: Exception | None = None

    def write(self, batch: DataFrame, number: int) -> None:
        """For foreachBatch: called once for each batch, and again for a batch that was broken
        off."""
        try:
            self._write(batch, number)
            every = self._plan.table.compact_every
            if every and (number + 1) % every == 0:
                self._compact(number)
        except Exception as error:  # noqa: BLE001 - raised by watch()
            self.failed = error
            raise BatchFailed(f"batch {number} was not written") from None

    def _write(self, batch: DataFrame, number: int) -> None:
        if self._plan.body.kind == "binary" or (
            self._plan.mode == "permissive" and self._bad is None
        ):
            self._table.write(self.decoded.all(batch), number)
            return
        if self._bad is None:
            self._table.write(self.decoded.good(batch), number)
            return
        # Read and decoded once for both.
        batch = batch.persist()
        try:
            self._bad.write(bad_rows(batch), number)
            self._table.write(self.decoded.good(batch), number)
        finally:
            batch.unpersist()

    def _compact(self, number: int) -> None:
        """Compact the table. An error of Spark's is said, and the next time tries again: no row
        depends on it."""
        from pyspark.errors import PySparkException

        try:
            self._table.compact()
        except Exception as error:
            if not isinstance(error, PySparkException) and "Py4J" not in type(error).__name__:
                raise
            if self._say is not None:
                cause = " ".join(str(error).split("\n\tat ")[0].split())[:300]
                self._say(f"table {self._plan.table.place} was not compacted: {cause}")


def _started(spark: SparkSession, plan: JobPlan, batches: Batches) -> Any:
    from pyspark.sql import functions as f

    counted = batches.decoded.rows.observe(
        "aerobee", f.count(f.lit(1)).alias("rows"), f.count_if(IS_BAD).alias("bad")
    )
    writer = counted.writeStream.queryName(f"aerobee {plan.route}"[:200])
    writer = writer.option("checkpointLocation", as_uri(plan.checkpoint))
    if plan.available_now:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{round(plan.trigger_s * 1000)} milliseconds")
    return writer.foreachBatch(batches.write).start()


def _find_topics(plan: JobPlan) -> None:
    """Raises PipelineError for a topic that is not there, or name servers that do not answer,
    before the checkpoint is that topic's for ever."""
    subscribed = SubscribedQueues(read_source_options(plan.source, streaming=True))
    try:
        subscribed.queues()
    finally:
        subscribed.close()


def _json_schema(spark: SparkSession, plan: JobPlan, memory: Memory) -> StructType | None:
    from pyspark.sql.types import StructType

    if plan.body.kind != "json":
        return None
    kept = None if memory.schema is None else StructType.fromJson(dict(memory.schema))
    options = dict(plan.source) | {"columns": "body"}
    for name in ("maxOffsetsPerTrigger", "startStateLocation", "startingOffsets"):
        options.pop(name, None)
    sample = spark.read.format("rocketmq").options(**options).load() if kept is None else None
    return json_schema(spark, plan, kept, sample)


def _table(spark: SparkSession, plan: JobPlan, table: TablePlan, memory: Memory) -> Table:
    kinds: dict[str, Callable[[SparkSession, TablePlan, Stream], Table]]
    kinds = {"parquet": ParquetTable, "delta": DeltaTable, "iceberg": IcebergTable}
    stream = Stream(memory.id, plan.what, plan.checkpoint)
    return kinds[table.format](spark, table, stream)
