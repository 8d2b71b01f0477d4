"""What a broker derives from records: consume queue entries and index keys, for many at once.

A record of type none or commit claims a slot in the queue it names, and one in each queue it was
multi-dispatched to (store/FORMAT.md 2.8, 5.2); all but rollbacks are found by their keys (6.3).
Columns in are those of the reader of log files, with the properties as they are stored ("raw").
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aerobee.pipeline.decode.properties import Properties
from aerobee.pipeline.jobs.derived.hashes import distinct_hashes, java_hashes, slot_hashes
from aerobee.protocol.message.properties import (
    KEY_SEPARATOR,
    PROPERTY_DELAY,
    PROPERTY_KEYS,
    PROPERTY_MULTI_QUEUE_OFFSET,
    PROPERTY_TAGS,
    PROPERTY_UNIQUE_KEY,
    decode_properties,
    further_queues,
)
from aerobee.protocol.message.record_layout import (
    SYS_TRANSACTION_MASK,
    SYS_TRANSACTION_PREPARED,
    SYS_TRANSACTION_ROLLBACK,
)
from aerobee.protocol.names import SCHEDULE_TOPIC, is_light
from aerobee.store.queues.delay_levels import DelayLevels

#: What the reader of log files is asked for.
RECORD_COLUMNS: Final = (
    "topic", "queueId", "queueOffset", "commitLogOffset", "recordSize", "sysFlag",
    "storeTimestamp", "properties", "error",
)  # fmt: skip
#: RocketMQ's own delay levels; a broker set otherwise has others, which the job must be told.
DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

#: An entry with the place it belongs to.
ENTRIES: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("queueId", pa.int32()),
        ("slot", pa.int64()),
        ("logOffset", pa.int64()),
        ("size", pa.int32()),
        ("tagsCode", pa.int64()),
    ]
)
ENTRIES_DDL: Final = (
    "topic string, queueId int, slot bigint, logOffset bigint, size int, tagsCode bigint"
)
#: A key of a record: the stored hash, and what else its entry is made of.
KEYS: Final = pa.schema([("hash", pa.int32()), ("logOffset", pa.int64()), ("storeMs", pa.int64())])

_OFFSETS_MARK = PROPERTY_MULTI_QUEUE_OFFSET + "\x01"


def sound(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows that are records."""
    errors = batch.column("error")
    return batch if errors.null_count == len(errors) else batch.filter(pc.is_null(errors))


def entries_of(batch: pa.RecordBatch, levels: DelayLevels) -> pa.RecordBatch:
    """The entries of these records, those of one queue in their order (schema ENTRIES)."""
    batch = sound(batch)
    flags = batch.column("sysFlag").to_numpy()
    placed = flags & SYS_TRANSACTION_PREPARED == 0
    if not placed.all():
        batch = batch.filter(pa.array(placed))
    codes = _tags_codes(batch, levels)
    own = [
        *(batch.column(name) for name in ("topic", "queueId", "queueOffset", "commitLogOffset")),
        batch.column("recordSize"),
        pa.array(codes),
    ]
    entries = pa.RecordBatch.from_arrays(own, schema=ENTRIES)
    further = _further(batch, codes)
    if not further.num_rows:
        return entries
    return pa.concat_batches([entries, further]).sort_by([("logOffset", "ascending")])


def claims_of(batch: pa.RecordBatch, levels: DelayLevels) -> pa.RecordBatch:
    """The entries, and for each record without one (prepared, rollback) a row with queue id -1."""
    entries = entries_of(batch, levels)
    batch = sound(batch)
    prepared = batch.column("sysFlag").to_numpy() & SYS_TRANSACTION_PREPARED != 0
    if not prepared.any():
        return entries
    batch = batch.filter(pa.array(prepared))
    nowhere = pa.array(np.full(batch.num_rows, -1))
    arrays = [
        batch.column("topic"),
        nowhere.cast(pa.int32()),
        nowhere,
        batch.column("commitLogOffset"),
        batch.column("recordSize"),
        pa.array(np.zeros(batch.num_rows, np.int64)),
    ]
    return pa.concat_batches([entries, pa.RecordBatch.from_arrays(arrays, schema=ENTRIES)])


