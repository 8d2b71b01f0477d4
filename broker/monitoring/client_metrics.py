"""Metric sections about who is connected: producers, consumers, name servers, scrapers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from aerobee.broker.monitoring.broker_metrics import yes_no
from aerobee.broker.monitoring.http import HttpServer
from aerobee.broker.monitoring.metrics import Fill, Page
from aerobee.broker.tables.clients import ClientTable, ConsumerGroup, Member
from aerobee.broker.tables.groups import is_system_group
from aerobee.nameserver.server import NameServerCounts
from aerobee.protocol.codes import request_name, version_name

_PROTOCOL = "remoting"
# Ordinals of released versions; a client may claim any number (protocol/WIRE.md 1.5).
_VERSIONS = range(213, 612)


class Clients:
    """Connections of producers, and of consumers by group; a connection counts once in each."""

    def __init__(self, clients: ClientTable) -> None:
        self._clients = clients

    async def snapshot(self) -> Fill:
        producers = {
            member.connection: member
            for _, members in self._clients.producer_groups()
            for member in members
        }
        by_producer = Counter(map(_software, producers.values()))
        by_consumer = Counter(
            (group.name, *_software(member), _mode(group))
            for group in self._clients.consumer_groups()
            for member in group.members.values()
        )

        def fill(page: Page) -> None:
            connections = page.gauge(
                "rocketmq_producer_connections",
                "Connections of producers",
                ["language", "version", "protocol_type"],
            )
            for (language, version), count in by_producer.items():
                connections.add(count, language, version, _PROTOCOL)
            connections = page.gauge(
                "rocketmq_consumer_connections",
                "Connections of consumers",
                ["consumer_group", "language", "version", "consume_mode", "protocol_type",
                 "is_system"],
            )  # fmt: skip
            for (group, language, version, mode), count in by_consumer.items():
                system = is_system_group(group)
                connections.add(count, group, language, version, mode, _PROTOCOL, yes_no(system))

        return fill


def _software(member: Member) -> tuple[str, str]:
    version = version_name(member.version) if member.version in _VERSIONS else "unknown"
    return member.language.lower(), version.lower()


def _mode(group: ConsumerGroup) -> str:
    return "pull" if group.consume_type == "CONSUME_ACTIVELY" else "push"


class NameServers:
    """Where this broker is registered, and what the embedded name server knows."""

    def __init__(
        self,
        registered: Mapping[str, bool],
        embedded: Callable[[], NameServerCounts] | None,
    ) -> None:
        self._registered = registered
        self._embedded = embedded

    async def snapshot(self) -> Fill:
        registered = dict(self._registered)
        counts = self._embedded() if self._embedded else None

        def fill(page: Page) -> None:
            family = page.gauge(
                "aerobee_registered",
                "1 when the name server took our last registration",
                ["name_server"],
            )
            for server, yes in registered.items():
                family.add(yes, server)
            if counts is not None:
                _fill_embedded(page, counts)

        return fill


def _fill_embedded(page: Page, counts: NameServerCounts) -> None:
    page.gauge("aerobee_nameserver_brokers", "Brokers registered here").add(counts.brokers)
    page.gauge("aerobee_nameserver_topics", "Topics with a route here").add(counts.topics)
    requests = page.counter(
        "aerobee_nameserver_requests_total", "Requests to the name server", ["request_code"]
    )
    for code, count in counts.requests.items():
        requests.add(count, request_name(code))


class HttpPort:
    """The HTTP port itself."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server

    async def snapshot(self) -> Fill:
        server, answers = self._server, dict(self._server.requests)
        opened = server.open

        def fill(page: Page) -> None:
            page.gauge("aerobee_http_connections_open", "Open HTTP connections").add(opened)
            page.counter(
                "aerobee_http_connections_refused_total", "HTTP connections beyond the limit"
            ).add(server.refused)
            family = page.counter(
                "aerobee_http_answers_total", "Answers of the HTTP port", ["status"]
            )
            for status, count in sorted(answers.items()):
                family.add(count, str(status))

        return fill
