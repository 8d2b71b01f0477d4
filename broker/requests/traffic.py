"""VIEW_BROKER_STATS_DATA (315): traffic of the last minute, hour and day by topic and by group, as
`mqadmin statsAll` shows it (protocol/WIRE.md 3.6, 4.7).

The request path counts in `stats.py` and in the store. Here those counts are remembered every ten
seconds, ten minutes and hour, four numbers each, so that differences can be computed. A window ends
now and begins at its oldest sample, one step before its length at most, or one step before a topic
or group was first seen, as in the reference.

Bounded: `_MOST_SERIES` topics and pairs of topic and group, about 1.5 KB each; others are answered
like unknown ones. Loop thread only.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Sequence
from typing import Protocol

from aerobee.broker.router import Handler
from aerobee.broker.stats import BrokerStats, TrafficCounts
from aerobee.protocol.bodies.stats import StatsWindow, encode_stats_data
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.command import Command, encode_success
from aerobee.protocol.headers.admin import StatsDataHeader
from aerobee.remoting.connection import Connection
from aerobee.store.stats import StoreStatsService

#: How often `TrafficHistory.sample` is to be called.
SAMPLE_S = 10.0
_MOST_SERIES = 10_000
#: (seconds between samples, samples kept) of minute, hour and day.
_WINDOWS = ((10, 7), (600, 7), (3600, 25))
_FIELDS = 4

# By the reference's name: whose counts, and which of them.
_TOPIC, _GROUP, _PUT, _GET = "topic", "group", "put", "get"
_NAMES: dict[str, tuple[str, int]] = {
    "TOPIC_PUT_NUMS": (_TOPIC, 0),
    "TOPIC_PUT_SIZE": (_TOPIC, 1),
    "GROUP_GET_NUMS": (_GROUP, 0),
    "GROUP_GET_SIZE": (_GROUP, 1),
    "SNDBCK_PUT_NUMS": (_GROUP, 2),
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
            # Of bytes the average is a message's, of messages one each time.
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
        self._totals: dict[tuple[str, str], list[Counter]] = {
            (_PUT, cluster): [_StoreCounter(store, put=True)],
            (_GET, cluster): [_StoreCounter(store, put=False)],
        }
        self._clock = clock
        self._series: dict[tuple[str, str], _Series] = {}

    def sample(self) -> None:
        """Remember all counters; forget those of deleted topics and groups."""
        now_ms = self._now_ms()
        known, self._series = self._series, {}
        for key, counters in self._counters().items():
            if len(self._series) == _MOST_SERIES:
                break
            series = self._series[key] = known.get(key) or _Series(now_ms)
            series.counters = counters
            series.sample(now_ms)

    def find(self, name: str, key: str) -> list[StatsWindow] | None:
        """Minute, hour and day of what has that name and key; None if there is no such thing."""
        whose, which = _NAMES.get(name, ("", 0))
        series = self._series.get((whose, key))
        return None if series is None else series.windows(self._now_ms(), which)

    def _counters(self) -> dict[tuple[str, str], list[Counter]]:
        found = dict(self._totals)
        for topic in self._stats.topics():
            found.setdefault((_TOPIC, topic.topic), []).append(topic)
        for one in self._stats.consumers():
            found.setdefault((_GROUP, f"{one.topic}@{one.group}"), []).append(one)
        return found

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
