"""Decodes stored messages in bulk: bytes with record starts in, Arrow arrays out.

A record is the same bytes in a pull's answer and in the commit log (store/FORMAT.md 2.1). Nothing
is done for one message at a time: numpy gathers the fixed fields of all rows with one index
operation, Arrow cuts topics, bodies and properties out with one copy, and repeated texts (topics,
addresses) are made once. Rows whose lengths do not add up are left out and named; nothing is
believed before it is checked.

The gather works on an overlapping view of the buffer, with a step of one byte and items as wide as
a record's header, which is indexed by the starts.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aerobee.pipeline.decode import compiled
from aerobee.pipeline.decode.arrow_values import (
    FIRST_MS,
    LAST_MS,
    TIMESTAMP,
    hex_texts,
    hosts,
    of_buffers,
    offset_msg_ids,
    slices,
    times,
)
from aerobee.pipeline.decode.columns import HEADERS as HEADERS_COLUMN
from aerobee.pipeline.decode.columns import KEYS, KEYS_TYPE, PROPERTIES, Column, arrow_schema
from aerobee.pipeline.decode.properties import Properties
from aerobee.pipeline.decode.record_starts import MESSAGE_MAGIC_V2
from aerobee.pipeline.decode.selection import Selection
from aerobee.protocol.message import compression
from aerobee.protocol.message.record_layout import (
    HOST_BITS,
    MAGIC_POSITION,
    MESSAGE_MAGIC,
    SYS_BORN_HOST_V6,
    SYS_COMPRESSED,
    SYS_COMPRESSION_MASK,
    SYS_COMPRESSION_ZLIB,
    SYS_FLAG_POSITION,
    SYS_STORE_HOST_V6,
)

#: The most bytes that the bodies of one batch may inflate to, one or all together; otherwise a few
#: bytes could become gigabytes.
MAX_INFLATED_BYTES = 256 << 20

_HOSTS: Final = SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6
# By the magic: how many bytes a topic's length has, the rest of what follows a body at least being
# the two of the properties' length.
_TOPIC_LENGTHS: Final = {MESSAGE_MAGIC: "u1", MESSAGE_MAGIC_V2: ">u2"}


def _header(born_bytes: int, store_bytes: int) -> np.dtype:
    return np.dtype(
        [
            ("size", ">i4"), ("magic", ">u4"), ("bodyCrc", ">i4"), ("queueId", ">i4"),
            ("flag", ">i4"), ("queueOffset", ">i8"), ("commitLogOffset", ">i8"),
            ("sysFlag", ">i4"), ("bornTimestamp", ">i8"), ("bornHost", f"V{born_bytes}"),
            ("storeTimestamp", ">i8"), ("storeHost", f"V{store_bytes}"),
            ("reconsumeTimes", ">i4"), ("preparedTransactionOffset", ">i8"), ("bodyLength", ">i4"),
        ]
    )  # fmt: skip


HEADERS: Final = {bits: _header(*hosts) for hosts, bits in HOST_BITS.items()}
_INTS: Final = {
    "flag", "queueId", "reconsumeTimes", "sysFlag", "bodyCrc", "queueOffset", "commitLogOffset",
    "preparedTransactionOffset",
}  # fmt: skip


class Bad(NamedTuple):
    """Bytes that are no record: their position in the buffer, and the reason."""

    position: int
    reason: str


@dataclass(frozen=True, slots=True)
class Form:
    """How rows are made: the columns, the text form of properties (map, json or raw), whether
    bodies are inflated and compared with their CRC, the broker's name for `brokerName`, and which
    messages are selected. With `only_zlib` bodies of other compressions stay as they are. A body
    that cannot be inflated raises ValueError, or is a bad record with `damage_is_bad`. Without
    `system_properties` a map or JSON object leaves out what clients and brokers tell each other.
    `matching` says which messages match by their properties; of the others no more is made."""

    columns: tuple[Column, ...]
    properties: str = "map"
    decompress: bool = True
    only_zlib: bool = False
    check_crc: bool = False
    broker_name: str | None = None
    selection: Selection | None = None
    damage_is_bad: bool = False
    system_properties: bool = True
    matching: Callable[[Properties], np.ndarray] | None = None

    @property
    def schema(self) -> pa.Schema:
        """The schema of the batches."""
        return arrow_schema(self.columns)


class TooMuchTogether(Exception):
    """Compressed bodies of several rows become too much for one batch."""


def decode_parts(
    buffer: bytes | memoryview, starts: np.ndarray, form: Form, log_offset: int | None = None
) -> Iterator[tuple[pa.RecordBatch, list[Bad]]]:
    """Decode the records; in several batches, where their bodies become too large for a single
    batch."""
    waiting = [starts]
    while waiting:
        part = waiting.pop()
        try:
            found = decode(buffer, part, form, log_offset)
        except TooMuchTogether:
            half = len(part) // 2
            assert half, "one row alone is never too much together"
            waiting += [part[half:], part[:half]]
        else:
            yield found


def decode(
    buffer: bytes | memoryview, starts: np.ndarray, form: Form, log_offset: int | None = None
) -> tuple[pa.RecordBatch, list[Bad]]:
    """Rows of the records at `starts` (ascending int64 positions), and the places without a record.

    Each record's size word was looked at by the caller: it ends within the buffer, which is below
    2 GiB. Raises TooMuchTogether, after which fewer rows are to be asked for (`decode_parts`).
    `log_offset` is the buffer's place in the commit log, which each record must name as its
    own place; None where buffers are of no log. Rows come in the order of `starts`.
    """
    if not len(starts):
        return _empty(form), []
    parts = [
        _Rows(
            buffer,
            chosen,
            header=HEADERS[bits],
            topic_length=_TOPIC_LENGTHS[magic],
            form=form,
            log_offset=log_offset,
        )
        for magic, bits, chosen in _by_kind(buffer, starts)
    ]
    assert sum(part.given for part in parts) == len(starts), "a magic was not looked at"
    bad = sorted([one for part in parts for one in part.bad])
    if len(parts) == 1:
        return parts[0].batch(), bad
    order = np.argsort(np.concatenate([part.starts for part in parts]), kind="stable")
    table = pa.Table.from_batches([part.batch() for part in parts], form.schema)
    batches = table.take(pa.array(order)).combine_chunks().to_batches()
    return (batches[0] if batches else _empty(form)), bad


def _by_kind(
    buffer: bytes | memoryview, starts: np.ndarray
) -> Iterator[tuple[int, int, np.ndarray]]:
    """Magic, bits for hosts, and the records that have them."""
    steps = compiled.steps()
    all_of = steps.kind(buffer, starts) if steps is not None else None
    if all_of is not None and all_of[0] in _TOPIC_LENGTHS:
        yield *all_of, starts
        return
    bits = gather(buffer, starts + SYS_FLAG_POSITION, ">i4") & _HOSTS
    magics = gather(buffer, starts + MAGIC_POSITION, ">u4")
    for magic in _TOPIC_LENGTHS:
        of_magic = magics == magic
        for kind in np.unique(bits[of_magic]).tolist():
            yield magic, kind, starts[of_magic & (bits == kind)]


def _empty(form: Form) -> pa.RecordBatch:
    schema = form.schema
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def gather(buffer: bytes | memoryview, positions: np.ndarray, kind: str | np.dtype) -> np.ndarray:
    """A value of that kind from each position."""
    dtype = np.dtype(kind)
    if not len(positions):
        return np.empty(0, dtype)
    items = np.ndarray(len(buffer) - dtype.itemsize + 1, f"V{dtype.itemsize}", buffer, strides=(1,))
    found: np.ndarray = items[positions].view(dtype)
    return found


def numbers(buffer: bytes | memoryview, starts: np.ndarray, position: int, kind: str) -> np.ndarray:
    """The number of that kind (">i4" or ">i8") that lies `position` bytes after each start."""
    dtype = np.dtype(kind)
    steps = compiled.steps()
    if steps is not None and len(starts):
        found = steps.numbers(buffer, starts, position, dtype.itemsize)
        if found is not None:
            return np.frombuffer(found, dtype.newbyteorder("="))
    return gather(buffer, starts + position, dtype)


class _Rows:
    """The records of one buffer that have hosts of the same kind."""

    def __init__(
        self,
        buffer: bytes | memoryview,
        starts: np.ndarray,
        *,
        header: np.dtype,
        topic_length: str,
        form: Form,
        log_offset: int | None,
    ) -> None:
        self._buffer = buffer
        self.form = form
        self.bad: list[Bad] = []
        self.given = len(starts)
        # Set when they are inflated ahead of the rest.
        self._bodies: pa.Array | None = None
        # The values of properties by name, where no more of them is needed.
        self._values: dict[str, pa.Array] | None = None
        self.starts = starts
        self._header = header
        self._topic_length = np.dtype(topic_length)
        if not self._find_places(log_offset):
            self._check(log_offset)
        if form.selection is not None and form.selection.filters_rows:
            self._choose(form.selection)
        if form.check_crc:
            self._check_crc()
        if form.damage_is_bad and form.decompress and "body" in self._names:
            self._bodies = self._inflatable()
        self.topic, self.properties = self._texts()
        if form.matching is not None and len(self.starts):
            self._match(form.matching(self.properties))

    def batch(self) -> pa.RecordBatch:
        """The columns asked for."""
        if not len(self.starts):
            return _empty(self.form)
        schema = self.form.schema
        arrays = [
            pa.array(self.number(field.name)) if field.name in _INTS else _MAKERS[field.name](self)
            for field in schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def body(self) -> pa.Array:
        """The bodies, inflated where they are compressed and that is asked for."""
        if self._bodies is not None:
            return self._bodies
        bodies = slices(self._buffer, self.body_at, self.body_end)
        packed = self._packed() if self.form.decompress else {}
        if not packed:
            return bodies
        values = bodies.to_pylist()
        inflater = Inflater()
        for row, sys_flag in packed.items():
            values[row] = inflater.plain(values[row], sys_flag)
        return pa.array(values, pa.binary())

    def _packed(self) -> dict[int, int]:
        """The rows whose bodies are to be inflated, with their flags."""
        flags = self.number("sysFlag")
        packed = flags & SYS_COMPRESSED != 0
        if self.form.only_zlib:
            packed &= np.isin(flags & SYS_COMPRESSION_MASK, (0, SYS_COMPRESSION_ZLIB))
        rows = np.flatnonzero(packed)
        return dict(zip(rows.tolist(), flags[rows].tolist(), strict=True))

    # --- fields -----------------------------------------------------------------------------

    @cached_property
    def header(self) -> np.ndarray:
        """The fixed fields of all rows."""
        return gather(self._buffer, self.starts, self._header)

    def number(self, name: str) -> np.ndarray:
        """A fixed field that is a number, in the machine's own order."""
        dtype, position = self._field(name)
        steps = compiled.steps()
        found = None
        if steps is not None:
            found = steps.numbers(self._buffer, self.starts, position, dtype.itemsize)
        native = dtype.newbyteorder("=")
        return self.header[name].astype(native) if found is None else np.frombuffer(found, native)

    def time(self, name: str) -> pa.Array:
        """A fixed field that is a time, as Spark has them."""
        steps, made = compiled.steps(), None
        if steps is not None:
            _, position = self._field(name)
            made = steps.microseconds(self._buffer, self.starts, position, FIRST_MS, LAST_MS)
        if made is None:
            return times(self.number(name))
        return of_buffers(TIMESTAMP, len(self.starts), None, made)

    def packed(self, name: str) -> np.ndarray:
        """A fixed field as its bytes; without the others, unless they are there."""
        if "header" in vars(self):
            return self.header[name]
        dtype, position = self._field(name)
        return gather(self._buffer, self.starts + position, dtype)

    def offset_ids(self) -> pa.Array:
        """The ids that brokers give messages."""
        steps, made = compiled.steps(), None
        if steps is not None:
            fields = [self._field(name) for name in ("storeHost", "commitLogOffset")]
            places = tuple([(position, dtype.itemsize) for dtype, position in fields])
            made = steps.hexadecimal(self._buffer, self.starts, places)
        if made is None:
            return offset_msg_ids(self.packed("storeHost"), self.packed("commitLogOffset"))
        return hex_texts(len(self.starts), len(made) // len(self.starts), made)

    def _field(self, name: str) -> tuple[np.dtype, int]:
        assert self._header.fields is not None
        dtype, position = self._header.fields[name][:2]
        return dtype, position

    # --- checks -----------------------------------------------------------------------------

    def _find_places(self, log_offset: int | None) -> bool:
        """Where the parts of each record lie, if all records are sound; False: `_check` says."""
        steps = compiled.steps()
        if steps is None:
            return False
        topic_length_bytes = self._topic_length.itemsize
        found = steps.places(
            self._buffer, self.starts, self._header.itemsize, topic_length_bytes, log_offset
        )
        if found is None:
            return False
        columns = np.frombuffer(found, np.int64).reshape(5, -1)
        self.body_at, self.body_end, self.topic_at, self.topic_end, self.ends = columns
        return True

    def _check(self, log_offset: int | None) -> None:
        """Find the places with a look at each rule; a record that breaks a rule is bad."""
        header_bytes, tail_bytes = self._header.itemsize, self._topic_length.itemsize + 2
        whole = self.starts + header_bytes + tail_bytes <= len(self._buffer)
        self._keep(whole, "is cut off")
        if log_offset is not None:
            own = self.header["commitLogOffset"] == self.starts + log_offset
            self._keep(own, "names another place than its own")
        self._cut(header_bytes, tail_bytes)

    def _cut(self, header_bytes: int, tail_bytes: int) -> None:
        """Find body, topic and properties; drop records whose lengths do not add up."""
        length = self.header["bodyLength"].astype(np.int64)
        room = self.header["size"].astype(np.int64) - header_bytes - tail_bytes
        self.ends = self.starts + self.header["size"]
        inside = self.ends <= len(self._buffer)
        self._keep((length >= 0) & (length <= room) & inside, "has a body longer than itself")
        self.body_at = self.starts + header_bytes
        self.body_end = self.body_at + self.header["bodyLength"]
        self.topic_at = self.body_end + self._topic_length.itemsize
        self.topic_end = self.topic_at + gather(self._buffer, self.body_end, self._topic_length)
        self._keep(self.topic_end + 2 <= self.ends, "has no room for its topic")
        announced = gather(self._buffer, self.topic_end, ">u2")
        fits = self.topic_end + 2 + announced == self.ends
        self._keep(fits, "has lengths that do not add up")

    def _choose(self, selection: Selection) -> None:
        """Go on with the rows that are selected."""
        good = np.ones(len(self.starts), np.bool_)
        if selection.queue_ids is not None:
            good &= np.isin(self.number("queueId"), list(selection.queue_ids))
        if selection.start_ms is not None:
            good &= self.number("storeTimestamp") >= selection.start_ms
        if selection.end_ms is not None:
            good &= self.number("storeTimestamp") < selection.end_ms
        self._reduce(good)
        if selection.topics is not None and len(self.starts):
            names = pa.array([topic.encode() for topic in sorted(selection.topics)], pa.binary())
            topics = slices(self._buffer, self.topic_at, self.topic_end)
            self._reduce(pc.is_in(topics, names).to_numpy(zero_copy_only=False))

    def _inflatable(self) -> pa.Array | None:
        """The bodies, if any is compressed; rows whose body cannot be inflated are dropped."""
        packed = self._packed()
        if not packed:
            return None
        values = slices(self._buffer, self.body_at, self.body_end).to_pylist()
        good = np.ones(len(values), np.bool_)
        inflater = Inflater()
        for row, sys_flag in packed.items():
            try:
                values[row] = inflater.plain(values[row], sys_flag)
            except ValueError as error:
                good[row] = False
                self.bad.append(Bad(int(self.starts[row]), f"cannot be inflated: {error}"))
        self._reduce(good)
        kept = [value for value, keep in zip(values, good.tolist(), strict=True) if keep]
        return pa.array(kept, pa.binary())

    def _check_crc(self) -> None:
        self._keep(self._crcs() == self.number("bodyCrc"), "has a body of another CRC")

    def _crcs(self) -> np.ndarray:
        steps = compiled.steps()
        made = None
        if steps is not None:
            made = steps.crcs(self._buffer, self.body_at, self.body_end)
        if made is not None:
            return np.frombuffer(made, np.int32)
        view = memoryview(self._buffer)
        found = [
            zlib.crc32(view[begin:end]) & 0x7FFFFFFF
            for begin, end in zip(self.body_at.tolist(), self.body_end.tolist(), strict=True)
        ]
        return np.array(found, np.int32)

    def _texts(self) -> tuple[pa.Array, Properties]:
        """Check topics and properties, as far as they are needed; drop records that are no
        UTF-8."""
        names = self._names
        topics = texts = pa.array([], pa.string())
        if not len(self.starts):
            return topics, Properties(texts)
        try:
            if "topic" in names:
                topics = slices(self._buffer, self.topic_at, self.topic_end).cast(pa.string())
            wanted = names & _OF_PROPERTIES
            self._values = self._values_of(wanted)
            if self._values is None and (wanted or self.form.matching is not None):
                texts = slices(self._buffer, self.topic_end + 2, self.ends).cast(pa.string())
        except pa.ArrowInvalid:
            texts_only = [self._is_text(row) for row in range(len(self.starts))]
            self._keep(np.array(texts_only), "is no UTF-8")
            return self._texts()
        return topics, Properties(texts)

    def _values_of(self, columns: set[str]) -> dict[str, pa.Array] | None:
        """The values that columns are made of, found where they lie; None: they need more, or
        nothing of properties."""
        steps = compiled.steps()
        if steps is None or not columns or not columns <= _VALUES.keys():
            return None
        if self.form.matching is not None:
            return None
        names = sorted({name for column in columns for name in _VALUES[column]})
        encoded = tuple([name.encode() for name in names])
        found = steps.values(self._buffer, self.topic_end + 2, self.ends, encoded)
        if found is None:
            return None
        return {
            name: of_buffers(pa.string(), len(self.starts), bits if without else None, *buffers)
            for name, (without, bits, *buffers) in zip(names, found, strict=True)
        }

    def value(self, column: str) -> pa.Array:
        """The property that the column has; of several possible properties, the first that a
        message has. Null for a message without it."""
        names = _VALUES[column]
        if self._values is None:
            return self.properties.value(*names)
        found = [self._values[name] for name in names]
        return found[0] if len(found) == 1 else pc.coalesce(*found)

    def _match(self, matching: np.ndarray) -> None:
        """Go on with the rows that match."""
        if matching.all():
            return
        self._reduce(matching)
        mask = pa.array(matching)
        self.topic = self.topic.filter(mask) if len(self.topic) else self.topic
        self.properties = Properties(self.properties.text.filter(mask))

    def _is_text(self, row: int) -> bool:
        try:
            for begin, end in (
                (self.topic_at[row], self.topic_end[row]),
                (self.topic_end[row] + 2, self.ends[row]),
            ):
                bytes(self._buffer[begin:end]).decode()
        except UnicodeDecodeError:
            return False
        return True

    @property
    def _names(self) -> set[str]:
        return {column.name for column in self.form.columns}

    def _keep(self, good: np.ndarray, reason: str) -> None:
        """Go on with the good rows; the others are bad for that reason."""
        if good.all():
            return
        self.bad += [Bad(int(position), reason) for position in self.starts[~good]]
        self._reduce(good)

    def _reduce(self, good: np.ndarray) -> None:
        if good.all():
            return
        for name in ("starts", "header", "body_at", "body_end", "topic_at", "topic_end", "ends"):
            if name in vars(self):
                setattr(self, name, getattr(self, name)[good])
        if self._bodies is not None:
            self._bodies = self._bodies.filter(pa.array(good))


def inflate(body: bytes, sys_flag: int) -> bytes:
    """The body that was compressed. Raises ValueError: damaged, beyond bounds, or of a compression
    whose package is not installed (protocol/message/compression.py)."""
    try:
        return compression.inflate(body, sys_flag, MAX_INFLATED_BYTES)
    except compression.CannotInflate as error:
        raise ValueError(f"{error}; read it as it is with decompress=false") from error


class Inflater:
    """Inflates the bodies of one batch."""

    def __init__(self) -> None:
        self._used = 0

    def plain(self, body: bytes, sys_flag: int) -> bytes:
        """`inflate`; raises TooMuchTogether when the bodies before it leave no room."""
        plain = inflate(body, sys_flag)
        if self._used and self._used + len(plain) > MAX_INFLATED_BYTES:
            raise TooMuchTogether
        self._used += len(plain)
        return plain


def _property_column(rows: _Rows) -> pa.Array:
    kind, properties = rows.form.properties, rows.properties
    if kind == "raw":
        return properties.text
    system = rows.form.system_properties
    return properties.as_json(system=system) if kind == "json" else properties.as_map(system=system)


def _message_ids(rows: _Rows) -> pa.Array:
    unique = rows.value("msgId")
    return pc.coalesce(unique, rows.offset_ids()) if unique.null_count else unique


def _keys(rows: _Rows) -> pa.Array:
    keys = rows.value(KEYS)
    typed = {column.name: column.type for column in rows.form.columns}
    return keys if typed[KEYS] != KEYS_TYPE else pc.split_pattern(keys, " ")


_MAKERS: Final[dict[str, Callable[[_Rows], pa.Array]]] = {
    "topic": lambda rows: rows.topic,
    "body": _Rows.body,
    PROPERTIES: _property_column,
    "brokerName": lambda rows: pa.repeat(rows.form.broker_name, len(rows.starts)),
    "bornTimestamp": lambda rows: rows.time("bornTimestamp"),
    "storeTimestamp": lambda rows: rows.time("storeTimestamp"),
    "msgId": _message_ids,
    "offsetMsgId": _Rows.offset_ids,
    KEYS: _keys,
    HEADERS_COLUMN: lambda rows: rows.properties.as_headers(system=rows.form.system_properties),
    "tags": lambda rows: rows.value("tags"),
    "bornHost": lambda rows: hosts(rows.packed("bornHost")),
    "storeHost": lambda rows: hosts(rows.packed("storeHost")),
    "recordSize": lambda rows: pa.array(rows.number("size")),
    "originTopic": lambda rows: rows.value("originTopic"),
    "error": lambda rows: pa.nulls(len(rows.starts), pa.string()),
}
#: Columns that are properties of a message, and their names there.
_VALUES: Final = {
    KEYS: ("KEYS",),
    "tags": ("TAGS",),
    "msgId": ("UNIQ_KEY",),
    "originTopic": ("REAL_TOPIC", "RETRY_TOPIC"),
}
_OF_PROPERTIES: Final = {PROPERTIES, HEADERS_COLUMN, *_VALUES}
