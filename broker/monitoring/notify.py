"""Tells systemd how the daemon is doing: the datagrams of sd_notify(3), without libsystemd.

The supervisor gives a datagram socket in NOTIFY_SOCKET: a path, or with a leading `@` a name in
Linux's abstract space. Without the variable every method does nothing, so the daemon calls them
always. Messages are lines of `KEY=value`. A lost message is logged and never stops the broker; a
send waits at most `_SEND_TIMEOUT_S` for a supervisor that does not read.

Which message when: READY=1 after recovery, with the listeners open and the first
registration tried; STATUS= whenever there is something to say; EXTEND_TIMEOUT_USEC during a
recovery or a drain longer than the unit's time-outs; WATCHDOG=1 while loop and flush thread both
move; STOPPING=1 at the first SIGTERM.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Mapping

log = logging.getLogger("aerobee.broker.notify")

_SEND_TIMEOUT_S = 0.5
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
        wanted_pid = self._environ.get("WATCHDOG_PID", "")
        if wanted_pid and wanted_pid != str(os.getpid()):
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

    def reloading(self) -> None:
        """A reload begins; `ready` ends it."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

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
