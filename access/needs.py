"""The one table from request codes to the rights that they need, for brokers and name servers.

A code that is not in the broker's table is refused to everybody, so a new handler without a row
stands out at once (tests/unit/access/test_needs.py). The rows are the reference's
(protocol/WIRE.md 7.1) and go further where it forgets a right; docs/security.md lists where.

A need names a topic or a group as the request will reach it: batches and replies by their own
topic, a message also by the queues that it lists (multi-dispatch), a message to a retry topic by
the group whose topic that is, a request with a log offset by the topic of the message found there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, Generic, TypeAlias, TypeVar

from aerobee.access.accounts import GROUP, TOPIC, Need
from aerobee.access.rights import ANY, PUB, SUB
from aerobee.protocol.bodies.clients import CheckClientConfig, HeartbeatData, LockBatch
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.frames.command import Command
from aerobee.protocol.headers.fields import parse_int
from aerobee.protocol.headers.send import is_batch_mark
from aerobee.protocol.headers.stages import chunk_runs
from aerobee.protocol.message.batch import batch_items
from aerobee.protocol.message.properties import (
    PROPERTY_MULTI_DISPATCH,
    decode_properties,
    split_list,
)
from aerobee.protocol.names import RETRY_PREFIX

#: The topic of the message at a place of the log, None where none is: the one it was sent to, if it
#: waits for its time or its commit.
TopicAt: TypeAlias = Callable[[int], str | None]
_LISTS: Final = PROPERTY_MULTI_DISPATCH.encode()

#: Yields the needs of a request, and None where a turn of the loop may end. Raises BadRequest for a
#: body that cannot be read.
Needs: TypeAlias = Callable[[Command, TopicAt], Iterator[Need | None]]
# Messages and runs of a body that are looked at between two such places, some microseconds each.
_STEP: Final = 64


T = TypeVar("T")


class InBody(Generic[T]):
    """Needs that stand in a body of JSON. They are `Needs`, and read the body at once; whoever has
    a loop to keep free has it read elsewhere with `parse`, and asks `of` what it needs."""

    __slots__ = ("of", "parse")

    def __init__(
        self, parse: Callable[[bytes], T], of: Callable[[T], Iterator[Need | None]]
    ) -> None:
        self.parse = parse
        self.of = of

    def __call__(self, command: Command, _topic_at: TopicAt) -> Iterator[Need | None]:
        yield from self.of(self.parse(command.body))


def nothing(_command: Command, _topic_at: TopicAt) -> Iterator[Need]:
    """An account is enough: nothing of a topic or a group is told or changed."""
    return iter(())


def administrator(_command: Command, _topic_at: TopicAt) -> Iterator[Need]:
    """Never asked: `AccessControl` knows it by identity. An administrator's alone."""
    raise AssertionError("an administrator's request has no needs of its own")


def _of_fields(**rights: int) -> Needs:
    """Rights on what the fields name: `topic=SUB`, `consumerGroup=SUB`."""

    def needs(command: Command, _topic_at: TopicAt) -> Iterator[Need]:
        for field, right in rights.items():
            name = command.ext.get(field, "")
            is_group = "group" in field.lower()
            yield Need(GROUP, name, right) if is_group else of_topic(name, right)

    return needs


def _if_there(needs: Needs) -> Needs:
    """Make needs that hold only for fields that are given."""

    def some(command: Command, topic_at: TopicAt) -> Iterator[Need | None]:
        return (need for need in needs(command, topic_at) if need is None or need.name)

    return some


def _send(field: str, properties: str) -> Needs:
    """PUB on the topic, and on each queue that the messages' properties list besides."""

    def needs(command: Command, _topic_at: TopicAt) -> Iterator[Need | None]:
        yield of_topic(command.ext.get(field, ""), PUB)
        yield from _listed(command.ext.get(properties, ""))
        if _LISTS in command.body and _is_batch(command):
            yield from _listed_in_batch(command.body)

    return needs


def _is_batch(command: Command) -> bool:
    """Whether a send is taken as a batch: its mark says so, whatever its code is."""
    marks = (command.ext.get(name, "") for name in ("batch", "m"))
    return command.code == RequestCode.SEND_BATCH_MESSAGE or any(map(is_batch_mark, marks))


def _listed(properties: str) -> Iterator[Need]:
    if PROPERTY_MULTI_DISPATCH in properties:
        names = decode_properties(properties).get(PROPERTY_MULTI_DISPATCH, "")
        yield from (of_topic(name, PUB) for name in split_list(names))


