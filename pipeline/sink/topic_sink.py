"""The writers behind `format("rocketmq")`: batch and stream, for PySpark 4.0 to 4.3.

A thin layer over `sink/task.py`. The version decides which class Spark is given: batch writes take
Arrow in all versions, streams take it since 4.1 and took rows before. A writer is made and planned
on the driver, pickled to the tasks, and made again from the pickle for commit and abort. So it
keeps only the plan, and for a batch the name of its query.

Spark gives a task its partition in the TaskContext, and a stream's query and batch as local
properties of that. It gives commit the batch only, so query and batch travel in the commit
messages.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from aerobee.pipeline.workers import plain_errors, prepare_worker

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:  # before 4.1
    DataSourceStreamArrowWriter = None

if TYPE_CHECKING:
    import pyarrow as pa

    from aerobee.pipeline.sink.task import GivenRows, TaskResult
    from aerobee.pipeline.sink.write_plan import SinkPlan

_BATCH_ID = "streaming.sql.batchId"
_QUERY_ID = "sql.streaming.queryId"


class OverwriteRefused(ValueError):
    """A topic has no content that could be replaced."""


@dataclass
class SinkCommit(WriterCommitMessage):
    """The message of a task to the driver."""

    result: TaskResult


def make_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool, *, streaming: bool
) -> TopicWriter | DataSourceStreamWriter:
    """Makes the writer for `DataSource.writer` and `streamWriter`. Raises the errors of
    planning."""
    if overwrite:
        asked, allowed = (
            (
                "outputMode complete",
                '"append"; an aggregation\'s rows are sent from foreachBatch, in outputMode '
                '"update" (docs/pipeline.md has one)',
            )
            if streaming
            else ("mode overwrite", '.mode("append")')
        )
        raise OverwriteRefused(f"{asked}: messages of a topic cannot be replaced; use {allowed}")
    from aerobee.pipeline.sink.write_plan import plan_write

    plan = plan_write(options, schema.fields, streaming=streaming)
    if not streaming:
        return TopicWriter(plan)
    kind = TopicStreamRowWriter if DataSourceStreamArrowWriter is None else TopicStreamWriter
    return kind(plan)


@plain_errors
class _DriverSide:
    """The part of every writer that runs on the driver. Spark gives `batchId` for streams only; it
    is not needed, because the commit messages have it."""

    def __init__(self, plan: SinkPlan) -> None:
        self._plan = plan

    def commit(self, messages: Sequence[SinkCommit | None], batchId: int = 0) -> None:
        """Runs when all tasks have ended; may be called again."""
        from aerobee.pipeline.sink.task import commit_write

        commit_write(self._plan, [message.result for message in messages if message is not None])

    def abort(self, messages: Sequence[SinkCommit | None], batchId: int = 0) -> None:
        """Runs when a task, or the commit, has failed."""
        from aerobee.pipeline.sink.task import abort_write

        abort_write(self._plan, [message.result for message in messages if message is not None])


@plain_errors
class TopicWriter(_DriverSide, DataSourceArrowWriter):
    """One batch write."""

    def __init__(self, plan: SinkPlan) -> None:
        super().__init__(plan)
        # Without jobId, this name stands for the write in the SPARK_ID of its rows.
        self._query = plan.query or f"write.{uuid.uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkCommit:
        """Runs in a task."""
        return _write(self._plan, self._query, 0, iterator)


@plain_errors
class TopicStreamRowWriter(_DriverSide, DataSourceStreamWriter):
    """One stream's writes, as rows."""

    def write(self, iterator: Iterator[Any]) -> SinkCommit:
        """Runs in a task."""
        return _write_stream(self._plan, iterator)


if DataSourceStreamArrowWriter is not None:

    @plain_errors
    class TopicStreamWriter(_DriverSide, DataSourceStreamArrowWriter):
        """One stream's writes, as Arrow batches."""

        def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkCommit:
            """Runs in a task."""
            return _write_stream(self._plan, iterator)


def _write_stream(plan: SinkPlan, given: GivenRows) -> SinkCommit:
    context = TaskContext.get()
    assert context is not None
    query = context.getLocalProperty(_QUERY_ID)
    batch = context.getLocalProperty(_BATCH_ID)
    if query is None or batch is None:
        raise RuntimeError(
            f"this Spark does not tell its tasks {_QUERY_ID} and {_BATCH_ID}, so batches cannot be "
            "told apart; PySpark 4.0 to 4.3 do"
        )
    return _write(plan, query, int(batch), given)


def _write(plan: SinkPlan, query: str, batch: int, given: GivenRows) -> SinkCommit:
    from aerobee.pipeline.sink.task import write_partition

    prepare_worker()
    context = TaskContext.get()
    assert context is not None
    return SinkCommit(write_partition(plan, query, batch, int(context.partitionId()), given))
