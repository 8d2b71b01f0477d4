"""Counters of the store: plain ints that the hot path adds to, read once a scrape.

Each counter has one writing thread: the caller's (puts, dispatch, gets), the flush thread's
(`commit_log_syncs` and its times), the consume queue flush thread's (`queue_syncs`), the scrub's
(`scrub_...`). Readers take what they see; a value that is one behind is no harm.

Times are kept in `Histogram`s of powers of two, because finding the bucket is then one shift: at
100,000 appends a second a search through bounds would cost more than the append's own bookkeeping.
The reference's ranges are in milliseconds; what takes less, nearly everything, is in its first
range, so only the rest is searched for.
"""

from bisect import bisect_right

BUCKETS = 24
#: Upper bounds in seconds: 1.024 us, 2.048 us, ... 4.3 s; the last bucket takes what is larger.
BOUNDS_S: tuple[float, ...] = tuple((1024 << power) / 1e9 for power in range(BUCKETS - 1))


_MS = 1_000_000
#: Lower bounds in nanoseconds of the reference's ranges of put times, but for the first
#: (protocol/WIRE.md 4.8).
SLOW_NS: tuple[int, ...] = tuple(
    ms * _MS for ms in (1, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000)
)


class Histogram:
    """Observations of nanoseconds in power-of-two buckets; `counts[i]` is below `BOUNDS_S[i]`.

    `slow[i]` counts those from `SLOW_NS[i]` up to the next bound, once more.
    """

    __slots__ = ("counts", "max_ns", "slow", "sum_ns")

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS
        self.slow = [0] * len(SLOW_NS)
        self.sum_ns = 0
        self.max_ns = 0

    def add(self, duration_ns: int) -> None:
        """Count one observation; a negative one (the clock was set back) counts as 0."""
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
        """Their sum in seconds."""
        return self.sum_ns / 1e9

    @property
    def max_s(self) -> float:
        """The longest one in seconds."""
        return self.max_ns / 1e9


class StoreStats:
    """All counters of one store; they only grow.

    `put_times` are of whole puts: the append alone, or with `waits_for_flush` up to the answer that
    the message is durable, which whoever gives that answer counts.
    """

    __slots__ = (
        "append_times",
        "appended_bytes",
        "appended_messages",
        "commit_log_sync_times",
        "damage_found",
        "damaged_reads",
        "dispatched_messages",
        "get_found",
        "get_messages",
        "get_missed",
        "index_files_created",
        "mended_entries",
        "put_failures",
        "put_times",
        "queue_syncs",
        "scrub_bytes",
        "scrub_left_bytes",
        "scrub_passes",
        "scrub_steps",
        "segments_created",
    )

    def __init__(self, *, waits_for_flush: bool = False) -> None:
        self.appended_messages = 0
        self.appended_bytes = 0
        self.append_times = Histogram()
        self.put_times = Histogram() if waits_for_flush else self.append_times
        self.put_failures: dict[str, int] = {}
        self.commit_log_sync_times = Histogram()
        self.queue_syncs = 0
        self.dispatched_messages = 0
        self.get_found = 0
        self.get_missed = 0
        self.get_messages = 0
        # Reads that came to something they could not send, and what it was, each place once.
        self.damaged_reads = 0
        self.damage_found = {"record": 0, "unit": 0, "unclear": 0}
        self.mended_entries = 0
        # Of the scrub: what it read, what the pass under way has still to read, passes it ended,
        # and its work between two waits (processor time).
        self.scrub_bytes = 0
        self.scrub_left_bytes = 0
        self.scrub_passes = 0
        self.scrub_steps = Histogram()
        self.segments_created = 0
        self.index_files_created = 0

    @property
    def appends(self) -> int:
        """Puts that appended something, a batch being one."""
        return self.append_times.count

    def put_failed(self, kind: str) -> None:
        """Count a refused or failed put by the name of its error."""
        self.put_failures[kind] = self.put_failures.get(kind, 0) + 1
