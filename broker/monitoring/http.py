"""The one HTTP port: metrics, liveness, readiness. Only GET and HEAD, everything bounded.

h11 parses and writes HTTP/1.1; asyncio's streams carry the bytes on the broker's own loop. The port
is for one scraper and a few probes, so its limits are small and it cannot starve the broker's
clients: at most `connections` open at once (one more takes the place of the longest idle one, or
gets 503 when all are busy), a request head of at most `head_bytes` that must arrive within
`head_timeout_s`, no request bodies, and an answer that must have been taken within
`write_timeout_s`. A connection that has been served closes after `idle_timeout_s` of silence.

A route is a coroutine function `(Request) -> Response`. A route that raises is a bug of ours: it is
logged with its traceback and answered with 500; the connection is closed.

Threads: none here; a route that computes for long hands its work to a thread itself.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import h11

from aerobee.remoting.errors import RemotingListenError

log = logging.getLogger("aerobee.broker.http")

_READ_BYTES = 4096
_REASONS = {
    200: b"OK",
    400: b"Bad Request",
    404: b"Not Found",
    405: b"Method Not Allowed",
    408: b"Request Timeout",
    413: b"Content Too Large",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    503: b"Service Unavailable",
}
_BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1\r\n"
    b"Connection: close\r\n\r\n"
)


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Bounds of the port; times in seconds."""

    connections: int = 64
    head_bytes: int = 16_384
    head_timeout_s: float = 5.0
    # Longer than the usual scrape interval, so that a scraper keeps its connection.
    idle_timeout_s: float = 150.0
    write_timeout_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Request:
    """One request: `headers` have lower-case names, the first of a repeated name counts."""

    method: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Response:
    """One answer; `headers` beside content type and length."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()


Route: TypeAlias = Callable[[Request], Awaitable[Response]]


class _Refused(Exception):
    """The peer's request cannot be served; the connection ends after the answer."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.response = Response(status, f"{text}\n".encode())


