"""Consume queue files of a store, found and read into rows.

The entry of slot k of a queue is at byte k x 20, always. A slot without a message is a pre-blank
entry (0, 2147483647, 0) or, where nothing was written, zeros (store/FORMAT.md 5.1).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from aerobee.pipeline.files.directory import File, FileSystemPlace, Store
from aerobee.pipeline.files.entries import ENTRY_BYTES, PRE_BLANK_SIZE, QueueEntries
from aerobee.pipeline.jobs.derived.entries import ENTRIES, ENTRIES_DDL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ROWS = 32_768
_FILES_DDL = "topic string, queueId int, uri string, path string, start bigint, size bigint"


class QueueFile(NamedTuple):
    """A file of a queue and the file system it is in (store_files.Place); `start` is its first
    byte's place in the queue."""

    topic: str
    queue_id: int
    uri: str
    path: str
    start: int
    size: int

    @property
    def first_slot(self) -> int:
        """The slot of its first entry."""
        return self.start // ENTRY_BYTES


def queue_files(store: Store) -> list[QueueFile]:
    """The files of all consume queues, by topic, queue and start."""
    return [
        QueueFile(topic, queue_id, store.place.uri, file.path, file.start, file.size)
        for (topic, queue_id), files in sorted(store.queues().items())
        for file in files
    ]


def read_entries(file: QueueFile, log_min: int = 0) -> Iterator[pa.RecordBatch]:
    """The entries of a file that name a record at or above `log_min` (schema ENTRIES).

    A last piece of fewer than 20 bytes is left out. Raises OSError, or StoreReadError when the file
    is gone.
    """
    own = (File(file.path, file.start, file.size),)
    queue = QueueEntries(FileSystemPlace(file.uri), file.topic, file.queue_id, own)
    for first in range(0, queue.capacity, _ROWS):
        entries = queue.read(first, min(first + _ROWS, queue.capacity))
        size = entries["size"].astype(np.int32)
        offsets = entries["logOffset"].astype(np.int64)
        # An entry without a size that names a place is damaged; its slot is not empty.
        is_empty = ((size == 0) | (size == PRE_BLANK_SIZE)) & (offsets == 0)
        rows = np.flatnonzero(~is_empty & (offsets >= log_min))
        if len(rows):
            arrays = [
                pa.repeat(file.topic, len(rows)),
                pa.repeat(pa.scalar(file.queue_id, pa.int32()), len(rows)),
                pa.array(rows + file.first_slot + first),
                pa.array(offsets[rows]),
                pa.array(size[rows]),
                pa.array(entries["tagsCode"].astype(np.int64)[rows]),
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=ENTRIES)
    queue.close()


def entries_frame(spark: SparkSession, files: Sequence[QueueFile], log_min: int) -> DataFrame:
    """The entries of many files as a DataFrame (ENTRIES_DDL), one task for some of them."""
    tasks = max(1, min(len(files), spark.sparkContext.defaultParallelism * 4))
    frame = spark.createDataFrame(list(files), _FILES_DDL).repartition(tasks)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                yield from read_entries(QueueFile(*row.values()), log_min)

    return frame.mapInArrow(read, ENTRIES_DDL)
