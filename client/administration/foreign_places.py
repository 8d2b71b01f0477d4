"""RocketMQ's own requests about a message and the groups, as any broker answers them.

`places_of` is what MESSAGE_STATE says at our brokers, as far as others let it be known: not what
was given out, and no filter of properties. Tries that wait are found in the delay topic, where they
are indexed by the message's unique id; when each is due follows from the broker's delay levels.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from aerobee.client.administration.asked_brokers import AskedBrokers, each, number_of
from aerobee.client.errors import reading
from aerobee.client.message import Inflater, ReceivedMessage, received
from aerobee.protocol.bodies.clients import BROADCASTING
from aerobee.protocol.bodies.common import as_object, object_member, parse_body, text_member
from aerobee.protocol.bodies.message_state import GroupPlace, MessageState, WaitingTry
from aerobee.protocol.bodies.statistics import parse_group_list, parse_retry_limits
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.errors import BadRequest, CorruptRecord
from aerobee.protocol.filters.property_filter import TAG_TYPE
from aerobee.protocol.filters.subscription import parse_tag_expression
from aerobee.protocol.headers.admin import TopicHeader
from aerobee.protocol.headers.client import (
    ConsumerListHeader,
    OffsetResponse,
    QueryConsumerOffsetHeader,
    QueryMessageHeader,
    ViewMessageHeader,
)
from aerobee.protocol.message.ids import parse_offset_msg_id
from aerobee.protocol.message.properties import PROPERTY_UNIQUE_KEY, real_queue
from aerobee.protocol.message.record import decode_record, iterate_records
from aerobee.protocol.names import RETRY_PREFIX, SCHEDULE_TOPIC

#: RocketMQ's brokers give no more.
MOST_OF_A_KEY: Final = 64
_MOST_COPIES: Final = 32
_FAR_FUTURE_MS: Final = 2**63 - 1
#: A broker may not know a request, or not take it here, or not from this account.
TOLD_OR_NOT: Final = (
    ResponseCode.SUCCESS,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
    ResponseCode.NO_PERMISSION,
    ResponseCode.SYSTEM_ERROR,
)
_FOUND_OR_NOT: Final = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
_ONLINE_OR_NOT: Final = (ResponseCode.SUCCESS, ResponseCode.CONSUMER_NOT_ONLINE)
_NO_OFFSET: Final = -1
_UNIT_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
# Members of a group and what they subscribe to, as a broker sends them.
_MOST_VALUES: Final = 2_000_000


async def query_unique(
    asked: AskedBrokers, topic: str, unique_id: str, brokers: Iterable[str] | None = None
) -> list[ReceivedMessage]:
    """The messages of a topic that have a unique id, oldest first; the newest 32 of a broker."""
    header = QueryMessageHeader(
        topic, unique_id, _MOST_COPIES, 0, _FAR_FUTURE_MS, unique_key_query=True
    )
    ext = header.to_ext()
    found = await each(lambda broker: _queried(asked, broker, ext), brokers or asked.names)
    messages = [
        one
        for part in found
        for one in part
        if one.topic == topic and one.properties.get(PROPERTY_UNIQUE_KEY) == unique_id
    ]
    return sorted(messages, key=lambda one: (one.store_timestamp_ms, one.log_offset))


async def _queried(asked: AskedBrokers, broker: str, ext: dict[str, str]) -> list[ReceivedMessage]:
    answer = await asked.call(broker, RequestCode.QUERY_MESSAGE, ext, accept=_FOUND_OR_NOT)
    if answer is None or answer.code != ResponseCode.SUCCESS:
        return []
    inflater = Inflater()
    with reading(asked.address(broker)):
        return [received(one, broker, inflater) for one in iterate_records(answer.body)]


async def query_key(asked: AskedBrokers, topic: str, key: str) -> list[ReceivedMessage]:
    """The messages of a topic that carry a key, oldest first; the newest `MOST_OF_A_KEY` of a
    broker."""
    ext = QueryMessageHeader(topic, key, MOST_OF_A_KEY, 0, _FAR_FUTURE_MS).to_ext()
    found = await each(lambda broker: _queried(asked, broker, ext), asked.names)
    messages = [one for part in found for one in part if one.topic == topic and key in one.keys]
    return sorted(messages, key=lambda one: (one.store_timestamp_ms, one.log_offset))


async def view(asked: AskedBrokers, msg_id: str) -> ReceivedMessage | None:
    """The message that a broker's id names, whichever broker has it; None where no broker that
    answers has it, or the text names no place in a log."""
    try:
        _, _, log_offset = parse_offset_msg_id(msg_id)
    except BadRequest:
        return None
    ext = ViewMessageHeader(log_offset).to_ext()

    async def at(broker: str) -> ReceivedMessage | None:
        code = RequestCode.VIEW_MESSAGE_BY_ID
        answer = await asked.call(broker, code, ext, accept=TOLD_OR_NOT)
        if answer is None or answer.code != ResponseCode.SUCCESS:
            return None
        try:
            message = received(decode_record(answer.body), broker)
        except CorruptRecord:
            # RocketMQ's broker hands out what lies there, record or not.
            return None
        return message if message.offset_msg_id == msg_id.upper() else None

    found = await each(at, asked.names)
    return next((one for one in found if one is not None), None)


async def known_groups(asked: AskedBrokers) -> set[str]:
    """The consumer groups that the brokers know which answer, and tell this account."""
    code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
    found: set[str] = set()
    for broker in asked.names:
        answer = await asked.call(broker, code, accept=TOLD_OR_NOT)
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            with reading(asked.address(broker)):
                found |= parse_retry_limits(answer.body).keys()
    return found


async def groups_consuming(asked: AskedBrokers, topic: str) -> list[str]:
    """The groups that subscribe to a topic now, or have offsets in it, at the brokers that
    answer."""
    code, ext = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, TopicHeader(topic).to_ext()
    found: set[str] = set()
    for broker in asked.names:
        answer = await asked.call(broker, code, ext, accept=TOLD_OR_NOT)
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            with reading(asked.address(broker)):
                found |= set(parse_group_list(answer.body))
    return sorted(found)


async def offset_of(
    asked: AskedBrokers, broker: str, group: str, topic: str, queue_id: int
) -> int | None:
    """The offset of a group in a queue, None without one or where nobody says it."""
    ext = QueryConsumerOffsetHeader(group, topic, queue_id).to_ext()
    code = RequestCode.QUERY_CONSUMER_OFFSET
    answer = await asked.call(broker, code, ext, accept=_FOUND_OR_NOT)
    if answer is None or answer.code != ResponseCode.SUCCESS:
        return None
    with reading(asked.address(broker)):
        return OffsetResponse.from_ext(answer.ext).offset


# --- what our brokers say in one answer -----------------------------------------------------------


async def places_of(asked: AskedBrokers, message: ReceivedMessage) -> MessageState:
    """How far the groups that consume a message's topic at its broker are."""
    broker, topic = message.queue.broker_name, message.queue.topic
    code = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
    answer = await asked.call(broker, code, TopicHeader(topic).to_ext())
    groups: list[str] = []
    if answer is not None:
        with reading(asked.address(broker)):
            groups = sorted(parse_group_list(answer.body))
    limits = await _limits(asked, broker)
    waiting = await _waiting(asked, message)

    async def place(group: str) -> GroupPlace:
        offset = await offset_of(asked, broker, group, topic, message.queue.queue_id)
        committed = _NO_OFFSET if offset is None else offset
        expression, kind, model = await subscription_of(asked, broker, group, topic)
        return GroupPlace(
            group=group,
            committed=committed,
            begin=max(committed, 0),
            given_out=max(committed, 0),
            online=model is not None,
            keeps_own_offsets=model == BROADCASTING,
            retry_limit=limits.get(group, -1),
            subscription=expression,
            takes=_takes(topic, expression, kind, message),
            waiting=tuple(waiting.get(group, ())),
        )

    found = tuple(await each(place, groups))
    return MessageState(topic, message.queue.queue_id, message.queue_offset, found)


