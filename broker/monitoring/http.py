"""The one HTTP port: metrics, liveness, readiness. GET, HEAD and one POST, everything bounded.

h11 parses and writes HTTP/1.1; asyncio's streams carry the bytes on the broker's own loop. The
servers of prometheus-client and of the standard library have a thread for each connection, and no
bound on what a peer sends, on how slowly, and on what it does not take. Some things that h11 lets
pass for old peers are refused, because a proxy in front may read them in another way:
Content-Length beside Transfer-Encoding, lines that end in a bare line feed, folded header lines,
versions other than 1.0 and 1.1. There are no request bodies: a head that announces one is answered
with 413, and the connection ends, so no byte after it is taken for a request.

The port is for one scraper and a few probes, so its limits are small (`HttpLimits`) and it cannot
starve the broker's clients. At most `connections` are open at once, and a newcomer is served: the
connection that has been idle longest makes room for it, else the connection that has been sending
its request longest, then taking its answer, then waiting for it. A thousand peers that dribble push
out each other, and a probe, which sends its request at once, is answered in its turn. A request
head has at most `head_bytes` and must arrive within `head_timeout_s`; answers that peers have not
taken have at most `unsent_bytes` in all (503 above that), and each part must have been taken within
`write_timeout_s`. A connection that has been served closes after `idle_timeout_s` of silence.
Between two requests of a connection the loop turns, however many it sends at once.

With a certificate the port takes TLS and plain HTTP, or TLS alone, as the ports for clients do
(`remoting/listening/arrivals.py`). At most `connections` more wait there for their first bytes; the
longest wait makes room.

A route is a coroutine function `(Request) -> Response`. It takes GET and HEAD; a route that is
`Changing` takes POST besides, without a body, and decides itself who may. A route that raises is a
bug of ours: it is logged with its traceback and answered with 500; the connection is closed. A
route that computes for long hands its work to a thread itself: all else here is the loop's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple, TypeAlias

import h11
import msgspec.json

from aerobee.remoting.connection_stats import ServerStats, TlsFailure
from aerobee.remoting.errors import RemotingListenError
from aerobee.remoting.listening.arrivals import Arrivals, ArrivalTimes, Encryption
from aerobee.remoting.listening.server import Listening
from aerobee.remoting.peers import address_text, plain_address
from aerobee.remoting.tls.tls_session import TlsSession
from aerobee.remoting.tls.tls_transport import TlsTransport
from aerobee.summed_log import SummedLog

log = logging.getLogger("aerobee.broker.http")

_READ_BYTES = 4096
_ACCEPT_PAUSE_S = 1.0
# Between two looks for arrivals that are late.
_LOOK_S = 1.0
# The first byte of TLS (RFC 8446, 5.1), and of no request.
_HANDSHAKE = b"\x16"
# A line feed without its carriage return, or a line that goes on in the next line.
_LOOSE_LINE = re.compile(rb"(?<!\r)\n|\r\n[ \t]")
_BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1\r\n"
    b"Connection: close\r\n\r\n"
)


class HttpLimits(NamedTuple):
    """Bounds of the port; times in seconds."""

    connections: int = 64
    head_bytes: int = 16_384
    head_timeout_s: float = 5.0
    # Longer than the usual scrape interval, so that a scraper keeps its connection.
    idle_timeout_s: float = 150.0
    write_timeout_s: float = 10.0
    # Some large pages of metrics.
    unsent_bytes: int = 32 << 20


@dataclass(frozen=True, slots=True)
class Request:
    """One request: `headers` have lower-case names, the first of a repeated name counts."""

    method: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    #: The address of the peer, "" where it is not known.
    peer: str = ""


class Response(NamedTuple):
    """An answer; `headers` come beside content type and length.

    A long body may come in parts instead, each made when the peer has taken the part before it;
    `held_bytes` are kept for them meanwhile.
    """

    status: int
    body: bytes = b""
    content_type: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()
    parts: Iterable[bytes] | None = None
    held_bytes: int = 0

    @property
    def size(self) -> int:
        """Bytes in memory until it has been sent."""
        return self.held_bytes + len(self.body)


def json_response(status: int, body: object) -> Response:
    """An answer in JSON, laid out for people."""
    text = msgspec.json.format(msgspec.json.encode(body)) + b"\n"
    return Response(status, text, "application/json")


# Not those of the standard library, whose module has clients and messages besides. A status
# of h11's that is missing here goes without a phrase.
_REASONS = {
    200: b"OK",
    400: b"Bad Request",
    403: b"Forbidden",
    404: b"Not Found",
    405: b"Method Not Allowed",
    408: b"Request Timeout",
    409: b"Conflict",
    413: b"Content Too Large",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    501: b"Not Implemented",
    503: b"Service Unavailable",
    505: b"HTTP Version Not Supported",
}
# A scraper gets this while others wait for more than the port may hold.
BUSY = Response(503, b"busy; try again\n", headers=(("Retry-After", "1"),))

_Waiting: TypeAlias = dict[asyncio.Task[None], None]
Route: TypeAlias = Callable[[Request], Awaitable[Response]]


class Changing(NamedTuple):
    """A route that also takes POST."""

    serve: Route


class _Refused(Exception):
    """The peer's request cannot be served; the connection ends after the answer."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.response = Response(status, f"{text}\n".encode())


