"""One attempt to send: a message, a queue, one request, one result. Retries are producer.py's.

Messages to a retry topic (a consumer's fallback when a send-back failed) carry their redelivery
count in two properties which move into the header here, as the Java client does (WIRE.md 6.8).
"""

from __future__ import annotations

import enum
import os
import random
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aerobee.client.connections.session import Session
from aerobee.client.errors import BadMessage, peer_error, reading
from aerobee.client.message import Message, compress_body, property_text
from aerobee.client.options import ProducerOptions
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.frames.command import Command
from aerobee.protocol.headers.client import RecallMessageHeader
from aerobee.protocol.headers.send import SendMessageHeader, SendMessageResponse
from aerobee.protocol.message.batch import BatchItem, encode_batch
from aerobee.protocol.message.ids import UniqueIdMaker
from aerobee.protocol.message.properties import (
    PROPERTY_MAX_RECONSUME_TIMES,
    PROPERTY_MESSAGE_TYPE,
    PROPERTY_RECONSUME_TIME,
    PROPERTY_UNIQUE_KEY,
    PROPERTY_WAIT,
    REPLY_TYPE,
)
from aerobee.protocol.names import RETRY_PREFIX
from aerobee.remoting.origin import Origin


class SendStatus(enum.Enum):
    """The broker's word on a stored message; in all four cases it has it."""

    OK = int(ResponseCode.SUCCESS)
    FLUSH_DISK_TIMEOUT = int(ResponseCode.FLUSH_DISK_TIMEOUT)
    FLUSH_SLAVE_TIMEOUT = int(ResponseCode.FLUSH_SLAVE_TIMEOUT)
    SLAVE_NOT_AVAILABLE = int(ResponseCode.SLAVE_NOT_AVAILABLE)


STORED_CODES: Final = frozenset(status.value for status in SendStatus)
_STATUS: Final = {status.value: status for status in SendStatus}


@dataclass(frozen=True, slots=True)
class SendResult:
    """The place where a message was stored.

    `msg_id` is the unique id this client gave it, `offset_msg_id` the broker's; both are
    comma-joined lists for a batch, whose `queue_offset` is that of its first message.
    """

    status: SendStatus
    msg_id: str
    offset_msg_id: str
    queue: MessageQueue
    queue_offset: int
    #: The handle by which `Producer.recall` takes back a message that waits for its time; "" for
    #: other messages.
    recall_handle: str = ""


@dataclass(slots=True)
class Outgoing:
    """A message ready to go to any queue: checked, encoded, compressed once for all attempts."""

    topic: str
    body: bytes
    properties: str
    msg_id: str
    sys_flag: int = 0
    flag: int = 0
    reconsume_times: int = 0
    max_reconsume_times: int | None = None
    batch: bool = False
    reply: bool = False

    @property
    def code(self) -> RequestCode:
        """The request that carries it."""
        if self.batch:
            return RequestCode.SEND_BATCH_MESSAGE
        return RequestCode.SEND_REPLY_MESSAGE_V2 if self.reply else RequestCode.SEND_MESSAGE_V2


OnStored = Callable[[Outgoing, str, SendResult, Mapping[str, str], float], None]
"""Told of a stored message: broker's address, result, fields of the answer, seconds it took."""


