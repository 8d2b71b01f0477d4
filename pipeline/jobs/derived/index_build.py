"""One index file made at once from its keys, byte for byte as putting them one by one makes it.

A file is a hash table with chains: each entry names the one before it in its slot. Sorted by slot,
with the order kept, an entry's predecessor is its neighbour, so no loop is needed
(store/FORMAT.md 6.1, 6.2). Files depend on each other in one thing only: the first entry's seconds
are counted from the end of the file before.
"""

from __future__ import annotations

import time
from typing import Final, NamedTuple

import numpy as np

from aerobee.store.index.file import HEADER, HEADER_BYTES, I32_MAX, INDEX_ENTRY_BYTES, SLOT_BYTES

#: RocketMQ's defaults (maxHashSlotNum, maxIndexNum).
INDEX_SLOTS: Final = 5_000_000
INDEX_ENTRIES: Final = 20_000_000

_ENTRY = np.dtype([("hash", ">i4"), ("logOffset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])


class BuiltIndex(NamedTuple):
    """The parts of an index file that are not zeros, and how long it is."""

    parts: list[tuple[int, bytes]]
    size: int


def build_index(
    hashes: np.ndarray,
    log_offsets: np.ndarray,
    store_ms: np.ndarray,
    slots: int,
    entries: int,
    before_ms: int = 0,
) -> BuiltIndex:
    """The file of these keys (1 to entries - 1 of them, in physical order).

    `before_ms` is the store time of the last key of the file before, 0 without one.
    """
    count = len(hashes)
    assert 0 < count < entries
    places = hashes.astype(np.int64) % slots
    previous = _previous(places)
    filled = np.zeros(count, _ENTRY)
    filled["hash"], filled["logOffset"], filled["previous"] = hashes, log_offsets, previous
    filled["seconds"] = _seconds(store_ms, before_ms)
    table = np.zeros(slots, ">i4")
    # Assigned in order, so the newest entry of a slot stays.
    table[places] = np.arange(1, count + 1)
    header = HEADER.pack(
        int(store_ms[0]),
        int(store_ms[-1]),
        int(log_offsets[0]),
        int(log_offsets[-1]),
        int(np.count_nonzero(previous == 0)),
        count + 1,
    )
    entries_at = HEADER_BYTES + SLOT_BYTES * slots
    parts = [
        (0, header + table.tobytes()),
        (entries_at + INDEX_ENTRY_BYTES, filled.tobytes()),
    ]
    return BuiltIndex(parts, entries_at + INDEX_ENTRY_BYTES * entries)


def index_names(first_ms: list[int]) -> list[str]:
    """Names for files by the store times of their first keys: local time, always ascending."""
    names: list[str] = []
    last = ""
    for begun_ms in first_ms:
        name = _time_name(begun_ms)
        while name <= last:
            begun_ms += 1
            name = _time_name(begun_ms)
        names.append(name)
        last = name
    return names


def _time_name(moment_ms: int) -> str:
    clock = time.strftime("%Y%m%d%H%M%S", time.localtime(moment_ms // 1000))
    return f"{clock}{moment_ms % 1000:03d}"


def _previous(places: np.ndarray) -> np.ndarray:
    """int32[n]: for each entry the number (from 1) of the one before it in its slot, or 0."""
    order = np.argsort(places, kind="stable")
    in_order = places[order]
    alike = np.zeros(len(places), bool)
    alike[1:] = in_order[1:] == in_order[:-1]
    previous = np.zeros(len(places), np.int32)
    previous[order[1:]] = np.where(alike[1:], order[:-1] + 1, 0)
    return previous


def _seconds(store_ms: np.ndarray, before_ms: int) -> np.ndarray:
    """Seconds since the file's begin time; of the first entry since the end of the file before."""
    begun = np.full(len(store_ms), int(store_ms[0]), np.int64)
    begun[0] = before_ms
    passed = (store_ms - begun) // 1000
    counted = np.where((begun > 0) & (store_ms > begun), passed, 0)
    found: np.ndarray = np.minimum(counted, I32_MAX)
    return found
