"""Metric sections about the network: ports, TLS, accounts, clients, name servers, scrapers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from aerobee.broker.cluster.registration.registration import Registrar
from aerobee.broker.monitoring.broker_metrics import words, yes_no
from aerobee.broker.monitoring.http import HttpServer
from aerobee.broker.monitoring.metrics import Fill, LoopTurns, Page, Row, under
from aerobee.broker.tables.clients import ClientTable, ConsumerGroup, GroupMember
from aerobee.config.tls.certificates import ServerCertificates
from aerobee.nameserver.server import NameServer
from aerobee.protocol.codes import request_name, version_name
from aerobee.protocol.names import is_system_group
from aerobee.remoting.connection_stats import ServerStats, TlsFailure, TlsStats
from aerobee.remoting.connections.connection import Connection

# With it comes the library for YAML.
if TYPE_CHECKING:
    from aerobee.access.account_service import AccessService
    from aerobee.access.audit.recorder import Recorder

# Those of access/audit/recorder.py, which is imported with the first event.
_OUTCOMES = ("done", "refused", "failed")
_PROTOCOL = "remoting"
# Ordinals of released versions; a client may claim any number (protocol/WIRE.md 1.5).
_VERSIONS = range(213, 612)


def connections(servers: Mapping[str, ServerStats]) -> Iterator[Row]:
    """Connections and bytes of each remoting server, by its name."""
    for server, stats in servers.items():
        refused = {"all": stats.refused_total, "address": stats.refused_address}
        rows = (
            Row("aerobee_connections_open", stats.open, "Open connections"),
            Row("aerobee_connections_accepted_total", stats.accepted, "Connections accepted"),
            Row("aerobee_connections_refused_total", refused,
                "Connections turned away at a limit", "limit"),
            Row("aerobee_connections_closed_total", words(stats.closed),
                "Connections ended", "reason"),
            Row("aerobee_accept_pauses_total", stats.accept_errors,
                "Times accepting paused for want of descriptors"),
            Row("aerobee_bad_frames_total", stats.bad_frames, "Frames that broke the protocol"),
            Row("aerobee_commands_total", stats.commands_in, "Commands received"),
            Row("aerobee_network_receive_bytes_total", stats.bytes_in, "Bytes received"),
            Row("aerobee_network_transmit_bytes_total", stats.bytes_out, "Bytes sent"),
            Row("aerobee_reader_pauses_total", stats.paused,
                "Times reading paused until a peer took its output"),
            Row("aerobee_read_buffer_bytes", stats.inbound_bytes,
                "Bytes of frames not yet whole"),
            Row("aerobee_write_buffer_bytes", stats.outbound_bytes,
                "Bytes waiting for slow readers"),
        )  # fmt: skip
        yield from under(rows, server=server)


def tls(ports: Mapping[str, TlsStats]) -> Iterator[Row]:
    """Handshakes of each port that may take TLS, by its name."""
    for server, stats in ports.items():
        # Each reason from the start on, so that its first is an increase.
        failed = {str(reason): stats.failed[reason] for reason in TlsFailure}
        rows = (
            Row("aerobee_tls_handshakes_total", stats.handshakes, "TLS connections taken"),
            Row("aerobee_connections_arriving", stats.arriving,
                "Sockets that have not shown yet whether they are TLS, or are about it"),
            Row("aerobee_tls_failures_total", words(failed),
                "Connections not taken because of TLS, or for want of it", "reason"),
        )  # fmt: skip
        yield from under(rows, server=server)


def certificate(certificates: ServerCertificates | None) -> tuple[Row, ...]:
    """The end of the ports' certificate; no value without one, or for one made at the start."""
    end = None if certificates is None else certificates.expires
    return (
        Row("aerobee_tls_certificate_expiration_timestamp_seconds",
            None if end is None else end.timestamp(),
            "When the certificate of the ports ends, in seconds of the epoch"),
    )  # fmt: skip


