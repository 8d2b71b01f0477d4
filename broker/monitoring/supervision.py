"""What the supervisor hears from the daemon beside READY and STOPPING, and when.

While the store is recovered: how far it is, and a request for more time with each step of progress,
so that a recovery that hangs still meets the unit's time-out. Afterwards: every ten seconds one
line of what the broker does, or why it is not ready; and the watchdog's food, given by a timer of
the event loop, only while the store's threads do their turns. Loop thread only, except where said.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from aerobee.broker.housekeeping import Housekeeping
from aerobee.broker.monitoring.health import Health, Verdict
from aerobee.broker.monitoring.notify import Notifier, progress_text
from aerobee.store.recovery.report import Progress
from aerobee.store.stats import Rates

# More than recovery ever takes from one word about its progress to the next.
_RECOVERY_EXTENSION_S = 60.0
_STATUS_S = 10.0


class Supervision:
    """One daemon's side of the talk with its supervisor."""

    def __init__(self, notifier: Notifier, health: Health) -> None:
        self._notifier = notifier
        self._health = health
        self._recovering: str | None = None

    def begin_recovery(self, loop: asyncio.AbstractEventLoop) -> Progress:
        """The store is about to be opened; returns what is to be told of its progress.

        The returned function may be called on any thread, with what is done, and bytes done and in
        all.
        """
        self._recovering = "the store is being opened"
        began = loop.time()
        self._health.add("recovered", lambda: self._recovering, "wait; the log shows how far it is")

        def progress(what: str, done_bytes: int, total_bytes: int) -> None:
            text = progress_text(what, done_bytes, total_bytes, loop.time() - began)
            loop.call_soon_threadsafe(self._moved, text)

        return progress

    def end_recovery(self) -> None:
        """The store is open."""
        self._recovering = None

    def watch(
        self,
        housekeeping: Housekeeping,
        threads_alive: Callable[[], bool],
        rates: Callable[[], Rates],
    ) -> None:
        """Start the repeated messages."""

        def say_status() -> None:
            self._notifier.status(status_line(self._health.look(), rates()))

        def feed_watchdog() -> None:
            if threads_alive():
                self._notifier.watchdog()

        if self._notifier.enabled:
            housekeeping.every(_STATUS_S, "status", say_status)
        if (interval := self._notifier.watchdog_interval_s) is not None:
            housekeeping.every(interval, "watchdog", feed_watchdog)

    def _moved(self, text: str) -> None:
        # A word that comes after the end would stand as the status for ever.
        if self._recovering is not None:
            self._recovering = text
            self._notifier.status(text)
            self._notifier.extend_timeout(_RECOVERY_EXTENSION_S)


def status_line(verdicts: Sequence[Verdict], rates: Rates) -> str:
    """One line for people: the first thing that is wrong, else the traffic of the last minute."""
    for verdict in verdicts:
        if verdict.reason is not None:
            return f"not ready: {verdict.name}: {verdict.reason}"
    return f"ready, {rates.put[1]:.1f} messages/s in, {rates.get_transferred[1]:.1f} messages/s out"
