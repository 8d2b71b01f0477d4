"""Dead letters: which groups have some, and what a dead letter says about itself.

A message that a group failed on too often, or gave up, lies in the topic `%DLQ%group`. Its
properties name the topic that it came from; `dead_letter_reasons.py` says why it died.

`aerobee dlq resend` notes how far it has come as the offset of a group of its own in that topic,
`progress_group`. Its name is one of RocketMQ's system groups, which every broker makes when needed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Final, NamedTuple

from aerobee.client.administration import dead_letter_reasons
from aerobee.client.administration.asked_brokers import AskedBrokers, each, number_of
from aerobee.client.consuming.pull_consumer import PullConsumer
from aerobee.client.errors import reading
from aerobee.client.message import ReceivedMessage
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.bodies.statistics import QueueOffsets, parse_topic_stats
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.headers.admin import TopicHeader
from aerobee.protocol.headers.client import OffsetResponse, QueryConsumerOffsetHeader, QueueHeader
from aerobee.protocol.message.properties import (
    PROPERTY_MAX_RECONSUME_TIMES,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_RETRY_TOPIC,
)
from aerobee.protocol.names import DLQ_PREFIX, SYSTEM_GROUP_PREFIX, dlq_topic

_PROGRESS_PREFIX: Final = f"{SYSTEM_GROUP_PREFIX}RESEND_"
_BATCH: Final = 32
_TOPIC_OR_NOT: Final = (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST)
_OFFSET_OR_NOT: Final = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)


def progress_group(group: str) -> str:
    """The group whose offsets say which dead letters of `group` were sent again."""
    return _PROGRESS_PREFIX + group


class DeadLetterQueue(NamedTuple):
    """A queue of dead letters at one broker. `oldest_ms` and `newest_ms` are when the first and
    the last letter were stored, None without a letter or where it is not known. `resent` is the
    queue offset up to which the letters were sent again."""

    group: str
    queue: MessageQueue
    least: int
    end: int
    oldest_ms: int | None
    newest_ms: int | None
    resent: int

    @property
    def letters(self) -> int:
        """How many letters there are."""
        return self.end - self.least

    @property
    def start(self) -> int:
        """The queue offset of the first letter that was not sent again. An offset beyond the end
        is that of an earlier topic of this name."""
        return self.least if self.resent > self.end else max(self.least, self.resent)


async def dead_letter_queues(asked: AskedBrokers, groups: list[str]) -> list[DeadLetterQueue]:
    """The queues of the groups' dead letters, empty ones too, by group and broker."""

    async def of_broker(broker: str) -> list[DeadLetterQueue]:
        async def of_group(group: str) -> list[DeadLetterQueue]:
            return await _queues_at(asked, broker, group)

        return [one for found in await each(of_group, groups) for one in found]

    found = [one for part in await each(of_broker, asked.names) for one in part]
    return sorted(found, key=lambda one: (one.group, one.queue))


async def _queues_at(asked: AskedBrokers, broker: str, group: str) -> list[DeadLetterQueue]:
    ext = TopicHeader(dlq_topic(group)).to_ext()
    code = RequestCode.GET_TOPIC_STATS_INFO
    answer = await asked.call(broker, code, ext, accept=_TOPIC_OR_NOT)
    if answer is None or answer.code != ResponseCode.SUCCESS:
        return []
    with reading(asked.address(broker)):
        queues = parse_topic_stats(answer.body)
    return [await _queue(asked, broker, group, queue, one) for queue, one in queues.items()]


async def _queue(
    asked: AskedBrokers, broker: str, group: str, queue: MessageQueue, offsets: QueueOffsets
) -> DeadLetterQueue:
    least, end = offsets.min_offset, offsets.max_offset
    if least >= end:
        return DeadLetterQueue(group, queue, least, end, None, None, 0)
    where = QueueHeader(queue.topic, queue.queue_id).to_ext()
    answer = await asked.call(broker, RequestCode.GET_EARLIEST_MSG_STORETIME, where)
    oldest_ms = None if answer is None else number_of(answer.ext.get("timestamp")) or None
    header = QueryConsumerOffsetHeader(progress_group(group), queue.topic, queue.queue_id)
    code = RequestCode.QUERY_CONSUMER_OFFSET
    answer = await asked.call(broker, code, header.to_ext(), accept=_OFFSET_OR_NOT)
    resent = 0
    if answer is not None and answer.code == ResponseCode.SUCCESS:
        with reading(asked.address(broker)):
            resent = OffsetResponse.from_ext(answer.ext).offset
    newest_ms = offsets.last_update_ms if offsets.last_update_ms > 0 else None
    return DeadLetterQueue(group, queue, least, end, oldest_ms, newest_ms, resent)


def groups_of(topics: list[str]) -> list[str]:
    """The groups whose dead letter topics are among these."""
    return [name.removeprefix(DLQ_PREFIX) for name in topics if name.startswith(DLQ_PREFIX)]


def original_topic(message: ReceivedMessage) -> str | None:
    """The topic that a dead letter was first sent to, None where it does not say."""
    return message.properties.get(PROPERTY_RETRY_TOPIC)


def original_id(message: ReceivedMessage) -> str | None:
    """The broker's id of the message when it was first stored, None where it does not say."""
    return message.properties.get(PROPERTY_ORIGIN_MESSAGE_ID)


def tries_of(message: ReceivedMessage) -> int:
    """How often a dead letter was delivered again."""
    return dead_letter_reasons.tries_of(message.reconsume_times)


def reason_of(message: ReceivedMessage, limits: Mapping[str, int] | None = None) -> str:
    """Why a message is a dead letter, as its number of tries shows it; `limits` are the most tries
    of groups that have other than RocketMQ's 16."""
    group = message.queue.topic.removeprefix(DLQ_PREFIX)
    limit = number_of(message.properties.get(PROPERTY_MAX_RECONSUME_TIMES))
    if limit is None:
        limit = (limits or {}).get(group, dead_letter_reasons.DEFAULT_TRIES)
    return dead_letter_reasons.reason_of(message.reconsume_times, limit)


async def read_range(
    consumer: PullConsumer, queue: MessageQueue, start: int, end: int
) -> AsyncIterator[ReceivedMessage]:
    """The messages of a queue from `start` up to `end`, without those that are gone."""
    offset = start
    while offset < end:
        count = min(_BATCH, end - offset)
        result = await consumer.pull(queue, offset, max_messages=count)
        for message in result.messages:
            if message.queue_offset < end:
                yield message
        if result.next_offset <= offset:
            return
        offset = result.next_offset
