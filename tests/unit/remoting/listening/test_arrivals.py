"""The life of a socket between its accept and its first frame, where TLS is taken."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import resource
import socket
import ssl
import weakref
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from aerobee.protocol.frames.command import make_request
from aerobee.protocol.frames.frame import FrameDecoder
from aerobee.remoting.listening import arrivals
from aerobee.remoting.listening.server import RemotingServer
from aerobee.remoting.tls.tls_session import TlsSession
from aerobee.remoting.turns import SLICE_S
from tests.forms import compiled_form
from tests.tls import CERTIFICATE
from tests.tls.authority import Authority, client, hello, old_client
from tests.unit.remoting.conftest import Bench, Taking, eventually, shaken

pytestmark = pytest.mark.both_loops

HALF = 2000


@pytest.fixture(params=["transports", "sockets"])
async def tls(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    """Servers that take TLS; plain connections are served by either form."""
    form = compiled_form() if request.param == "sockets" else None
    bench = Bench(form, Taking())
    yield bench
    await bench.close()


def taking(bench: Bench) -> Taking:
    assert isinstance(bench.encryption, Taking)
    return bench.encryption


async def connected(server: RemotingServer, data: bytes = b"") -> socket.socket:
    """A raw socket that has sent this data."""
    loop = asyncio.get_running_loop()
    found = socket.socket()
    found.setblocking(False)
    await loop.sock_connect(found, ("127.0.0.1", server.port))
    await loop.sock_sendall(found, data)
    return found


async def ended(found: socket.socket) -> bytes:
    """The bytes that come until the server has closed it."""
    loop, data = asyncio.get_running_loop(), b""
    async with asyncio.timeout(10):
        while True:
            try:
                more = await loop.sock_recv(found, 65536)
            except ConnectionError:
                more = b""
            if not more:
                found.close()
                return data
            data += more


async def answer_of(server: RemotingServer, context: ssl.SSLContext | None) -> int:
    """The code of the answer to one request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
    writer.write(make_request(10).encode())
    decoder = FrameDecoder()
    async with asyncio.timeout(10):
        while not (found := decoder.feed(await reader.read(65536))):
            pass
    writer.close()
    return found[0].code


@pytest.mark.parametrize("required", [False, True], ids=["permissive", "enforcing"])
async def test_tls_is_served_beside_plain_or_alone(tls: Bench, required: bool) -> None:
    taking(tls).required = required
    server = await tls.server()
    assert await answer_of(server, client()) == 0
    assert server.stats.tls.handshakes == 1
    if not required:
        assert await answer_of(server, None) == 0
        assert not server.stats.tls.failed
        return
    assert await ended(await connected(server, make_request(10).encode())) == b""
    assert server.stats.tls.failed == {"plain on enforcing": 1}
    assert len(tls.handler.commands) == 1


async def test_without_tls_a_hello_is_closed_and_counted(plain_bench: Bench) -> None:
    server = await plain_bench.server()
    assert await ended(await connected(server, hello())) == b""
    assert server.stats.tls.failed == {"tls on disabled": 1}


@pytest.mark.parametrize(
    "data",
    [
        b"\x16" * 100,
        b"\x16\x03\x01\x00\x00",
        b"\x16\x03\x01\xff\xff" + bytes(70_000),
        b"\x16\x03\x01\x00\x04\x02\x00\x00\x00",
        b"\x16\x03\x01\x00\x40\x01" + b"\xff" * 63,
        b"\x16\x04",
    ],
    ids=["repeated", "empty", "too_long", "no_hello", "nonsense", "version_4"],
)
async def test_rubbish_behind_the_first_byte_is_closed_and_counted(tls: Bench, data: bytes) -> None:
    server = await tls.server()
    found = await connected(server)
    with contextlib.suppress(ConnectionError):
        await asyncio.get_running_loop().sock_sendall(found, data)
    await ended(found)
    assert server.stats.tls.failed == {"rubbish": 1}
    assert server.open == 0


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
async def test_old_versions_are_refused(tls: Bench, version: ssl.TLSVersion) -> None:
    server = await tls.server()
    await ended(await connected(server, hello(old_client(version))))
    assert server.stats.tls.failed == {"old version": 1}


