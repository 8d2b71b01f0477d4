"""Measures how late the event loop runs its timers, and when it last turned.

A timer asks to be called every `interval_s`; how much later it comes is the loop's lag: the time a
frame may wait before anybody looks at it. The histogram feeds /metrics, `stuck_s` feeds /live and
the supervisor's watchdog.
"""

from __future__ import annotations

import asyncio

from aerobee.broker.stats import STAGE_BOUNDS, Buckets


class LoopMonitor:
    """Lag of one event loop. Started and stopped on that loop; `stuck_s` may be read anywhere."""

    def __init__(self, loop: asyncio.AbstractEventLoop, interval_s: float = 0.5) -> None:
        self._loop = loop
        self._interval_s = interval_s
        self._timer: asyncio.TimerHandle | None = None
        self._last_turn = loop.time()
        self.lag = Buckets(STAGE_BOUNDS)

    def start(self) -> None:
        self._last_turn = self._loop.time()
        self._arm()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def stuck_s(self) -> float:
        """Seconds by which the loop's timer is overdue now."""
        return max(0.0, self._loop.time() - self._last_turn - self._interval_s)

    def _arm(self) -> None:
        due = self._last_turn + self._interval_s
        self._timer = self._loop.call_at(due, self._turned, due)

    def _turned(self, due: float) -> None:
        now = self._loop.time()
        self.lag.add(max(0.0, now - due))
        # From now, not from `due`: after a stall the missed turns are not made up for.
        self._last_turn = now
        self._arm()
