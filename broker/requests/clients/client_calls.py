"""Calls of the broker to clients, for requests that are answered with what the clients say
(protocol/WIRE.md 3.8).

A call is a request on the client's own connection, in the other direction. It ends with the
client's answer, when its time is over, or when the connection is gone; the request that waits for
it is answered then. Meanwhile the asking connection's other requests are served: it may be the very
client that is called. An asker that has gone gets nothing; the calls end by themselves.

Bounded: at most `limit` calls wait for answers, as many requests wait for calls, with what they
hold (`BYTES_EACH` on the average), and `limit_per_caller` of one connection; beyond that a request
gets SYSTEM_BUSY with the reason. A
client that does not take what was sent to it is not called. What a client answers is not read here,
but for its size: it has to fit an answer of ours.

Loop thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

from aerobee.broker.broker_stats import BrokerStats
from aerobee.broker.routing.router import refusal
from aerobee.broker.tables.clients import GroupMember
from aerobee.config.model import Settings
from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.command import Command, encode_response, make_request
from aerobee.protocol.frames.frame import MAX_ANSWER_BYTES
from aerobee.protocol.frames.pending_request import ANSWERABLE_BYTES, keep_for_answer, request_bytes
from aerobee.protocol.frames.signature import ACCESS_KEY, SIGNATURE
from aerobee.remoting.connections.connection import Connection
from aerobee.remoting.errors import RemotingError, RemotingTimeout
from aerobee.remoting.turns import Steps, StepsJob, Turns

#: How calls end, as they are counted.
ANSWERED, REFUSED, TIMED_OUT, LOST = "answered", "refused", "timed_out", "lost"

#: Bytes that a waiting request may hold on the average: as `limits.client_calls` says.
BYTES_EACH = 4096
# The asker's proofs of its right to ask are not passed on.
_SECRETS = frozenset({ACCESS_KEY, SIGNATURE, "SecurityToken"})
_KNOWN_CODES = frozenset(int(code) for code in ResponseCode) - {
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED
}


class ClientCalls:
    """All calls under way, and the requests that wait for them."""

    def __init__(self, turns: Turns, stats: BrokerStats, settings: Settings) -> None:
        self._turns = turns
        self._stats = stats
        # Its limits may change.
        self._settings = settings
        self._calls = 0
        self._requests = 0
        self._by_caller: dict[Connection, int] = {}
        # Bytes that each request holds, by its identity: it is here as long as it waits.
        self._held: dict[int, int] = {}
        self._held_bytes = 0

    def __len__(self) -> int:
        """Calls that wait for an answer."""
        return self._calls

    @property
    def requests(self) -> int:
        """Requests that wait for calls."""
        return self._requests

    @property
    def held_bytes(self) -> int:
        """Bytes of what those requests hold."""
        return self._held_bytes

    def check_room(self, calls: int) -> None:
        """Raises `BadRequest` (code 2) unless `calls` more calls may wait."""
        limit = self._settings.client_calls
        if self._calls + calls > limit:
            raise _busy(
                f"{calls} clients would be asked, and {self._calls} others are being asked, the "
                f"limit is {limit}: try again later, name one client, or raise limits.client_calls"
            )

    def call(
        self, member: GroupMember, code: int, ext: Mapping[str, str], body: bytes, timeout_s: float
    ) -> asyncio.Future[Command]:
        """Ask a client. The future gives its answer, or fails with a RemotingError.

        Raises `BadRequest`: there is no room, or the client does not take what it is sent.
        """
        self.check_room(1)
        if member.connection.full:
            raise BadRequest.system_error(
                f"the client {member.client_id} does not take what it is sent"
            )
        started = self._turns.clock()
        try:
            future = member.connection.call(make_request(code, ext, body), timeout_s)
        except RemotingError as error:
            raise _lost(member, error) from error
        self._calls += 1
        future.add_done_callback(partial(self._ended, code, started))
        return future

    def pass_on(
        self,
        caller: Connection,
        request: Command,
        member: GroupMember,
        timeout_s: float,
        ext: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> None:
        """Ask a client what the caller has asked, and answer with the client's answer as it is.

        `ext` is added to the request's fields; `body` takes the place of its body. Raises
        `BadRequest` as `call`, and when too many requests of the caller wait.
        """
        self._enter(caller, request)
        fields = {key: value for key, value in request.ext.items() if key not in _SECRETS}
        try:
            future = self.call(
                member,
                request.code,
                {**fields, **(ext or {})},
                request.body if body is None else body,
                timeout_s,
            )
        except BaseException:
            self._leave(caller, request)
            raise
        started = self._turns.clock()
        self.let_go(request)
        future.add_done_callback(partial(self._passed_on, caller, request, member, started))

    def answer_later(self, caller: Connection, request: Command, steps: Steps) -> None:
        """Have `steps` run for the answer, without keeping the caller's later requests waiting.

        Raises `BadRequest` (code 2) when too many requests wait; the steps are not begun then.
        """
        try:
            self._enter(caller, request)
        except BaseException:
            steps.close()
            raise
        started = self._turns.clock()
        finished = partial(self._finished, caller, request, started)
        self._turns.add(StepsJob(self._turns, steps, finished, request.code, caller))

    def let_go(self, request: Command) -> None:
        """All that is needed of a waiting request from now on is what its answer takes."""
        keep_for_answer(request)
        self._held_bytes += ANSWERABLE_BYTES - self._held[id(request)]
        self._held[id(request)] = ANSWERABLE_BYTES

    # --- inside

    def _enter(self, caller: Connection, request: Command) -> None:
        waiting, limit = self._by_caller.get(caller, 0), self._settings.client_calls
        held = request_bytes(request)
        if waiting >= self._settings.client_calls_per_connection:
            raise _busy(
                f"{waiting} requests of this connection wait for clients' answers, the limit "
                "(limits.client_calls_per_connection): try again later"
            )
        if self._requests >= limit:
            raise _busy(
                f"{self._requests} requests wait for clients' answers, the limit "
                "(limits.client_calls): try again later"
            )
        # One alone may be as large as any request.
        if self._requests and self._held_bytes + held > limit * BYTES_EACH:
            raise _busy(
                f"requests that wait for clients' answers hold {self._held_bytes} bytes, the limit "
                f"is {limit * BYTES_EACH} ({BYTES_EACH} for each of limits.client_calls): try "
                "again later"
            )
        self._by_caller[caller] = waiting + 1
        self._requests += 1
        self._held[id(request)] = held
        self._held_bytes += held

    def _leave(self, caller: Connection, request: Command) -> None:
        self._requests -= 1
        self._held_bytes -= self._held.pop(id(request))
        waiting = self._by_caller.pop(caller) - 1
        if waiting:
            self._by_caller[caller] = waiting

    def _ended(self, code: int, started: float, future: asyncio.Future[Command]) -> None:
        self._calls -= 1
        error = future.exception()
        if error is None:
            outcome = ANSWERED if future.result().code == ResponseCode.SUCCESS else REFUSED
        else:
            outcome = TIMED_OUT if isinstance(error, RemotingTimeout) else LOST
        self._stats.client_called(code, outcome, self._turns.clock() - started)

    def _passed_on(
        self,
        caller: Connection,
        request: Command,
        member: GroupMember,
        started: float,
        future: asyncio.Future[Command],
    ) -> None:
        spent_s = self._turns.clock() - started
        error = future.exception()
        try:
            if error is not None:
                raise no_answer(member, error) from error
            frame = _as_answer(request, future.result(), member)
        except Exception as failed:  # noqa: BLE001 - the top of a request; `refusal` logs bugs
            self._finished(caller, request, started, None, failed)
            return
        code = future.result().code
        if code == ResponseCode.SUCCESS:
            self._stats.request_served(request.code, spent_s)
        else:
            # Counters have room for the codes that there are, not for any number of a client's.
            known = code if code in _KNOWN_CODES else int(ResponseCode.SYSTEM_ERROR)
            self._stats.request_refused(request.code, known, spent_s)
        self._leave(caller, request)
        self._write(caller, request, frame)

    def _finished(
        self,
        caller: Connection,
        request: Command,
        started: float,
        answer: bytes | None,
        error: Exception | None,
    ) -> None:
        spent_s = self._turns.clock() - started
        if error is not None:
            code, remark = refusal(error, caller, request, self._stats)
            self._stats.request_refused(request.code, code, spent_s)
            answer = encode_response(request, code, remark)
        elif answer is not None:
            self._stats.request_served(request.code, spent_s)
        self._leave(caller, request)
        if answer is not None:
            self._write(caller, request, answer)

    def _write(self, caller: Connection, request: Command, answer: bytes) -> None:
        if not request.is_oneway and not caller.closed:
            self._turns.write(caller, answer)


def no_answer(member: GroupMember, error: BaseException) -> BadRequest:
    """The error that answers a call which has failed: code 207 when its time was over, else 1."""
    if isinstance(error, RemotingTimeout):
        return BadRequest(
            ResponseCode.CONSUME_MSG_TIMEOUT,
            f"the client {member.client_id} at {member.address} has not answered: {error}",
        )
    return _lost(member, error)


def _lost(member: GroupMember, error: BaseException) -> BadRequest:
    return BadRequest.system_error(
        f"the client {member.client_id} at {member.address} could not be asked: {error}"
    )


def _busy(remark: str) -> BadRequest:
    return BadRequest(ResponseCode.SYSTEM_BUSY, remark)


def _as_answer(request: Command, answer: Command, member: GroupMember) -> bytes:
    """The frame of a client's answer as that to `request`."""
    if len(answer.body) > MAX_ANSWER_BYTES:
        raise BadRequest.system_error(
            f"the answer of the client {member.client_id} has {len(answer.body)} bytes, and "
            f"{MAX_ANSWER_BYTES} fit one of ours"
        )
    try:
        return encode_response(request, answer.code, answer.remark, answer.ext or None, answer.body)
    except ValueError as error:
        raise BadRequest.system_error(
            f"the answer of the client {member.client_id}, code {answer.code}, cannot be passed "
            f"on: {error}"
        ) from error