def make_unique_ids(ip: str) -> UniqueIdMaker:
    """The maker of unique message ids of one client (protocol/WIRE.md 6.6)."""
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    packed = socket.inet_pton(family, ip.partition("%")[0])
    return UniqueIdMaker(packed, os.getpid(), random.getrandbits(32), _now_ms)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class Sender:
    """Prepares messages and carries out single attempts over a session."""

    def __init__(
        self,
        session: Session,
        group: str,
        options: ProducerOptions,
        on_stored: OnStored | None = None,
    ) -> None:
        """`on_stored` is called for each message that was stored."""
        self._session = session
        self._group = group
        self._options = options
        self._on_stored = on_stored
        self._ids = make_unique_ids(session.local_ip)
        self._origin = Origin()

    def next_id(self) -> str:
        """An id that no other message has, also in processes that were forked from the same
        process."""
        if self._origin.is_elsewhere:
            self._origin = Origin()
            self._ids = make_unique_ids(self._session.local_ip)
        return self._ids.next_id()

    def prepare(self, message: Message) -> Outgoing:
        """Check and encode one message; raises BadMessage."""
        message.check(self._options.max_body_bytes)
        properties = message.all_properties()
        unique_id = properties.setdefault(PROPERTY_UNIQUE_KEY, self.next_id())
        reconsume_times, max_reconsume_times = 0, None
        if message.topic.startswith(RETRY_PREFIX):
            reconsume_times = int(properties.pop(PROPERTY_RECONSUME_TIME, "0"))
            limit = properties.pop(PROPERTY_MAX_RECONSUME_TIMES, None)
            max_reconsume_times = None if limit is None else int(limit)
        body, sys_flag = compress_body(message.body)
        return Outgoing(
            topic=message.topic,
            body=body,
            properties=property_text(properties),
            msg_id=unique_id,
            sys_flag=sys_flag,
            flag=message.flag,
            reconsume_times=reconsume_times,
            max_reconsume_times=max_reconsume_times,
            reply=properties.get(PROPERTY_MESSAGE_TYPE) == REPLY_TYPE,
        )

    def prepare_batch(self, messages: Sequence[Message]) -> Outgoing:
        """Check and encode messages that are stored together, in order; raises BadMessage."""
        _check_batch(messages)
        items = []
        ids = []
        for message in messages:
            message.check(self._options.max_body_bytes)
            own = message.all_properties()
            ids.append(own.setdefault(PROPERTY_UNIQUE_KEY, self.next_id()))
            items.append(BatchItem(message.flag, message.body, property_text(own).encode()))
        body = encode_batch(items)
        limit = self._options.max_body_bytes
        if len(body) > limit:
            raise BadMessage(f"the batch is {len(body)} bytes long, the limit is {limit}")
        # The broker reads WAIT from the header, which speaks for the whole batch.
        properties = {} if messages[0].wait_store else {PROPERTY_WAIT: "false"}
        return Outgoing(
            topic=messages[0].topic,
            body=body,
            properties=property_text(properties),
            msg_id=",".join(ids),
            batch=True,
        )

    def command(self, outgoing: Outgoing, queue: MessageQueue, *, oneway: bool = False) -> Command:
        """The request that asks for `outgoing` to be stored in `queue`."""
        header = SendMessageHeader(
            producer_group=self._group,
            topic=outgoing.topic,
            default_topic=self._options.default_topic,
            default_topic_queue_nums=self._options.default_topic_queues,
            queue_id=queue.queue_id,
            sys_flag=outgoing.sys_flag,
            born_timestamp=_now_ms(),
            flag=outgoing.flag,
            properties=outgoing.properties,
            reconsume_times=outgoing.reconsume_times,
            unit_mode=False,
            max_reconsume_times=outgoing.max_reconsume_times,
            batch=outgoing.batch,
        )
        return self._session.command(outgoing.code, header.to_ext(), outgoing.body, oneway=oneway)

    async def attempt(
        self, outgoing: Outgoing, queue: MessageQueue, timeout_s: float
    ) -> SendResult:
        """Send once and wait for the answer; raises PeerError, NetworkError or NoRoute."""
        session = self._session
        address = session.master(queue.broker_name)
        command = self.command(outgoing, queue)
        started = time.monotonic()
        answer = await session.pool.call(address, command, timeout_s)
        if answer.code not in STORED_CODES:
            raise peer_error(address, answer)
        with reading(address):
            stored = SendMessageResponse.from_ext(answer.ext)
        result = SendResult(
            status=_STATUS[answer.code],
            msg_id=outgoing.msg_id,
            offset_msg_id=stored.msg_id,
            queue=MessageQueue(queue.topic, queue.broker_name, stored.queue_id),
            queue_offset=stored.queue_offset,
            recall_handle=stored.recall_handle or "",
        )
        if self._on_stored is not None:
            self._on_stored(outgoing, address, result, answer.ext, time.monotonic() - started)
        return result

    async def recall(self, topic: str, handle: str, broker_name: str, timeout_s: float) -> str:
        """Ask for a recall once; raises PeerError, NetworkError or NoRoute."""
        session = self._session
        address = session.master(broker_name)
        header = RecallMessageHeader(topic, handle, self._group)
        command = session.command(RequestCode.RECALL_MESSAGE, header.to_ext())
        answer = await session.pool.call(address, command, timeout_s)
        if answer.code not in STORED_CODES:
            raise peer_error(address, answer)
        return answer.ext.get("msgId", "")


def _check_batch(messages: Sequence[Message]) -> None:
    # The broker applies one header to all of them (protocol/WIRE.md 6.2).
    if not messages:
        raise BadMessage("a batch needs at least one message")
    first = messages[0]
    if first.topic.startswith(RETRY_PREFIX):
        raise BadMessage("a batch cannot go to a retry topic")
    for message in messages:
        if message.topic != first.topic:
            raise BadMessage(f"a batch goes to one topic, not {first.topic} and {message.topic}")
        if message.wait_store != first.wait_store:
            raise BadMessage("the messages of a batch must agree on wait_store")
        if message.is_delayed:
            raise BadMessage("a batch cannot hold delayed messages")
