"""CONSUMER_SEND_MSG_BACK (36): a consumer gives a message back (WIRE.md 3.1, FORMAT.md 12.3).

The message is stored again, in `%RETRY%group` after a delay that grows with each try unless the
consumer names one, or in `%DLQ%group` at once when it was tried often enough or the consumer says
so (delayLevel < 0).

A message that a group failed on comes two ways: a consumer gives it back here, or, when that
request failed, sends it to the group's retry topic itself (`send.py`). `FailedMessages` counts and
logs both. Loop thread only.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping

from aerobee.broker.appending.appending import Appending
from aerobee.broker.broker_stats import BrokerStats
from aerobee.broker.delay.delay_service import ScheduleMessageService
from aerobee.broker.routing.router import Handler
from aerobee.broker.second_step.second_step import readable_queues
from aerobee.broker.tables.groups import GroupConfig
from aerobee.broker.tables.tables import Tables
from aerobee.broker.tables.topics import TopicTable
from aerobee.protocol.bodies.routes import PERM_WRITE
from aerobee.protocol.bodies.topics import UNIT_SUB
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.command import Command, encode_success
from aerobee.protocol.headers.client import SendBackHeader
from aerobee.protocol.message.ids import offset_msg_id
from aerobee.protocol.message.properties import (
    PROPERTY_DELAY,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_UNIQUE_KEY,
    PROPERTY_WAIT,
)
from aerobee.protocol.message.record import Message, StoreMessage, decode_record, stored_again
from aerobee.protocol.names import UNDELIVERED_TOPICS, dlq_topic, retry_topic
from aerobee.remoting.connections.connection import Connection
from aerobee.remoting.turns import Steps
from aerobee.summed_log import SummedLog

log = logging.getLogger("aerobee.broker.retry")


class FailedMessages:
    """Counts retries and dead letters, and logs the latter: of a group the first one, and then
    their number."""

    def __init__(self, topics: TopicTable, stats: BrokerStats, sums: SummedLog) -> None:
        self._topics = topics
        self._stats = stats
        self._sums = sums

    def sent_back(self, group: str, topic: str, properties: Mapping[str, str]) -> None:
        """A consumer of `group` gave back a message it had from `topic`."""
        self._stats.consumer(group, self._original(topic, properties)).sent_back += 1

    def dead_lettered(
        self, group: str, topic: str, properties: Mapping[str, str], place_id: str, reason: str
    ) -> None:
        """A message that the group had from `topic` was stored as a dead letter; `place_id` is its
        id there."""
        original = self._original(topic, properties)
        self._stats.consumer(group, original).sent_to_dlq += 1
        self._sums.add(
            log,
            logging.WARNING,
            group,
            "message went to the dead letter topic group=%s topic=%s dead_letters=%s msg_id=%s "
            "dead_letter_id=%s reason=%s",
            group,
            original,
            dlq_topic(group),
            properties.get(PROPERTY_UNIQUE_KEY) or properties.get(PROPERTY_ORIGIN_MESSAGE_ID, ""),
            place_id,
            reason,
        )

    def _original(self, topic: str, properties: Mapping[str, str]) -> str:
        """The topic the message was first sent to. The property is a client's: it only counts
        when there is such a topic, so that clients cannot make series of other names.
        """
        original = properties.get(PROPERTY_RETRY_TOPIC, "")
        return original if self._topics.get(original) is not None else topic


class RetryProcessor:
    """Stores what consumers send back; `delays` has those with a delay level wait."""

    def __init__(
        self,
        appending: Appending,
        tables: Tables,
        delays: ScheduleMessageService,
        failed: FailedMessages,
    ) -> None:
        self._settings = appending.settings
        self._store = appending.store
        self._delays = delays
        self._topics = tables.topics
        self._groups = tables.groups
        self._failed = failed
        self._identity = appending.identity
        self._reput = appending.reput

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.CONSUMER_SEND_MSG_BACK: self.send_back}

    def send_back(self, connection: Connection, command: Command) -> bytes | Steps:
        """Store the message again. Raises `BadRequest` when it or its group is not there."""
        header = SendBackHeader.from_ext(command.ext)
        group = self._groups.get(header.group)
        if group is None:
            raise self._groups.missing(header.group)
        if not self._settings.broker_permission & PERM_WRITE:
            raise BadRequest.no_permission(
                f"the broker[{self._identity.endpoint}] sending message is forbidden: its "
                "brokerPermission does not allow writing"
            )
        if group.retry_queue_nums <= 0:
            return encode_success(command)
        record = self._store.reader.record_at(header.offset)
        if record is None:
            raise BadRequest.system_error(f"look message by offset failed, {header.offset}")
        message = decode_record(record)
        if message.topic in UNDELIVERED_TOPICS:
            # Its copy would be delivered, before its time or its commit.
            raise BadRequest.system_error(
                f"look message by offset failed, {header.offset}: what is there waits in "
                f"{message.topic}, and no consumer has had it"
            )
        topic, queues = self._target(command, header, group, message)
        is_dead = topic == dlq_topic(header.group)
        subscribed = header.unit_mode and not is_dead
        creation = self._topics.create_retry(topic, queues, UNIT_SUB if subscribed else 0)
        if creation is not None:
            return self._when_made(creation, connection, command)
        again = self._again(message, topic, self._writable(topic, is_dead=is_dead), header, group)
        result = self._delays.put(again)
        self._reput.appended()
        self._failed.sent_back(header.group, message.topic, message.properties)
        if is_dead:
            known = {PROPERTY_ORIGIN_MESSAGE_ID: message.msg_id, **message.properties}
            place_id = offset_msg_id(again.store_host, result.log_offset)
            reason = (
                "its consumer asked for it"
                if header.delay_level < 0
                else tries_text(message.reconsume_times, self._limit(command, header, group))
            )
            self._failed.dead_lettered(header.group, message.topic, known, place_id, reason)
        return encode_success(command)

    def _when_made(
        self, creation: asyncio.Future[None], connection: Connection, command: Command
    ) -> Steps:
        """Begin again with the topic: what was looked at may have changed meanwhile."""
        yield creation
        creation.result()
        answer = self.send_back(connection, command)
        return answer if isinstance(answer, bytes) else (yield from answer)

    def _target(
        self, command: Command, header: SendBackHeader, group: GroupConfig, message: Message
    ) -> tuple[str, int]:
        """The topic that the message goes to, and how many queues it is made with."""
        limit = self._limit(command, header, group)
        if header.delay_level < 0 or message.reconsume_times >= limit:
            return dlq_topic(header.group), 1
        return retry_topic(header.group), group.retry_queue_nums

    def _limit(self, command: Command, header: SendBackHeader, group: GroupConfig) -> int:
        return group.retry_limit(header.max_reconsume_times, command.version)

    def _writable(self, name: str, *, is_dead: bool) -> int:
        """The queue that the message goes to, any of those that the retry topic has: the group's
        retryQueueNums may have been changed since it was made. Raises `BadRequest` where the topic
        takes none."""
        config = self._topics.get(name)
        assert config is not None, name
        if not config.perm & PERM_WRITE:
            raise BadRequest.no_permission(f"the topic[{name}] sending message is forbidden")
        return 0 if is_dead else random.randrange(max(1, readable_queues(config)))

    def _again(
        self,
        message: Message,
        topic: str,
        queue_id: int,
        header: SendBackHeader,
        group: GroupConfig,
    ) -> StoreMessage:
        properties = dict(message.properties)
        properties.setdefault(PROPERTY_RETRY_TOPIC, message.topic)
        # Not the header's id, which is the unique key with Java's client.
        properties.setdefault(PROPERTY_ORIGIN_MESSAGE_ID, message.msg_id)
        properties[PROPERTY_WAIT] = "false"
        if topic == dlq_topic(group.name):
            properties[PROPERTY_DELAY] = "0"
        else:
            level = header.delay_level or 3 + message.reconsume_times
            properties[PROPERTY_DELAY] = str(level)
        again = stored_again(message, topic, queue_id, properties)
        again.store_host = self._identity.store_host
        again.reconsume_times += 1
        return again


def tries_text(reconsume_times: int, limit: int) -> str:
    """Why a message is a dead letter whose tries are over."""
    return f"it was delivered again {reconsume_times} times, {limit} are allowed"
