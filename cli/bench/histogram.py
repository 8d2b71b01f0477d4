"""Latencies in buckets, so that an hour of them takes no more room than a second.

As an HdrHistogram has them: each power of two is cut into 128 buckets, so a value is known to
within 0.8 %; below 256 microseconds to the microsecond. The largest value and the sum are exact.
Percentiles are the upper ends of their buckets, never above the largest value.
"""

from collections.abc import Mapping
from typing import Any, Final

_HALF_BITS: Final = 7
_HALF: Final = 1 << _HALF_BITS
#: 71 minutes; what took longer counts as that, except in the maximum.
LONGEST_US: Final = (1 << 32) - 1
_BUCKETS: Final = (32 - _HALF_BITS) * _HALF + _HALF


def bucket_of(value_us: int) -> int:
    """The bucket that a time in microseconds falls into."""
    if value_us < 2 * _HALF:
        return max(value_us, 0)
    shift = min(value_us, LONGEST_US).bit_length() - _HALF_BITS - 1
    return shift * _HALF + (min(value_us, LONGEST_US) >> shift)


def highest_of(bucket: int) -> int:
    """The longest time in microseconds that falls into a bucket."""
    if bucket < 2 * _HALF:
        return bucket
    shift = (bucket >> _HALF_BITS) - 1
    return ((bucket - shift * _HALF + 1) << shift) - 1


class Histogram:
    """Times in microseconds; empty at first."""

    __slots__ = ("_counts", "count", "max_us", "sum_us")

    def __init__(self) -> None:
        self._counts = [0] * _BUCKETS
        self.count = 0
        self.sum_us = 0
        self.max_us = 0

    def record(self, value_us: int, times: int = 1) -> None:
        """Count a time, as that of so many messages."""
        self._counts[bucket_of(value_us)] += times
        self.count += times
        self.sum_us += value_us * times
        if value_us > self.max_us:
            self.max_us = value_us

    def add(self, other: "Histogram") -> None:
        """Count everything that another one has counted."""
        for bucket, times in enumerate(other._counts):
            if times:
                self._counts[bucket] += times
        self.count += other.count
        self.sum_us += other.sum_us
        self.max_us = max(self.max_us, other.max_us)

    @property
    def mean_us(self) -> float:
        """The mean; 0 of none."""
        return self.sum_us / self.count if self.count else 0.0

    def percentile_us(self, percent: float) -> int:
        """The time that so many percent of all did not exceed; 0 of none."""
        if not self.count:
            return 0
        wanted = max(1, min(self.count, -int(-self.count * percent // 100)))
        seen = 0
        for bucket, times in enumerate(self._counts):
            seen += times
            if seen >= wanted:
                return min(highest_of(bucket), self.max_us)
        raise AssertionError("counts and count differ")

    def quantiles_us(self) -> dict[float, int]:
        """Times by percent, more of them the nearer to 100: ten to each halving of the rest."""
        found: dict[float, int] = {}
        percent, step = 0.0, 5.0
        while self.count and (100 - percent) / 100 * self.count >= 1:
            found[round(percent, 6)] = self.percentile_us(percent)
            percent += step
            if 100 - percent <= step * 10:
                step /= 2
        if self.count:
            found[100.0] = self.max_us
        return found

    def to_wire(self) -> dict[str, Any]:
        """What `from_wire` of another process takes; only the buckets that have something."""
        counts = {str(bucket): times for bucket, times in enumerate(self._counts) if times}
        return {"counts": counts, "sum": self.sum_us, "max": self.max_us}

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> "Histogram":
        """The histogram that `to_wire` was asked for."""
        made = cls()
        for bucket, times in data["counts"].items():
            made._counts[int(bucket)] = times
        made.count = sum(data["counts"].values())
        made.sum_us, made.max_us = data["sum"], data["max"]
        return made
