"""Bodies that clients send about themselves: heartbeats, filter checks, queue locks
(protocol/WIRE.md 4.2 to 4.4).

Enums come by name, and from C++ as positions; both become names here. The hashes that a heartbeat
brings are not believed: they are derived from the tags, and the tags from the expression when the
client did not send them (protocol/WIRE.md 8). Lists are bounded by LIMIT: one client of 1,000
groups is a mistake or an attack.
"""

from collections.abc import Generator, Iterable, Mapping
from typing import Any

import msgspec

from aerobee.protocol.bodies.common import (
    MessageQueue,
    as_object,
    bool_member,
    list_member,
    long_member,
    object_member,
    parse_body,
    text_list,
    text_member,
)
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.filters.property_filter import TAG_TYPE
from aerobee.protocol.filters.subscription import (
    ALL_MESSAGES,
    TAG_SEPARATOR,
    Subscription,
    parse_tag_expression,
    tag_subscription,
)
from aerobee.protocol.frames.fastjson import dumps, dumps_in_steps

# Groups and subscriptions of one client, tags of one subscription.
LIMIT = 1_000
# Queues of one lock request: a group has those of all its topics there.
LIMIT_LOCKS = 20 * LIMIT
# Client ids are `ip@pid#nanos@unit`; this leaves room for long instance names.
MAX_CLIENT_ID_CHARS = 512

CONSUME_ACTIVELY = "CONSUME_ACTIVELY"
CONSUME_PASSIVELY = "CONSUME_PASSIVELY"
BROADCASTING = "BROADCASTING"
CLUSTERING = "CLUSTERING"
FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"

# Positions are the ordinals that C++ sends.
_CONSUME_TYPES = (CONSUME_ACTIVELY, CONSUME_PASSIVELY, "CONSUME_POP")
_MESSAGE_MODELS = (BROADCASTING, CLUSTERING)
_CONSUME_FROM = (
    FROM_LAST_OFFSET,
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    FROM_FIRST_OFFSET,
    FROM_TIMESTAMP,
)


class ConsumerData(msgspec.Struct, frozen=True, gc=False):
    """One consumer group of a client."""

    group: str
    consume_type: str = CONSUME_PASSIVELY
    message_model: str = CLUSTERING
    consume_from_where: str = FROM_LAST_OFFSET
    subscriptions: tuple[Subscription, ...] = ()
    unit_mode: bool = False

    def json_members(self) -> Mapping[str, Any]:
        """Its form in a heartbeat."""
        return {
            "consumeFromWhere": self.consume_from_where,
            "consumeType": self.consume_type,
            "groupName": self.group,
            "messageModel": self.message_model,
            "subscriptionDataSet": [subscription_members(s) for s in self.subscriptions],
            "unitMode": self.unit_mode,
        }


class HeartbeatData(msgspec.Struct, frozen=True, gc=False):
    """A client's description of itself: its id, the groups it produces for and those it consumes
    in."""

    client_id: str
    producer_groups: tuple[str, ...] = ()
    consumers: tuple[ConsumerData, ...] = ()

    @classmethod
    def parse(cls, body: bytes) -> "HeartbeatData":
        """BadRequest (code 1) names what is missing, broken or too much. Names are not checked."""
        members = parse_body(body, "heartbeat")
        return cls(
            _client_id(members, "clientID"),
            tuple(
                text_member(as_object(producer, "producer"), "groupName")
                for producer in list_member(members, "producerDataSet", LIMIT)
            ),
            tuple(map(_consumer, list_member(members, "consumerDataSet", LIMIT))),
        )

    def encode(self) -> bytes:
        """The body of a heartbeat."""
        return dumps(
            {
                "clientID": self.client_id,
                "consumerDataSet": [consumer.json_members() for consumer in self.consumers],
                "producerDataSet": [{"groupName": group} for group in self.producer_groups],
            }
        )


def _client_id(members: Mapping[str, Any], name: str) -> str:
    client_id = text_member(members, name)
    if not client_id or len(client_id) > MAX_CLIENT_ID_CHARS or not client_id.isprintable():
        raise BadRequest.system_error(
            f"the member {name} must be 1 to {MAX_CLIENT_ID_CHARS} printable characters"
        )
    return client_id


def _consumer(value: Any) -> ConsumerData:
    members = as_object(value, "consumer")
    subscriptions = list_member(members, "subscriptionDataSet", LIMIT)
    return ConsumerData(
        text_member(members, "groupName"),
        _enum(members, "consumeType", _CONSUME_TYPES, CONSUME_PASSIVELY),
        _enum(members, "messageModel", _MESSAGE_MODELS, CLUSTERING),
        _enum(members, "consumeFromWhere", _CONSUME_FROM, FROM_LAST_OFFSET),
        tuple(map(parse_subscription, subscriptions)),
        bool_member(members, "unitMode", False),
    )


