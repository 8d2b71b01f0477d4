"""What a broker derives from records: consume queue entries and index keys, for many at once.

A record of type none or commit claims a slot in the queue it names, and one in each queue it was
multi-dispatched to (store/FORMAT.md 2.8, 5.2); all but rollbacks are found by their keys (6.3).
Columns in are those of the reader of log files, with the properties as they are stored ("raw").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aerobee.pipeline.decode.columns import Column, arrow_schema
from aerobee.pipeline.decode.properties import Properties
from aerobee.protocol.hashing import java_hash
from aerobee.protocol.message.properties import (
    KEY_SEPARATOR,
    PROPERTY_DELAY,
    PROPERTY_KEYS,
    PROPERTY_MULTI_QUEUE_OFFSET,
    PROPERTY_TAGS,
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_UNIQUE_KEY,
    decode_properties,
    further_queues,
)
from aerobee.protocol.message.record_layout import (
    SYS_TRANSACTION_MASK,
    SYS_TRANSACTION_PREPARED,
    SYS_TRANSACTION_ROLLBACK,
)
from aerobee.protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC, is_light
from aerobee.store.queues.delay_levels import DelayLevels, out_ms

#: What the reader of log files is asked for.
RECORD_COLUMNS: Final = (
    "topic", "queueId", "queueOffset", "commitLogOffset", "recordSize", "sysFlag",
    "storeTimestamp", "properties", "error",
)  # fmt: skip
#: RocketMQ's own delay levels; a broker set otherwise has others, which the job must be told.
DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

#: An entry with the place it belongs to.
ENTRIES_DDL: Final = (
    "topic string, queueId int, slot bigint, logOffset bigint, size int, tagsCode bigint"
)


def schema_of(ddl: str) -> pa.Schema:
    """Spark's schema in Arrow's terms."""
    columns = [column.split() for column in ddl.split(", ")]
    return arrow_schema(Column(name, kind) for name, kind in columns)


ENTRIES: Final = schema_of(ENTRIES_DDL)
#: A key of a record: the stored hash, and what else its entry is made of.
KEYS: Final = schema_of("hash int, logOffset bigint, storeMs bigint")

_OFFSETS_MARK = PROPERTY_MULTI_QUEUE_OFFSET + "\x01"
# A group's bytes are widened to 32 bits; this many of them at a time.
_MOST_BYTES = 16 << 20
_I32_MIN = -(1 << 31)


def batch_of(rows: Sequence[tuple[Any, ...]], ddl: str) -> pa.RecordBatch:
    """A batch of single rows."""
    schema = schema_of(ddl)
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    arrays = [pa.array(one, field.type) for one, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def record_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows that are records."""
    errors = batch.column("error")
    return batch if errors.null_count == len(errors) else batch.filter(pc.is_null(errors))


def derived_entries(batch: pa.RecordBatch, levels: DelayLevels) -> pa.RecordBatch:
    """The entries of these records, those of one queue in their order (schema ENTRIES)."""
    batch = record_rows(batch)
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


def expected_entries(batch: pa.RecordBatch, levels: DelayLevels) -> pa.RecordBatch:
    """The entries, and for each record without one (prepared, rollback) a row with queue id -1."""
    entries = derived_entries(batch, levels)
    batch = record_rows(batch)
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


def derived_keys(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The index keys of these records, in the order a broker puts them in (schema KEYS)."""
    batch = record_rows(batch)
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
    timed = pc.equal(batch.column("topic"), TIMER_TOPIC).to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(timed)
    if len(rows):
        times_out = properties.value(PROPERTY_TIMER_OUT_MS).to_pylist()
        for row in rows.tolist():
            codes[row] = out_ms({PROPERTY_TIMER_OUT_MS: times_out[row] or ""}) or codes[row]
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
    return batch_of(entries, ENTRIES_DDL)


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


# Java's string hash of many texts at once


def java_hashes(texts: pa.Array) -> np.ndarray:
    """int32[n]: the hash of each text; 0 for null and for the empty one."""
    hashes = np.zeros(len(texts), np.int32)
    starts, lengths, data = _layout(texts)
    for length in np.unique(lengths).tolist():
        if not length:
            continue
        rows = np.flatnonzero(lengths == length)
        step = max(1, _MOST_BYTES // length)
        for first in range(0, len(rows), step):
            part = rows[first : first + step]
            _hash_alike(data, starts[part], length, part, hashes)
    return hashes


def distinct_hashes(texts: pa.Array) -> np.ndarray:
    """The same for texts that repeat, such as tags: each is hashed once."""
    if not len(texts):
        return np.zeros(0, np.int32)
    coded = texts.fill_null("").dictionary_encode()
    found: np.ndarray = java_hashes(coded.dictionary)[coded.indices.to_numpy()]
    return found


def slot_hashes(hashes: np.ndarray) -> np.ndarray:
    """The non-negative hashes that index files hold: |hash|, 0 for the one without a positive."""
    return np.where(hashes == _I32_MIN, 0, np.abs(hashes.astype(np.int64))).astype(np.int32)


def _layout(texts: pa.Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where the texts begin, their lengths in bytes, and the bytes."""
    plain = pa.concat_arrays([texts.fill_null("").cast(pa.string())])
    _, offsets_buffer, data_buffer = plain.buffers()
    if not len(plain):
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.uint8)
    offsets = np.frombuffer(offsets_buffer, np.int32)[plain.offset : plain.offset + len(plain) + 1]
    data = np.frombuffer(data_buffer or b"", np.uint8)
    offsets = offsets.astype(np.int64)
    return offsets[:-1], np.diff(offsets), data


def _hash_alike(
    data: np.ndarray, starts: np.ndarray, length: int, rows: np.ndarray, hashes: np.ndarray
) -> None:
    """The hashes of texts that have `length` bytes each, into `hashes` at `rows`."""
    items = np.ndarray(len(data) - length + 1, f"V{length}", data, strides=(1,))
    letters = items[starts].view(np.uint8).reshape(-1, length)
    powers = np.ones(length, np.uint32)
    if length > 1:
        powers[:-1] = np.cumprod(np.full(length - 1, 31, np.uint32), dtype=np.uint32)[::-1]
    hashes[rows] = (letters.astype(np.uint32) @ powers).view(np.int32)
    for place in np.flatnonzero((letters >= 128).any(axis=1)).tolist():
        hashes[rows[place]] = java_hash(letters[place].tobytes().decode())
