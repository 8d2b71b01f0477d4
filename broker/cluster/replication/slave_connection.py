"""The connection of one slave at the HA port of its master.

A slave at the end of the log gets what a turn has appended when the turn ends: head and bytes with
two calls, straight from the segment's file, a slice at most. A slave further behind is served by a
worker, a piece at a time, because its bytes may have to come from the disk; the loop only reads its
reports meanwhile.

| state   | what sends                                                  | ends when                |
|---------|-------------------------------------------------------------|--------------------------|
| new     | nothing: the slave has not asked yet                        | it reports where it is   |
| level   | nothing: the slave has all                                  | a turn appends           |
| sending | the loop, in slices                                         | all is sent              |
| blocked | nothing: the slave does not read                            | its socket has room      |
| cold    | a worker                                                    | its piece is sent        |

Loop thread only, but for `Wire.send_cold`.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from concurrent.futures import Executor
from typing import Protocol

from aerobee.broker.cluster.replication.rates import Rate
from aerobee.broker.cluster.replication.wires import Block, Wire
from aerobee.protocol.replication import BadReplication, ReportDecoder
from aerobee.remoting.peers import address_text
from aerobee.store.log.replication.feed import CannotFollow, Follower, Piece

log = logging.getLogger("aerobee.broker.replication")

# The bytes that one slave gets in a turn of the loop: less than a millisecond of copying.
_SLICE_BYTES = 1 << 20
# The bytes that a worker sends before it comes back.
_COLD_BYTES = 4 << 20


class State(enum.Enum):
    """See the module's story."""

    NEW = "new"
    LEVEL = "level"
    SENDING = "sending"
    BLOCKED = "blocked"
    COLD = "cold"


class Port(Protocol):
    """The HA port that a slave has come to."""

    def reported(self) -> None:
        """A slave has reported: answers may leave."""

    def refused(self, connection: SlaveConnection, error: CannotFollow) -> None:
        """A slave cannot be served."""

    def confused(self, connection: SlaveConnection, error: BadReplication) -> None:
        """The peer is no slave."""

    def ended(self, connection: SlaveConnection, reason: str) -> None:
        """A connection has ended."""


