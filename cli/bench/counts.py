"""The counts of a load since the last report, of one process or of all of them together.

Latencies lie in buckets, so that an hour of them takes no more room than a second. They are those
of an HdrHistogram: each power of two is cut into 128 buckets, so a value is known to within 0.8 %;
below 256 microseconds to the microsecond. The largest value and the sum are exact. Percentiles are
the upper ends of their buckets, never above the largest value.

A process of the generator sends its counts to the command as JSON of these very structs.
"""

from collections.abc import Iterable
from typing import Any, Final, Self

import msgspec

_HALF_BITS: Final = 7
_HALF: Final = 1 << _HALF_BITS
_LONGEST_REMARK: Final = 200
#: 71 minutes; what took longer counts as that, except in the maximum.
LONGEST_US: Final = (1 << 32) - 1


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


class Histogram(msgspec.Struct):
    """Times in microseconds; empty at first. `buckets`: how many times fell into each."""

    buckets: dict[int, int] = {}
    count: int = 0
    sum_us: int = 0
    max_us: int = 0

    def record(self, value_us: int, times: int = 1) -> None:
        """Count a time for this number of messages."""
        bucket = bucket_of(value_us)
        self.buckets[bucket] = self.buckets.get(bucket, 0) + times
        self.count += times
        self.sum_us += value_us * times
        if value_us > self.max_us:
            self.max_us = value_us

    def add(self, other: "Histogram") -> None:
        """Count everything that another one has counted."""
        for bucket, times in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + times
        self.count += other.count
        self.sum_us += other.sum_us
        self.max_us = max(self.max_us, other.max_us)

    @property
    def mean_us(self) -> float:
        """The mean; 0 when there is no time."""
        return self.sum_us / self.count if self.count else 0.0

    def percentile_us(self, percent: float) -> int:
        """The time that `percent` of all times did not exceed; 0 when there is no time."""
        if not self.count:
            return 0
        wanted = max(1, min(self.count, -int(-self.count * percent // 100)))
        seen = 0
        for bucket, times in sorted(self.buckets.items()):
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


class Counts(msgspec.Struct):
    """Counters of messages, latencies, and failures by name with the first remark of each."""

    sent: int = 0
    acked: int = 0
    #: Bytes of bodies.
    acked_bytes: int = 0
    failed: int = 0
    received: int = 0
    #: Bytes of stored records.
    received_bytes: int = 0
    pulls: int = 0
    #: From when a send was due.
    publish: Histogram = msgspec.field(default_factory=Histogram)
    #: How late a send left.
    delay: Histogram = msgspec.field(default_factory=Histogram)
    end_to_end: Histogram = msgspec.field(default_factory=Histogram)
    #: Pulls that the broker does not hold.
    pull: Histogram = msgspec.field(default_factory=Histogram)
    failures: dict[str, tuple[int, str]] = {}

    def fail(self, name: str, remark: str, times: int = 1) -> None:
        """Count that this number of requests failed in this way."""
        count, first = self.failures.get(name, (0, remark[:_LONGEST_REMARK]))
        self.failures[name] = (count + times, first)

    def add(self, other: Self) -> None:
        """Count everything that another one has counted."""
        for name in self.__struct_fields__:
            mine, more = getattr(self, name), getattr(other, name)
            if isinstance(mine, Histogram):
                mine.add(more)
            elif isinstance(mine, int):
                setattr(self, name, mine + more)
        for name, (count, remark) in other.failures.items():
            self.fail(name, remark, count)

    @property
    def failed_requests(self) -> int:
        """The number of all requests that failed."""
        return sum(count for count, _ in self.failures.values())


def sum_of(reports: Iterable[dict[str, Any]]) -> Counts:
    """The counts of several processes, decoded from their JSON."""
    total = Counts()
    for report in reports:
        total.add(msgspec.convert(report["counts"], Counts, str_keys=True))
    return total
