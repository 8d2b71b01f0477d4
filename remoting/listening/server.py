"""Listens, admits or refuses connections, and owns them until they are gone.

Each listening socket has one accepting task, owned by the server's `Listening`, which the HTTP port
has too; there is no task per connection. Accepting ourselves, rather than through the loop's
server, lets a connection above the limits be refused before it costs anything, and lets a process
that has run out of descriptors pause instead of spinning or losing its listener. Where TLS is
taken, an accepted socket waits among the arrivals until it has shown what it is. Loop thread only.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Protocol

from aerobee.remoting.connection_limits import RemotingLimits
from aerobee.remoting.connection_stats import CloseReason, ServerStats
from aerobee.remoting.connections.connection import Connection, Handler
from aerobee.remoting.connections.connection_set import ConnectionSet
from aerobee.remoting.errors import RemotingListenError
from aerobee.remoting.listening.arrivals import Arrivals, ArrivalTimes, Encryption
from aerobee.remoting.peers import address_text, plain_address
from aerobee.remoting.tls.tls_session import TlsSession
from aerobee.remoting.tls.tls_transport import TlsTransport
from aerobee.remoting.turns import Turns

log = logging.getLogger("aerobee.remoting")

# The reference's backlog (protocol/WIRE.md 1.9).
BACKLOG = 1024
# The kernel would take 4 MiB of answers that a peer does not read, for each of thousands of peers.
# What is under way to a peer that reads does not count.
_KERNEL_UNSENT_BYTES = 256 * 1024
# With a free port on several addresses, the second may find the first's port taken.
_PORT_ATTEMPTS = 5
# Sockets that are accepted before the loop looks at others: a slice of its turn, refused ones too.
_TAKEN_A_TURN = 32
_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


class Sockets(Protocol):
    """Transports of accepted sockets other than the loop's own (`aerobee/native`)."""

    def open(self, arrived: socket.socket | TlsSession, connection: Connection, /) -> None:
        """Serve a socket from now on, or that of TLS that has shaken hands. Raises OSError."""

    def close(self) -> None:
        """Serve no more; called when all connections have ended."""


class Taker(Protocol):
    """A server that accepted sockets are given to."""

    async def take_accepted(self, accepted: socket.socket, peer: tuple[str, int], /) -> None:
        """Serve the socket from now on, or close it. OSError: the peer has gone in between."""


