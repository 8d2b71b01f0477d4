"""From a command to its answer: finds the handler, turns errors into answers, counts.

One router per port: the main port serves everything, the VIP port everything but pulls
(protocol/WIRE.md 1.9). Handlers are plain functions `(connection, command) -> bytes | None`; None
means "answered later, or never" (a held pull, a send that waits for its sync, a oneway request).
A handler that answers later counts the request then, with the time it took. A request that may take
long is a generator instead, whose steps are spread over turns of the loop
(`remoting/connections/serving.py`).

Errors have owners: `BadRequest` is the peer's fault and carries its own code; a `StoreError` is the
store's state and has its code in the table below; anything else is our bug. It is logged with its
traceback, answered with SYSTEM_ERROR so that the client does not wait for its time-out, and counted
in `stats.handler_failures`, which an alert watches. A handler that answers later uses `refusal`,
for each request by itself, so that an answer does not depend on when it is given, and one request's
error does not become another's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping
from typing import TypeAlias

from aerobee.access.administration import AUDITED_OF_BROKERS, not_here
from aerobee.access.control import AccessControl, ReadBody, read_at_once
from aerobee.access.needs import BROKER_NEEDS, InBody
from aerobee.broker.broker_stats import BrokerStats
from aerobee.broker.routing.unsupported import unsupported_text
from aerobee.protocol.bodies.common import SMALL_BODY
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.command import Command, encode_response
from aerobee.remoting.connections.connection import Connection
from aerobee.remoting.connections.serving import Answer, Serving
from aerobee.remoting.turns import Steps, Turns
from aerobee.store import errors as store_errors

log = logging.getLogger("aerobee.broker")

# A code is logged once; codes come from the peer, so their number is bounded.
_UNSUPPORTED_LOGGED = 100
# These requests may name many topics and groups in their bodies, each with a right of its own. A
# body larger than this is looked at in steps; it is JSON that takes long to read.
_LOOKED_AT_ONCE: dict[int, int] = {
    **dict.fromkeys(
        (
            *(RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2),
            *(RequestCode.SEND_BATCH_MESSAGE, RequestCode.STAGE_CHUNK),
        ),
        16 * 1024,
    ),
    **{code: SMALL_BODY for code, needs in BROKER_NEEDS.items() if isinstance(needs, InBody)},
}

# Requests whose bodies are messages, or parts of them; those have limits of their own.
_CARRY_MESSAGES = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
        RequestCode.STAGE_CHUNK,
        RequestCode.STAGE_INTENT,
    }
)

Handler: TypeAlias = Callable[[Connection, Command], Answer]
NoteRefused: TypeAlias = Callable[[Connection, Command, Exception], None]

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
        stats.note_refusal(connection.peer[0], command.code, *known)
        return known
    log.error("request failed code=%d peer=%s:%s", command.code, *connection.peer, exc_info=error)
    stats.handler_failures += 1
    remark = f"the broker failed on this request ({type(error).__name__}); see its log"
    stats.note_refusal(connection.peer[0], command.code, ResponseCode.SYSTEM_ERROR, remark)
    return ResponseCode.SYSTEM_ERROR, remark


def taken_elsewhere(_connection: Connection, command: Command) -> Answer:
    """The handler of administrators' requests where they have a port of their own."""
    raise not_here(command.code, "admin.port", "mqadmin -b, aerobee --admin")


class Router(Serving):
    """Serves the commands of one port."""

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        *,
        stats: BrokerStats,
        on_closed: Callable[[Connection], None],
        turns: Turns,
        max_request_bytes: int,
        patience_s: Mapping[int, float],
        access: AccessControl | None = None,
        read_body: ReadBody = read_at_once,
        note_refused: NoteRefused | None = None,
    ) -> None:
        """`max_request_bytes` bounds the bodies of requests that carry no messages; `patience_s`
        says by code how long a request may have waited here; `access` who may ask for what, and
        `read_body` reads what it has to see of a large body. `note_refused` is called for each
        refused request that is audited."""
        super().__init__(turns)
        self._access = access
        self._read_body = read_body
        self._note_refused = note_refused
        self._patience_s = patience_s
        self._max_request_bytes = max_request_bytes
        self._handlers = dict(handlers)
        self._stats = stats
        self._on_closed = on_closed
        self._unsupported: set[int] = set()  # codes that were logged

    def answered(self, code: int, spent_s: float) -> None:
        self._stats.request_served(code, spent_s)

    def connection_opened(self, connection: Connection) -> None:
        log.debug("connection opened peer=%s:%s", *connection.peer)

    def connection_closed(self, connection: Connection, reason: str) -> None:
        log.debug("connection closed peer=%s:%s reason=%s", *connection.peer, reason)
        self._on_closed(connection)

    def serve(self, connection: Connection, command: Command) -> Answer:
        handler = self._handlers.get(command.code)
        if handler is None:
            self._log_unsupported(connection, command.code)
            raise BadRequest(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED, unsupported_text(command.code)
            )
        if connection.waited_since:
            self._check_waited(connection, command)
        if len(command.body) > self._max_request_bytes and command.code not in _CARRY_MESSAGES:
            raise BadRequest.system_error(
                f"the body of this request has {len(command.body)} bytes, the limit for code "
                f"{command.code} is {self._max_request_bytes} (limits.max_request_bytes)"
            )
        if self._access is not None:
            size = len(command.body)
            if size > SMALL_BODY and size > _LOOKED_AT_ONCE.get(command.code, size):
                return self._serve_checked(self._access, connection, command, handler)
            self._access.check(command, connection.peer[0])
        return handler(connection, command)

    def _serve_checked(
        self, access: AccessControl, connection: Connection, command: Command, handler: Handler
    ) -> Steps:
        """Serve a request whose check of rights takes a while."""
        yield from access.check_in_steps(command, connection.peer[0], self._read_body)
        answer = handler(connection, command)
        return (yield from answer) if isinstance(answer, Generator) else answer

    def _check_waited(self, connection: Connection, command: Command) -> None:
        """Refuse a request whose sender has given up, or will before it is done (fast failure)."""
        patience_s = self._patience_s.get(command.code)
        waited_s = self._turns.clock() - connection.waited_since
        if patience_s is not None and waited_s > patience_s:
            raise BadRequest(
                ResponseCode.SYSTEM_BUSY,
                "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in "
                f"queue: {waited_s * 1000:.0f}ms, size of queue: {connection.waiting_commands}",
            )

    def refuse(
        self, connection: Connection, command: Command, error: Exception, spent_s: float
    ) -> bytes:
        code, remark = refusal(error, connection, command, self._stats)
        self._stats.request_refused(command.code, code, spent_s)
        if self._note_refused is not None and command.code in AUDITED_OF_BROKERS:
            self._note_refused(connection, command, error)
        return encode_response(command, code, remark)

    def _log_unsupported(self, connection: Connection, code: int) -> None:
        if code in self._unsupported or len(self._unsupported) >= _UNSUPPORTED_LOGGED:
            return
        self._unsupported.add(code)
        log.info("request code not supported code=%d peer=%s:%s", code, *connection.peer)
