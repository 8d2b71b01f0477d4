"""Scans one piece of a commit log in chunks: where its records start, and what is no record.

Chains of records are followed many records at a time, in numpy (`record_starts.py`). Where a chain
breaks at what is no record, the store's own rule says where the log goes on (`behind_damage.py`,
which is imported when damage is met: it brings packages that reading a sound log does without).

Nothing is decoded here; what comes out are positions whose size and magic have been looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from aerobee.pipeline.decode.decode import numbers
from aerobee.pipeline.decode.record_starts import MAGICS, record_starts
from aerobee.pipeline.files.plan import LogPart, Piece, Read
from aerobee.protocol.message.record_layout import (
    BLANK_BYTES,
    BLANK_MAGIC,
    HEADS,
    LOG_OFFSET_POSITION,
    SIZE_AND_MAGIC,
    SYS_FLAG_POSITION,
)

if TYPE_CHECKING:
    from aerobee.pipeline.files.behind_damage import BehindDamage

#: Bytes read at once: some ten thousand records, and they stay in the processor's cache.
CHUNK_BYTES: Final = 4 << 20
#: The same where each read is a round trip.
REMOTE_CHUNK_BYTES: Final = 16 << 20

_HEAD_BYTES: Final = HEADS[0x30].size
# Topic, properties and their lengths.
_TEXT_BYTES_MAX: Final = 2 * 65535 + 4


class Damage(NamedTuple):
    """What is no record: the log offset, and what is there instead."""

    log_offset: int
    reason: str


class Chunk(NamedTuple):
    """Bytes of the log from `log_offset` on, positions of records in them, damage found, and the
    log offset where the scan goes on."""

    data: bytes | memoryview
    log_offset: int
    starts: np.ndarray
    damage: list[Damage]
    next_offset: int


class PieceScan:
    """The scan of one piece; `chunks` once."""

    def __init__(self, part: LogPart, piece: Piece, read: Read, chunk_bytes: int) -> None:
        self._part = part
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
            starts, position = self._starts(data, base)
            needed = 0
            damage: list[Damage] = []
            if position < piece.end:
                last = base + int(starts[-1]) if len(starts) else position
                if base + len(data) - position < min(_HEAD_BYTES, self._file_end - position):
                    # The last record is believed when it is seen what its size leads to.
                    needed = position - last + _HEAD_BYTES
                    starts, position = starts[:-1], last
                else:
                    needed = self._rest_of_record(data, base, position)
                if not needed and self._is_end(data, base, position):
                    position = piece.end
                elif not needed:
                    # Where a size word is damaged, what it leads to says nothing.
                    if last < position and not self._behind_damage.has_whole(last, base, data):
                        starts, position = starts[:-1], last
                    damage, position = self._go_on(position)
            yield Chunk(data, base, starts, damage, position)

    def between(self, chunk: Chunk, bad: int, end: int) -> list[int]:
        """Positions of the records behind a bad one at position `bad` and before `end`: its size
        may be what is wrong, and have led over them."""
        base = chunk.log_offset
        end = min(base + end, self._piece.end)
        found = self._behind_damage.records(base + bad, end, base, chunk.data)
        return [log_offset - base for log_offset in found]

    def _starts(self, data: bytes | memoryview, base: int) -> tuple[np.ndarray, int]:
        """Records that name their own place, and the log offset behind the last of them."""
        found = record_starts(data, 0, len(data))
        starts, stop = found.positions, found.end
        before_end = starts < self._piece.end - base
        if not before_end.all():
            stop = int(starts[~before_end][0])
            starts = starts[before_end]
        own = numbers(data, starts, LOG_OFFSET_POSITION, ">i8") == starts + base
        if not own.all():
            wrong = int(np.argmin(own))
            stop = int(starts[wrong])
            starts = starts[:wrong]
        return starts, base + stop

    def _rest_of_record(self, data: bytes | memoryview, base: int, log_offset: int) -> int:
        """How much to read from a record on that is not whole in the data; 0 if there is none."""
        position = log_offset - base
        left, in_file = len(data) - position, self._file_end - log_offset
        if left < _HEAD_BYTES:
            return 0
        size, magic = SIZE_AND_MAGIC.unpack_from(data, position)
        head = HEADS[data[position + SYS_FLAG_POSITION + 3] & 0x30].unpack_from(data, position)
        is_own = magic in MAGICS and head[6] == log_offset
        # As much as it says is read only if its body says the same.
        fits = 0 <= head[14] <= size <= head[14] + _HEAD_BYTES + _TEXT_BYTES_MAX
        return int(size) if is_own and fits and left < size <= in_file else 0

    def _is_end(self, data: bytes | memoryview, base: int, log_offset: int) -> bool:
        """Whether the segment's blank stands there, or the data is known to end there."""
        position, left = log_offset - base, self._file_end - log_offset
        if len(data) - position >= BLANK_BYTES:
            size, magic = SIZE_AND_MAGIC.unpack_from(data, position)
            if magic == BLANK_MAGIC and size == left:
                return True
        if log_offset < self._piece.known_end:
            return False
        ahead = min(self._piece.look_ahead, self._piece.end - log_offset)
        return not ahead or not bytes(self._read(log_offset, ahead)).strip(b"\0")

    def _go_on(self, bad: int) -> tuple[list[Damage], int]:
        """The damage at `bad`, if it is any, and where the log goes on behind it."""
        piece = self._piece
        if bad >= piece.known_end:
            # Records may go on here, or a crash has left what is not one.
            limit = min(piece.end, bad + piece.look_ahead)
            following = self._behind_damage.anything_sound(bad, limit)
            return ([], piece.end) if following == limit else ([_damage(bad, following)], following)
        limit = min(piece.known_end, piece.end)
        following = self._behind_damage.next(bad, limit)
        if following < limit:
            return [_damage(bad, following)], following
        return [Damage(bad, f"is no record, nor is anything behind it up to {limit}")], limit

    @cached_property
    def _behind_damage(self) -> BehindDamage:
        from aerobee.pipeline.files.behind_damage import BehindDamage

        return BehindDamage(self._part, self._piece, self._read)


def _damage(bad: int, following: int) -> Damage:
    return Damage(bad, f"is no record; the next one is at {following}")