class Listening:
    """The listening sockets of one server, and the tasks that accept from them. `stats` counts the
    pauses for want of descriptors, of `pause_s` each."""

    def __init__(self, name: str, stats: ServerStats, pause_s: float) -> None:
        self._name = name
        self._stats = stats
        self._pause_s = pause_s
        self._sockets: list[socket.socket] = []
        self._tasks: list[asyncio.Task[None]] = []
        #: The ports listened on, in the order in which they were opened.
        self.ports: list[int] = []

    async def open(self, host: str, port: int, taker: Taker) -> int:
        """Listen on every address of `host` ("" = all); returns the port (0 picks a free one).

        Raises `RemotingListenError`, with a reason a person can act on.
        """
        listeners = await _listen(host, port)
        for listener in listeners:
            task = asyncio.create_task(
                self._accept_forever(listener, taker), name=f"{self._name} accepts"
            )
            task.add_done_callback(_surface)
            self._tasks.append(task)
        self._sockets += listeners
        bound: int = listeners[0].getsockname()[1]
        self.ports.append(bound)
        return bound

    async def close(self) -> None:
        """Accept nothing more."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        sockets, self._sockets = self._sockets, []
        for listener in sockets:
            listener.close()

    async def _accept_forever(self, listener: socket.socket, taker: Taker) -> None:
        loop = asyncio.get_running_loop()
        taken = 0
        while True:
            taken += 1
            if not taken % _TAKEN_A_TURN:
                # To accept those who are there already does not wait.
                await asyncio.sleep(0)
            try:
                accepted, address = await loop.sock_accept(listener)
            except OSError as error:
                if error.errno == errno.ECONNABORTED:
                    continue
                # No descriptor left (EMFILE, ENFILE), or no memory for one: wait for some to close.
                self._stats.accept_errors += 1
                log.warning("cannot accept, pausing server=%s error=%s", self._name, error)
                await asyncio.sleep(self._pause_s)
                continue
            peer = plain_address(address)
            try:
                await taker.take_accepted(accepted, peer)
            except OSError as error:
                # The peer has gone in between.
                text = "peer lost while accepting peer=%s server=%s error=%s"
                log.debug(text, address_text(peer), self._name, error)


class RemotingServer:
    """A bounded server of remoting connections.

    `start` may be called for several ports; they share limits, counters and handler.
    """

    def __init__(
        self,
        handler: Handler,
        limits: RemotingLimits | None = None,
        name: str = "remoting",
        *,
        turns: Turns | None = None,
        sockets: Callable[[ConnectionSet], Sockets] | None = None,
        encryption: Encryption | None = None,
    ) -> None:
        """`sockets` makes what serves accepted sockets; without it the loop does. Without
        `encryption` no TLS is taken."""
        self.limits = limits or RemotingLimits()
        self.connections = ConnectionSet(self.limits, name, turns=turns)
        self._handler = handler
        self._make_sockets = sockets
        self._sockets: Sockets | None = None
        self._encryption = encryption
        self._arrivals: Arrivals | None = None
        self._listening = Listening(name, self.stats, self.limits.accept_pause_s)

    @property
    def stats(self) -> ServerStats:
        return self.connections.stats

    @property
    def port(self) -> int:
        """The first port listened on."""
        return self._listening.ports[0]

    async def start(self, host: str, port: int) -> int:
        """Listen on every address of `host` ("" = all); returns the port (0 picks a free one).

        Raises `RemotingListenError`, with a reason a person can act on.
        """
        if self._make_sockets is not None and self._sockets is None:
            self._sockets = self._make_sockets(self.connections)
        if self._encryption is not None and self._arrivals is None:
            times = ArrivalTimes(self.limits.idle_s, self.limits.sweep_interval_s)
            name = self.connections.name
            self._arrivals = Arrivals(self._encryption, times, self, self.stats.tls, name)
        return await self._listening.open(host, port, self)

    async def stop_listening(self) -> None:
        """Accept nothing more; open connections go on, those that are still arriving end."""
        await self._listening.close()
        if self._arrivals is not None:
            await self._arrivals.close()

    async def close(self, grace_s: float = 1.0) -> None:
        """Stop listening and end every connection; answers already written get `grace_s`."""
        await self.stop_listening()
        self.connections.close_all(CloseReason.SHUTDOWN)
        if not await self.connections.wait_empty(grace_s):
            self.connections.close_all(CloseReason.SHUTDOWN, abort=True)
            await self.connections.wait_empty(grace_s)
        if self._sockets is not None:
            self._sockets.close()
            self._sockets = None

    @property
    def open(self) -> int:
        """Connections that count in the limits: those that are served, and those that arrive."""
        return self.stats.open + self.stats.tls.arriving

    def _open_of(self, host: str) -> int:
        arriving = 0 if self._arrivals is None else self._arrivals.count_of(host)
        return self.connections.count_of(host) + arriving

    def _admitted(self, peer: tuple[str, int]) -> bool:
        stats = self.stats
        if self.open >= self.limits.connections:
            stats.refused_total += 1
            self.connections.log_violation(
                'connection refused peer=%s reason="too many" open=%d',
                address_text(peer),
                self.open,
            )
            return False
        if self._open_of(peer[0]) >= self.limits.connections_per_address:
            stats.refused_address += 1
            self.connections.log_violation(
                'connection refused peer=%s reason="too many of one address" open=%d',
                address_text(peer),
                self.limits.connections_per_address,
            )
            return False
        return True

    # --- for the listening sockets and the arrivals

    async def take_accepted(self, accepted: socket.socket, peer: tuple[str, int]) -> None:
        """Refuse a socket, serve it, or see first whether it is TLS."""
        if not self._admitted(peer):
            accepted.close()
        elif self._arrivals is not None:
            self._arrivals.take(accepted, peer)
        else:
            await self.open_plain(accepted, peer)

    async def open_plain(self, arrived: socket.socket, peer: tuple[str, int]) -> None:
        """Serve a plain socket from now on; closed when it raises OSError."""
        connection = Connection(self.connections, self._handler, peer)
        try:
            if self._sockets is not None:
                self._sockets.open(arrived, connection)
            else:
                loop = asyncio.get_running_loop()
                await loop.connect_accepted_socket(lambda: connection, arrived)
        except OSError:
            arrived.close()
            raise

    def open_tls(self, arrived: TlsSession, peer: tuple[str, int]) -> None:
        """Serve a socket from now on whose handshake is done; closed when it raises OSError."""
        connection = Connection(self.connections, self._handler, peer)
        try:
            if self._sockets is not None:
                self._sockets.open(arrived, connection)
            else:
                TlsTransport(arrived, connection)
        except OSError:
            arrived.socket.close()
            raise


def _surface(task: asyncio.Task[None]) -> None:
    """An accepting task ends by cancellation only; anything else is a bug and must be seen."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("accepting connections has stopped", exc_info=error)


