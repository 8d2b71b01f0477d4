"""The entries of all consume queues of a store as a DataFrame, one task for some files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from aerobee.pipeline.jobs.derived.claims import ENTRIES_DDL
from aerobee.pipeline.jobs.derived.queue_files import QueueFile, read_entries

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FILES_DDL = "topic string, queueId int, uri string, path string, start bigint, size bigint"


def entries_frame(spark: SparkSession, files: Sequence[QueueFile], log_min: int) -> DataFrame:
    """The entries in these files that name a record at or above `log_min` (claims.ENTRIES_DDL)."""
    tasks = max(1, min(len(files), spark.sparkContext.defaultParallelism * 4))
    frame = spark.createDataFrame(list(files), _FILES_DDL).repartition(tasks)
    return frame.mapInArrow(_reader(log_min), ENTRIES_DDL)


def _reader(log_min: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                yield from read_entries(QueueFile(*row.values()), log_min)

    return read