async def _limits(asked: AskedBrokers, broker: str) -> dict[str, int]:
    code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
    answer = await asked.call(broker, code, accept=TOLD_OR_NOT)
    if answer is None or answer.code != ResponseCode.SUCCESS:
        return {}
    with reading(asked.address(broker)):
        return parse_retry_limits(answer.body)


async def subscription_of(
    asked: AskedBrokers, broker: str, group: str, topic: str
) -> tuple[str | None, str, str | None]:
    """(expression, its type, message model) of a group; None where no member is online."""
    code, ext = RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerListHeader(group).to_ext()
    answer = await asked.call(broker, code, ext, accept=_ONLINE_OR_NOT)
    if answer is None or answer.code != ResponseCode.SUCCESS:
        return None, TAG_TYPE, None
    with reading(asked.address(broker)):
        members = parse_body(answer.body, "connection list", _MOST_VALUES)
        model = text_member(members, "messageModel", "")
        stated: Any = object_member(members, "subscriptionTable").get(topic)
        if stated is None:
            return None, TAG_TYPE, model
        one = as_object(stated, "subscription")
        return text_member(one, "subString", ""), _type_of(one), model


def _type_of(subscription: Mapping[str, Any]) -> str:
    """Clients before 4.1 state none, and filter by tags."""
    return text_member(subscription, "expressionType", "") or TAG_TYPE


