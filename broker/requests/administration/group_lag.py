"""GROUP_LAG (31031): how far a group is, queue by queue, and what the broker knows of why it does
not come on (protocol/WIRE.md 9).

The judgement is that of the metrics and of GET_CONSUME_STATS (`tables/lag.py`), which has no word
for a lag that nobody knows; `tables/stuck_queues.py` knows for how long a queue stands. Everything
else is looked up here for this answer, in steps: the message that a queue stands at, the client
that has the queue by its lock or its waiting pull, how members subscribe, and whether the newest
messages pass their filters. Nothing is changed.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable
from typing import Any, Final

from aerobee.broker.appending.held_pulls import HeldPulls
from aerobee.broker.requests.clients.order_locks import OrderLocks
from aerobee.broker.tables.clients import ConsumerGroup
from aerobee.broker.tables.lag import QueueLag
from aerobee.broker.tables.offsets import NO_OFFSET
from aerobee.broker.tables.stuck_queues import StuckQueues
from aerobee.broker.tables.tables import Tables
from aerobee.config.model import Settings
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.bodies.group_lag import (
    GroupSettings,
    GroupState,
    HeadMessage,
    QueueLagState,
    SharedId,
    Statement,
    TopicState,
    encode_group_lag,
    encode_queue,
)
from aerobee.protocol.errors import BadRequest, CorruptRecord
from aerobee.protocol.filters.property_filter import TAG_TYPE, MessageFilter
from aerobee.protocol.filters.subscription import Subscription
from aerobee.protocol.frames.command import Command, encode_success
from aerobee.protocol.frames.frame import MAX_ANSWER_BYTES
from aerobee.protocol.headers.admin import ConsumeStatsHeader
from aerobee.protocol.message.properties import PROPERTY_UNIQUE_KEY
from aerobee.protocol.message.record import decode_record
from aerobee.protocol.names import check_group_name
from aerobee.remoting.connections.connection import Connection
from aerobee.remoting.turns import Gate, Steps
from aerobee.store.message_store import MessageStore

# In one step: queues, of which many things are looked up; members that are looked at.
_STEP_QUEUES: Final = 4
_STEP_MEMBERS: Final = 64
# Names of clients in a list, and messages that queues stand at: the others are not looked up.
_MOST_NAMES: Final = 20
_MOST_HEADS: Final = 64
# Newest messages that are held against a filter: in each of the first queues, some microseconds
# each, or some tens by properties.
_LOOKED_QUEUES: Final = 8
_LOOKED_MESSAGES: Final = 16


class GroupLagRequests:
    """Serves whoever may read a group. Loop thread only."""

    def __init__(
        self,
        settings: Settings,
        tables: Tables,
        *,
        store: MessageStore,
        stuck: StuckQueues,
        held: HeldPulls,
        locks: OrderLocks,
    ) -> None:
        self._settings = settings
        self._topics = tables.topics
        self._groups = tables.groups
        self._clients = tables.clients
        self._lag = tables.lag
        self._expressions = tables.expressions
        self._store = store
        self._stuck = stuck
        self._held = held
        self._locks = locks
        # An answer about many queues may take as much as fits in a frame.
        self._one_at_a_time = Gate(1)

    def group_lag(self, connection: Connection, command: Command) -> Steps:
        """A group that nobody knows has no settings, no members and no queues."""
        header = ConsumeStatsHeader.from_ext(command.ext)
        group = check_group_name(header.consumer_group)
        yield from self._one_at_a_time.enter()
        try:
            topic = header.topic.strip()
            topics = [topic] if topic else self._lag.topics_of(group)
            state = yield from self._state(group, topics)
            queues = yield from self._queues(connection, group, topics)
        finally:
            self._one_at_a_time.leave()
        return encode_success(command, encode_group_lag(state, queues))

    # --- queues

    def _queues(
        self, connection: Connection, group: str, topics: Iterable[str]
    ) -> Generator[None, None, list[bytes]]:
        found: list[bytes] = []
        size, heads = 0, _MOST_HEADS
        for topic in topics:
            if not self._lag.concerns(group, topic):
                continue
            for one in self._lag.queues(group, topic):
                if len(found) % _STEP_QUEUES == 0:
                    yield None
                has_head = heads > 0 and one.given_out > one.begin and one.is_known
                if has_head:
                    # Its record may be large.
                    heads -= 1
                    yield None
                found.append(encode_queue(self._queue(group, topic, one, has_head=has_head)))
                size += len(found[-1])
                if size > MAX_ANSWER_BYTES or connection.closed:
                    raise BadRequest.system_error(
                        f"the queues of {group} do not fit into one answer ({MAX_ANSWER_BYTES} "
                        "bytes); ask for them topic by topic"
                    )
        return found

    def _queue(self, group: str, topic: str, one: QueueLag, *, has_head: bool) -> QueueLagState:
        queue_id, committed = one.queue_id, one.committed
        standing = self._stuck.standing(group, topic, queue_id)
        consumed_ms = None
        if committed > 0:
            stored_ms = self._store.search.store_time(topic, queue_id, committed - 1)
            consumed_ms = stored_ms if stored_ms >= 0 else None
        queue = MessageQueue(topic, self._settings.broker_name, queue_id)
        return QueueLagState(
            topic=topic,
            queue_id=queue_id,
            committed=None if committed == NO_OFFSET else committed,
            begin=None if one.lag is None else one.position,
            end=one.end,
            first=max(self._store.min_offset(topic, queue_id), 0),
            lag=one.lag,
            given_out=one.held,
            last_consumed_ms=consumed_ms,
            stands_s=standing.stands_s,
            left_s=standing.left_s,
            is_stuck=standing.is_stuck,
            is_left=standing.is_left,
            lock_owner=self._locks.owner(group, queue),
            puller=self._puller(group, topic, queue_id),
            head=self._head(topic, queue_id, one.begin) if has_head else None,
        )

    def _puller(self, group: str, topic: str, queue_id: int) -> str | None:
        live = self._clients.consumer_group(group)
        if live is None:
            return None
        connection = self._held.waiting(topic, queue_id, group)
        member = None if connection is None else live.members.get(id(connection))
        return None if member is None else member.client_id

    def _head(self, topic: str, queue_id: int, queue_offset: int) -> HeadMessage | None:
        entries = self._store.search.entries(topic, queue_id, queue_offset, 1)
        if not entries:
            return None
        log_offset = entries[0].entry.log_offset
        found = self._store.reader.head_at(log_offset, check_crc=False)
        if found is None:
            return None
        segment, _ = found
        try:
            message = decode_record(segment.view, log_offset - segment.start)
        except CorruptRecord:
            return None
        return HeadMessage(
            offset=queue_offset,
            msg_id=message.properties.get(PROPERTY_UNIQUE_KEY) or message.msg_id,
            stored_ms=message.store_timestamp_ms,
            attempt=message.reconsume_times + 1,
            tags=message.tags,
        )

    # --- the group itself

    def _state(self, group: str, topics: list[str]) -> Generator[Any, None, GroupState]:
        settings = self._groups.find(group)
        live = self._clients.consumer_group(group)
        states = []
        for topic in topics:
            states.append((yield from self._topic(live, topic)))
        return GroupState(
            group=group,
            now_ms=time.time_ns() // 1_000_000,
            settings=None
            if settings is None
            else GroupSettings(
                consume_enable=settings.consume_enable,
                consume_broadcast_enable=settings.consume_broadcast_enable,
                retry_max_times=settings.retry_max_times,
                retry_queue_nums=settings.retry_queue_nums,
            ),
            consume_type=None if live is None else live.consume_type,
            message_model=None if live is None else live.message_model,
            consume_from=None if live is None else live.consume_from_where,
            members=0 if live is None else len(live.ids),
            clients=[] if live is None else list(live.ids)[:_MOST_NAMES],
            shared_ids=[] if live is None else (yield from _shared_ids(live)),
            retries=self._lag.waiting_retries(group),
            dead=self._lag.dead(group),
            broker_perm=self._settings.broker_permission,
            topics=states,
        )

    def _topic(self, live: ConsumerGroup | None, topic: str) -> Generator[Any, None, TopicState]:
        yield None
        config = self._topics.get(topic)
        stated: list[Subscription] = []
        statements: list[Statement] = []
        without: list[str] = []
        if live is not None:
            by_text, without = yield from _members_by_text(live, topic)
            for text, (members, clients) in by_text.items():
                one = live.statements.of(topic, text)
                if one is None:
                    continue  # the members have left meanwhile
                stated.append(one)
                statements.append(
                    Statement(
                        type=one.type, expression=one.expression, members=members, clients=clients
                    )
                )
        looked = wanted = 0
        if config is not None and stated:
            looked, wanted = yield from self._pass_filters(topic, config.read_queues, stated)
        return TopicState(
            topic=topic,
            exists=config is not None,
            perm=0 if config is None else config.perm,
            statements=statements,
            without=without if statements else [],
            looked=looked,
            wanted=wanted,
        )

    def _pass_filters(
        self, topic: str, queues: int, stated: list[Subscription]
    ) -> Generator[Any, None, tuple[int, int]]:
        """How many of the newest messages were looked at, and how many of them pass a filter."""
        codes: set[int] = set()
        filters: list[MessageFilter] = []
        for one in stated:
            if one.class_filter or (one.type == TAG_TYPE and not one.codes):
                return 0, 0
            if one.type == TAG_TYPE:
                codes |= one.codes
                continue
            try:
                filters.append((yield from self._expressions.compiled(one.typed_expression)))
            except BadRequest:
                return 0, 0
        looked = wanted = 0
        for queue_id in range(min(queues, _LOOKED_QUEUES)):
            yield None
            end = max(self._store.max_offset(topic, queue_id), 0)
            first = max(end - _LOOKED_MESSAGES, self._store.min_offset(topic, queue_id), 0)
            entries = self._store.search.entries(topic, queue_id, first, end - first)
            for offset, seen in enumerate(entries, first):
                looked += 1
                code = seen.entry.tags_code if seen.extension is None else seen.extension.tags_code
                wanted += code in codes or self._is_wanted(topic, queue_id, offset, filters)
        return looked, wanted

    def _is_wanted(
        self, topic: str, queue_id: int, offset: int, filters: list[MessageFilter]
    ) -> bool:
        if not filters:
            return False
        properties = self._store.reader.properties_at(topic, queue_id, offset)
        return properties is not None and any(one.matches(properties) for one in filters)


def _members_by_text(
    live: ConsumerGroup, topic: str
) -> Generator[None, None, tuple[dict[str, tuple[int, list[str]]], list[str]]]:
    """How many members state each text about a topic, and some of them; and some of those that do
    not subscribe to it."""
    found: dict[str, tuple[int, list[str]]] = {}
    without: list[str] = []
    for number, member in enumerate(list(live.members.values()), 1):
        if number % _STEP_MEMBERS == 0:
            yield None
        text = member.subscriptions.get(topic)
        if text is None:
            names = without
        else:
            count, names = found.get(text, (0, []))
            found[text] = (count + 1, names)
        if len(names) < _MOST_NAMES and member.client_id not in names:
            names.append(member.client_id)
    return found, without


def _shared_ids(live: ConsumerGroup) -> Generator[None, None, list[SharedId]]:
    """The ids of which there are several members, some of many."""
    addresses: dict[str, list[str]] = {}
    for number, member in enumerate(list(live.members.values()), 1):
        if number % _STEP_MEMBERS == 0:
            yield None
        if live.ids.get(member.client_id, 0) > 1:
            known = addresses.get(member.client_id)
            if known is None and len(addresses) < _MOST_NAMES:
                known = addresses[member.client_id] = []
            if known is not None and len(known) < _MOST_NAMES:
                known.append(member.address)
    return [SharedId(client_id=name, addresses=found) for name, found in addresses.items()]
