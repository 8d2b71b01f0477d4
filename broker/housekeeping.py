"""The broker's repeated duties, run by timers of the loop.

A duty is a plain function. It is called on the loop, unless it was registered as `blocking`: then
it runs on a worker thread, and not again before the last run has ended. A duty that raises is
logged with its traceback and tried again at its next turn; it never takes the loop or the other
duties with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

log = logging.getLogger("aerobee.broker.housekeeping")


class Duty:
    """One repeated function."""

    __slots__ = ("blocking", "failures", "handle", "interval_s", "name", "run", "running")

    def __init__(
        self, name: str, interval_s: float, run: Callable[[], object], blocking: bool
    ) -> None:
        self.name = name
        self.interval_s = interval_s
        self.run = run
        self.blocking = blocking
        self.failures = 0
        self.handle: asyncio.TimerHandle | None = None
        self.running: asyncio.Future[object] | None = None


class Housekeeping:
    """Starts and stops duties together."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._duties: list[Duty] = []
        self._stopped = False

    @property
    def failures(self) -> int:
        """Runs that raised, of all duties together."""
        return sum(duty.failures for duty in self._duties)

    def every(
        self,
        interval_s: float,
        name: str,
        run: Callable[[], object],
        *,
        blocking: bool = False,
        first_s: float | None = None,
    ) -> None:
        """Run a function every `interval_s` seconds, first after `first_s` (one interval)."""
        duty = Duty(name, interval_s, run, blocking)
        self._duties.append(duty)
        self._schedule(duty, interval_s if first_s is None else first_s)

    async def stop(self) -> None:
        """Run nothing more; waits for blocking duties that are under way."""
        self._stopped = True
        running: list[asyncio.Future[object]] = []
        for duty in self._duties:
            if duty.handle is not None:
                duty.handle.cancel()
            if duty.running is not None:
                running.append(duty.running)
        if running:
            await asyncio.wait(running)

    def _schedule(self, duty: Duty, after_s: float) -> None:
        if not self._stopped:
            duty.handle = self._loop.call_later(after_s, self._turn, duty)

    def _turn(self, duty: Duty) -> None:
        if duty.blocking:
            duty.running = self._loop.run_in_executor(None, duty.run)
            duty.running.add_done_callback(lambda future: self._ended(duty, future))
            return
        try:
            duty.run()
        except Exception:  # noqa: BLE001 - the top of a duty; see the module's story
            self._failed(duty)
        self._schedule(duty, duty.interval_s)

    def _ended(self, duty: Duty, future: asyncio.Future[object]) -> None:
        duty.running = None
        if not future.cancelled() and (error := future.exception()) is not None:
            duty.failures += 1
            log.error("duty failed name=%s", duty.name, exc_info=error)
        self._schedule(duty, duty.interval_s)

    def _failed(self, duty: Duty) -> None:
        duty.failures += 1
        log.exception("duty failed name=%s", duty.name)
