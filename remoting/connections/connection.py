"""One TCP connection: bytes in, commands to the handler; answers out; everything bounded.

The same class serves both ends. A socket read lands in the buffer shared by the whole set; the
handler takes commands off it, one after the other, as far as its slice goes, and answers with one
`write`. No task, future or timer is made per connection or request.

Life: opened -> (reading <-> held)* -> closing -> closed. Reading is held while any of four reasons
stands (`_OUTPUT` and its like). What cannot be served, because of a hold or because the slice or
the turn of the loop is over (`turns.py`), waits as the bytes that came (`aside`) and goes on in
order: a slice a turn, when no hold stands. Nothing is decoded before it is served.

Order: commands reach the handler in the order of the wire, answers leave in the order of `write`.
A frame that breaks a rule ends the connection, after the good frames before it were handled.
Loop thread only.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Protocol, cast, runtime_checkable

from aerobee.protocol.errors import BadFrame
from aerobee.protocol.frames.command import Command
from aerobee.protocol.frames.frame import FrameDecoder
from aerobee.protocol.message.record_layout import pack_host
from aerobee.remoting.connection_stats import CloseReason, TlsFailure
from aerobee.remoting.connections.calls import PendingCalls
from aerobee.remoting.connections.connection_set import ConnectionSet
from aerobee.remoting.errors import RemotingClosed
from aerobee.remoting.peers import address_text, foreign_protocol, plain_address

log = logging.getLogger("aerobee.remoting")

# Why a connection is not being read, one bit each; it is read again when none is left.
# The peer does not take its answers.
_OUTPUT = 1
# Unfinished frames of all connections fill their budget.
_MEMORY = 2
# The handler asked, e.g. because of too many requests in flight.
_OWNER = 4
# The peer sends more than its slices serve.
_ASIDE = 8
# So much of a peer's input waits for a slice before the peer is not read any more.
_ASIDE_BYTES = 64 * 1024
# Bytes that have waited longer go the long way, where requests that are too old are refused.
_FRESH_S = 0.1
# Answers that are taken in a slice, some microseconds each.
_ANSWERS = 128
# Requests behind a request that is refused for its age: the reason that is said counts up to here.
_COUNTED = 100


class Handler(Protocol):
    """The owner of connections: the broker's router, the name server, a client.

    Plain calls on the loop; none may wait.
    """

    def connection_opened(self, connection: Connection) -> None:
        """The connection can be written to."""

    def commands_received(self, connection: Connection, commands: Iterable[Command]) -> None:
        """Requests that were read, in order; no answers of the peer.

        Those that are taken are to be served, at least one; the others come again in a later turn,
        or when the hold ends that the handler began (`hold_reading`).

        A handler that keeps answers back until the loop's turn ends counts them in `unwritten`
        until then.
        """

    def connection_closed(self, connection: Connection, reason: str) -> None:
        """Called once, after `connection_opened`; nothing follows."""


@runtime_checkable
class ShortWay(Protocol):
    """A transport that serves plain requests by itself (`aerobee/native`)."""

    def serve_kept(self, chunk: bytes, position: int, /) -> int:
        """Serve what is plain in `chunk` from `position` on; how many bytes that was."""


class Connection(asyncio.BufferedProtocol):
    """One connection of a `ConnectionSet`. Compared and hashed by identity."""

    __slots__ = (
        "_aside_since",
        "_close_reason",
        "_closing_since",
        "_drain_waiters",
        "_frame_since",
        "_handler",
        "_held_since",
        "_kept_bytes",
        "_largest",
        "_pending",
        "_serving",
        "_shared",
        "_short_way",
        "_transport",
        "_written",
        "aside",
        "closed",
        "commands_in",
        "context",
        "decoder",
        "full",
        "held_bytes",
        "holds",
        "id",
        "last_active",
        "local_port",
        "opened_at",
        "packed_peer",
        "peer",
        "unwritten",
        "waited_since",
    )

    _transport: asyncio.Transport

    def __init__(
        self, shared: ConnectionSet, handler: Handler, peer: tuple[str, int] | None = None
    ) -> None:
        limits = shared.limits
        self._shared = shared
        self._handler = handler
        self.decoder = FrameDecoder(limits.frame_bytes, limits.header_bytes)
        self._pending: PendingCalls | None = None
        self._drain_waiters: list[asyncio.Future[None]] = []
        # Whole frames may wait among the decoder's bytes.
        self.aside = False
        # Up to which byte they came when, on the clock of the turns; the first come first.
        self._aside_since: deque[tuple[int, float]] = deque()
        self._short_way: ShortWay | None = None
        self._kept_bytes = 0
        # `_serve_aside` is a job of the turns.
        self._serving = False
        self.holds = 0
        # Since when the peer has not been read; 0.0: it is read.
        self._held_since = 0.0
        # Since when its last frame has been unfinished; 0.0: none is.
        self._frame_since = 0.0
        self._closing_since = 0.0
        self._close_reason: str | None = None
        self.commands_in = 0
        self.id = 0
        # (address text, port); an IPv4 peer of a dual-stack listener is shown as IPv4.
        self.peer = peer or ("", 0)
        self.packed_peer = b""
        self.local_port = 0
        # When it was opened, on the loop's clock.
        self.opened_at = 0.0
        self.last_active = 0.0
        # Bytes of unfinished input, kept up to date by the inbound budget.
        self.held_bytes = 0
        # True from the moment of `close`, or of the peer's going.
        self.closed = False
        # Unsent output is above the high-water mark.
        self.full = False
        # Bytes that the owner is going to write in this turn of the loop; kept by the owner.
        self.unwritten = 0
        # Since when, on the clock of the turns, the commands waited that the handler is given now;
        # 0.0 when they have just arrived.
        self.waited_since = 0.0
        # Bytes written since the output was last empty, and the largest piece of them.
        self._written = 0
        self._largest = 0
        # Free for the owner.
        self.context: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"<Connection {self.id} {address_text(self.peer)}>"

    def __str__(self) -> str:
        """Its fields in an event of the log."""
        return f"connection={self.id} peer={address_text(self.peer)}"

    # --- what an owner calls

    @property
    def unsent_bytes(self) -> int:
        """Memory of what was written here and the operating system has not taken yet, at most: a
        piece of which it has taken a part is kept whole."""
        left = self._transport.get_write_buffer_size()
        if not left:
            self._written = self._largest = 0
        return min(self._written, left + self._largest)

    @property
    def answer_room(self) -> int:
        """Bytes of answers that one slice may add; below 0 the next slice is for others."""
        return self._shared.limits.outbound_high_water_bytes - self.unwritten

    @property
    def waiting_bytes(self) -> int:
        """Bytes of this peer that were read and are not served yet."""
        return self.decoder.buffered + self._kept_bytes

    @property
    def waiting_commands(self) -> int:
        """Commands of this peer that were read and not served yet, as far as they are counted."""
        return self.decoder.count_whole(_COUNTED)

    @property
    def overloaded(self) -> bool:
        """Unsent output of the whole server is near its limit and the peer has its share in it:
        refuse it requests with large answers. A peer that takes its answers is served: above the
        limit the connections that hold most are closed."""
        return self._shared.overloaded and self.unsent_bytes > 0

    def write(self, data: bytes) -> None:
        """Send whole frames. After `closed` this does nothing. Never waits; see `full`."""
        if self.closed:
            return
        shared = self._shared
        stats = shared.stats
        size = len(data)
        stats.bytes_out += size
        if stats.bytes_out >= shared.recount_at:
            shared.recount()
        if self.full:
            if self.unsent_bytes + size > shared.limits.outbound_connection_bytes:
                self.close(CloseReason.NOT_READING, abort=True)
                return
        else:
            self.last_active = shared.now
        self._written += size
        if size > self._largest:
            self._largest = size
        self._transport.write(data)

    def push(self, command: Command) -> None:
        """Send a request that wants no answer."""
        self.write(command.encode())

    def call(self, command: Command, timeout_s: float) -> asyncio.Future[Command]:
        """Send a request; the future gives the peer's answer.

        Raises `RemotingClosed` or `RemotingBusy` at once; the future fails with `RemotingTimeout`
        or `RemotingClosed`.
        """
        if self.closed:
            raise RemotingClosed(f"the connection with {address_text(self.peer)} is closed")
        if self._pending is None:
            self._pending = PendingCalls(
                asyncio.get_running_loop(),
                f"{address_text(self.peer)}",
                self._shared.limits.pending_calls,
            )
        future = self._pending.add(command, timeout_s)
        self.write(command.encode())
        return future

    async def wait_drained(self) -> None:
        """Return when unsent output is below the high-water mark, or the connection is closed."""
        while self.full and not self.closed:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._drain_waiters.append(waiter)
            await waiter

    def hold_reading(self, why: int = _OWNER) -> None:
        """Stop reading from this peer until `release_reading`; idle time does not run."""
        self.holds |= why
        if not self._held_since and not self.closed:
            self._held_since = self._shared.now
            self._transport.pause_reading()

    def release_reading(self, why: int = _OWNER) -> None:
        """End a hold; what was put aside is delivered when it was the last.

        What waits there may itself keep the peer from being read: that hold ends with its service.
        """
        if not self.holds & why:
            return
        self.holds &= ~why
        if self.holds & ~_ASIDE or self.closed:
            return
        self.last_active = self._shared.now
        # Later in the loop: this may be called from within another connection's read.
        self._serve_later()

    def keep(self, body_bytes: int) -> None:
        """The handler works on `body_bytes` of this peer; they count as unfinished input."""
        self._kept_bytes = body_bytes
        if not self.closed:
            self._shared.inbound.changed(self, self.decoder.held + body_bytes)

    def hold_for_memory(self) -> None:
        """Stop reading, for the budget of unfinished frames (see `hold_reading`)."""
        self.hold_reading(_MEMORY)

    def release_from_memory(self) -> None:
        """The budget lets the connection be read again."""
        self.release_reading(_MEMORY)

    def close(self, reason: str = CloseReason.LOCAL, *, abort: bool = False) -> None:
        """End the connection: what was written still leaves, within the grace; with `abort` not.

        The handler's `connection_closed` follows, later in the loop, with this reason.
        """
        if self.unwritten and not abort and not self.closed:
            self._shared.turns.release(self)
        if self._close_reason is None:
            self._close_reason = reason
            self._closing_since = self._shared.now
        self.closed = True
        if abort:
            self._transport.abort()
        else:
            self._transport.close()

    # --- what the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if isinstance(transport, ShortWay):
            self._short_way = transport
        shared = self._shared
        high = shared.limits.outbound_high_water_bytes
        self._transport.set_write_buffer_limits(high=high, low=high // 4)
        sockname = transport.get_extra_info("sockname")
        peername = transport.get_extra_info("peername")
        if sockname:
            self.local_port = sockname[1]
        if peername:
            self.peer = plain_address(peername)
            self.packed_peer = pack_host(*self.peer)
        self.id = shared.add(self)
        self.opened_at = self.last_active = shared.now
        log.debug("connection opened %s server=%s", self, shared.name)
        try:
            self._handler.connection_opened(self)
        except Exception:  # noqa: BLE001 - the top of a connection
            self.failed()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._shared.read_view

    def buffer_updated(self, nbytes: int) -> None:
        shared = self._shared
        self.last_active = shared.now
        shared.stats.reads += 1
        shared.stats.bytes_in += nbytes
        self.decode(0, nbytes)

    def decode(self, taken: int, nbytes: int, *, later: bool = False) -> None:
        """Serve what a read of `nbytes` has brought, behind what the compiled form's sockets have
        taken of it undecoded; in a `later` turn only, if its slice of this one is over."""
        shared = self._shared
        decoder = self.decoder
        served = False
        try:
            decoder.add(shared.read_view[taken:nbytes])
            if not (later or self.aside or self.holds or shared.turns.late):
                served = self._serve()
                later = self.aside
            elif decoder.buffered:
                later = True
            if later:
                self._put_aside()
            if decoder.buffered or self.held_bytes:
                self._unfinished(served)
        except Exception:  # noqa: BLE001 - the top of a connection
            self.failed()
            return
        if decoder.failed is not None and not self.aside and not self.closed:
            self._refuse(decoder.failed)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.full = True
        self._shared.stats.paused += 1
        if self._shared.full_stops_reading:
            self.hold_reading(_OUTPUT)

    def resume_writing(self) -> None:
        self.full = False
        self.last_active = self._shared.now
        self.release_reading(_OUTPUT)
        self._wake_drain_waiters()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        reason = self._close_reason or (CloseReason.RESET if exc else CloseReason.PEER)
        self.aside = False
        self._aside_since.clear()
        self.decoder.drop()
        self._shared.remove(self, reason)
        if self._pending is not None:
            self._pending.fail_all(
                RemotingClosed(f"the connection with {address_text(self.peer)} closed: {reason}")
            )
        self._wake_drain_waiters()
        log.debug("connection closed %s reason=%s server=%s", self, reason, self._shared.name)
        try:
            self._handler.connection_closed(self, reason)
        except Exception:
            log.exception("end of a connection failed %s server=%s", self, self._shared.name)

    # --- called by the sweep

    def check_times(self, now: float) -> None:
        """Close what is idle, too slow with a frame, or does not take what was sent to it."""
        limits = self._shared.limits
        if self.closed:
            if self._close_reason and now - self._closing_since > limits.close_grace_s:
                self._transport.abort()
            return
        if self.holds & (_MEMORY | _OWNER):
            return
        if self._frame_since and not self._held_since and not self.aside:
            allowed_s = limits.frame_grace_s + self.held_bytes / limits.frame_bytes_per_s
            if now - self._frame_since > allowed_s:
                self._shared.log_violation(
                    "frame sent too slowly %s bytes=%d", self, self.held_bytes
                )
                self.close(CloseReason.SLOW_FRAME, abort=True)
                return
        if now - self.last_active > limits.idle_s:
            if self.full:
                self._shared.log_violation("answers not taken %s", self)
                self.close(CloseReason.NOT_READING, abort=True)
            else:
                self.close(CloseReason.IDLE)

    # --- inside

    def _serve(self) -> bool:
        """Have requests served as far as the slice goes; whether there was one. Afterwards `aside`
        says whether others may be left."""
        first = self._next_request()
        if first is None:
            return False
        if not self.decoder.buffered:
            # The usual case: one request, and nothing behind it.
            self.aside = False
            self._handler.commands_received(self, (first,))
            return True
        self._handler.commands_received(self, self._requests(first))
        self.aside = self.aside and self.decoder.buffered > 0
        return True

    def _requests(self, first: Command) -> Iterator[Command]:
        request: Command | None = first
        while request is not None:
            yield request
            request = self._next_request()

    def _next_request(self) -> Command | None:
        """The next request, None if none is here yet; `aside` says whether there may be more.
        Answers that come before it go to their waiters, some a slice."""
        decoder = self.decoder
        for _ in range(_ANSWERS):
            command = decoder.cut()
            if command is None:
                self.aside = False
                return None
            self.aside = True
            self.commands_in += 1
            self._shared.stats.commands_in += 1
            if not command.flag & 1:
                if self._aside_since:
                    self.waited_since = self._came()
                return command
            if self._pending is None or not self._pending.answer(command):
                log.debug("answer nobody waits for %s opaque=%d", self, command.opaque)
        return None

    def _came(self) -> float:
        """When the last byte of the command that was cut now was put aside."""
        end = self.decoder.added - self.decoder.buffered
        since = self._aside_since
        while since and since[0][0] < end:
            since.popleft()
        return since[0][1] if since else 0.0

    def _put_aside(self) -> None:
        """Keep what is left of the decoder's bytes for later turns."""
        self.aside = True
        decoder = self.decoder
        self._aside_since.append((decoder.added, self._shared.turns.clock()))
        if decoder.buffered > _ASIDE_BYTES:
            self.hold_reading(_ASIDE)
        self._serve_later()

    def _serve_later(self) -> None:
        """Have what waits served a slice a turn."""
        if not self._serving:
            self._serving = True
            self._shared.turns.add(self._serve_aside)

    def _serve_aside(self) -> bool:
        """One slice of what was put aside; whether there is more for the next turn."""
        try:
            self._serving = self._serve_slice()
        except Exception:  # noqa: BLE001 - the top of a connection
            self._serving = False
            self.failed()
        return self._serving

    def _serve_slice(self) -> bool:
        if self.holds & ~_ASIDE or self.closed:
            return False
        served = False
        if self.aside and self.unwritten <= self._shared.limits.outbound_high_water_bytes:
            served = self._serve_kept()
            self.waited_since = 0.0
        if self.holds & ~_ASIDE or self.closed:
            return False
        if self.aside:
            self._unfinished(served)
            return True
        self._aside_since.clear()
        if self.decoder.failed is not None:
            self._refuse(self.decoder.failed)
        elif not self.holds & ~_ASIDE:
            self._read_again()
        self._unfinished(served)
        return False

    def _serve_kept(self) -> bool:
        """Serve a slice of what was put aside; plain requests go the short way, if the connection
        has it. Returns whether a request was served."""
        decoder, turns = self.decoder, self._shared.turns
        if self._short_way is not None and self._aside_since:
            chunk, position = decoder.chunk
            _, came = self._aside_since[0]
            if position < len(chunk) and turns.clock() - came < _FRESH_S:
                taken = self._short_way.serve_kept(chunk, position)
                decoder.skip(taken)
                self.aside = decoder.buffered > 0
                # Its answers may have filled the output, or met a peer that has left.
                ended = not self.aside or self.holds & ~_ASIDE or self.closed
                if taken and (ended or turns.clock() >= turns.until):
                    return True
        return self._serve()

    def _read_again(self) -> None:
        """No hold stands any more, and nothing waits."""
        self.holds = 0
        if self._held_since:
            if self._frame_since:
                # The peer could not go on with it meanwhile.
                self._frame_since += self._shared.now - self._held_since
            self._held_since = 0.0
            self._transport.resume_reading()

    def _unfinished(self, served: bool) -> None:
        """The decoder's bytes have grown or dwindled. The time of the frame that they end with runs
        while nothing else waits, and begins anew when others were `served`."""
        if served or not self.decoder.buffered:
            self._frame_since = 0.0
        if self.decoder.buffered and not self.aside and not self._frame_since:
            self._frame_since = self._shared.now
        self._shared.inbound.changed(self, self.decoder.held + self._kept_bytes)

    def _wake_drain_waiters(self) -> None:
        waiters, self._drain_waiters = self._drain_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _refuse(self, why: BadFrame) -> None:
        """End a connection whose bytes are no frames; what was good before is still answered."""
        head = self.decoder.failed_head
        reason = foreign_protocol(head) if not self.commands_in else CloseReason.BAD_FRAME
        self._shared.stats.bad_frames += 1
        if reason is CloseReason.TLS:
            self._shared.stats.tls.failed[TlsFailure.DISABLED] += 1
        text = 'connection closed %s reason=%s detail="%s"'
        self._shared.log_violation(text, self, reason, str(why).replace('"', "'"))
        self.close(reason)

    def failed(self) -> None:
        """The handler raised: a fault of ours. It ends this connection only."""
        log.exception("handling failed, connection closed %s server=%s", self, self._shared.name)
        self.close(CloseReason.HANDLER_FAILED, abort=True)