def keys_of(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The index keys of these records, in the order a broker puts them in (schema KEYS)."""
    batch = sound(batch)
    flags = batch.column("sysFlag").to_numpy()
    found = flags & SYS_TRANSACTION_MASK != SYS_TRANSACTION_ROLLBACK
    if not found.all():
        batch = batch.filter(pa.array(found))
    properties = Properties(batch.column("properties"))
    parents, words = _words(properties.value(PROPERTY_UNIQUE_KEY), properties.value(PROPERTY_KEYS))
    topics = batch.column("topic").take(pa.array(parents))
    hashes = java_hashes(pc.binary_join_element_wise(topics, words, "#"))
    arrays = [
        pa.array(slot_hashes(hashes)),
        batch.column("commitLogOffset").take(pa.array(parents)),
        pa.array(store_ms(batch)[parents]),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=KEYS)


def store_ms(batch: pa.RecordBatch) -> np.ndarray:
    """int64[n]: store times in milliseconds."""
    micros = batch.column("storeTimestamp").cast(pa.int64()).to_numpy()
    found: np.ndarray = micros // 1000
    return found


def _tags_codes(batch: pa.RecordBatch, levels: DelayLevels) -> np.ndarray:
    properties = Properties(batch.column("properties"))
    codes = distinct_hashes(properties.value(PROPERTY_TAGS)).astype(np.int64)
    waiting = pc.equal(batch.column("topic"), SCHEDULE_TOPIC).to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(waiting)
    if len(rows):
        delays = properties.value(PROPERTY_DELAY).to_pylist()
        times = store_ms(batch)
        for row in rows.tolist():
            values = {} if delays[row] is None else {PROPERTY_DELAY: delays[row]}
            codes[row] = levels.tags_code(SCHEDULE_TOPIC, values, int(times[row]), int(codes[row]))
    return codes


def _further(batch: pa.RecordBatch, codes: np.ndarray) -> pa.RecordBatch:
    """The entries of queues that records were multi-dispatched to, besides their own."""
    listed = pc.match_substring(batch.column("properties"), _OFFSETS_MARK)
    entries: list[tuple[str, int, int, int, int, int]] = []
    for row in np.flatnonzero(listed.to_numpy(zero_copy_only=False)).tolist():
        topic, queue_id, _, log_offset, size = (batch.column(n)[row].as_py() for n in range(5))
        known = {(topic, queue_id)}
        properties = decode_properties(batch.column("properties")[row].as_py())
        for name, slot in further_queues(properties):
            place = (name, 0 if is_light(name) else queue_id)
            if place not in known:
                known.add(place)
                entries.append((*place, slot, log_offset, size, int(codes[row])))
    columns = list(zip(*entries, strict=True)) if entries else [()] * len(ENTRIES)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, ENTRIES, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=ENTRIES)


def _words(unique: pa.Array, keys: pa.Array) -> tuple[np.ndarray, pa.Array]:
    """The row of each index word and the words: of each row UNIQ_KEY first, then those of KEYS."""
    having = np.flatnonzero(unique.is_valid().to_numpy(zero_copy_only=False))
    lists = pc.split_pattern(keys.fill_null(""), KEY_SEPARATOR)
    words, parents = lists.flatten(), pc.list_parent_indices(lists).to_numpy()
    whole = pc.greater(pc.binary_length(words), 0)
    words, parents = words.filter(whole), parents[whole.to_numpy(zero_copy_only=False)]
    rows = np.concatenate([having, parents]).astype(np.int64)
    order = np.argsort(rows, kind="stable")
    texts = pa.concat_arrays([unique.take(pa.array(having)), words])
    return rows[order], texts.take(pa.array(order))
