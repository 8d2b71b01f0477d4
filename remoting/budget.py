"""Memory that unfinished frames may hold, all connections together.

A frame of up to 16 MiB is kept until it is whole, so a few hundred peers could fill the machine
with frames they never finish. Below the limit nobody is touched. Above it:
- a connection whose unfinished frame is big stops being read, except the one that started first.
  That one can always finish, so honest uploads go on, one after another;
- if the one being read does not move either, it is closed (`stalled`), and the next goes on;
- small unfinished frames (an ordinary client, cut mid-frame by the network) are never stopped:
  10,000 connections of 4 KiB are 40 MiB.
Every paused connection overshoots by at most one read buffer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aerobee.remoting.holds import MEMORY
from aerobee.remoting.stats import ServerStats

if TYPE_CHECKING:
    from aerobee.remoting.connection import Connection

BIG_FRAME_BYTES = 4096
# Above the limit, a big frame that gains nothing for this long makes room for others.
STALL_S = 5.0


class InboundBudget:
    """Who holds how much, who is paused for it. Loop thread only."""

    __slots__ = ("_big", "_limit", "_paused", "_resume_below", "_stats")

    def __init__(self, limit: int, stats: ServerStats) -> None:
        self._limit = limit
        self._resume_below = limit * 3 // 4
        self._stats = stats
        # Holders of big unfinished frames, oldest first.
        self._big: dict[Connection, None] = {}
        self._paused: dict[Connection, None] = {}

    def changed(self, connection: Connection, held: int) -> None:
        """`connection` now holds `held` bytes of unfinished input (0: finished or closed)."""
        stats = self._stats
        stats.inbound_bytes += held - connection.held_bytes
        connection.held_bytes = held
        if held >= BIG_FRAME_BYTES:
            self._big[connection] = None
            if stats.inbound_bytes > self._limit and connection is not next(iter(self._big)):
                self._paused[connection] = None
                connection.hold_reading(MEMORY)
        elif connection in self._big:
            del self._big[connection]
            self._paused.pop(connection, None)
        if self._paused:
            self._resume()

    def stalled(self, now: float) -> list[Connection]:
        """Connections to close: above the limit, and what is still read does not arrive."""
        if self._stats.inbound_bytes <= self._limit:
            return []
        too_old = now - STALL_S
        return [c for c in self._big if c not in self._paused and c.last_active < too_old]

    def _resume(self) -> None:
        if self._stats.inbound_bytes <= self._resume_below:
            going, self._paused = self._paused, {}
            for connection in going:
                connection.release_reading(MEMORY)
            return
        first = next(iter(self._big))
        if first in self._paused:
            del self._paused[first]
            first.release_reading(MEMORY)
