"""The /metrics page: families built at each scrape, from the broker's plain counters.

A scrape has two halves. On the loop each section copies the values that only the loop may touch
(tables, the store's queues): it gives a few `Row`s, or, for thousands of series, it is a coroutine
function that returns a `Fill`. In one worker thread these fill a `Page`, and prometheus-client
renders it in the format the scraper asked for. So the loop is held for the copying alone, and a
slow scraper or a large page holds up nobody. Plain ints of long-lived counter objects are read by
the thread directly: each is one whole value under the interpreter's lock.

That thread shares the interpreter's lock with the event loop, which could otherwise wait a whole
switch interval (a millisecond) at each of its turns while a page is built; so the work is cut into
pieces of a millisecond with a short sleep between (`_Yielding`), and each sample is made while it
is being written, not kept.

A page is bounded: of each family the `series_limit` largest series, and the others added up under
`__other__` (`series.py`); `aerobee_metrics_folded_series` says how many those are. Scrapes that ask
for the same format while one is being answered share its answer: two Prometheus servers cost no
more than a single server, and a client that asks without end has no more than one page at a time
made.

prometheus-client is imported by that thread at the first scrape: it costs 5 MB and 20 ms, and a
broker nobody scrapes should not pay.

Names beginning `rocketmq_` are RocketMQ 5's and carry its labels (`cluster`, `node_type`,
`node_id` and the configured ones); names beginning `aerobee_` are ours, in seconds and bytes.
Label values come from configured topics and groups only.
"""

from __future__ import annotations

import asyncio
import gzip
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate, chain
from operator import add
from typing import TYPE_CHECKING, NamedTuple, ParamSpec, TypeAlias, cast

from aerobee.broker.broker_stats import Buckets
from aerobee.broker.monitoring.http import BUSY, Request, Response
from aerobee.broker.monitoring.series import Labels, Shown, TopSeries, Vector

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import CollectorRegistry
    from prometheus_client.samples import Sample


log = logging.getLogger("aerobee.broker.metrics")

ROCKETMQ_PREFIX = "rocketmq_"
# The sleep lets a waiting loop thread wake and run. The pieces are as long as that thread can bear:
# while it is busy, each sleep costs this one a whole switch interval. The clock is read every
# `_STEPS` samples or additions.
_STEPS = 32
_PIECE_S = 0.001
_PAUSE_S = 0.00005
# Formats that pages are made in at the same time; scrapers ask for two or three.
_MOST_FORMATS = 4
# Smaller pages are sent faster than they are packed.
_GZIP_FROM_BYTES = 8192

Series: TypeAlias = tuple[Labels, Vector]
#: One number, a number for each value of one label, a histogram, or nothing to show now.
Value: TypeAlias = float | Mapping[str, float] | Buckets | None
P = ParamSpec("P")


class Row(NamedTuple):
    """One family as a section gives it: its name, the value now, and its help text.

    The name says the type: a histogram has `Buckets`, a counter ends in `_total`, all else is a
    gauge; and the unit. The worker thread calls a value that is a function. `label` is that of a
    mapping's keys; `under` are labels in front of it, with their values.
    """

    name: str
    value: Value | Callable[[], Value]
    help_text: str
    label: str = ""
    under: tuple[tuple[str, str], ...] = ()


def under(rows: Iterable[Row], **labels: str) -> Iterator[Row]:
    """The rows with these labels."""
    for row in rows:
        yield row._replace(under=tuple(labels.items()))


class MetricsOptions(NamedTuple):
    """Labels of every series of RocketMQ's names, and the families that are shown at all."""

    cluster: str
    broker_name: str
    labels: tuple[tuple[str, str], ...] = ()
    rocketmq_names: bool = True
    series_limit: int = 1000


class _Yielding:
    """Lets other threads have the interpreter's lock, after each piece of `_PIECE_S`."""

    __slots__ = ("_left", "_since")

    def __init__(self) -> None:
        self._left = _STEPS
        self._since = time.perf_counter()

    def step(self) -> None:
        self._left -= 1
        if self._left:
            return
        self._left = _STEPS
        if time.perf_counter() - self._since >= _PIECE_S:
            time.sleep(_PAUSE_S)
            self._since = time.perf_counter()


