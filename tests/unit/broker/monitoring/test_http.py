"""Claims about the HTTP port: what it serves, what it refuses, and its bounds."""

import asyncio
import contextlib
import errno
import json
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import cast

import pytest

from aerobee.broker.cluster.registration.registration import Registrar
from aerobee.broker.monitoring.health_checks import (
    HealthChecks,
    LoopMonitor,
    disk_probe,
    health_routes,
    registered_probe,
)
from aerobee.broker.monitoring.http import HttpLimits, HttpServer, Request, Response
from aerobee.config.bounds.limits import raise_open_files
from aerobee.remoting.errors import RemotingListenError
from aerobee.remoting.listening.arrivals import Encryption
from aerobee.store.disk.files import DiskSpace
from tests.tls.authority import client
from tests.unit.remoting.conftest import Taking

pytestmark = pytest.mark.both_loops

Starter = Callable[..., Awaitable[HttpServer]]


async def hello(request: Request) -> Response:
    return Response(200, f"hello {request.query}".encode())


async def long(_request: Request) -> Response:
    return Response(200, parts=(b"part %d;" % number for number in range(3)), held_bytes=9)


async def broken(_request: Request) -> Response:
    raise ValueError("a bug")


@pytest.fixture
async def start() -> AsyncIterator[Starter]:
    servers: list[HttpServer] = []

    async def starter(encryption: Encryption | None = None, **limits: float) -> HttpServer:
        routes = {"/hello": hello, "/long": long, "/broken": broken}
        bounds = HttpLimits(**limits)  # type: ignore[arg-type]
        server = HttpServer("127.0.0.1", 0, routes, bounds, encryption)
        await server.start()
        servers.append(server)
        return server

    yield starter
    for server in servers:
        await server.close()
        assert server.open == 0


async def ask(server: HttpServer, text: bytes, tls: ssl.SSLContext | None = None) -> bytes:
    """Send `text` and read to the end of the connection."""
    async with asyncio.timeout(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=tls)
        writer.write(text)
        answer = await reader.read()
        writer.close()
        return answer


def get(path: str, *headers: str, method: str = "GET", close: bool = True) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: broker", *headers]
    if close:
        lines.append("Connection: close")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def test_get_gives_body_and_length(start: Starter) -> None:
    answer = await ask(await start(), get("/hello?you"))
    head, body = answer.split(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert b"Content-Length: 9" in head
    assert body == b"hello you"


@pytest.mark.parametrize("required", [False, True])
async def test_tls_is_served_beside_plain_or_alone(start: Starter, required: bool) -> None:
    server = await start(Taking(required=required))
    for path, start_of in (("/hello?you", b"HTTP/1.1 200"), ("/broken", b"HTTP/1.1 500")):
        assert (await ask(server, get(path), client())).startswith(start_of)
    assert (await ask(server, get("/long"), client())).count(b"part ") == 3
    assert server.tls.handshakes == 3
    if required:
        with contextlib.suppress(ConnectionError):
            assert await ask(server, get("/hello")) == b""
        assert server.tls.failed == {"plain on enforcing": 1}
    else:
        assert (await ask(server, get("/hello"))).startswith(b"HTTP/1.1 200")


async def test_tls_where_none_is_taken_is_counted_and_logged_once(
    start: Starter, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "aerobee.broker")
    server = await start()
    for _ in range(3):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await ask(server, get("/hello"), client())
    assert server.tls.failed == {"tls on disabled": 3}
    said = [text for text in caplog.messages if "tls on disabled" in text]
    assert len(said) == 1
    assert (await ask(server, get("/hello"))).startswith(b"HTTP/1.1 200")


async def test_who_says_nothing_makes_room_where_tls_is_taken(start: Starter) -> None:
    server = await start(Taking(), connections=3)
    silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(9)]
    assert (await ask(server, get("/hello"), client())).startswith(b"HTTP/1.1 200")
    assert server.tls.arriving <= 3
    assert server.evicted >= 6
    for _, writer in silent:
        writer.close()


async def test_a_taken_port_is_named_with_the_setting_that_moves_it() -> None:
    first = HttpServer("127.0.0.1", 0, {})
    await first.start()
    port = first.port
    second = HttpServer("127.0.0.1", port, {})
    with pytest.raises(RemotingListenError) as caught:
        await second.start()
    await first.close()
    text = str(caught.value)
    assert f"127.0.0.1 port {port}: " in text
    assert "--http-port" in text
    assert "0 turns it off" in text
    assert "Errno" not in text


