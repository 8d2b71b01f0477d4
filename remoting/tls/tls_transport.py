"""A transport of asyncio over a TLS socket whose handshake is done.

The loops have one of their own. This one reads into the protocol's buffer, as plain connections do,
and keeps no buffer of a connection's: asyncio's takes 256 KiB for each, idle or not. What was
written and not sent is bytes of ours that `get_write_buffer_size` counts, and `close` does not wait
for the peer to say goodbye too. So limits, holds and ends of a `Connection` are the same with and
without TLS, and the same tests hold both (tests/unit/remoting).

States: open -> closing (what was written still leaves) -> lost. Nothing is read while TLS itself
has something to say for which there is no room (`tls_session.py`). Loop thread only.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from typing import Any, Final

from aerobee.remoting.tls.tls_session import TlsSession

log = logging.getLogger("aerobee.remoting")

# For protocols that have no buffer of their own.
_READ_BYTES: Final = 64 * 1024
# asyncio's own.
_HIGH_WATER_BYTES: Final = 64 * 1024


class TlsTransport(asyncio.Transport):
    """Owns the socket, and calls the protocol: buffered, or with `data_received`."""

    def __init__(self, session: TlsSession, protocol: asyncio.BaseProtocol) -> None:
        """The socket does not block. `connection_made` is called before this returns."""
        connected = session.socket
        super().__init__(
            {
                "socket": connected,
                "sockname": connected.getsockname(),
                "peername": _peer_name(connected),
            }
        )
        self._loop = asyncio.get_running_loop()
        self._session = session
        self._fd = connected.fileno()
        self._peer = self.get_extra_info("peername")
        self._protocol = protocol
        self._waiting: deque[memoryview] = deque()
        self._waiting_bytes = 0
        self._high, self._low = _HIGH_WATER_BYTES, _HIGH_WATER_BYTES // 4
        self._full = False
        self._closing = False
        self._lost = False
        self._paused = False
        self._reads = False
        self._writes = False
        protocol.connection_made(self)
        self._watch()

    # --- reading

    def is_reading(self) -> bool:
        return not self._paused and not self._closing

    def pause_reading(self) -> None:
        self._paused = True
        self._watch()

    def resume_reading(self) -> None:
        if self._paused and not self._closing:
            self._paused = False
            self._watch()

    def _readable(self) -> None:
        session = self._session
        if self._paused or self._closing or self._lost or session.ended or session.failed:
            return
        try:
            size = self._read_once()
        except Exception as error:
            # The protocol raised: a fault of ours, which ends this connection only.
            log.exception("reading failed, connection closed peer=%s", self._peer)
            self._end(error)
            return
        if session.failed is None and not session.ended:
            self._watch()
        elif size:
            # Answers may leave at the end of this turn, before the connection hears of its end.
            self._loop.call_soon(self._ended)
        else:
            self._ended()

    def _ended(self) -> None:
        session = self._session
        if session.failed is not None:
            self._end(session.failed)
        elif self._closing:
            return
        elif not self._protocol.eof_received():  # type: ignore[attr-defined]
            self.close()
        else:
            self.pause_reading()

    def _read_once(self) -> int:
        protocol = self._protocol
        if isinstance(protocol, asyncio.BufferedProtocol):
            size = self._session.read(memoryview(protocol.get_buffer(-1)))
            if size:
                protocol.buffer_updated(size)
        else:
            view = memoryview(bytearray(_READ_BYTES))
            size = self._session.read(view)
            if size:
                protocol.data_received(bytes(view[:size]))  # type: ignore[attr-defined]
        return size

    # --- writing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or not data:
            return
        view = memoryview(data).cast("B")
        self._waiting.append(view)
        is_first = not self._waiting_bytes
        self._waiting_bytes += len(view)
        if is_first:
            self._send()
        else:
            self._tell_full()

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return self._waiting_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = _HIGH_WATER_BYTES if high is None else high
        self._low = self._high // 4 if low is None else low
        self._tell_full()

    def _send(self) -> None:
        """Seal and send what waits, as far as the socket takes it."""
        waiting = self._waiting
        try:
            while waiting:
                sent = self._session.send(waiting[0])
                self._waiting_bytes -= sent
                if sent < len(waiting[0]):
                    waiting[0] = waiting[0][sent:]
                    break
                waiting.popleft()
            else:
                self._session.flush()
        except OSError as error:
            self._end(error)
            return
        self._tell_full()
        if self._closing and not waiting:
            self._say_goodbye()
        else:
            self._watch()

    def _tell_full(self) -> None:
        if not self._full and self._waiting_bytes > self._high:
            self._full = True
            self._protocol.pause_writing()
        elif self._full and self._waiting_bytes <= self._low:
            self._full = False
            self._protocol.resume_writing()

    # --- ends

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """Read no more; what was written still leaves."""
        if self._closing:
            return
        self._closing = True
        if self._waiting:
            self._watch()
        else:
            self._say_goodbye()

    def abort(self) -> None:
        self._end(None)

    def _say_goodbye(self) -> None:
        self._session.say_goodbye()
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._lost = self._closing = True
        self._waiting.clear()
        self._waiting_bytes = 0
        self._watch()
        self._loop.call_soon(self._tell_lost, error)

    def _tell_lost(self, error: Exception | None) -> None:
        try:
            self._protocol.connection_lost(error)
        finally:
            self._session.socket.close()

    def _watch(self) -> None:
        """Have the loop look for what is waited for, and for nothing else."""
        owing, over = self._session.is_owing, self._session.ended or self._session.failed
        reads = not (owing or over or self._paused or self._closing or self._lost)
        writes = (owing or bool(self._waiting)) and not self._lost
        if reads != self._reads:
            self._reads = reads
            if reads:
                self._loop.add_reader(self._fd, self._readable)
            else:
                self._loop.remove_reader(self._fd)
        if writes != self._writes:
            self._writes = writes
            if writes:
                self._loop.add_writer(self._fd, self._send)
            else:
                self._loop.remove_writer(self._fd)


def _peer_name(connected: socket.socket) -> Any:
    try:
        return connected.getpeername()
    except OSError:
        return None  # the peer has gone in between