class Family:
    """One metric family being filled; label values in the order of its names."""

    def __init__(
        self, kind: str, name: str, help_text: str, labels: Sequence[str], yielding: _Yielding
    ) -> None:
        self.kind = kind
        self.name = name
        self.help_text = help_text
        self.labels = tuple(labels)
        self.values: dict[Labels, Vector] = {}
        self.bounds: tuple[float, ...] = ()  # of a histogram
        self._yielding = yielding

    def add(self, value: float, *label_values: str) -> None:
        """Add to the series of these label values (new ones begin at 0)."""
        self._add((value,), label_values)

    def add_buckets(self, buckets: Buckets, *label_values: str, scale: float = 1.0) -> None:
        """Add a histogram; `scale` turns the unit of its bounds into the family's."""
        if not self.bounds:
            self.bounds = tuple(bound * scale for bound in buckets.bounds)
        self._add((*buckets.counts, buckets.total * scale), label_values)

    def _add(self, vector: Vector, key: Labels) -> None:
        assert len(key) == len(self.labels), f"{self.name} has labels {self.labels}"
        self._yielding.step()
        known = self.values.get(key)
        self.values[key] = vector if known is None else tuple(map(add, known, vector))


class Page:
    """Collects the families of one scrape."""

    def __init__(self, options: MetricsOptions, tops: dict[str, TopSeries]) -> None:
        """`tops` keeps, by the names of families, the choice of their series between scrapes."""
        self._options = options
        self._tops = tops
        self._families: dict[str, Family] = {}
        self._yielding = _Yielding()
        # Built-in labels win over configured ones of the same name, here and in `_labels`.
        self._base = {
            **dict(options.labels),
            "cluster": options.cluster,
            "node_type": "broker",
            "node_id": options.broker_name,
        }

    def family(
        self,
        name: str,
        help_text: str,
        labels: Sequence[str] = (),
        *,
        histogram: bool = False,
        merge: Callable[[float, float], float] = add,
    ) -> Family:
        """A counter when the name ends in `_total`, a histogram when that is asked for, else a
        gauge; `merge` makes one value of those of two series that a page has no room for."""
        kind = "counter" if name.endswith("_total") else "histogram" if histogram else "gauge"
        family = self._families.get(name)
        if family is None:
            family = Family(kind, name, help_text, labels, self._yielding)
            self._families[name] = family
            if name not in self._tops:
                limit, counts = self._options.series_limit, kind != "gauge"
                self._tops[name] = TopSeries(family.labels, limit, counts=counts, merge=merge)
        assert (family.kind, family.labels) == (kind, tuple(labels)), name
        return family

    def show(self, *rows: Row) -> None:
        """Add what each row shows to its family."""
        for name, given, help_text, label, pairs in rows:
            value = given() if callable(given) else given
            labels = [*(own for own, _ in pairs), *([label] if label else [])]
            at = [text for _, text in pairs]
            family = self.family(name, help_text, labels, histogram=isinstance(value, Buckets))
            if isinstance(value, Buckets):
                family.add_buckets(value, *at)
            elif isinstance(value, Mapping):
                for text, number in value.items():
                    family.add(number, *at, text)
            elif value is not None:
                family.add(value, *at)

    def collect(self) -> Iterator[Metric]:
        """Everything as prometheus-client's families, in the order of first use."""
        families = list(self._families.values())
        shown = {
            family.name: self._tops[family.name].choose(family.values, self._yielding.step)
            for family in families
        }
        row = Row(
            "aerobee_metrics_folded_series",
            {name: series.folded for name, series in shown.items() if series.folded},
            "Series beyond the limit of their family, added up as __other__ in this scrape",
            "family",
        )
        self.show(row)
        folded = self._families[row.name]
        shown[folded.name] = Shown(folded.values, {}, 0)
        for family in [*families, folded]:
            if self._options.rocketmq_names or not family.name.startswith(ROCKETMQ_PREFIX):
                yield self._metric(family, shown[family.name])

    def _metric(self, family: Family, shown: Shown) -> Metric:
        from prometheus_client.metrics_core import Metric

        metric = Metric(family.name.removesuffix("_total"), family.help_text, family.kind)
        base = self._base if family.name.startswith(ROCKETMQ_PREFIX) else {}
        # The encoders only iterate; a list of all samples of a large page would be megabytes.
        metric.samples = cast("list[Sample]", _Samples(family, shown, base, self._yielding))
        return metric


