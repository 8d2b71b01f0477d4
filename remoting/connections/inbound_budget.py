"""Memory that unfinished frames may hold, all connections together.

A frame of up to 16 MiB is kept until it is whole, so a few hundred peers could fill the machine
with frames they never finish. Below three quarters of the limit no connection is touched. Above:
- a connection whose unfinished frame is big stops being read, except the connection that started
  first. It can always finish, so honest uploads go on, one after another;
- if that connection does not move either, it is closed (`close_stalled`), and the next goes on;
- small unfinished frames (an ordinary client, cut mid-frame by the network) are never stopped:
  10,000 connections of 4 KiB are 40 MiB.
Every paused connection overshoots by at most one read buffer. With thousands of them that is more
than the last quarter: what would pass the limit ends the connection that it came from. Where the
last quarter has no room for a whole frame, the limit is that much higher: the connection that is
read must not end the others.
"""

from __future__ import annotations

from typing import Protocol

from aerobee.remoting.connection_stats import CloseReason, ServerStats

BIG_FRAME_BYTES = 4096
# A big frame that gains nothing for this long makes room for others that wait.
STALL_S = 5.0


class FrameHolder(Protocol):
    """The part of a connection that the budget knows."""

    # Bytes of unfinished input; only the budget changes it.
    held_bytes: int
    last_active: float

    def hold_for_memory(self) -> None:
        """Stop reading from the peer."""

    def release_from_memory(self) -> None:
        """Read from the peer again."""

    def close(self, reason: str, *, abort: bool = False) -> None:
        """End the connection, with `abort` at once."""


class InboundBudget:
    """Which connection holds how much, and which is paused for it. Loop thread only."""

    __slots__ = ("_big", "_most", "_pause_above", "_paused", "_resume_below", "_stats")

    def __init__(self, limit: int, frame_bytes: int, stats: ServerStats) -> None:
        """`limit` of all, `frame_bytes` of the largest frame."""
        self._pause_above = limit * 3 // 4
        self._resume_below = limit // 2
        self._most = max(limit, self._pause_above + frame_bytes)
        self._stats = stats
        # Holders of big unfinished frames, oldest first.
        self._big: dict[FrameHolder, None] = {}
        self._paused: dict[FrameHolder, None] = {}

    def changed(self, connection: FrameHolder, held: int) -> None:
        """`connection` now holds `held` bytes of unfinished input (0: finished or closed)."""
        stats = self._stats
        more = held - connection.held_bytes
        stats.inbound_bytes += more
        connection.held_bytes = held
        if held >= BIG_FRAME_BYTES:
            self._big[connection] = None
            if stats.inbound_bytes > self._pause_above and connection is not next(iter(self._big)):
                self._paused[connection] = None
                connection.hold_for_memory()
                if stats.inbound_bytes > self._most and more > 0:
                    self._end(connection)
        elif connection in self._big:
            del self._big[connection]
            if connection in self._paused:
                del self._paused[connection]
                connection.release_from_memory()
        if self._paused:
            self._resume()

    def close_stalled(self, now: float) -> None:
        """While others wait: end the connections that are read and from which nothing arrives."""
        if not self._paused:
            return
        too_old = now - STALL_S
        for connection in list(self._big):
            if connection not in self._paused and connection.last_active < too_old:
                connection.close(CloseReason.INBOUND_MEMORY, abort=True)

    def _end(self, connection: FrameHolder) -> None:
        """Close one, and count its bytes as gone: they go with it, before anybody else is read."""
        del self._big[connection], self._paused[connection]
        self._stats.inbound_bytes -= connection.held_bytes
        connection.held_bytes = 0
        connection.close(CloseReason.INBOUND_MEMORY, abort=True)

    def _resume(self) -> None:
        if self._stats.inbound_bytes <= self._resume_below:
            going, self._paused = self._paused, {}
            for connection in going:
                connection.release_from_memory()
            return
        first = next(iter(self._big))
        if first in self._paused:
            del self._paused[first]
            first.release_from_memory()
