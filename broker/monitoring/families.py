"""One scrape's worth of metric families, filled by sections and rendered by prometheus-client.

Used in the metrics' worker thread only. That thread shares the interpreter's lock with the event
loop, which could otherwise wait a whole switch interval (5 ms) at each of its turns while a large
page is built; so the work is cut into pieces of a few tenths of a millisecond with a short sleep
between (`_Pace`), and samples are made one by one while they are being written, not kept.

Cardinality: past `series_limit` a family adds everything further up in one series whose labels read
`__other__`, and `aerobee_metrics_folded_series` says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol, TypeAlias, cast

from aerobee.broker.stats import OTHER, Buckets

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric
    from prometheus_client.samples import Sample

ROCKETMQ_PREFIX = "rocketmq_"
# 64 samples or additions take about 0.4 ms; the sleep lets a waiting loop thread wake and run.
_STEPS = 64
_PAUSE_S = 0.00005

Labels: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MetricsOptions:
    """What every series of RocketMQ's names carries, and what is shown at all."""

    cluster: str
    broker_name: str
    labels: tuple[tuple[str, str], ...] = ()
    rocketmq_names: bool = True
    series_limit: int = 50_000


class _Pace:
    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = _STEPS

    def step(self) -> None:
        self._left -= 1
        if not self._left:
            self._left = _STEPS
            time.sleep(_PAUSE_S)


class Family:
    """One metric family being filled; label values in the order of its names."""

    def __init__(
        self, kind: str, name: str, help_text: str, labels: Sequence[str], limit: int, pace: _Pace
    ) -> None:
        self.kind = kind
        self.name = name
        self.help_text = help_text
        self.labels = tuple(labels)
        self.plain: dict[Labels, float] = {}
        self.buckets: dict[Labels, Buckets] = {}
        self.folded = 0
        self._limit = limit
        self._pace = pace

    def add(self, value: float, *label_values: str) -> None:
        """Add to the series of these label values (new ones begin at 0)."""
        key = self._key(label_values, self.plain)
        self.plain[key] = self.plain.get(key, 0) + value

    def add_buckets(self, buckets: Buckets, *label_values: str, scale: float = 1.0) -> None:
        """Add a histogram; `scale` turns the unit of its bounds into the family's."""
        key = self._key(label_values, self.buckets)
        known = self.buckets.get(key)
        if known is None:
            known = self.buckets[key] = Buckets([bound * scale for bound in buckets.bounds])
        known.counts = [a + b for a, b in zip(known.counts, tuple(buckets.counts), strict=True)]
        known.total += buckets.total * scale

    def _key(self, values: Labels, series: Mapping[Labels, object]) -> Labels:
        assert len(values) == len(self.labels), f"{self.name} has labels {self.labels}"
        self._pace.step()
        if values in series or len(series) < self._limit or not values:
            return values
        self.folded += 1
        return (OTHER,) * len(values)


class Page:
    """Collects the families of one scrape."""

    def __init__(self, options: MetricsOptions) -> None:
        self._options = options
        self._families: dict[str, Family] = {}
        self._pace = _Pace()
        # Built-in labels win over configured ones of the same name, here and in `_labels`.
        self._base = {
            **dict(options.labels),
            "cluster": options.cluster,
            "node_type": "broker",
            "node_id": options.broker_name,
        }

    def counter(self, name: str, help_text: str, labels: Sequence[str] = ()) -> Family:
        """A counter family; the name ends in `_total`."""
        assert name.endswith("_total"), name
        return self._family("counter", name, help_text, labels)

    def gauge(self, name: str, help_text: str, labels: Sequence[str] = ()) -> Family:
        return self._family("gauge", name, help_text, labels)

    def histogram(self, name: str, help_text: str, labels: Sequence[str] = ()) -> Family:
        return self._family("histogram", name, help_text, labels)

    def collect(self) -> Iterator[Metric]:
        """Everything as prometheus-client's families, in the order of first use."""
        folded = self.gauge(
            "aerobee_metrics_folded_series",
            "Series beyond the limit of their family, added up as __other__ in this scrape",
            ["family"],
        )
        for family in list(self._families.values()):
            if family.folded:
                folded.add(family.folded, family.name)
        for family in self._families.values():
            if self._options.rocketmq_names or not family.name.startswith(ROCKETMQ_PREFIX):
                yield self._metric(family)

    def _family(self, kind: str, name: str, help_text: str, labels: Sequence[str]) -> Family:
        family = self._families.get(name)
        if family is None:
            family = self._families[name] = Family(
                kind, name, help_text, labels, self._options.series_limit, self._pace
            )
        assert (family.kind, family.labels) == (kind, tuple(labels)), name
        return family

    def _metric(self, family: Family) -> Metric:
        from prometheus_client.metrics_core import Metric

        metric = Metric(family.name.removesuffix("_total"), family.help_text, family.kind)
        base = self._base if family.name.startswith(ROCKETMQ_PREFIX) else {}
        # The encoders only iterate; a list of all samples of a large page would be megabytes.
        metric.samples = cast("list[Sample]", _Samples(family, base, self._pace))
        return metric


class _Samples:
    """The samples of a family, made while they are being iterated over."""

    def __init__(self, family: Family, base: Mapping[str, str], pace: _Pace) -> None:
        self._family = family
        self._base = base
        self._pace = pace

    def __iter__(self) -> Iterator[Sample]:
        from prometheus_client.samples import Sample

        for name, labels, value in self._histogram() if self._family.buckets else self._plain():
            self._pace.step()
            yield Sample(name, labels, value)

    def _plain(self) -> Iterator[tuple[str, dict[str, str], float]]:
        family = self._family
        for key, value in family.plain.items():
            yield family.name, self._labels(key), value

    def _histogram(self) -> Iterator[tuple[str, dict[str, str], float]]:
        from prometheus_client.utils import floatToGoString

        family = self._family
        for key, buckets in family.buckets.items():
            labels = self._labels(key)
            steps = list(accumulate(buckets.counts))
            edges = [*map(floatToGoString, buckets.bounds), "+Inf"]
            for edge, count in zip(edges, steps, strict=True):
                yield f"{family.name}_bucket", {**labels, "le": edge}, count
            yield f"{family.name}_count", labels, steps[-1]
            yield f"{family.name}_sum", labels, buckets.total

    def _labels(self, key: Labels) -> dict[str, str]:
        return {**self._base, **dict(zip(self._family.labels, key, strict=True))}


Fill: TypeAlias = Callable[[Page], None]


class Section(Protocol):
    """A group of families with one subject."""

    async def take(self) -> Fill:
        """On the loop: copy what only the loop may touch.

        May let the loop turn in between. The returned function runs in the worker thread.
        """
        ...
