"""Counters of the store, and their recent changes.

`StoreStats` holds plain ints that the hot path adds to, read once a scrape. Each counter has one
writing thread: the caller's (puts, dispatch, gets), the flush thread's (`commit_log_syncs` and its
times), the consume queue flush thread's (`queue_syncs`), the scrub's (`scrub_...`). Readers take
the present values; a count that is 1 behind does no harm.

Times are kept in `Histogram`s of powers of two, because finding the bucket is then one shift: at
100,000 appends a second a search through bounds would cost more than the append's own bookkeeping.
The reference's ranges are in milliseconds. Nearly all times are shorter, which is its first range,
so a range is searched for only from 1 ms on.

`StoreStatsService` (RocketMQ's name) counts nothing itself. Its owner calls `sample` once a second,
and it computes differences between samples. So the hot path pays for a single count.

- Rates are over the last 10, 60 and 600 seconds, or less in a younger store.
- The distribution and percentiles of put times are those of the last whole minute, like the
  reference's; zeros before the first minute has ended. The longest put is since the start.
- Totals of "this morning" are the totals at the first sample of the local day.

Threads of the service: only the caller's.
"""

import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, field
from typing import NamedTuple

from aerobee.store.disk.files import Clock

BUCKETS = 24
#: Upper bounds in seconds: 1.024 us, 2.048 us, ... 4.3 s; the last bucket takes larger times.
BOUNDS_S: tuple[float, ...] = tuple((1024 << power) / 1e9 for power in range(BUCKETS - 1))
_MS = 1_000_000
#: Lower bounds in nanoseconds of the reference's ranges of put times, but for the first
#: (protocol/WIRE.md 4.8).
SLOW_NS: tuple[int, ...] = tuple(
    ms * _MS for ms in (1, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000)
)


class Histogram:
    """Observations of nanoseconds in power-of-two buckets; `counts[i]` is below `BOUNDS_S[i]`.

    `slow[i]` counts those from `SLOW_NS[i]` up to the next bound a second time.
    """

    __slots__ = ("counts", "max_ns", "slow", "sum_ns")

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS
        self.slow = [0] * len(SLOW_NS)
        self.sum_ns = 0
        self.max_ns = 0

    def add(self, duration_ns: int) -> None:
        """Count an observation; a negative time (the clock was set back) counts as 0."""
        if not 0 <= duration_ns < _MS:
            self.add_many(duration_ns, 1)
            return
        self.counts[(duration_ns >> 10).bit_length()] += 1
        self.sum_ns += duration_ns
        if duration_ns > self.max_ns:
            self.max_ns = duration_ns

    def add_many(self, duration_ns: int, times: int) -> None:
        """Count `times` observations of one duration."""
        duration_ns = max(duration_ns, 0)
        self.counts[min((duration_ns >> 10).bit_length(), BUCKETS - 1)] += times
        if duration_ns >= _MS:
            self.slow[bisect_right(SLOW_NS, duration_ns) - 1] += times
        self.sum_ns += duration_ns * times
        self.max_ns = max(self.max_ns, duration_ns)

    @property
    def count(self) -> int:
        """Observations so far."""
        return sum(self.counts)

    @property
    def sum_s(self) -> float:
        """The sum of the observations in seconds."""
        return self.sum_ns / 1e9

    @property
    def max_s(self) -> float:
        """The longest observation in seconds."""
        return self.max_ns / 1e9


@dataclass(slots=True, eq=False)
class StoreStats:
    """All counters of a store; they only grow.

    `put_times` has the times of whole puts. They are those of the appends; with `answers_wait`
    a put lasts until the answer that the message is durable, and the broker's part that gives this
    answer counts it.
    """

    answers_wait: InitVar[bool] = False
    appended_messages: int = 0
    appended_bytes: int = 0
    append_times: Histogram = field(default_factory=Histogram)
    put_times: Histogram = field(init=False)
    put_failures: dict[str, int] = field(default_factory=dict)
    commit_log_sync_times: Histogram = field(default_factory=Histogram)
    queue_syncs: int = 0
    dispatched_messages: int = 0
    get_found: int = 0
    get_missed: int = 0
    get_messages: int = 0
    # Bit maps of filters: made, left out because they would take too long, and messages that pulls
    # passed over because of their maps.
    bit_maps_made: int = 0
    bit_maps_left_out: int = 0
    bit_map_misses: int = 0
    # Reads that met a record which they could not send, and damaged places by kind, each place
    # counted once.
    damaged_reads: int = 0
    damage_found: dict[str, int] = field(
        default_factory=lambda: {"record": 0, "unit": 0, "unclear": 0, "index": 0}
    )
    repaired_entries: int = 0
    # Bytes of the log that reads searched for the messages of wrong entries.
    lookup_bytes: int = 0
    # The scrub's counts: bytes read, bytes that the pass under way has still to read, ended passes,
    # and the work between two waits (processor time).
    scrub_bytes: int = 0
    scrub_left_bytes: int = 0
    scrub_passes: int = 0
    scrub_steps: Histogram = field(default_factory=Histogram)
    segments_created: int = 0
    index_files_created: int = 0

    def __post_init__(self, answers_wait: bool) -> None:
        self.put_times = Histogram() if answers_wait else self.append_times

    @property
    def appends(self) -> int:
        """Puts that appended something; a batch counts as one put."""
        return self.append_times.count

    def put_failed(self, kind: str) -> None:
        """Count a refused or failed put by the name of its error."""
        self.put_failures[kind] = self.put_failures.get(kind, 0) + 1


