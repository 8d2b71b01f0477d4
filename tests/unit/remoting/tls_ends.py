"""Both ends of a TLS connection: ours, in both forms, has a protocol that keeps what it is told."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Any

from aerobee.remoting.connection_limits import RemotingLimits
from aerobee.remoting.connections.connection_set import ConnectionSet
from aerobee.remoting.tls.tls_session import TlsSession
from aerobee.remoting.tls.tls_transport import TlsTransport
from tests.forms import compiled_form
from tests.tls import CERTIFICATE, KEY
from tests.unit.remoting.conftest import shaken


class Noting(asyncio.Protocol):
    """Keeps what it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.transport: Any = None
        self.data = bytearray()
        self.stays = False
        self.error: Exception | None = None
        # Called with each read.
        self.noted: Callable[[], None] = lambda: None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.told.append("made")
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.noted()

    def eof_received(self) -> bool:
        self.told.append("eof")
        return self.stays

    def pause_writing(self) -> None:
        self.told.append("pause")

    def resume_writing(self) -> None:
        self.told.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.told.append("lost")
        self.error = exc


class NotingBuffered(Noting, asyncio.BufferedProtocol):
    """A `Noting` with the buffer of a set of connections."""

    def __init__(self, shared: ConnectionSet) -> None:
        super().__init__()
        self._shared = shared

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._shared.read_view

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self._shared.read_view[:nbytes]))


class NotingConnection(Noting):
    """A `Noting` as the compiled form's sockets call a connection."""

    packed_peer = b""
    held_bytes = 0
    last_active = 0.0

    def __init__(self, shared: ConnectionSet) -> None:
        super().__init__()
        self._shared = shared

    def decode(self, taken: int, nbytes: int, *, later: bool = False) -> None:
        self.data_received(bytes(self._shared.read_view[taken:nbytes]))


async def shaken_pair(asking: ssl.SSLContext) -> tuple[TlsSession, ssl.SSLSocket]:
    """Both ends of a connection that have shaken hands: ours and the peer's."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    for one in (ours, theirs):
        one.setblocking(False)
    served = TlsSession(server_context(), ours)
    shaking = asyncio.create_task(shaken(theirs, asking))
    async with asyncio.timeout(10):
        while not served.shake():  # noqa: ASYNC110 - a step of its own each time
            await asyncio.sleep(0)
        return served, await shaking


def server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE, KEY)
    return context


@contextlib.contextmanager
def serving(
    served: TlsSession, *, compiled: bool, limits: RemotingLimits | None = None
) -> Iterator[tuple[asyncio.Transport, Noting]]:
    """The transport of a socket that has shaken hands, and what it tells."""
    shared = ConnectionSet(limits or RemotingLimits(), "tls")
    if not compiled:
        protocol = NotingBuffered(shared)
        yield TlsTransport(served, protocol), protocol
        return
    sockets = compiled_form().sockets(asyncio.get_running_loop(), shared)
    connection = NotingConnection(shared)
    sockets.open(served, connection)
    yield connection.transport, connection
    sockets.close()
