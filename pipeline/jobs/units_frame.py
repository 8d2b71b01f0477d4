"""The units of all consume queues of a store as a DataFrame, one task for some files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from aerobee.pipeline.jobs.claims import UNITS_DDL
from aerobee.pipeline.jobs.queue_files import QueueFile, queue_files, read_units

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FILES_DDL = "topic string, queueId int, path string, start bigint, size bigint"


def queues_of(paths: Sequence[str]) -> list[tuple[str, int]]:
    """(topic, queue id) of the queues that have files."""
    return sorted({(file.topic, file.queue_id) for path in paths for file in queue_files(path)})


def units_frame(spark: SparkSession, paths: Sequence[str], log_min: int) -> DataFrame:
    """The units that name a record at or above `log_min` (claims.UNITS_DDL)."""
    files = [file for path in paths for file in queue_files(path)]
    tasks = max(1, min(len(files), spark.sparkContext.defaultParallelism * 4))
    frame = spark.createDataFrame(files, _FILES_DDL).repartition(tasks)
    return frame.mapInArrow(_reader(log_min), UNITS_DDL)


def _reader(log_min: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                yield from read_units(QueueFile(*row.values()), log_min)

    return read
