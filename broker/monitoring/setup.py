"""Which subjects a broker shows on /metrics: hands each section just the parts it reads.

Sections are added as the parts come into being, so that a scrape during a long recovery already
shows the process, its health and its loop.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial

from aerobee import __version__
from aerobee.access.control import AccessControl
from aerobee.broker.core import BrokerCore
from aerobee.broker.delay.timer import TimerService
from aerobee.broker.monitoring import broker_metrics, client_metrics, store_metrics
from aerobee.broker.monitoring.health import HealthChecks, LoopMonitor
from aerobee.broker.monitoring.http import HttpServer
from aerobee.broker.monitoring.metrics import Metrics, MetricsOptions, Number
from aerobee.broker.staging.staging import Staging
from aerobee.broker.staging.table import FINISHED_SHARE, STAGES_SHARE
from aerobee.broker.stats import BrokerStats
from aerobee.config.model import Settings
from aerobee.nameserver.server import NameServer
from aerobee.native.form import CompiledForm, form_name
from aerobee.protocol.names import is_light
from aerobee.remoting.stats import ServerStats
from aerobee.store.message_store import MessageStore
from aerobee.store.recovery.report import RecoveryReport

log = logging.getLogger("aerobee.broker.metrics")

_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*", re.ASCII)


def metrics_of_process(
    settings: Settings,
    stats: BrokerStats,
    health: HealthChecks,
    loop: LoopMonitor,
    form: CompiledForm | None,
) -> Metrics:
    """What is there before the store is: version, form of the hot path, start, checks, loop."""
    metrics = Metrics(
        MetricsOptions(
            settings.cluster_name,
            settings.broker_name,
            extra_labels(settings.metrics_label),
            settings.metrics_exporter != "DISABLE",
            settings.metrics_series_per_family,
        )
    )
    started_s = stats.started_ms / 1000
    build = (__version__, form_name(form))
    metrics.add("runtime", broker_metrics.runtime, *build, started_s, health, loop)
    return metrics


def add_broker(
    metrics: Metrics, settings: Settings, store: MessageStore, core: BrokerCore, stats: BrokerStats
) -> None:
    """What the open store and the tables around it have to show."""
    is_system = core.topics.is_system
    usage = store_metrics.DiskUsage(settings.store_path)
    metrics.add("store", store_metrics.marks_and_times, store, usage)
    metrics.add(
        "deletion",
        store_metrics.deletions,
        store.retention,
        (*store.log_directories, store.queue_directory),
        settings.disk_warning_ratio,
    )
    metrics.add("delays", broker_metrics.delays, core.delays)
    metrics.add("transactions", broker_metrics.transactions, core.transactions)
    metrics.add("second step", broker_metrics.second_step, core.second_step, core.deleted_topics)
    metrics.add("traffic", broker_metrics.traffic, stats, is_system)
    metrics.add("requests", broker_metrics.requests, stats)
    metrics.add(
        "figures",
        broker_metrics.numbers,
        partial(_tables, settings, core),
        partial(_recovery, store.recovery),
        partial(_scrub, store),
        partial(_staging, core.staging),
        partial(_timer, core.timer),
    )
    metrics.add("clients", client_metrics.clients, core.clients)
    is_shown = partial(_is_lag_shown, settings.lmq_enabled)
    metrics.add("lag", store_metrics.lag, core.lag, store, is_shown, is_system)


def add_http(metrics: Metrics, server: HttpServer) -> None:
    """The HTTP port's own counters."""
    metrics.add("http", client_metrics.http_port, server)


def add_network(
    metrics: Metrics,
    servers: Mapping[str, ServerStats],
    registered: Mapping[str, bool],
    core: BrokerCore,
    name_server: NameServer | None,
    http: HttpServer | None,
    certificate_ends: Callable[[], datetime | None],
) -> None:
    """Connections of the listening parts by their names, their TLS, requests that they refused for
    want of a right, and the name servers."""
    if name_server is not None:
        servers = {**servers, **name_server.stats_of_ports}
    metrics.add("connections", broker_metrics.connections, servers)
    encrypted = {name: stats.tls for name, stats in servers.items()}
    if http is not None:
        encrypted["http"] = http.tls
    metrics.add("tls", broker_metrics.tls, encrypted)
    metrics.add("certificate", broker_metrics.certificate, certificate_ends)
    metrics.add("access", broker_metrics.access, _controls(core, name_server))
    counts = None if name_server is None else name_server.counts
    metrics.add("name_servers", client_metrics.name_servers, registered, counts)


