"""SEND_REPLY_MESSAGE (324, 325): a reply goes to the client that asked (protocol/WIRE.md 3.1, 3.8).

A consumer answers a request with a message to its cluster's reply topic. The broker pushes it to
the client that the reply names, by that client's heartbeats as a producer, waits for its answer,
and tells the replier how that went. The reply is stored as well where `storeReplyMessageEnable`
says so: a record of what was said and nobody's way to the reply, so nobody waits for its sync. It
is stored first (RocketMQ stores it last, whatever became of the push), so that no body is kept for
as long as a client takes to answer.

RocketMQ stores a reply without its sysFlag, so that nobody can read a compressed one; here it keeps
it, and gets the broker's own properties as every stored message does. Loop thread only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from aerobee.broker.appending.appending import Appending
from aerobee.broker.messages.send import SendProcessor
from aerobee.broker.messages.stored_properties import stored_properties
from aerobee.broker.requests.clients.client_calls import ClientCalls
from aerobee.broker.routing.router import Handler
from aerobee.broker.tables.clients import ClientTable, GroupMember
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.command import Command, encode_response
from aerobee.protocol.headers.send import PushReplyHeader, SendMessageHeader, SendReply
from aerobee.protocol.message.demands import Carrier
from aerobee.protocol.message.ids import offset_msg_id
from aerobee.protocol.message.properties import (
    PROPERTY_PUSH_REPLY_TIME,
    PROPERTY_REPLY_TO_CLIENT,
    decode_properties,
    encode_properties,
)
from aerobee.protocol.message.record import StoreMessage
from aerobee.remoting.connections.connection import Connection
from aerobee.remoting.errors import RemotingError
from aerobee.remoting.peers import address_text
from aerobee.remoting.turns import Steps
from aerobee.store.errors import StoreError
from aerobee.summed_log import SummedLog

log = logging.getLogger("aerobee.broker.reply")

#: How long the client that asked has to take its reply (protocol/WIRE.md 3.8).
PUSH_S = 10.0


class ReplyProcessor:
    """Pushes replies to who waits for them; `send` judges their topics."""

    def __init__(
        self,
        appending: Appending,
        *,
        clients: ClientTable,
        calls: ClientCalls,
        send: SendProcessor,
        reply: SendReply,
        sums: SummedLog,
    ) -> None:
        self._settings = appending.settings
        self._identity = appending.identity
        self._store = appending.store
        self._clients = clients
        self._calls = calls
        self._send = send
        self._reply = reply.encode
        self._stats = appending.stats
        self._reput = appending.reput
        self._clock_ms = appending.clock_ms
        self._sums = sums

    def handlers(self) -> dict[int, Handler]:
        """The handlers by request code."""
        return {
            RequestCode.SEND_REPLY_MESSAGE: self.handle,
            RequestCode.SEND_REPLY_MESSAGE_V2: self.handle,
        }

    def handle(self, connection: Connection, command: Command) -> Steps | None:
        """Push a reply; answered when the client it is for has answered, or will not.

        Raises `BadRequest` for what the replier did wrong; nobody gets anything then.
        """
        header = SendMessageHeader.from_command(command)
        self._send.check_accepting()
        topic = self._send.topic_of(header)
        if topic is None:
            return self._when_made(self._send.create_topic(header), connection, command)
        limit = self._settings.max_message_bytes
        if len(command.body) > limit:
            raise BadRequest.illegal_message(
                f"the reply has {len(command.body)} bytes, the limit is {limit} (maxMessageSize)"
            )
        queue_id = self._send.choose_queue(topic, header.queue_id)
        properties = decode_properties(header.properties)
        steps = self._push(connection, command, header, queue_id, properties)
        self._calls.answer_later(connection, command, steps)
        return None

    def _when_made(
        self, creation: asyncio.Future[None], connection: Connection, command: Command
    ) -> Steps:
        """Begin again with the topic: what was looked at may have changed meanwhile."""
        yield creation
        creation.result()
        answer = self.handle(connection, command)
        return None if answer is None else (yield from answer)

    def _push(
        self,
        connection: Connection,
        command: Command,
        header: SendMessageHeader,
        queue_id: int,
        properties: Mapping[str, str],
    ) -> Steps:
        msg_id, queue_offset = "0", 0
        if self._settings.store_reply_message:
            self._check_still_there(header, queue_id)
            msg_id, queue_offset = self._stored(
                header, queue_id, connection.packed_peer, command.body
            )
            # Properties of 32 KiB are taken apart for the store, and put together for the push.
            yield None
        remark, topic = None, header.topic
        try:
            member = self._asker(properties)
            ext = self._header(connection, header, properties).to_ext()
            code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
            call = self._calls.call(member, code, ext, command.body, PUSH_S)
            # The rest of the work needs only the request's numbers and the topic.
            del header, properties, ext
            self._calls.let_go(command)
            yield call
            remark = _refusal(member, call)
        except BadRequest as error:
            remark = error.remark
        if remark is not None:
            text = "reply not delivered topic=%s why=%s"
            self._sums.add(log, logging.INFO, topic, text, topic, remark)
            fields = {"msgId": msg_id, "queueId": queue_id, "queueOffset": queue_offset}
            ext = {name: str(value) for name, value in fields.items()}
            return encode_response(command, ResponseCode.SYSTEM_ERROR, remark, ext)
        return self._reply(command, 0, msg_id, queue_id, queue_offset)

    def _check_still_there(self, header: SendMessageHeader, queue_id: int) -> None:
        """Raises `BadRequest` where the topic, or the queue of it, has gone since it was chosen:
        these steps run a turn later, or many."""
        topic = self._send.topic_of(header)
        if topic is None:
            raise BadRequest(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{header.topic}] was deleted while the reply was taken in",
            )
        self._send.choose_queue(topic, queue_id)

    def _asker(self, properties: Mapping[str, str]) -> GroupMember:
        """The client that waits for the reply."""
        client_id = properties.get(PROPERTY_REPLY_TO_CLIENT)
        if client_id is None:
            raise BadRequest.system_error(
                f"reply message properties[{PROPERTY_REPLY_TO_CLIENT}] is null: it does not say "
                "which client it is for"
            )
        member = self._clients.producer(client_id)
        if member is None:
            raise BadRequest.system_error(
                f"push reply message fail, channel of <{client_id}> not found: no producer of that "
                "client id has a connection with this broker (any more)"
            )
        return member

    def _header(
        self, connection: Connection, header: SendMessageHeader, properties: Mapping[str, str]
    ) -> PushReplyHeader:
        now_ms = self._clock_ms()
        pushed = {**properties, PROPERTY_PUSH_REPLY_TIME: str(now_ms)}
        return PushReplyHeader(
            header.producer_group,
            header.topic,
            header.default_topic,
            header.default_topic_queue_nums,
            header.queue_id,
            header.sys_flag,
            header.born_timestamp,
            header.flag,
            address_text(connection.peer),
            self._identity.endpoint,
            now_ms,
            encode_properties(pushed),
            header.reconsume_times,
            header.unit_mode,
        )

    def _stored(
        self, header: SendMessageHeader, queue_id: int, peer: bytes, body: bytes
    ) -> tuple[str, int]:
        """Store the reply; its id and its offset in its queue, ("0", 0) where that failed: the
        replier is answered all the same."""
        try:
            properties = stored_properties(
                header.properties, self._settings.cluster_name, Carrier.REPLY
            )
            result = self._store.log.put(
                StoreMessage(
                    header.topic,
                    queue_id,
                    header.flag,
                    header.sys_flag,
                    header.born_timestamp,
                    peer,
                    self._identity.store_host,
                    header.reconsume_times,
                    0,
                    body,
                    properties.encoded,
                    properties.tags_code,
                    properties.keys,
                )
            )
        except StoreError as error:
            text, topic = "reply not stored topic=%s why=%s", header.topic
            self._sums.add(log, logging.WARNING, topic, text, topic, error.remark)
            self._stats.failed(self._stats.topic(header.topic))
            return "0", 0
        self._stats.stored(self._stats.topic(header.topic), 1, result.size)
        self._reput.appended()
        return offset_msg_id(self._identity.store_host, result.log_offset), result.queue_offset


def _refusal(member: GroupMember, call: asyncio.Future[Command]) -> str | None:
    """Why a client has not taken its reply; None if it has."""
    try:
        answer = call.result()
    except RemotingError as error:
        return f"push reply message to {member.client_id} fail: {error}"
    if answer.code == ResponseCode.SUCCESS:
        return None
    why = answer.remark or f"it answered code {answer.code}"
    return f"push reply message to {member.client_id} fail: {why}"
