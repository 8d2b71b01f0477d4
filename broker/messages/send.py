"""SEND_MESSAGE (10), SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE (320): protocol/WIRE.md 3.1.

Checks the topic, the queue and what the message asks for; builds the record to store; appends; then
leaves the answer to `appending/answers.py`, which sends it at once, or when the message is kept
(not with `WAIT=false`). Refusals change nothing in the store.

A message with a delay level or a time of its own is stored where it waits (`delay/`), under the
checks of its own topic; the answer names its own queue, and its place in the one where it waits. So
is a transactional one, as a half message that no consumer of its topic sees before its commit
(`transactions/transactions.py`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Generator, Iterator
from itertools import accumulate, chain, islice
from typing import NamedTuple

from aerobee.broker.appending.answers import AtOnce
from aerobee.broker.appending.appending import Appending
from aerobee.broker.broker_stats import MESSAGE_FIFO, MESSAGE_NORMAL, BrokerStats
from aerobee.broker.delay.delay_service import ScheduleMessageService
from aerobee.broker.delay.timer import TimerService
from aerobee.broker.messages.retry import FailedMessages, tries_text
from aerobee.broker.messages.stored_properties import (
    StoredProperties,
    stored_properties,
    without_own,
)
from aerobee.broker.routing.router import Handler
from aerobee.broker.tables.tables import Tables
from aerobee.broker.transactions.transactions import Transactions
from aerobee.protocol.bodies.routes import PERM_WRITE
from aerobee.protocol.bodies.topics import MULTI_TAG, UNIT, UNIT_SUB, TopicConfig
from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.command import Command
from aerobee.protocol.hashing import tag_code
from aerobee.protocol.headers.send import SendMessageHeader, SendReply
from aerobee.protocol.message.batch import batch_items, join_properties
from aerobee.protocol.message.demands import (
    DELAY_LEVEL,
    DELIVERY_TIME,
    ORDER,
    RETRY,
    TRANSACTION,
    TRANSACTION_STATE,
    Carrier,
    refuse,
)
from aerobee.protocol.message.properties import (
    MAX_PROPERTIES_BYTES,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_TAGS,
    PROPERTY_UNIQUE_KEY,
    decode_properties,
    index_keys,
)
from aerobee.protocol.message.recall import RecallHandle, is_recallable_id
from aerobee.protocol.message.record import StoreMessage
from aerobee.protocol.message.record_layout import SYS_MULTI_TAGS, SYS_TRANSACTION_PREPARED
from aerobee.protocol.names import NO_SEND_TOPICS, RETRY_PREFIX, check_group_topic, dlq_topic
from aerobee.remoting.connections.connection import Connection
from aerobee.remoting.connections.serving import Answer
from aerobee.remoting.turns import Gate, Steps
from aerobee.store.message_store import MessageStore
from aerobee.store.segments.results import PutResult

# Looking an enumeration's member up costs a quarter of a microsecond a send.
_SINGLE, _RETRY = Carrier.SINGLE, Carrier.RETRY
# Bytes that the copies of a half message may add to its properties, besides its topic.
ADDED_BYTES = 192
# Messages from which on a batch is taken in steps, and those of a step: a millisecond's worth.
_LARGE_BATCH = 128
_STEP_MESSAGES = 32
_STEP_IDS = 2048


class Destination(NamedTuple):
    """Where a message goes that asks for more than to be stored.

    `delayed`: it waits first. `dead`: it was tried often enough and is a dead letter. `half`: it
    waits for its producer's decision.
    """

    topic: str
    queue_id: int
    properties: StoredProperties
    delayed: bool
    dead: bool
    half: bool = False
    #: The time of its own that it waits for.
    deliver_ms: int | None = None


class SendProcessor:
    """Stores what producers send; `put_delayed` stores what waits for a delay level, `put_half`
    what waits for the end of a transaction, `timer` what waits for a time of its own. Loop thread
    only."""

    def __init__(
        self,
        appending: Appending,
        tables: Tables,
        *,
        delays: ScheduleMessageService,
        transactions: Transactions,
        timer: TimerService,
        answers: AtOnce,
        reply: SendReply,
        failed: FailedMessages,
    ) -> None:
        settings, identity = appending.settings, appending.identity
        self._settings = settings
        self._advertised = identity.endpoint
        self._clock_ms = appending.clock_ms
        self._store = appending.store
        self._delays = delays
        self._transactions = transactions
        self._timer = timer
        self._topics = tables.topics
        self._groups = tables.groups
        self._answers = answers
        self._reply = reply.encode
        self._stats = appending.stats
        self._failed = failed
        self._reput = appending.reput
        self._store_host = identity.store_host
        self._cluster = settings.cluster_name
        self._accept_from_ms = settings.start_accept_send_timestamp_ms
        self._large_batches = Gate(1)
        # An offsetMsgId is the store host and the log offset in hex (protocol/WIRE.md 6.6).
        self._msg_id_prefix = identity.store_host.hex().upper()

    def handle(self, connection: Connection, command: Command) -> Answer:
        """Serve one send; None when its answer waits until it is kept, steps for a large batch or
        when it waits for a topic that is made for it.

        Raises `BadRequest` for what the client did wrong, `StoreError` for what the store refuses.
        """
        try:
            header = SendMessageHeader.from_command(command)
            if self._accept_from_ms:
                self.check_accepting()
            if self._answers.full:
                raise self._answers.overload()
            topic = self.topic_of(header)
            if topic is None:
                return self._when_made(self.create_topic(header), connection, command)
            queue_id = self.choose_queue(topic, header.queue_id)
            put = self._put_batch if header.batch else self._put_single
            return put(connection, command, header, topic, queue_id)
        except Exception:
            self._count_failure(command)
            raise

    def _when_made(
        self, creation: asyncio.Future[None], connection: Connection, command: Command
    ) -> Steps:
        """Serve the send from its beginning when a topic that it needs is on the disk: what was
        looked at may have changed meanwhile."""
        yield creation
        try:
            creation.result()
        except Exception:
            self._count_failure(command)
            raise
        answer = self.handle(connection, command)
        return (yield from answer) if isinstance(answer, Generator) else answer

    def _count_failure(self, command: Command) -> None:
        """Count a send that was not stored, under its topic if there is such a topic."""
        name = command.ext.get("topic") or command.ext.get("b") or ""
        known = self._topics.get(name) is not None
        self._stats.failed(self._stats.topic(name) if known else None)

    def check_accepting(self) -> None:
        """Raises `BadRequest` before the time from which sends are taken."""
        if self._clock_ms() < self._accept_from_ms:
            raise BadRequest.system_error(
                f"broker unable to service, until {self._accept_from_ms} (ms since 1970)"
            )

    def topic_of(self, header: SendMessageHeader) -> TopicConfig | None:
        """Where a message is sent to; None if that has to be made first (`create_topic`). Raises
        `BadRequest` for a topic that takes no sends, whether it is there or not."""
        if header.topic in NO_SEND_TOPICS:
            raise BadRequest.no_permission(
                f"Sending message to topic[{header.topic}] is forbidden."
            )
        return self._topics.get(header.topic)

    def create_topic(self, header: SendMessageHeader) -> asyncio.Future[None]:
        """Begin to make the topic of a first send."""
        check_group_topic(header.topic)
        if header.topic.startswith(RETRY_PREFIX):
            creation = self._topics.create_retry(
                header.topic, 1, UNIT_SUB if header.unit_mode else 0
            )
        else:
            creation = self._topics.create_on_send(
                header.topic,
                header.default_topic,
                header.default_topic_queue_nums,
                UNIT if header.unit_mode else 0,
            )
        if creation is None:
            reason = self._topics.limit_reached(header.default_topic) or (
                "automatic creation is off or template topic "
                f"[{header.default_topic}] does not allow it"
            )
            raise BadRequest(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{header.topic}] not exist, apply first please! ({reason})",
            )
        return creation

    def choose_queue(self, topic: TopicConfig, queue_id: int) -> int:
        """The queue of a topic that a message goes to. Raises `BadRequest`."""
        if queue_id < 0:
            return random.randrange(max(1, topic.write_queues))
        if queue_id >= max(topic.write_queues, topic.read_queues):
            raise BadRequest.system_error(
                f"request queueId[{queue_id}] is illegal, topic[{topic.name}] has "
                f"{topic.write_queues} write queues, {topic.read_queues} read queues "
                f"on broker {self._advertised}"
            )
        if topic.order and not self._settings.broker_permission & PERM_WRITE:
            raise BadRequest.no_permission(
                f"the broker[{self._advertised}] sending message is forbidden"
            )
        return queue_id

    def _put_single(
        self,
        connection: Connection,
        command: Command,
        header: SendMessageHeader,
        topic: TopicConfig,
        queue_id: int,
    ) -> Answer:
        topic_name = header.topic
        carrier = _RETRY if topic_name.startswith(RETRY_PREFIX) else _SINGLE
        properties = stored_properties(header.properties, self._cluster, carrier, keep_wait=False)
        demands = properties.demands
        destination: Destination | None = None
        if demands or carrier is _RETRY:
            destination = self._destination(command, header, carrier, properties, queue_id)
            if destination.dead:
                creation = self._topics.create_retry(destination.topic, 1)
                if creation is not None:
                    return self._when_made(creation, connection, command)
            topic_name, queue_id = destination.topic, destination.queue_id
            properties = destination.properties
        message = StoreMessage(
            topic_name,
            queue_id,
            header.flag,
            _sys_flag(header, topic),
            header.born_timestamp,
            connection.packed_peer,
            self._store_host,
            header.reconsume_times,
            0,
            command.body,
            properties.encoded,
            properties.tags_code,
            properties.keys,
        )
        more: dict[str, str] | None = None
        if destination is not None and destination.delayed:
            if destination.deliver_ms is None:
                result = self._delays.put(message)
            else:
                result = self._timer.put_at(message, destination.deliver_ms)
                more = self._recall_handle(header, destination.deliver_ms)
        elif destination is not None and destination.half:
            result = self._transactions.prepare(message)
        else:
            result = self._store.log.put(message)
            kind = MESSAGE_FIFO if ORDER in demands else MESSAGE_NORMAL
            self._stats.stored(
                self._stats.topic(topic_name, kind), 1, result.size, message.queue_id
            )
        msg_id = f"{self._msg_id_prefix}{result.log_offset:016X}"
        if destination is not None and destination.dead:
            self._note_dead(command, header, msg_id)
        return self._answer(connection, command, result, msg_id, queue_id, properties.wait, more)

    def _recall_handle(self, header: SendMessageHeader, deliver_ms: int) -> dict[str, str] | None:
        """The fields by which a timed message can be recalled, as RocketMQ 5 answers them."""
        unique_id = decode_properties(header.properties).get(PROPERTY_UNIQUE_KEY, "")
        if not is_recallable_id(unique_id):
            return None
        name = self._settings.broker_name
        handle = RecallHandle(header.topic, name, deliver_ms, unique_id)
        return {"recallHandle": handle.encode()}

    def _put_batch(
        self,
        connection: Connection,
        command: Command,
        header: SendMessageHeader,
        topic: TopicConfig,
        queue_id: int,
    ) -> Answer:
        shared = stored_properties(header.properties, self._cluster, Carrier.BATCH)
        if header.sys_flag & TRANSACTION_STATE.flags:
            refuse(TRANSACTION_STATE, Carrier.BATCH)
        if topic.name.startswith(RETRY.prefix):
            refuse(RETRY, Carrier.BATCH)
        if len(command.body) > self._settings.max_message_bytes:
            raise BadRequest.illegal_message(
                f"the batch has {len(command.body)} bytes, the limit is "
                f"{self._settings.max_message_bytes} (maxMessageSize)"
            )
        sys_flag = _sys_flag(header, topic)
        made = self._batch_messages(connection, command, header, sys_flag, shared, queue_id)
        messages = list(islice(made, _LARGE_BATCH))
        if not messages:
            raise BadRequest.illegal_message("the batch holds no message")
        if len(messages) == _LARGE_BATCH:
            return self._large_batch(connection, command, header, shared, chain(messages, made))
        result = self._store.log.put_batch(messages)
        self._stats.stored(self._stats.topic(header.topic), result.count, result.size, queue_id)
        prefix = self._msg_id_prefix
        msg_ids = ",".join([f"{prefix}{offset:016X}" for offset in result.log_offsets])
        return self._answer(connection, command, result, msg_ids, queue_id, shared.wait)

    def _large_batch(
        self,
        connection: Connection,
        command: Command,
        header: SendMessageHeader,
        shared: StoredProperties,
        messages: Iterator[StoreMessage],
    ) -> Steps:
        """Store a batch of many messages: encoded in steps, appended at once, answered in steps.

        One at a time: encoded records take several times the memory of the request, and two
        batches in turns take as long as one after the other.
        """
        try:
            yield from self._large_batches.enter()
            try:
                batch = self._store.log.prepare_batch()
                for number, message in enumerate(messages, 1):
                    batch.add(message)
                    if not number % _STEP_MESSAGES:
                        yield None
                topic = self._topics.get(header.topic)
                if topic is None:
                    raise BadRequest(
                        ResponseCode.TOPIC_NOT_EXIST,
                        f"topic[{header.topic}] was deleted while the batch was taken in",
                    )
                # Its topic may have become smaller, too.
                self.choose_queue(topic, batch.first.queue_id)
                result = self._store.log.put_prepared(batch)
            finally:
                self._large_batches.leave()
        except Exception:
            self._count_failure(command)
            raise
        queue_id = batch.first.queue_id
        self._stats.stored(self._stats.topic(header.topic), result.count, result.size, queue_id)
        sizes = batch.sizes
        del batch
        msg_ids: list[str] = []
        prefix, at = self._msg_id_prefix, result.log_offset
        for start in range(0, len(sizes), _STEP_IDS):
            *some, at = accumulate(sizes[start : start + _STEP_IDS], initial=at)
            msg_ids.append(",".join([f"{prefix}{offset:016X}" for offset in some]))
            yield None
        text = ",".join(msg_ids)
        return self._answer(connection, command, result, text, queue_id, shared.wait)

    def _batch_messages(
        self,
        connection: Connection,
        command: Command,
        header: SendMessageHeader,
        sys_flag: int,
        shared: StoredProperties,
        queue_id: int,
    ) -> Iterator[StoreMessage]:
        for flag, body, own in batch_items(command.body):
            text = own.decode("utf-8", "replace")
            properties = stored_properties(text, self._cluster, Carrier.IN_BATCH)
            stored = join_properties(without_own(own), shared.encoded)
            tags_code, keys = properties.tags_code, properties.keys
            if shared.tags_code or shared.keys:
                # If two properties have the same name, readers of the record take the request's.
                values = decode_properties(stored)
                tags_code, keys = tag_code(values.get(PROPERTY_TAGS, "")), index_keys(values)
            yield StoreMessage(
                header.topic,
                queue_id,
                flag,
                sys_flag,
                header.born_timestamp,
                connection.packed_peer,
                self._store_host,
                header.reconsume_times,
                0,
                body,
                stored,
                tags_code,
                keys,
            )

    def _answer(
        self,
        connection: Connection,
        command: Command,
        result: PutResult,
        msg_id: str,
        queue_id: int,
        wait: bool,
        more: dict[str, str] | None = None,
    ) -> bytes | None:
        self._reput.appended()
        made = self._reply(command, 0, msg_id, queue_id, result.queue_offset, None, more)
        if self._answers.waits and wait:
            return self._answers.when_kept(connection, command, result.end, made)
        return made

    def _destination(
        self,
        command: Command,
        header: SendMessageHeader,
        carrier: Carrier,
        properties: StoredProperties,
        queue_id: int,
    ) -> Destination:
        """Where a message goes that asks for more than to be stored."""
        topic, demands = header.topic, properties.demands
        if TRANSACTION in demands:
            properties = self._half_properties(header)
            return Destination(topic, queue_id, properties, delayed=False, dead=False, half=True)
        if carrier is _RETRY and self._is_dead(command, header):
            dead_letters = dlq_topic(topic[len(RETRY_PREFIX) :])
            return Destination(dead_letters, 0, properties, delayed=False, dead=True)
        timed = DELIVERY_TIME in demands
        deliver_ms = self._timer.deliver_at(properties.encoded) if timed else None
        waits = deliver_ms is not None or DELAY_LEVEL in demands
        delayed = waits and not header.sys_flag & SYS_TRANSACTION_PREPARED
        if delayed:
            # Like the reference: the text is made again from all properties, WAIT among them.
            properties = stored_properties(header.properties, self._cluster, carrier)
        return Destination(topic, queue_id, properties, delayed, dead=False, deliver_ms=deliver_ms)

    def _half_properties(self, header: SendMessageHeader) -> StoredProperties:
        """The properties kept with a half message: all of them. Raises `BadRequest` where no half
        message may be."""
        if self._settings.reject_transactions:
            raise BadRequest.no_permission(
                f"the broker[{self._advertised}] sending transaction message is forbidden "
                "(rejectTransactionMessage)"
            )
        properties = stored_properties(header.properties, self._cluster, Carrier.HALF)
        if not decode_properties(header.properties).get(PROPERTY_PRODUCER_GROUP):
            raise BadRequest.illegal_message(
                "a transactional message has to name the group of its producer in the property "
                f"{PROPERTY_PRODUCER_GROUP}, or nobody could decide about it"
            )
        if len(properties.encoded) > MAX_PROPERTIES_BYTES - ADDED_BYTES - len(header.topic):
            raise BadRequest.illegal_message(
                f"the properties have {len(properties.encoded)} bytes; of a transactional message "
                f"{MAX_PROPERTIES_BYTES - ADDED_BYTES - len(header.topic)} are allowed, because "
                "the broker adds to them"
            )
        return properties

    def _is_dead(self, command: Command, header: SendMessageHeader) -> bool:
        """Whether a retry that a consumer sends itself has had its tries."""
        return header.reconsume_times >= self._retry_limit(command, header)

    def _retry_limit(self, command: Command, header: SendMessageHeader) -> int:
        group_name = header.topic[len(RETRY_PREFIX) :]
        group = self._groups.get(group_name)
        if group is None:
            raise self._groups.missing(group_name)
        return group.retry_limit(header.max_reconsume_times, command.version)

    def _note_dead(self, command: Command, header: SendMessageHeader, msg_id: str) -> None:
        group = header.topic[len(RETRY_PREFIX) :]
        reason = tries_text(header.reconsume_times, self._retry_limit(command, header))
        properties = decode_properties(header.properties)
        self._failed.dead_lettered(group, header.topic, properties, msg_id, reason)


def refused_without_buffer(handle: Handler, store: MessageStore, stats: BrokerStats) -> Handler:
    """`handle`, refused with SYSTEM_BUSY while the transient pool has no free buffer
    (`fastFailIfNoBufferInStorePool`; store/FORMAT.md 3.5, protocol/WIRE.md 1.10).

    The disk is then slower than what is sent; a producer that learns so tries another broker or
    comes again, instead of waiting for a segment. RocketMQ refuses whenever its pool is empty,
    whether or not that setting is on, although it would go on without a buffer; here the setting
    decides. The check is put around a handler when the broker is built, so that sends to a store
    without a pool pass nothing here.
    """

    def checked(connection: Connection, command: Command) -> Answer:
        if not store.free_buffers:
            stats.failed()
            raise BadRequest(
                ResponseCode.SYSTEM_BUSY,
                "[REJECTREQUEST]system busy, start flow control for a while: all buffers of the "
                "transient pool wait to be written to the disk",
            )
        return handle(connection, command)

    return checked


def _sys_flag(header: SendMessageHeader, topic: TopicConfig) -> int:
    """The stored sysFlag of a message, or of each message of a batch."""
    return header.sys_flag | SYS_MULTI_TAGS if topic.filter_type == MULTI_TAG else header.sys_flag