class _Samples:
    """The samples of a family, made while they are being iterated over."""

    def __init__(
        self, family: Family, shown: Shown, base: Mapping[str, str], yielding: _Yielding
    ) -> None:
        self._family = family
        self._shown = shown
        self._base = base
        self._yielding = yielding

    def __iter__(self) -> Iterator[Sample]:
        from prometheus_client.samples import Sample

        series = chain(self._shown.own.items(), self._shown.rest.items())
        samples = self._histogram if self._family.bounds else self._plain
        for name, labels, value in samples(series):
            self._yielding.step()
            yield Sample(name, labels, value)

    def _plain(self, series: Iterable[Series]) -> Iterator[tuple[str, dict[str, str], float]]:
        for key, (value,) in series:
            yield self._family.name, self._labels(key), value

    def _histogram(self, series: Iterable[Series]) -> Iterator[tuple[str, dict[str, str], float]]:
        from prometheus_client.utils import floatToGoString

        name = self._family.name
        edges = [*map(floatToGoString, self._family.bounds), "+Inf"]
        for key, (*counts, total) in series:
            labels = self._labels(key)
            steps = list(accumulate(counts))
            for edge, count in zip(edges, steps, strict=True):
                yield f"{name}_bucket", {**labels, "le": edge}, count
            yield f"{name}_count", labels, steps[-1]
            yield f"{name}_sum", labels, total

    def _labels(self, key: Labels) -> dict[str, str]:
        return {**self._base, **dict(zip(self._family.labels, key, strict=True))}


class LoopTurns:
    """For the half of a section that runs on the loop, when it has much to copy: lets the loop turn
    after each millisecond of copying. What it reads may change in between."""

    __slots__ = ("_since",)

    def __init__(self) -> None:
        self._since = time.perf_counter()

    async def pause(self) -> None:
        """Between two entries: go on at once, or at the loop's next turn."""
        if time.perf_counter() - self._since > _PIECE_S:
            await asyncio.sleep(0)
            self._since = time.perf_counter()


#: The half of a section of many series that runs in the worker thread.
Fill: TypeAlias = Callable[[Page], None]
#: A section gives this on the loop.
Section: TypeAlias = Iterable[Row] | Awaitable[Fill]


class Metrics:
    """Answers scrapes from the sections added so far. Built and asked on the loop."""

    def __init__(self, options: MetricsOptions) -> None:
        self._options = options
        self._sections: dict[str, Callable[[], Section]] = {}
        # One thread: pages are rendered one after the other.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="aerobee-metrics")
        self._tops: dict[str, TopSeries] = {}  # that thread's
        self._process: CollectorRegistry | None = None
        # Answers being made, by what the scraper said of their format.
        self._under_way: dict[tuple[str, str], asyncio.Task[Response]] = {}
        self.section_failures: dict[str, int] = {}

    def add(
        self, name: str, section: Callable[P, Section], *args: P.args, **kwargs: P.kwargs
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
        form = (request.headers.get("accept", ""), request.headers.get("accept-encoding", ""))
        making = self._under_way.get(form)
        if making is None and len(self._under_way) >= _MOST_FORMATS:
            return BUSY
        if making is None:
            making = asyncio.get_running_loop().create_task(self._make(*form))
            self._under_way[form] = making
            making.add_done_callback(lambda _made: self._under_way.pop(form))
        # A scraper that gives up must not take the page from the others that wait for it.
        return await asyncio.shield(making)

    async def _make(self, accept: str, packed: str) -> Response:
        fills: dict[str, Fill] = {}
        for name, section in list(self._sections.items()):
            try:
                fills[name] = await _copied(section())
            except Exception:  # noqa: BLE001 - logged there; the other sections go on
                self._failed(name)
            # Each section's copying is a turn of its own.
            await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._render, fills, accept, packed)

    def close(self) -> None:
        """End the worker thread; a scrape under way is not waited for."""
        for making in self._under_way.values():
            making.cancel()
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
        page = Page(self._options, self._tops)
        for name, fill in fills.items():
            try:
                fill(page)
            except Exception:  # noqa: BLE001 - logged there; the other sections go on
                self._failed(name)
        page.show(
            Row(
                "aerobee_metrics_section_failures_total",
                dict(self.section_failures),
                "Scrapes in which a group of families could not be built; see the log",
                "section",
            )
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


async def _copied(given: Section) -> Fill:
    """The work that a section leaves to the worker thread."""
    if isinstance(given, Awaitable):
        return await given
    rows = tuple(given)
    return lambda page: page.show(*rows)


class _Both:
    """A page and the process's own families as one collector, which is all an encoder needs."""

    def __init__(self, page: Page, process: CollectorRegistry) -> None:
        self._page = page
        self._process = process

    def collect(self) -> Iterator[Metric]:
        yield from self._page.collect()
        yield from self._process.collect()
