"""Rows that are packed many at a time equal rows that are made singly, byte for byte."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aerobee.pipeline.sink.rows import (
    PROPERTIES_BYTES,
    PackedRun,
    RowMaker,
    SinkRowError,
    values_of,
)
from aerobee.pipeline.sink.schema import SinkColumns
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.message.ids import UniqueIdMaker

pa = pytest.importorskip("pyarrow")
packed = pytest.importorskip("aerobee.pipeline.sink.packed")

TYPES = {
    "body": pa.binary(),
    "tags": pa.string(),
    "keys": pa.string(),
    "words": pa.list_(pa.string()),
    "properties": pa.map_(pa.string(), pa.string()),
    "sharding_key": pa.string(),
    "queue_id": pa.int32(),
    "flag": pa.int64(),
}


def queues(topic: str) -> list[MessageQueue]:
    return [MessageQueue(topic, "b-a", number) for number in range(3)]


def maker(names: Sequence[str]) -> RowMaker:
    """A new one; all give the same ids."""
    places = {{"words": "keys"}.get(name, name): place for place, name in enumerate(names)}
    ids = UniqueIdMaker(bytes(4), 1, 2, lambda: 1_700_000_000_000)
    return RowMaker(SinkColumns(**places), "T", "q/1/0", 0, queues, ids)


def batch_of(columns: dict[str, list[Any]]) -> pa.RecordBatch:
    arrays = [pa.array(values, TYPES[name]) for name, values in columns.items()]
    return pa.RecordBatch.from_arrays(arrays, list(columns))


def by_queue(rows: Sequence[Any]) -> dict[MessageQueue, bytes]:
    found: dict[MessageQueue, bytes] = defaultdict(bytes)
    for row in rows:
        found[row.queue] += bytes(row.encoded)
    return dict(found)


def pack(columns: dict[str, list[Any]], first: int = 0) -> list[PackedRun] | None:
    found = packed.Packer(maker(list(columns)), "T").pack(batch_of(columns), first)
    return None if found is None else found.pieces


plain = st.text("abK\u00fc \U0001f600", max_size=4)
COLUMNS = {
    "tags": st.none() | plain,
    "keys": st.none() | plain,
    "words": st.none() | st.lists(st.none() | plain, max_size=3),
    "properties": st.none()
    | st.lists(
        st.tuples(st.sampled_from(["own", "\u00e9", "UNIQ_KEY", "DELAY", "n2"]), st.none() | plain),
        max_size=4,
    ),
    "sharding_key": plain,
    "queue_id": st.integers(0, 2),
    "flag": st.none() | st.integers(-(1 << 31), (1 << 31) - 1),
}


@st.composite
def drawn_columns(draw: st.DrawFn) -> dict[str, list[Any]]:
    names = draw(st.sets(st.sampled_from(sorted(COLUMNS))))
    if {"keys", "words"} <= names:
        names.remove("words")
    count = draw(st.integers(1, 12))
    bodies = draw(st.lists(st.binary(min_size=1, max_size=40), min_size=count, max_size=count))
    found = {"body": bodies}
    for name in sorted(names):
        found[name] = draw(st.lists(COLUMNS[name], min_size=count, max_size=count))
    return found


@settings(max_examples=300)
@given(drawn_columns(), st.integers(0, 70_000))
def test_packed_rows_are_those_made_one_by_one(columns: dict[str, list[Any]], first: int) -> None:
    pieces = pack(columns, first)
    assert pieces is not None
    rows = list(maker(list(columns)).rows(values_of([batch_of(columns)]), first))
    assert by_queue(pieces) == by_queue(rows)
    assert sum(piece.rows for piece in pieces) == len(rows)
    numbers = [number for piece in pieces for number in (piece.number, piece.last)]
    assert {min(numbers), max(numbers)} == {first, first + len(rows) - 1}


def test_rows_without_a_key_go_round_some_side_by_side_from_batch_to_batch() -> None:
    made = maker(["body"])
    packer = packed.Packer(made, "T")
    found: list[int] = []
    for first in (0, 150):
        for piece in packer.pack(batch_of({"body": [b"x"] * 150}), first).pieces:
            found += [piece.queue.queue_id] * piece.rows
    one_by_one = maker(["body"]).rows([(b"x",)] * 300)
    assert found == [row.queue.queue_id for row in one_by_one]


def test_pieces_are_small_enough_to_be_gathered() -> None:
    bodies = [bytes(30_000)] * 5 + [bytes(200_000)] + [b"x"] * 10
    pieces = pack({"body": bodies})
    assert pieces is not None
    assert [piece.rows for piece in pieces] == [2, 2, 1, 1, 10]
    assert all(piece.size <= 64 * 1024 or piece.rows == 1 for piece in pieces)


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("body", None, "body is null"),
        ("body", b"", "body is empty"),
        ("tags", "a\x01b", "property 'TAGS' holds U"),
        ("properties", [("own", "a\x02b")], "property 'own' holds U"),
        ("keys", "k" * PROPERTIES_BYTES, "the properties have"),
        ("queue_id", 7, "there is no queue 7"),
        ("flag", 1 << 40, "does not fit 32 bits"),
    ],
)
def test_what_is_wrong_is_left_to_the_way_that_names_the_row(
    column: str, value: Any, reason: str
) -> None:
    columns: dict[str, list[Any]] = {"body": [b"x"] * 3}
    good = {"properties": [], "queue_id": 0, "flag": 0, "body": b"x"}.get(column, "t")
    columns[column] = [good, value, good]
    assert pack(columns) is None
    with pytest.raises(SinkRowError, match=f"row 1 of its partition, topic 'T': .*{reason}"):
        list(maker(list(columns)).rows(values_of([batch_of(columns)])))


def test_a_null_key_or_queue_is_looked_at_row_by_row() -> None:
    assert pack({"body": [b"x"], "sharding_key": [None]}) is None
    assert pack({"body": [b"x"], "queue_id": [None]}) is None
    assert not packed.Packer.may_pack(SinkColumns(0, delay_level=1), "T")
    assert not packed.Packer.may_pack(SinkColumns(0, headers=1), "T")
    assert not packed.Packer.may_pack(SinkColumns(0), None)