def _listed_in_batch(body: bytes) -> Iterator[Need | None]:
    for number, item in enumerate(batch_items(body), 1):
        yield from _listed(item.properties.decode())
        if number % _STEP == 0:
            yield None


def of_topic(topic: str, right: int) -> Need:
    """A right on a topic. An account with SUB on a group has all rights on the group's retry
    topic: a consumer reads it and sends to it."""
    if topic.startswith(RETRY_PREFIX):
        return Need(GROUP, topic[len(RETRY_PREFIX) :], SUB)
    return Need(TOPIC, topic, right)


def _of_found(field: str, right: int) -> Needs:
    """A right on the topic of the message that a field points to."""

    def needs(command: Command, topic_at: TopicAt) -> Iterator[Need]:
        topic = _found(command, field, topic_at)
        if topic is not None:
            yield of_topic(topic, right)

    return needs


def _all_of(*several: Needs) -> Needs:
    def needs(command: Command, topic_at: TopicAt) -> Iterator[Need | None]:
        for each in several:
            yield from each(command, topic_at)

    return needs


def _found(command: Command, field: str, topic_at: TopicAt) -> str | None:
    """The topic of the message that a field points to; without one the handler says what lacks."""
    text = command.ext.get(field)
    return topic_at(parse_int(field, text, 64)) if text else None


def _heartbeat(data: HeartbeatData) -> Iterator[Need | None]:
    for consumer in data.consumers:
        yield None
        yield Need(GROUP, consumer.group, SUB)
        for number, subscription in enumerate(consumer.subscriptions, 1):
            if number % _STEP == 0:
                yield None
            yield of_topic(subscription.topic, SUB)


def _check_client(asked: CheckClientConfig) -> Iterator[Need]:
    yield Need(GROUP, asked.group, SUB)
    if asked.subscription is not None:
        yield of_topic(asked.subscription.topic, SUB)


def _lock(batch: LockBatch) -> Iterator[Need]:
    yield Need(GROUP, batch.group, SUB)


def _chunk(command: Command, _topic_at: TopicAt) -> Iterator[Need | None]:
    lists = _LISTS in command.body
    seen: set[str] = set()
    for number, run in enumerate(chunk_runs(command.body), 1):
        if number % _STEP == 0:
            yield None
        if run.topic not in seen:
            seen.add(run.topic)
            yield of_topic(run.topic, PUB)
        if lists:
            yield from _listed_in_batch(run.body)


_TOPIC = _of_fields(topic=SUB)
_TOPIC_ANY = _of_fields(topic=ANY)
_GROUP = _of_fields(consumerGroup=SUB)
_PULL = _of_fields(topic=SUB, consumerGroup=SUB)
_PROGRESS = _all_of(_GROUP, _if_there(_of_fields(topic=SUB)))
_OF_BOTH = _of_fields(topic=SUB, group=SUB)

