"""Reads the records that consume queue entries name, in the order of the log.

The entries of several queues are merged, so that each stretch of the log is read once; records that
lie close to each other are read together with what is between them. An entry is not believed: where
it points, a record of its size must begin, which names that place as its own and that queue.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from aerobee.pipeline.decode.starts import MAGICS
from aerobee.pipeline.files.bytes import SegmentBytes
from aerobee.pipeline.files.directory import File
from aerobee.pipeline.files.entries import Queue
from aerobee.pipeline.files.plan import EntriesPart, Piece
from aerobee.pipeline.files.rows import Reading
from aerobee.pipeline.files.walk import CHUNK_BYTES, Damage

# Reading on over so many bytes costs about as much as another read.
_GAP_BYTES: Final = 16 << 10
_REMOTE_GAP_BYTES: Final = 1 << 20


def read_entries(part: EntriesPart, reading: Reading) -> Iterator[pa.RecordBatch]:
    """The rows of a partition that follows entries."""
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


_NO_FILE: Final = "is named by a unit and is in no file"


def _entries(part: EntriesPart) -> tuple[np.ndarray, np.ndarray]:
    """Log offsets and sizes of the records, ascending, each once."""
    found = []
    for entries in part.queues:
        queue = Queue(part.place, entries.topic, entries.queue_id, entries.files)
        found.append(queue.read(entries.first, entries.end))
        queue.close()
    all_entries = np.concatenate(found)
    used = (all_entries["size"] > 0) & (all_entries["size"] < 0x7FFFFFFF)
    positions, first = np.unique(all_entries["position"][used].astype(np.int64), return_index=True)
    return positions, all_entries["size"][used].astype(np.int64)[first]


def _read_segment(
    part: EntriesPart, segment: File, positions: np.ndarray, sizes: np.ndarray, reading: Reading
) -> Iterator[pa.RecordBatch]:
    gap = _GAP_BYTES if part.place.is_local else _REMOTE_GAP_BYTES
    piece = Piece(segment.path, segment.start, segment.size, segment.start, segment.end, 0)
    with SegmentBytes(part.place, piece, False) as data:
        for first, end in _together(positions, sizes, gap):
            base = int(positions[first])
            count = int((positions[first:end] + sizes[first:end]).max()) - base
            read = data.read(base, count)
            at, bad = _named(read, positions[first:end] - base, sizes[first:end])
            damage = [Damage(base + one, _NO_RECORD) for one in bad]
            for batch, more in reading.rows(read, base, at):
                if batch.num_rows:
                    yield batch
                damage += more
            yield from reading.bad(segment.path, sorted(damage))


_NO_RECORD: Final = "is named by a consume queue unit as a record of another size, or is none"


def _together(positions: np.ndarray, sizes: np.ndarray, gap: int) -> Iterator[tuple[int, int]]:
    """Ranges [first, end) of records that are read at once."""
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
    """The starts where a record of that size is, and those where it is not."""
    words = np.ndarray(len(data) - 7, "V8", data, strides=(1,))[starts].view(
        [("size", ">i4"), ("magic", ">u4")]
    )
    good = (words["size"] == sizes) & np.isin(words["magic"], MAGICS)
    # Records overlap only where entries are wrong.
    kept = np.flatnonzero(good)
    good[kept[1:]] = starts[kept[1:]] >= (starts + sizes)[kept[:-1]]
    return starts[good], starts[~good].tolist()
