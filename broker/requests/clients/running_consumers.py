"""Questions of administrators to running consumers, through the broker (protocol/WIRE.md 3.6, 3.8).

GET_CONSUMER_RUNNING_INFO and CONSUME_MESSAGE_DIRECTLY are passed on to one member of a group, and
its answer is passed back unread. INVOKE_BROKER_TO_GET_CONSUMER_STATUS asks all members where they
are, all at once, and puts their answers together; a member that does not answer in time is left out
and named in the remark. Two such rounds are under way at a time, so that memory does not hold the
answers of many large groups.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Generator, Sequence
from functools import partial
from typing import Any

from aerobee.broker.background.loop_workers import BodyReader
from aerobee.broker.requests.clients.client_calls import ClientCalls, no_answer
from aerobee.broker.routing.router import Handler
from aerobee.broker.tables.clients import ClientTable, GroupMember
from aerobee.protocol.bodies.offsets import group_status, member_status, parse_consumer_status
from aerobee.protocol.codes import RequestCode, ResponseCode, version_name
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.command import Command, encode_response
from aerobee.protocol.frames.frame import MAX_ANSWER_BYTES
from aerobee.protocol.headers.admin import (
    ConsumeDirectlyHeader,
    ConsumerClientHeader,
    ConsumerStatusHeader,
)
from aerobee.protocol.message.ids import parse_offset_msg_id
from aerobee.protocol.message.record import decode_record
from aerobee.remoting.connections.connection import Connection
from aerobee.remoting.peers import address_text
from aerobee.remoting.turns import Gate, Steps
from aerobee.store.message_store import MessageStore

# How long clients have to answer (protocol/WIRE.md 3.8).
PASS_ON_S = 10.0
STATUS_S = 5.0
# Clients below these versions (3.0.7 and 3.1.8) do not know the requests.
LEAST_VERSION = 28
_LEAST_VERSION_PASS_ON = 62
# Members that are asked in one step.
_STEP = 16
_ROUNDS_AT_ONCE = 2
# Members that a remark names.
_NAMED = 5


class ConsumerRequests:
    """Serves administrators. Loop thread only."""

    def __init__(
        self,
        broker_name: str,
        clients: ClientTable,
        *,
        store: MessageStore,
        calls: ClientCalls,
        bodies: BodyReader,
        most_answer_bytes: int,
    ) -> None:
        """`most_answer_bytes` bounds what one member may say of itself."""
        self._broker_name = broker_name
        self._clients = clients
        self._store = store
        self._calls = calls
        self._bodies = bodies
        self._most_answer_bytes = most_answer_bytes
        self._rounds = Gate(_ROUNDS_AT_ONCE)

    def handlers(self) -> dict[int, Handler]:
        """The handlers by request code."""
        return {
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.consume_directly,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self.status,
        }

    def running_info(self, connection: Connection, command: Command) -> None:
        """Ask a consumer for its running info, and pass its answer back."""
        header = ConsumerClientHeader.from_ext(command.ext)
        member = self._member(header.consumer_group, header.client_id)
        self._calls.pass_on(connection, command, member, PASS_ON_S)

    def consume_directly(self, connection: Connection, command: Command) -> None:
        """Have a consumer consume one stored message, whatever its offsets; its answer says how
        that went."""
        header = ConsumeDirectlyHeader.from_ext(command.ext)
        member = self._member(header.consumer_group, header.client_id)
        record = self._record(header.msg_id)
        ext = {"brokerName": self._broker_name}
        self._calls.pass_on(connection, command, member, PASS_ON_S, ext, record)

    def status(self, connection: Connection, command: Command) -> None:
        """Where the members of a group, or one of them, are in a topic's queues."""
        header = ConsumerStatusHeader.from_ext(command.ext)
        members = self._members(header)
        self._calls.check_room(len(members))
        steps = self._status(connection, command, header, members)
        self._calls.answer_later(connection, command, steps)

    # --- inside

    def _member(self, group: str, client_id: str) -> GroupMember:
        found = self._clients.consumer_group(group)
        member = found.find(client_id) if found else None
        if member is None:
            raise BadRequest.system_error(
                f"The Consumer <{group}> <{client_id}> not online: the members that are can be "
                "listed with GET_CONSUMER_CONNECTION_LIST"
            )
        check_version(member, _LEAST_VERSION_PASS_ON)
        return member

    def _record(self, msg_id: str) -> bytes:
        """The stored message with that id; another message that lies there is refused."""
        *named, log_offset = parse_offset_msg_id(msg_id)
        record = self._store.reader.record_at(log_offset)
        if record is None:
            raise BadRequest.system_error(
                f"there is no message {msg_id} in this broker (any more): none begins at log "
                f"offset {log_offset}"
            )
        there = decode_record(record).store_host
        if there != tuple(named):
            raise BadRequest.system_error(
                f"the message {msg_id} is another broker's: what lies at log offset {log_offset} "
                f"here was stored by {address_text(there)}"
            )
        return record

    def _members(self, header: ConsumerStatusHeader) -> list[GroupMember]:
        group, client_id = header.group, (header.client_addr or "").strip()
        found = self._clients.consumer_group(group)
        members = list(found.members.values()) if found else []
        if client_id:
            members = [member for member in members if member.client_id == client_id]
        if not members:
            who = f"no member {client_id}" if client_id else "no member"
            raise BadRequest.system_error(
                f"the consumer group {group} has {who} online; where a group is that is not "
                "online, its committed offsets say"
            )
        return members

    def _status(
        self,
        caller: Connection,
        command: Command,
        header: ConsumerStatusHeader,
        members: Sequence[GroupMember],
    ) -> Steps:
        for number, member in enumerate(members, 1):
            check_version(member, LEAST_VERSION)
            if number % _STEP == 0:
                yield None
        yield from self._rounds.enter()
        try:
            found, silent = yield from self._ask(caller, header, members)
        finally:
            self._rounds.leave()
        remark = None
        if silent:
            named = ", ".join(silent[:_NAMED]) + (", ..." if len(silent) > _NAMED else "")
            remark = f"{len(silent)} of {len(members)} members are not in it: {named}"
        return encode_response(command, ResponseCode.SUCCESS, remark, body=group_status(found))

    def _ask(
        self, caller: Connection, header: ConsumerStatusHeader, members: Sequence[GroupMember]
    ) -> Generator[asyncio.Future[Any] | None, None, tuple[list[bytes], list[str]]]:
        """The encoded answers, and what is said of members without a good one."""
        code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
        ext = {"topic": header.topic, "group": header.group}
        answers = _Answers(MAX_ANSWER_BYTES)
        found: dict[str, bytes] = {}
        silent: list[str] = []
        for number, member in enumerate(members, 1):
            try:
                answers.expect(member, self._calls.call(member, code, ext, b"", STATUS_S))
            except BadRequest as error:
                silent.append(f"{member.client_id} ({error.remark})")
            if number % _STEP == 0:
                yield None
        size = 0
        while not caller.closed and (one := (yield from answers.next())) is not None:
            member, answer = one
            try:
                part = yield from self._part(member, answer)
            except BadRequest as error:
                silent.append(f"{member.client_id} ({error.remark})")
                continue
            size += len(part) + 1
            if size > MAX_ANSWER_BYTES:
                raise _too_much(header.group)
            found[member.client_id] = part
        return list(found.values()), silent

    def _part(
        self, member: GroupMember, answer: Command | BaseException
    ) -> Generator[asyncio.Future[Any] | None, None, bytes]:
        """Read a member's answer. Raises BadRequest for anything else."""
        if isinstance(answer, BadRequest):
            raise answer
        if isinstance(answer, BaseException):
            raise no_answer(member, answer)
        if answer.code != ResponseCode.SUCCESS:
            raise BadRequest(answer.code, f"code {answer.code}: {(answer.remark or '')[:100]}")
        if len(answer.body) > self._most_answer_bytes:
            raise BadRequest.system_error(f"it answered with {len(answer.body)} bytes")
        offsets = yield from self._bodies.read(parse_consumer_status, answer.body)
        return (yield from member_status(member.client_id, offsets))


