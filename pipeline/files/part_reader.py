"""Reads one partition of a store as batches of rows, and handles bad records.

Bytes are read in chunks (`segment_bytes.py`), record starts are found by a scan (`piece_scan.py`)
or taken from consume queue entries, and rows are decoded in bulk (`decode.py`). A record is bad if
its bytes are no record, if it names another place than its own, or if it fails a check that was
asked for. The mode `permissive` makes a row of it, with its log offset and an `error` alone, if the
column `error` is asked for; `dropmalformed` leaves it out and logs how many there were; `failfast`
ends the read with an error.

The entries of several queues are merged, so that each stretch of the log is read once; records that
lie close to each other are read together with the bytes between them. An entry is not believed: a
record of its size must begin at its place, and name that place and that queue as its own.

This code runs on Spark's executors, one partition at a time in a process. Batches are copies, so
nothing of a file is held once a batch is given out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa

from aerobee.pipeline.decode.decode import Form, decode_parts, gather
from aerobee.pipeline.decode.record_starts import MAGICS
from aerobee.pipeline.decode.selection import Selection
from aerobee.pipeline.errors import StoreReadError
from aerobee.pipeline.files.directory import File
from aerobee.pipeline.files.entries import PRE_BLANK_SIZE, QueueEntries
from aerobee.pipeline.files.piece_scan import (
    CHUNK_BYTES,
    REMOTE_CHUNK_BYTES,
    Damage,
    PieceScan,
    ScannedBytes,
)
from aerobee.pipeline.files.segment_bytes import SegmentBytes
from aerobee.pipeline.files.store_options import CONSUME_QUEUE, FAIL_FAST, PERMISSIVE, StoreOptions
from aerobee.pipeline.files.store_plan import EntriesPart, LogPart, LogPiece, Part
from aerobee.protocol.message.record_layout import SYS_FLAG_POSITION, SYS_TRANSACTION_PREPARED
from aerobee.protocol.names import is_light

log = logging.getLogger("aerobee.pipeline")

#: Larger batches are slower and crowd the JVM.
ROWS_MAX: Final = 32768
# Reading over a gap of this size costs about as much as another read.
_GAP_BYTES: Final = 16 << 10
_REMOTE_GAP_BYTES: Final = 1 << 20
_NO_FILE: Final = "is named by a unit and is in no file"
_NO_RECORD: Final = "is named by a consume queue unit as a record of another size, or is no record"


class Reading:
    """Makes the rows of one partition, and counts its bad records."""

    def __init__(self, options: StoreOptions, selection: Selection) -> None:
        self.options = options
        self.selection = selection
        self.form = Form(
            options.columns,
            properties=options.properties,
            decompress=options.decompress,
            only_zlib=options.only_zlib,
            check_crc=options.check_crc,
            selection=selection,
            damage_is_bad=True,
        )
        self._shows_bad = options.mode == PERMISSIVE and any(
            column.name == "error" for column in options.columns
        )
        self._bad = 0
        self._example = ""

    def rows(
        self, data: bytes | memoryview, log_offset: int, starts: np.ndarray, damage: list[Damage]
    ) -> Iterator[pa.RecordBatch]:
        """Batches of the records at these positions; bad records are added to `damage`."""
        for first in range(0, len(starts), ROWS_MAX):
            part = starts[first : first + ROWS_MAX]
            for batch, bad in decode_parts(data, part, self.form, log_offset):
                damage += [Damage(log_offset + one.position, one.reason) for one in bad]
                if batch.num_rows:
                    yield batch

    def bad(self, path: str, damage: list[Damage]) -> Iterator[pa.RecordBatch]:
        """Rows of bad records, if the mode makes any. Raises StoreReadError in failfast."""
        if not damage:
            return
        texts = [f"{path}: what is at log offset {one[0]} {one[1]}" for one in damage]
        if self.options.mode == FAIL_FAST:
            raise StoreReadError(f"{texts[0]} (mode failfast)")
        self._example = self._example or texts[0]
        self._bad += len(damage)
        if self._shows_bad:
            values = {"error": texts, "commitLogOffset": [one.log_offset for one in damage]}
            schema = self.form.schema
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array(values[field.name], field.type)
                    if field.name in values
                    else pa.nulls(len(damage), field.type)
                    for field in schema
                ],
                schema=schema,
            )

    def close(self) -> None:
        """Log how many bad records there were."""
        if self._bad:
            log.warning("%d bad records; the first: %s", self._bad, self._example)


def read_part(part: Part, options: StoreOptions, selection: Selection) -> Iterator[pa.RecordBatch]:
    """The rows of a partition. Raises StoreReadError if a file is gone or was cut, and for a bad
    record in failfast."""
    reading = Reading(options, _of_rows(part, options, selection))
    if isinstance(part, EntriesPart):
        yield from _read_entries(part, reading)
    else:
        for piece in part.pieces:
            yield from _read_piece(part, piece, reading)
    reading.close()


def _of_rows(part: Part, options: StoreOptions, selection: Selection) -> Selection:
    """The selection of rows. A read of queues gives what their consumers get: light queues and
    other further ones (store/FORMAT.md) have messages of other topics."""
    if isinstance(part, EntriesPart):
        light = any(is_light(entries.topic) for entries in part.queues)
        if light or options.use == CONSUME_QUEUE:
            return replace(selection, topics=None, queue_ids=None)
    return selection


def _read_piece(part: LogPart, piece: LogPiece, reading: Reading) -> Iterator[pa.RecordBatch]:
    if not piece.path:
        missing = f"to {piece.end} is in no file"
        yield from reading.bad("the commit log", [Damage(piece.start, missing)])
        return
    size = CHUNK_BYTES if part.place.is_local else REMOTE_CHUNK_BYTES
    with SegmentBytes(part.place, piece, reading.options.mapped, ahead_bytes=size) as segment:
        scan = PieceScan(part, piece, segment.read, size)
        for chunk in scan.chunks():
            yield from _read_chunk(scan, chunk, piece, reading)


def _read_chunk(
    scan: PieceScan, chunk: ScannedBytes, piece: LogPiece, reading: Reading
) -> Iterator[pa.RecordBatch]:
    starts = chunk.starts
    before = piece.first_offset - chunk.log_offset
    if before > 0:
        starts = starts[starts >= before]
    damage = [one for one in chunk.damage if one.log_offset >= piece.first_offset]
    hidden: list[int] = []
    scanned = min(len(chunk.data), chunk.next_offset - chunk.log_offset)
    bad: list[Damage] = []
    yield from reading.rows(chunk.data, chunk.log_offset, starts, bad)
    for one in bad:
        # If its size is wrong, it has led over sound records.
        position = one.log_offset - chunk.log_offset
        after = starts[np.searchsorted(starts, position, "right") :]
        end = int(after[0]) if len(after) else scanned
        hidden += scan.between(chunk, position, end)
    damage += bad
    yield from reading.rows(chunk.data, chunk.log_offset, np.array(hidden, np.int64), damage)
    yield from reading.bad(piece.path, sorted(damage))


# By consume queue entries


def _read_entries(part: EntriesPart, reading: Reading) -> Iterator[pa.RecordBatch]:
    """The rows of a partition of entries."""
    positions, sizes = _entries(part)
    starts = np.array([segment.start for segment in part.segments], np.int64)
    ends = np.array([segment.end for segment in part.segments], np.int64)
    of_segment = np.searchsorted(starts, positions, "right") - 1
    nowhere = (of_segment < 0) | (positions + sizes > ends[of_segment])
    lost = positions[nowhere].tolist()
    yield from reading.bad("a consume queue", [Damage(one, _NO_FILE) for one in lost])
    for number, segment in enumerate(part.segments):
        here = (of_segment == number) & ~nowhere
        if here.any():
            yield from _read_segment(part, segment, positions[here], sizes[here], reading)


def _entries(part: EntriesPart) -> tuple[np.ndarray, np.ndarray]:
    """The log offsets and sizes of the records, ascending, each once."""
    found = []
    for entries in part.queues:
        queue = QueueEntries(part.place, entries.topic, entries.queue_id, entries.files)
        found.append(queue.read(entries.first, entries.end))
        queue.close()
    all_entries = np.concatenate(found)
    used = (all_entries["size"] > 0) & (all_entries["size"] < PRE_BLANK_SIZE)
    positions, first = np.unique(all_entries["logOffset"][used].astype(np.int64), return_index=True)
    return positions, all_entries["size"][used].astype(np.int64)[first]


def _read_segment(
    part: EntriesPart, segment: File, positions: np.ndarray, sizes: np.ndarray, reading: Reading
) -> Iterator[pa.RecordBatch]:
    gap = _GAP_BYTES if part.place.is_local else _REMOTE_GAP_BYTES
    piece = LogPiece.of(segment, segment.start, segment.end)
    with SegmentBytes(part.place, piece, False) as data:
        for first, end in _together(positions, sizes, gap):
            base = int(positions[first])
            count = int((positions[first:end] + sizes[first:end]).max()) - base
            read = data.read(base, count)
            at, bad = _named(read, positions[first:end] - base, sizes[first:end])
            damage = [Damage(base + one, _NO_RECORD) for one in bad]
            yield from reading.rows(read, base, at, damage)
            yield from reading.bad(segment.path, sorted(damage))


def _together(positions: np.ndarray, sizes: np.ndarray, gap: int) -> Iterator[tuple[int, int]]:
    """The ranges [first, end) of records that are read at once."""
    ends = positions + sizes
    breaks = np.flatnonzero(positions[1:] - ends[:-1] > gap) + 1
    for first, end in zip([0, *breaks.tolist()], [*breaks.tolist(), len(positions)], strict=True):
        while first < end:
            limit = int(positions[first]) + CHUNK_BYTES
            stop = max(first + 1, int(np.searchsorted(ends[first:end], limit, "right")) + first)
            yield first, stop
            first = stop


def _named(
    data: bytes | memoryview, starts: np.ndarray, sizes: np.ndarray
) -> tuple[np.ndarray, list[int]]:
    """The starts where a message of that size begins, and the other starts.

    An entry cannot name half messages, rollbacks and the fillers of a repair.
    """
    words = gather(data, starts, np.dtype([("size", ">i4"), ("magic", ">u4")]))
    good = (words["size"] == sizes) & np.isin(words["magic"], MAGICS)
    flags = gather(data, starts[good] + SYS_FLAG_POSITION, ">i4")
    good[good] = flags & SYS_TRANSACTION_PREPARED == 0
    # Records overlap only where entries are wrong.
    kept = np.flatnonzero(good)
    good[kept[1:]] = starts[kept[1:]] >= (starts + sizes)[kept[:-1]]
    return starts[good], starts[~good].tolist()
