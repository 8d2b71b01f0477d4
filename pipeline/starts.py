"""Finds where records begin: one after the other by their size words, guessing that sizes repeat.

Messages of one kind often have records of one size, so after a few alike as many more are looked at
in one numpy operation as go on alike; where the guess ends, the next few are walked one by one.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

import numpy as np

from aerobee.protocol.record_layout import MESSAGE_MAGIC, MIN_RECORD_BYTES

#: 5.x writes this one when topics are longer than 127 bytes; the topic's length has two bytes then.
MESSAGE_MAGIC_V2: Final = 0xDAA320AB

MAGICS: Final = (MESSAGE_MAGIC, MESSAGE_MAGIC_V2)
_SIZE_AND_MAGIC = Struct(">iI")
_ALIKE = 8
_MOST_GUESSED = 16384


class Starts(NamedTuple):
    """Positions of records (int64, ascending) and the position behind the last of them."""

    positions: np.ndarray
    end: int


def record_starts(buffer: bytes | memoryview, position: int, limit: int) -> Starts:
    """Records from `position` on that end at or before `limit`, up to what is none."""
    parts: list[np.ndarray] = []
    walked: list[int] = []
    unpack = _SIZE_AND_MAGIC.unpack_from
    last_size = alike = 0
    last_magic = MESSAGE_MAGIC
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
            alike = 0
            guessed = _as_long_as(buffer, position, limit, size, magic)
            if len(guessed):
                parts += [np.array(walked, np.int64), guessed]
                walked = []
                position = int(guessed[-1]) + size
                alike = _ALIKE if len(guessed) == _MOST_GUESSED else 0
    parts.append(np.array(walked, np.int64))
    return Starts(np.concatenate(parts), position)


def _as_long_as(
    buffer: bytes | memoryview, position: int, limit: int, size: int, magic: int
) -> np.ndarray:
    """The records from `position` on that follow each other with that size and magic."""
    count = min((limit - position) // size, _MOST_GUESSED)
    if count <= 0:
        return np.empty(0, np.int64)
    words = np.ndarray((count, 2), ">u4", buffer, offset=position, strides=(size, 4))
    alike = (words[:, 0] == size) & (words[:, 1] == magic)
    found = count if alike.all() else int(np.argmin(alike))
    return position + size * np.arange(found, dtype=np.int64)