def _enum(members: Mapping[str, Any], name: str, names: tuple[str, ...], default: str) -> str:
    """A name or its position; what no table lists becomes the default."""
    value = members.get(name)
    if isinstance(value, str) and value in names:
        return value
    if type(value) is int and 0 <= value < len(names):
        return names[value]
    return default


def parse_subscription(value: Any) -> Subscription:
    """One subscription of a heartbeat or filter check; BadRequest names what is wrong with it."""
    members = as_object(value, "subscription")
    topic = text_member(members, "topic")
    expression = text_member(members, "subString", ALL_MESSAGES)
    kind = text_member(members, "expressionType", "") or TAG_TYPE
    version = long_member(members, "subVersion", 0)
    if kind != TAG_TYPE:
        return Subscription(topic, expression, kind, version)
    if bool_member(members, "classFilterMode", False):
        return Subscription(topic, expression, kind, version, class_filter=True)
    tags = text_list(list_member(members, "tagsSet", LIMIT), "tagsSet")
    named = expression.count(TAG_SEPARATOR) + 1
    if named > LIMIT:
        raise BadRequest.system_error(
            f"the expression for topic {topic[:255]} names {named} tags, limit {LIMIT}"
        )
    if tags and expression != ALL_MESSAGES:
        return tag_subscription(topic, expression, tags, version)
    return parse_tag_expression(topic, expression, version)


def subscription_members(subscription: Subscription) -> dict[str, Any]:
    """A subscription as its JSON object (heartbeats, connection lists)."""
    return {
        "classFilterMode": subscription.class_filter,
        "codeSet": [code for code in sorted(subscription.codes) if -(2**31) <= code < 2**31],
        "expressionType": subscription.type,
        "subString": subscription.expression,
        "subVersion": subscription.version,
        "tagsSet": sorted(subscription.tags),
        "topic": subscription.topic,
    }


class CheckClientConfig(msgspec.Struct, frozen=True):
    """The body of CHECK_CLIENT_CONFIG; a body without subscription asks nothing."""

    client_id: str
    group: str
    subscription: Subscription | None

    @classmethod
    def parse(cls, body: bytes) -> "CheckClientConfig":
        """BadRequest (code 1) names what is missing or broken."""
        members = parse_body(body, "client check")
        data = members.get("subscriptionData")
        return cls(
            text_member(members, "clientId", ""),
            text_member(members, "group", ""),
            None
            if data is None
            else parse_subscription(object_member(members, "subscriptionData")),
        )

    def encode(self) -> bytes:
        """The body of such a request."""
        subscription = self.subscription
        members: dict[str, Any] = {"clientId": self.client_id, "group": self.group}
        if subscription is not None:
            members["subscriptionData"] = subscription_members(subscription)
        return dumps(members)


class LockBatch(msgspec.Struct, frozen=True):
    """The body of LOCK_BATCH_MQ and UNLOCK_BATCH_MQ."""

    client_id: str
    group: str
    queues: tuple[MessageQueue, ...]

    @classmethod
    def parse(cls, body: bytes) -> "LockBatch":
        """BadRequest (code 1) names what is missing, broken or too much."""
        members = parse_body(body, "lock request")
        queues = list_member(members, "mqSet", LIMIT_LOCKS)
        return cls(
            _client_id(members, "clientId"),
            text_member(members, "consumerGroup"),
            tuple(map(MessageQueue.from_json, queues)),
        )

    def encode(self) -> bytes:
        """The body of such a request."""
        members = {"clientId": self.client_id, "consumerGroup": self.group, "mqSet": self.queues}
        return dumps(members)


def encode_locked_queues(queues: Iterable[MessageQueue]) -> Generator[None, None, bytes]:
    """The answer to LOCK_BATCH_MQ, in steps: the queues that are held now."""
    return dumps_in_steps({"lockOKMQSet": list(queues)})


def parse_locked_queues(body: bytes) -> list[MessageQueue]:
    """The queues in such an answer."""
    members = parse_body(body, "lock answer")
    return [MessageQueue.from_json(queue) for queue in list_member(members, "lockOKMQSet", 1 << 31)]


def encode_consumer_list(client_ids: Iterable[str]) -> Generator[None, None, bytes]:
    """The answer to GET_CONSUMER_LIST_BY_GROUP, in steps."""
    return dumps_in_steps({"consumerIdList": list(client_ids)})


def parse_consumer_list(body: bytes) -> list[str]:
    """The client ids in such an answer."""
    members = parse_body(body, "consumer list")
    return text_list(list_member(members, "consumerIdList", 1 << 31), "consumerIdList")