async def test_head_gives_the_length_without_the_body(start: Starter) -> None:
    answer = await ask(await start(), get("/hello?you", method="HEAD"))
    head, body = answer.split(b"\r\n\r\n")
    assert b"Content-Length: 9" in head
    assert body == b""


async def test_a_body_in_parts_arrives_whole_and_the_connection_goes_on(start: Starter) -> None:
    answer = await ask(await start(), get("/long", close=False) + get("/hello?you"))
    head, _, rest = answer.partition(b"\r\n\r\n")
    assert b"chunked" in head
    assert b"Content-Length" not in head
    assert rest.startswith(b"7\r\npart 0;\r\n7\r\npart 1;\r\n7\r\npart 2;\r\n0\r\n\r\n")
    assert answer.endswith(b"hello you")


async def test_connection_carries_many_requests_also_pipelined(start: Starter) -> None:
    text = get("/hello?a", close=False) + get("/hello?b", close=False) + get("/hello?c")
    answer = await ask(await start(), text)
    assert [word for word in (b"hello a", b"hello b", b"hello c") if word in answer] == [
        b"hello a",
        b"hello b",
        b"hello c",
    ]


async def test_unknown_path_lists_what_there_is(start: Starter) -> None:
    answer = await ask(await start(), get("/nothing"))
    assert answer.startswith(b"HTTP/1.1 404 Not Found")
    assert b"/hello\n" in answer


async def test_other_methods_are_refused(start: Starter) -> None:
    answer = await ask(await start(), get("/hello", method="DELETE"))
    assert answer.startswith(b"HTTP/1.1 405 ")
    assert b"Allow: GET, HEAD" in answer


async def test_failing_route_answers_500_and_is_logged(
    start: Starter, caplog: pytest.LogCaptureFixture
) -> None:
    server = await start()
    with caplog.at_level(logging.ERROR):
        answer = await ask(server, get("/broken", close=False))
    assert answer.startswith(b"HTTP/1.1 500 ")
    assert "ValueError: a bug" in caplog.text
    assert b"a bug" not in answer


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (b"\x00\x00\x00\x10 no http at all\r\n\r\n", 400),
        (b"GET /hello HTTP/1.1\r\n\r\n", 400),
        (b"GET /hello HTTP/1.1\r\nHost: b\r\nX: " + b"a" * 40_000, 431),
        (b"POST /hello HTTP/1.1\r\nHost: b\r\nContent-Length: 3\r\n\r\nabc", 413),
        (b"POST /hello HTTP/1.1\r\nHost: b\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", 413),
    ],
)
async def test_what_is_not_a_plain_request_is_refused(
    start: Starter, text: bytes, status: int
) -> None:
    server = await start()
    assert (await ask(server, text)).startswith(f"HTTP/1.1 {status} ".encode())
    assert (await ask(server, get("/hello?you"))).endswith(b"hello you")


async def test_slow_request_gets_408(start: Starter) -> None:
    server = await start(head_timeout_s=0.05)
    assert (await ask(server, b"GET /hello HTT")).startswith(b"HTTP/1.1 408 ")


async def test_silent_connection_is_closed(start: Starter) -> None:
    assert await ask(await start(head_timeout_s=0.05), b"") == b""


async def test_served_connection_is_closed_when_idle(start: Starter) -> None:
    server = await start(idle_timeout_s=0.05)
    assert (await ask(server, get("/hello?you", close=False))).endswith(b"hello you")


async def test_half_request_makes_room_for_a_new_connection(start: Starter) -> None:
    server = await start(connections=1)
    reader, first = await asyncio.open_connection("127.0.0.1", server.port)
    first.write(b"GET /hel")
    assert (await ask(server, get("/hello?you"))).endswith(b"hello you")
    assert await reader.read() == b""
    assert (server.evicted, server.refused) == (1, 0)
    first.close()


async def never(_request: Request) -> Response:
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


async def big(_request: Request) -> Response:
    return Response(200, bytes(16 << 20))


STATES = {
    "idle": get("/hello", close=False),
    "reading": b"GET /hel",
    "writing": get("/big"),
    "served": get("/never"),
}


