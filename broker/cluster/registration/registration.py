"""Keeps the broker registered at every configured name server (protocol/WIRE.md 5.2).

It registers at the start, ten seconds later, then every `register_interval_ms`, each time after a
look whether another broker has this broker's name there (namesake.py); and at once when a topic
changes: a new or changed topic is sent alone, any other change (a deletion) as the whole table.
Every name server has its own link, so a server that hangs delays no other. At the stop the broker
unregisters, or says that it returns in a moment.

One body serves all name servers until the topics change. Its topics come from the list for
administrators, which is made in steps. When the broker as a whole may not be read or written, every
topic is registered with the broker's permission instead of its own, so that clients turn elsewhere.
The compressed form loses sysFlag and order of topics: the format has no place for them.

A slave registers all its topics each time, whatever `forceRegister` says: the answer, which names
its master, comes to a whole registration only (master_address.py).

The answer carries the order topics of the name server. They are taken from the first configured
server that knows us: otherwise two servers that disagree would change the flags back and forth for
ever.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import struct
import zlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from aerobee.broker.cluster.registration.broker_address import Identity
from aerobee.broker.cluster.registration.master_address import MasterAddress
from aerobee.broker.cluster.registration.name_server_link import LinkOptions, NameServerLink
from aerobee.broker.cluster.registration.namesake import find_namesake, namesake_warning
from aerobee.broker.tables.topics import TopicTable
from aerobee.config.model import Settings
from aerobee.protocol.bodies.routes import PERM_READ_WRITE
from aerobee.protocol.bodies.topics import DataVersion, TopicConfig
from aerobee.protocol.checksum import body_crc
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.frames.command import Command, make_request
from aerobee.protocol.frames.fastjson import JsonError, loads
from aerobee.protocol.headers.admin import (
    BrokerIdentityHeader,
    RegisterBrokerHeader,
    RegisterBrokerResponse,
    UnregisterBrokerHeader,
)
from aerobee.remoting.calling.caller import Caller, caller_set
from aerobee.remoting.tls.client_tls import what_it_may_miss

if TYPE_CHECKING:
    from aerobee.access.files.credentials import Credentials

log = logging.getLogger("aerobee.broker.registration")

# The start goes on after this long even if a name server has not answered yet.
_FIRST_TRY_S = 1.0
_COMPRESSION_LEVEL = 9
_LENGTH = struct.Struct(">i")
_NO_FILTER_SERVERS = b"[]"
# The form that `registration_body` writes, around the topics.
_WHOLE = b'{"filterServerList":[],"topicConfigSerializeWrapper":%b}'


class Registrar:
    """Registers a broker with all its name servers. `start` once, `stop` once; loop only."""

    def __init__(
        self,
        settings: Settings,
        identity: Identity,
        topics: TopicTable,
        servers: Sequence[str],
        *,
        ha_address: str = "",
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        """Observe `topics`; `servers` are `host:port` each, ValueError for another form.
        `ha_address` is where slaves connect, "" while they cannot. `tls` encrypts the connections
        to them, `credentials` sign the requests."""
        self._settings = settings
        self._identity = identity
        self._topics = topics
        self._ha_address = ha_address
        self._shared = caller_set(name="registration")
        options = LinkOptions(
            interval_s=settings.register_interval_ms / 1000,
            timeout_s=settings.register_timeout_ms / 1000,
            force=settings.force_register or settings.starts_as_slave,
            tls=tls,
            credentials=credentials,
            hint=what_others_may_miss(settings, tls),
        )
        self._links = [
            NameServerLink(server, options, self, self._shared) for server in dict.fromkeys(servers)
        ]
        #: Where the master of this broker is, if this is a slave.
        self.master = MasterAddress(settings, [link.server for link in self._links])
        # Whether each name server has accepted us; kept up to date in place.
        self.registered: dict[str, bool] = {link.server: False for link in self._links}
        self.errors: dict[str, str | None] = {link.server: link.error for link in self._links}
        # Warnings for people, by name server: another broker with this broker's name.
        self._namesakes: dict[str, str] = {}
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

    async def stop(self, *, returns: bool = False) -> None:
        """Unregister everywhere and end the connections; `returns` as in `NameServerLink.close`."""
        if self._flush is not None:
            self._flush.cancel()
            self._flush = None
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(link.close(returns=returns) for link in self._links))

    def ask_for_master(self) -> None:
        """Register at each name server soon: the answers say where the master is now."""
        for link in self._links:
            link.wake()

    def _topics_changed(self, topics: list[TopicConfig]) -> None:
        """Register a change of the topic table: these topics, or (empty) something else.

        Changes in one turn of the loop are sent together, before the loop waits again; so a client
        that knows a new topic from an answer finds its route.
        """
        if not topics:
            for link in self._links:
                link.wake()
            return
        self._changed.update((topic.name, topic) for topic in topics)
        if self._flush is None and self._tasks:
            self._flush = asyncio.get_running_loop().call_soon(self._send_changed)

    # --- for the links

    async def full(self) -> Command:
        """REGISTER_BROKER with every topic."""
        topics, settings = self._topics, self._settings
        plain = settings.broker_permission & PERM_READ_WRITE == PERM_READ_WRITE
        if plain and not settings.compressed_register:
            return self._registration(_WHOLE % await self._listing())
        version = topics.data_version
        if self._encoded is None or self._encoded[0] != version:
            self._encoded = (version, self._body(version, topics.all()))
        return self._registration(self._encoded[1])

    async def _listing(self) -> bytes:
        """The topics in the form of a registration, which GET_ALL_TOPIC_CONFIG shares: made once
        for both, with turns of the loop between the steps.

        It shows the present state: an older state would undo later registrations. If topics change
        all the time, the last try takes a single turn, with the topics that are encoded by then.
        """
        for turns in (True, True, False):
            for _ in self._topics.listing_steps():
                if turns:
                    await asyncio.sleep(0)
            if self._topics.listed is not None:
                break
        assert self._topics.listed is not None
        return self._topics.listed

    def query_version(self) -> Command:
        """QUERY_DATA_VERSION."""
        return make_request(
            RequestCode.QUERY_DATA_VERSION,
            BrokerIdentityHeader(**self._names()).to_ext(),
            version_body(self._topics.data_version),
        )

    def unregister(self, returns: bool) -> Command:
        """UNREGISTER_BROKER."""
        header = UnregisterBrokerHeader(**self._names(), returns=returns)
        return make_request(RequestCode.UNREGISTER_BROKER, header.to_ext())

    async def before_round(self, link: NameServerLink, caller: Caller) -> None:
        """Warn while another live broker is registered there under this broker's name and id."""
        settings, here = self._settings, self._identity.endpoint
        name, broker_id = settings.broker_name, settings.broker_id
        other = await find_namesake(caller, name, broker_id, here, self._shared)
        if other is None:
            self._namesakes.pop(link.server, None)
            return
        warning = namesake_warning(name, broker_id, other, here)
        if warning not in self._namesakes.values():
            log.warning("%s", warning)
        self._namesakes[link.server] = warning

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings for people: other brokers with this broker's name, as far as they are known."""
        return tuple(dict.fromkeys(self._namesakes.values()))

    def namesake_problem(self) -> str | None:
        """The warnings as the reason of a note in readiness; None without any."""
        return "; ".join(self.warnings) or None

    def link_changed(self, link: NameServerLink) -> None:
        """Take in that a link is registered now, or not any more."""
        self.registered[link.server] = link.registered
        self.errors[link.server] = link.error
        if not link.registered:
            self.master.lost(link.server, link.error or "not registered there")

    def link_answered(self, link: NameServerLink, answer: Command) -> None:
        """Take over the master and the order topics of the answer to a registration of all
        topics."""
        header = RegisterBrokerResponse.from_ext(answer.ext)
        self.master.heard(link.server, header.master_addr, header.ha_server_addr)
        speaker = next(other for other in self._links if other.registered)
        if link is not speaker:
            return
        try:
            names = _order_topics(answer.body)
        except (JsonError, ValueError) as error:
            log.warning("order topics unreadable name_server=%s why=%s", link.server, error)
            return
        saved = self._topics.set_order_topics(names)
        if saved is not None:
            # Nobody waits: each answer of the name server has them again.
            saved.add_done_callback(_log_order_not_saved)

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
            version, topics, settings.broker_permission, compressed=settings.compressed_register
        )

    def _registration(self, body: bytes) -> Command:
        header = RegisterBrokerHeader(
            **self._names(),
            ha_server_addr=self._ha_address,
            compressed=self._settings.compressed_register,
            body_crc32=body_crc(body),
        )
        return make_request(RequestCode.REGISTER_BROKER, header.to_ext(), body)

    def _names(self) -> dict[str, Any]:
        """The fields by which each request names this broker."""
        settings = self._settings
        return {
            "broker_name": settings.broker_name,
            "broker_addr": self._identity.endpoint,
            "cluster_name": settings.cluster_name,
            "broker_id": settings.broker_id,
        }


