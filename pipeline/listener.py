"""Streaming queries in Prometheus: rows, batches, and how far each lies behind its topics.

    from aerobee.pipeline.listener import StreamMetrics

    spark.streams.addListener(StreamMetrics.serve(port=9466))

A driver-side listener of Spark's own progress reports: it asks no broker anything. A source of ours
reports values that give the lag: its end of the queues (`latestOffset`, PySpark 4.2 and later), how
far the query has got (`endOffset`), and when the last message read of each queue was stored
(`source/lives.py`). Queries over other sources are counted, without a lag.

A query goes by its name, else by its id: name the queries that are watched. When a query has ended,
its series go, except the counter of its failures.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, Self

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, start_http_server
from pyspark.sql.streaming import StreamingQueryListener

from aerobee.pipeline.brokers.offsets import from_json, position_from_json


class StreamMetrics(StreamingQueryListener):
    """Keeps metrics of all queries of one Spark session, in a registry that somebody serves."""

    def __init__(
        self, registry: CollectorRegistry = REGISTRY, clock_s: Callable[[], float] = time.time
    ) -> None:
        """`clock_s` gives seconds since 1970."""
        self._clock_s = clock_s
        self._names: dict[str, str] = {}
        # The queues' labels of each query, to be taken back with it.
        self._queues: dict[str, set[tuple[str, str, str]]] = {}

        def gauge(name: str, about: str, *labels: str) -> Gauge:
            return Gauge(f"aerobee_stream_{name}", about, ["query", *labels], registry=registry)

        def counter(name: str, about: str) -> Counter:
            return Counter(f"aerobee_stream_{name}", about, ["query"], registry=registry)

        self._rows = counter("rows", "Rows read by batches that are done")
        self._batches = counter("batches", "Batches that are done, those without rows too")
        self._failures = counter("failures", "Times the query has ended by an error")
        self._running = gauge("running", "1 while the query runs")
        self._batch_s = gauge("batch_seconds", "How long the last batch with rows has taken")
        self._progress_at = gauge(
            "last_progress_timestamp_seconds", "Time of Spark's last report on it"
        )
        queue = ("topic", "broker", "queue")
        self._lag = gauge("lag_messages", "Messages that are there and not read yet", *queue)
        self._lag_s = gauge(
            "lag_seconds",
            "Age of the last message read while there are newer messages, else 0",
            *queue,
        )

    @classmethod
    def serve(cls, port: int, address: str = "127.0.0.1") -> Self:
        """A listener whose metrics are served at http://ADDRESS:PORT/metrics. Raises OSError."""
        registry = CollectorRegistry()
        start_http_server(port, address, registry)
        return cls(registry)

    def onQueryStarted(self, event: Any) -> None:
        """Spark calls this before the query's start returns."""
        name = self._names[str(event.runId)] = event.name or str(event.id)
        self._running.labels(name).set(1)
        self._failures.labels(name)

    def onQueryProgress(self, event: Any) -> None:
        """A batch is done, or no batch came for a while."""
        progress = event.progress
        name = progress.name or str(progress.id)
        now = self._clock_s()
        self._progress_at.labels(name).set(now)
        rows = progress.numInputRows
        self._rows.labels(name).inc(rows)
        self._batches.labels(name).inc()
        if rows:
            self._batch_s.labels(name).set(progress.batchDuration / 1000)
        for source in progress.sources:
            self._of_source(name, source, now)

    def onQueryIdle(self, event: Any) -> None:
        """There was nothing new for a while: nothing has changed but the time."""
        name = self._names.get(str(event.runId))
        if name is not None:
            self._progress_at.labels(name).set(self._clock_s())

    def onQueryTerminated(self, event: Any) -> None:
        """The query has ended."""
        name = self._names.pop(str(event.runId), None)
        if name is None:
            return
        if event.exception:
            self._failures.labels(name).inc()
        self._running.labels(name).set(0)
        for labels in self._queues.pop(name, ()):
            self._lag.remove(name, *labels)
            self._lag_s.remove(name, *labels)

    def _of_source(self, name: str, source: Any, now: float) -> None:
        try:
            ends = from_json(_parsed(source.latestOffset))
            position = position_from_json(_parsed(source.endOffset))
        except ValueError:
            return  # offsets of another source, or none
        known = self._queues.setdefault(name, set())
        for queue, end in ends.items():
            labels = (queue.topic, queue.broker, str(queue.number))
            known.add(labels)
            lag = max(0, end - position.offsets.get(queue, 0))
            mark = position.marks.get(queue)
            self._lag.labels(name, *labels).set(lag)
            age = 0.0 if mark is None or not lag else max(0.0, now - mark.store_ms / 1000)
            self._lag_s.labels(name, *labels).set(age)


def _parsed(offset: Any) -> Any:
    """An offset as a report holds it: JSON, "null" or nothing where Spark does not know it."""
    return json.loads(offset) if isinstance(offset, str) and offset else offset
