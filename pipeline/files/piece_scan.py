"""Scans a piece of a commit log in chunks: finds where records start, and what is damaged.

A chain of records is followed many records at a time, in numpy (`record_starts.py`). Where the
chain breaks, the store's own rule says where the log goes on (`behind_damage.py`, which is imported
only then, because it brings packages that a sound log does not need).

Nothing is decoded here; the scan gives positions whose size and magic were looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from aerobee.pipeline.decode.decode import numbers
from aerobee.pipeline.decode.record_starts import MAGICS, record_starts
from aerobee.pipeline.files.store_plan import LogPart, LogPiece, Read
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

#: Bytes that are read at once: some ten thousand records, which stay in the processor's cache.
CHUNK_BYTES: Final = 4 << 20
#: Bytes that are read at once where each read costs a round trip.
REMOTE_CHUNK_BYTES: Final = 16 << 20

_HEAD_BYTES: Final = HEADS[0x30].size
# The most that topic, properties and their lengths take.
_TEXT_BYTES_MAX: Final = 2 * 65535 + 4


class Damage(NamedTuple):
    """A place without a record: its log offset, and the reason."""

    log_offset: int
    reason: str


class ScannedBytes(NamedTuple):
    """Bytes of the log from `log_offset` on, the positions of records in them, the damage that was
    found, and the log offset where the scan goes on."""

    data: bytes | memoryview
    log_offset: int
    starts: np.ndarray
    damage: list[Damage]
    next_offset: int


class PieceScan:
    """The scan of one piece; `chunks` is called once."""

    def __init__(self, part: LogPart, piece: LogPiece, read: Read, chunk_bytes: int) -> None:
        self._part = part
        self._piece = piece
        self._read = read
        self._chunk_bytes = chunk_bytes
        self._file_end = piece.file_start + piece.file_bytes

    def chunks(self) -> Iterator[ScannedBytes]:
        """The whole piece, in the order of the log."""
        piece = self._piece
        position = piece.start
        needed = 0
        while position < piece.end:
            # The piece ends at a record's start, or inside a record, which then is read whole.
            base = position
            count = max(needed, min(self._chunk_bytes, piece.end - base))
            data = self._read(base, min(count, self._file_end - base))
            starts, position = self._starts(data, base)
            needed = 0
            damage: list[Damage] = []
            if position < piece.end:
                last = base + int(starts[-1]) if len(starts) else position
                if base + len(data) - position < min(_HEAD_BYTES, self._file_end - position):
                    # The last record is believed only when the bytes after it were read.
                    needed = position - last + _HEAD_BYTES
                    starts, position = starts[:-1], last
                else:
                    needed = self._rest_of_record(data, base, position)
                if not needed and self._is_end(data, base, position):
                    position = piece.end
                elif not needed:
                    # A damaged size leads to bytes that say nothing about the log.
                    if last < position and not self._behind_damage.has_whole(last, base, data):
                        starts, position = starts[:-1], last
                    damage, position = self._go_on(position)
            yield ScannedBytes(data, base, starts, damage, position)

    def between(self, chunk: ScannedBytes, bad: int, end: int) -> list[int]:
        """The positions of records after the bad record at `bad` and before `end`: a wrong size may
        have led over them."""
        base = chunk.log_offset
        end = min(base + end, self._piece.end)
        found = self._behind_damage.records(base + bad, end, base, chunk.data)
        return [log_offset - base for log_offset in found]

    def _starts(self, data: bytes | memoryview, base: int) -> tuple[np.ndarray, int]:
        """The records that name their own place, and the log offset after the last of them."""
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
        """The length of a record that the data holds in part; 0 if there is no such record."""
        position = log_offset - base
        left, in_file = len(data) - position, self._file_end - log_offset
        if left < _HEAD_BYTES:
            return 0
        size, magic = SIZE_AND_MAGIC.unpack_from(data, position)
        head = HEADS[data[position + SYS_FLAG_POSITION + 3] & 0x30].unpack_from(data, position)
        is_own = magic in MAGICS and head[6] == log_offset
        # Its size is believed only if the length of its body agrees.
        fits = 0 <= head[14] <= size <= head[14] + _HEAD_BYTES + _TEXT_BYTES_MAX
        return int(size) if is_own and fits and left < size <= in_file else 0

    def _is_end(self, data: bytes | memoryview, base: int, log_offset: int) -> bool:
        """Whether the segment's blank stands there, or the log is known to end there."""
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
        """The damage at `bad`, if there is any, and the log offset where the log goes on."""
        piece = self._piece
        if bad >= piece.known_end:
            # Records may go on here, or a crash has left other bytes.
            limit = min(piece.end, bad + piece.look_ahead)
            following = self._behind_damage.anything_sound(bad, limit)
            return ([], piece.end) if following == limit else ([_damage(bad, following)], following)
        limit = min(piece.known_end, piece.end)
        following = self._behind_damage.next(bad, limit)
        if following < limit:
            return [_damage(bad, following)], following
        return [Damage(bad, f"is no record, and no record follows up to {limit}")], limit

    @cached_property
    def _behind_damage(self) -> BehindDamage:
        from aerobee.pipeline.files.behind_damage import BehindDamage

        return BehindDamage(self._part, self._piece, self._read)


def _damage(bad: int, following: int) -> Damage:
    return Damage(bad, f"is no record; the next record is at {following}")
