"""The /metrics page: families built when somebody scrapes, from the broker's plain counters.

A scrape has two halves. On the loop each section copies what only the loop may touch (tables, the
store's queues) and returns a function; in one worker thread these functions fill a `Page`, and
prometheus-client renders it in the format the scraper asked for. So the loop is held for the
copying alone, and a slow scraper or a large page holds nobody. Plain ints of long-lived counter
objects are read by the thread directly: each is one whole value under the interpreter's lock.

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
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from aerobee.broker.monitoring.families import Fill, MetricsOptions, Page, Section
from aerobee.broker.monitoring.http import Request, Response

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import CollectorRegistry

log = logging.getLogger("aerobee.broker.metrics")

# Smaller pages are sent faster than they are packed.
_GZIP_FROM_BYTES = 8192


class Metrics:
    """Answers scrapes from the sections added so far. Built and asked on the loop."""

    def __init__(self, options: MetricsOptions) -> None:
        self._options = options
        self._sections: dict[str, Section] = {}
        # One thread: scrapes that come together are rendered one after the other.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="aerobee-metrics")
        self._process: CollectorRegistry | None = None
        self.section_failures: dict[str, int] = {}

    def add(self, name: str, section: Section) -> None:
        """Show one more subject; the daemon adds each as soon as its parts exist."""
        assert name not in self._sections, f"section {name} added twice"
        self._sections[name] = section
        self.section_failures[name] = 0

    async def route(self, request: Request) -> Response:
        """The /metrics route."""
        fills: dict[str, Fill] = {}
        for name, section in list(self._sections.items()):
            try:
                fills[name] = await section.take()
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
        failures = page.counter(
            "aerobee_metrics_section_failures_total",
            "Scrapes in which a group of families could not be built; see the log",
            ["section"],
        )
        for name, count in list(self.section_failures.items()):
            failures.add(count, name)
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
