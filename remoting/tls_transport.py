"""A transport of asyncio over a TLS socket whose handshake is done.

The loops have one of their own. This one reads into the protocol's buffer, as plain connections do,
and keeps no buffer of a connection's: asyncio's takes 256 KiB for each, idle or not. What was
written and not sent is bytes of ours that `get_write_buffer_size` counts, and `close` does not wait
for the peer to say goodbye too. So limits, holds and ends of a `Connection` are the same with and
without TLS, and the same tests hold both (tests/unit/remoting).

States: open -> closing (what was written still leaves) -> lost. OpenSSL may want to write while it
reads (an update of keys) and the other way round; what was wanted is then done again when the
socket is ready for it. A write that could not finish is repeated with the same bytes, as OpenSSL
demands. Loop thread only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections import deque
from typing import Any, Final

log = logging.getLogger("aerobee.remoting")

# One record has 16 KiB at most; so much is handed to OpenSSL at a time, and kept until it is sent.
_PIECE_BYTES: Final = 64 * 1024
# For protocols that have no buffer of their own.
_READ_BYTES: Final = 64 * 1024
# One read takes no more of them: a record of one byte costs as much time as a full one, and 16 full
# ones are a buffer. OpenSSL does not read ahead, so what is left is with the kernel, which tells.
_RECORDS_A_READ: Final = 64
# asyncio's own.
_HIGH_WATER_BYTES: Final = 64 * 1024


class TlsTransport(asyncio.Transport):
    """Owns the socket, and calls the protocol: buffered, or with `data_received`."""

    def __init__(self, connected: ssl.SSLSocket, protocol: asyncio.BaseProtocol) -> None:
        """The socket does not block. `connection_made` is called before this returns."""
        super().__init__(
            {
                "socket": connected,
                "sslcontext": connected.context,
                "ssl_object": connected,
                "sockname": connected.getsockname(),
                "peername": _peer_name(connected),
            }
        )
        self._loop = asyncio.get_running_loop()
        self._socket = connected
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
        # OpenSSL reads on when the socket can be written, and the other way round.
        self._read_wants_write = False
        self._write_wants_read = False
        protocol.connection_made(self)
        self._watch()
        # What came with the end of the handshake may be with OpenSSL already.
        self._loop.call_soon(self._readable)

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
            self._loop.call_soon(self._readable)

    def _readable(self) -> None:
        if self._write_wants_read:
            self._write_wants_read = False
            self._send()
        if self._paused or self._closing or self._lost:
            return
        try:
            ended = self._read_once()
        except OSError as error:
            self._end(error)
            return
        except Exception as error:
            # The protocol raised: a fault of ours, which ends this connection only.
            log.exception("reading failed, connection closed peer=%s", self._peer)
            self._end(error)
            return
        if ended and not self._protocol.eof_received():  # type: ignore[attr-defined]
            self.close()
        elif ended:
            self.pause_reading()
        elif self._socket.pending() and not self._paused and not self._closing:
            # Readiness of the socket does not show what OpenSSL has.
            self._loop.call_soon(self._readable)
        self._watch()

    def _read_once(self) -> bool:
        """Take what is there, a buffer or some records at most; whether the peer has ended.

        OSError of a read that failed is raised behind what was read before it."""
        protocol = self._protocol
        buffered = isinstance(protocol, asyncio.BufferedProtocol)
        view = memoryview(
            protocol.get_buffer(-1) if buffered else bytearray(_READ_BYTES)  # type: ignore[attr-defined]
        )
        size, ended = 0, False
        failed: OSError | None = None
        for _ in range(_RECORDS_A_READ):
            if size == len(view):
                break
            try:
                taken = self._socket.recv_into(view[size:])
            except ssl.SSLWantReadError:
                break
            except ssl.SSLWantWriteError:
                self._read_wants_write = True
                break
            except OSError as error:
                failed = error
                break
            if not taken:
                ended = True
                break
            size += taken
        if size and buffered:
            protocol.buffer_updated(size)  # type: ignore[attr-defined]
        elif size:
            protocol.data_received(bytes(view[:size]))  # type: ignore[attr-defined]
        if failed is not None:
            raise failed
        return ended

    # --- writing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or not data:
            return
        view = memoryview(data).cast("B")
        for start in range(0, len(view), _PIECE_BYTES):
            self._waiting.append(view[start : start + _PIECE_BYTES])
        is_first = not self._waiting_bytes
        self._waiting_bytes += len(view)
        if is_first:
            self._send()

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
        """Hand what waits to OpenSSL, as far as the socket takes it."""
        waiting = self._waiting
        try:
            while waiting:
                self._socket.send(waiting[0])
                self._waiting_bytes -= len(waiting.popleft())
        except ssl.SSLWantWriteError:
            pass
        except ssl.SSLWantReadError:
            self._write_wants_read = True
        except OSError as error:
            self._end(error)
            return
        self._tell_full()
        if self._closing and not waiting:
            self._say_goodbye()
        else:
            self._watch()

    def _writable(self) -> None:
        if self._read_wants_write:
            self._read_wants_write = False
            self._readable()
        if not self._lost:
            self._send()

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
        """Send the alert that says that nothing was cut off; the peer's own is not waited for."""
        with contextlib.suppress(OSError, ValueError):
            self._socket.unwrap()
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
            self._socket.close()

    def _watch(self) -> None:
        """Have the loop look for what is waited for, and for nothing else."""
        reads = self._write_wants_read or not (self._paused or self._closing)
        writes = self._read_wants_write or (bool(self._waiting) and not self._write_wants_read)
        reads, writes = reads and not self._lost, writes and not self._lost
        if reads != self._reads:
            self._reads = reads
            if reads:
                self._loop.add_reader(self._fd, self._readable)
            else:
                self._loop.remove_reader(self._fd)
        if writes != self._writes:
            self._writes = writes
            if writes:
                self._loop.add_writer(self._fd, self._writable)
            else:
                self._loop.remove_writer(self._fd)


def _peer_name(connected: ssl.SSLSocket) -> Any:
    try:
        return connected.getpeername()
    except OSError:
        return None  # the peer has gone in between
