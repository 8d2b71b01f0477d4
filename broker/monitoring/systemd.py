"""Tells systemd how the daemon is doing: the datagrams of sd_notify(3), without libsystemd.

The supervisor gives a datagram socket in NOTIFY_SOCKET: a path, or with a leading `@` a name in
Linux's abstract space. Without the variable every method does nothing, so the daemon calls them
always. Messages are lines of `KEY=value`. A lost message is logged and never stops the broker; a
send waits at most `_SEND_TIMEOUT_S` for a supervisor that does not read.

The messages (docs/operations.md): READY=1 after recovery, with the listeners open and the first
registration tried; STOPPING=1 at the first SIGTERM. While the store is recovered, STATUS= says how
far it is, and EXTEND_TIMEOUT_USEC asks for more time with each step of progress, so that a recovery
that hangs still meets the unit's time-out. Afterwards STATUS= says every ten seconds what the
broker does, or why it is not ready. WATCHDOG=1 comes from a thread of its own, because a loop that
is busy for half a minute with something large is alive, and killing it would only make it begin
anew: it is sent while the loop has turned within the last minute and the store's threads do their
turns. A loop that is stuck for good is killed after that minute and what the unit allows; the
stacks of all threads are in the log by then.

Loop thread only, except where said.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

# A name server alone also reports to its supervisor, without HTTP and store, which these would
# bring.
if TYPE_CHECKING:
    from aerobee.broker.background.scheduler import Scheduler
    from aerobee.broker.monitoring.health_checks import HealthChecks, LoopMonitor, Verdict
    from aerobee.store.message_store import MessageStore
    from aerobee.store.recovery.recovery_report import Progress
    from aerobee.store.store_stats import Rates

log = logging.getLogger("aerobee.broker.notify")

# A send waits this long for a supervisor that does not read.
_SEND_TIMEOUT_S = 0.5
# More than recovery ever takes from one report of its progress to the next.
_RECOVERY_EXTENSION_S = 60.0
_STATUS_S = 10.0
# A loop that has not turned for this long is stuck: several times the longest turn ever measured,
# with the largest request that the limits allow.
_STUCK_S = 60.0
_GIB = 1 << 30


class Notifier:
    """The notify socket of this process's supervisor, or nothing at all."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._address = _address(environ.get("NOTIFY_SOCKET", ""))
        self._environ = environ
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()
        self._failed = False

    @property
    def enabled(self) -> bool:
        """True when a supervisor listens."""
        return self._address is not None

    @property
    def watchdog_interval_s(self) -> float | None:
        """Seconds between two `watchdog` calls (half of the allowed time); None: not watched."""
        watched_pid = self._environ.get("WATCHDOG_PID", "")
        if watched_pid and watched_pid != str(os.getpid()):
            return None
        try:
            allowed_us = int(self._environ.get("WATCHDOG_USEC", "0"))
        except ValueError:
            return None
        return allowed_us / 2e6 if self.enabled and allowed_us > 0 else None

    def ready(self, status: str = "") -> None:
        self._send("READY=1", *_status_lines(status))

    def reloading(self) -> None:
        """The configuration is being read again; `ready` says when that is done."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, status: str = "") -> None:
        self._send("STOPPING=1", *_status_lines(status))

    def status(self, text: str) -> None:
        """One line for `systemctl status`. A supervisor that does not read misses it: the next
        message comes soon, and the loop that sends it has clients to serve."""
        self._send(*_status_lines(text), patient=False)

    def extend_timeout(self, seconds: float) -> None:
        """Starting or stopping needs up to `seconds` more from now."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")

    def watchdog(self) -> None:
        """All is well. Any thread."""
        self._send("WATCHDOG=1")

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, *lines: str, patient: bool = True) -> None:
        """Without `patient` nothing is sent where that would wait."""
        # The watchdog's thread may hold the lock, for as long as it waits itself.
        if self._address is None or not self._lock.acquire(blocking=patient):
            return
        try:
            self._send_datagram(self._address, lines, _SEND_TIMEOUT_S if patient else 0.0)
        finally:
            self._lock.release()

    def _send_datagram(self, address: str | bytes, lines: Sequence[str], wait_s: float) -> None:
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.settimeout(wait_s)
            self._socket.sendto("\n".join(lines).encode(), address)
        except OSError as error:
            if not self._failed:
                log.warning("notify socket failed address=%r error=%s", address, error)
            self._failed = True
        else:
            self._failed = False


