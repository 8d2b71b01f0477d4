"""Sockets that are read in rounds (`native/sockets.pyx`): whose answers go where, whatever happens
to others in the same round."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aerobee.broker import core
from aerobee.broker.appending.store_events import StoreEvents
from aerobee.broker.broker_stats import BrokerStats
from aerobee.broker.cluster.registration.broker_address import Advertised, Identity
from aerobee.broker.routing.router import Router
from aerobee.broker.tables.topics import TopicTable
from aerobee.config.model import Settings
from aerobee.native.form import CompiledForm
from aerobee.protocol.bodies.topics import SINGLE_TAG, TopicConfig
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.frames.command import Command
from aerobee.protocol.frames.frame import FrameDecoder
from aerobee.protocol.headers.send import SendMessageHeader
from aerobee.remoting.connection_limits import RemotingLimits
from aerobee.remoting.listening.arrivals import Encryption
from aerobee.remoting.listening.server import RemotingServer
from aerobee.store.message_store import MessageStore
from tests.forms import compiled_form
from tests.native.replayed import SETTINGS
from tests.tls.authority import client as client_context
from tests.unit.remoting.conftest import Taking, shaken


@pytest.fixture(scope="module")
def form() -> CompiledForm:
    return compiled_form()


@pytest.fixture(params=["plain", "TLS"])
def encryption(request: pytest.FixtureRequest) -> Encryption | None:
    return Taking() if request.param == "TLS" else None


@contextlib.asynccontextmanager
async def served(
    folder: Path, form: CompiledForm, encryption: Encryption | None = None
) -> AsyncIterator[tuple[int, MessageStore]]:
    """The port of a broker with the topic Orders, and its store."""
    settings = Settings.for_tests(store_path=str(folder / "store"), **SETTINGS)
    loop = asyncio.get_running_loop()
    events = StoreEvents(loop)
    store = MessageStore.open(settings, compiled=form.store, listener=events)
    identity = Identity(Advertised("127.0.0.1", "127.0.0.1", ()), 10911)
    broker = core.BrokerCore(
        settings=settings,
        store=store,
        events=events,
        identity=identity,
        stats=BrokerStats(),
        loop=loop,
        form=form,
    )
    assert broker.compiled is not None
    sockets = broker.compiled.sockets
    limits = RemotingLimits()
    server = RemotingServer(
        broker.main_router,
        limits,
        "sockets",
        turns=broker.turns,
        sockets=sockets,
        encryption=encryption,
    )
    try:
        broker.complete_tables()
        broker.topics.update(TopicConfig("Orders", 4, 4, 6, SINGLE_TAG, 0, False))
        await server.start("127.0.0.1", 0)
        yield server.port, store
    finally:
        await server.close()
        await broker.close()
        assert store.close(broker.save_last)


def send(opaque: int, topic: str = "Orders") -> bytes:
    header = SendMessageHeader(
        "makers", topic, "TBW102", 4, opaque % 4, 0, 1_700_000_000_000, 0, "", 0, False, 0, False
    )
    code = RequestCode.SEND_MESSAGE_V2
    return Command(code=code, ext=header.to_ext(), body=b"body", opaque=opaque).encode()


async def connected(port: int, count: int, *, encrypted: bool = False) -> list[socket.socket]:
    """Clients that are known to the server."""
    loop = asyncio.get_running_loop()
    clients = []
    for number in range(count):
        plain = socket.socket()
        plain.setblocking(False)
        await loop.sock_connect(plain, ("127.0.0.1", port))
        client = await shaken(plain, client_context()) if encrypted else plain
        # Asked once, so that what its queue is told later is plain.
        client.send(b"".join(send(1000 * (number + 1) + queue) for queue in range(4)))
        assert len(await answers(client, 4)) == 4
        clients.append(client)
    return clients


async def answers(client: socket.socket, count: int) -> list[Command]:
    """The next `count` answers; fewer if the connection ends."""
    decoder, found = FrameDecoder(), []
    async with asyncio.timeout(10):
        while len(found) < count:
            try:
                data = client.recv(65536)
            except (BlockingIOError, ssl.SSLWantReadError):
                await asyncio.sleep(0.001)
                continue
            except ConnectionResetError:
                break
            if not data:
                break
            found += decoder.feed(data)
    return found


async def test_each_connection_of_a_round_gets_its_own_answers(
    tmp_path: Path,
    form: CompiledForm,
    encryption: Encryption | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with served(tmp_path, form, encryption) as (port, store):
        clients = await connected(port, 40, encrypted=encryption is not None)
        # From now on the compiled form has all that it needs to know.
        monkeypatch.delattr(Router, "serve")
        before = store.stats.appended_messages
        for number, client in enumerate(clients):
            client.send(b"".join(send(10 * number + one) for one in range(1 + number % 5)))
        for number, client in enumerate(clients):
            found = await answers(client, 1 + number % 5)
            assert [one.opaque for one in found] == [
                10 * number + one for one in range(1 + number % 5)
            ]
            assert {one.code for one in found} == {ResponseCode.SUCCESS}
            client.close()
        assert store.stats.appended_messages - before == sum(1 + one % 5 for one in range(40))


async def test_a_failure_ends_its_own_connection_and_no_answer_of_it_reaches_another(
    tmp_path: Path,
    form: CompiledForm,
    encryption: Encryption | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    get = TopicTable.get

    def failing(self: TopicTable, name: str) -> TopicConfig | None:
        if name == "Boom":
            raise RuntimeError("a bug")
        return get(self, name)

    async with served(tmp_path, form, encryption) as (port, store):
        good, bad, other = await connected(port, 3, encrypted=encryption is not None)
        monkeypatch.setattr(TopicTable, "get", failing)
        before = store.stats.appended_messages
        # All are there before the loop looks again.
        good.send(send(1))
        bad.send(send(2) + send(3, "Boom"))
        other.send(send(4))
        assert [one.opaque for one in await answers(good, 1)] == [1]
        assert [one.opaque for one in await answers(other, 1)] == [4]
        assert await answers(bad, 2) == []
        other.send(send(5))
        assert [one.opaque for one in await answers(other, 1)] == [5]
        # The bad client's stored message stays: it has no answer, and may come again.
        assert store.stats.appended_messages - before == 4
        for client in (good, bad, other):
            client.close()


async def test_what_came_whole_before_rubbish_is_stored(
    tmp_path: Path, form: CompiledForm, encryption: Encryption | None
) -> None:
    async with served(tmp_path, form, encryption) as (port, store):
        (client,) = await connected(port, 1, encrypted=encryption is not None)
        before = store.stats.appended_messages
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # All of it is there before the loop looks again.
        client.send(b"".join(send(number) for number in range(3)))
        raw = socket.socket(fileno=client.fileno())
        raw.send(b"\x17\x03\x03\x00\x20" + b"\xff" * 32)
        raw.detach()
        with contextlib.suppress(ssl.SSLError):
            await answers(client, 4)
        assert store.stats.appended_messages - before == 3
        client.close()
