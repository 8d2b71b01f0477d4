"""`format("rocketmq")` for Spark: one class for PySpark 4.0 to 4.3, batch and stream.

A thin layer: options come in, plans of `batch_plan.py` and `stream_plan.py` become Spark's
partitions, and `range_rows.py` reads them. A comment stands where versions of PySpark differ.

Several processes run this: schema() and the readers' planning run in short driver processes, a
stream reader's offsets in a process that lives as long as the query, read() in the executors'
workers, where the reader arrives pickled. So only objects made inside such a call hold a socket,
and nothing heavy (numpy, pyarrow, msgspec) is imported before such a call: Spark imports this
module while it looks for data sources, and a failure would hide all of them without a word.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from aerobee.pipeline.brokers.offsets import (
    Position,
    Range,
    position_from_json,
    position_to_json,
    split,
    to_json,
)
from aerobee.pipeline.decode.columns import ddl
from aerobee.pipeline.decode.selection import Selection, selection_of
from aerobee.pipeline.errors import OptionError, PipelineError
from aerobee.pipeline.workers import plain_errors, prepare_worker

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )

    HAS_LIMITS = True
except ImportError:  # before 4.2: no limits, and no target for availableNow
    HAS_LIMITS = False

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Stands in for a class that this version of PySpark does not know."""


if TYPE_CHECKING:
    import pyarrow as pa

    from aerobee.pipeline.source.source_options import SourceOptions
    from aerobee.pipeline.source.stream_plan import StreamPlan

log = logging.getLogger("aerobee.pipeline")


