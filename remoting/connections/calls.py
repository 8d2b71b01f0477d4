"""Requests of ours that wait for the peer's answer, by opaque.

Both directions of a connection use this: the broker asking a client, the client asking a broker.
The two number spaces are independent (protocol/WIRE.md 1.10). One timer serves all waiting calls of
a connection, set for the earliest deadline; a call that is answered in time never touches it.
"""

from __future__ import annotations

import asyncio

from aerobee.protocol.frames.command import Command
from aerobee.remoting.errors import RemotingBusy, RemotingError, RemotingTimeout

# Calls that run out of time in one go; each wakes its caller.
_EXPIRED_AT_ONCE = 256

Waiting = tuple[asyncio.Future[Command], float, str]


class PendingCalls:
    """Futures by opaque, with deadlines. Loop thread only."""

    __slots__ = ("_limit", "_loop", "_peer", "_timer", "_timer_at", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop, peer: str, limit: int) -> None:
        self._loop = loop
        self._peer = peer
        self._limit = limit
        self._waiting: dict[int, Waiting] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, command: Command, timeout_s: float) -> asyncio.Future[Command]:
        """A future for the answer to `command`. Raises `RemotingBusy` at the limit."""
        if len(self._waiting) >= self._limit:
            raise RemotingBusy(f"{self._limit} requests already wait for answers of {self._peer}")
        assert command.opaque not in self._waiting, "two waiting requests share one opaque"
        future: asyncio.Future[Command] = self._loop.create_future()
        deadline = self._loop.time() + timeout_s
        text = f"request {command.code}: no answer from {self._peer} in {timeout_s:g} s"
        self._waiting[command.opaque] = (future, deadline, text)
        if self._timer is None or deadline < self._timer_at:
            self._set_timer(deadline)
        return future

    def answer(self, command: Command) -> bool:
        """Give an answer to the call that waits for it; False when none does, and it is dropped."""
        waiting = self._waiting.pop(command.opaque, None)
        if waiting is None:
            return False
        future = waiting[0]
        if not future.done():
            future.set_result(command)
        return True

    def fail_all(self, error: RemotingError) -> None:
        """The connection is gone: every waiting call fails with `error`."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, {}
        for future, _, _ in waiting.values():
            if not future.done():
                future.set_exception(error)
                # A caller that was cancelled never looks; that is no lost error.
                future.exception()

    def _set_timer(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        # Timers may fire a clock tick early; what is that close is over.
        due = [opaque for opaque, item in self._waiting.items() if item[1] <= now + 0.001]
        for opaque in due[:_EXPIRED_AT_ONCE]:
            future, _, text = self._waiting.pop(opaque)
            if not future.done():
                future.set_exception(RemotingTimeout(text))
        if self._waiting:
            # The others of very many are due at once: when the loop has served what arrived.
            self._set_timer(min(deadline for _, deadline, _ in self._waiting.values()))