class SlaveConnection:
    """Serves one slave until it goes. Made for an open socket that does not block."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        wire: Wire,
        peer: tuple[str, int],
        follower: Follower,
        port: Port,
        *,
        block_bytes: int,
        workers: Executor,
    ) -> None:
        """`workers` send what may have to come from the disk, a thread for each slave."""
        self._loop = loop
        self._wire = wire
        self.peer = peer
        self.follower = follower
        self._port = port
        self._block_bytes = block_bytes
        self._workers = workers
        self._reports = ReportDecoder()
        self._block: Block | None = None
        # Up to there a worker has brought the log into memory.
        self._warm_to = 0
        self._scheduled = False
        self.state = State.NEW
        self.closed = False
        self.heard_at = self.wrote_at = loop.time()
        self.sent_bytes = 0
        #: Bytes a second, of late.
        self.rate = Rate()
        #: Those that a worker has had to fetch.
        self.worker_bytes = 0
        loop.add_reader(wire.socket, self._readable)

    # --- what the slave says ------------------------------------------------------------------

    def _readable(self) -> None:
        try:
            data = self._wire.receive()
            if data is None:
                return
            if not data:
                self.close("the slave has closed it")
                return
            report = self._reports.feed(data)
            if report is None:
                return
            self.heard_at = self._loop.time()
            begins = not self.follower.asked
            self.follower.report(report)
        except CannotFollow as error:
            self._port.refused(self, error)
            self.close(str(error))
        except BadReplication as error:
            self._port.confused(self, error)
            self.close(str(error))
        except OSError as error:
            self.close(str(error))
        else:
            self._port.reported()
            if begins:
                self.go_on()

    # --- what it is sent ----------------------------------------------------------------------

    def go_on(self) -> None:
        """Send what there is, unless that is under way. Called at the end of a turn that has
        appended."""
        if self.closed or self.state in (State.BLOCKED, State.COLD) or self._scheduled:
            return
        try:
            self._send_slice()
        except CannotFollow as error:
            self._port.refused(self, error)
            self.close(str(error))
        except OSError as error:
            self.close(str(error))

    def _send_slice(self) -> None:
        room = _SLICE_BYTES
        while room > 0:
            piece = None
            if self._block is None:
                piece = self.follower.next_piece(self._block_bytes)
                if piece is None:
                    self.state = State.LEVEL
                    return
                if not piece.hot and piece.log_offset >= self._warm_to:
                    self._hand_over()
                    return
                self._begin(piece)
                room -= piece.size
            assert self._block is not None
            if not self._wire.push(self._block):
                self.state = State.BLOCKED
                self._loop.add_writer(self._wire.socket, self._writable)
                return
            self.wrote_at = self._loop.time()
            self._block = None
            if piece is not None and piece.is_last:
                self.state = State.LEVEL
                return
        self.state = State.SENDING
        self._scheduled = True
        self._loop.call_soon(self._next_slice)

    def _begin(self, piece: Piece) -> None:
        self._block = Block(piece)
        self.follower.took(piece.size)
        self.sent_bytes += piece.size

    def _next_slice(self) -> None:
        self._scheduled = False
        self.go_on()

    def _writable(self) -> None:
        self._loop.remove_writer(self._wire.socket)
        self.state = State.SENDING
        self.go_on()

    def _hand_over(self) -> None:
        """Have a worker send the next piece, or bring it into memory."""
        piece = self.follower.next_piece(_COLD_BYTES)
        assert piece is not None
        if self._wire.worker_sends:
            self.follower.took(piece.size)
            self.sent_bytes += piece.size
        else:
            self._warm_to = piece.log_offset + piece.size
        self.worker_bytes += piece.size
        self.state = State.COLD
        work = self._loop.run_in_executor(
            self._workers, self._wire.send_cold, piece, self._block_bytes
        )
        work.add_done_callback(self._handed_back)

    def _handed_back(self, work: asyncio.Future[None]) -> None:
        self.state = State.SENDING
        error = None if work.cancelled() else work.exception()
        if self.closed:
            self._let_go()
        elif error is not None:
            if not isinstance(error, OSError):
                log.error("a worker failed peer=%s", address_text(self.peer), exc_info=error)
            self.close(str(error))
        else:
            self.wrote_at = self._loop.time()
            self.go_on()

    # --- time ---------------------------------------------------------------------------------

    def look(self, now: float, *, sign_s: float, silent_s: float) -> None:
        """Send a sign of life when nothing was sent for `sign_s`; end the connection when nothing
        was heard for `silent_s`."""
        self.rate.look(now, self.sent_bytes)
        if now - self.heard_at > silent_s:
            self.close(f"the slave has reported nothing for {silent_s:g} s")
        elif self.follower.asked and self.state is State.LEVEL and now - self.wrote_at >= sign_s:
            try:
                self._wire.send_sign(self.follower.position)
                self.wrote_at = now
            except OSError as error:
                self.close(str(error))

    def close(self, reason: str) -> None:
        """End the connection; its report does not count any more."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._wire.socket)
        self._loop.remove_writer(self._wire.socket)
        self._shut_down()
        self.follower.leave()
        if self.state is not State.COLD:
            self._let_go()
        self._port.ended(self, reason)

    def _shut_down(self) -> None:
        try:
            # A worker that waits for room ends with it.
            self._wire.socket.shutdown(2)
        except OSError as error:
            log.debug("slave's socket was gone peer=%s error=%s", address_text(self.peer), error)

    def _let_go(self) -> None:
        """Give back what a worker may still have used."""
        self.follower.close()
        self._wire.socket.close()