#: The windows of the rates, in seconds.
RATE_WINDOWS_S = (10, 60, 600)
#: The names of the reference's ranges of put times.
PUT_RANGES = (
    "<=0ms", "0~10ms", "10~50ms", "50~100ms", "100~200ms", "200~500ms", "500ms~1s", "1~2s", "2~3s",
    "3~4s", "4~5s", "5~10s", "10s~",
)  # fmt: skip

_SAMPLE_INTERVAL_S = 1.0
_MINUTE_S = 60.0


class Rates(NamedTuple):
    """Events a second over each of RATE_WINDOWS_S."""

    put: tuple[float, ...]
    get_found: tuple[float, ...]
    get_miss: tuple[float, ...]
    get_total: tuple[float, ...]
    get_transferred: tuple[float, ...]


class Totals(NamedTuple):
    """Messages put, and given to consumers."""

    put: int
    transferred: int


class _Sample(NamedTuple):
    at: float
    put: int
    get_found: int
    get_missed: int
    get_transferred: int


class _Times(NamedTuple):
    """Counts of put times at one moment: by power-of-two bucket, by range from 1 ms on."""

    counts: tuple[int, ...]
    slow: tuple[int, ...]

    def since(self, before: "_Times") -> "_Times":
        return _Times(
            tuple([now - then for now, then in zip(self.counts, before.counts, strict=True)]),
            tuple([now - then for now, then in zip(self.slow, before.slow, strict=True)]),
        )


class StoreStatsService:
    """Differences of `stats` over time."""

    def __init__(self, stats: StoreStats, clock: Clock) -> None:
        self._stats = stats
        self._clock = clock
        # The first rates are taken against the start itself.
        self._samples: deque[_Sample] = deque([self._take()])
        self._minute_at = clock.monotonic()
        self._minute = self._times()
        self._last_minute = self._minute.since(self._minute)
        self._day = self._today()
        self.yesterday_morning = self.this_morning = Totals(0, 0)

    def sample(self) -> None:
        """Remember the counters; call it every second, or a little less often."""
        taken = self._take()
        if taken.at - self._samples[-1].at < _SAMPLE_INTERVAL_S:
            return
        self._samples.append(taken)
        # One sample older than the longest window stays, as its far end.
        while len(self._samples) > 2 and taken.at - self._samples[1].at >= RATE_WINDOWS_S[-1]:
            self._samples.popleft()
        if taken.at - self._minute_at >= _MINUTE_S:
            times = self._times()
            self._minute_at, self._last_minute = taken.at, times.since(self._minute)
            self._minute = times
        today = self._today()
        if today != self._day:
            self._day = today
            self.yesterday_morning, self.this_morning = self.this_morning, self.totals

    # --- what it knows ----------------------------------------------------------------------

    @property
    def totals(self) -> Totals:
        """The totals up to now."""
        return Totals(self._stats.appended_messages, self._stats.get_messages)

    def rates(self) -> Rates:
        """The rates up to this moment."""
        now = self._take()
        far_ends = [self._far_end(now.at - window) for window in RATE_WINDOWS_S]

        def rates_of(counter: Callable[[_Sample], int]) -> tuple[float, ...]:
            return tuple(
                (counter(now) - counter(old)) / (now.at - old.at) if now.at > old.at else 0.0
                for old in far_ends
            )

        found = rates_of(lambda sample: sample.get_found)
        missed = rates_of(lambda sample: sample.get_missed)
        return Rates(
            rates_of(lambda sample: sample.put),
            found,
            missed,
            tuple(f + m for f, m in zip(found, missed, strict=True)),
            rates_of(lambda sample: sample.get_transferred),
        )

    def put_ranges(self) -> list[int]:
        """Puts of the last whole minute in each of PUT_RANGES."""
        counts, slow = self._last_minute
        return [sum(counts) - sum(slow), *slow]

    def put_percentile_ms(self, share: float) -> float:
        """The time within which `share` of the last whole minute's puts ended; 0 without puts."""
        counts = self._last_minute.counts
        rank = sum(counts) * share
        if not rank:
            return 0.0
        most_s = self._stats.put_times.max_s
        seen, below_s = 0, 0.0
        for bound_s, count in zip((*BOUNDS_S, most_s), counts, strict=True):
            bound_s = max(below_s, min(bound_s, most_s))
            if count and seen + count >= rank:
                return (below_s + (bound_s - below_s) * (rank - seen) / count) * 1000
            seen += count
            below_s = bound_s
        return most_s * 1000

    # --- the rest ---------------------------------------------------------------------------

    def _take(self) -> _Sample:
        stats = self._stats
        return _Sample(
            self._clock.monotonic(),
            stats.appended_messages,
            stats.get_found,
            stats.get_missed,
            stats.get_messages,
        )

    def _times(self) -> _Times:
        times = self._stats.put_times
        return _Times(tuple(times.counts), tuple(times.slow))

    def _far_end(self, at: float) -> _Sample:
        """The youngest sample at or before `at`, else the oldest sample."""
        position = bisect_left(self._samples, at, key=lambda sample: sample.at)
        if position < len(self._samples) and self._samples[position].at == at:
            return self._samples[position]
        return self._samples[max(position - 1, 0)]

    def _today(self) -> tuple[int, int]:
        now = time.localtime(self._clock.now_ms() / 1000)
        return now.tm_year, now.tm_yday


def rate_text(triple: Sequence[float]) -> str:
    """A triple as the runtime table writes it: `10s 60s 600s`, separated by spaces."""
    return " ".join(str(round(rate, 4)) for rate in triple)
