"""Metric sections about who is connected: producers, consumers, name servers, scrapers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from aerobee.broker.monitoring.broker_metrics import yes_no
from aerobee.broker.monitoring.http import HttpServer
from aerobee.broker.monitoring.metrics import Fill, LoopTurns, Page
from aerobee.broker.tables.clients import ClientTable, ConsumerGroup, Member
from aerobee.nameserver.server import NameServerCounts
from aerobee.protocol.codes import request_name, version_name
from aerobee.protocol.names import is_system_group
from aerobee.remoting.connection import Connection

_PROTOCOL = "remoting"
# Ordinals of released versions; a client may claim any number (protocol/WIRE.md 1.5).
_VERSIONS = range(213, 612)


async def clients(table: ClientTable) -> Fill:
    """Connections of producers, and of consumers by group; a connection counts once in each."""
    turns = LoopTurns()
    producers: dict[Connection, Member] = {}
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


def _software(member: Member) -> tuple[str, str]:
    version = version_name(member.version) if member.version in _VERSIONS else "unknown"
    return member.language.lower(), version.lower()


def _mode(group: ConsumerGroup) -> str:
    return "pull" if group.consume_type == "CONSUME_ACTIVELY" else "push"


async def name_servers(
    registered: Mapping[str, bool], embedded: Callable[[], NameServerCounts] | None
) -> Fill:
    """Where this broker is registered, and what the embedded name server knows."""
    servers = dict(registered)
    counts = embedded() if embedded else None

    def fill(page: Page) -> None:
        page.tally(
            "aerobee_registered",
            "1 when the name server took our last registration",
            "name_server",
            servers,
        )
        if counts is not None:
            _fill_embedded(page, counts)

    return fill


def _fill_embedded(page: Page, counts: NameServerCounts) -> None:
    page.numbers(
        [
            ("aerobee_nameserver_brokers", "Brokers registered here", counts.brokers),
            ("aerobee_nameserver_topics", "Topics with a route here", counts.topics),
        ]
    )
    requests = page.family(
        "aerobee_nameserver_requests_total", "Requests to the name server", ["request_code"]
    )
    for code, count in counts.requests.items():
        requests.add(count, request_name(code))


async def http_port(server: HttpServer) -> Fill:
    """The HTTP port itself."""
    answers = {str(status): count for status, count in sorted(server.requests.items())}
    opened = server.open

    def fill(page: Page) -> None:
        page.numbers(
            [
                ("aerobee_http_connections_open", "Open HTTP connections", opened),
                (
                    "aerobee_http_connections_refused_total",
                    "HTTP connections beyond the limit",
                    server.refused,
                ),
                (
                    "aerobee_http_connections_evicted_total",
                    "HTTP connections closed to make room for a new one",
                    server.evicted,
                ),
            ]
        )
        name = "aerobee_http_answers_total"
        page.tally(name, "Answers of the HTTP port", "status", answers)

    return fill
