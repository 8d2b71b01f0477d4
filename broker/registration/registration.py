"""Keeps the broker registered at every configured name server (protocol/WIRE.md 5.2).

At the start, ten seconds later, then every `register_interval_ms`; at once when a topic changes: a
new or changed topic travels alone, anything else (a deletion) as the whole table. Every name server
has a link of its own, so one that hangs delays nobody. At the stop the broker unregisters.

The answer carries the order topics of the name server. They are taken from the first configured
server that knows us: two servers that disagree would otherwise turn the flags to and fro for ever.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from aerobee.broker.registration.addresses import Identity
from aerobee.broker.registration.body import body_crc, registration_body, version_body
from aerobee.broker.registration.name_server_link import LinkOptions, NameServerLink
from aerobee.broker.tables.config_table import DataVersion
from aerobee.broker.tables.topics import TopicConfig, TopicTable
from aerobee.config.model import Settings
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.frames.command import Command, make_request
from aerobee.protocol.frames.fastjson import JsonError, loads
from aerobee.protocol.headers.admin import BrokerIdentityHeader, RegisterBrokerHeader
from aerobee.remoting.caller import caller_set

log = logging.getLogger("aerobee.broker.registration")

# The start goes on after this long even if a name server has not answered yet.
_FIRST_TRY_S = 1.0


class Registrar:
    """Registers one broker with all its name servers. `start` once, `stop` once; loop only."""

    def __init__(
        self, settings: Settings, identity: Identity, topics: TopicTable, servers: Sequence[str]
    ) -> None:
        """Observes `topics`; `servers`: `host:port` each, ValueError for one that is not."""
        self._settings = settings
        self._identity = identity
        self._topics = topics
        self._shared = caller_set(name="registration")
        options = LinkOptions(
            settings.register_interval_ms / 1000,
            settings.register_timeout_ms / 1000,
            settings.force_register,
        )
        self._links = [
            NameServerLink(server, options, self, self._shared, self._answered, self._state)
            for server in dict.fromkeys(servers)
        ]
        # Whether each name server has accepted us, and why not; kept up to date in place.
        self.registered: dict[str, bool] = {link.server: False for link in self._links}
        self.errors: dict[str, str | None] = {link.server: link.error for link in self._links}
        self._tasks: list[asyncio.Task[None]] = []
        self._changed: dict[str, TopicConfig] = {}
        self._flush: asyncio.Handle | None = None
        # The whole table as last encoded, and its version.
        self._encoded: tuple[DataVersion, bytes] | None = None
        topics.subscribe(self._topics_changed)

    async def start(self) -> None:
        """Begin to register; returns when every server was tried once, or after a second."""
        for link in self._links:
            task = asyncio.create_task(link.run(), name=f"registers at {link.server}")
            task.add_done_callback(_surface)
            self._tasks.append(task)
        if not self._links:
            log.warning("no name server is configured, clients cannot find this broker by topic")
            return
        tried = asyncio.gather(*(link.tried.wait() for link in self._links))
        try:
            async with asyncio.timeout(_FIRST_TRY_S):
                await tried
        except TimeoutError:
            log.warning("not all name servers have answered yet: %s", self.errors)

    async def stop(self) -> None:
        """Unregister everywhere and end the connections."""
        if self._flush is not None:
            self._flush.cancel()
            self._flush = None
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(link.close() for link in self._links))

    def _topics_changed(self, topics: list[TopicConfig]) -> None:
        """The topic table has changed: these topics, or (empty) something else about it.

        What changes in one turn of the loop is sent together, before the loop waits again; so a
        client that was told of a new topic finds its route.
        """
        if not topics:
            for link in self._links:
                link.wake()
            return
        self._changed.update((topic.name, topic) for topic in topics)
        if self._flush is None and self._tasks:
            self._flush = asyncio.get_running_loop().call_soon(self._send_changed)

    # --- requests for the links

    def full(self) -> Command:
        """REGISTER_BROKER with every topic."""
        topics = self._topics
        version = topics.data_version
        if self._encoded is None or self._encoded[0] != version:
            self._encoded = (version, self._body(version, topics.all()))
        return self._registration(self._encoded[1])

    def query_version(self) -> Command:
        """QUERY_DATA_VERSION."""
        return make_request(
            RequestCode.QUERY_DATA_VERSION,
            self._identity_header().to_ext(),
            version_body(self._topics.data_version),
        )

    def unregister(self) -> Command:
        """UNREGISTER_BROKER."""
        return make_request(RequestCode.UNREGISTER_BROKER, self._identity_header().to_ext())

    # --- inside

    def _send_changed(self) -> None:
        self._flush = None
        changed, self._changed = self._changed, {}
        table = self._topics
        # A topic may have gone again within the turn.
        topics = [topic for name in changed if (topic := table.get(name)) is not None]
        body = self._body(table.data_version, topics)
        for link in self._links:
            link.send_now(self._registration(body))

    def _body(self, version: DataVersion, topics: list[TopicConfig]) -> bytes:
        settings = self._settings
        return registration_body(
            version,
            topics,
            settings.broker_permission,
            compressed=settings.compressed_register,
        )

    def _registration(self, body: bytes) -> Command:
        settings, identity = self._settings, self._identity
        header = RegisterBrokerHeader(
            broker_name=settings.broker_name,
            broker_addr=identity.endpoint,
            cluster_name=settings.cluster_name,
            broker_id=settings.broker_id,
            ha_server_addr=identity.advertised.endpoint(settings.ha_listen_port),
            compressed=settings.compressed_register,
            body_crc32=body_crc(body),
        )
        return make_request(RequestCode.REGISTER_BROKER, header.to_ext(), body)

    def _identity_header(self) -> BrokerIdentityHeader:
        settings = self._settings
        return BrokerIdentityHeader(
            broker_name=settings.broker_name,
            broker_addr=self._identity.endpoint,
            cluster_name=settings.cluster_name,
            broker_id=settings.broker_id,
        )

    def _state(self, link: NameServerLink) -> None:
        self.registered[link.server] = link.registered
        self.errors[link.server] = link.error

    def _answered(self, link: NameServerLink, answer: Command) -> None:
        speaker = next(other for other in self._links if other.registered)
        if link is not speaker:
            return
        try:
            names = _order_topics(answer.body)
        except (JsonError, ValueError) as error:
            log.warning("order topics unreadable name_server=%s why=%s", link.server, error)
            return
        try:
            self._topics.set_order_topics(names)
        except OSError as error:
            log.error("order topics not saved why=%s", error)


def _order_topics(body: bytes) -> frozenset[str]:
    """Keys of the KV table in a registration's answer; none without a body."""
    document: Any = loads(body) if body else {}
    table = document.get("table") if isinstance(document, dict) else None
    if table is not None and not isinstance(table, dict):
        raise ValueError("its table is no object")
    return frozenset(table or ())


def _surface(task: asyncio.Task[None]) -> None:
    """A link's task ends by cancellation only; anything else is a bug and must be seen."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("registering has stopped", exc_info=error)
