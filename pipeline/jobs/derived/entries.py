"""Queue entries and index keys of the rows of a log, as Arrow batches.

`store/dispatch/derived.py` alone says what follows from a record. Rows come from the reader of log
files, with the properties as they are stored ("raw").
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from aerobee.pipeline.decode.columns import KEYS_TYPE, Column, arrow_schema
from aerobee.protocol.names import is_light
from aerobee.store.dispatch.derived import Derivation, Entry
from aerobee.store.queues.delay_levels import DelayLevels

#: What the reader of log files is asked for.
RECORD_COLUMNS: Final = (
    "topic", "queueId", "queueOffset", "commitLogOffset", "recordSize", "sysFlag",
    "storeTimestamp", "properties", "error",
)  # fmt: skip
#: RocketMQ's own delay levels; a broker set otherwise has others, which the job must be told.
DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

#: An entry with the place it belongs to; without a place (half message, rollback) queue id and slot
#: are -1.
ENTRIES_DDL: Final = (
    "topic string, queueId int, slot bigint, logOffset bigint, size int, tagsCode bigint"
)
#: The keys of a record.
KEYS_DDL: Final = f"topic string, logOffset bigint, storeMs bigint, keys {KEYS_TYPE}"

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


def derived_entries(batch: pa.RecordBatch, levels: DelayLevels) -> pa.RecordBatch:
    """The entries of these records in the log's order (schema ENTRIES)."""
    rows = [
        (*(queue or (topic, -1)), slot if queue else -1, log_offset, size, tags_code)
        for queue, slot, log_offset, size, tags_code, _, _, topic in _derived(batch, levels)
    ]
    return batch_of(rows, ENTRIES_DDL)


def derived_keys(batch: pa.RecordBatch, levels: DelayLevels) -> pa.RecordBatch:
    """The keys of those of these records that have any, in the log's order (KEYS_DDL)."""
    rows = [
        (topic, log_offset, store_ms, keys)
        for _, _, log_offset, _, _, keys, store_ms, topic in _derived(batch, levels)
        if keys
    ]
    return batch_of(rows, KEYS_DDL)


def _derived(batch: pa.RecordBatch, levels: DelayLevels) -> list[Entry[Queue]]:
    batch = batch.filter(pc.is_null(batch.column("error")))
    names = ("commitLogOffset", "recordSize", "queueId", "queueOffset", "sysFlag")
    columns: list[Iterable[Any]] = [batch.column(name).to_pylist() for name in names]
    micros = batch.column("storeTimestamp").cast(pa.int64())
    columns += [pc.divide(micros, 1000).to_pylist(), batch.column("topic").to_pylist()]
    # Where body and properties lie does not matter here.
    columns += [repeat(0)] * 3
    properties = batch.column("properties").cast(pa.binary()).to_pylist()
    records = zip(*columns, properties, strict=False)
    return Derivation[Queue]({}, _queue, _further_queue, levels).entries(records)


def _queue(topic: str, queue_id: int) -> Queue:
    return topic, queue_id


def _further_queue(name: str, queue_id: int) -> Queue:
    """The queue that a message of `queue_id` was multi-dispatched to under that name."""
    return name, 0 if is_light(name) else queue_id