def _controls(core: BrokerCore, name_server: NameServer | None) -> dict[str, AccessControl]:
    of_name_server = None if name_server is None else name_server.access
    services = {"broker": core.access, "nameserver": of_name_server}
    return {name: service.control for name, service in services.items() if service is not None}


def add_limits(
    metrics: Metrics,
    settings: Callable[[], Settings],
    core: BrokerCore,
    servers: Sequence[ServerStats],
    http: HttpServer | None,
) -> None:
    """How near each limit is. `servers` are those of the client ports, of which the fuller counts;
    `settings` gives what holds now."""
    staged = core.staging.table
    used: dict[str, Callable[[], float]] = {
        "connections": lambda: max(stats.open + stats.tls.arriving for stats in servers),
        "inbound_bytes": lambda: max(stats.inbound_bytes for stats in servers),
        "outbound_bytes": lambda: max(stats.outbound_bytes for stats in servers),
        "held_pulls": lambda: len(core.held),
        "held_pull_bytes": lambda: core.held.bytes,
        "client_bytes": lambda: core.clients.bytes,
        # Chunks are refused at a smaller share than intents.
        "stage_state_bytes": lambda: max(
            staged.bytes / STAGES_SHARE, staged.finished.bytes / FINISHED_SHARE
        ),
        "client_calls": lambda: max(len(core.client_calls), core.client_calls.requests),
        "pending_transactions": lambda: core.transactions.pending,
        "sql_filter_bytes": lambda: max(core.filters.bytes, core.expressions.bytes),
        "max_topics": lambda: len(core.topics),
        "max_groups": lambda: len(core.groups),
        "max_offsets": lambda: core.offsets.count(),
        "max_start_offsets": lambda: core.offsets.starts,
    }
    if http is not None:
        used["http_connections"] = lambda: http.open
    metrics.add("limits", broker_metrics.limits, settings, used, core.topics)


def _tables(settings: Settings, core: BrokerCore) -> list[Number]:
    return [
        (
            "rocketmq_broker_permission",
            "Registered permission, 2 write + 4 read",
            settings.broker_permission,
        ),
        ("rocketmq_topic_number", "Topics, system topics included", len(core.topics)),
        ("rocketmq_consumer_group_number", "Consumer groups", len(core.groups)),
        ("aerobee_clients", "Connections that are in some group", len(core.clients)),
        ("aerobee_held_pulls", "Pulls waiting for a message", len(core.held)),
        ("aerobee_filters", "SQL92 filters of consumer groups", len(core.filters)),
        ("aerobee_waiting_acks", "Sends waiting for their sync", len(core.answers.sends)),
        (
            "aerobee_client_calls_waiting",
            "Questions to clients that wait for their answers",
            len(core.client_calls),
        ),
        (
            "aerobee_flush_timeouts_total",
            "Sends answered before their sync, because it took too long",
            core.answers.sends.timed_out,
        ),
        (
            "aerobee_topics_created_on_send_total",
            "Topics made by the first send to them",
            core.topics.created_on_send,
        ),
        (
            "aerobee_offsets_refused_total",
            "Committed offsets beyond the end of their queue, of none, or beyond the limits",
            core.offsets.refused,
        ),
    ]


def _recovery(report: RecoveryReport) -> list[Number]:
    return [
        ("aerobee_recovery_seconds", "Time the last start took to recover", report.seconds),
        (
            "aerobee_recovery_read_records",
            "Records read by the last recovery",
            report.records_read,
        ),
        (
            "aerobee_recovery_torn_bytes",
            "Bytes cut off the end of the log by the last recovery",
            report.torn_bytes,
        ),
        (
            "aerobee_recovery_gaps",
            "Damaged places in the log that the last recovery went around",
            len(report.gaps),
        ),
    ]


