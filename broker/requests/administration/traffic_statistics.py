"""VIEW_BROKER_STATS_DATA (315): traffic of the last minute, hour and day by topic and by group, as
`mqadmin statsAll` shows it (protocol/WIRE.md 3.6, 4.7).

The request path counts in `consumption.py` and in the store. Here those counts are remembered every
ten seconds, ten minutes and hour, four numbers each, so that differences can be computed. A window
ends now and begins at its oldest sample, one step before its length at most, or one step before a
topic or group was first seen, as in the reference.

Names are those of the reference but for the commercial ones. Its four of reads from the disk have
no figure there, because nothing counts them, and none here. Of a group's latency in a queue the sum
is milliseconds that reading took, and the average that of one pull.

Bounded: `_MOST_SERIES` topics, pairs of topic and group, and queues of both, about 1.5 KB each;
others, queues first, are answered like unknown ones. They are remembered in steps. Loop thread
only.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from aerobee.broker.broker_stats import BrokerStats, QueueCounts, TrafficCounts
from aerobee.broker.routing.router import Handler
from aerobee.protocol.bodies.statistics import StatsWindow, encode_stats_data
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.command import Command, encode_success
from aerobee.protocol.headers.admin import StatsDataHeader
from aerobee.remoting.connections.connection import Connection
from aerobee.store.store_stats import StoreStatsService

#: How often `TrafficHistory.sample` is to be called.
SAMPLE_S = 10.0
_MOST_SERIES = 10_000
#: (seconds between samples, samples kept) of minute, hour and day.
_WINDOWS = ((10, 7), (600, 7), (3600, 25))
_FIELDS = 4
# Series that are looked at in one step, some 5 us each.
_STEP = 32

# By the reference's name: whose counts, and which of them.
_TOPIC, _GROUP, _PUT, _GET = "topic", "group", "put", "get"
_QUEUE_PUT, _QUEUE_GET, _LATENCY = "queue put", "queue get", "latency"
_NAMES: dict[str, tuple[str, int]] = {
    "TOPIC_PUT_NUMS": (_TOPIC, 0),
    "TOPIC_PUT_SIZE": (_TOPIC, 1),
    "GROUP_GET_NUMS": (_GROUP, 0),
    "GROUP_GET_SIZE": (_GROUP, 1),
    "SNDBCK_PUT_NUMS": (_GROUP, 2),
    "QUEUE_PUT_NUMS": (_QUEUE_PUT, 0),
    "QUEUE_PUT_SIZE": (_QUEUE_PUT, 1),
    "QUEUE_GET_NUMS": (_QUEUE_GET, 0),
    "QUEUE_GET_SIZE": (_QUEUE_GET, 1),
    "GROUP_GET_LATENCY": (_LATENCY, 1),
    "BROKER_PUT_NUMS": (_PUT, 0),
    "BROKER_GET_NUMS": (_GET, 0),
}


class Counter(Protocol):
    """Something that counts."""

    @property
    def counts(self) -> TrafficCounts:
        """So far."""
        ...


class _StoreCounter:
    """Messages put into the store, or taken from it."""

    def __init__(self, store: StoreStatsService, *, put: bool) -> None:
        self._store = store
        self._put = put

    @property
    def counts(self) -> TrafficCounts:
        totals = self._store.totals
        return TrafficCounts(totals.put if self._put else totals.transferred, 0, 0)


class _Latency:
    """Pulls of a group in a queue, and the milliseconds that reading took."""

    __slots__ = ("_queue",)

    def __init__(self, queue: QueueCounts) -> None:
        self._queue = queue

    @property
    def counts(self) -> TrafficCounts:
        queue = self._queue
        return TrafficCounts(queue.times, int(queue.spent_s * 1000), 0)


class _Series:
    """The past of some counters together: samples of (time in ms, three counts) by window."""

    __slots__ = ("counters", "samples")

    def __init__(self, now_ms: int) -> None:
        self.counters: Sequence[Counter] = ()
        self.samples = [array("q", (now_ms - step_s * 1000, 0, 0, 0)) for step_s, _ in _WINDOWS]

    def counts(self) -> TrafficCounts:
        counted = [counter.counts for counter in self.counters]
        return TrafficCounts(
            sum([counts.messages for counts in counted]),
            sum([counts.size for counts in counted]),
            sum([counts.sent_back for counts in counted]),
        )

    def sample(self, now_ms: int) -> None:
        """Remember the counts in the windows whose step is over."""
        counts = self.counts()
        for samples, (step_s, kept) in zip(self.samples, _WINDOWS, strict=True):
            # A timer may be a little early.
            if now_ms - samples[-_FIELDS] >= step_s * 1000 - 500:
                samples.extend((now_ms, *counts))
                if len(samples) > kept * _FIELDS:
                    del samples[:_FIELDS]

    def windows(self, now_ms: int, which: int) -> list[StatsWindow]:
        """Minute, hour and day up to now of one of the counts."""
        counts = self.counts()
        found = []
        for samples in self.samples:
            total = counts[which] - samples[1 + which]
            # The average of bytes is a message's; the average of messages is one each time.
            times = counts.messages - samples[1] if which == 1 else total
            span_s = max(now_ms - samples[0], 1) / 1000
            found.append(StatsWindow(total, total / span_s, total / times if times > 0 else 0.0))
        return found


class TrafficHistory:
    """The past of all counters. `clock` is monotonic, in seconds."""

    def __init__(
        self,
        stats: BrokerStats,
        store: StoreStatsService,
        cluster: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stats = stats
        self._totals: dict[tuple[str, str], Counter] = {
            (_PUT, cluster): _StoreCounter(store, put=True),
            (_GET, cluster): _StoreCounter(store, put=False),
        }
        self._clock = clock
        self._series: dict[tuple[str, str], _Series] = {}
        # A round that goes on; None: the next one begins anew.
        self._round: Iterator[None] | None = None

    def sample(self) -> None:
        """A whole round: remember all counters; forget those of deleted topics and groups."""
        while self.step():
            pass

    def step(self) -> bool:
        """A part of a round; False when it has ended. The next call begins another."""
        if self._round is None:
            self._round = self._steps()
        for _ in self._round:
            return True
        self._round = None
        return False

    def _steps(self) -> Iterator[None]:
        now_ms = self._now_ms()
        known, found = self._series, dict[tuple[str, str], _Series]()
        counters: dict[tuple[str, str], list[Counter]] = {}
        for number, (key, counter) in enumerate(self._counters(), 1):
            if key in counters:
                counters[key].append(counter)
            elif len(counters) < _MOST_SERIES:
                counters[key] = [counter]
            if number % _STEP == 0:
                yield
        for number, (key, together) in enumerate(counters.items(), 1):
            series = found[key] = known.get(key) or _Series(now_ms)
            series.counters = together
            series.sample(now_ms)
            if number % _STEP == 0:
                yield
        self._series = found

    def find(self, name: str, key: str) -> list[StatsWindow] | None:
        """Minute, hour and day of what has that name and key; None if there is no such thing."""
        whose, which = _NAMES.get(name, ("", 0))
        series = self._series.get((whose, key))
        return None if series is None else series.windows(self._now_ms(), which)

    def _counters(self) -> Iterator[tuple[tuple[str, str], Counter]]:
        """All of them, those of single queues last; a topic's messages of several kinds are counted
        by several."""
        topics, consumers = self._stats.topics(), self._stats.consumers()
        yield from self._totals.items()
        for topic in topics:
            yield (_TOPIC, topic.topic), topic
        for one in consumers:
            yield (_GROUP, f"{one.topic}@{one.group}"), one
        for topic in topics:
            for queue_id, queue in list(topic.queues.items()):
                yield (_QUEUE_PUT, f"{topic.topic}@{queue_id}"), queue
        for one in consumers:
            for queue_id, queue in list(one.queues.items()):
                yield (_QUEUE_GET, f"{one.topic}@{queue_id}@{one.group}"), queue
                yield (_LATENCY, f"{queue_id}@{one.topic}@{one.group}"), _Latency(queue)

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)


class TrafficRequests:
    """Serves administrators. Loop thread only."""

    def __init__(self, traffic: TrafficHistory) -> None:
        self._traffic = traffic

    def handlers(self) -> dict[int, Handler]:
        """The handlers by request code."""
        return {RequestCode.VIEW_BROKER_STATS_DATA: self.view}

    def view(self, _connection: Connection, command: Command) -> bytes:
        """The windows of one counter. Raises `BadRequest` when nothing of that name was counted."""
        header = StatsDataHeader.from_ext(command.ext)
        windows = self._traffic.find(header.stats_name, header.stats_key)
        if windows is None:
            raise BadRequest.system_error(
                f"The stats <{header.stats_name}> <{header.stats_key}> not exist"
            )
        return encode_success(command, encode_stats_data(*windows))
