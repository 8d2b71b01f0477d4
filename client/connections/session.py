"""The session that every role of a client has: connections, routes, heartbeats, requests from the
broker.

A producer, a consumer or an admin client owns one `Session`. It starts with `start()`, ends with
`close()`, and belongs to the event loop it was started on. Members (the groups a client is in) are
named in its heartbeats, which go to every broker the cached routes mention: each 30 s, at once when
a member asks, and on every new connection before it is used otherwise.

Requests that a broker sends to us are answered by the member whose group they name, each in a task
of its own; what no member knows is refused with code 3, a failing member answers code 1.

Signatures and TLS are for brokers that ask for them (protocol/WIRE.md 7). Both are chosen once,
when the session is made.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final, Protocol, Self

from aerobee.client.connections.background import FirstAlone, Periodic, TaskOwner
from aerobee.client.connections.pool import ConnectionPool
from aerobee.client.connections.routes import RouteCache
from aerobee.client.errors import (
    CallerError,
    ClientClosed,
    ClientError,
    InheritedClient,
    NoRoute,
    peer_error,
    wrong_peer,
)
from aerobee.client.options import (
    Addresses,
    ClientOptions,
    local_ip,
    make_client_id,
    parse_addresses,
)
from aerobee.protocol.bodies.clients import ConsumerData, HeartbeatData
from aerobee.protocol.bodies.routes import MASTER_ID
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.frames.command import Command, make_request, make_response
from aerobee.remoting.calling.caller import Caller
from aerobee.remoting.errors import RemotingError
from aerobee.remoting.origin import Origin
from aerobee.remoting.tls.client_tls import ShownCertificate, client_context, show

log = logging.getLogger(__name__)

_SUSPECT_INTERVAL_S: Final = 1.0
# Most bytes of a file that are looked into.
_PEM_BYTES_MAX: Final = 1 << 20
# A broker that has gone from the routes mostly restarts: its route is asked for again after this
# time, then after twice as long each time, up to the usual interval.
_MISSING_FIRST_S: Final = 1.0
#: The codes of answers that are taken, where a call names no others.
SUCCESS: Final = frozenset({int(ResponseCode.SUCCESS)})
# `call` asks these of name servers; everything else is for brokers.
_OF_NAME_SERVERS: Final = frozenset(
    {
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        RequestCode.ADD_WRITE_PERM_OF_BROKER,
    }
)


Sign = Callable[[Mapping[str, str], bytes], dict[str, str]]
Answer = Callable[[str, Command], Awaitable[Command | None]]
"""The answer to the request of a broker of that address, or None to a oneway or an unknown one."""


class SessionMember(Protocol):
    """A group this client takes part in, as producer or as consumer."""

    @property
    def group(self) -> str:
        """The group's name."""

    @property
    def topics(self) -> Collection[str]:
        """Topics whose routes must be kept fresh."""

    def consumer_data(self) -> ConsumerData | None:
        """This group's part of a heartbeat (protocol/WIRE.md 4.2), or None for a producer group."""

    async def answer(self, command: Command) -> Command | None:
        """The answer to a broker's request, or None to a oneway or an unknown one."""