def _scrub(store: MessageStore) -> list[Number]:
    stats = store.stats
    return [
        (
            "aerobee_scrub_read_bytes_total",
            "Bytes of the log that the scrub has read",
            stats.scrub_bytes,
        ),
        (
            "aerobee_scrub_passes_total",
            "Times the scrub has come to the end of the log",
            stats.scrub_passes,
        ),
        (
            "aerobee_scrub_left_bytes",
            "Bytes that the scrub's pass under way has still to read",
            stats.scrub_left_bytes,
        ),
        (
            "aerobee_scrub_unchecked_bytes",
            "Bytes of the log not checked since the start, or in a damaged segment",
            store.unchecked_bytes,
        ),
        (
            "aerobee_scrub_longest_step_seconds",
            "Processor time of the scrub's longest piece of work without a wait",
            stats.scrub_steps.max_s,
        ),
        (
            "aerobee_store_mended_units_total",
            "Wrong consume queue entries that were made right from the log",
            stats.repaired_entries,
        ),
        (
            "aerobee_store_lookup_bytes_total",
            "Bytes of the log that reads looked through for messages of wrong queue entries",
            stats.lookup_bytes,
        ),
        (
            "aerobee_filter_bit_maps_total",
            "Messages that were dispatched with a bit map of filters",
            stats.bit_maps_made,
        ),
        (
            "aerobee_filter_bit_maps_left_out_total",
            "Messages without a bit map, because it would have taken too long",
            stats.bit_maps_left_out,
        ),
        (
            "aerobee_filter_bit_map_misses_total",
            "Messages that pulls passed over because of their bit map",
            stats.bit_map_misses,
        ),
    ]


def _staging(staging: Staging) -> list[Number]:
    table, publisher = staging.table, staging.publisher
    return [
        (
            "aerobee_staged_bytes",
            "Bytes of batches from jobs that are not published yet, decided or not",
            table.staged_bytes,
        ),
        (
            "aerobee_staged_batches_open",
            "Batches that are decided and not yet published whole",
            len(table.open),
        ),
        (
            "aerobee_staged_rows_published_total",
            "Rows of decided batches put into their topics",
            publisher.published_rows,
        ),
        (
            "aerobee_staged_rows_lost_total",
            "Rows of decided batches that could not be published; the log names them",
            publisher.lost_rows,
        ),
    ]


def _timer(timer: TimerService) -> list[Number]:
    counts = timer.counts
    return [
        (
            "aerobee_timer_messages",
            "Records that wait for a time of their own, those of recalled messages among them",
            timer.pending(),
        ),
        (
            "aerobee_timer_recalls",
            "Recalls of messages whose time comes in this hour or later",
            timer.recalls(),
        ),
        (
            "aerobee_timer_late_seconds",
            "For how long the first of them has been due",
            timer.late_s(),
        ),
        (
            "aerobee_timer_delivered_messages_total",
            "Messages delivered at a time of their own",
            counts.delivered,
        ),
        (
            "aerobee_timer_rolled_messages_total",
            "Records stored again because their time is further ahead than they are kept",
            counts.rolled,
        ),
        (
            "aerobee_timer_recalled_messages_total",
            "Messages not delivered because they were recalled",
            counts.recalled,
        ),
        (
            "aerobee_timer_lost_messages_total",
            "Records that were gone or damaged when their time came; the log names them",
            counts.lost,
        ),
        (
            "aerobee_timer_passed_over_messages_total",
            "Messages that can never be stored where they go; the log names them",
            counts.passed_over,
        ),
        (
            "aerobee_timer_put_failures_total",
            "Times a due message could not be stored and was tried again",
            counts.put_failures,
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


def _is_lag_shown(has_light_queues: bool, topic: str) -> bool:
    return not (has_light_queues and is_light(topic))  # a series for each of thousands
