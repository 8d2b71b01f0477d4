"""The status of this broker, put together from the parts that know (BROKER_STATUS, 31030)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from aerobee import __version__
from aerobee.broker.broker_stats import BrokerStats
from aerobee.broker.cluster.registration.registration import Registrar
from aerobee.broker.core import BrokerCore
from aerobee.broker.monitoring.broker_metrics import limits_used
from aerobee.broker.monitoring.health_checks import HealthChecks, Verdict
from aerobee.broker.monitoring.http import HttpServer
from aerobee.broker.monitoring.overview.growth import (
    MINUTE_S,
    DiskRoom,
    RecentGrowth,
    disk_room,
    full_in_s,
)
from aerobee.broker.monitoring.overview.refusals import Refusals
from aerobee.config.model import BY_NAME, Settings
from aerobee.protocol.bodies.broker_status import (
    BrokerStatus,
    Check,
    Disk,
    LimitUse,
    NameServerLink,
    Rates,
    RefusedKind,
    TopicHere,
)
from aerobee.remoting.listening.server import RemotingServer

# Kinds of refusals that an answer lists; the others are counted together.
_REFUSALS_LISTED: Final = 100


class Parts(NamedTuple):
    """The parts of a running broker that know its status."""

    core: BrokerCore
    health: HealthChecks
    stats: BrokerStats
    growth: RecentGrowth
    registrar: Registrar
    #: The ports for clients and administrators, by their names.
    servers: Mapping[str, RemotingServer]
    http: HttpServer | None


def network_bytes(servers: Mapping[str, RemotingServer]) -> tuple[int, int]:
    """The bytes that these ports have received and sent."""
    stats = [server.stats for server in servers.values()]
    return sum(one.bytes_in for one in stats), sum(one.bytes_out for one in stats)


def broker_status(parts: Parts, topic: str | None = None) -> BrokerStatus:
    """The status now, of a topic as well if one is named."""
    core, settings = parts.core, parts.core.settings
    verdicts = parts.health.run()
    refusals = parts.stats.refusals
    found = refusals.last_hour() if isinstance(refusals, Refusals) else []
    return BrokerStatus(
        broker=settings.broker_name,
        cluster=settings.cluster_name,
        broker_id=settings.broker_id,
        role=core.role.name,
        version=__version__,
        form="plain" if core.compiled is None else "compiled",
        started_ms=parts.stats.started_ms,
        address=core.identity.endpoint,
        permission=settings.broker_permission,
        ready=all(one.ok for one in verdicts),
        checks=[_check(one) for one in verdicts],
        rates=_rates(parts),
        connections={name: server.open for name, server in parts.servers.items()},
        disk=_disk(parts),
        refusals=[
            RefusedKind(
                cause=one.text,
                response_code=one.response_code,
                request_code=one.request_code,
                peer=one.host,
                count=one.times,
                last_ms=round(one.last_s * 1000),
            )
            for one in found[:_REFUSALS_LISTED]
        ],
        refusals_left_out=sum(one.times for one in found[_REFUSALS_LISTED:]),
        limits=_limits(parts, settings),
        name_servers=[
            NameServerLink(address=name, registered=is_in, error=parts.registrar.errors.get(name))
            for name, is_in in parts.registrar.registered.items()
        ],
        topic=None if topic is None else _topic(core, topic),
    )


def _check(verdict: Verdict) -> Check:
    return Check(
        name=verdict.name,
        reason=verdict.reason,
        remedy=verdict.remedy,
        since_ms=round(verdict.since * 1000),
        note=verdict.note,
    )


def _rates(parts: Parts) -> Rates:
    messages = parts.core.store.stats_service.rates()
    counts = parts.core.store.written, *network_bytes(parts.servers)
    growth = parts.growth.rates(*counts, span_s=MINUTE_S)
    # The second is that of the last minute.
    return Rates(
        messages_in=messages.put[1],
        messages_out=messages.get_transferred[1],
        received_bytes=None if growth is None else growth.received,
        sent_bytes=None if growth is None else growth.sent,
    )


def _disk(parts: Parts) -> Disk:
    store, settings = parts.core.store, parts.core.settings
    room: DiskRoom | None = disk_room(store.log_directories, settings.disk_warning_ratio)
    growth = parts.growth.rates(store.written, *network_bytes(parts.servers))
    rate = None if growth is None else growth.written
    return Disk(
        used_ratio=None if room is None else room.used_ratio,
        refused_above_ratio=settings.disk_warning_ratio,
        room_bytes=None if room is None else room.room_bytes,
        growth_bytes_per_s=rate,
        full_in_s=full_in_s(room, rate),
    )


def _limits(parts: Parts, settings: Settings) -> list[LimitUse]:
    """All limits whose use is counted, the fullest first."""
    servers = [server.stats for server in parts.servers.values()]
    used = limits_used(parts.core, servers, parts.http)
    found = [
        LimitUse(name=BY_NAME[name].full_key, value=value, bound=_bound(parts, settings, name))
        for name, value in used.items()
    ]
    return sorted(found, key=lambda one: (-one.value / one.bound if one.bound else 0, one.name))


def _bound(parts: Parts, settings: Settings, name: str) -> float:
    if name == "connections":
        # There may be room for fewer than configured (open files).
        return min(server.limits.connections for server in parts.servers.values())
    bound: float = getattr(settings, name)
    return bound


def _topic(core: BrokerCore, name: str) -> TopicHere:
    there = core.topics.get(name)
    return TopicHere(
        name=name,
        exists=there is not None,
        is_system=core.topics.is_system(name),
        was_deleted=core.deleted_topics.offset_of(name) is not None,
        may_create=core.settings.auto_create_topic and not core.role.is_slave,
        perm=None if there is None else there.perm,
        read_queues=None if there is None else there.read_queues,
        write_queues=None if there is None else there.write_queues,
    )