@pytest.mark.parametrize(
    ("first", "second"), [("idle", "reading"), ("reading", "writing"), ("writing", "served")]
)
async def test_who_makes_room_first(start: Starter, first: str, second: str) -> None:
    """Idle, then half a request, then an answer not taken, then an answer that is being made."""
    server = await start(connections=2)
    server._routes |= {"/never": never, "/big": big}
    writers = []
    async with asyncio.timeout(20):
        for state in (second, first):  # the connection that goes first came last
            _, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1024)
            writers.append(writer)
            writer.write(STATES[state])
            while not getattr(server, f"_{state}"):  # noqa: ASYNC110 - the server tells nobody
                await asyncio.sleep(0)
        (stays,) = getattr(server, f"_{second}")
        assert (await ask(server, get("/hello?you"))).endswith(b"hello you")
        assert stays in server._connections
        assert (server.open, server.evicted) == (1, 1)
    for writer in writers:
        writer.close()


async def test_probes_are_answered_while_a_thousand_connections_dribble(start: Starter) -> None:
    """A hundred that were pushed out come back just before each probe.

    Not after a time of their own: a slow machine would do nothing but accept them.
    """
    raise_open_files(4096)
    server = await start()
    opened = 0
    again = asyncio.Semaphore(0)

    async def dribble() -> None:
        nonlocal opened
        while True:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            opened += 1
            writer.write(b"GET /hello HTTP/1.1\r\nHo")
            with contextlib.suppress(ConnectionError):
                await reader.read()
            writer.close()
            await again.acquire()

    dribblers = [asyncio.create_task(dribble()) for _ in range(1000)]
    async with asyncio.timeout(60):
        while opened < 1000:  # noqa: ASYNC110 - sockets tell nobody
            await asyncio.sleep(0.01)
        for _ in range(20):
            for _ in range(100):
                again.release()
            await asyncio.sleep(0)
            assert (await ask(server, get("/hello?probe"))).endswith(b"hello probe")
            assert server.open <= 64
    assert server.refused == 0
    assert server.evicted > 2000
    for task in dribblers:
        task.cancel()
    await asyncio.wait(dribblers)


async def test_a_peer_that_pipelines_without_end_lets_the_loop_turn(start: Starter) -> None:
    server = await start()
    served: list[int] = []
    turns = 0

    async def note(_request: Request) -> Response:
        served.append(turns)
        return Response(200, b"")

    server._routes["/n"] = note

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    await ask(server, get("/n", close=False) * 100 + get("/n"))
    counting.cancel()
    assert len(served) == len(set(served)) == 101


async def test_unsent_answers_are_bounded_in_all(start: Starter) -> None:
    """A peer that takes nothing has its page; the next one is told to come again."""
    server = await start(unsent_bytes=20 << 20)
    server._routes["/big"] = big
    _, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1024)
    writer.write(get("/big"))
    async with asyncio.timeout(20):
        while not server._writing:  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(0)
        assert (await ask(server, get("/big"))).startswith(b"HTTP/1.1 503 ")
        assert (await ask(server, get("/hello?you"))).endswith(b"hello you")
    writer.close()