async def _listen(host: str, port: int) -> list[socket.socket]:
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise RemotingListenError(f"cannot listen on {host!r}: {error.strerror}") from error
    addresses = [(family, sockaddr) for family, _, _, _, sockaddr in dict.fromkeys(found)]
    for attempt in range(_PORT_ATTEMPTS):
        try:
            return _bind_all(addresses, port)
        except OSError as error:
            if port == 0 and error.errno == errno.EADDRINUSE and attempt < _PORT_ATTEMPTS - 1:
                continue
            hint = " (is another broker running?)" if error.errno == errno.EADDRINUSE else ""
            raise RemotingListenError(
                f"cannot listen on {host or 'all addresses'} port {port}: {error.strerror}{hint}"
            ) from error
    raise AssertionError("unreachable")


async def is_taken(host: str, port: int) -> bool:
    """Whether somebody listens on a port that `RemotingServer.start` would want.

    Of other reasons why it cannot be had nothing is said: the start itself does.
    """
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError:
        return False
    return any(_in_use(family, address) for family, _, _, _, address in dict.fromkeys(found))


def _in_use(family: int, address: tuple[object, ...]) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # So that only a listener is in the way, as of the start; nobody can connect meanwhile.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            probe.bind(address)
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def _bind_all(
    addresses: Sequence[tuple[int, tuple[object, ...]]], port: int
) -> list[socket.socket]:
    """One listening socket an address, all on one port; raises OSError and leaves none open."""
    listeners: list[socket.socket] = []
    families = {family for family, _ in addresses}
    try:
        for family, sockaddr in addresses:
            try:
                listener = _bind(family, (sockaddr[0], port, *sockaddr[2:]), len(families) == 1)
            except OSError as error:
                # `localhost` and "all" name IPv6 on machines that have none.
                if error.errno in _NOT_HERE and len(addresses) > 1:
                    continue
                raise
            listeners.append(listener)
            port = port or listener.getsockname()[1]
        if not listeners:
            raise OSError(errno.EADDRNOTAVAIL, "none of its addresses is of this machine")
    except OSError:
        for listener in listeners:
            listener.close()
        raise
    return listeners


def _bind(family: int, sockaddr: tuple[object, ...], alone: bool) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted sockets inherit both.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _KERNEL_UNSENT_BYTES)
        if family == socket.AF_INET6:
            # `::` asked for by itself means both families, as it does in Java.
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if alone else 1)
        listener.bind(sockaddr)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