class HttpServer:
    """Serves `routes` (path to coroutine function) on one address.

    `open`, `refused` and `evicted` count connections, `requests` counts answers by status, `tls`
    counts handshakes.
    """

    def __init__(
        self,
        host: str,
        port: int,
        routes: Mapping[str, Route | Changing],
        limits: HttpLimits | None = None,
        encryption: Encryption | None = None,
    ) -> None:
        """Without `encryption` no TLS is taken."""
        self._asked_for = host, port
        self._routes = dict(routes)
        self._limits = limits or HttpLimits()
        self._encryption = encryption
        stats = ServerStats()
        self.tls = stats.tls
        self._listening = Listening("http", stats, _ACCEPT_PAUSE_S)
        self._arrivals: Arrivals | None = None
        self._sums: SummedLog | None = None
        self._connections: set[asyncio.Task[None]] = set()
        # Connections by what they wait for, the longest first, in the order in which they end.
        self._idle: _Waiting = {}
        self._reading: _Waiting = {}
        self._writing: _Waiting = {}
        self._served: _Waiting = {}
        self._stages = (self._idle, self._reading, self._writing, self._served)
        self._unsent_bytes = 0
        self.refused = 0
        self.evicted = 0
        self.requests: dict[int, int] = {}

    async def start(self) -> None:
        """Listen. Raises `RemotingListenError` when the address cannot be had.

        This port is the first a daemon takes, and 5557 for every daemon: a second daemon on a
        machine hears of it here.
        """
        loop = asyncio.get_running_loop()
        self._sums = SummedLog(loop.time, call_later=loop.call_later)
        if self._encryption is not None:
            times = ArrivalTimes(self._limits.head_timeout_s, _LOOK_S)
            self._arrivals = Arrivals(self._encryption, times, self, self.tls, "http")
        try:
            await self._listening.open(*self._asked_for, self)
        except RemotingListenError as error:
            raise RemotingListenError(
                f"metrics and health: {error}; choose another port with --http-port (http.port), "
                "0 turns it off"
            ) from error

    @property
    def port(self) -> int:
        """The port listened on; the real one when 0 was asked for."""
        return self._listening.ports[0]

    @property
    def open(self) -> int:
        return len(self._connections)

    async def close(self) -> None:
        """Stop listening and end all connections, answered or not."""
        await self._listening.close()
        if self._arrivals is not None:
            await self._arrivals.close()
        if self._connections:
            for task in self._connections:
                task.cancel()
            await asyncio.wait(self._connections)
        if self._sums is not None:
            self._sums.close()

    # --- for the listening sockets and the arrivals

    async def take_accepted(self, accepted: socket.socket, peer: tuple[str, int]) -> None:
        """Serve a socket, or see first whether it is TLS."""
        if self._arrivals is None:
            await self.open_plain(accepted, peer)
            return
        if len(self._arrivals) >= self._limits.connections:
            self._arrivals.end_longest()
            self.evicted += 1
        self._arrivals.take(accepted, peer)

    async def open_plain(self, arrived: socket.socket, _peer: tuple[str, int]) -> None:
        """Serve a plain socket from now on; closed when it raises OSError."""
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(self._protocol, arrived)
        except OSError:
            arrived.close()
            raise

    def open_tls(self, arrived: TlsSession, _peer: tuple[str, int]) -> None:
        """Serve a socket from now on whose handshake is done; closed when it raises OSError."""
        try:
            TlsTransport(arrived, self._protocol())
        except OSError:
            arrived.socket.close()
            raise

    # --- connections

    def _protocol(self) -> asyncio.StreamReaderProtocol:
        reader = asyncio.StreamReader(limit=_READ_BYTES)
        return asyncio.StreamReaderProtocol(reader, self._connected)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= self._limits.connections and not self._evict():
            self.refused += 1
            writer.write(_BUSY)
            writer.close()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._connections.add(task)
        # It counts from now on, so that it can make room even before it has run.
        self._reading[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._connections.discard(task)
        for waiting in self._stages:
            waiting.pop(task, None)

    def _evict(self) -> bool:
        """Make room by ending a connection; False when each is about to do its next step."""
        task = next(chain(*self._stages), None)
        if task is None:
            return False
        self._ended(task)
        task.cancel()
        self.evicted += 1
        return True

    @contextlib.contextmanager
    def _waits(self, waiting: _Waiting) -> Iterator[None]:
        task = asyncio.current_task()
        assert task is not None
        waiting.setdefault(task)
        try:
            yield
        finally:
            waiting.pop(task, None)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # High water 0: drain() then means that the peer's kernel has taken everything.
        writer.transport.set_write_buffer_limits(high=0)
        peer = writer.get_extra_info("peername")
        http = _HttpConnection(reader, writer, self._limits, plain_address(peer)[0] if peer else "")
        try:
            # A new connection has to say something at once.
            with self._waits(self._reading):
                await http.wait_data(self._limits.head_timeout_s)
            if http.is_tls and self._arrivals is None:
                # A peer that speaks TLS understands no answer.
                self._note_tls(writer)
                return
            while await self._serve_one(http):
                await asyncio.sleep(0)
                with self._waits(self._idle):
                    await http.wait_data(self._limits.idle_timeout_s)
        except (TimeoutError, OSError, h11.LocalProtocolError):
            pass  # a peer that is too slow, or gone: nothing is owed to it
        except Exception:
            log.exception("http connection failed")
        finally:
            # close() would wait for a peer that takes nothing.
            writer.transport.abort() if http.broken else writer.close()

    def _note_tls(self, writer: asyncio.StreamWriter) -> None:
        reason = TlsFailure.DISABLED
        self.tls.failed[reason] += 1
        assert self._sums is not None, "started"
        text = 'connection closed peer=%s reason="%s" server=http'
        peer = writer.get_extra_info("peername")
        shown = "gone" if peer is None else address_text(plain_address(peer))
        self._sums.add(log, logging.INFO, reason, text, shown, reason)

    async def _serve_one(self, http: _HttpConnection) -> bool:
        """Serve one request; True when the connection can carry another."""
        try:
            with self._waits(self._reading):
                request = await http.request()
        except _Refused as refusal:
            await self._answer(http, "GET", refusal.response, last=True)
            return False
        if request is None:
            return False
        with self._waits(self._served):
            response = await self._respond(request)
        if self._unsent_bytes and (self._unsent_bytes + response.size > self._limits.unsent_bytes):
            response = BUSY
        await self._answer(http, request.method, response, last=response.status == 500)
        return http.start_next()

    async def _respond(self, request: Request) -> Response:
        found = self._routes.get(request.path)
        route = found.serve if isinstance(found, Changing) else found
        taken = ("GET", "HEAD", "POST") if isinstance(found, Changing) else ("GET", "HEAD")
        if request.method not in taken:
            text = f"only {', '.join(taken[:-1])} and {taken[-1]}\n".encode()
            return Response(405, text, headers=(("Allow", ", ".join(taken)),))
        if route is None:
            known = "".join(f"{path}\n" for path in sorted(self._routes))
            return Response(404, f"not here; the paths are:\n{known}".encode())
        try:
            return await route(request)
        except Exception:
            log.exception("http route failed path=%s", request.path)
            return Response(500, b"the broker failed on this request; see its log\n")

    async def _answer(
        self, http: _HttpConnection, method: str, response: Response, last: bool
    ) -> None:
        self.requests[response.status] = self.requests.get(response.status, 0) + 1
        self._unsent_bytes += response.size
        try:
            with self._waits(self._writing):
                await http.answer(method, response, last)
        finally:
            self._unsent_bytes -= response.size


class _HttpConnection:
    """One connection's half-way state: h11's machine and the streams under it."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        limits: HttpLimits,
        peer: str,
    ) -> None:
        self._peer = peer
        self._reader = reader
        self._writer = writer
        self._limits = limits
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.head_bytes)
        # Read and not yet parsed, and the last bytes that were parsed.
        self._ahead: bytes | None = None
        self._tail = b""
        self.broken = False

    @property
    def is_tls(self) -> bool:
        """Whether a connection begins, in the first data waited for, with a hello of TLS."""
        return self._ahead is not None and self._ahead.startswith(_HANDSHAKE)

    async def wait_data(self, seconds: float) -> None:
        """Return when the peer has sent something, or has ended. Raises TimeoutError."""
        if not self._h11.trailing_data[0]:
            async with asyncio.timeout(seconds):
                self._ahead = await self._reader.read(_READ_BYTES)

    async def request(self) -> Request | None:
        """The next whole request, None at the end; raises _Refused where it is not served."""
        try:
            async with asyncio.timeout(self._limits.head_timeout_s):
                return await self._whole_request()
        except TimeoutError:
            raise _Refused(408, "the request came too slowly") from None
        except h11.RemoteProtocolError as error:
            text = f"not HTTP/1.1 as it should be: {error}"
            raise _Refused(error.error_status_hint, text) from error

    async def _whole_request(self) -> Request | None:
        request: Request | None = None
        while True:
            event = self._h11.next_event()
            if event is h11.NEED_DATA:
                await self._receive()
            elif isinstance(event, h11.Request):
                request = _request(event, self._peer)
            elif isinstance(event, h11.EndOfMessage):
                return request
            else:  # ConnectionClosed, PAUSED
                return None

    async def _receive(self) -> None:
        data, self._ahead = self._ahead, None
        if data is None:
            data = await self._reader.read(_READ_BYTES)
        # Nothing but heads is taken from a peer, so this holds for every line.
        text = self._tail + data
        if _LOOSE_LINE.search(text):
            raise _Refused(400, "a line of the head ends in a bare line feed, or is folded")
        self._tail = text[-2:]
        self._h11.receive_data(data)

    async def answer(self, method: str, response: Response, last: bool) -> None:
        """Send a whole answer, each part of it within the write time-out."""
        whole = response.parts is None
        headers = [
            ("Content-Type", response.content_type),
            ("Cache-Control", "no-store"),
            *response.headers,
            *([("Content-Length", str(len(response.body)))] if whole else []),
            *([("Connection", "close")] if last else []),
        ]
        reason = _REASONS.get(response.status, b"")
        head = h11.Response(status_code=response.status, headers=headers, reason=reason)
        waiting = [self._h11.send(head)]
        self.broken = True
        if method != "HEAD":
            for part in (response.body,) if response.parts is None else response.parts:
                waiting.append(self._h11.send(h11.Data(data=part)))
                if not whole:
                    await self._write(waiting)
                    waiting = []
        await self._write([*waiting, self._h11.send(h11.EndOfMessage())])
        self.broken = False

    async def _write(self, parts: Iterable[bytes | None]) -> None:
        # asyncio's writelines(), in Python 3.12 and early 3.13, forgets to pause the writer.
        self._writer.write(b"".join([part for part in parts if part]))
        async with asyncio.timeout(self._limits.write_timeout_s):
            await self._writer.drain()
        # A drain that need not wait does not let others run.
        await asyncio.sleep(0)

    def start_next(self) -> bool:
        """Ready the machine for the next request; False when this was the last."""
        if self._h11.our_state is not h11.DONE or self._h11.their_state is not h11.DONE:
            return False
        self._h11.start_next_cycle()
        return True


def _request(event: h11.Request, peer: str) -> Request:
    if event.http_version not in (b"1.0", b"1.1"):
        raise _Refused(505, "HTTP/1.1 is spoken here")
    headers: dict[str, str] = {}
    for name, value in event.headers:
        headers.setdefault(name.decode("latin-1"), value.decode("latin-1"))
    length = headers.get("content-length", "0")
    if "transfer-encoding" in headers:
        if "content-length" in headers:
            raise _Refused(400, "Content-Length and Transfer-Encoding in one request")
        length = "chunked"
    if length.strip("0"):
        raise _Refused(413, "requests with a body are not served here")
    path, _, query = event.target.decode("latin-1").partition("?")
    return Request(event.method.decode("latin-1"), path, query, headers, peer)
