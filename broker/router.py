"""From a command to its answer: finds the handler, turns errors into answers, counts.

One router per port: the main port serves everything, the VIP port everything but pulls
(protocol/WIRE.md 1.9). Handlers are plain functions `(connection, command) -> bytes | None`; None
means "answered later, or never" (a held pull, a send that waits for its sync, a oneway request).
The code that answers later counts the request then, with the time it took. The answers to all
commands of one socket read leave in one write.

Errors have owners: `BadRequest` is the peer's fault and carries its own code; a `StoreError` is the
store's state and has its code in the table below; anything else is our bug. It is logged with its
traceback, answered with SYSTEM_ERROR so that the client does not wait for its time-out, and counted
in `stats.handler_failures`, which an alert watches. The code that answers later uses `refusal` too,
for each request by itself, so that an answer does not depend on when it is given, and one request's
error does not become another's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import TypeAlias

from aerobee.broker.stats import BrokerStats
from aerobee.broker.unsupported import unsupported_text
from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.command import Command, encode_response
from aerobee.remoting.connection import Connection
from aerobee.store import errors as store_errors

log = logging.getLogger("aerobee.broker")

# A code is logged once; codes come from the peer, so only so many are.
_UNSUPPORTED_LOGGED = 100

Handler: TypeAlias = Callable[[Connection, Command], bytes | None]

# Store errors to response codes (store/FORMAT.md 3.5); the first class that matches decides.
_STORE_ERROR_CODES: tuple[tuple[type[store_errors.StoreError], int], ...] = (
    (store_errors.MessageIllegal, ResponseCode.MESSAGE_ILLEGAL),
    (store_errors.PropertiesTooLarge, ResponseCode.MESSAGE_ILLEGAL),
    (store_errors.StoreNotWritable, ResponseCode.SERVICE_NOT_AVAILABLE),
    (store_errors.StoreBroken, ResponseCode.SERVICE_NOT_AVAILABLE),
    (store_errors.StoreClosed, ResponseCode.SERVICE_NOT_AVAILABLE),
    (store_errors.PageCacheBusy, ResponseCode.SYSTEM_ERROR),
    (store_errors.SegmentCreateFailed, ResponseCode.SYSTEM_ERROR),
    (store_errors.LmqConsumeQueueNumExceeded, ResponseCode.SYSTEM_ERROR),
)


def known_refusal(error: BaseException) -> tuple[int, str] | None:
    """Response code and remark of an error that has an owner; None for a bug of ours."""
    if isinstance(error, BadRequest):
        return error.code, error.remark
    if not isinstance(error, store_errors.StoreError):
        return None
    for kind, code in _STORE_ERROR_CODES:
        if isinstance(error, kind):
            return code, error.remark
    return ResponseCode.SYSTEM_ERROR, error.remark


def refusal(
    error: Exception, connection: Connection, command: Command, stats: BrokerStats
) -> tuple[int, str]:
    """Response code and remark for a request that raised `error`; a bug is logged and counted."""
    known = known_refusal(error)
    if known is not None:
        return known
    log.error("request failed code=%d peer=%s:%s", command.code, *connection.peer, exc_info=error)
    stats.handler_failures += 1
    remark = f"the broker failed on this request ({type(error).__name__}); see its log"
    return ResponseCode.SYSTEM_ERROR, remark


class TurnWrites:
    """Writes the answers of one turn of the loop: the first at once, the others at its end.

    A write wakes its client. With more clients than cores the scheduler then likes to let the
    client run where the broker ran, once for each answer; writing them when the turn's requests are
    served costs one such change instead of dozens. A client alone gets its answer at once.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._turn_open = False
        self._later: list[tuple[Connection, bytes]] = []

    def write(self, connection: Connection, data: bytes) -> None:
        """Write `data` in this turn."""
        if self._turn_open:
            connection.unwritten += len(data)
            self._later.append((connection, data))
            return
        self._turn_open = True
        self._loop.call_soon(self._end_turn)
        if not connection.closed:
            connection.write(data)

    def _end_turn(self) -> None:
        self._turn_open = False
        later, self._later = self._later, []
        for connection, data in later:
            connection.unwritten = 0
            if not connection.closed:
                connection.write(data)


class Router:
    """Serves the commands of one port."""

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        stats: BrokerStats,
        on_closed: Callable[[Connection], None],
        writes: TurnWrites,
    ) -> None:
        self._handlers = dict(handlers)
        self._stats = stats
        self._writes = writes
        self._on_closed = on_closed
        self._unsupported: set[int] = set()  # codes that were logged

    def connection_opened(self, connection: Connection) -> None:
        log.debug("connection opened peer=%s:%s", *connection.peer)

    def connection_closed(self, connection: Connection, reason: str) -> None:
        log.debug("connection closed peer=%s:%s reason=%s", *connection.peer, reason)
        self._on_closed(connection)

    def commands_received(self, connection: Connection, commands: list[Command]) -> None:
        """Serve the requests of one socket read, in order, and write their answers at once."""
        answers: list[bytes] = []
        for command in commands:
            answer = self._serve(connection, command)
            if answer is not None and not command.flag & 2:
                answers.append(answer)
        if answers:
            self._writes.write(connection, answers[0] if len(answers) == 1 else b"".join(answers))

    def _serve(self, connection: Connection, command: Command) -> bytes | None:
        started = perf_counter()
        handler = self._handlers.get(command.code)
        if handler is None:
            self._log_unsupported(connection, command.code)
            return self._refuse(
                command,
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                unsupported_text(command.code),
                started,
            )
        try:
            answer = handler(connection, command)
            if answer is not None:
                self._stats.request_served(command.code, perf_counter() - started)
            return answer
        except Exception as error:  # noqa: BLE001 - the top of a request; `refusal` logs bugs
            return self._refuse(command, *refusal(error, connection, command, self._stats), started)

    def _log_unsupported(self, connection: Connection, code: int) -> None:
        if code in self._unsupported or len(self._unsupported) >= _UNSUPPORTED_LOGGED:
            return
        self._unsupported.add(code)
        log.info("request code not supported code=%d peer=%s:%s", code, *connection.peer)

    def _refuse(self, command: Command, code: int, remark: str, started: float) -> bytes:
        self._stats.request_refused(command.code, code, perf_counter() - started)
        return encode_response(command, code, remark)