@plain_errors
class TopicSource(DataSource):
    """The data source `rocketmq`."""

    @classmethod
    def name(cls) -> str:
        """The name for `format(...)`."""
        return "rocketmq"

    def schema(self) -> str:
        """The columns asked for, as DDL. Raises OptionError for any option that is wrong."""
        prepare_worker()
        return ddl(self._options(None).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch reader. It has pushFilters only with the option `pushdown`: Spark refuses it
        else."""
        options = self._options(False, schema)
        return FilteringTopicReader(options) if options.pushdown else TopicReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A stream reader. If an option is wrong, the reader fails at its first call: in place of
        an error raised here PySpark's planning process reports an error of its own."""
        try:
            return TopicStreamReader(self._options(True, schema))
        except OptionError as error:
            return RefusedStreamReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A batch writer; refuses by name what cannot be written."""
        from aerobee.pipeline.sink.topic_sink import make_writer

        return make_writer(self.options, schema, overwrite, streaming=False)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """A stream writer; refuses by name what cannot be written."""
        from aerobee.pipeline.sink.topic_sink import make_writer

        return make_writer(self.options, schema, overwrite, streaming=True)

    def _options(self, streaming: bool | None, schema: StructType | None = None) -> SourceOptions:
        from aerobee.pipeline.source.source_options import read_source_options

        options = read_source_options(self.options, streaming=streaming)
        own = [(column.name, column.type) for column in options.columns]
        if schema is not None and own != [
            (column.name, column.dataType.simpleString()) for column in schema.fields
        ]:
            raise OptionError(
                "a schema cannot be given for this source; option columns chooses and orders the "
                "columns"
            )
        return options


@plain_errors
class _Reading:
    """The part that batch and stream readers share: options, and reading one partition."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition. An empty plan is read too: as InputPartition(None), or None
        itself before 4.1."""
        from aerobee.pipeline.source.range_rows import read_range

        prepare_worker()
        if partition is not None and partition.value is not None:
            yield from read_range(self._options, partition.value)

    def _partitions(self, ranges: list[Range]) -> list[InputPartition]:
        options = self._options
        pieces = split(ranges, options.min_partitions, options.partition_rows)
        return [InputPartition(one) for one in pieces]


@plain_errors
class TopicReader(_Reading, DataSourceReader):
    """Reads what is there when the DataFrame is planned."""

    _pushed: Selection | None = None

    def partitions(self) -> list[InputPartition]:
        """One for each queue with messages, or as many as minPartitions asks for."""
        from aerobee.pipeline.source.batch_plan import batch_ranges

        prepare_worker()
        if self._options.limits.are_set:
            log.warning("maxOffsetsPerTrigger and maxBytesPerTrigger do nothing in a batch read")
        return self._partitions(batch_ranges(self._options, self._pushed))


@plain_errors
class FilteringTopicReader(TopicReader):
    """A reader with filters pushed down (since 4.1): leaves out queues and offsets that cannot
    match."""

    def pushFilters(self, filters: list[Any]) -> list[Any]:
        """Take what helps; all are given back, so Spark evaluates them on the rows as well."""
        self._pushed = selection_of(filters, "queueOffset")
        return list(filters)


@plain_errors
class TopicStreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads micro-batches. Offsets are the JSON of `offsets.py`."""

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options)
        self._made: StreamPlan | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Executors read; plans and their connections stay in the driver."""
        return {"_options": self._options, "_made": None}

    @property
    def _plan(self) -> StreamPlan:
        if self._made is None:
            from aerobee.pipeline.source.stream_plan import StreamPlan

            self._made = StreamPlan(self._options)
            if not HAS_LIMITS and self._options.limits.are_set:
                log.warning(
                    "maxOffsetsPerTrigger, maxBytesPerTrigger and minOffsetsPerTrigger need "
                    "PySpark 4.2: this version does not tell a source where the last batch ended; "
                    "each batch takes all"
                )
        return self._made

    def initialOffset(self) -> dict[str, Any]:
        """Where a new query begins; asked until batch 0 is committed."""
        return position_to_json(self._plan.initial())

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:
        """How far the next batch goes; called without arguments before 4.2.

        A limit of the engine's own, all that is available, counts more than the options.
        """
        from aerobee.pipeline.source.source_options import BatchLimits

        limits = BatchLimits()
        if HAS_LIMITS and isinstance(limit, ReadMaxRows | ReadMaxBytes | ReadMinRows):
            limits = self._options.limits
            if isinstance(limit, ReadMaxRows):
                limits = limits._replace(most_rows=limit.max_rows)
            elif isinstance(limit, ReadMaxBytes):
                limits = limits._replace(most_bytes=limit.max_bytes)
        begin = None if start is None else _position(start)
        return position_to_json(self._plan.latest(begin, limits))

    def getDefaultReadLimit(self) -> Any:
        """The limit that the options ask for."""
        limits = self._options.limits
        if limits.most_rows:
            return ReadMaxRows(limits.most_rows)
        if limits.most_bytes:
            return ReadMaxBytes(limits.most_bytes)
        if limits.least_rows:
            return ReadMinRows(limits.least_rows)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """The query ends with what is there now."""
        self._plan.freeze()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The ends of the queues without limits; Spark shows them beside the query's own
        offsets."""
        return to_json(self._plan.highest) if self._plan.highest else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """One for each queue with messages, or as many as minPartitions asks for."""
        return self._partitions(self._plan.ranges(_position(start), _position(end)))

    def commit(self, end: dict[str, Any]) -> None:
        """A batch is done; Spark says so when it plans the next one."""
        self._plan.done(_position(end))

    def stop(self) -> None:
        """The query ends."""
        if self._made is not None:
            self._made.close()


@plain_errors
class RefusedStreamReader(DataSourceStreamReader):
    """Raises an error whatever it is asked for."""

    def __init__(self, error: OptionError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:
        """Raises the error to a new query."""
        raise self._error

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:
        """Raises the error to a query that goes on."""
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Raises the error to a query whose last batch was planned."""
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Never called: nothing was planned."""
        raise self._error


def _position(value: dict[str, Any]) -> Position:
    try:
        return position_from_json(value)
    except ValueError as error:
        raise PipelineError(f"the checkpoint holds no offsets of this source: {error}") from error
