"""The input of a job: a store, its backup or its copy, through `format("rocketmq-store")`.

The reader of log files does the work: finding segments, dividing them, decoding, damage. Here are
only the options that all jobs share, and the few frames made of its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from aerobee.pipeline.files.directory import Store, find_stores
from aerobee.pipeline.files.store_options import PERMISSIVE
from aerobee.pipeline.jobs.common.job_result import JobFailed

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import DataSource

FORMAT: Final = "rocketmq-store"


@dataclass(frozen=True, slots=True)
class StoreInput:
    """Directories of one store, and what of it. `options` go to the reader as they are."""

    paths: Sequence[str]
    mode: str = PERMISSIVE
    topics: Sequence[str] = ()
    begin_ms: int | None = None
    end_ms: int | None = None
    options: dict[str, str] = field(default_factory=dict)

    def store(self) -> Store:
        """Where its files are. Raises JobFailed for several stores, StoreReadError without a
        store."""
        found = find_stores(self.paths)
        if len(found) > 1:
            raise JobFailed(
                f"{found[0].name} and {found[1].name} are two stores; this job takes one at a time"
            )
        return found[0]

    def rows(self, spark: SparkSession, columns: Iterable[str], **more: str) -> DataFrame:
        """The rows of the log with these columns; damaged places are rows with `error`, unless the
        mode leaves them out or fails at the first."""
        register(spark)
        options = {"columns": ",".join(columns), "mode": self.mode}
        if self.topics:
            options["topic"] = ",".join(self.topics)
        if self.begin_ms is not None:
            options["startTimestamp"] = str(self.begin_ms)
        if self.end_ms is not None:
            options["endTimestamp"] = str(self.end_ms)
        options |= self.options | more
        return spark.read.format(FORMAT).options(**options).load(list(self.paths))

    def records(self, spark: SparkSession, columns: Iterable[str]) -> DataFrame:
        """All rows of the log as they are stored, their bodies checked."""
        return self.rows(
            spark, columns, use="commitlog", checkCrc="true", propertiesFormat="raw",
            decompress="false",
        )  # fmt: skip


def each_batch(
    work: Callable[..., pa.RecordBatch], *arguments: Any
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For `mapInArrow`: gives `work(batch, *arguments)` of every batch."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield work(batch, *arguments)

    return run


def register(spark: SparkSession) -> None:
    """Make the format known where Spark does not find it by itself."""
    from aerobee.pipeline.files.store_source import RocketMQStoreSource

    _register(spark, RocketMQStoreSource)


def register_topics(spark: SparkSession) -> None:
    """Make the format of live topics known where Spark does not find it by itself."""
    from aerobee.pipeline.source.topic_source import TopicSource

    _register(spark, TopicSource)


def _register(spark: SparkSession, source: type[DataSource]) -> None:
    """Spark looks for sources where packages are installed, not in a wheel of `--py-files`; and it
    refuses a second source of a name."""
    from pyspark.errors import AnalysisException

    try:
        spark.dataSource.register(source)
    except AnalysisException as error:
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise
