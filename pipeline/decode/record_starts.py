"""Finds where records begin: by their size words, singly or many at once.

Messages of one kind often have records of one size. So after a few records of equal size all that
follow with this size are found by one numpy operation. Where sizes differ, records are found by
their magic, as far as the size of each leads to the next of them. Where a guess ends, because a
body holds the magic or the data ends, a few records are walked singly; only this walk decides where
the end is.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from aerobee.pipeline.decode import compiled
from aerobee.protocol.message.record_layout import (
    MAGIC_POSITION,
    MESSAGE_MAGIC,
    MIN_RECORD_BYTES,
    SIZE_AND_MAGIC,
)

#: 5.x writes this one when topics are longer than 127 bytes; the topic's length has two bytes then.
MESSAGE_MAGIC_V2: Final = 0xDAA320AB

MAGICS: Final = (MESSAGE_MAGIC, MESSAGE_MAGIC_V2)
_ALIKE = 8
_MOST_GUESSED = 16384
# The search for the magic takes this many bytes at once: with what is made of them, they stay in a
# cache.
_LOOKED_THROUGH = 512 * 1024
# The search for the magic is tried after _ALIKE records walked singly, and after twice as many each
# time that it found fewer than _LEAST_FOUND.
_LEAST_FOUND, _MOST_WALKED = 64, 4096


class RecordStarts(NamedTuple):
    """Positions of records (int64, ascending) and the position after the last of them."""

    positions: np.ndarray
    end: int


def record_starts(buffer: bytes | memoryview, position: int, limit: int) -> RecordStarts:
    """Records from `position` on that end at or before `limit`, up to the first bytes that are no
    record."""
    steps = compiled.steps()
    if steps is not None:
        found_bytes, end = steps.record_starts(buffer, position, limit, MAGICS)
        return RecordStarts(np.frombuffer(found_bytes, np.int64), end)
    parts: list[np.ndarray] = []
    walked: list[int] = []
    unpack = SIZE_AND_MAGIC.unpack_from
    last_size = alike = 0
    last_magic, most_walked = MESSAGE_MAGIC, _ALIKE
    while position + MIN_RECORD_BYTES <= limit:
        size, magic = unpack(buffer, position)
        if size < MIN_RECORD_BYTES or position + size > limit:
            break
        if magic != last_magic:
            if magic not in MAGICS:
                break
            last_magic, alike = magic, 0
        walked.append(position)
        position += size
        alike = alike + 1 if size == last_size else 0
        last_size = size
        if alike >= _ALIKE:
            found, position = _as_long_as(buffer, position, limit, size, magic)
            alike = _ALIKE if len(found) == _MOST_GUESSED else 0
        elif len(walked) >= most_walked:
            found, position = _by_magic(buffer, position, limit, magic)
            much = len(found) >= _LEAST_FOUND
            most_walked = _ALIKE if much else min(2 * most_walked, _MOST_WALKED)
        else:
            continue
        parts += [np.array(walked, np.int64), found]
        walked = []
    parts.append(np.array(walked, np.int64))
    return RecordStarts(np.concatenate(parts), position)


def _as_long_as(
    buffer: bytes | memoryview, position: int, limit: int, size: int, magic: int
) -> RecordStarts:
    """The records from `position` on that follow each other with that size and magic."""
    count = min((limit - position) // size, _MOST_GUESSED)
    if count <= 0:
        return RecordStarts(np.empty(0, np.int64), position)
    words = np.ndarray((count, 2), ">u4", buffer, offset=position, strides=(size, 4))
    alike = (words[:, 0] == size) & (words[:, 1] == magic)
    found = count if alike.all() else int(np.argmin(alike))
    return RecordStarts(position + size * np.arange(found, dtype=np.int64), position + size * found)


def _by_magic(buffer: bytes | memoryview, position: int, limit: int, magic: int) -> RecordStarts:
    """The records from `position` on that lead from a place with that magic to the next such
    place."""
    count = min(limit - position, _LOOKED_THROUGH)
    if count < MIN_RECORD_BYTES:
        return RecordStarts(np.empty(0, np.int64), position)
    data = np.frombuffer(buffer, np.uint8, count, position)
    places = np.flatnonzero(data[MAGIC_POSITION : 1 - MAGIC_POSITION] == magic >> 24)
    heads = np.ndarray(count - 7, "V8", buffer, offset=position, strides=(1,))[places].view(">i4")
    sizes, magics = heads[::2].astype(np.int64), heads[1::2].view(">u4")
    own = magics == magic
    places, sizes = places[own], sizes[own]
    if len(places) < 2 or places[0] != 0:
        return RecordStarts(np.empty(0, np.int64), position)
    leads = (sizes[:-1] >= MIN_RECORD_BYTES) & (places[:-1] + sizes[:-1] == places[1:])
    found = len(leads) if leads.all() else int(np.argmin(leads))
    return RecordStarts(position + places[:found], position + int(places[found]))
