"""Queue entries and index keys of the rows of a log, as Arrow batches.

`store/dispatch/derived.py` alone says what follows from a record. Rows come from the reader of log
files, with the properties as they are stored ("raw").
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from aerobee.pipeline.decode.columns import KEYS_TYPE, Column, arrow_schema
from aerobee.pipeline.jobs.common.inputs import StoreInput, each_batch
from aerobee.protocol.names import is_light
from aerobee.store.dispatch.derived import Derivation, Entry
from aerobee.store.queues.delay_levels import DelayLevels

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Columns of the reader of log files that entries and keys follow from.
RECORD_COLUMNS: Final = (
    "topic", "queueId", "queueOffset", "commitLogOffset", "recordSize", "sysFlag",
    "storeTimestamp", "properties", "msgId", "error",
)  # fmt: skip
#: RocketMQ's own delay levels; a broker with other levels needs them given to the job.
DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

#: An entry with the place it belongs to; without a place (half message, rollback) queue id and slot
#: are -1.
ENTRIES_DDL: Final = (
    "topic string, queueId int, slot bigint, logOffset bigint, size int, tagsCode bigint"
)
#: Entries with the keys and the id of their record, both null but for a record's first entry; and
#: damaged places, which have a log offset and an error only.
DERIVED_DDL: Final = f"{ENTRIES_DDL}, storeMs bigint, keys {KEYS_TYPE}, msgId string, error string"

#: A queue's topic and queue id.
Queue: TypeAlias = tuple[str, int]


def schema_of(ddl: str) -> pa.Schema:
    """Spark's schema in Arrow's terms."""
    columns = [column.split() for column in ddl.split(", ")]
    return arrow_schema(Column(name, kind) for name, kind in columns)


ENTRIES: Final = schema_of(ENTRIES_DDL)


def batch_of(rows: Sequence[tuple[Any, ...]], ddl: str) -> pa.RecordBatch:
    """A batch of single rows."""
    schema = schema_of(ddl)
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    arrays = [pa.array(one, field.type) for one, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def derived_frame(spark: SparkSession, store: StoreInput, levels: DelayLevels) -> DataFrame:
    """Entries and keys of the whole log (DERIVED_DDL), kept on the executors' disks: several passes
    read the log once. To be unpersisted."""
    from pyspark import StorageLevel

    rows = store.records(spark, RECORD_COLUMNS)
    derived = rows.mapInArrow(each_batch(derived_rows, levels), DERIVED_DDL)
    return derived.persist(StorageLevel.DISK_ONLY)


class LogCounts(NamedTuple):
    """Counts of a log: records, damaged places, bytes of the records, and the log offsets of the
    first and the last of all of these, None without any."""

    records: int
    bad: int
    bytes: int
    first: int | None
    last: int | None

    @property
    def log_start(self) -> int:
        """Log offset of the first."""
        return self.first or 0

    @property
    def log_end(self) -> int:
        """A log offset after the beginning of the last entry's record."""
        return 0 if self.last is None else self.last + 1


def count_rows(derived: DataFrame) -> LogCounts:
    """The counts of a whole log (DERIVED_DDL)."""
    from pyspark.sql import functions as f

    is_first, place = f.col("msgId").isNotNull(), f.col("logOffset")
    found = derived.agg(
        f.count("msgId"),
        f.count("error"),
        f.coalesce(f.sum(f.when(is_first, f.col("size"))), f.lit(0)),
        f.min(place),
        f.max(place),
    )
    return LogCounts(*found.collect()[0])


def derived_rows(batch: pa.RecordBatch, levels: DelayLevels) -> pa.RecordBatch:
    """Entries and keys of these rows (DERIVED_DDL), in the log's order, before damaged places."""
    places, ids, errors = (
        batch.column(name).to_pylist() for name in ("commitLogOffset", "msgId", "error")
    )
    first = dict(zip(places, ids, strict=True))
    rows: list[tuple[Any, ...]] = []
    for queue, slot, log_offset, size, code, keys, store_ms, topic in _derived(batch, levels):
        place = (*queue, slot) if queue else (topic, -1, -1)
        own = first.pop(log_offset, None)
        own_keys = None if own is None else keys
        rows.append((*place, log_offset, size, code, store_ms, own_keys, own, None))
    damaged = [
        (place, error) for place, error in zip(places, errors, strict=True) if error is not None
    ]
    rows += [(*[None] * 3, place, *[None] * 5, error) for place, error in damaged]
    return batch_of(rows, DERIVED_DDL)


def _derived(batch: pa.RecordBatch, levels: DelayLevels) -> list[Entry[Queue]]:
    batch = batch.filter(pc.is_null(batch.column("error")))
    names = ("commitLogOffset", "recordSize", "queueId", "queueOffset", "sysFlag")
    columns: list[Iterable[Any]] = [batch.column(name).to_pylist() for name in names]
    micros = batch.column("storeTimestamp").cast(pa.int64())
    columns += [pc.divide(micros, 1000).to_pylist(), batch.column("topic").to_pylist()]
    # The places of body and properties do not matter here.
    columns += [repeat(0)] * 3
    properties = batch.column("properties").cast(pa.binary()).to_pylist()
    records = zip(*columns, properties, strict=False)
    return Derivation[Queue]({}, _queue, _further_queue, levels).entries(records)


def _queue(topic: str, queue_id: int) -> Queue:
    return topic, queue_id


def _further_queue(name: str, queue_id: int) -> Queue:
    """The queue that a message of `queue_id` was multi-dispatched to under that name."""
    return name, 0 if is_light(name) else queue_id