CHUNKED = b"POST /hello HTTP/1.1\r\nHost: b\r\nTransfer-Encoding: chunked\r\n\r\n"
HEAD = b"GET /hello HTTP/1.1\r\nHost: b\r\n"
BEHIND = get("/hello?smuggled")


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n0\r\n\r\n", 400),
        (HEAD + b"Content-Length: 0\r\nContent-Length: 40\r\n\r\n", 400),
        (HEAD + b"Content-Length: +0\r\n\r\n", 400),
        (HEAD + b"Content-Length: 99999999999999999999999\r\n\r\n", 400),
        (HEAD + b"Content-Length: 44\r\n\r\n", 413),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 413),
        (HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        (HEAD + b"Transfer-Encoding: xchunked\r\n\r\n", 501),
        (HEAD + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", 400),
        (HEAD + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n", 400),
        (CHUNKED + b"f" * 30 + b"\r\n", 413),
        (CHUNKED + b"-1\r\n", 413),
        (CHUNKED + b"0;" + b"a" * 100_000, 413),
        (b"GET /hello HTTP/1.1\nHost: b\n\n", 400),
        (HEAD + b"X: a\nContent-Length: 40\r\n\r\n", 400),
        (HEAD + b"X: a\rY: b\r\n\r\n", 400),
        (HEAD + b"X: a\r\n\tb\r\n\r\n", 400),
        (b"GET /hello HTTP/1.1\r\n Host: b\r\n\r\n", 400),
        (b"GET /hello\r\n\r\n", 400),
        (b"GET /hello HTTP/1.2\r\nHost: b\r\n\r\n", 505),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"GET /hello x HTTP/1.1\r\nHost: b\r\n\r\n", 400),
        (b"\r\n\r\nGET /hello HTTP/1.1\r\nHost: b\r\n\r\n", 400),
        (HEAD + b"Host: c\r\n\r\n", 400),
        (HEAD + b"X: a\x00b\r\n\r\n", 400),
        (HEAD + b"X\x00: b\r\n\r\n", 400),
        (b"GET /he\x00llo HTTP/1.1\r\nHost: b\r\n\r\n", 400),
        (HEAD + b"X: " + b"a" * 40_000 + b"\r\n\r\n", 431),
        (HEAD + b"X: y\r\n" * 8000 + b"\r\n", 431),
        (b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\nHost: b\r\n\r\n", 431),
    ],
)
async def test_what_two_servers_could_read_in_two_ways_is_refused_and_ends_the_connection(
    start: Starter, text: bytes, status: int
) -> None:
    server = await start()
    for pieces in ([text + BEHIND], [text, BEHIND]):
        async with asyncio.timeout(10):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            with contextlib.suppress(ConnectionError):
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
            answer = b""
            with contextlib.suppress(ConnectionError):  # closed with unread bytes: a reset
                while piece := await reader.read(4096):
                    answer += piece
            writer.close()
        assert b"smuggled" not in answer
        assert answer == b"" or answer.startswith(f"HTTP/1.1 {status} ".encode())
    assert server.requests == {status: 2}


@pytest.mark.parametrize("loose", [b"\n\r\n", b"\r\n folded\r\n\r\n"])
async def test_a_loose_line_is_seen_wherever_the_reads_are_cut(
    start: Starter, loose: bytes
) -> None:
    server = await start()
    begin = b"GET /hello HTTP/1.1\r\nHost: b"
    text = begin + loose
    async with asyncio.timeout(20):
        for cut in range(1, len(begin) + 1 + 2 * loose.startswith(b"\r")):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(text[:cut])
            while not server._reading:  # noqa: ASYNC110 - the server tells nobody
                await asyncio.sleep(0)
            for _ in range(3):
                await asyncio.sleep(0)
            writer.write(text[cut:])
            assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
            writer.close()


async def test_idle_connection_makes_room_for_a_new_one(start: Starter) -> None:
    server = await start(connections=1)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(get("/hello?first", close=False))
    assert (await reader.readuntil(b"hello first")).startswith(b"HTTP/1.1 200")
    assert (await ask(server, get("/hello?second"))).endswith(b"hello second")
    assert await reader.read() == b""
    writer.close()


async def test_peer_that_takes_no_answer_is_dropped(start: Starter) -> None:
    server = await start(write_timeout_s=0.1)
    asked = asyncio.Event()

    async def big(_request: Request) -> Response:
        asked.set()
        return Response(200, bytes(64 << 20))

    server._routes["/big"] = big
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1024)
    writer.write(get("/big"))
    async with asyncio.timeout(10):
        await asked.wait()
        await asyncio.wait(server._connections)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await reader.readexactly(64 << 20)
    writer.close()


# --- health -------------------------------------------------------------------------------------


def stuck_for(seconds: float) -> LoopMonitor:
    return cast("LoopMonitor", SimpleNamespace(stuck_s=lambda: seconds))


def registrar(registered: dict[str, bool], errors: dict[str, str] | None = None) -> Registrar:
    return cast("Registrar", SimpleNamespace(registered=registered, errors=errors or {}))


class FakeStore:
    reason: str | None = None

    def not_writable_reason(self) -> str | None:
        return self.reason


async def test_ready_names_what_is_wrong_since_when_and_what_to_do() -> None:
    now = [1_795_000_000.0]
    store, registered = FakeStore(), {"127.0.0.1:9876": True}
    health = HealthChecks(wall_clock=lambda: now[0])
    health.add("store", store.not_writable_reason, "look at the log for the first failed sync")
    health.add("registered", registered_probe(registrar(registered)), "is the name server up?")
    routes = health_routes(health, stuck_for(0.1))
    answer = await routes["/ready"](Request("GET", "/ready"))
    assert answer.status == 200
    assert health.ready

    now[0] += 60
    store.reason = "the store is broken: EIO"
    await routes["/readyz"](Request("GET", "/readyz"))
    now[0] += 60
    answer = await routes["/ready"](Request("GET", "/ready"))
    assert answer.status == 503
    assert answer.content_type == "application/json"
    body = json.loads(answer.body)
    assert body["ready"] is False
    assert body["checks"][0] == {
        "check": "store",
        "ok": False,
        "since": "2026-11-18T11:07:40.000+00:00",
        "reason": "the store is broken: EIO",
        "what_to_do": "look at the log for the first failed sync",
    }
    assert body["checks"][1]["ok"] is True

    store.reason = None
    assert (await routes["/ready"](Request("GET", "/ready"))).status == 200


