"""Sends stored messages again: to one group by its retry topic, or to a topic and so to all.

Only a group's own retry topic reaches that group alone. The copy has the unique id, keys, tag and
properties of the message, and no tries behind it, so it has all tries before it again. Its property
`RESENT_FROM` is the broker's id of the message that was sent again. By that a copy is recognized:
before a dead letter is sent, the retry topic's index is asked for a copy of it, and a letter that
has one is passed over. So nothing is sent twice, also after a command that was broken off between a
send and the note of how far it had come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from aerobee.client.administration.dead_letters import (
    DeadLetterQueue,
    original_topic,
    progress_group,
    read_range,
)
from aerobee.client.connections.session import Session
from aerobee.client.consuming.pull_consumer import PullConsumer
from aerobee.client.errors import NoRoute, reading
from aerobee.client.message import (
    ReceivedMessage,
    UnreadableMessage,
    compress_body,
    property_text,
    received,
)
from aerobee.client.options import ProducerOptions
from aerobee.client.producing.sender import Outgoing, Sender, SendResult
from aerobee.client.queue_offsets import commit_offset
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.bodies.routes import MASTER_ID, PERM_WRITE
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.headers.client import QueryMessageHeader
from aerobee.protocol.message import properties as names
from aerobee.protocol.message.record import iterate_records
from aerobee.protocol.message.record_layout import SYS_COMPRESSED, SYS_COMPRESSION_MASK
from aerobee.protocol.names import retry_topic

#: The property of a copy: the broker's id of the message that was sent again.
RESENT_FROM: Final = "RESENT_FROM"
# Letters that are sent at the same time; then how far that came is noted.
_AT_ONCE: Final = 16
# RocketMQ's brokers give as many messages of one unique id.
_MOST_COPIES: Final = 32
# The index knows times to the second, and rounds them down.
_EARLIER_MS: Final = 2_000
_FAR_FUTURE_MS: Final = 2**63 - 1
# The broker makes these again, or they ask for what the first copy has had.
_OF_THE_FIRST: Final = frozenset(
    {
        *(names.PROPERTY_DELAY, names.PROPERTY_WAIT, names.PROPERTY_CRC),
        *(names.PROPERTY_RECONSUME_TIME, names.PROPERTY_MAX_RECONSUME_TIMES),
        *(names.PROPERTY_REAL_TOPIC, names.PROPERTY_REAL_QUEUE_ID),
        *(names.PROPERTY_TRANSACTION_PREPARED, names.PROPERTY_PRODUCER_GROUP),
        *(names.PROPERTY_PREPARED_QUEUE_OFFSET, names.PROPERTY_CHECK_TIMES),
        *(names.PROPERTY_CHECK_IMMUNITY, names.PROPERTY_START_DELIVER_TIME),
        *(names.PROPERTY_MULTI_DISPATCH, names.PROPERTY_MULTI_QUEUE_OFFSET),
        *(names.PROPERTY_TIMER_DELAY_SEC, names.PROPERTY_TIMER_DELAY_MS),
        *(names.PROPERTY_TIMER_DELIVER_MS, names.PROPERTY_TIMER_OUT_MS),
        names.PROPERTY_TIMER_DEL_UNIQUE_KEY,
    }
)


class Resent(NamedTuple):
    """How many messages were sent again, and how many had been sent again before."""

    sent: int
    before: int


class Resending:
    """Sends messages again over the session of an `Admin`."""

    def __init__(self, session: Session, group: str = "TOOLS_PRODUCER") -> None:
        self._session = session
        self._options = ProducerOptions(retries=0, header_form=session.options.header_form)
        self._timeout_s = session.options.call_timeout_s
        self._sender = Sender(session, group, self._options)

    async def copy_of(self, group: str, message: ReceivedMessage) -> ReceivedMessage | None:
        """The newest copy of a message that was sent again to the group, None without one."""
        unique_id = _unique_id(message)
        header = QueryMessageHeader(
            retry_topic(group),
            unique_id,
            _MOST_COPIES,
            max(message.store_timestamp_ms - _EARLIER_MS, 0),
            _FAR_FUTURE_MS,
            unique_key_query=True,
        )
        address = await self._address(message.queue)
        answer = await self._session.call(
            address,
            RequestCode.QUERY_MESSAGE,
            header.to_ext(),
            accept=(ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND),
        )
        if answer.code != ResponseCode.SUCCESS:
            return None
        with reading(address):
            records = list(iterate_records(answer.body))
        copies = [
            received(one, message.queue.broker_name)
            for one in records
            if one.properties.get(RESENT_FROM) == message.offset_msg_id
        ]
        return max(copies, key=lambda one: one.store_timestamp_ms, default=None)

    async def to_group(self, group: str, message: ReceivedMessage) -> SendResult:
        """Send a message to one group, at the broker that has it. Raises NoRoute for a group that
        has no retry topic there, and as a send."""
        topic = retry_topic(group)
        origin = original_topic(message) or message.topic
        properties = {
            names.PROPERTY_ORIGIN_MESSAGE_ID: message.offset_msg_id,
            **_kept(message),
            names.PROPERTY_RETRY_TOPIC: origin,
        }
        queue = await self._queue(topic, message.queue)
        return await self._send(topic, queue, message, properties)

    async def to_topic(self, topic: str, message: ReceivedMessage) -> SendResult:
        """Send a message to its topic, where all groups get it again. Raises as a send."""
        properties = _kept(message)
        for name in (names.PROPERTY_RETRY_TOPIC, names.PROPERTY_ORIGIN_MESSAGE_ID):
            properties.pop(name, None)
        queue = await self._queue(topic, message.queue)
        return await self._send(topic, queue, message, properties)

    async def letters(self, consumer: PullConsumer, queue: DeadLetterQueue, end: int) -> Resent:
        """Send the dead letters of a queue again that were not, up to the queue offset `end`, and
        note how far that came. Raises the first error of a send when the letters before it are
        noted."""
        sent = before = 0
        batch: list[ReceivedMessage] = []
        async for message in read_range(consumer, queue.queue, queue.start, end):
            batch.append(message)
            if len(batch) == _AT_ONCE:
                done = await self._letters_at_once(queue, batch)
                sent, before = sent + done.sent, before + done.before
                batch = []
        if batch:
            done = await self._letters_at_once(queue, batch)
            sent, before = sent + done.sent, before + done.before
        await commit_offset(self._session, progress_group(queue.group), queue.queue, end)
        return Resent(sent, before)

    async def _letters_at_once(
        self, queue: DeadLetterQueue, batch: Sequence[ReceivedMessage]
    ) -> Resent:
        outcomes = await asyncio.gather(
            *(self._letter(queue.group, one) for one in batch), return_exceptions=True
        )
        failures = [place for place, one in enumerate(outcomes) if isinstance(one, BaseException)]
        reached = failures[0] if failures else len(batch)
        if reached:
            offset = batch[reached - 1].queue_offset + 1
            await commit_offset(self._session, progress_group(queue.group), queue.queue, offset)
        if failures:
            error = outcomes[reached]
            assert isinstance(error, BaseException)
            raise error
        return Resent(outcomes.count(True), outcomes.count(False))

    async def _letter(self, group: str, message: ReceivedMessage) -> bool:
        """Whether it was sent now."""
        if await self.copy_of(group, message) is not None:
            return False
        await self.to_group(group, message)
        return True

    async def _send(
        self, topic: str, queue: MessageQueue, message: ReceivedMessage, properties: dict[str, str]
    ) -> SendResult:
        outgoing = self._outgoing(topic, message, properties)
        return await self._sender.attempt(outgoing, queue, self._timeout_s)

    def _outgoing(
        self, topic: str, message: ReceivedMessage, properties: dict[str, str]
    ) -> Outgoing:
        unique_id = properties.setdefault(names.PROPERTY_UNIQUE_KEY, _unique_id(message))
        properties[RESENT_FROM] = message.offset_msg_id
        if isinstance(message, UnreadableMessage):
            # Nobody has to read it here: it goes as it is stored.
            body = message.stored_body
            sys_flag = message.sys_flag & (SYS_COMPRESSED | SYS_COMPRESSION_MASK)
        else:
            body, sys_flag = compress_body(message.body)
        # Without the checks of a new message: what a broker has taken once, it takes again.
        return Outgoing(
            topic=topic,
            body=body,
            properties=property_text(properties),
            msg_id=unique_id,
            sys_flag=sys_flag,
            flag=message.flag,
        )

    async def _queue(self, topic: str, near: MessageQueue) -> MessageQueue:
        """The queue of `topic` at the broker of `near` that a message from there goes to."""
        route = await self._session.routes.route(topic)
        for span in route.queues:
            if span.broker_name == near.broker_name and span.perm & PERM_WRITE:
                queue_id = near.queue_id % max(span.write_queues, 1)
                return MessageQueue(topic, near.broker_name, queue_id)
        raise NoRoute(
            f"broker {near.broker_name} has no topic {topic} that can be written to: start a "
            "consumer of the group there first"
        )

    async def _address(self, queue: MessageQueue) -> str:
        address = self._session.routes.readable_address(queue.broker_name, MASTER_ID)
        if address is None:
            await self._session.routes.route(queue.topic, refresh=True)
            address = self._session.master(queue.broker_name)
        return address


def _unique_id(message: ReceivedMessage) -> str:
    """The id that a copy has: the client's, or the broker's where the client gave none."""
    return message.properties.get(names.PROPERTY_UNIQUE_KEY) or message.offset_msg_id


def _kept(message: ReceivedMessage) -> dict[str, str]:
    return {
        name: value
        for name, value in message.properties.items()
        if name not in _OF_THE_FIRST and value
    }
