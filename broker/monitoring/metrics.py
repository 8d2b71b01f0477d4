"""The /metrics page: families built at each scrape, from the broker's plain counters.

A scrape has two halves. On the loop each section, a coroutine function, copies what only the loop
may touch (tables, the store's queues) and returns a `Fill`; in one worker thread these fill a
`Page`, and prometheus-client renders it in the format the scraper asked for. So the loop is held
for the copying alone, and a slow scraper or a large page holds up nobody. Plain ints of long-lived
counter objects are read by the thread directly: each is one whole value under the interpreter's
lock.

That thread shares the interpreter's lock with the event loop, which could otherwise wait a whole
switch interval (5 ms) at each of its turns while a large page is built; so the work is cut into
pieces of a few tenths of a millisecond with a short sleep between (`_Yielding`), and samples are
made one by one while they are being written, not kept.

prometheus-client is imported by that thread at the first scrape: it costs 5 MB and 20 ms, and a
broker nobody scrapes should not pay.

Names beginning `rocketmq_` are RocketMQ 5's and carry its labels (`cluster`, `node_type`,
`node_id` and the configured ones); names beginning `aerobee_` are ours, in seconds and bytes.
Label values come from configured topics and groups only. Past `series_limit` a family adds
everything further up in one series whose labels read `__other__`, and
`aerobee_metrics_folded_series` says so.
"""

from __future__ import annotations

import asyncio
import gzip
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, ParamSpec, TypeAlias, cast

from aerobee.broker.monitoring.http import Request, Response
from aerobee.broker.stats import OTHER, Buckets

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import CollectorRegistry
    from prometheus_client.samples import Sample


log = logging.getLogger("aerobee.broker.metrics")

ROCKETMQ_PREFIX = "rocketmq_"
# 64 samples or additions take about 0.4 ms; the sleep lets a waiting loop thread wake and run.
_STEPS = 64
_PAUSE_S = 0.00005
# Smaller pages are sent faster than they are packed.
_GZIP_FROM_BYTES = 8192

Labels: TypeAlias = tuple[str, ...]
# A family of one number: its name, its help text, and the value now.
Number: TypeAlias = tuple[str, str, float]
P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class MetricsOptions:
    """What every series of RocketMQ's names carries, and what is shown at all."""

    cluster: str
    broker_name: str
    labels: tuple[tuple[str, str], ...] = ()
    rocketmq_names: bool = True
    series_limit: int = 50_000


class _Yielding:
    """Lets other threads have the interpreter's lock, once every `_STEPS` steps."""

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
        self,
        kind: str,
        name: str,
        help_text: str,
        labels: Sequence[str],
        limit: int,
        yielding: _Yielding,
    ) -> None:
        self.kind = kind
        self.name = name
        self.help_text = help_text
        self.labels = tuple(labels)
        self.plain: dict[Labels, float] = {}
        self.buckets: dict[Labels, Buckets] = {}
        self.folded = 0
        self._limit = limit
        self._yielding = yielding

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
        self._yielding.step()
        if values in series or len(series) < self._limit or not values:
            return values
        self.folded += 1
        return (OTHER,) * len(values)


class Page:
    """Collects the families of one scrape."""

    def __init__(self, options: MetricsOptions) -> None:
        self._options = options
        self._families: dict[str, Family] = {}
        self._yielding = _Yielding()
        # Built-in labels win over configured ones of the same name, here and in `_labels`.
        self._base = {
            **dict(options.labels),
            "cluster": options.cluster,
            "node_type": "broker",
            "node_id": options.broker_name,
        }

    def family(self, name: str, help_text: str, labels: Sequence[str] = ()) -> Family:
        """A counter when the name ends in `_total`, else a gauge."""
        kind = "counter" if name.endswith("_total") else "gauge"
        return self._family(kind, name, help_text, labels)

    def numbers(self, numbers: Iterable[Number], **labels: str) -> None:
        """Families of one number each, all under the same labels."""
        for name, help_text, value in numbers:
            self.family(name, help_text, tuple(labels)).add(value, *labels.values())

    def tally(self, name: str, help_text: str, label: str, counts: Mapping[str, float]) -> None:
        """A family with one label, and its number for each value of that."""
        family = self.family(name, help_text, [label])
        for text, value in counts.items():
            family.add(value, text)

    def histogram(self, name: str, help_text: str, labels: Sequence[str] = ()) -> Family:
        return self._family("histogram", name, help_text, labels)

    def collect(self) -> Iterator[Metric]:
        """Everything as prometheus-client's families, in the order of first use."""
        self.tally(
            "aerobee_metrics_folded_series",
            "Series beyond the limit of their family, added up as __other__ in this scrape",
            "family",
            {family.name: family.folded for family in self._families.values() if family.folded},
        )
        for family in self._families.values():
            if self._options.rocketmq_names or not family.name.startswith(ROCKETMQ_PREFIX):
                yield self._metric(family)

    def _family(self, kind: str, name: str, help_text: str, labels: Sequence[str]) -> Family:
        family = self._families.get(name)
        if family is None:
            family = self._families[name] = Family(
                kind, name, help_text, labels, self._options.series_limit, self._yielding
            )
        assert (family.kind, family.labels) == (kind, tuple(labels)), name
        return family

    def _metric(self, family: Family) -> Metric:
        from prometheus_client.metrics_core import Metric

        metric = Metric(family.name.removesuffix("_total"), family.help_text, family.kind)
        base = self._base if family.name.startswith(ROCKETMQ_PREFIX) else {}
        # The encoders only iterate; a list of all samples of a large page would be megabytes.
        metric.samples = cast("list[Sample]", _Samples(family, base, self._yielding))
        return metric


