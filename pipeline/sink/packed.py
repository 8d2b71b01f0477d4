"""Arrow batches of rows made into bodies of batches at once, where nothing about them is unusual.

What `rows.py` does for one row is done here for all rows of a batch with numpy and Arrow, to the
same bytes; its rules are read there. A batch in which anything is unusual (a column that is looked
at row by row, a null body, a separator inside a value, a row that no broker would take) is left to
it, which names the row that is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aerobee.pipeline.sink.rows import (
    LEFT_OUT,
    MOST_TOGETHER,
    PROPERTIES_BYTES,
    PROPERTY_SPARK_ID,
    SIDE_BY_SIDE,
    PackedRun,
    RowMaker,
)
from aerobee.pipeline.sink.schema import SinkColumns
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.hashing import java_hash
from aerobee.protocol.message.batch import MIN_ITEM_BYTES
from aerobee.protocol.message.properties import PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQUE_KEY

# Ids of up to this many rows differ by their counter alone (`UniqueIdMaker.block`).
MOST_ROWS: Final = 16_384
# Offsets of Arrow's binary arrays have 32 bits.
_MOST_BYTES: Final = 1 << 30
# Rows of one queue that go together; a sender gathers pieces up to its own size.
_PIECE_BYTES: Final = 64 * 1024
_NAME_END, _ENTRY_END = "\x01", "\x02"
_HEAD: Final = np.dtype(
    [("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("flag", ">i4"), ("body", ">i4")]
)
_LENGTH: Final = np.dtype(">i2")
_DIGITS: Final = np.array([list(b"%02X" % byte) for byte in range(256)], np.uint8)


class PackedRows(NamedTuple):
    """Rows as pieces of batches, and the bytes of the largest body and row among them."""

    pieces: list[PackedRun]
    largest: tuple[int, int]

    @property
    def brokers(self) -> set[str]:
        """Where they go."""
        return {piece.queue.broker_name for piece in self.pieces}


class Packer:
    """Packs the rows of one partition whose topic is `topic`."""

    def __init__(self, maker: RowMaker, topic: str) -> None:
        self._maker = maker
        self._columns = maker.columns
        self._topic = topic

    @staticmethod
    def may_pack(columns: SinkColumns, topic: str | None) -> bool:
        """Whether rows with these columns are packed at all."""
        by_row = (columns.delay_level, columns.headers)
        return topic is not None and all(place is None for place in by_row)

    def pack(self, batch: pa.RecordBatch, first: int) -> PackedRows | None:
        """Packs the rows of a batch of MOST_ROWS at most; its first row has the number `first`.

        None: the rows are to be made singly.
        """
        columns, count = self._columns, batch.num_rows
        bodies = batch.column(columns.body).cast(pa.binary())
        sizes = _lengths(bodies)
        if bodies.null_count or not count or not sizes.all() or sizes.sum() > _MOST_BYTES:
            return None
        flags = self._flags(batch)
        queues = self._maker.queues_of_topic(self._topic, first)
        properties = self._properties(batch, first)
        if flags is None or properties is None:
            return None
        lengths = _lengths(properties)
        chosen = self._chosen(batch, queues)
        if chosen is None or lengths.max() > PROPERTIES_BYTES:
            return None
        head = np.zeros(count, _HEAD)
        head["size"] = MIN_ITEM_BYTES + sizes + lengths
        head["flag"], head["body"] = flags, sizes
        parts = [_fixed(head), bodies, _fixed(lengths.astype(_LENGTH)), properties]
        encoded = pc.binary_join_element_wise(*parts, b"")
        pieces = list(self._pieces(encoded, chosen, queues, first))
        return PackedRows(pieces, (int(sizes.max()), int(head["size"].max())))

    def _flags(self, batch: pa.RecordBatch) -> np.ndarray | None:
        if self._columns.flag is None:
            return np.zeros(batch.num_rows, np.int32)
        found = batch.column(self._columns.flag).cast(pa.int64()).fill_null(0).to_numpy()
        fit = (found >= -(1 << 31)) & (found < 1 << 31)
        flags: np.ndarray = found.astype(np.int32)
        return flags if fit.all() else None

    # --- queues -----------------------------------------------------------------------------

    def _chosen(self, batch: pa.RecordBatch, queues: Sequence[MessageQueue]) -> np.ndarray | None:
        """The place of each row's queue among `queues`; None if a row names a queue that is not
        there."""
        columns = self._columns
        if columns.queue_id is not None:
            return None if batch.column(columns.queue_id).null_count else self._named(batch, queues)
        if columns.sharding_key is not None:
            keys = batch.column(columns.sharding_key).dictionary_encode()
            if keys.null_count:
                return None
            places = [abs(java_hash(key)) % len(queues) for key in keys.dictionary.to_pylist()]
            of_row: np.ndarray = np.array(places, np.int64)[keys.indices.to_numpy()]
            return of_row
        turn = self._maker.turn(self._topic, batch.num_rows)
        return np.arange(turn, turn + batch.num_rows) // SIDE_BY_SIDE % len(queues)

    def _named(self, batch: pa.RecordBatch, queues: Sequence[MessageQueue]) -> np.ndarray | None:
        assert self._columns.queue_id is not None
        wanted = batch.column(self._columns.queue_id).cast(pa.int64()).to_numpy()
        ids = [queue.queue_id for queue in queues]
        if len(set(ids)) != len(ids):
            return None  # of several brokers: rows go to them in turn
        places = {number: place for place, number in enumerate(ids)}
        distinct, of_row = np.unique(wanted, return_inverse=True)
        if not set(distinct.tolist()) <= set(places):
            return None
        return np.array([places[number] for number in distinct.tolist()], np.int64)[of_row]

    def _pieces(
        self, encoded: pa.Array, chosen: np.ndarray, queues: Sequence[MessageQueue], first: int
    ) -> Iterator[PackedRun]:
        order = np.arange(len(chosen))
        if self._columns.queue_id is not None or self._columns.sharding_key is not None:
            order = np.argsort(chosen, kind="stable")
            encoded, chosen = encoded.take(pa.array(order)), chosen[order]
        offsets = np.frombuffer(encoded.buffers()[1], np.int32)[encoded.offset :]
        offsets = offsets[: len(chosen) + 1].astype(np.int64)
        data = memoryview(encoded.buffers()[2])
        changes = np.flatnonzero(np.diff(chosen)) + 1
        marks = [0, *changes.tolist(), len(chosen)]
        for begin, end in pairwise(marks):
            queue = queues[int(chosen[begin])]
            while begin < end:
                fits = int(np.searchsorted(offsets, offsets[begin] + _PIECE_BYTES, "right")) - 1
                last = min(end, max(fits, begin + 1), begin + MOST_TOGETHER)
                body = data[int(offsets[begin]) : int(offsets[last])]
                numbers = first + int(order[begin]), first + int(order[last - 1])
                yield PackedRun(queue, *numbers, last - begin, body)
                begin = last

    # --- properties -------------------------------------------------------------------------

    def _properties(self, batch: pa.RecordBatch, first: int) -> pa.Array | None:
        """The text of each row's properties, as bytes; None if a value holds a separator."""
        columns, count = self._columns, batch.num_rows
        parts: list[pa.Array] = []
        entries = 2 * count
        if columns.properties is not None:
            text, found = _of_map(batch.column(columns.properties))
            parts.append(text)
            entries += found
        if columns.keys is not None:
            text, found = _entry(PROPERTY_KEYS, _words(batch.column(columns.keys)))
            parts.append(text)
            entries += found
        if columns.tags is not None:
            text, found = _entry(PROPERTY_TAGS, batch.column(columns.tags))
            parts.append(text)
            entries += found
        numbers = pa.array(np.arange(first, first + count)).cast(pa.string())
        spark = f"{PROPERTY_SPARK_ID}{_NAME_END}{self._maker.task}/"
        parts += [_same(spark, count), numbers, self._ids(count)]
        whole = pc.binary_join_element_wise(*parts, "")
        if (
            pc.sum(pc.count_substring(whole, _NAME_END)).as_py() != entries
            or pc.sum(pc.count_substring(whole, _ENTRY_END)).as_py() != entries - count
        ):
            return None
        return whole.cast(pa.binary())

    def _ids(self, count: int) -> pa.Array:
        """The last entry of each row, with what separates it from the one before."""
        common, counter = self._maker.ids.block(count)
        prefix = f"{_ENTRY_END}{PROPERTY_UNIQUE_KEY}{_NAME_END}{common}".encode()
        counters = (counter + np.arange(count)).astype(">u2")
        text = np.empty((count, len(prefix) + 4), np.uint8)
        text[:, : len(prefix)] = np.frombuffer(prefix, np.uint8)
        text[:, len(prefix) :] = _DIGITS[counters.view(np.uint8)].reshape(count, 4)
        return _fixed(text).cast(pa.string())


