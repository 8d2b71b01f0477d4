"""BROKER_STATUS (31030) and CLIENTS (31032): administrators ask how this broker is
(protocol/WIRE.md 9). Nothing is changed.

The daemon imports this module with the first question: a start does without.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import cast

from aerobee.broker.monitoring.overview.broker_status import Parts, broker_status
from aerobee.broker.requests.administration.client_list import ClientLister
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.frames.command import Command, encode_success
from aerobee.protocol.headers.admin import BrokerStatusHeader
from aerobee.protocol.names import check_topic_name
from aerobee.remoting.connections.connection import Connection
from aerobee.remoting.connections.serving import Answer


class OverviewRequests:
    """Serves administrators. Loop thread only."""

    def __init__(self, parts: Parts, clock: Callable[[], float]) -> None:
        """`clock` is the loop's."""
        self._parts = parts
        core = parts.core
        self._lister = ClientLister(
            core.settings.broker_name,
            self._connections,
            clients=core.clients,
            held=core.held,
            locks=core.locks,
            clock=clock,
        )

    def serve(self, command: Command) -> Answer:
        """The answer to either request."""
        if command.code == RequestCode.CLIENTS:
            return self._lister.answer(command)
        assert command.code == RequestCode.BROKER_STATUS
        topic = BrokerStatusHeader.from_ext(command.ext).topic
        named = check_topic_name(topic) if topic else None
        return encode_success(command, broker_status(self._parts, named).encode())

    def _connections(self) -> list[Connection]:
        servers = self._parts.servers.values()
        found = chain.from_iterable(server.connections.members() for server in servers)
        return cast(list[Connection], list(found))