BROKER_NEEDS: Final[Mapping[int, Needs]] = {
    RequestCode.SEND_MESSAGE: _send("topic", "properties"),
    RequestCode.SEND_MESSAGE_V2: _send("b", "i"),
    RequestCode.SEND_BATCH_MESSAGE: _send("b", "i"),
    RequestCode.SEND_REPLY_MESSAGE: _send("topic", "properties"),
    RequestCode.SEND_REPLY_MESSAGE_V2: _send("b", "i"),
    RequestCode.RECALL_MESSAGE: _send("topic", "properties"),
    RequestCode.STAGE_CHUNK: _chunk,
    # broker/staging/stage_requests.py, which knows whose stages these name, asks for their further
    # needs: PUB on some topic, and on each of the stages' topics.
    RequestCode.STAGE_INTENT: nothing,
    RequestCode.STAGE_STATUS: nothing,
    RequestCode.STAGE_ABORT: nothing,
    RequestCode.STAGE_CAPABILITY: nothing,
    RequestCode.END_TRANSACTION: _of_found("commitLogOffset", PUB),
    RequestCode.CONSUMER_SEND_MSG_BACK: _all_of(_of_fields(group=SUB), _of_found("offset", SUB)),
    RequestCode.PULL_MESSAGE: _PULL,
    RequestCode.LITE_PULL_MESSAGE: _PULL,
    RequestCode.QUERY_MESSAGE: _TOPIC,
    RequestCode.VIEW_MESSAGE_BY_ID: _of_found("offset", SUB),
    RequestCode.QUERY_CONSUME_QUEUE: _TOPIC,
    RequestCode.HEART_BEAT: InBody(HeartbeatData.parse, _heartbeat),
    RequestCode.CHECK_CLIENT_CONFIG: InBody(CheckClientConfig.parse, _check_client),
    RequestCode.UNREGISTER_CLIENT: _if_there(_GROUP),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _GROUP,
    RequestCode.QUERY_CONSUMER_OFFSET: _PROGRESS,
    RequestCode.UPDATE_CONSUMER_OFFSET: _PULL,
    RequestCode.LOCK_BATCH_MQ: InBody(LockBatch.parse, _lock),
    RequestCode.UNLOCK_BATCH_MQ: InBody(LockBatch.parse, _lock),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _TOPIC_ANY,
    RequestCode.GET_MAX_OFFSET: _TOPIC_ANY,
    RequestCode.GET_MIN_OFFSET: _TOPIC_ANY,
    RequestCode.GET_EARLIEST_MSG_STORETIME: _TOPIC_ANY,
    RequestCode.GET_TOPIC_STATS_INFO: _TOPIC_ANY,
    RequestCode.GET_TOPIC_CONFIG: _TOPIC_ANY,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: _of_fields(group=SUB),
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: _TOPIC_ANY,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: _GROUP,
    RequestCode.GET_CONSUME_STATS: _PROGRESS,
    RequestCode.GROUP_LAG: _PROGRESS,
    RequestCode.GET_CONSUMER_RUNNING_INFO: _GROUP,
    RequestCode.QUERY_CONSUME_TIME_SPAN: _OF_BOTH,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _OF_BOTH,
    RequestCode.GET_BROKER_RUNTIME_INFO: nothing,
    RequestCode.GET_BROKER_HA_STATUS: nothing,
    RequestCode.VIEW_BROKER_STATS_DATA: nothing,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: nothing,
    **dict.fromkeys(
        (
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            RequestCode.DELETE_TOPIC_IN_BROKER,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            RequestCode.DELETE_SUBSCRIPTIONGROUP,
            RequestCode.UPDATE_BROKER_CONFIG,
            RequestCode.GET_BROKER_CONFIG,
            RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
            RequestCode.DELETE_ACL_CONFIG,
            RequestCode.GET_BROKER_CLUSTER_ACL_INFO,
            RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
            # A slave's requests: it has an administrator's account.
            RequestCode.GET_ALL_TOPIC_CONFIG,
            RequestCode.GET_ALL_CONSUMER_OFFSET,
            RequestCode.GET_ALL_DELAY_OFFSET,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            RequestCode.LOG_RANGES,
            RequestCode.REPLICA_TABLES,
            # These change offsets, files or what consumers get, or tell of everybody's clients.
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            RequestCode.QUERY_CORRECTION_OFFSET,
            RequestCode.CLONE_GROUP_OFFSET,
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
            RequestCode.CLEAN_UNUSED_TOPIC,
            RequestCode.DELETE_EXPIRED_COMMITLOG,
            RequestCode.RESUME_CHECK_HALF_MESSAGE,
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
            RequestCode.GET_BROKER_CONSUME_STATS,
            RequestCode.GET_PRODUCER_CONNECTION_LIST,
            RequestCode.GET_ALL_PRODUCER_INFO,
            # Tells of messages that nobody may see yet, and looks at very many.
            RequestCode.WAITING_MESSAGES,
            # Sends producers elsewhere.
            RequestCode.DRAIN,
            RequestCode.DRAIN_STATUS,
            # Tells of all groups of a topic.
            RequestCode.MESSAGE_STATE,
            # Tells who has changed what.
            RequestCode.AUDIT_EVENTS,
            RequestCode.BROKER_STATUS,
            RequestCode.CLIENTS,
        ),
        administrator,
    ),
}

#: Requests that change the tables of a name server, and that for what was changed; everything else
#: there is open to all.
NAME_SERVER_NEEDS: Final[Mapping[int, Needs]] = dict.fromkeys(
    (
        RequestCode.REGISTER_BROKER,
        RequestCode.UNREGISTER_BROKER,
        RequestCode.PUT_KV_CONFIG,
        RequestCode.DELETE_KV_CONFIG,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        RequestCode.ADD_WRITE_PERM_OF_BROKER,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        RequestCode.REGISTER_TOPIC_IN_NAMESRV,
        RequestCode.UPDATE_NAMESRV_CONFIG,
        RequestCode.AUDIT_EVENTS,
    ),
    administrator,
)
