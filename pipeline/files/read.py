"""Reads one partition of a store: batches of rows, and what becomes of records that are none.

Bytes are read in chunks (files/bytes.py), record starts are found by a walk (files/walk.py) or
taken from consume queue entries, and rows are decoded in bulk (decode.py). Everything that is no
record, or names another place than its own, or fails the checks asked for, is a bad record
(files/rows.py says what becomes of it).

Runs on Spark's executors, one partition at a time in a process. Batches are copies: nothing of a
file is held on to once a batch is given out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from aerobee.pipeline.decode.wanted import Wanted
from aerobee.pipeline.files.bytes import SegmentBytes
from aerobee.pipeline.files.options import CONSUME_QUEUE, StoreOptions
from aerobee.pipeline.files.plan import EntriesPart, LogPart, Part, Piece, is_light
from aerobee.pipeline.files.read_entries import read_entries
from aerobee.pipeline.files.rows import Reading
from aerobee.pipeline.files.walk import (
    CHUNK_BYTES,
    REMOTE_CHUNK_BYTES,
    Chunk,
    Damage,
    Walk,
)


def read_part(part: Part, options: StoreOptions, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """The rows of a partition. Raises StoreReadError: a file is gone or was cut, a bad record in
    failfast."""
    reading = Reading(options, _of_rows(part, options, wanted))
    if isinstance(part, EntriesPart):
        yield from read_entries(part, reading)
    else:
        for piece in part.pieces:
            yield from _read_piece(part, piece, reading)
    reading.close()


def _of_rows(part: Part, options: StoreOptions, wanted: Wanted) -> Wanted:
    """What a row must be. Who asks for queues gets what consumers of them get: light queues and
    other further ones (store/FORMAT.md) have messages of other topics."""
    if isinstance(part, EntriesPart):
        light = any(is_light(entries.topic) for entries in part.queues)
        if light or options.use == CONSUME_QUEUE:
            return replace(wanted, topics=None, queue_ids=None)
    return wanted


def _read_piece(part: LogPart, piece: Piece, reading: Reading) -> Iterator[pa.RecordBatch]:
    if not piece.path:
        missing = f"to {piece.end} is in no file"
        yield from reading.bad("the commit log", [Damage(piece.start, missing)])
        return
    size = CHUNK_BYTES if part.place.is_local else REMOTE_CHUNK_BYTES
    with SegmentBytes(part.place, piece, reading.options.mapped, ahead_bytes=size) as segment:
        walk = Walk(piece, segment.read, size)
        for chunk in walk.chunks():
            yield from _read_chunk(walk, chunk, piece, reading)


def _read_chunk(
    walk: Walk, chunk: Chunk, piece: Piece, reading: Reading
) -> Iterator[pa.RecordBatch]:
    starts = chunk.starts
    before = piece.first_wanted - chunk.log_offset
    if before > 0:
        starts = starts[starts >= before]
    damage = [one for one in chunk.damage if one.log_offset >= piece.first_wanted]
    hidden: list[int] = []
    walked = min(len(chunk.data), chunk.next_offset - chunk.log_offset)
    for batch, bad in reading.rows(chunk.data, chunk.log_offset, starts):
        if batch.num_rows:
            yield batch
        for one in bad:
            # Its size may be what is wrong, and then have led over sound records.
            position = one.log_offset - chunk.log_offset
            after = starts[np.searchsorted(starts, position, "right") :]
            end = int(after[0]) if len(after) else walked
            hidden += walk.between(chunk, position, end)
        damage += bad
    for batch, bad in reading.rows(chunk.data, chunk.log_offset, np.array(hidden, np.int64)):
        if batch.num_rows:
            yield batch
        damage += bad
    yield from reading.bad(piece.path, sorted(damage))
