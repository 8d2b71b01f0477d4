"""Stores for the tests of the jobs, and rows of their logs as the store reader gives them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from aerobee.pipeline.decode.columns import STORE_COLUMNS, choose
from aerobee.pipeline.decode.decode import Form, decode
from aerobee.pipeline.decode.record_starts import record_starts
from aerobee.pipeline.jobs.derived.entries import RECORD_COLUMNS
from aerobee.protocol.message.record_layout import BLANK_MAGIC, MIN_RECORD_BYTES

RAW = tuple(
    column._replace(type="string") if column.name == "properties" else column
    for column in choose(STORE_COLUMNS, RECORD_COLUMNS)
)
FORM = Form(RAW, properties="raw", decompress=False, check_crc=True)


def segment_rows(path: Path) -> pa.RecordBatch:
    """The rows of one segment; damaged places are rows with an error, as in the permissive mode."""
    data, base = path.read_bytes(), int(path.name)
    places: list[int] = []
    bad: list[tuple[int, str]] = []
    position = 0
    while position + 8 <= len(data):
        found = record_starts(data, position, len(data))
        places += found.positions.tolist()
        position = found.end
        word = data[position : position + 8]
        if int.from_bytes(word[4:], "big") == BLANK_MAGIC or not any(word):
            break
        bad.append((position, "is no record"))
        position = _next_start(data, position + 1, base)
    batch, wrong = decode(data, np.array(places, np.int64), FORM)
    bad += [(one.position, one.reason) for one in wrong]
    own = np.array([base + one for one in _decoded(places, wrong)], np.int64)
    moved = batch.column("commitLogOffset").to_numpy() != own
    bad += [(int(own[row] - base), "is elsewhere") for row in np.flatnonzero(moved).tolist()]
    batch = batch.filter(pa.array(~moved))
    return _with_errors(batch, sorted(bad), base)


def _decoded(places: list[int], wrong: list) -> list[int]:  # type: ignore[type-arg]
    left_out = {one.position for one in wrong}
    return [place for place in places if place not in left_out]


def _next_start(data: bytes, position: int, base: int) -> int:
    while position + MIN_RECORD_BYTES <= len(data):
        at = data.find(b"\xda\xa3\x20\xa7", position + 4)
        if at < 0:
            return len(data)
        position = at - 4
        size = int.from_bytes(data[position : position + 4], "big")
        own = int.from_bytes(data[position + 28 : position + 36], "big")
        if MIN_RECORD_BYTES <= size <= len(data) - position and own == base + position:
            return position
        position += 1
    return len(data)


def _with_errors(batch: pa.RecordBatch, bad: list[tuple[int, str]], base: int) -> pa.RecordBatch:
    rows = batch.to_pylist()
    for position, reason in bad:
        row = dict.fromkeys(RECORD_COLUMNS)
        rows.append(row | {"commitLogOffset": base + position, "error": reason})
    rows.sort(key=lambda row: row["commitLogOffset"])
    return pa.RecordBatch.from_pylist(rows, schema=FORM.schema)


def log_rows(root: Path) -> list[pa.RecordBatch]:
    """The rows of a store, one batch a segment that has any."""
    found = [segment_rows(path) for path in sorted((root / "commitlog").iterdir())]
    return [batch for batch in found if batch.num_rows]