def access(services: Mapping[str, AccessService]) -> Iterator[Row]:
    """Requests that were refused for want of a right, by the server that asks for accounts."""
    refused = {server: words(service.control.refused) for server, service in services.items()}
    # Without a server that asks the family is there, and has no series.
    for server, reasons in (refused or {"": {}}).items():
        row = Row("aerobee_access_refused_total", reasons,
                  "Requests refused by access control, by why", "reason")  # fmt: skip
        yield from under([row], server=server)


def audit(recorders: Mapping[str, Callable[[], Recorder | None]]) -> Iterator[Row]:
    """Changing requests that had an event, by the server that keeps it."""
    for server, recorder_of in recorders.items():
        recorder = recorder_of()
        # Each outcome from the start on, so that its first is an increase.
        counts = dict.fromkeys(_OUTCOMES, 0) if recorder is None else dict(recorder.counts)
        row = Row("aerobee_audit_events_total", words(counts),
                  "Changes that were asked for, by how they ended", "outcome")  # fmt: skip
        yield from under([row], server=server)


async def clients(table: ClientTable) -> Fill:
    """Connections of producers, and of consumers by group; a connection counts once in each."""
    turns = LoopTurns()
    producers: dict[Connection, GroupMember] = {}
    for _, members in list(table.producer_groups()):
        await turns.pause()
        for member in members:
            producers[member.connection] = member
    by_producer: Counter[tuple[str, str]] = Counter()
    for member in producers.values():
        await turns.pause()
        by_producer[_software(member)] += 1
    by_consumer: Counter[tuple[str, str, str, str]] = Counter()
    for group in table.consumer_groups():
        for member in list(group.members.values()):
            await turns.pause()
            by_consumer[group.name, *_software(member), _mode(group)] += 1

    def fill(page: Page) -> None:
        connections = page.family(
            "rocketmq_producer_connections",
            "Connections of producers",
            ["language", "version", "protocol_type"],
        )
        for (language, version), count in by_producer.items():
            connections.add(count, language, version, _PROTOCOL)
        connections = page.family(
            "rocketmq_consumer_connections",
            "Connections of consumers",
            ["consumer_group", "language", "version", "consume_mode", "protocol_type", "is_system"],
        )
        for (group, language, version, mode), count in by_consumer.items():
            system = is_system_group(group)
            connections.add(count, group, language, version, mode, _PROTOCOL, yes_no(system))

    return fill


def _software(member: GroupMember) -> tuple[str, str]:
    version = version_name(member.version) if member.version in _VERSIONS else "unknown"
    return member.language.lower(), version.lower()


def _mode(group: ConsumerGroup) -> str:
    return "pull" if group.consume_type == "CONSUME_ACTIVELY" else "push"


def name_servers(registrar: Registrar, embedded: NameServer | None) -> Iterator[Row]:
    """Where this broker is registered, and what the embedded name server knows."""
    yield Row("aerobee_registered", dict(registrar.registered),
              "1 when the name server took our last registration", "name_server")  # fmt: skip
    if embedded is None:
        return
    counts = embedded.counts()
    requests: Counter[str] = Counter()
    for code, count in counts.requests.items():
        requests[request_name(code)] += count
    yield from (
        Row("aerobee_nameserver_brokers", counts.brokers, "Brokers registered here"),
        Row("aerobee_nameserver_topics", counts.topics, "Topics with a route here"),
        Row("aerobee_nameserver_requests_total", requests,
            "Requests to the name server", "request_code"),
    )  # fmt: skip


def http_port(server: HttpServer) -> tuple[Row, ...]:
    """The HTTP port itself."""
    answers = {str(status): count for status, count in sorted(server.requests.items())}
    return (
        Row("aerobee_http_connections_open", server.open, "Open HTTP connections"),
        Row("aerobee_http_connections_refused_total", server.refused,
            "HTTP connections beyond the limit"),
        Row("aerobee_http_connections_evicted_total", server.evicted,
            "HTTP connections closed to make room for a new one"),
        Row("aerobee_http_answers_total", answers, "Answers of the HTTP port", "status"),
    )  # fmt: skip