def _order_topics(body: bytes) -> frozenset[str]:
    """Keys of the KV table in a registration's answer; none without a body."""
    document: Any = loads(body) if body else {}
    table = document.get("table") if isinstance(document, dict) else None
    if table is not None and not isinstance(table, dict):
        raise ValueError("its table is no object")
    return frozenset(table or ())


def _log_order_not_saved(saved: asyncio.Future[None]) -> None:
    if (error := saved.exception()) is not None:
        log.error("order topics not saved why=%s", error)


def _surface(task: asyncio.Task[None]) -> None:
    """A link's task ends by cancellation only; anything else is a bug and must be seen."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("registering has stopped", exc_info=error)


def registration_body(
    version: DataVersion, topics: Iterable[TopicConfig], permission: int, *, compressed: bool
) -> bytes:
    """The body of REGISTER_BROKER with these topics."""
    if permission & PERM_READ_WRITE != PERM_READ_WRITE:
        # The reference registers the broker's permission instead of the topic's, which opens closed
        # topics.
        allowed = permission | ~PERM_READ_WRITE
        topics = [replace(topic, perm=topic.perm & allowed) for topic in topics]
    if compressed:
        return _compressed(version, list(topics))
    wrapper = {
        "dataVersion": version.to_json(),
        "topicConfigTable": {topic.name: topic.to_json() for topic in topics},
    }
    document = {"filterServerList": [], "topicConfigSerializeWrapper": wrapper}
    # Not through fastjson.dumps: 20,000 topics take 5 ms this way, 200 ms that way.
    return msgspec.json.encode(document, order="sorted")


def version_body(version: DataVersion) -> bytes:
    """The body of QUERY_DATA_VERSION."""
    return msgspec.json.encode(version.to_json(), order="sorted")


def _compressed(version: DataVersion, topics: list[TopicConfig]) -> bytes:
    parts = [_block(version_body(version)), _LENGTH.pack(len(topics))]
    parts += [
        _block(
            f"{topic.name} {topic.read_queues} {topic.write_queues} {topic.perm} "
            f"{topic.filter_type}".encode()
        )
        for topic in topics
    ]
    parts.append(_block(_NO_FILTER_SERVERS))
    return zlib.compress(b"".join(parts), _COMPRESSION_LEVEL)


def _block(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


def what_others_may_miss(settings: Settings, tls: ssl.SSLContext | None) -> str:
    """Says why a name server or a master may have closed a connection before it answered."""
    return what_it_may_miss(
        speaks_tls=tls is not None,
        shows_certificate=bool(settings.tls_client_certificate_path),
        tls="tls.enable=true",
        certificate="tls.client.certPath",
        key="tls.client.keyPath",
    )