def progress_text(what: str, done_bytes: int, total_bytes: int, elapsed_s: float) -> str:
    """A line such as `reading the commit log 37% (2.1 of 5.6 GiB), 210 MB/s, 17 s left`."""
    if total_bytes <= 0:
        return what
    share = done_bytes / total_bytes
    text = f"{what} {share:.0%} ({done_bytes / _GIB:.1f} of {total_bytes / _GIB:.1f} GiB)"
    if done_bytes > 0 and elapsed_s > 1.0:
        text += f", {done_bytes / elapsed_s / 1e6:.0f} MB/s"
        text += f", {elapsed_s * (1 / share - 1):.0f} s left"
    return text


def _address(text: str) -> str | bytes | None:
    if not text:
        return None
    if text.startswith("@"):
        return b"\0" + text[1:].encode()
    if text.startswith("/"):
        return text
    log.warning("NOTIFY_SOCKET is neither a path nor an abstract name value=%r", text)
    return None


def _status_lines(text: str) -> tuple[str, ...]:
    # A line break would begin another assignment.
    return (f"STATUS={' '.join(text.splitlines())}",) if text else ()


class Watchdog:
    """Tells the supervisor, from a thread of its own, that the daemon lives."""

    def __init__(
        self, notifier: Notifier, monitor: LoopMonitor, store: MessageStore | None = None
    ) -> None:
        """Asks `monitor` how long the loop has not turned, and `store`, if any, whether its threads
        run."""
        self._notifier = notifier
        self._monitor = monitor
        self._store = store
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._stuck = False

    def start(self, interval_s: float) -> None:
        """Look every `interval_s` seconds."""
        self._thread = threading.Thread(
            target=self._run, args=(interval_s,), name="aerobee-watchdog", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Look no more; returns when the thread has ended."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def look(self) -> bool:
        """Look now; returns whether the supervisor heard that all is well."""
        stuck_s = self._monitor.stuck_s()
        if stuck_s >= _STUCK_S:
            if not self._stuck:
                log.critical("event loop stuck seconds=%.0f, the watchdog is fed no more", stuck_s)
                faulthandler.dump_traceback(all_threads=True)
            self._stuck = True
            return False
        self._stuck = False
        if self._store is not None and not self._store.threads_alive():
            return False
        self._notifier.watchdog()
        return True

    def _run(self, interval_s: float) -> None:
        while not self._stopping.wait(interval_s):
            self.look()


class Supervision:
    """Reports one daemon's recovery, status and life to its supervisor."""

    def __init__(self, notifier: Notifier, health: HealthChecks) -> None:
        self._notifier = notifier
        self._health = health
        self._recovering: str | None = None
        self._watchdog: Watchdog | None = None

    def begin_recovery(self, loop: asyncio.AbstractEventLoop) -> Progress:
        """The store is about to be opened; returns the function that takes reports of its progress.

        It may be called on any thread, with what is done, and the bytes done and in all.
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

    def start(self, scheduler: Scheduler, store: MessageStore, monitor: LoopMonitor) -> None:
        """Start the repeated messages: what `store` and `monitor` say."""

        def report_status() -> None:
            rates = store.stats_service.rates()
            self._notifier.status(status_line(self._health.run(), rates))

        if self._notifier.enabled:
            scheduler.every(_STATUS_S, "status", report_status)
        if (interval := self._notifier.watchdog_interval_s) is not None:
            self._watchdog = Watchdog(self._notifier, monitor, store)
            self._watchdog.start(interval)

    def stop(self) -> None:
        """End the watchdog's thread: while the daemon stops, the supervisor has another clock."""
        if self._watchdog is not None:
            self._watchdog.stop()

    def _moved(self, text: str) -> None:
        # A report that comes after the end would stay as the status for ever.
        if self._recovering is not None:
            self._recovering = text
            self._notifier.status(text)
            self._notifier.extend_timeout(_RECOVERY_EXTENSION_S)


def status_line(verdicts: Sequence[Verdict], rates: Rates) -> str:
    """One line for people: the first thing that is wrong, else the traffic of the last minute and
    the notes."""
    for verdict in verdicts:
        if not verdict.ok:
            return f"not ready: {verdict.name}: {verdict.reason}"
    noted = (verdict for verdict in verdicts if verdict.reason is not None)
    notes = "".join(f"; {verdict.name}: {verdict.reason}" for verdict in noted)
    sent, read = rates.put[1], rates.get_transferred[1]
    return f"ready, {sent:.1f} messages/s in, {read:.1f} messages/s out{notes}"
