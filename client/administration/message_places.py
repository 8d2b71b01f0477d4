"""Where a message is: found by its id, and how far each group that consumes its topic is with it.

RocketMQ's requests tell a group's offset, what its members subscribe to, and which copies of a
message lie in its retry topic and among its dead letters. Our brokers tell besides what was given
out, what a filter decides, and which tries wait until when (MESSAGE_STATE); of another broker the
tries that wait are looked up in its delay topic, and their time follows from its delay levels.

The newest trace of a message in a group decides: a try that waits, a copy in the retry topic, a
dead letter. Without any, the group's offset in the message's queue does. An offset says no more
than that the group is past a place: whoever has reset it forward has passed messages over.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final, NamedTuple

from aerobee.client.admin import Admin
from aerobee.client.administration.asked_brokers import AskedBrokers, each, number_of
from aerobee.client.administration.dead_letter_reasons import DEFAULT_TRIES
from aerobee.client.administration.dead_letters import tries_of
from aerobee.client.administration.foreign_places import (
    TOLD_OR_NOT,
    levels_of,
    offset_of,
    places_of,
    query_unique,
    view,
)
from aerobee.client.errors import reading
from aerobee.client.message import ReceivedMessage
from aerobee.protocol.bodies.message_state import GroupPlace, MessageState
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.headers.client import ViewMessageHeader
from aerobee.protocol.message.properties import (
    PROPERTY_RETRY_TOPIC,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_UNIQUE_KEY,
    real_queue,
)
from aerobee.protocol.names import (
    DLQ_PREFIX,
    HALF_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    dlq_topic,
    is_system_topic,
    retry_topic,
)

#: Topics that a search without a topic asks about at most.
MOST_TOPICS: Final = 500
# Where messages wait, each for what it waits.
_WAITING_PLACES: Final = ((SCHEDULE_TOPIC, "delayed"), (TIMER_TOPIC, "timed"), (HALF_TOPIC, "half"))


class State(StrEnum):
    """How far a group is with a message."""

    CONSUMED = "consumed"
    #: It is past the message, and nobody says whether its filter takes it.
    PASSED = "passed"
    NOT_YET = "not yet"
    GIVEN_OUT = "given out"
    WAITS = "waits for its next try"
    IN_RETRY = "in the retry queue"
    DEAD = "dead"
    FILTERED_OUT = "filtered out"
    #: The group began behind the message.
    BEGAN_LATER = "began later"
    #: Its members alone know (broadcasting).
    OWN_OFFSETS = "members know"
    UNKNOWN = "unknown"


class GroupState(NamedTuple):
    """A group and a message. `at_ms` is the time of what the state names: when the next try is
    due, or since when it is dead or in the retry queue; None for other states, or where nobody
    knows. `tries` counts deliveries after the first one, `limit` how many there may be, None if
    nobody knows. `ahead` messages of the queue come before it."""

    group: str
    state: State
    tries: int = 0
    limit: int | None = None
    at_ms: int | None = None
    ahead: int | None = None
    subscription: str | None = None


# --- finding it -----------------------------------------------------------------------------------


async def find_message(
    admin: Admin, asked: AskedBrokers, msg_id: str, topic: str | None
) -> list[ReceivedMessage]:
    """The messages with an id, the client's or the broker's; several if its producer had to send
    again. Without a topic all topics are looked at, `MOST_TOPICS` at most. A copy of a retry topic,
    or a dead letter, leads to the message that it is a copy of."""
    if topic is not None and (found := await query_unique(asked, topic, msg_id)):
        return found
    message = await view(asked, msg_id)
    if message is None:
        if topic is not None:
            return []
        return await _in_any_topic(asked, await admin.topics(), msg_id)
    origin = message.properties.get(PROPERTY_RETRY_TOPIC)
    unique_id = message.properties.get(PROPERTY_UNIQUE_KEY)
    if message.topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) and origin and unique_id:
        return await query_unique(asked, origin, unique_id) or [message]
    return [message]


async def _in_any_topic(
    asked: AskedBrokers, topics: Iterable[str], msg_id: str
) -> list[ReceivedMessage]:
    names = searched_topics(topics)[:MOST_TOPICS]

    async def at(topic: str) -> list[ReceivedMessage]:
        return await query_unique(asked, topic, msg_id)

    return [one for part in await each(at, names) for one in part]


def searched_topics(topics: Iterable[str]) -> list[str]:
    """The topics that messages are first sent to."""
    return [
        name
        for name in topics
        if not name.startswith((RETRY_PREFIX, DLQ_PREFIX)) and not is_system_topic(name)
    ]


class Waiting(NamedTuple):
    """A message that was accepted for `topic` and is not there yet: it is `delayed`, has a time of
    its own (`timed`), or is `half` of a transaction. `due_ms` is when it is delivered, None where
    nobody knows; `record` is what waits in its place."""

    record: ReceivedMessage
    topic: str
    kind: str
    due_ms: int | None


async def find_waiting(asked: AskedBrokers, msg_id: str) -> Waiting | None:
    """The message with a client's id that is in no topic yet, as far as brokers have indexed it
    where it waits. One that was taken back, or rolled back, is found as well."""
    for where, kind in _WAITING_PLACES:
        for record in reversed(await query_unique(asked, where, msg_id)):
            topic, _ = real_queue(record.properties)
            if not topic.startswith(RETRY_PREFIX):
                due_ms = await _due_ms(asked, record)
                return Waiting(record, topic, kind, due_ms)
    return None


async def _due_ms(asked: AskedBrokers, record: ReceivedMessage) -> int | None:
    if record.topic == SCHEDULE_TOPIC:
        levels = await levels_of(asked, record.queue.broker_name)
        known = record.queue.queue_id < len(levels)
        return record.store_timestamp_ms + levels[record.queue.queue_id] if known else None
    return number_of(record.properties.get(PROPERTY_TIMER_DELIVER_MS))


# --- the groups -----------------------------------------------------------------------------------


async def told_by_broker(
    admin: Admin, asked: AskedBrokers, message: ReceivedMessage
) -> MessageState | None:
    """The answer of a message's broker to MESSAGE_STATE, None where it does not know that."""
    broker = message.queue.broker_name
    is_slave = broker in asked.slaves
    address = asked.address(broker) if is_slave else await admin.administered_at(broker)
    ext = ViewMessageHeader(message.log_offset).to_ext()
    code = RequestCode.MESSAGE_STATE
    answer = await admin.session.call(address, code, ext, accept=TOLD_OR_NOT)
    if answer.code != ResponseCode.SUCCESS:
        return None
    with reading(address):
        return MessageState.parse(answer.body)


