"""Bodies of statistics and connection lists (protocol/WIRE.md 4.7, 4.9), written by the broker and
read by the command line.

Queues are map keys written as real objects: clients up to 4.7.0 read no other form.
"""

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from aerobee.protocol.bodies.clients import subscription_members
from aerobee.protocol.bodies.common import (
    MessageQueue,
    as_object,
    int_member,
    list_member,
    long_member,
    object_member,
    parse_body,
    text_list,
    text_member,
)
from aerobee.protocol.filters.subscription import Subscription
from aerobee.protocol.frames.fastjson import dumps, dumps_in_steps

_MAX_VALUES = 2_000_000
_NO_LIMIT = 1 << 31


class QueueOffsets(msgspec.Struct, frozen=True):
    """Range of one queue; `last_update_ms` is the store time of its last message, 0 without one."""

    min_offset: int
    max_offset: int
    last_update_ms: int

    def json_members(self) -> Mapping[str, Any]:
        """Its form in topic statistics."""
        return {
            "lastUpdateTimestamp": self.last_update_ms,
            "maxOffset": self.max_offset,
            "minOffset": self.min_offset,
        }


def encode_topic_stats(queues: Mapping[MessageQueue, QueueOffsets]) -> Generator[None, None, bytes]:
    """The answer to GET_TOPIC_STATS_INFO, made in steps."""
    return dumps_in_steps({"offsetTable": queues})


def parse_topic_stats(body: bytes) -> dict[MessageQueue, QueueOffsets]:
    """BadRequest (code 1) when the body has another form."""
    table = object_member(parse_body(body, "topic statistics", _MAX_VALUES), "offsetTable")
    stats = {}
    for key, value in table.items():
        members = as_object(value, "topic statistics entry")
        stats[MessageQueue.from_key(key)] = QueueOffsets(
            long_member(members, "minOffset", 0),
            long_member(members, "maxOffset", 0),
            long_member(members, "lastUpdateTimestamp", 0),
        )
    return stats


class GroupProgress(msgspec.Struct, frozen=True):
    """How far a group is in one queue; `last_consumed_ms` is that message's store time, or 0.

    The broker says as `consumer_offset` where its judgement begins (`broker/tables/lag.py`): the
    difference of the two is the lag for whoever reads them.
    """

    broker_offset: int
    consumer_offset: int
    last_consumed_ms: int

    @property
    def lag(self) -> int:
        """Messages not consumed yet; none where the group stands beyond the end of the queue."""
        return max(self.broker_offset - self.consumer_offset, 0)

    def json_members(self) -> Mapping[str, Any]:
        """Its form in consume statistics."""
        return {
            "brokerOffset": self.broker_offset,
            "consumerOffset": self.consumer_offset,
            "lastTimestamp": self.last_consumed_ms,
        }


class ConsumeStats(msgspec.Struct, frozen=True):
    """A group's progress by queue and the messages a second it gets.

    `waiting_retries`: messages of its retry topic that wait for their next try, and are in none of
    the queues. RocketMQ does not tell them, and its tools read over them.
    """

    queues: dict[MessageQueue, GroupProgress]
    tps: float = 0.0
    waiting_retries: int = 0

    def json_members(self) -> Mapping[str, Any]:
        """Its form alone and in broker consume statistics."""
        members = {"consumeTps": float(self.tps), "offsetTable": self.queues}
        if self.waiting_retries:
            members["waitingRetries"] = self.waiting_retries
        return members

    @property
    def lag(self) -> int:
        """Messages not consumed yet: in all queues, and those that wait for their next try."""
        return sum([progress.lag for progress in self.queues.values()]) + self.waiting_retries

    def encode(self) -> Generator[None, None, bytes]:
        """The answer to GET_CONSUME_STATS, made in steps."""
        return dumps_in_steps(self)

    @classmethod
    def parse(cls, body: bytes) -> "ConsumeStats":
        """BadRequest (code 1) when the body has another form."""
        members = parse_body(body, "consume statistics", _MAX_VALUES)
        table = object_member(members, "offsetTable")
        queues = {}
        for key, value in table.items():
            entry = as_object(value, "consume statistics entry")
            queues[MessageQueue.from_key(key)] = GroupProgress(
                long_member(entry, "brokerOffset", 0),
                long_member(entry, "consumerOffset", 0),
                long_member(entry, "lastTimestamp", 0),
            )
        tps = members.get("consumeTps")
        return cls(
            queues,
            float(tps) if isinstance(tps, int | float) else 0.0,
            max(long_member(members, "waitingRetries", 0), 0),
        )


def encode_group_stats(group: str, topics: Sequence[bytes]) -> bytes:
    """A group's part of broker consume statistics: one encoded `ConsumeStats` for each topic."""
    return b"{%b:[%b]}" % (dumps(group), b",".join(topics))


