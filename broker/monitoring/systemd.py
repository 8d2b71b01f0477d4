"""Tells systemd how the daemon is doing: the datagrams of sd_notify(3), without libsystemd.

The supervisor gives a datagram socket in NOTIFY_SOCKET: a path, or with a leading `@` a name in
Linux's abstract space. Without the variable every method does nothing, so the daemon calls them
always. Messages are lines of `KEY=value`. A lost message is logged and never stops the broker; a
send waits at most `_SEND_TIMEOUT_S` for a supervisor that does not read.

Which message when (docs/operations.md): READY=1 after recovery, with the listeners open and the
first registration tried; STOPPING=1 at the first SIGTERM. While the store is recovered, STATUS=
says how far it is, and EXTEND_TIMEOUT_USEC asks for more time with each step of progress, so that a
recovery that hangs still meets the unit's time-out. Afterwards STATUS= says every ten seconds what
the broker does, or why it is not ready; WATCHDOG=1 is sent by a timer of the event loop, only while
the store's threads do their turns. Loop thread only, except where said.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence

from aerobee.broker.monitoring.health import HealthChecks, Verdict
from aerobee.broker.scheduler import Scheduler
from aerobee.store.recovery.report import Progress
from aerobee.store.stats import Rates

log = logging.getLogger("aerobee.broker.notify")

_SEND_TIMEOUT_S = 0.5
# More than recovery ever takes from one report of its progress to the next.
_RECOVERY_EXTENSION_S = 60.0
_STATUS_S = 10.0
_GIB = 1 << 30


class Notifier:
    """The notify socket of this process's supervisor, or nothing at all."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._address = _address(environ.get("NOTIFY_SOCKET", ""))
        self._environ = environ
        self._socket: socket.socket | None = None
        self._failed = False

    @property
    def enabled(self) -> bool:
        """True when a supervisor listens."""
        return self._address is not None

    @property
    def watchdog_interval_s(self) -> float | None:
        """Seconds between two `watchdog` calls (half of what is allowed), None when not watched."""
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

    def stopping(self, status: str = "") -> None:
        self._send("STOPPING=1", *_status_lines(status))

    def status(self, text: str) -> None:
        """One line for `systemctl status`."""
        self._send(*_status_lines(text))

    def extend_timeout(self, seconds: float) -> None:
        """Starting or stopping needs up to `seconds` more from now."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")

    def watchdog(self) -> None:
        self._send("WATCHDOG=1")

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, *lines: str) -> None:
        if self._address is None:
            return
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self._socket.settimeout(_SEND_TIMEOUT_S)
            self._socket.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            if not self._failed:
                log.warning("notify socket failed address=%r error=%s", self._address, error)
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


class Supervision:
    """Reports one daemon's recovery, status and life to its supervisor."""

    def __init__(self, notifier: Notifier, health: HealthChecks) -> None:
        self._notifier = notifier
        self._health = health
        self._recovering: str | None = None

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

    def watch(
        self,
        scheduler: Scheduler,
        threads_alive: Callable[[], bool],
        rates: Callable[[], Rates],
    ) -> None:
        """Start the repeated messages."""

        def report_status() -> None:
            self._notifier.status(status_line(self._health.run(), rates()))

        def notify_watchdog() -> None:
            if threads_alive():
                self._notifier.watchdog()

        if self._notifier.enabled:
            scheduler.every(_STATUS_S, "status", report_status)
        if (interval := self._notifier.watchdog_interval_s) is not None:
            scheduler.every(interval, "watchdog", notify_watchdog)

    def _moved(self, text: str) -> None:
        # A report that comes after the end would stay as the status for ever.
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
