"""A server with a scripted handler, and waiting on conditions."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

import pytest

from aerobee.native.form import CompiledForm
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.command import Command, encode_response
from aerobee.remoting.connection_limits import RemotingLimits
from aerobee.remoting.connections.connection import Connection
from aerobee.remoting.connections.connection_set import ConnectionSet
from aerobee.remoting.connections.serving import Answer, Serving
from aerobee.remoting.listening.arrivals import Encryption
from aerobee.remoting.listening.server import RemotingServer, Sockets
from aerobee.remoting.turns import SLICE_S, Turns
from tests.forms import compiled_form
from tests.tls import CERTIFICATE, KEY
from tests.tls.authority import client

AnswerOf = Callable[[Connection, Command], Answer]


class StepClock:
    """Each look at it takes a tenth of a slice."""

    def __init__(self) -> None:
        self.now = 1.0

    def __call__(self) -> float:
        self.now += SLICE_S / 10
        return self.now


class ScriptedHandler(Serving):
    """Keeps what it was told; answers each request with what `answer` makes of it."""

    def __init__(self) -> None:
        super().__init__(Turns())
        self.opened: list[Connection] = []
        self.closed: list[tuple[Connection, str]] = []
        self.lists: list[list[Command]] = []
        self.answer: AnswerOf = lambda _connection, command: encode_response(command, 0)

    @property
    def commands(self) -> list[Command]:
        return [command for commands in self.lists for command in commands]

    @property
    def reasons(self) -> list[str]:
        return [reason for _, reason in self.closed]

    def connection_opened(self, connection: Connection) -> None:
        self.opened.append(connection)

    @property
    def turns(self) -> Turns:
        return self._turns

    @turns.setter
    def turns(self, turns: Turns) -> None:
        self._turns = turns

    def commands_received(self, connection: Connection, commands: Iterable[Command]) -> None:
        self.lists.append([])
        super().commands_received(connection, commands)

    def serve(self, connection: Connection, command: Command) -> Answer:
        self.lists[-1].append(command)
        return self.answer(connection, command)

    def refuse(
        self, connection: Connection, command: Command, error: Exception, spent_s: float
    ) -> bytes:
        if isinstance(error, BadRequest):
            return encode_response(command, error.code, error.remark)
        raise error

    def connection_closed(self, connection: Connection, reason: str) -> None:
        self.closed.append((connection, str(reason)))


class Bench:
    """Starts servers on free ports; everything is stopped at the end of the test."""

    def __init__(self, form: CompiledForm | None, encryption: Encryption | None = None) -> None:
        """With a `form`, its sockets stand where the loop's transports would; with `encryption`
        the streams are TLS."""
        self._form = form
        self.encryption = encryption
        self.client: ssl.SSLContext | None = None if encryption is None else client()
        self.handler = ScriptedHandler()
        self.servers: list[RemotingServer] = []
        self.writers: list[asyncio.StreamWriter] = []

    async def server(self, host: str = "127.0.0.1", **limits: float) -> RemotingServer:
        limits.setdefault("sweep_interval_s", 0.02)
        server = RemotingServer(
            self.handler,
            RemotingLimits(**limits),  # type: ignore[arg-type]
            turns=self.handler.turns,
            sockets=None if self._form is None else self._sockets,
            encryption=self.encryption,
        )
        self.servers.append(server)
        await server.start(host, 0)
        return server

    def _sockets(self, shared: ConnectionSet) -> Sockets:
        assert self._form is not None
        return self._form.sockets(asyncio.get_running_loop(), shared)

    async def stream(
        self, server: RemotingServer, host: str = "127.0.0.1"
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(host, server.port, ssl=self.client)
        self.writers.append(writer)
        return reader, writer

    async def socket(self, server: RemotingServer) -> socket.socket:
        """A blocking socket that is served, for peers that do as they like."""
        opened = len(self.handler.opened)
        found = socket.create_connection(("127.0.0.1", server.port))
        if self.client is not None:
            found.setblocking(False)
            found = await shaken(found, self.client)
            found.setblocking(True)
        await eventually(lambda: len(self.handler.opened) > opened)
        return found

    async def close(self) -> None:
        for writer in self.writers:
            writer.close()
        for server in self.servers:
            await server.close()


class Taking:
    """Encryption of a server of tests."""

    def __init__(self, *, required: bool = False, handshake_s: float = 10.0) -> None:
        self.required = required
        self.handshake_s = handshake_s
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(CERTIFICATE, KEY)


async def shaken(found: socket.socket, context: ssl.SSLContext) -> ssl.SSLSocket:
    """A socket that does not block, after its client's handshake."""
    wrapped = context.wrap_socket(found, do_handshake_on_connect=False)
    async with asyncio.timeout(10):
        while True:
            try:
                wrapped.do_handshake()
            except ssl.SSLWantReadError:
                await asyncio.sleep(0.001)
            else:
                return wrapped


@pytest.fixture(params=["transports", "sockets"])
async def plain_bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    """A `bench` without TLS: for clients that do not say what they are."""
    bench = Bench(compiled_form() if request.param == "sockets" else None)
    yield bench
    await bench.close()


@pytest.fixture(params=["transports", "sockets", "tls", "tls sockets"])
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    """On the loop's transports and on our own of TLS, and on the compiled form's sockets of both
    where it was built."""
    form = compiled_form() if request.param.endswith("sockets") else None
    bench = Bench(form, Taking() if request.param.startswith("tls") else None)
    yield bench
    await bench.close()


async def eventually(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    """Return once `condition` holds; fail after `timeout_s`."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - any condition, not an event
            await asyncio.sleep(0.002)


@pytest.fixture
def until() -> Callable[..., Awaitable[None]]:
    return eventually