def encode_broker_consume_stats(broker_address: str, groups: Iterable[bytes], lag: int) -> bytes:
    """The answer to GET_BROKER_CONSUME_STATS, of the groups' parts."""
    # One join makes all of it: it may be tens of megabytes, which formatting would copy again.
    parts = [*groups] or [b""]
    parts[0] = b'{"brokerAddr":%b,"consumeStatsList":[%b' % (dumps(broker_address), parts[0])
    parts[-1] = b'%b],"totalDiff":%d}' % (parts[-1], lag)
    return b",".join(parts)


class ConnectionData(msgspec.Struct, frozen=True):
    """One client of a group; language and version are those of its heartbeat."""

    client_id: str
    address: str
    language: str
    version: int

    def json_members(self) -> Mapping[str, Any]:
        """Its form in connection lists."""
        return {
            "clientAddr": self.address,
            "clientId": self.client_id,
            "language": self.language,
            "version": self.version,
        }

    @classmethod
    def from_json(cls, value: Any) -> "ConnectionData":
        """BadRequest (code 1) when a member is of the wrong kind."""
        members = as_object(value, "connection")
        return cls(
            text_member(members, "clientId", ""),
            text_member(members, "clientAddr", ""),
            text_member(members, "language", ""),
            int_member(members, "version", 0),
        )


def encode_producer_connections(
    connections: Sequence[ConnectionData],
) -> Generator[None, None, bytes]:
    """The answer to GET_PRODUCER_CONNECTION_LIST, made in steps."""
    return dumps_in_steps({"connectionSet": list(connections)})


def encode_consumer_connections(
    connections: Sequence[ConnectionData],
    consume_type: str,
    message_model: str,
    consume_from_where: str,
    subscriptions: Iterable[Subscription],
) -> Generator[None, None, bytes]:
    """The answer to GET_CONSUMER_CONNECTION_LIST, made in steps."""
    return dumps_in_steps(
        {
            "connectionSet": list(connections),
            "consumeFromWhere": consume_from_where,
            "consumeType": consume_type,
            "messageModel": message_model,
            "subscriptionTable": {
                subscription.topic: subscription_members(subscription)
                for subscription in subscriptions
            },
        }
    )


def parse_connections(body: bytes) -> list[ConnectionData]:
    """The connections of either answer; BadRequest (code 1) when the body has another form."""
    members = parse_body(body, "connection list", _MAX_VALUES)
    return [
        ConnectionData.from_json(value)
        for value in list_member(members, "connectionSet", _NO_LIMIT)
    ]


class GroupState(msgspec.Struct, frozen=True):
    """The members of a live consumer group, and what it subscribes to: expressions by topic."""

    connections: list[ConnectionData]
    consume_type: str
    message_model: str
    subscriptions: dict[str, str]

    @classmethod
    def parse(cls, body: bytes) -> "GroupState":
        """Read the answer to GET_CONSUMER_CONNECTION_LIST; BadRequest (code 1) when the body has
        another form."""
        members = parse_body(body, "connection list", _MAX_VALUES)
        table = object_member(members, "subscriptionTable")
        return cls(
            parse_connections(body),
            text_member(members, "consumeType", ""),
            text_member(members, "messageModel", ""),
            {
                topic: text_member(as_object(value, "subscription"), "subString", "")
                for topic, value in table.items()
            },
        )


def parse_group_list(body: bytes) -> list[str]:
    """The groups of the answer to QUERY_TOPIC_CONSUME_BY_WHO; BadRequest (code 1) when the body has
    another form."""
    members = parse_body(body, "group list", _MAX_VALUES)
    return text_list(list_member(members, "groupList", _NO_LIMIT), "groupList")


def parse_group_names(body: bytes) -> list[str]:
    """The groups of the answer to GET_ALL_SUBSCRIPTIONGROUP_CONFIG; BadRequest (code 1) when the
    body has another form."""
    members = parse_body(body, "group table", _MAX_VALUES)
    return list(object_member(members, "subscriptionGroupTable"))


def parse_retry_limits(body: bytes) -> dict[str, int]:
    """How often the broker delivers a group's messages again (retryMaxTimes), of the groups of that
    answer; BadRequest (code 1) when the body has another form."""
    table = object_member(parse_body(body, "group table", _MAX_VALUES), "subscriptionGroupTable")
    return {
        name: int_member(as_object(group, "group"), "retryMaxTimes", 16)
        for name, group in table.items()
    }


def encode_group_list(groups: Iterable[str]) -> Generator[None, None, bytes]:
    """The answer to QUERY_TOPIC_CONSUME_BY_WHO, made in steps."""
    return dumps_in_steps({"groupList": list(groups)})


class StatsWindow(msgspec.Struct, frozen=True):
    """The events of a window: their sum, the sum a second, and the average of an event."""

    total: int
    a_second: float
    each_time: float

    def to_json(self) -> dict[str, float]:
        """The form that the wire has."""
        return {"avgpt": self.each_time, "sum": self.total, "tps": self.a_second}


def encode_stats_data(minute: StatsWindow, hour: StatsWindow, day: StatsWindow) -> bytes:
    """The answer to VIEW_BROKER_STATS_DATA."""
    return dumps(
        {"statsDay": day.to_json(), "statsHour": hour.to_json(), "statsMinute": minute.to_json()}
    )
