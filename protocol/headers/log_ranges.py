"""LOG_RANGES (31020): what a slave compares before it follows a master (protocol/WIRE.md 9).

A request names a range of the log and a number of parts. The answer tells who the broker is and
where its log begins and ends, and has the CRC-32 of each part. Both ends cut a range into parts by
`parts_of`, so that equal ranges have parts at equal places.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from aerobee.protocol.headers.fields import Header, Int32, Int64

#: The largest range of a request: a disk reads it in half a second, a cache in 30 ms.
MOST_RANGE_BYTES: Final = 64 << 20
#: The most parts: the answer has 4 bytes for each.
MOST_PARTS: Final = 1024
_SUM_BYTES: Final = 4


class LogRangesHeader(Header):
    """LOG_RANGES; without a range the answer tells who the broker is and no more."""

    start: Int64 = 0
    end: Int64 = 0
    parts: Int32 = 1


class LogRangesResponse(Header):
    """The answer to LOG_RANGES: the broker, its log, and the range that the sums in the body are
    of."""

    cluster_name: str
    broker_name: str
    broker_role: str
    broker_id: Int64
    segment_bytes: Int64
    min_offset: Int64
    max_offset: Int64
    start: Int64
    end: Int64


def parts_of(start: int, end: int, parts: int) -> list[tuple[int, int]]:
    """The ranges into which [start, end) is cut: `parts` of equal size, of which the last may be
    shorter; fewer when there are fewer bytes."""
    if start >= end:
        return []
    step = max(1, -(-(end - start) // parts))
    return [(at, min(at + step, end)) for at in range(start, end, step)]


def encode_sums(sums: Sequence[int]) -> bytes:
    """The body of an answer: a u32 for each part."""
    return struct.pack(f">{len(sums)}I", *sums)


def decode_sums(body: bytes) -> tuple[int, ...]:
    """The sums in a body. Raises ValueError."""
    number, rest = divmod(len(body), _SUM_BYTES)
    if rest or number > MOST_PARTS:
        raise ValueError(f"{len(body)} bytes are no list of checksums")
    return struct.unpack(f">{number}I", body)