def _lengths(array: pa.Array) -> np.ndarray:
    found: np.ndarray = pc.binary_length(array).fill_null(0).to_numpy().astype(np.int64)
    return found


def _fixed(values: np.ndarray) -> pa.Array:
    """Each item of an array, or each line of a matrix of bytes, as its bytes."""
    width = values.itemsize if values.ndim == 1 else values.shape[1]
    buffers = [None, pa.py_buffer(np.ascontiguousarray(values))]
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(values), buffers).cast(
        pa.binary()
    )


def _same(text: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(text), count)


def _entry(name: str, values: pa.Array) -> tuple[pa.Array, int]:
    """The entry of that name of each row that has a value, "" for the others; how many have."""
    values = values.fill_null("")
    there = pc.greater(pc.binary_length(values), 0)
    entry = pc.binary_join_element_wise(f"{name}{_NAME_END}", values, _ENTRY_END, "")
    return pc.if_else(there, entry, ""), pc.sum(there).as_py() or 0


def _words(keys: pa.Array) -> pa.Array:
    """Keys as text: words of an array are joined, without those that are null or empty."""
    if not pa.types.is_list(keys.type):
        return keys
    return pc.binary_join(_kept(keys, pc.fill_null(pc.not_equal(keys.flatten(), ""), False)), " ")


def _of_map(maps: pa.Array) -> tuple[pa.Array, int]:
    """The entries of each row's map, each with what follows it; how many there are."""
    entries = maps.cast(pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())])))
    flat = entries.flatten()
    names, values = flat.field("key"), flat.field("value").fill_null("")
    kept = pc.and_(
        pc.greater(pc.binary_length(values), 0),
        pc.invert(pc.is_in(names, value_set=pa.array(sorted(LEFT_OUT)))),
    )
    text = pc.binary_join_element_wise(names, _NAME_END, values, _ENTRY_END, "")
    lists = pa.ListArray.from_arrays(_offsets(entries), text)
    return pc.binary_join(_kept(lists, kept), ""), pc.sum(kept).as_py() or 0


def _offsets(lists: pa.Array) -> pa.Array:
    """Where each list begins in `lists.flatten()`, and the end; a null list counts as empty."""
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy()
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))


def _kept(lists: pa.Array, kept: pa.Array) -> pa.Array:
    """The lists without the items that are not kept; a null list is empty."""
    mask = kept.to_numpy(zero_copy_only=False)
    before = np.concatenate([[0], np.cumsum(mask)])
    offsets = before[_offsets(lists).to_numpy()].astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), lists.flatten().filter(kept))