def _takes(topic: str, expression: str | None, kind: str, message: ReceivedMessage) -> bool | None:
    if expression is None or kind != TAG_TYPE:
        return None
    try:
        subscription = parse_tag_expression(topic, expression)
    except BadRequest:
        return None
    return not subscription.codes or message.tags in subscription.tags


async def _waiting(asked: AskedBrokers, message: ReceivedMessage) -> dict[str, list[WaitingTry]]:
    """The tries of a message that wait at its broker, by group."""
    unique_id, broker = message.properties.get(PROPERTY_UNIQUE_KEY), message.queue.broker_name
    if unique_id is None:
        return {}
    found: dict[str, list[WaitingTry]] = {}
    copies = await query_unique(asked, SCHEDULE_TOPIC, unique_id, [broker])
    levels = await levels_of(asked, broker) if copies else []
    now_ms = time.time_ns() // 1_000_000
    for copy in copies:
        topic, _ = real_queue(copy.properties)
        # The queue of a level is the one before its number.
        known = topic.startswith(RETRY_PREFIX) and copy.queue.queue_id < len(levels)
        due_ms = copy.store_timestamp_ms + levels[copy.queue.queue_id] if known else 0
        if due_ms > now_ms:
            tries = found.setdefault(topic.removeprefix(RETRY_PREFIX), [])
            tries.append(WaitingTry(copy.reconsume_times, due_ms))
    return found


async def levels_of(asked: AskedBrokers, broker: str) -> list[int]:
    """The broker's delay levels in milliseconds, empty where it does not say them."""
    answer = await asked.call(broker, RequestCode.GET_BROKER_CONFIG, accept=TOLD_OR_NOT)
    lines = b"" if answer is None else answer.body
    for line in lines.decode("utf-8", "replace").splitlines():
        name, _, value = line.partition("=")
        if name == "messageDelayLevel":
            return delays_of(value)
    return []


def delays_of(text: str) -> list[int]:
    """The delays of levels such as `1s 5s 10s` in milliseconds; empty for another text."""
    parts = [(number_of(part[:-1]), _UNIT_MS.get(part[-1])) for part in text.split()]
    delays = [count * unit for count, unit in parts if count is not None and unit is not None]
    return delays if len(delays) == len(parts) else []
