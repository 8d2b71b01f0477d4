"""Verifies one segment of the log, in steps of well under a millisecond of work.

Records follow each other from the segment's beginning to a limit below which all is durable and
dispatched, so whatever does not check out is damage. Going on behind it (the rules of `log_walk.py`
for who has the log only):
(a) at the place where the damaged record's own lengths lead, if a sound record or the limit is
    there;
(b) else at the next sound record that its consume queue entry names, found by its magic;
(c) or at a record from which sound ones follow each other exactly to one of (b), or to the limit.
A message body may hold a forged record made for its own position; no queue names it, and a chain to
a known place it cannot hold. Nothing up to the limit: all up to it is damage.
"""

from collections.abc import Callable, Generator, Iterator

from aerobee.protocol.errors import CorruptRecord
from aerobee.protocol.message.record import (
    BLANK_BYTES,
    MAGIC_POSITION,
    MESSAGE_MAGIC,
    Checked,
    announced_size,
    check_record,
    encode_blank,
    scan_records,
)
from aerobee.store.scan.pieces import LogPieces
from aerobee.store.scan.sequence import Gap

_MAGIC_BYTES = MESSAGE_MAGIC.to_bytes(4, "big")
# Checking the smallest records (91 bytes) of so many bytes takes half a millisecond.
_STEP_BYTES = 32 << 10


class SegmentCheck:
    """Checks the records of the segment that begins at `start`, up to position `limit` in it.

    `size` is the segment's; `is_named(record)` tells whether a record's own queue entry names it.
    """

    def __init__(
        self,
        pieces: LogPieces,
        start: int,
        size: int,
        limit: int,
        crc_check: int,
        is_named: Callable[[Checked], bool],
    ) -> None:
        self._pieces = pieces
        self._start = start
        self._size = size
        self._limit = limit
        self._crc_check = crc_check
        self._is_named = is_named
        #: Damage found so far, in order.
        self.gaps: list[Gap] = []
        #: Position in the segment up to which it was checked.
        self.position = 0

    def batches(self) -> Iterator[list[Checked]]:
        """Sound records in order; an empty batch says that some time has passed. Raises OSError."""
        while self.position < self._limit:
            batch = self._several(self.position)
            if not batch:
                try:
                    record = self._one(self.position)
                except CorruptRecord as error:
                    yield from self._pass_over(str(error))
                    continue
                if record is None:
                    self.position = self._limit
                    return
                batch = [record]
            last = batch[-1]
            self.position = last[0] + last[1] - self._start
            yield batch

    def _several(self, position: int) -> list[Checked]:
        """As many sound records as make up a step, none if the first is large or not sound."""
        piece, at = self._pieces.at(position, min(_STEP_BYTES, self._limit - position))
        end = min(at + min(_STEP_BYTES, self._limit - position), len(piece))
        return scan_records(piece, at, self._start + position, end, self._crc_check)

    def _one(self, position: int) -> Checked | None:
        """The record at `position`, None for the blank that ends the segment."""
        log_offset = self._start + position
        room = self._limit - position
        piece, at = self._pieces.at(position, min(_STEP_BYTES, room))
        # Of a large record all is needed; for a damaged size a gigabyte must not be read.
        size = announced_size(piece, at)
        if len(piece) - at < size <= room:
            piece, at = self._pieces.at(position, size)
        end = at + min(room, len(piece) - at)
        until = min(at + size, end) if size else end
        if found := scan_records(piece, at, log_offset, until, self._crc_check):
            return found[0]
        if _is_blank(piece, at, self._size - position):
            return None
        check_record(piece, at, log_offset, end, self._crc_check)
        raise CorruptRecord(f"blank at {log_offset} does not end with its segment")

    # --- going on behind damage -------------------------------------------------------------

    def _pass_over(self, reason: str) -> Iterator[list[Checked]]:
        bad = self.position
        following = self._behind_itself(bad)
        search = bad + 1
        while following is None and search < self._limit:
            yield []
            found, search = self._pieces.find(_MAGIC_BYTES, search + MAGIC_POSITION)
            search -= MAGIC_POSITION
            if found is None or found - MAGIC_POSITION >= self._limit:
                continue
            if (yield from self._chain_leads(found - MAGIC_POSITION)):
                following = found - MAGIC_POSITION
        following = following or self._limit
        if any(low < following and bad < high for low, high in self._pieces.unreadable):
            reason = f"the disk cannot read it ({reason})"
        self.gaps.append(Gap(self._start + bad, self._start + following, reason))
        self.position = following

    def _behind_itself(self, bad: int) -> int | None:
        piece, at = self._pieces.at(bad, min(_STEP_BYTES, self._limit - bad))
        size = announced_size(piece, at)
        if not size or bad + size > self._limit:
            return None
        following = bad + size
        return following if following == self._limit or self._is_sound(following) else None

    def _is_sound(self, position: int) -> bool:
        try:
            self._one(position)
        except CorruptRecord:
            return False
        return True

    def _chain_leads(self, start: int) -> Generator[list[Checked], None, bool]:
        """Whether sound records follow each other from `start` to a known place."""
        position = start
        while position < self._limit:
            try:
                record = self._one(position)
            except CorruptRecord:
                return False
            if record is None or self._is_named(record):
                return True
            position += record[1]
            yield []
        return True


def _is_blank(piece: memoryview, at: int, size: int) -> bool:
    """Whether a blank of `size` bytes, the rest of its segment, begins there."""
    return bytes(piece[at : at + BLANK_BYTES]) == encode_blank(size)