async def test_a_note_is_told_and_leaves_the_broker_ready() -> None:
    store = FakeStore()
    store.reason = "accounts stay as they were"
    health = HealthChecks(wall_clock=lambda: 1_795_000_000.0)
    health.note("accounts", store.not_writable_reason, "aerobee acl check says what is wrong")
    answer = await health_routes(health, stuck_for(0.1))["/ready"](Request("GET", "/ready"))
    assert answer.status == 200
    assert json.loads(answer.body) == {
        "ready": True,
        "checks": [
            {
                "check": "accounts",
                "ok": False,
                "since": "2026-11-18T11:06:40.000+00:00",
                "note": True,
                "reason": "accounts stay as they were",
                "what_to_do": "aerobee acl check says what is wrong",
            }
        ],
    }


def test_a_note_is_shown_only_while_it_applies() -> None:
    store, now, applies = FakeStore(), [100.0], [False]
    health = HealthChecks(wall_clock=lambda: now[0])
    health.note("slaves", store.not_writable_reason, "", applies=lambda: applies[0])
    assert health.run() == []
    applies[0] = True
    assert [one.since for one in health.run()] == [100.0]
    applies[0], now[0] = False, 200.0
    assert health.run() == []
    applies[0], now[0] = True, 300.0
    assert [one.since for one in health.run()] == [300.0]


async def test_live_is_about_the_loop_alone() -> None:
    store = FakeStore()
    store.reason = "broken"
    health = HealthChecks()
    health.add("store", store.not_writable_reason, "")
    routes = health_routes(health, stuck_for(0.5))
    assert (await routes["/live"](Request("GET", "/live"))).status == 200
    routes = health_routes(health, stuck_for(60.0))
    assert (await routes["/livez"](Request("GET", "/livez"))).status == 503


def test_registration_needs_one_name_server_of_those_configured() -> None:
    assert registered_probe(registrar({}))() is None
    assert registered_probe(registrar({"a:1": False, "b:1": True}))() is None
    said = registered_probe(registrar({"b:1": False, "a:1": False}, {"b:1": "it is full"}))()
    assert "a:1, b:1 (it is full)" in (said or "")


def test_disk_probe_counts_like_df() -> None:
    assert disk_probe(["/d"], "/d", 0.9, lambda _path: DiskSpace(850, 100))() is None
    reason = disk_probe(["/d"], "/d", 0.9, lambda _path: DiskSpace(860, 90))()
    assert reason is not None
    assert reason.startswith("the disk of /d is 90.5% full; sends are refused above 90%")


def test_a_slave_on_a_full_disk_speaks_of_no_sends_that_it_refuses() -> None:
    full = disk_probe(["/d"], "/d", 0.9, lambda _path: DiskSpace(860, 90), is_slave=lambda: True)
    reason = full()
    assert isinstance(reason, str)
    assert "sends are refused" not in reason
    assert "this slave takes its master's log until there is no room" in reason


def test_emptiest_log_disk_and_the_disk_of_the_queues_decide() -> None:
    disks = {"/a": DiskSpace(95, 5), "/b": DiskSpace(50, 50), "/q": DiskSpace(50, 50)}
    probe = disk_probe(["/a", "/b"], "/q", 0.9, disks.__getitem__)
    assert probe() is None
    disks["/q"] = DiskSpace(95, 5)
    assert "the disk of /q is 95.0% full" in (probe() or "")


def test_disk_that_cannot_be_asked_is_not_ready() -> None:
    def ask(_path: str) -> DiskSpace:
        raise OSError(errno.EIO, "Input/output error")

    said = disk_probe(["/d"], "/d", 0.9, ask)()
    assert said == "the file system of /d cannot be asked: [Errno 5] Input/output error"


def test_what_is_missing_of_the_store_is_named_and_no_space_is_asked_for() -> None:
    """Its advice was to free space, or to lower fileReservedTime."""
    health = HealthChecks()
    health.add("disk", disk_probe(["/no/such/place"], "/", 0.9), "free space")
    (verdict,) = health.run()
    assert not verdict.ok
    assert verdict.reason == "/no/such/place is not there any more"
    assert verdict.remedy.startswith("put back what is missing, or mount it again, then restart")
