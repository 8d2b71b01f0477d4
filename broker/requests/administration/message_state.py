"""MESSAGE_STATE (31033): how far each group is with one message (protocol/WIRE.md 9).

An administrator asks where a message is. Offsets, subscriptions, retry topics and dead letters can
be asked for one by one with RocketMQ's own requests; only the broker knows what a filter of
properties decides, what was given out and is not acknowledged, and which failed messages wait for
their next try. Nothing is changed.

The tries that wait are found by the message's unique id, under which they are indexed where they
wait. The newest `_MOST_TRIES` of them are looked at.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Final

from aerobee.broker.delay.delay_service import ScheduleMessageService
from aerobee.broker.tables.tables import Tables
from aerobee.protocol.bodies.message_state import GroupPlace, MessageState, WaitingTry
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.filters.property_filter import TAG_TYPE
from aerobee.protocol.frames.command import Command, encode_success
from aerobee.protocol.headers.client import ViewMessageHeader
from aerobee.protocol.message.properties import PROPERTY_TAGS, PROPERTY_UNIQUE_KEY, real_queue
from aerobee.protocol.message.record import Message, decode_record
from aerobee.protocol.names import RETRY_PREFIX, SCHEDULE_TOPIC
from aerobee.remoting.turns import Gate, Steps
from aerobee.store.message_store import MessageStore

# Tries of all groups together; RocketMQ's brokers give as many messages of one id.
_MOST_TRIES: Final = 32
_NO_LIMIT: Final = -1

Waiting = Mapping[str, list[WaitingTry]]


class MessageStates:
    """Serves administrators, one at a time. Loop thread only."""

    def __init__(self, tables: Tables, store: MessageStore, delays: ScheduleMessageService) -> None:
        self._groups = tables.groups
        self._offsets = tables.offsets
        self._clients = tables.clients
        self._lag = tables.lag
        self._filters = tables.filters
        self._store = store
        self._delays = delays
        self._one_at_a_time = Gate(1)

    def state(self, command: Command) -> Steps:
        """The groups that consume the topic of the message at a log offset. Raises `BadRequest`
        when no message begins there."""
        offset = ViewMessageHeader.from_ext(command.ext).offset
        yield from self._one_at_a_time.enter()
        try:
            record = self._store.reader.record_at(offset)
            if record is None:
                raise BadRequest.system_error(f"can not find message by the offset, {offset}")
            found = yield from self._state_of(decode_record(record))
            body = yield from found.encode()
        finally:
            self._one_at_a_time.leave()
        return encode_success(command, body)

    def _state_of(self, message: Message) -> Generator[None, None, MessageState]:
        topic = message.topic
        waiting, is_cut = yield from self._waiting(message)
        names = {*self._clients.groups_subscribed(topic), *self._offsets.groups_of(topic)}
        places = []
        for group in sorted(names):
            yield None
            if self._lag.is_known(group):
                places.append(self._place(group, message, tuple(waiting.get(group, ()))))
        return MessageState(
            topic, message.queue_id, message.queue_offset, tuple(places), is_cut=is_cut
        )

    def _place(self, group: str, message: Message, waiting: tuple[WaitingTry, ...]) -> GroupPlace:
        topic, queue_id = message.topic, message.queue_id
        config = self._groups.find(group)
        subscription, takes = self._judgement(group, message)
        begin = self._lag.begin(group, topic, queue_id)
        return GroupPlace(
            group=group,
            committed=self._offsets.query(group, topic, queue_id),
            begin=begin,
            given_out=self._lag.given_out(group, topic, queue_id, begin),
            online=self._clients.consumer_group(group) is not None,
            keeps_own_offsets=self._lag.keeps_own_offsets(group),
            retry_limit=_NO_LIMIT if config is None else config.retry_max_times,
            subscription=subscription,
            takes=takes,
            waiting=waiting,
        )

    def _judgement(self, group: str, message: Message) -> tuple[str | None, bool | None]:
        """The expression of a group for the message's topic, and whether it takes the message;
        None where that is not known."""
        stated = self._clients.subscription(group, message.topic)
        if stated is not None and stated.type == TAG_TYPE:
            tag = message.properties.get(PROPERTY_TAGS)
            return stated.expression, not stated.codes or tag in stated.tags
        known = self._filters.get(message.topic, group)
        if known is None:
            return None if stated is None else stated.expression, None
        if known.compiled is None:
            return known.expression, None
        return known.expression, known.compiled.compiled.matches(message.properties)

    def _waiting(self, message: Message) -> Generator[None, None, tuple[Waiting, bool]]:
        """The tries of a message that wait, by group, and whether there may be more of them."""
        unique_id = message.properties.get(PROPERTY_UNIQUE_KEY)
        if unique_id is None:
            return {}, True
        places = yield from self._store.search.places_steps(SCHEDULE_TOPIC, unique_id, _MOST_TRIES)
        found: dict[str, list[WaitingTry]] = {}
        for log_offset in places:
            yield None
            # One at a time: it may be as large as a message may be.
            record = self._store.reader.record_at(log_offset)
            waits = None if record is None else decode_record(record)
            if waits is None or waits.properties.get(PROPERTY_UNIQUE_KEY) != unique_id:
                continue
            if (try_ := self._try(waits)) is not None:
                group = real_queue(waits.properties)[0].removeprefix(RETRY_PREFIX)
                found.setdefault(group, []).append(try_)
        return found, len(places) >= _MOST_TRIES

    def _try(self, waits: Message) -> WaitingTry | None:
        """The try that a record of the delay topic is, None for a record that waits no longer, or
        is no retry."""
        level = waits.queue_id + 1
        topic, _ = real_queue(waits.properties)
        reached = {number: offset for number, offset, _ in self._delays.waiting()}
        if not topic.startswith(RETRY_PREFIX) or waits.queue_offset < reached.get(level, 0):
            return None
        due_ms = self._store.delays.delivery_time(level, waits.queue_offset)
        return None if due_ms is None else WaitingTry(waits.reconsume_times, due_ms)
