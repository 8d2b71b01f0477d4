"""Finds where the log of a slave begins to differ from its master's, by reading little of both.

Two logs that have parted stay different: a record holds its time, its queue's number and its own
place. So what was written last decides, and little has to be read.

    a master of ours   CRC-32 of the newest MiB, and of 128 KiB around the ends of at most 32
                       segments, which find what was put into the store by hand: 34 requests and
                       5 MiB of either disk, some 50 ms; all bytes of a terabyte would take hours
    RocketMQ's         the slave's last whole record (33): one request

When something differs, the first difference is found by halves. A master of ours is asked for 64
KiB in the middle until 64 MiB are left, which are read in 1,024 parts, then one of them again: some
20 requests. RocketMQ's master is asked for a record in the middle each time: some 30. A single
damaged record elsewhere may stay unseen; finding it is the scrub's work, on either side.

Work on the slave's own files is done by a worker. Loop thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

from aerobee.broker.cluster.comparison.master_requests import (
    MasterRequests,
    MasterUnreachable,
    RangeSums,
)
from aerobee.protocol.headers.log_ranges import MOST_PARTS, MOST_RANGE_BYTES, parts_of
from aerobee.store.log.replication.log_ranges import LogPiece, LogRanges, next_step

T = TypeVar("T")
Given = TypeVarTuple("Given")

_NEWEST_BYTES = 1 << 20
_SAMPLE_BYTES = 64 << 10
_SAMPLED_SEGMENTS = 32
# Blanks and damaged records that are passed over to find a whole record.
_PASSED_MOST = 64


class SumsOfBoth:
    """The contents of both logs by checksums, with a master of ours."""

    def __init__(self, master: MasterRequests, ranges: LogRanges) -> None:
        self._master = master
        self._ranges = ranges

    async def first_difference(self, start: int, end: int) -> int | None:
        """Where the first record begins that differs in a sample of [start, end), None if the
        samples are equal."""
        equal_to = start
        newest = await self._from_record(start, max(start, end - _NEWEST_BYTES), end)
        for low, high in samples(start, end, newest, self._ranges.segment_bytes):
            if await self._unequal_part(low, high, 1) is not None:
                return await self._first_in(equal_to, high)
            equal_to = high
        return None

    async def _first_in(self, low: int, high: int) -> int:
        """Where the first record that differs begins. Something in [low, high) differs."""
        while high - low > MOST_RANGE_BYTES:
            middle = (low + high) // 2
            probe = middle + _SAMPLE_BYTES
            begin = await self._from_record(low, middle, probe)
            if await self._unequal_part(begin, probe, 1) is None:
                low = probe
            else:
                high = probe
        while high - low > 1:
            part = await self._unequal_part(low, high, MOST_PARTS)
            if part is None:
                raise MasterUnreachable(
                    f"the master's bytes from {low} to {high} differ from one reading to the next"
                )
            low, high = part
        return await _by_worker(self._ranges.record_start, low)

    async def _from_record(self, low: int, log_offset: int, end: int) -> int:
        """Where a sample up to `end` begins, to have the bytes from `log_offset` on and the head of
        a record. Without a head it may be equal in logs that have parted: blanks, or the same body
        in messages of different times."""
        begin = await _by_worker(self._record_holding, low, log_offset)
        return max(begin, low, end - MOST_RANGE_BYTES)

    def _record_holding(self, low: int, log_offset: int) -> int:
        """Where the record begins that holds the byte there, or, without one, the last before."""
        piece = self._ranges.piece_at(self._ranges.record_start(log_offset))
        for _ in range(_PASSED_MOST):
            if piece.data is not None or piece.start <= low:
                break
            piece = self._ranges.piece_at(self._ranges.record_start(piece.start - 1))
        return piece.start

    async def _unequal_part(self, start: int, end: int, parts: int) -> tuple[int, int] | None:
        """The first of `parts` of [start, end) that differs."""
        cut = parts_of(start, end, parts)
        theirs = await self._master.range_sums(start, end, parts)
        _check_answer(theirs, start, end, len(cut))
        steps = self._ranges.checksums(cut)
        ours: list[int] | None = None
        while ours is None:
            ours = await _by_worker(next_step, steps)
        assert theirs is not None
        for part, own, other in zip(cut, ours, theirs.sums, strict=True):
            if own != other:
                return part
        return None


def _check_answer(answer: RangeSums | None, start: int, end: int, parts: int) -> None:
    """Raise MasterUnreachable unless the answer is about the whole range."""
    if answer is None or (answer.start, answer.end, len(answer.sums)) != (start, end, parts):
        raise MasterUnreachable(
            f"the master's log has not all from {start} to {end} any more: it changed while it was "
            "compared"
        )


def samples(start: int, end: int, newest: int, segment_bytes: int) -> list[tuple[int, int]]:
    """The ranges of [start, end) that are compared, in order and apart from each other: all from
    `newest` on, the beginning, and some KiB on both sides of segments' ends."""
    boundaries = range(start - start % segment_bytes + segment_bytes, newest, segment_bytes)
    every = max(1, -(-len(boundaries) // _SAMPLED_SEGMENTS))
    found: list[tuple[int, int]] = []
    for middle in (start, *boundaries[::every]):
        low = max(middle - _SAMPLE_BYTES, found[-1][1] if found else start)
        high = min(newest, middle + _SAMPLE_BYTES)
        if low < high:
            found.append((low, high))
    return [*found, (newest, end)]


class RecordsOfBoth:
    """The contents of both logs by single records, with a master of RocketMQ's."""

    def __init__(self, master: MasterRequests, ranges: LogRanges) -> None:
        self._master = master
        self._ranges = ranges

    async def first_difference(self, start: int, end: int) -> int | None:
        """Where the first record of [start, end) begins that differs, None if the last whole one is
        equal."""
        last = await _by_worker(self._last_record, start, end)
        if last is None or await self._is_equal(last):
            return None
        differs = await self._first_in(start, last.start)
        log = await self._master.log_state()
        if log.min_offset > differs:
            raise MasterUnreachable("the master's log has lost its beginning while it was compared")
        return differs

    async def _first_in(self, good: int, bad: int) -> int:
        """Where the first record that differs begins. All below `good` is equal, the record at
        `bad` differs."""
        blank: LogPiece | None = None
        while good < bad:
            piece = await _by_worker(self._piece_over, good, (good + bad) // 2)
            if piece.is_blank and piece.end < bad:
                # A blank cannot be asked for: the record after it decides.
                piece = await _by_worker(self._ranges.piece_at, piece.end)
            elif piece.is_blank:
                blank = piece
            if await self._is_equal(piece):
                good = piece.end
            else:
                bad = piece.start
        return blank.end if blank is not None and blank.start == bad else bad

    async def _is_equal(self, piece: LogPiece) -> bool:
        """Whether the master has that record; what is no sound record here counts as another."""
        return piece.data is not None and await self._master.record_at(piece.start) == piece.data

    def _piece_over(self, low: int, log_offset: int) -> LogPiece:
        """The record, blank or damage that holds the byte at `log_offset`, from `low` on."""
        return self._ranges.piece_at(max(low, self._ranges.record_start(log_offset)))

    def _last_record(self, start: int, end: int) -> LogPiece | None:
        """The last sound record of [start, end)."""
        at = end
        for _ in range(_PASSED_MOST):
            if at <= start:
                break
            piece = self._ranges.piece_at(self._ranges.record_start(at - 1))
            if piece.data is not None and piece.end <= end and piece.start >= start:
                return piece
            at = piece.start
        return None


async def _by_worker(work: Callable[[*Given], T], *given: *Given) -> T:
    """The result of work on this slave's files."""
    return await asyncio.get_running_loop().run_in_executor(None, work, *given)
