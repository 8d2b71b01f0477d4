"""The parts that connections of one server (or one client) share: buffer, clock, counters, budgets.

One receive buffer serves them all: a read is decoded before the next one starts, and the decoder
copies what it keeps. One timer sweeps them all: it moves the coarse clock that connections stamp
themselves with, closes the idle and the slow, and counts unsent output. It runs only while there
are connections. Loop thread only.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Iterator
from typing import Protocol

from aerobee.remoting.connection_limits import MIB, RemotingLimits
from aerobee.remoting.connection_stats import CloseReason, ServerStats
from aerobee.remoting.connections.inbound_budget import FrameHolder, InboundBudget
from aerobee.remoting.sweep import Sweep
from aerobee.remoting.turns import Turns

log = logging.getLogger("aerobee.remoting")

# Closings of hostile or broken peers logged one by one per sweep; the others are summed.
_LOGGED_PER_SWEEP = 10
# Connections that are looked at in one step, a few of which may be closed.
_STEP_CONNECTIONS = 32


class SetMember(FrameHolder, Protocol):
    """The part of a connection that the set knows."""

    id: int
    # (address text, port) of the other end; it does not change while the set holds the connection.
    peer: tuple[str, int]

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the operating system has not taken yet."""

    def check_times(self, now: float) -> None:
        """End the connection if it is idle or slow."""


class ConnectionSet:
    """The shared part of a set of connections.

    `full_stops_reading`: a peer that does not take its answers is not read (servers). A client must
    go on reading, or the two ends would wait for each other.
    """

    __slots__ = (
        "_addresses",
        "_connections",
        "_empty",
        "_ids",
        "_logged",
        "_looking",
        "_loop",
        "_suppressed",
        "_timer",
        "full_stops_reading",
        "inbound",
        "limits",
        "name",
        "now",
        "overloaded",
        "read_view",
        "recount_at",
        "stats",
        "turns",
    )

    def __init__(
        self,
        limits: RemotingLimits,
        name: str,
        *,
        full_stops_reading: bool = True,
        turns: Turns | None = None,
    ) -> None:
        """`turns`: those of the loop, where this set shares it with others."""
        self.turns = turns or Turns()
        self.limits = limits
        self.name = name
        self.full_stops_reading = full_stops_reading
        self.stats = ServerStats()
        self._connections: dict[int, SetMember] = {}
        self._addresses: Counter[str] = Counter()
        self._empty = asyncio.Event()
        self._looking = Sweep(self.turns, self._look_at_all)
        self.inbound = InboundBudget(limits.inbound_total_bytes, limits.frame_bytes, self.stats)
        self.read_view = memoryview(bytearray(limits.read_buffer_bytes))
        # Seconds on the loop's clock at the last sweep.
        self.now = 0.0
        # Unsent output is near its limit: handlers should refuse work that makes large answers.
        self.overloaded = False
        # `stats.bytes_out` at which unsent output is counted again.
        self.recount_at = limits.outbound_total_bytes // 2
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ids = itertools.count(1)
        self._logged = 0
        self._suppressed = 0

    def add(self, connection: SetMember) -> int:
        """Take a connection in; returns its id."""
        if self._timer is None:
            self._loop = asyncio.get_running_loop()
            self._timer = self._loop.call_later(self.limits.sweep_interval_s, self._sweep)
        assert self._loop is not None
        self.now = self._loop.time()
        self.stats.accepted += 1
        self.stats.open += 1
        connection_id = next(self._ids)
        self._connections[connection_id] = connection
        self._addresses[connection.peer[0]] += 1
        self._empty.clear()
        return connection_id

    def remove(self, connection: SetMember, reason: str) -> None:
        """Take out a connection that has ended."""
        del self._connections[connection.id]
        host = connection.peer[0]
        self._addresses[host] -= 1
        if not self._addresses[host]:
            del self._addresses[host]
        self.inbound.changed(connection, 0)
        self.stats.open -= 1
        self.stats.closed[str(reason)] += 1
        if self._connections:
            return
        self._empty.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def members(self) -> list[SetMember]:
        """The connections that are open now."""
        return list(self._connections.values())

    def count_of(self, host: str) -> int:
        """Connections with one address."""
        return self._addresses[host]

    def close_all(self, reason: str, *, abort: bool = False) -> None:
        """Close every connection."""
        for connection in list(self._connections.values()):
            connection.close(reason, abort=abort)

    async def wait_empty(self, timeout_s: float) -> bool:
        """Wait until there is no connection; False when time ran out."""
        if not self._connections:
            return True
        try:
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    def recount(self) -> None:
        """Count unsent output; above the limit, close those who hold most of it.

        Called by the sweep and whenever half of the room left has been written, so the limit
        cannot be passed by more than 1 MiB between two counts.
        """
        limit = self.limits.outbound_total_bytes
        unsent = {c: c.unsent_bytes for c in self._connections.values()}
        total = sum(unsent.values())
        if total > limit:
            for connection in sorted(unsent, key=unsent.__getitem__, reverse=True):
                connection.close(CloseReason.OUTBOUND_MEMORY, abort=True)
                total -= unsent[connection]
                if total <= limit // 2:
                    break
        self.stats.outbound_bytes = total
        self.overloaded = total > limit * 3 // 4
        self.recount_at = self.stats.bytes_out + max(MIB, (limit - total) // 2)

    def log_violation(self, text: str, *args: object) -> None:
        """Log one line about a peer that broke a rule; floods are summed.

        `text` is the event and the fields of `args`: "frame too slow bytes=%d".
        """
        if self._logged >= _LOGGED_PER_SWEEP:
            self._suppressed += 1
            return
        self._logged += 1
        log.info(f"{text} server=%s", *args, self.name)

    def _sweep(self) -> None:
        assert self._loop is not None
        self._timer = None
        self.now = self._loop.time()
        self._looking.begin()

    def _look_at_all(self) -> Iterator[None]:
        """A sweep, in steps."""
        now = self.now
        for number, connection in enumerate(list(self._connections.values()), 1):
            connection.check_times(now)
            if number % _STEP_CONNECTIONS == 0:
                yield
        self.inbound.close_stalled(now)
        self.recount()
        if self._suppressed:
            log.info(
                "more closed for breaking a rule closed=%d server=%s", self._suppressed, self.name
            )
        self._logged = self._suppressed = 0
        # Closing may have emptied the set within this sweep, and a newcomer set the timer.
        if self._connections and self._timer is None:
            assert self._loop is not None
            self._timer = self._loop.call_later(self.limits.sweep_interval_s, self._sweep)
