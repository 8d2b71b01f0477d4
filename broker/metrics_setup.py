"""Which subjects a broker shows on /metrics: hands each section just the parts it reads.

Sections are added as the parts come into being, so that a scrape during a long recovery already
shows the process, its health and its loop.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping

from aerobee import __version__
from aerobee.broker.core import BrokerCore
from aerobee.broker.health import Health
from aerobee.broker.loop_monitor import LoopMonitor
from aerobee.broker.metrics import Metrics
from aerobee.broker.metrics_broker import Connections, Requests, Runtime, Tables, Traffic
from aerobee.broker.metrics_page import MetricsOptions
from aerobee.broker.metrics_store import Lag, Store
from aerobee.broker.stats import BrokerStats
from aerobee.config.model import Settings
from aerobee.remoting.stats import ServerStats
from aerobee.store.message_store import MessageStore

log = logging.getLogger("aerobee.broker.metrics")

_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*", re.ASCII)


def metrics_of_process(
    settings: Settings, stats: BrokerStats, health: Health, loop: LoopMonitor
) -> Metrics:
    """What is there before the store is: version, start, checks, loop."""
    metrics = Metrics(
        MetricsOptions(
            settings.cluster_name,
            settings.broker_name,
            extra_labels(settings.metrics_label),
            settings.metrics_exporter != "DISABLE",
            settings.metrics_series_per_family,
        )
    )
    metrics.add("runtime", Runtime(__version__, stats.started_ms / 1000, health, loop))
    return metrics


def add_broker(
    metrics: Metrics, settings: Settings, store: MessageStore, core: BrokerCore, stats: BrokerStats
) -> None:
    """What the open store and the tables around it have to show."""
    topics = core.topics
    metrics.add("store", Store(store, settings.store_path, settings.disk_warning_ratio))
    metrics.add("traffic", Traffic(stats, topics.is_system))
    metrics.add("requests", Requests(stats))
    metrics.add(
        "tables",
        Tables(lambda: settings.broker_permission, topics, core.groups, core.held, core.acks),
    )
    metrics.add("lag", Lag(core.offsets, store, _read_queues(core), topics.is_system))


def add_servers(metrics: Metrics, servers: Mapping[str, ServerStats]) -> None:
    """Connections of the listening parts, by the name each gets in label `server`."""
    metrics.add("connections", Connections(servers))


def extra_labels(text: str) -> tuple[tuple[str, str], ...]:
    """Pairs of `k:v,k:v`. One that could not be a label is left out with a warning."""
    labels: dict[str, str] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        name, separator, value = (part.strip() for part in pair.partition(":"))
        if not separator or not _LABEL_NAME.fullmatch(name) or name.startswith("__"):
            log.warning("metrics label left out, it is not name:value label=%r", pair)
        else:
            labels[name] = value
    return tuple(labels.items())


def _read_queues(core: BrokerCore) -> Callable[[str], int]:
    def read_queues(topic: str) -> int:
        config = core.topics.get(topic)
        return 0 if config is None else config.read_queues

    return read_queues
