"""Consume queue files: found, read into rows, and made from rows as a broker would write them.

The entry of slot k of a queue is at byte k x 20, always. A slot without a message is a pre-blank
entry (0, 2147483647, 0) or, where nothing was written, zeros (store/FORMAT.md 5.1). A broker fills
the slots before a queue's first message in its file, and those of messages that are lost, with
pre-blanks; behind the last entry a file is zeros to its length.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from aerobee.pipeline.files.directory import Place, Store
from aerobee.pipeline.jobs.derived.claims import ENTRIES

ENTRY_BYTES: Final = 20
ENTRY: Final = np.dtype([("logOffset", ">i8"), ("size", ">i4"), ("tagsCode", ">i8")])
PRE_BLANK_SIZE: Final = 0x7FFFFFFF
#: RocketMQ's default: 300,000 entries.
QUEUE_FILE_BYTES: Final = 6_000_000

_ROWS = 32_768


class QueueFile(NamedTuple):
    """A file of a queue and the file system it is in (store_files.Place); `start` is its first
    byte's place in the queue."""

    topic: str
    queue_id: int
    uri: str
    path: str
    start: int
    size: int

    @property
    def first_slot(self) -> int:
        """The slot of its first entry."""
        return self.start // ENTRY_BYTES


def queue_files(store: Store) -> list[QueueFile]:
    """The files of all consume queues, by topic, queue and start."""
    return [
        QueueFile(topic, queue_id, store.place.uri, file.path, file.start, file.size)
        for (topic, queue_id), files in sorted(store.queues().items())
        for file in files
    ]


def read_entries(file: QueueFile, log_min: int = 0) -> Iterator[pa.RecordBatch]:
    """The entries of a file that name a record at or above `log_min` (schema ENTRIES).

    A last piece of fewer than 20 bytes is none. Raises OSError, or StoreReadError when it is gone.
    """
    with Place(file.uri).open(file.path) as reader:
        slot = file.first_slot
        position = 0
        while data := reader.read(position, _ROWS * ENTRY_BYTES):
            count = len(data) // ENTRY_BYTES
            yield from _batches(file, np.frombuffer(data, ENTRY, count), slot, log_min)
            slot += count
            position += len(data)


def _batches(
    file: QueueFile, entries: np.ndarray, first_slot: int, log_min: int
) -> Iterator[pa.RecordBatch]:
    size = entries["size"].astype(np.int32)
    offsets = entries["logOffset"].astype(np.int64)
    # A size that is none where the rest of the entry is something is damage, not an empty slot.
    empty = (size == 0) & (offsets == 0)
    blank = (size == PRE_BLANK_SIZE) & (offsets == 0)
    rows = np.flatnonzero(~empty & ~blank & (offsets >= log_min))
    if len(rows):
        arrays = [
            pa.repeat(file.topic, len(rows)),
            pa.repeat(pa.scalar(file.queue_id, pa.int32()), len(rows)),
            pa.array(rows + first_slot),
            pa.array(offsets[rows]),
            pa.array(size[rows]),
            pa.array(entries["tagsCode"].astype(np.int64)[rows]),
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=ENTRIES)


def file_bytes(
    start_slot: int, end_slot: int, slots: np.ndarray, entries: pa.Table | pa.RecordBatch
) -> bytes:
    """The entries of the slots from `start_slot` to `end_slot`, pre-blank where `entries` has none.

    `slots` are the slots of the rows of `entries` (ascending log offsets); of two rows for one slot
    the later counts.
    """
    filled = np.zeros(end_slot - start_slot, ENTRY)
    filled["size"] = PRE_BLANK_SIZE
    places = slots - start_slot
    for name in ENTRY.names or ():
        filled[name][places] = entries.column(name).to_numpy()
    return filled.tobytes()


def write_file(path: str, data: bytes, size: int) -> None:
    """A file of `size` bytes that begins with `data`, under its name only when it is whole.

    Two that write the same file do no harm to each other. Raises OSError.
    """
    write_sparse(path, [(0, data)], size)


def write_sparse(path: str, parts: list[tuple[int, bytes]], size: int) -> None:
    """The same for several parts, (position, bytes) each; between them are zeros."""
    aside = f"{path}.{os.getpid()}-{os.urandom(4).hex()}.tmp"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    try:
        with open(aside, "xb") as opened:
            for position, data in parts:
                opened.seek(position)
                opened.write(data)
            opened.truncate(size)
            opened.flush()
            os.fdatasync(opened.fileno())
        os.rename(aside, path)
    except BaseException:
        if os.path.exists(aside):
            os.remove(aside)
        raise


def queue_file_path(root: str, topic: str, queue_id: int, start: int) -> str:
    """Where a queue's file is that begins at byte `start` of the queue."""
    return os.path.join(root, "consumequeue", topic, str(queue_id), f"{start:020d}")