class _Answers:
    """The answers of several calls in the order in which they come, `most_bytes` of them
    at most."""

    def __init__(self, most_bytes: int) -> None:
        self._room = most_bytes
        self._expected = 0
        self._came: deque[tuple[GroupMember, Command | BaseException]] = deque()
        self._waker: asyncio.Future[None] | None = None

    def expect(self, member: GroupMember, call: asyncio.Future[Command]) -> None:
        """Wait for one more call."""
        self._expected += 1
        call.add_done_callback(partial(self._take, member))

    def next(
        self,
    ) -> Generator[
        asyncio.Future[None] | None, None, tuple[GroupMember, Command | BaseException] | None
    ]:
        """The next answer, or the reason why it is missing; None when all have been given."""
        if not self._expected:
            return None
        if not self._came:
            self._waker = asyncio.get_running_loop().create_future()
            yield self._waker
        else:
            yield None
        self._expected -= 1
        member, answer = self._came.popleft()
        if isinstance(answer, Command):
            self._room += len(answer.body)
        return member, answer

    def _take(self, member: GroupMember, call: asyncio.Future[Command]) -> None:
        answer: Command | BaseException = call.exception() or call.result()
        if isinstance(answer, Command):
            if len(answer.body) > self._room:
                answer = BadRequest.system_error("too much was answered at once")
            else:
                self._room -= len(answer.body)
        self._came.append((member, answer))
        waker, self._waker = self._waker, None
        if waker is not None:
            waker.set_result(None)


def check_version(member: GroupMember, least: int) -> None:
    """BadRequest (code 1) for a client that does not know what it would be asked."""
    if member.version < least:
        raise BadRequest.system_error(
            f"the client {member.client_id} is of version {version_name(member.version)} "
            f"({member.version}), too old for this: upgrade it to {least} or later"
        )


def _too_much(group: str) -> BadRequest:
    return BadRequest.system_error(
        f"what the members of {group} say does not fit one answer ({MAX_ANSWER_BYTES} bytes): ask "
        "for one member, by its client id"
    )