class Judge:
    """Judges how far groups are with one message; `tells_all` is whether its broker says what only
    a broker knows."""

    def __init__(self, admin: Admin, asked: AskedBrokers, message: ReceivedMessage) -> None:
        self._admin = admin
        self._asked = asked
        self._message = message
        self._broker = message.queue.broker_name
        self.tells_all = False

    async def states(self) -> list[GroupState]:
        """The groups that consume the message's topic, sorted."""
        state = await told_by_broker(self._admin, self._asked, self._message)
        self.tells_all = state is not None
        if state is None:
            state = await places_of(self._asked, self._message)
        return await each(self._judged, state.groups)

    async def _judged(self, place: GroupPlace) -> GroupState:
        limit = place.retry_limit if place.retry_limit >= 0 else DEFAULT_TRIES
        found = GroupState(place.group, State.UNKNOWN, 0, limit, subscription=place.subscription)
        return await self._of_copies(place, found) or self._of_offset(place, found)

    async def _of_copies(self, place: GroupPlace, found: GroupState) -> GroupState | None:
        """The state by the newest trace of the message in the group."""
        group, unique_id = place.group, self._message.properties.get(PROPERTY_UNIQUE_KEY)
        if waits := max(place.waiting, key=lambda one: one.due_ms, default=None):
            return found._replace(state=State.WAITS, tries=waits.tries, at_ms=waits.due_ms)
        if unique_id is None:
            return None
        letters = await query_unique(self._asked, dlq_topic(group), unique_id)
        copies = await query_unique(self._asked, retry_topic(group), unique_id)
        newest = max(
            [*letters[-1:], *copies[-1:]], key=lambda one: one.store_timestamp_ms, default=None
        )
        if newest is None:
            return None
        since = newest.store_timestamp_ms
        if newest.topic == dlq_topic(group):
            return found._replace(state=State.DEAD, tries=tries_of(newest), at_ms=since)
        found = found._replace(tries=newest.reconsume_times)
        if await self._is_past(group, newest):
            return found._replace(state=State.CONSUMED)
        return found._replace(state=State.IN_RETRY, at_ms=since)

    async def _is_past(self, group: str, copy: ReceivedMessage) -> bool:
        queue = copy.queue
        offset = await offset_of(self._asked, queue.broker_name, group, queue.topic, queue.queue_id)
        return offset is not None and offset > copy.queue_offset

    def _of_offset(self, place: GroupPlace, found: GroupState) -> GroupState:
        """The state by the group's offset in the message's queue."""
        offset = self._message.queue_offset
        if place.keeps_own_offsets:
            return found._replace(state=State.OWN_OFFSETS)
        if place.takes is False:
            return found._replace(state=State.FILTERED_OUT)
        if place.committed > offset:
            state = State.PASSED if place.takes is None else State.CONSUMED
            return found._replace(state=state)
        if place.committed < 0 and place.begin > offset:
            return found._replace(state=State.BEGAN_LATER)
        if place.given_out > offset:
            return found._replace(state=State.GIVEN_OUT)
        return found._replace(state=State.NOT_YET, ahead=max(offset - place.begin, 0))