class HttpServer:
    """Serves `routes` (path to coroutine function) on one address.

    `open` and `refused` count connections, `requests` counts answers by status.
    """

    def __init__(
        self,
        host: str,
        port: int,
        routes: Mapping[str, Route],
        limits: HttpLimits | None = None,
    ) -> None:
        self._host = host
        self._requested_port = port
        self._routes = dict(routes)
        self._limits = limits or HttpLimits()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._idle: dict[asyncio.Task[None], None] = {}  # longest idle first
        self.refused = 0
        self.requests: dict[int, int] = {}

    async def start(self) -> None:
        """Listen. Raises `RemotingListenError` when the address cannot be had.

        This port is the first a daemon takes, and 5557 for every daemon: a second one on a machine
        hears of it here.
        """
        try:
            self._server = await asyncio.start_server(
                self._accepted, self._host, self._requested_port, limit=_READ_BYTES, backlog=64
            )
        except OSError as error:
            raise RemotingListenError(
                _cannot_listen(self._host, self._requested_port, error)
            ) from error

    @property
    def port(self) -> int:
        """The port listened on; the real one when 0 was asked for."""
        assert self._server is not None, "started"
        number: int = self._server.sockets[0].getsockname()[1]
        return number

    @property
    def open(self) -> int:
        return len(self._connections)

    async def close(self) -> None:
        """Stop listening and end all connections, answered or not."""
        if self._server is None:
            return
        self._server.close()
        for task in self._connections:
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A plain callback: the task below is ours, kept until it ends.
        if len(self._connections) >= self._limits.connections and not self._evict():
            self.refused += 1
            writer.write(_BUSY)
            writer.close()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    def _evict(self) -> bool:
        """Make room by ending the longest idle connection; False when none is idle."""
        idlest = next(iter(self._idle), None)
        if idlest is None:
            return False
        del self._idle[idlest]
        self._connections.discard(idlest)
        idlest.cancel()
        return True

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # High water 0: drain() then means that the peer's kernel has taken everything.
        writer.transport.set_write_buffer_limits(high=0)
        http = _HttpConnection(reader, writer, self._limits)
        try:
            # A new connection has to say something at once.
            async with asyncio.timeout(self._limits.head_timeout_s):
                await http.wait_data()
            while await self._serve_one(http):
                await self._wait_idle(http)
        except (TimeoutError, OSError, h11.LocalProtocolError):
            pass  # a peer that is too slow, or gone: nothing is owed to it
        except Exception:
            log.exception("http connection failed")
        finally:
            # Not close(): that would wait for a peer that takes nothing.
            writer.transport.abort() if http.broken else writer.close()

    async def _wait_idle(self, http: _HttpConnection) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._idle[task] = None
        try:
            async with asyncio.timeout(self._limits.idle_timeout_s):
                await http.wait_data()
        finally:
            self._idle.pop(task, None)

    async def _serve_one(self, http: _HttpConnection) -> bool:
        """Serve one request; True when the connection can carry another."""
        try:
            request = await http.request()
        except _Refused as refusal:
            await self._answer(http, "GET", refusal.response, last=True)
            return False
        if request is None:
            return False
        response = await self._respond(request)
        await self._answer(http, request.method, response, last=response.status == 500)
        return http.start_next()

    async def _respond(self, request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            return Response(405, b"only GET and HEAD\n", headers=(("Allow", "GET, HEAD"),))
        route = self._routes.get(request.path)
        if route is None:
            known = "".join(f"{path}\n" for path in sorted(self._routes))
            return Response(404, f"not here; what is:\n{known}".encode())
        try:
            return await route(request)
        except Exception:
            log.exception("http route failed path=%s", request.path)
            return Response(500, b"the broker failed on this request; see its log\n")

    async def _answer(
        self, http: _HttpConnection, method: str, response: Response, last: bool
    ) -> None:
        self.requests[response.status] = self.requests.get(response.status, 0) + 1
        await http.answer(method, response, last)


class _HttpConnection:
    """One connection's half-way state: h11's machine and the streams under it."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limits: HttpLimits
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._limits = limits
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.head_bytes)
        self.broken = False

    async def wait_data(self) -> None:
        """Return when the peer has sent something, or has ended."""
        if not self._h11.trailing_data[0]:
            self._h11.receive_data(await self._reader.read(_READ_BYTES))

    async def request(self) -> Request | None:
        """The next whole request, None at the end; raises _Refused for what is not served."""
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
                self._h11.receive_data(await self._reader.read(_READ_BYTES))
            elif isinstance(event, h11.Request):
                request = _request(event)
            elif isinstance(event, h11.Data):
                raise _Refused(413, "requests with a body are not served here; only GET and HEAD")
            elif isinstance(event, h11.EndOfMessage):
                return request
            else:  # ConnectionClosed, PAUSED
                return None

    async def answer(self, method: str, response: Response, last: bool) -> None:
        """Send a whole answer within the write time-out."""
        headers = [
            ("Content-Type", response.content_type),
            ("Content-Length", str(len(response.body))),
            ("Cache-Control", "no-store"),
            *response.headers,
        ]
        if last:
            headers.append(("Connection", "close"))
        head = h11.Response(
            status_code=response.status,
            headers=headers,
            reason=_REASONS.get(response.status, b""),
        )
        parts = [self._h11.send(head)]
        if method != "HEAD":
            parts.append(self._h11.send(h11.Data(data=response.body)))
        parts.append(self._h11.send(h11.EndOfMessage()))
        # Not writelines(): asyncio's, in Python 3.12 and early 3.13, forgets to pause the writer.
        self._writer.write(b"".join([part for part in parts if part]))
        self.broken = True
        async with asyncio.timeout(self._limits.write_timeout_s):
            await self._writer.drain()
        self.broken = False

    def start_next(self) -> bool:
        """Ready the machine for the next request; False when this was the last."""
        if self._h11.our_state is not h11.DONE or self._h11.their_state is not h11.DONE:
            return False
        self._h11.start_next_cycle()
        return True


def _cannot_listen(host: str, port: int, error: OSError) -> str:
    # asyncio puts a sentence of its own, with the address in it, in the place of the reason.
    reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
    hint = " (is another broker running?)" if error.errno == errno.EADDRINUSE else ""
    return (
        f"cannot listen on {host} port {port} for metrics and health: {reason}{hint}; choose "
        "another port with --http-port (http.port), 0 turns it off"
    )


def _request(event: h11.Request) -> Request:
    headers: dict[str, str] = {}
    for name, value in event.headers:
        headers.setdefault(name.decode("latin-1"), value.decode("latin-1"))
    path, _, query = event.target.decode("latin-1").partition("?")
    return Request(event.method.decode("latin-1"), path, query, headers)
