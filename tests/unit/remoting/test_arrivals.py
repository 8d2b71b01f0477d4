"""What happens to a socket between its accept and its first frame, where TLS is taken."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aerobee.protocol.frames.command import make_request
from aerobee.protocol.frames.frame import FrameDecoder
from aerobee.remoting.server import RemotingServer
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
    """A raw socket that has sent so much."""
    loop = asyncio.get_running_loop()
    found = socket.socket()
    found.setblocking(False)
    await loop.sock_connect(found, ("127.0.0.1", server.port))
    await loop.sock_sendall(found, data)
    return found


async def ended(found: socket.socket) -> bytes:
    """What comes until the server has closed it."""
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


async def test_thousands_of_half_handshakes_hold_nobody_up(tls: Bench) -> None:
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
        await eventually(lambda: server.open == HALF, 60)
        assert server.stats.tls.handshakes == 1
    finally:
        for found in held:
            found.close()
        await eventually(lambda: server.open == 0, 20)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_crowd_begins_its_handshakes_a_few_a_turn(
    tls: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between them the loop turns, so others are served."""
    loop = asyncio.get_running_loop()
    turns, begun = [0], []
    wrap = ssl.SSLContext.wrap_socket

    def count(*given, **named):
        if named.get("server_side"):
            begun.append(turns[0])
        return wrap(*given, **named)

    def turn() -> None:
        turns[0] += 1
        loop.call_soon(turn)

    monkeypatch.setattr(ssl.SSLContext, "wrap_socket", count)
    server = await tls.server()
    turn()
    held = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(25)]
    for found in held:
        found.sendall(hello())
    await eventually(lambda: len(begun) == 25)
    assert max(map(begun.count, begun)) <= 2
    for found in held:
        found.close()


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
    # Who was there before is served on.
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
