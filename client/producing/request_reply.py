"""Request and reply: a message that asks, and the answer of its consumer (WIRE.md 3.1, 3.8).

A request is an ordinary message with three properties: CORRELATION_ID names it, REPLY_TO_CLIENT
names the client that waits, TTL says how long. Its consumer sends `reply_to(message, ...)` with any
producer; the broker pushes that to the client it names, on the connection of its heartbeats. The
answer may come from any broker of the cluster, so the asking client is known to all of them.

`Replies` is the waiting side. A reply that nobody waits for any more is taken and dropped.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Mapping
from dataclasses import replace

from aerobee.client.errors import BadMessage, ClientClosed, UnreadableBody
from aerobee.client.message import Inflater, Message, ReceivedMessage
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.command import Command, make_response
from aerobee.protocol.headers.send import PushReplyHeader
from aerobee.protocol.message.compression import CannotInflate
from aerobee.protocol.message.properties import (
    PROPERTY_ARRIVE_TIME,
    PROPERTY_CLUSTER,
    PROPERTY_CORRELATION_ID,
    PROPERTY_KEYS,
    PROPERTY_MESSAGE_TYPE,
    PROPERTY_REPLY_TO_CLIENT,
    PROPERTY_TAGS,
    PROPERTY_TTL,
    PROPERTY_UNIQUE_KEY,
    REPLY_TYPE,
    decode_properties,
)
from aerobee.protocol.names import REPLY_TOPIC_SUFFIX

log = logging.getLogger(__name__)


def as_request(message: Message, client_id: str, timeout_s: float) -> tuple[Message, str]:
    """The message with the properties that ask for a reply, and the id by which the reply will be
    known."""
    correlation_id = str(uuid.uuid4())
    asking = {
        PROPERTY_CORRELATION_ID: correlation_id,
        PROPERTY_REPLY_TO_CLIENT: client_id,
        PROPERTY_TTL: str(round(timeout_s * 1000)),
    }
    return replace(message, properties=message.properties | asking), correlation_id


def reply_to(
    request: ReceivedMessage,
    body: bytes,
    *,
    tags: str = "",
    keys: tuple[str, ...] | str = (),
    properties: Mapping[str, str] | None = None,
) -> Message:
    """The message that answers `request`; send it with any producer of the cluster.

    Raises BadMessage when the other message asks for no reply, or comes from a broker that did not
    name its cluster.
    """
    carried = (PROPERTY_CORRELATION_ID, PROPERTY_REPLY_TO_CLIENT, PROPERTY_TTL)
    asking = {name: request.properties.get(name, "") for name in carried}
    cluster = request.properties.get(PROPERTY_CLUSTER)
    if not cluster or not asking[PROPERTY_CORRELATION_ID] or not asking[PROPERTY_REPLY_TO_CLIENT]:
        raise BadMessage(f"message {request.msg_id} asks for no reply: it was not sent by request")
    own = {name: value for name, value in asking.items() if value}
    own[PROPERTY_MESSAGE_TYPE] = REPLY_TYPE
    return Message(
        cluster + REPLY_TOPIC_SUFFIX, body, tags, keys, properties=dict(properties or {}) | own
    )


class Replies:
    """Requests of one client that wait for their replies, by correlation id. Loop thread only."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[ReceivedMessage]] = {}

    def expect(self, correlation_id: str) -> asyncio.Future[ReceivedMessage]:
        """The reply that will come under that id; `forget` must follow."""
        future: asyncio.Future[ReceivedMessage] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = future
        return future

    def forget(self, correlation_id: str) -> None:
        """Nobody waits for that reply any more."""
        self._waiting.pop(correlation_id, None)

    def close(self) -> None:
        """Replies that are waited for will not come."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ClientClosed("the client was closed while a reply was due"))

    async def answer(self, _address: str, command: Command) -> Command:
        """Take a reply that a broker pushes; answers code 1 to a reply that cannot be read."""
        try:
            header = PushReplyHeader.from_ext(command.ext)
            reply = _received(header, command.body)
        except CannotInflate as error:
            # The reply has come, and nobody here can read it: the waiting caller learns that now,
            # not after 3 s.
            return self._unreadable(command, error)
        except (BadRequest, ValueError) as error:
            text = error.remark if isinstance(error, BadRequest) else str(error)
            log.warning("a reply that cannot be read: %s", text)
            return make_response(command, ResponseCode.SYSTEM_ERROR, f"unreadable reply: {text}")
        future = self._waiter(reply.properties)
        if future is not None:
            future.set_result(reply)
        return make_response(command, ResponseCode.SUCCESS)

    def _unreadable(self, command: Command, why: CannotInflate) -> Command:
        properties = decode_properties(PushReplyHeader.from_ext(command.ext).properties or "")
        future = self._waiter(properties)
        if future is not None:
            future.set_exception(UnreadableBody(f"a reply came, and it cannot be read: {why}"))
        return make_response(command, ResponseCode.SYSTEM_ERROR, f"unreadable reply: {why}")

    def _waiter(self, properties: Mapping[str, str]) -> asyncio.Future[ReceivedMessage] | None:
        """The future that waits for a reply with these properties; None, which is logged."""
        correlation_id = properties.get(PROPERTY_CORRELATION_ID, "")
        future = self._waiting.get(correlation_id)
        if future is not None and not future.done():
            return future
        log.warning("a reply that nobody waits for correlation_id=%s", correlation_id)
        return None


def _received(header: PushReplyHeader, body: bytes) -> ReceivedMessage:
    properties = decode_properties(header.properties or "")
    properties[PROPERTY_ARRIVE_TIME] = str(time.time_ns() // 1_000_000)
    body = Inflater().plain(body, header.sys_flag)
    return ReceivedMessage(
        topic=header.topic,
        body=body,
        tags=properties.get(PROPERTY_TAGS, ""),
        keys=tuple(properties.get(PROPERTY_KEYS, "").split()),
        properties=properties,
        msg_id=properties.get(PROPERTY_UNIQUE_KEY, ""),
        queue=MessageQueue(header.topic, "", header.queue_id),
        queue_offset=0,
        log_offset=0,
        flag=header.flag,
        sys_flag=header.sys_flag,
        compressed=False,
        reconsume_times=header.reconsume_times or 0,
        born_timestamp_ms=header.born_timestamp,
        born_host=_host(header.born_host),
        store_timestamp_ms=header.store_timestamp,
        store_host=_host(header.store_host),
        size=len(body),
    )


def _host(text: str) -> tuple[str, int]:
    # A Java broker may write its address as Java prints one, with a slash in front.
    host, _, port = text.lstrip("/").rpartition(":")
    return host.strip("[]"), int(port)
