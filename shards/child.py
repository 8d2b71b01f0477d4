"""A process that the supervisor keeps: its lives, its reports, its stop.

A child speaks to the supervisor as a service to systemd (broker/monitoring/systemd.py): READY=1,
STATUS=, EXTEND_TIMEOUT_USEC=, and WATCHDOG=1 where the supervisor itself is watched. Each sign of
life moves the moment by which the next must come; a child past it is killed, and started again like
a child that died.

Its standard input is a pipe that nobody writes to. The kernel closes it when the supervisor is
gone, however it ended, and the child stops in order then. (PR_SET_PDEATHSIG would be the other way:
it needs ctypes or code between fork and exec, follows the thread that forked and not the process,
and is lost when the parent dies before it is set.) It has its own session, so that Ctrl-C on a
terminal reaches the supervisor alone, which then stops all in their order.

    DOWN --start--> STARTING --READY=1--> READY --SIGTERM--> STOPPING --exit--> DOWN
                        '----exit, or SIGTERM----'--exit----------------------->'

A shard that will be started again gets SIGUSR2 in place of SIGTERM: it stops in the same way, and
tells the name servers that it returns.
"""

import asyncio
import contextlib
import enum
import logging
import os
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

log = logging.getLogger("aerobee.shards")

# The times of deploy/aerobee.service; a broker asks for more while it recovers.
_START_S = 60.0
_STOP_S = 60.0
# After being ready for this long, the next failure begins a new row.
_SETTLED_S = 60.0
_MESSAGE_BYTES = 8192


class State(enum.Enum):
    """The state of a child."""

    DOWN = "down"
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"


class Keeper(Protocol):
    """The supervisor of children."""

    def child_changed(self, child: "Child") -> None:
        """Take note that the child has a new state or status."""

    def child_needs(self, seconds: float) -> None:
        """Take note that a start or a stop asks for that much more time."""


class Child:
    """One process and its successors. Loop thread only."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environ: Mapping[str, str],
        directory: str,
        keeper: Keeper,
    ) -> None:
        """`directory` is private, for the notify socket. Raises OSError."""
        self.name = name
        self.state = State.DOWN
        self.status = ""
        self.pid = 0
        self.started_at = 0.0  # seconds since 1970
        # The number of times it ended by itself: in all, and since it last stayed up.
        self.failures = 0
        self.failures_in_row = 0
        #: Whether it is to be started again when it has ended, and whether it was stopped for that.
        self.wanted = True
        self.restart_asked = False
        self.last_code = 0
        self._command = command
        self._keeper = keeper
        path = os.path.join(directory, name)
        self._environ = {**environ, "NOTIFY_SOCKET": path}
        self._environ.pop("WATCHDOG_PID", None)
        watched_us = environ.get("WATCHDOG_USEC", "")
        self._watchdog_s = int(watched_us) / 1e6 if watched_us.isdecimal() else 0.0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(path)
        self._process: asyncio.subprocess.Process | None = None
        self._wake = asyncio.Event()
        self._deadline: float | None = None
        self._ready_at = 0.0
        self._reload_due = False
        self.reloading = False
        loop = asyncio.get_running_loop()
        #: True when the next life has become ready, False when it has ended before.
        self.next_start: asyncio.Future[bool] = loop.create_future()
        self._start: asyncio.Future[bool] = self.next_start
        loop.add_reader(self._socket.fileno(), self._heard)

    async def live(self) -> int:
        """One life, from the start to the end; returns the exit code, negative for a signal."""
        self._heard(stale=True)
        self._start, self.next_start = self.next_start, asyncio.get_running_loop().create_future()
        self.reloading = self._reload_due = False
        self.status = ""
        self.started_at = time.time()
        self._ready_at = 0.0
        self._deadline = time.monotonic() + _START_S
        self._become(State.STARTING)
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdin=asyncio.subprocess.PIPE, env=self._environ, start_new_session=True
        )
        self.pid = self._process.pid
        if self.restart_asked or not self.wanted:
            self.stop()  # the stop was asked for in between
        code = self.last_code = await self._process.wait()
        # Take in its last reports before the next life begins.
        self._heard()
        self._process = self._deadline = None
        self.pid, self.reloading, self.status = 0, False, ""
        self._become(State.DOWN)
        if not self._start.done():
            self._start.set_result(False)
        return code

    async def pause(self, seconds: float, why: str) -> None:
        """Wait before the next life, until `end` or `restart` at most; `why` is the status."""
        self.status = why
        self._wake.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    def end(self) -> None:
        """Stop it in order, for good."""
        self.wanted = False
        self._wake.set()
        if self.state is not State.STOPPING:
            self.stop()

    def restart(self, by: signal.Signals) -> None:
        """Stop it in order, to be started again at once."""
        self.restart_asked = self.state is not State.DOWN
        self._wake.set()
        self.stop(by)

    def note_failure(self) -> None:
        """Its life has ended by itself; a row of failures ends with a life that was long."""
        stayed_s = time.monotonic() - self._ready_at if self._ready_at else 0.0
        self.failures_in_row = 1 if stayed_s >= _SETTLED_S else self.failures_in_row + 1
        self.failures += 1

    def stop(self, by: signal.Signals = signal.SIGTERM) -> None:
        """Tell it to stop in order; a second call: at once."""
        if self._process is None:
            return
        self._deadline = time.monotonic() + _STOP_S
        self._become(State.STOPPING)
        self._send(by)

    def reload(self) -> None:
        """Have it read its configuration again. A child that is starting gets the signal as soon as
        it is ready: before that the signal may still end it."""
        if self.state is State.READY:
            self.reloading = True
            self._send(signal.SIGHUP)
        else:
            self._reload_due = self.state is State.STARTING

    def is_overdue(self) -> bool:
        """Whether the time for its next sign of life is over."""
        return self._deadline is not None and time.monotonic() > self._deadline

    def kill(self) -> None:
        """End it now, whatever it does."""
        self._send(signal.SIGKILL)

    def close(self) -> None:
        """Let go of the socket. The process must have ended."""
        asyncio.get_running_loop().remove_reader(self._socket.fileno())
        self._socket.close()

    def _send(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            # It may have ended a moment ago.
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def _become(self, state: State) -> None:
        self.state = state
        self._keeper.child_changed(self)

    def _heard(self, stale: bool = False) -> None:
        """Take in all its reports; `stale` reports are from an earlier life."""
        while True:
            try:
                message = self._socket.recv(_MESSAGE_BYTES)
            except BlockingIOError:
                return
            if not stale:
                for line in message.decode(errors="replace").split("\n"):
                    self._take(*line.partition("=")[::2])

    def _take(self, key: str, value: str) -> None:
        if key == "READY":
            self._is_ready()
        elif key == "STATUS":
            self.status = value
            self._keeper.child_changed(self)
        elif key == "WATCHDOG" and self.state is State.READY:
            self._deadline = time.monotonic() + self._watchdog_s
        elif key == "EXTEND_TIMEOUT_USEC" and value.isdecimal():
            seconds = int(value) / 1e6
            if self.state in (State.STARTING, State.STOPPING):
                self._deadline = time.monotonic() + seconds
            self._keeper.child_needs(seconds)

    def _is_ready(self) -> None:
        """Take in READY=1: it has started, or has read its configuration again."""
        self.reloading = False
        if self.state is State.STARTING:
            self._ready_at = time.monotonic()
            self._deadline = self._ready_at + self._watchdog_s if self._watchdog_s else None
            self._become(State.READY)
            self._start.set_result(True)
            if self._reload_due:
                self.reload()
        else:
            self._keeper.child_changed(self)