async def test_tls_1_2_is_served(tls: Bench) -> None:
    server = await tls.server()
    context = client()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    assert await answer_of(server, context) == 0


async def test_clients_show_a_certificate_that_is_trusted(tls: Bench, tmp_path: Path) -> None:
    authority, others = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs", "others")
    ours = authority.pair("ours")
    context = taking(tls).context
    context.load_verify_locations(authority.certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    server = await tls.server()
    assert await answer_of(server, client(pair=ours)) == 0
    for pair in (None, others.pair("theirs"), authority.pair("late", days=-1)):
        # With TLS 1.3 the client hears of it after its own handshake.
        with contextlib.suppress(OSError):
            found = await shaken(await connected(server), client(pair=pair))
            found.close()
        await eventually(lambda: server.open == 0)
    assert server.stats.tls.failed == {"certificate": 3}


async def test_a_client_that_does_not_trust_us_is_counted(tls: Bench, tmp_path: Path) -> None:
    server = await tls.server()
    with pytest.raises(ssl.SSLCertVerificationError):
        await shaken(await connected(server), client(Authority(tmp_path)))
    await eventually(lambda: server.open == 0)
    assert server.stats.tls.failed == {"refused by client": 1}


async def test_a_hello_in_pieces_is_put_together(tls: Bench) -> None:
    server = await tls.server()
    loop = asyncio.get_running_loop()
    data = hello()
    found = await connected(server, data[:1])
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    await eventually(lambda: server.open == 1)
    for start in range(1, len(data), 100):
        await loop.sock_sendall(found, data[start : start + 100])
        await asyncio.sleep(0)
    assert (await loop.sock_recv(found, 1)) == b"\x16"
    found.close()
    await eventually(lambda: server.open == 0)
    assert server.stats.tls.failed == {"gone": 1}


@pytest.mark.parametrize("part", [1, 4, 5, 6, 200, None])
async def test_a_handshake_that_stops_halfway_ends_in_time(tls: Bench, part: int | None) -> None:
    taking(tls).handshake_s = 0.1
    server = await tls.server()
    await ended(await connected(server, hello()[:part]))
    assert server.stats.tls.failed == {"timeout": 1}
    assert server.open == 0


async def test_what_was_not_logged_is_counted_when_the_time_is_over(
    tls: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(arrivals, "_REPORT_S", 0.5)
    caplog.set_level(logging.INFO, "aerobee.remoting")
    server = await tls.server()
    for _ in range(4):
        await ended(await connected(server, b"\x16\x03\x01\x00\x00"))

    def said(of: str) -> list[str]:
        return [line for line in caplog.messages if line.startswith(of)]

    await eventually(lambda: len(said("connection not taken peer=127.0.0.1:")) > 1)
    first, second = said("connection not taken peer=127.0.0.1:")
    assert 'reason="rubbish"' in first
    assert "unlogged" not in first
    assert second.endswith(" unlogged=3")


async def test_a_peer_that_leaves_halfway_is_forgotten(tls: Bench) -> None:
    server = await tls.server()
    for part in (0, 1, 5, 200, None):
        found = await connected(server, hello()[:part])
        await eventually(lambda: server.open == 1)
        found.close()
        await eventually(lambda: server.open == 0)


async def test_who_says_nothing_is_closed(tls: Bench) -> None:
    server = await tls.server(idle_s=0.1)
    await ended(await connected(server))
    taking(tls).required, taking(tls).handshake_s = True, 0.1
    await ended(await connected(await tls.server()))
    assert [one.stats.tls.failed for one in tls.servers] == [{"silent": 1}] * 2


async def test_very_many_whose_time_is_over_end_some_at_a_time(
    tls: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "_ENDED_AT_ONCE", 2)
    taking(tls).required, taking(tls).handshake_s = True, 0.2
    server = await tls.server()
    ended_of: list[int] = []
    end_late, fail = arrivals.Arrivals._end_late, arrivals.Arrivals._fail

    def counted(one: arrivals.Arrivals) -> None:
        ended_of.append(0)
        end_late(one)

    def counting(one: arrivals.Arrivals, *what: Any) -> None:
        ended_of[-1] += 1
        fail(one, *what)

    monkeypatch.setattr(arrivals.Arrivals, "_end_late", counted)
    monkeypatch.setattr(arrivals.Arrivals, "_fail", counting)
    silent = [await connected(server) for _ in range(7)]
    for one in silent:
        assert await ended(one) == b""
    assert (sum(ended_of), max(ended_of)) == (7, 2)


async def test_arrivals_count_in_the_limits(tls: Bench) -> None:
    server = await tls.server(connections=3, connections_per_address=2)
    held = [await connected(server), await connected(server, hello()[:9])]
    await eventually(lambda: server.open == 2)
    await ended(await connected(server))
    assert server.stats.refused_address == 1
    for found in held:
        found.close()
    await eventually(lambda: server.open == 0)
    assert await answer_of(server, client()) == 0


async def test_a_server_that_stops_ends_its_arrivals(tls: Bench) -> None:
    server = await tls.server()
    parts = (hello()[:part] for part in (0, 1, 200, None))
    held = [await connected(server, part) for part in parts]
    await eventually(lambda: server.open == 4)
    await server.close()
    assert server.open == 0
    for found in held:
        await ended(found)


#: Handshakes of which OpenSSL keeps something (decision 21).
UNDER_WAY = 256


async def test_thousands_of_half_handshakes_hold_nobody_up(
    tls: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions: weakref.WeakSet[TlsSession] = weakref.WeakSet()
    under_way: list[int] = []

    class Counted(TlsSession):
        __slots__ = ("__weakref__",)

        def __init__(self, context: ssl.SSLContext, found: socket.socket) -> None:
            super().__init__(context, found)
            sessions.add(self)
            under_way.append(sum(not one._shaken for one in sessions))

    monkeypatch.setattr(arrivals, "TlsSession", Counted)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * HALF + 500
    if hard < wanted:
        pytest.skip(f"{hard} open files are too few")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    # On a busy machine it takes longer to open them than one of them may take.
    taking(tls).handshake_s = 300
    held = []
    try:
        server = await tls.server()
        data = hello()
        # Half of them stop within their hello, half behind it.
        for number in range(HALF):
            held.append(await connected(server, data[: None if number % 2 else 100]))
        assert await answer_of(server, client()) == 0
        assert await answer_of(server, None) == 0
        # Clients within their hello wait for the rest of it; at most `UNDER_WAY` of the others are
        # under way.
        await eventually(lambda: server.open <= HALF // 2 + UNDER_WAY, 60)
        assert server.open >= HALF // 2
        assert server.stats.tls.handshakes == 1
        assert max(under_way) <= UNDER_WAY
    finally:
        for found in held:
            found.close()
        await eventually(lambda: server.open == 0, 20)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


#: Steps of handshakes in one turn of the loop (decision 21).
STEPS_A_TURN = 4


@pytest.fixture
async def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The turn of the loop in which each step of a server's handshake was done."""
    loop = asyncio.get_running_loop()
    turns, found = [0], []
    step = TlsSession.shake

    def count(session: TlsSession) -> bool:
        found.append(turns[0])
        return step(session)

    def turn() -> None:
        turns[0] += 1
        loop.call_soon(turn)

    monkeypatch.setattr(TlsSession, "shake", count)
    turn()
    return found


class Shaking:
    """A client whose flights are sent by hand."""

    def __init__(self, server: RemotingServer) -> None:
        self.socket = socket.create_connection(("127.0.0.1", server.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._side = client().wrap_bio(self._incoming, self._outgoing)
        self.done = False

    def flight(self) -> bytes:
        """The bytes that it sends next."""
        try:
            self._side.do_handshake()
            self.done = True
        except ssl.SSLWantReadError:
            pass
        return self._outgoing.read()

    def sealed(self, data: bytes) -> bytes:
        """After its handshake."""
        self._side.write(data)
        return self._outgoing.read()

    def opened(self) -> bytes:
        """The data that it got since, tickets aside."""
        try:
            return self._side.read(65536)
        except ssl.SSLWantReadError:
            return b""

    async def hear(self) -> None:
        self._incoming.write(await asyncio.get_running_loop().sock_recv(self.socket, 65536))

    async def finish(self) -> None:
        async with asyncio.timeout(10):
            while not self.done:
                await self.hear()
                self.socket.sendall(self.flight())
        self.socket.close()


@pytest.mark.parametrize("cut", [1, 5, 6, 20, 57, 58, 60, 100])
async def test_a_request_right_behind_a_handshake_that_comes_in_pieces_is_answered(
    tls: Bench, cut: int
) -> None:
    server = await tls.server()
    one = Shaking(server)
    one.socket.sendall(one.flight())
    await one.hear()
    flight = one.flight() + one.sealed(make_request(10).encode())
    one.socket.sendall(flight[:cut])
    await asyncio.sleep(0.02)
    one.socket.sendall(flight[cut:])
    await eventually(lambda: len(tls.handler.commands) == 1)
    one.socket.close()


async def test_a_peer_that_ends_its_side_behind_handshake_and_request_is_answered(
    tls: Bench,
) -> None:
    server = await tls.server()
    one = Shaking(server)
    one.socket.sendall(one.flight())
    await one.hear()
    one.socket.sendall(one.flight() + one.sealed(make_request(10).encode()))
    one.socket.shutdown(socket.SHUT_WR)
    decoder = FrameDecoder()
    async with asyncio.timeout(10):
        while not (found := decoder.feed(one.opened())):
            await one.hear()
    assert found[0].code == 0
    one.socket.close()


async def test_those_who_left_while_they_waited_end_a_few_a_turn(
    tls: Bench, steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "_UNDER_WAY_MAX", 1)
    server = await tls.server()
    turns = [0]
    ended_in: list[int] = []
    fail = arrivals.Arrivals._fail

    def failing(self: arrivals.Arrivals, arrival: Any, reason: Any, detail: str) -> None:
        if reason == "gone":
            ended_in.append(turns[0])
        fail(self, arrival, reason, detail)

    def turn() -> None:
        turns[0] += 1
        asyncio.get_running_loop().call_soon(turn)

    monkeypatch.setattr(arrivals.Arrivals, "_fail", failing)
    turn()
    held = await connected(server, hello())
    await eventually(lambda: len(steps) == 1)
    crowd = [await connected(server, hello()) for _ in range(100)]
    for one in crowd:
        one.close()
    await eventually(lambda: len(ended_in) == 100)
    assert max(map(ended_in.count, ended_in)) <= STEPS_A_TURN**2
    held.close()
    assert await answer_of(server, client()) == 0


async def test_hellos_in_a_thousand_records_hold_nobody_up(tls: Bench) -> None:
    """Neither handshakes under way nor the next client wait, and no such handshake is done."""
    server = await tls.server()
    body = hello()[5:] + bytes(4000)
    body = body[:1] + (len(body) - 4).to_bytes(3, "big") + body[4:]
    records = b"".join(b"\x16\x03\x01\x00\x01" + body[at : at + 1] for at in range(len(body)))
    crowd = [await connected(server, records) for _ in range(60)]
    began = len(tls.handler.commands)
    assert await answer_of(server, client()) == 0
    assert len(tls.handler.commands) == began + 1
    await eventually(lambda: server.open <= 1, 20)
    assert server.stats.tls.failed == {"rubbish": 60}
    for found in crowd:
        found.close()


async def test_a_crowd_shakes_hands_a_few_steps_a_turn(tls: Bench, steps: list[int]) -> None:
    """Between them the loop turns, so others are served."""
    server = await tls.server()
    crowd = [Shaking(server) for _ in range(25)]
    for one in crowd:
        one.socket.sendall(one.flight())
    await eventually(lambda: len(steps) == 25)
    for one in crowd:
        await one.finish()
    await eventually(lambda: server.stats.tls.handshakes == 25)
    assert max(map(steps.count, steps)) <= STEPS_A_TURN


async def test_a_crowd_that_is_asked_again_shakes_hands_a_few_steps_a_turn(
    tls: Bench, steps: list[int]
) -> None:
    """The second hello has the dear step behind it, and all of them come at once."""
    # Not among those that a client offers by itself.
    taking(tls).context.set_ecdh_curve("secp384r1")
    server = await tls.server()
    crowd = [Shaking(server) for _ in range(25)]
    for one in crowd:
        one.socket.sendall(one.flight())
        await one.hear()
    flights = [one.flight() for one in crowd]
    assert all(flights)
    assert not any(one.done for one in crowd)
    steps.clear()
    for one, flight in zip(crowd, flights, strict=True):
        one.socket.sendall(flight)
    await eventually(lambda: len(steps) == 25)
    assert max(map(steps.count, steps)) <= STEPS_A_TURN
    # And the last flights.
    for one in crowd:
        await one.hear()
    steps.clear()
    for one in crowd:
        one.socket.sendall(one.flight())
    await eventually(lambda: server.stats.tls.handshakes == 25)
    assert max(map(steps.count, steps)) <= STEPS_A_TURN
    for one in crowd:
        await one.finish()


@pytest.mark.parametrize("cut", [1, 3, 4, 50], ids=lambda cut: f"at_{cut}")
async def test_a_crowd_of_hellos_in_two_records_shakes_hands_a_few_steps_a_turn(
    tls: Bench, steps: list[int], cut: int
) -> None:
    server = await tls.server()
    crowd = [Shaking(server) for _ in range(25)]
    rest = []
    for one in crowd:
        hello = one.flight()[5:]
        one.socket.sendall(record(hello[:cut]))
        rest.append(record(hello[cut:]))
    await eventually(lambda: server.open == 25)
    for _ in range(50):
        await asyncio.sleep(0)
    # Nothing is made for half of a hello.
    assert not steps
    for one, data in zip(crowd, rest, strict=True):
        one.socket.sendall(data)
    await eventually(lambda: len(steps) == 25)
    for one in crowd:
        await one.finish()
    await eventually(lambda: server.stats.tls.handshakes == 25)
    assert max(map(steps.count, steps)) <= STEPS_A_TURN


def record(content: bytes) -> bytes:
    return b"\x16\x03\x01" + len(content).to_bytes(2, "big") + content


async def test_a_hello_of_many_small_records_is_put_together(tls: Bench) -> None:
    server = await tls.server()
    one = Shaking(server)
    hello = one.flight()[5:]
    for start in range(0, len(hello), 20):
        one.socket.sendall(record(hello[start : start + 20]))
        await asyncio.sleep(0)
    await one.finish()
    await eventually(lambda: server.stats.tls.handshakes == 1)


async def test_steps_that_take_long_are_fewer_a_turn(
    tls: Bench, steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that signs slowly takes no more of a turn than others of their size."""
    now = itertools.count()
    monkeypatch.setattr(arrivals, "perf_counter", lambda: next(now) * SLICE_S)
    server = await tls.server()
    crowd = [Shaking(server) for _ in range(10)]
    for one in crowd:
        one.socket.sendall(one.flight())
    await eventually(lambda: len(steps) == 10)
    assert max(map(steps.count, steps)) == 1
    for one in crowd:
        await one.finish()


async def test_another_certificate_is_for_those_who_come_after(tls: Bench, tmp_path: Path) -> None:
    server = await tls.server()
    authority = Authority(tmp_path)
    old = await shaken(await connected(server), client())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    pair = authority.pair("new")
    context.load_cert_chain(pair.certificate, pair.key)
    taking(tls).context = context
    new = await shaken(await connected(server), client(authority))
    shown = [one.getpeercert(binary_form=True) for one in (old, new)]
    files = (CERTIFICATE, pair.certificate)
    assert shown == [ssl.PEM_cert_to_DER_cert(file.read_text()) for file in files]
    # Earlier clients are served on.
    old.setblocking(True)
    old.send(make_request(10).encode())
    await eventually(lambda: len(tls.handler.commands) == 1)
    old.close()
    new.close()


async def test_failures_of_one_kind_are_logged_once_a_minute(
    tls: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "aerobee.remoting")
    server = await tls.server()
    for _ in range(3):
        await ended(await connected(server, b"\x16\x04"))
    lines = [line for line in caplog.messages if "not taken" in line]
    assert len(lines) == 1
    assert "peer=127.0.0.1:" in lines[0]
    assert 'reason="rubbish"' in lines[0]
    assert server.stats.tls.failed == {"rubbish": 3}
