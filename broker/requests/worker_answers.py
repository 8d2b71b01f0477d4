"""Requests whose work takes too long for the loop: done on a worker, answered when done.

Guarantees
- The work runs on one of the loop's worker threads; the answer is written on the loop, SUCCESS if
  the work returned, the store's code if it raised a `StoreError`, SYSTEM_ERROR for anything else.
- A client that has left, or wants no answer, gets none; the work is done all the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from time import perf_counter

from aerobee.broker.router import known_refusal
from aerobee.broker.stats import BrokerStats
from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.frames.command import Command, encode_response
from aerobee.remoting.connection import Connection

log = logging.getLogger("aerobee.broker")

_ONEWAY = 2


class WorkerAnswers:
    """Called on the loop by a handler, which returns None."""

    def __init__(self, loop: asyncio.AbstractEventLoop, stats: BrokerStats) -> None:
        self._loop = loop
        self._stats = stats

    def __call__(
        self, connection: Connection, command: Command, work: Callable[[], object], /
    ) -> None:
        """Have `work` done, then answer `command`."""
        future = self._loop.run_in_executor(None, work)
        future.add_done_callback(partial(self._done, connection, command, perf_counter()))

    def _done(
        self,
        connection: Connection,
        command: Command,
        started: float,
        future: asyncio.Future[object],
    ) -> None:
        if future.cancelled():
            return
        error = future.exception()
        code, remark = _told(error)
        if error is None:
            self._stats.request_served(command.code, perf_counter() - started)
        else:
            log.error("request failed code=%d", command.code, exc_info=error)
            self._stats.request_refused(command.code, code, perf_counter() - started)
        if not command.flag & _ONEWAY and not connection.closed:
            connection.write(encode_response(command, code, remark))


def _told(error: BaseException | None) -> tuple[int, str | None]:
    if error is None:
        return ResponseCode.SUCCESS, None
    return known_refusal(error) or (
        ResponseCode.SYSTEM_ERROR,
        f"the broker failed on this request: {error}",
    )