class Session:
    """Shared machinery of one client; see the module's text."""

    def __init__(
        self, name_servers: Addresses, options: ClientOptions, *, next_after_s: float | None = None
    ) -> None:
        """`next_after_s` as in `RouteCache`."""
        self.options = options
        self.name_servers = parse_addresses(name_servers)
        self.local_ip = local_ip(self.name_servers[0])
        self.client_id = make_client_id(options, self.local_ip)
        self._origin = Origin()
        self.tasks = TaskOwner(self.client_id)
        self.pool = ConnectionPool(
            self.tasks, options.connect_timeout_s, self._greet, self._on_request, make_tls(options)
        )
        self.routes = RouteCache(
            self.pool,
            self.tasks,
            self.name_servers,
            options.call_timeout_s,
            self.command,
            next_after_s=next_after_s,
        )
        #: Commits of offsets, by broker, group and topic.
        self.commits = FirstAlone()
        self._signed = _make_signer(options)
        self._members: dict[str, SessionMember] = {}
        self._served: dict[int, Answer] = {}
        self._heartbeats = Periodic(options.heartbeat_interval_s, self.heartbeat, "heartbeat")
        self._refreshes = Periodic(options.route_refresh_interval_s, self._refresh_routes, "routes")
        self.running = False
        self._started = False
        self._suspected_at = -_SUSPECT_INTERVAL_S
        # While a broker is missing: when routes are asked for again.
        self._missing_s: float | None = None
        self._missing_timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start heartbeats and route refreshes on the running loop."""
        if self._started:
            raise CallerError("a client is started once; make a new one after close")
        if self._origin.is_elsewhere:
            # Made before a fork, which others of the same parent may have been as well.
            self._origin = Origin()
            self.client_id = make_client_id(self.options, self.local_ip)
        self._started = self.running = True
        self.tasks.spawn(self._heartbeats.run(), self._heartbeats.name)
        self.tasks.spawn(self._refreshes.run(), self._refreshes.name)

    async def close(self) -> None:
        """Say goodbye to the brokers, end every task, close every connection."""
        if not self.running or self.is_inherited:
            return
        self.running = False
        if self._missing_timer is not None:
            self._missing_timer.cancel()
        await self._unregister()
        await self.tasks.close()
        self.pool.close()

    @property
    def is_inherited(self) -> bool:
        """Whether another process started this client, and this process is its child by fork()."""
        return self._started and self._origin.is_elsewhere

    def check_running(self) -> None:
        """Raise ClientClosed before start and after close, InheritedClient in a child."""
        if self.is_inherited:
            raise InheritedClient(self._origin.inherited("the client"))
        if not self.running:
            raise ClientClosed("the client is not started, or is closed")

    # Requests of ours

    def command(
        self,
        code: RequestCode,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
        *,
        oneway: bool = False,
    ) -> Command:
        """A request in the header form of the options, signed if there is a key."""
        form = self.options.header_form
        if self._signed is not None:
            ext = self._signed(ext or {}, body)
        return make_request(code, ext, body, oneway=oneway, serialization=int(form))

    async def call(
        self,
        address: str,
        code: RequestCode,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout_s: float | None = None,
        accept: Collection[int] = SUCCESS,
    ) -> Command:
        """Ask one peer; an answer whose code is not in `accept` is raised as PeerError."""
        command = self.command(code, ext, body)
        timeout_s = self.options.call_timeout_s if timeout_s is None else timeout_s
        answer = await self.pool.call(address, command, timeout_s)
        if answer.code not in accept:
            unknown = answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            if unknown and address in self.name_servers and code not in _OF_NAME_SERVERS:
                raise wrong_peer(address, answer, asked="broker", found="name server")
            raise peer_error(address, answer)
        return answer

    async def call_name_server(self, code: RequestCode) -> Command:
        """Ask any name server; raises PeerError when it does not answer with success."""
        answer = await self.routes.ask_name_server(code, {})
        if answer.code != ResponseCode.SUCCESS:
            raise peer_error("name server", answer)
        return answer

    def master(self, broker_name: str) -> str:
        """The master's address of a broker that a cached route mentions; else NoRoute."""
        address = self.routes.address(broker_name, MASTER_ID)
        if address is None:
            raise NoRoute(f"no route mentions a master of broker {broker_name!r}")
        return address

    # Heartbeats

    def join(self, member: SessionMember) -> None:
        """Name this group in heartbeats from now on."""
        self._members[member.group] = member

    def leave(self, member: SessionMember) -> None:
        """Stop naming the group; `close` unregisters it at the brokers."""
        self._members.pop(member.group, None)

    def serve(self, code: RequestCode, answer: Answer) -> None:
        """Have brokers' requests of that code answered so, whatever group they name."""
        self._served[code] = answer

    def wake_heartbeat(self) -> None:
        """Send heartbeats soon: a subscription changed."""
        self._heartbeats.wake()

    async def heartbeat(self) -> None:
        """One heartbeat to every known broker; failures are logged, the next round tries again."""
        if not self._members:
            return
        body = self._heartbeat_body()
        calls = [self._heartbeat_to(address, body) for address in self._heartbeat_targets()]
        await asyncio.gather(*calls)

    async def meet(self) -> None:
        """Make this client known to those known brokers that it has no connection with."""
        connected = set(self.pool.connected_addresses())
        missing = [one for one in self._heartbeat_targets() if one not in connected]
        if missing:
            body = self._heartbeat_body()
            await asyncio.gather(*(self._heartbeat_to(address, body) for address in missing))

    def _heartbeat_targets(self) -> list[str]:
        consuming = any(member.consumer_data() for member in self._members.values())
        return [
            address
            for broker in self.routes.brokers().values()
            for number, address in broker.addresses.items()
            if consuming or number == MASTER_ID  # producers have no business with slaves
        ]

    async def _heartbeat_to(self, address: str, body: bytes) -> None:
        try:
            await self.call(address, RequestCode.HEART_BEAT, body=body)
        except ClientError as error:
            log.warning("heartbeat failed address=%s error=%s", address, error)

    def _heartbeat_body(self) -> bytes:
        datas = {member.group: member.consumer_data() for member in self._members.values()}
        producers = tuple(group for group, data in datas.items() if data is None)
        consumers = tuple(data for data in datas.values() if data is not None)
        return HeartbeatData(self.client_id, producers, consumers).encode()

    async def _greet(self, address: str, caller: Caller) -> None:
        if not self._members or address in self.name_servers:
            return
        command = self.command(RequestCode.HEART_BEAT, body=self._heartbeat_body())
        try:
            answer = await caller.call(command, self.options.call_timeout_s)
        except RemotingError as error:
            log.warning("first heartbeat failed address=%s error=%s", address, error)
            return
        if answer.code != ResponseCode.SUCCESS:
            log.warning("first heartbeat refused %s", peer_error(address, answer))

    async def _unregister(self) -> None:
        addresses = set(self.pool.connected_addresses()) - set(self.name_servers)
        calls = []
        for member in self._members.values():
            role = "producerGroup" if member.consumer_data() is None else "consumerGroup"
            ext = {"clientID": self.client_id, role: member.group}
            calls += [self._unregister_from(address, ext) for address in addresses]
        await asyncio.gather(*calls)

    async def _unregister_from(self, address: str, ext: dict[str, str]) -> None:
        try:
            await self.call(address, RequestCode.UNREGISTER_CLIENT, ext)
        except ClientError as error:
            # The closing connection shows it to the broker too.
            log.info("unregister failed address=%s error=%s", address, error)

    def refresh_routes_soon(self) -> None:
        """A broker could not be reached: ask the name servers soon, at most once a second.

        They forget a broker the moment its connection breaks, long before our next refresh.
        """
        now = asyncio.get_running_loop().time()
        if now - self._suspected_at >= _SUSPECT_INTERVAL_S:
            self._suspected_at = now
            self._refreshes.wake()

    async def _refresh_routes(self) -> None:
        topics = {topic for member in self._members.values() for topic in member.topics}
        missing = await self.routes.refresh(sorted(topics))
        if missing:
            self._missing_s = _MISSING_FIRST_S
        if self._missing_s is not None:
            self._look_for_missing(self._missing_s)

    def _look_for_missing(self, seconds: float) -> None:
        if self._missing_timer is not None:
            self._missing_timer.cancel()
        if not self.running or seconds >= self.options.route_refresh_interval_s:
            self._missing_s = self._missing_timer = None
            return
        loop = asyncio.get_running_loop()
        self._missing_timer = loop.call_later(seconds, self._refreshes.wake)
        self._missing_s = 2 * seconds

    # Requests of the broker

    def _on_request(self, address: str, caller: Caller, command: Command) -> None:
        self.tasks.spawn(self._answer(address, caller, command), f"request {command.code}")

    async def _answer(self, address: str, caller: Caller, command: Command) -> None:
        group = command.ext.get("consumerGroup") or command.ext.get("group") or ""
        member = self._members.get(group)
        serve = self._served.get(command.code)
        answer: Command | None = None
        try:
            if serve is not None:
                answer = await serve(address, command)
            elif member is not None:
                answer = await member.answer(command)
        except Exception as error:  # top of a task; the broker gets code 1
            log.exception("broker request failed address=%s code=%d", address, command.code)
            answer = make_response(command, ResponseCode.SYSTEM_ERROR, repr(error))
        if command.is_oneway or caller.closed:
            return
        if answer is None:
            remark = f"request code {command.code} for group {group!r} is not supported"
            answer = make_response(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
        caller.reply(answer.encode())


class Role:
    """A role that needs nothing but its session. Belongs to the loop it was started on."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def session(self) -> Session:
        """The session, for the functions of `client/administration/`."""
        return self._session

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def start(self) -> None:
        """Get ready; connections are made by the first call."""
        self._session.start()

    async def close(self) -> None:
        """Close the connections; calls still waiting fail."""
        await self._session.close()


def _make_signer(options: ClientOptions) -> Sign | None:
    """Adds access key and signature to a request's fields, given its body; None without keys."""
    access_key, secret_key = options.access_key, options.secret_key
    if access_key is None and secret_key is None:
        return None
    if access_key is None or secret_key is None:
        raise CallerError("access_key and secret_key belong together; only one is given")
    # Only now: it brings the hashes of OpenSSL, which a client without an account does not need.
    from aerobee.protocol.frames.signature import Signer

    signer = Signer(secret_key)
    return lambda ext, body: signer.signed(ext, body, access_key)


def _check_key(options: ClientOptions) -> None:
    """OpenSSL does not say that the key lacks, or in which file."""
    assert options.certificate is not None
    path = options.certificate_key or options.certificate
    try:
        with open(path, "rb") as file:
            has_key = b"PRIVATE KEY-----" in file.read(_PEM_BYTES_MAX)
    except OSError as error:
        raise CallerError(f"{path!r} cannot be read: {error.strerror}") from None
    if not has_key:
        more = "" if options.certificate_key else "; certificate_key (--certificate-key) names one"
        raise CallerError(f"{path!r} holds no private key in PEM{more}")


def make_tls(options: ClientOptions) -> ssl.SSLContext | None:
    """The TLS that connections are made with; None for plain ones. CallerError for files that
    cannot be read."""
    if not options.use_tls:
        for name in ("trust_store", "certificate", "certificate_key"):
            if getattr(options, name) is not None:
                raise CallerError(f"{name} is for use_tls=True")
        return None
    try:
        context = client_context(options.trust_store)
    except OSError as error:
        raise CallerError(
            f"trust store {options.trust_store!r} cannot be read as a PEM file of certificates: "
            f"{error.strerror or error}"
        ) from error
    if options.certificate is None:
        if options.certificate_key is not None:
            raise CallerError("certificate_key needs certificate beside it")
        return context
    shown = ShownCertificate(
        options.certificate, options.certificate_key, options.certificate_password
    )
    _check_key(options)
    try:
        show(context, shown)
    except (OSError, ValueError) as error:
        raise CallerError(
            f"certificate {options.certificate!r} cannot be read as PEM, with its key: "
            f"{getattr(error, 'strerror', None) or error}"
        ) from None
    return context
