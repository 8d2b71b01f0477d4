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
from aerobee.broker.monitoring.broker_metrics import (
    Connections,
    Delays,
    Requests,
    Runtime,
    SimpleMetric,
    SimpleMetrics,
    Traffic,
)
from aerobee.broker.monitoring.client_metrics import Clients, HttpPort, NameServers
from aerobee.broker.monitoring.health import HealthChecks, LoopMonitor
from aerobee.broker.monitoring.http import HttpServer
from aerobee.broker.monitoring.metrics import Metrics, MetricsOptions
from aerobee.broker.monitoring.store_metrics import Deletions, Lag, Store
from aerobee.broker.staging.staging import Staging
from aerobee.broker.stats import BrokerStats
from aerobee.config.model import Settings
from aerobee.nameserver.server import NameServer
from aerobee.protocol.names import is_light
from aerobee.remoting.stats import ServerStats
from aerobee.store.message_store import MessageStore, RecoveryReport

log = logging.getLogger("aerobee.broker.metrics")

_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*", re.ASCII)


def metrics_of_process(
    settings: Settings, stats: BrokerStats, health: HealthChecks, loop: LoopMonitor
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
    metrics.add("store", Store(store, settings.store_path))
    metrics.add(
        "deletion",
        Deletions(
            store.retention,
            (*store.log_directories, store.queue_directory),
            settings.disk_warning_ratio,
        ),
    )
    metrics.add("delays", Delays(core.delays))
    metrics.add("traffic", Traffic(stats, topics.is_system))
    metrics.add("requests", Requests(stats))
    figures = [
        *_figures(settings, core),
        *_recovery(store.recovery),
        *_scrub(store),
        *_staging(core.staging),
    ]
    metrics.add("figures", SimpleMetrics(figures))
    metrics.add("clients", Clients(core.clients))
    metrics.add("lag", Lag(core.offsets, store, stats.pulled, _read_queues(core), topics.is_system))


def add_http(metrics: Metrics, server: HttpServer) -> None:
    """The HTTP port's own counters."""
    metrics.add("http", HttpPort(server))


def add_network(
    metrics: Metrics,
    servers: Mapping[str, ServerStats],
    registered: Mapping[str, bool],
    name_server: NameServer | None,
) -> None:
    """Connections of the listening parts by their names, and the name servers."""
    if name_server is not None:
        servers = {**servers, "nameserver": name_server.stats}
    metrics.add("connections", Connections(servers))
    metrics.add(
        "name_servers",
        NameServers(registered, None if name_server is None else name_server.counts),
    )


def _figures(settings: Settings, core: BrokerCore) -> list[SimpleMetric]:
    return [
        SimpleMetric(
            "rocketmq_broker_permission",
            "Registered permission, 2 write + 4 read",
            lambda: settings.broker_permission,
        ),
        SimpleMetric(
            "rocketmq_topic_number", "Topics, system topics included", core.topics.__len__
        ),
        SimpleMetric("rocketmq_consumer_group_number", "Consumer groups", core.groups.__len__),
        SimpleMetric("aerobee_clients", "Connections that are in some group", core.clients.__len__),
        SimpleMetric("aerobee_held_pulls", "Pulls waiting for a message", core.held.__len__),
        SimpleMetric("aerobee_waiting_acks", "Sends waiting for their sync", core.acks.__len__),
        SimpleMetric(
            "aerobee_flush_timeouts_total",
            "Sends answered before their sync, because it took too long",
            lambda: core.acks.timed_out,
        ),
        SimpleMetric(
            "aerobee_topics_created_on_send_total",
            "Topics made by the first send to them",
            lambda: core.topics.created_on_send,
        ),
        SimpleMetric(
            "aerobee_offsets_refused_total",
            "Committed offsets beyond the end of their queue",
            lambda: core.offsets.refused,
        ),
    ]


def _recovery(report: RecoveryReport) -> list[SimpleMetric]:
    return [
        SimpleMetric(
            "aerobee_recovery_seconds",
            "Time the last start took to recover",
            lambda: report.seconds,
        ),
        SimpleMetric(
            "aerobee_recovery_read_records",
            "Records read by the last recovery",
            lambda: report.records_read,
        ),
        SimpleMetric(
            "aerobee_recovery_torn_bytes",
            "Bytes cut off the end of the log by the last recovery",
            lambda: report.torn_bytes,
        ),
        SimpleMetric(
            "aerobee_recovery_gaps",
            "Damaged places in the log that the last recovery went around",
            lambda: len(report.gaps),
        ),
    ]


def _scrub(store: MessageStore) -> list[SimpleMetric]:
    stats = store.stats
    return [
        SimpleMetric(
            "aerobee_scrub_read_bytes_total",
            "Bytes of the log that the scrub has read",
            lambda: stats.scrub_bytes,
        ),
        SimpleMetric(
            "aerobee_scrub_passes_total",
            "Times the scrub has come to the end of the log",
            lambda: stats.scrub_passes,
        ),
        SimpleMetric(
            "aerobee_scrub_left_bytes",
            "Bytes that the scrub's pass under way has still to read",
            lambda: stats.scrub_left_bytes,
        ),
        SimpleMetric(
            "aerobee_scrub_unchecked_bytes",
            "Bytes of the log not checked since the start, or in a damaged segment",
            lambda: store.checks.unchecked_bytes,
        ),
        SimpleMetric(
            "aerobee_scrub_longest_step_seconds",
            "Processor time of the scrub's longest piece of work without a wait",
            lambda: stats.scrub_steps.max_s,
        ),
        SimpleMetric(
            "aerobee_store_mended_units_total",
            "Wrong consume queue units that were made right from the log",
            lambda: stats.mended_entries,
        ),
    ]


def _staging(staging: Staging) -> list[SimpleMetric]:
    table, publisher = staging.table, staging.publisher
    return [
        SimpleMetric(
            "aerobee_staged_bytes",
            "Bytes of batches from jobs that are not published yet, decided or not",
            lambda: table.staged_bytes,
        ),
        SimpleMetric(
            "aerobee_staged_batches_open",
            "Batches that are decided and not yet published whole",
            lambda: len(table.open),
        ),
        SimpleMetric(
            "aerobee_staged_rows_published_total",
            "Rows of decided batches put into their topics",
            lambda: publisher.published_rows,
        ),
        SimpleMetric(
            "aerobee_staged_rows_lost_total",
            "Rows of decided batches that could not be published; the log names them",
            lambda: publisher.lost_rows,
        ),
    ]


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


def _read_queues(core: BrokerCore) -> Callable[[str, str], int]:
    light = core.settings.lmq_enabled

    def read_queues(group: str, topic: str) -> int:
        if light and is_light(topic):
            return 0  # a series for each of thousands
        config = core.topics.get(topic)
        if config is None or core.groups.find(group) is None:
            return 0
        return config.read_queues

    return read_queues
