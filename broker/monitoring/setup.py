"""The subjects that a broker shows on /metrics: hands each section just the owners that it reads.

Sections are added as their owners come into being, so that a scrape during a long recovery already
shows the process, its health and its loop.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping

from aerobee.broker.broker_stats import BrokerStats
from aerobee.broker.cluster.registration.registration import Registrar
from aerobee.broker.core import BrokerCore
from aerobee.broker.monitoring import broker_metrics, network_metrics, store_metrics
from aerobee.broker.monitoring import replication as replication_metrics
from aerobee.broker.monitoring.health_checks import HealthChecks, LoopMonitor
from aerobee.broker.monitoring.http import HttpServer
from aerobee.broker.monitoring.metrics import Fill, Metrics, MetricsOptions
from aerobee.config.model import Settings
from aerobee.config.tls.certificates import ServerCertificates
from aerobee.nameserver.server import NameServer
from aerobee.native.form import CompiledForm
from aerobee.remoting.connection_stats import ServerStats

log = logging.getLogger("aerobee.broker.metrics")

_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*", re.ASCII)


def metrics_of_process(
    settings: Settings,
    stats: BrokerStats,
    health: HealthChecks,
    loop: LoopMonitor,
    form: CompiledForm | None,
) -> Metrics:
    """Shows the values known before the store is open: version and form, start, checks, loop."""
    metrics = Metrics(
        MetricsOptions(
            settings.cluster_name,
            settings.broker_name,
            extra_labels(settings.metrics_label),
            settings.metrics_exporter != "DISABLE",
            settings.metrics_series_per_family,
        )
    )
    metrics.add("runtime", broker_metrics.runtime, form, stats, health, loop)
    return metrics


def add_broker(metrics: Metrics, core: BrokerCore) -> None:
    """Shows the open store and the tables around it."""
    settings, store, stats, topics = core.settings, core.store, core.stats, core.topics
    usage = store_metrics.DiskUsage(settings.store_path)
    metrics.add("store", store_metrics.marks_and_times, store, usage)
    metrics.add("recovery", store_metrics.recovery, store.recovery)
    metrics.add("scrub", store_metrics.scrub, store)
    metrics.add("deletion", store_metrics.deletions, store, settings)
    metrics.add("tables", broker_metrics.tables, settings, core)
    metrics.add("delays", broker_metrics.delays, core.delays)
    metrics.add("timer", broker_metrics.timer, core.timer)
    metrics.add("transactions", broker_metrics.transactions, core.transactions)
    metrics.add("staging", broker_metrics.staging, core.staging)
    metrics.add("second step", broker_metrics.second_step, core.second_step, core.deleted_topics)
    metrics.add("traffic", broker_metrics.traffic, stats, topics)
    metrics.add("requests", broker_metrics.requests, stats)
    metrics.add("clients", network_metrics.clients, core.clients)
    metrics.add(
        "replication", replication_metrics.replication, settings, core.role, core.replication
    )
    metrics.add("lag", _lag, core)
    metrics.add("stuck queues", _stuck, core)


async def _lag(core: BrokerCore) -> Fill:
    # A broker that nobody scrapes does without this module.
    from aerobee.broker.monitoring.lag_metrics import lag

    return await lag(core.lag, core.store, core.topics, core.settings.lmq_enabled)


async def _stuck(core: BrokerCore) -> Fill:
    from aerobee.broker.monitoring.lag_metrics import stuck

    return await stuck(core.stuck, core.topics)


def add_network(
    metrics: Metrics,
    core: BrokerCore,
    *,
    servers: Mapping[str, ServerStats],
    registrar: Registrar,
    name_server: NameServer | None,
    http: HttpServer | None,
    certificates: ServerCertificates | None,
) -> None:
    """Shows the ports for clients and administrators (`servers`, by their names), those of the name
    server and of HTTP, and where the broker is registered."""
    limited = core.settings, core, tuple(servers.values()), http
    metrics.add("limits", broker_metrics.limits, *limited)
    asking = {"broker": core.access}
    if name_server is not None:
        servers = {**servers, **name_server.stats_of_ports}
        asking["nameserver"] = name_server.access
    encrypted = {name: stats.tls for name, stats in servers.items()}
    if core.replication is not None:
        encrypted["slaves"] = core.replication.port.stats.tls
    if http is not None:
        encrypted["http"] = http.tls
    services = {name: service for name, service in asking.items() if service is not None}
    metrics.add("connections", network_metrics.connections, servers)
    metrics.add("tls", network_metrics.tls, encrypted)
    metrics.add("certificate", network_metrics.certificate, certificates)
    audited = {"broker": core, "nameserver": name_server}
    recorders = {name: one.recorder for name, one in audited.items() if one is not None}
    metrics.add("audit", network_metrics.audit, recorders)
    metrics.add("access", network_metrics.access, services)
    metrics.add("name_servers", network_metrics.name_servers, registrar, name_server)


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
