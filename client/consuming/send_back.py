"""Handing a failed message back to the broker, which redelivers it to the group later.

First choice is CONSUMER_SEND_MSG_BACK (36): the broker copies the record within itself. When that
fails, the message is sent again from here into the group's retry topic, with the same redelivery
count and delay; when that fails too the caller must keep the message and try again.
"""

from __future__ import annotations

import logging

from aerobee.client.connections.session import Session
from aerobee.client.errors import BadMessage, ClientError
from aerobee.client.message import Message, ReceivedMessage
from aerobee.client.options import ProducerOptions
from aerobee.client.producing.sender import Sender
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.headers.client import SendBackHeader
from aerobee.protocol.message.properties import (
    PROPERTY_DELAY,
    PROPERTY_KEYS,
    PROPERTY_MAX_RECONSUME_TIMES,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_RECONSUME_TIME,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_WAIT,
)
from aerobee.protocol.names import retry_topic, why_no_group_topic
from aerobee.remoting.peers import address_text

log = logging.getLogger(__name__)

# The level a broker gives the first redelivery (10 s); each further redelivery is a level up.
_FIRST_DELAY_LEVEL = 3
_MAX_DELAY_LEVEL = 18
DEFAULT_MAX_RECONSUME = 16


async def send_back(
    session: Session,
    group: str,
    message: ReceivedMessage,
    *,
    delay_level: int = 0,
    max_reconsume: int = DEFAULT_MAX_RECONSUME,
) -> None:
    """Ask the broker that stores the message to redeliver it; raises ClientError when it does not.

    `delay_level` 0 lets the broker choose, below 0 sends it straight to the dead-letter topic.
    """
    header = SendBackHeader(
        offset=message.log_offset,
        group=group,
        delay_level=delay_level,
        origin_msg_id=message.msg_id,
        origin_topic=message.topic,
        unit_mode=False,
        max_reconsume_times=max_reconsume,
    )
    address = session.routes.address(message.queue.broker_name)
    if address is None:
        address = address_text(message.store_host)
    await session.call(address, RequestCode.CONSUMER_SEND_MSG_BACK, header.to_ext())


class SendBack:
    """Redelivery for one group, with its fallback."""

    def __init__(self, session: Session, group: str, max_reconsume: int) -> None:
        self._session = session
        self._group = group
        self._max_reconsume = max_reconsume
        # Form of header and time-outs as the consumer's; the limit on bodies is the broker's own.
        options = ProducerOptions(header_form=session.options.header_form, retries=0)
        self._sender = Sender(session, group, options)
        self._options = options

    async def __call__(self, message: ReceivedMessage) -> bool:
        """True when the message will be redelivered, one way or the other; False to keep it."""
        try:
            await send_back(self._session, self._group, message, max_reconsume=self._max_reconsume)
            return True
        except ClientError as error:
            if why_no_group_topic(retry_topic(self._group)) is not None:
                log.warning("send-back failed id=%s error=%s", message.msg_id, error)
                return False
            log.warning("send-back failed id=%s error=%s; sending anew", message.msg_id, error)
        try:
            await self._send_anew(message)
            return True
        except ClientError as error:
            log.warning("sending anew failed id=%s error=%s", message.msg_id, error)
            return False

    async def _send_anew(self, message: ReceivedMessage) -> None:
        if message.compressed:
            raise BadMessage("a body that could not be inflated here cannot be sent anew")
        copy = retry_copy(self._group, message, self._max_reconsume)
        options = self._options
        queues = await self._session.routes.write_queues(
            copy.topic, options.default_topic, options.default_topic_queues
        )
        # The broker that just failed comes last.
        queues = sorted(queues, key=lambda queue: queue.broker_name == message.queue.broker_name)
        await self._sender.attempt(self._sender.prepare(copy), queues[0], options.send_timeout_s)


def retry_copy(group: str, message: ReceivedMessage, max_reconsume: int) -> Message:
    """A new message for the group's retry topic, made of this message."""
    properties = dict(message.properties)
    for carried in (PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_DELAY, PROPERTY_WAIT):
        properties.pop(carried, None)
    properties.setdefault(PROPERTY_RETRY_TOPIC, message.topic)
    properties.setdefault(PROPERTY_ORIGIN_MESSAGE_ID, message.msg_id)
    properties[PROPERTY_RECONSUME_TIME] = str(message.reconsume_times + 1)
    properties[PROPERTY_MAX_RECONSUME_TIMES] = str(max_reconsume)
    return Message(
        topic=retry_topic(group),
        body=message.body,
        tags=message.tags,
        keys=message.keys,
        properties=properties,
        flag=message.flag,
        delay_level=min(_FIRST_DELAY_LEVEL + message.reconsume_times, _MAX_DELAY_LEVEL),
    )
