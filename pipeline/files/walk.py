"""Walks one piece of a commit log in chunks: where its records start, and what is no record.

A chain of records breaks where a size word or a magic is damaged, or where the data ends. Behind
damage the walk goes on at the next sound record: one with the magic, with lengths that add up, and
which names the very place it stands in as its own. The record before a break is only believed if
its own lengths add up, because a damaged size word leads anywhere.

Nothing is decoded here; what comes out are positions whose size and magic have been looked at.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np

from aerobee.pipeline.decode.decode import gather
from aerobee.pipeline.decode.record_starts import MAGICS, MESSAGE_MAGIC_V2, record_starts
from aerobee.pipeline.files.plan import Piece
from aerobee.protocol.message.record_layout import (
    BLANK_BYTES,
    BLANK_MAGIC,
    HEADS,
    LOG_OFFSET_POSITION,
    MAGIC_POSITION,
    MIN_RECORD_BYTES,
    SIZE_AND_MAGIC,
    SYS_FLAG_POSITION,
)

#: Bytes read at once: some ten thousand records, and they stay in the processor's cache.
CHUNK_BYTES: Final = 4 << 20
#: The same where each read is a round trip.
REMOTE_CHUNK_BYTES: Final = 16 << 20

_MAGIC = re.compile(b"\xda\xa3\x20[\xa7\xab]")
_HEAD_BYTES: Final = HEADS[0x30].size
# Topic, properties and their lengths.
_TEXT_BYTES_MAX: Final = 2 * 65535 + 4
_SHORT = struct.Struct(">H")


class Damage(NamedTuple):
    """What is no record: the log offset, and what is there instead."""

    log_offset: int
    reason: str


class Chunk(NamedTuple):
    """Bytes of the log from `log_offset` on, positions of records in them, damage found, and the
    log offset where the walk goes on."""

    data: bytes | memoryview
    log_offset: int
    starts: np.ndarray
    damage: list[Damage]
    next_offset: int


#: Gives `count` bytes of the log from an offset on, all of them or an error.
Read = Callable[[int, int], bytes | memoryview]


class Walk:
    """The walk over one piece; `chunks` once."""

    def __init__(self, piece: Piece, read: Read, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._piece = piece
        self._read = read
        self._chunk_bytes = chunk_bytes
        self._file_end = piece.file_start + piece.file_bytes

    def chunks(self) -> Iterator[Chunk]:
        """Everything there is, in the order of the log."""
        piece = self._piece
        position = piece.start
        needed = 0
        while position < piece.end:
            # The piece's end is a record's start, or somewhere in a record that then is needed.
            base = position
            count = max(needed, min(self._chunk_bytes, piece.end - base))
            data = self._read(base, min(count, self._file_end - base))
            starts, stop = self._starts(data, base)
            position = base + stop
            needed = 0
            damage: list[Damage] = []
            if position < piece.end:
                # Where a size word is damaged, what it leads to says nothing.
                if not len(starts) or sound_size(data, int(starts[-1])) is not None:
                    needed = self._rest_of_record(data, stop, base)
                if not needed:
                    starts, damage, position = self._pass_over(data, base, starts, stop)
            yield Chunk(data, base, starts, damage, position)

    def between(self, chunk: Chunk, start: int, end: int) -> list[int]:
        """Positions of sound records behind `start` and before `end`, where one is not sound."""
        return [
            found - chunk.log_offset
            for found in self._sound(chunk.data, chunk.log_offset, start + 1, end)
        ]

    def _starts(self, data: bytes | memoryview, base: int) -> tuple[np.ndarray, int]:
        """Records that name their own place, and the position behind the last of them."""
        found = record_starts(data, 0, len(data))
        starts, stop = found.positions, found.end
        before_end = starts < self._piece.end - base
        if not before_end.all():
            stop = int(starts[~before_end][0])
            starts = starts[before_end]
        if len(starts):
            own = gather(data, starts + LOG_OFFSET_POSITION, ">i8") == starts + base
            if not own.all():
                wrong = int(np.argmin(own))
                stop = int(starts[wrong])
                starts = starts[:wrong]
        return starts, stop

    def _rest_of_record(self, data: bytes | memoryview, stop: int, base: int) -> int:
        """How much to read from a record on that is not whole in the data; 0 if there is none."""
        left = len(data) - stop
        in_file = self._file_end - base - stop
        if left < min(_HEAD_BYTES, in_file):
            return _HEAD_BYTES
        if left < MIN_RECORD_BYTES:
            return 0
        size, magic = SIZE_AND_MAGIC.unpack_from(data, stop)
        if magic not in MAGICS or not left < size <= in_file or not _is_own(data, stop, base):
            return 0
        # Read as much as it says only if its body says the same.
        body = _body_bytes(data, stop)
        return int(size) if 0 <= body <= size <= body + _HEAD_BYTES + _TEXT_BYTES_MAX else 0

    def _pass_over(
        self, data: bytes | memoryview, base: int, starts: np.ndarray, stop: int
    ) -> tuple[np.ndarray, list[Damage], int]:
        """Go on behind what is no record: the starts to believe, the damage, where to go on."""
        piece = self._piece
        if len(data) - stop >= BLANK_BYTES:
            size, magic = SIZE_AND_MAGIC.unpack_from(data, stop)
            if magic == BLANK_MAGIC and BLANK_BYTES <= size <= self._file_end - base - stop:
                return starts, [], piece.end
        if len(starts) and sound_size(data, int(starts[-1])) is None:
            stop = int(starts[-1])
            starts = starts[:-1]
        position = base + stop
        limit = piece.end
        if position >= piece.known_end:
            limit = min(limit, position + piece.look_ahead)
        following = self._next_sound(position, limit)
        if following is None and position >= piece.known_end:
            return starts, [], piece.end
        if following is None:
            reached = min(piece.end, max(piece.known_end, position))
            damage = Damage(position, f"is no record, nor is anything behind it up to {reached}")
            return starts, [damage], piece.end
        return (
            starts,
            [Damage(position, f"is no record; the next one is at {following}")],
            (following),
        )

    def _next_sound(self, position: int, limit: int) -> int | None:
        """The next sound record behind `position` that begins before `limit`."""
        base = position
        while base < limit:
            # Each look overlaps the next one by a head, and a record found is read whole.
            count = min(self._chunk_bytes, limit - base) + _HEAD_BYTES
            data = self._read(base, min(count, self._file_end - base))
            for found in self._sound(data, base, position + 1 - base, limit - base):
                return found
            base += self._chunk_bytes
        return None

    def _sound(self, data: bytes | memoryview, base: int, start: int, end: int) -> Iterator[int]:
        """Log offsets of sound records that begin in [start, end) of the data."""
        start = max(start, 0)
        position = start + MAGIC_POSITION
        while position < len(data):
            match = _MAGIC.search(data, position)
            if match is None or match.start() - MAGIC_POSITION >= end:
                return
            at = match.start() - MAGIC_POSITION
            position = match.start() + 1
            size = self._size_of_sound(data, base, at)
            if size:
                yield base + at
                position = at + size + MAGIC_POSITION

    def _size_of_sound(self, data: bytes | memoryview, base: int, at: int) -> int:
        if len(data) - at < MIN_RECORD_BYTES or not _is_own(data, at, base):
            return 0
        (size, _) = SIZE_AND_MAGIC.unpack_from(data, at)
        if not MIN_RECORD_BYTES <= size <= self._file_end - base - at:
            return 0
        if at + size <= len(data):
            return sound_size(data, at) or 0
        rest = self._rest_of_record(data, at, base)
        whole = self._read(base + at, rest) if rest >= size else b""
        return sound_size(whole, 0) or 0


def sound_size(data: bytes | memoryview, position: int) -> int | None:
    """The size of the record there if its lengths add up to it and it is whole in the data."""
    size, magic = SIZE_AND_MAGIC.unpack_from(data, position)
    length_bytes = 2 if magic == MESSAGE_MAGIC_V2 else 1
    body = _body_bytes(data, position)
    topic_at = position + _head_bytes(data, position) + body
    if magic not in MAGICS or body < 0 or topic_at + length_bytes + 2 > len(data):
        return None
    topic = int.from_bytes(data[topic_at : topic_at + length_bytes], "big")
    properties_at = topic_at + length_bytes + topic
    if properties_at + 2 > len(data):
        return None
    end = properties_at + 2 + _SHORT.unpack_from(data, properties_at)[0]
    return int(size) if end == position + size <= len(data) else None


def _is_own(data: bytes | memoryview, position: int, base: int) -> bool:
    at = position + LOG_OFFSET_POSITION
    return int.from_bytes(data[at : at + 8], "big") == base + position


def _head_bytes(data: bytes | memoryview, position: int) -> int:
    return HEADS[data[position + SYS_FLAG_POSITION + 3] & 0x30].size


def _body_bytes(data: bytes | memoryview, position: int) -> int:
    """What the record says its body's length is; -1 if the head is not whole."""
    at = position + _head_bytes(data, position) - 4
    return int.from_bytes(data[at : at + 4], "big", signed=True) if at + 4 <= len(data) else -1