class _Samples:
    """The samples of a family, made while they are being iterated over."""

    def __init__(self, family: Family, base: Mapping[str, str], yielding: _Yielding) -> None:
        self._family = family
        self._base = base
        self._yielding = yielding

    def __iter__(self) -> Iterator[Sample]:
        from prometheus_client.samples import Sample

        for name, labels, value in self._histogram() if self._family.buckets else self._plain():
            self._yielding.step()
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


# The half of a section that runs in the worker thread.
Fill: TypeAlias = Callable[[Page], None]


class Metrics:
    """Answers scrapes from the sections added so far. Built and asked on the loop."""

    def __init__(self, options: MetricsOptions) -> None:
        self._options = options
        self._sections: dict[str, Callable[[], Awaitable[Fill]]] = {}
        # One thread: scrapes that come together are rendered one after the other.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="aerobee-metrics")
        self._process: CollectorRegistry | None = None
        self.section_failures: dict[str, int] = {}

    def add(
        self,
        name: str,
        section: Callable[P, Awaitable[Fill]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        """Show one more subject; the daemon adds each as soon as its parts, the arguments, exist.

        `section` is called at each scrape, on the loop: it copies what only the loop may touch,
        and may let the loop turn in between.
        """
        assert name not in self._sections, f"section {name} added twice"
        self._sections[name] = partial(section, *args, **kwargs)
        self.section_failures[name] = 0

    async def route(self, request: Request) -> Response:
        """The /metrics route."""
        fills: dict[str, Fill] = {}
        for name, section in list(self._sections.items()):
            try:
                fills[name] = await section()
            except Exception:  # noqa: BLE001 - logged there; the other sections go on
                self._failed(name)
        accept = request.headers.get("accept", "")
        packed = request.headers.get("accept-encoding", "")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._render, fills, accept, packed)

    def close(self) -> None:
        """End the worker thread; a scrape under way is not waited for."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _failed(self, name: str) -> None:
        # One section's bug must not hide the others just when they are needed.
        log.exception("metrics section failed name=%s", name)
        self.section_failures[name] += 1

    def _render(self, fills: Mapping[str, Fill], accept: str, packed: str) -> Response:
        from prometheus_client.exposition import (
            CONTENT_TYPE_PLAIN_0_0_4,
            choose_encoder,
            gzip_accepted,
        )
        from prometheus_client.exposition import generate_latest as plain_encoder

        page = self._page(fills)
        try:
            encoder, content_type = choose_encoder(accept)
        except (ValueError, TypeError):  # an Accept header with a version that is no number
            encoder, content_type = plain_encoder, CONTENT_TYPE_PLAIN_0_0_4
        body = encoder(_Both(page, self._process_registry()))
        if len(body) >= _GZIP_FROM_BYTES and gzip_accepted(packed):
            body = gzip.compress(body, compresslevel=1)
            return Response(200, body, content_type, (("Content-Encoding", "gzip"),))
        return Response(200, body, content_type)

    def _page(self, fills: Mapping[str, Fill]) -> Page:
        page = Page(self._options)
        for name, fill in fills.items():
            try:
                fill(page)
            except Exception:  # noqa: BLE001 - logged there; the other sections go on
                self._failed(name)
        page.tally(
            "aerobee_metrics_section_failures_total",
            "Scrapes in which a group of families could not be built; see the log",
            "section",
            dict(self.section_failures),
        )
        return page

    def _process_registry(self) -> CollectorRegistry:
        """prometheus-client's own collectors: process_*, python_gc_*, python_info."""
        if self._process is None:
            from prometheus_client.gc_collector import GCCollector
            from prometheus_client.platform_collector import PlatformCollector
            from prometheus_client.process_collector import ProcessCollector
            from prometheus_client.registry import CollectorRegistry

            self._process = CollectorRegistry()
            ProcessCollector(registry=self._process)
            GCCollector(registry=self._process)
            PlatformCollector(registry=self._process)
        return self._process


class _Both:
    """A page and the process's own families as one collector, which is all an encoder needs."""

    def __init__(self, page: Page, process: CollectorRegistry) -> None:
        self._page = page
        self._process = process

    def collect(self) -> Iterator[Metric]:
        yield from self._page.collect()
        yield from self._process.collect()
