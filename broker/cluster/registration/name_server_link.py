"""The broker's link to a name server: a long-lived connection, and registrations on it.

The connection is the registration: a name server drops a broker the moment the connection it
registered on closes (protocol/WIRE.md 5.2). So a single connection is kept; when it is lost the
link connects again and registers at once, waiting longer after each failure. The first registration
on a new connection has all topics, so that a name server that was restarted knows every topic.

Each link is a task that the registrar owns. Loop thread only.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import TYPE_CHECKING, NamedTuple, Protocol

from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.frames.command import Command
from aerobee.remoting.calling.caller import Caller
from aerobee.remoting.connections.connection_set import ConnectionSet
from aerobee.remoting.errors import RemotingError
from aerobee.remoting.tls.client_tls import WITHOUT_A_WORD

if TYPE_CHECKING:
    from aerobee.access.files.credentials import Credentials

log = logging.getLogger("aerobee.broker.registration")

DEFAULT_PORT = 9876

# The second registration comes soon after the first (the reference's 10 s), then the interval.
_SECOND_S = 10.0
_RETRY_FIRST_S = 0.5
_RETRY_LAST_S = 10.0
# A stop does not wait longer for a name server to confirm.
_UNREGISTER_S = 1.0
# Characters of a name server's remark on a refusal: a frame would hold 256 KiB, for each line.
_REMARK_SHOWN = 500


class RegistrationRefused(Exception):
    """The name server answered a registration with an error."""


class LinkOptions(NamedTuple):
    """Times, whether every renewal carries all topics, the encryption of connections and the
    signature of requests, and a question for a person when a name server closes a connection
    without a word."""

    interval_s: float
    timeout_s: float
    force: bool
    tls: ssl.SSLContext | None = None
    credentials: Credentials | None = None
    hint: str = ""


class Registering(Protocol):
    """The registrar, which knows broker and topics: it makes the requests and gets the answers.

    `before_round` is called ahead of the first registration, and then in each round.
    """

    async def full(self) -> Command: ...
    def query_version(self) -> Command: ...
    def unregister(self, returns: bool) -> Command: ...
    async def before_round(self, link: NameServerLink, caller: Caller) -> None: ...
    def link_answered(self, link: NameServerLink, answer: Command) -> None: ...
    def link_changed(self, link: NameServerLink) -> None: ...


class NameServerLink:
    """Keeps this broker registered at one name server."""

    def __init__(
        self, server: str, options: LinkOptions, registrar: Registering, shared: ConnectionSet
    ) -> None:
        """`server` is `host`, `host:port` or `[ipv6]:port`. Raises ValueError."""
        self.server = server
        self._host, self._port = parse_server(server)
        self._options = options
        self._registrar = registrar
        self._shared = shared
        self._caller: Caller | None = None
        self._wake = asyncio.Event()
        # When it was asked last whether another broker has this broker's name.
        self._looked_at: float | None = None
        # Whether a registration was answered on the present connection.
        self._answered = False
        self._end: str | None = None
        # A whole registration succeeded on the present connection.
        self.registered = False
        # The reason why the last attempt failed, None after a success.
        self.error: str | None = "not tried yet"
        self.tried = asyncio.Event()

    async def run(self) -> None:
        """Register now, and again and again, until cancelled."""
        retry_s = _RETRY_FIRST_S
        pause_s = min(_SECOND_S, self._options.interval_s)
        while True:
            self._wake.clear()
            try:
                await self._renew()
            except (RemotingError, RegistrationRefused) as error:
                self._failed(f"{error}{self._hint()}")
                await asyncio.sleep(retry_s)
                retry_s = min(retry_s * 2, _RETRY_LAST_S)
                continue
            finally:
                self.tried.set()
            retry_s = _RETRY_FIRST_S
            try:
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
            except TimeoutError:
                pause_s = self._options.interval_s
            if self._caller is None or self._caller.closed:
                # A name server that takes connections and drops them must not make this task spin.
                await asyncio.sleep(_RETRY_FIRST_S)

    def wake(self) -> None:
        """Register soon: topics have changed."""
        self._wake.set()

    def send_now(self, command: Command) -> None:
        """Send an incremental registration at once; a link without connection needs none, because
        its next registration has all topics."""
        caller = self._caller
        if caller is None or caller.closed or not self.registered:
            self.wake()
            return
        try:
            answer = caller.connection.call(self._sign(command), self._options.timeout_s)
        except RemotingError:
            self.wake()
            return
        answer.add_done_callback(self._sent)

    async def close(self, *, returns: bool = False) -> None:
        """Unregister if registered, and end the connection. The task must have ended.

        `returns`: the broker is started again at once; our own name server keeps its routes."""
        caller, self._caller = self._caller, None
        if caller is None:
            return
        if self.registered and not caller.closed:
            try:
                timeout_s = min(_UNREGISTER_S, self._options.timeout_s)
                await caller.call(self._sign(self._registrar.unregister(returns)), timeout_s)
            except RemotingError as error:
                log.info("not unregistered name_server=%s why=%s", self.server, error)
        self.registered = False
        self.error = "unregistered"
        self._registrar.link_changed(self)
        caller.close()

    def _sign(self, command: Command) -> Command:
        """Add a signature for a name server that asks for accounts."""
        credentials = self._options.credentials
        return command if credentials is None else credentials.sign(command)

    async def _renew(self) -> None:
        caller = self._caller
        if caller is None or caller.closed:
            self._answered, self._end = False, None
            caller = self._caller = await Caller.connect(
                self._host,
                self._port,
                self._options.timeout_s,
                on_close=self._closed,
                shared=self._shared,
                tls=self._options.tls,
            )
        now = asyncio.get_running_loop().time()
        # Changes of topics come more often than rounds, and need no look.
        if self._looked_at is None or now - self._looked_at >= self._options.interval_s / 2:
            await self._registrar.before_round(self, caller)
            self._looked_at = now
        if self.registered and not self._options.force and not await self._version_changed(caller):
            return
        request = self._sign(await self._registrar.full())
        answer = await caller.call(request, self._options.timeout_s)
        self._answered = True
        if answer.code != ResponseCode.SUCCESS:
            remark = (answer.remark or "no reason given")[:_REMARK_SHOWN]
            raise RegistrationRefused(f"refused with code {answer.code}: {remark}")
        if not self.registered:
            log.info("registered name_server=%s", self.server)
        self.registered = True
        self.error = None
        self._registrar.link_changed(self)
        self._registrar.link_answered(self, answer)

    async def _version_changed(self, caller: Caller) -> bool:
        answer = await caller.call(self._registrar.query_version(), self._options.timeout_s)
        return answer.code != ResponseCode.SUCCESS or answer.ext.get("changed") != "false"

    def _sent(self, answer: asyncio.Future[Command]) -> None:
        """Take the answer to an incremental registration. If it failed, a whole registration
        follows."""
        if answer.cancelled():
            return
        error = answer.exception()
        if error is not None or answer.result().code != ResponseCode.SUCCESS:
            log.info("topic change not registered name_server=%s", self.server)
            self.wake()

    def _hint(self) -> str:
        """A hint for people: a name server that takes only TLS cannot say so to a plain
        connection."""
        silent = not self._answered and self._end in WITHOUT_A_WORD
        return f" ({self._options.hint})" if silent and self._options.hint else ""

    def _closed(self, caller: Caller, reason: str) -> None:
        self._end = reason
        if caller is self._caller:
            if self.registered:
                self._failed(f"the connection ended: {reason}")
            self.wake()

    def _failed(self, error: str) -> None:
        # Once, not on every retry.
        if self.registered or self.error != error:
            log.warning("not registered name_server=%s why=%r", self.server, error)
        self.registered = False
        self.error = error
        self._registrar.link_changed(self)


def parse_server(text: str) -> tuple[str, int]:
    """Host and port of a name server's address. Raises ValueError with the text in it."""
    host, port_text = text.strip(), ""
    if host.startswith("["):
        host, _, rest = host[1:].partition("]")
        if rest and not rest.startswith(":"):
            raise ValueError(f"name server address {text!r} is not host:port")
        port_text = rest[1:]
    elif host.count(":") == 1:
        host, _, port_text = host.partition(":")
    port = int(port_text) if port_text.isascii() and port_text.isdigit() else -1
    if not port_text:
        port = DEFAULT_PORT
    if not host or not 0 < port < 65_536:
        raise ValueError(f"name server address {text!r} is not host:port")
    return host, port
