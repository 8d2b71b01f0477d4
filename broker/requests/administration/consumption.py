"""Questions of administrators about traffic: queues of a topic, progress of a group, connected
clients (protocol/WIRE.md 3.6, bodies 4.7 and 4.9).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from aerobee.broker.broker_stats import BrokerStats
from aerobee.broker.routing.router import Handler
from aerobee.broker.tables.clients import GroupMember
from aerobee.broker.tables.tables import Tables
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.bodies.statistics import (
    ConnectionData,
    ConsumeStats,
    GroupProgress,
    QueueOffsets,
    encode_broker_consume_stats,
    encode_consumer_connections,
    encode_group_list,
    encode_group_stats,
    encode_producer_connections,
    encode_topic_stats,
)
from aerobee.protocol.bodies.topics import TopicConfig
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.command import Command, encode_success
from aerobee.protocol.frames.fastjson import dumps, dumps_in_steps
from aerobee.protocol.frames.frame import MAX_ANSWER_BYTES
from aerobee.protocol.headers.admin import (
    BrokerConsumeStatsHeader,
    ConsumeStatsHeader,
    ProducerGroupHeader,
    TopicHeader,
)
from aerobee.protocol.headers.client import ConsumerListHeader
from aerobee.remoting.connections.connection import Connection
from aerobee.remoting.turns import Gate, Steps
from aerobee.store.message_store import MessageStore

# Pairs of group and topic whose last rate is remembered; beyond it all are measured afresh.
_MOST_RATES = 50_000
# The step of a long answer: queues that are looked up in it, some 20 us each, and topics, which may
# have a single queue or none that counts.
_STEP_QUEUES = 16
_STEP_TOPICS = 16
_STEP_MEMBERS = 32


class StatsRequests:
    """Serves administrators. Loop thread only."""

    def __init__(
        self,
        broker_name: str,
        endpoint: str,
        tables: Tables,
        stats: BrokerStats,
        store: MessageStore,
    ) -> None:
        self._broker_name = broker_name
        self._endpoint = endpoint
        self._topics = tables.topics
        self._groups = tables.groups
        self._offsets = tables.offsets
        self._clients = tables.clients
        self._lag = tables.lag
        self._rates = GroupRates(stats)
        self._store = store
        # An answer about all groups may take as much as fits in a frame: one such answer at a time.
        self._large_answers = Gate(1)

    def handlers(self) -> dict[int, Handler]:
        """The handlers by request code."""
        return {
            RequestCode.GET_TOPIC_STATS_INFO: self.topic_stats,
            RequestCode.GET_CONSUME_STATS: self.consume_stats,
            RequestCode.GET_BROKER_CONSUME_STATS: self.broker_consume_stats,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self.groups_of_topic,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.consumer_connections,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self.producer_connections,
            RequestCode.GET_ALL_PRODUCER_INFO: self.all_producers,
        }

    def topic_stats(self, _connection: Connection, command: Command) -> Steps:
        """Offsets and last store time of each write queue."""
        name = TopicHeader.from_ext(command.ext).topic
        topic = self._topics.get(name)
        if topic is None:
            raise BadRequest(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist")
        queues = {}
        for queue_id in range(topic.write_queues):
            if queue_id % _STEP_QUEUES == 0:
                yield None
            least = max(self._store.min_offset(name, queue_id), 0)
            most = max(self._store.max_offset(name, queue_id), 0)
            last_ms = self._time_of(name, queue_id, most - 1) if most else 0
            queue = MessageQueue(name, self._broker_name, queue_id)
            queues[queue] = QueueOffsets(least, most, last_ms)
        body = yield from encode_topic_stats(queues)
        return encode_success(command, body)

    def consume_stats(self, _connection: Connection, command: Command) -> Steps:
        """A group's progress in one topic, or in all that it has offsets in or subscribes to."""
        header = ConsumeStatsHeader.from_ext(command.ext)
        group = header.consumer_group
        names = [header.topic] if header.topic.strip() else self._lag.topics_of(group)
        queues: dict[MessageQueue, GroupProgress] = {}
        tps, waiting = 0.0, 0
        for number, name in enumerate(names):
            if number % _STEP_TOPICS == 0:
                yield None
            # Unknown groups have no progress, and their names must not reach our tables.
            topic = self._consumed(group, name)
            if topic is not None:
                queues.update((yield from self._progress(group, topic)))
                tps += self._rates.messages_a_second(group, topic.name)
                waiting += self._lag.waiting_retries(group, topic.name)
        body = yield from ConsumeStats(queues, tps, waiting).encode()
        return encode_success(command, body)

    def broker_consume_stats(self, connection: Connection, command: Command) -> Steps:
        """The progress of every group in every topic it has offsets in or subscribes to."""
        only_ordered = BrokerConsumeStatsHeader.from_ext(command.ext).is_order
        yield from self._large_answers.enter()
        try:
            return (yield from self._of_all_groups(connection, command, only_ordered))
        finally:
            self._large_answers.leave()

    def _of_all_groups(self, connection: Connection, command: Command, only_ordered: bool) -> Steps:
        parts: list[bytes] = []
        size = lag = 0
        for group in self._groups.all():
            yield None
            topics: list[bytes] = []
            for name in self._lag.topics_of(group.name):
                yield None
                topic = self._consumed(group.name, name)
                if topic is None or (only_ordered and not topic.order):
                    continue
                progress = yield from self._progress(group.name, topic)
                rate = self._rates.messages_a_second(group.name, name)
                waiting = self._lag.waiting_retries(group.name, name)
                stats = ConsumeStats(progress, rate, waiting)
                lag += stats.lag
                topics.append((yield from stats.encode()))
                size += len(topics[-1])
                if size > MAX_ANSWER_BYTES:
                    raise BadRequest.system_error(
                        "the statistics of all groups do not fit into one answer "
                        f"({MAX_ANSWER_BYTES} bytes); ask for them group by group"
                    )
                if connection.closed:
                    return None
            if topics:
                parts.append(encode_group_stats(group.name, topics))
        body = encode_broker_consume_stats(self._endpoint, parts, lag)
        # Before the frame is made: of a large answer there are two copies at a time, not three.
        parts.clear()
        return encode_success(command, body)

    def _consumed(self, group: str, name: str) -> TopicConfig | None:
        """The topic, if the group is judged in it."""
        if not self._lag.concerns(group, name) or not self._lag.queue_count(group, name):
            return None
        return self._topics.get(name)

    def _progress(
        self, group: str, topic: TopicConfig
    ) -> Generator[None, None, dict[MessageQueue, GroupProgress]]:
        progress = {}
        for one in self._lag.queues(group, topic.name):
            queue_id, consumed = one.queue_id, one.committed
            if queue_id % _STEP_QUEUES == _STEP_QUEUES - 1:
                yield None
            last_ms = self._time_of(topic.name, queue_id, consumed - 1) if consumed > 0 else 0
            queue = MessageQueue(topic.name, self._broker_name, queue_id)
            progress[queue] = GroupProgress(one.end, one.position, last_ms)
        return progress

    def _time_of(self, topic: str, queue_id: int, queue_offset: int) -> int:
        return max(self._store.search.store_time(topic, queue_id, queue_offset), 0)

    def groups_of_topic(self, _connection: Connection, command: Command) -> Steps:
        """The groups that subscribe to a topic now or have offsets in it."""
        topic = TopicHeader.from_ext(command.ext).topic
        groups = {*self._clients.groups_subscribed(topic), *self._offsets.groups_of(topic)}
        body = yield from encode_group_list(sorted(groups))
        return encode_success(command, body)

    def consumer_connections(self, _connection: Connection, command: Command) -> Steps:
        """The live members of a consumer group and what it subscribes to."""
        name = ConsumerListHeader.from_ext(command.ext).consumer_group
        group = self._clients.consumer_group(name)
        if group is None:
            raise BadRequest(
                ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online"
            )
        connections = yield from _connection_data(list(group.members.values()))
        body = yield from encode_consumer_connections(
            connections,
            group.consume_type,
            group.message_model,
            group.consume_from_where,
            group.subscriptions.values(),
        )
        return encode_success(command, body)

    def producer_connections(self, _connection: Connection, command: Command) -> Steps:
        """The live members of a producer group."""
        name = ProducerGroupHeader.from_ext(command.ext).producer_group
        members = self._clients.producers(name)
        if not members:
            raise BadRequest.system_error(f"the producer group[{name}] not exist")
        connections = yield from _connection_data(members)
        body = yield from encode_producer_connections(connections)
        return encode_success(command, body)

    def all_producers(self, _connection: Connection, command: Command) -> Steps:
        """All live producers by group; the address has Java's leading slash."""
        now_ms = time.time_ns() // 1_000_000
        parts: list[bytes] = []
        size = 0
        for name in sorted(self._clients.producer_group_names()):
            members: list[dict[str, Any]] = []
            for number, member in enumerate(self._clients.producers(name)):
                if number % _STEP_MEMBERS == 0:
                    yield None
                members.append(
                    {
                        "clientId": member.client_id,
                        "language": member.language,
                        "lastUpdateTimestamp": now_ms - self._clients.silent_ms(member),
                        "remoteIP": f"/{member.address}",
                        "version": member.version,
                    }
                )
            if not members:
                continue  # they have left meanwhile
            parts.append(b"%b:%b" % (dumps(name), (yield from dumps_in_steps(members))))
            size += len(parts[-1])
            if size > MAX_ANSWER_BYTES:
                raise BadRequest.system_error(
                    f"the list of all producers does not fit into one answer ({MAX_ANSWER_BYTES} "
                    "bytes); ask for them group by group"
                )
        return encode_success(command, b'{"data":{%b}}' % b",".join(parts))


class _Measurement(NamedTuple):
    """One answer about a group in a topic: when, how many messages so far, and their rate."""

    at: float
    messages: int
    rate: float


class GroupRates:
    """Messages a second that a group takes from a topic, between one request for it and the next.

    The first one is measured from the broker's start. A request within a second of the last gets
    its answer again, so that several tools asking at once do not see noise.
    """

    def __init__(self, stats: BrokerStats, clock: Callable[[], float] = time.monotonic) -> None:
        self._stats = stats
        self._clock = clock
        self._started = clock()
        self._last: dict[tuple[str, str], _Measurement] = {}

    def messages_a_second(self, group: str, topic: str) -> float:
        """0.0 for a group that took nothing yet."""
        count = self._stats.messages_out(group, topic)
        last = self._last.get((group, topic))
        if not count and last is None:
            # Nothing is remembered of what may be any topic that a group subscribes to.
            return 0.0
        now = self._clock()
        last = last or _Measurement(self._started, 0, 0.0)
        passed_s = now - last.at
        if passed_s >= 1.0:
            # A count below the last one means the counters were dropped with the group.
            rate = round(max(count - last.messages, 0) / passed_s, 4)
            if len(self._last) >= _MOST_RATES:
                self._last.clear()
            last = self._last[group, topic] = _Measurement(now, count, rate)
        return last.rate


def _connection_data(members: list[GroupMember]) -> Generator[None, None, list[ConnectionData]]:
    found: list[ConnectionData] = []
    for number, one in enumerate(members):
        if number % _STEP_MEMBERS == 0:
            yield None
        found.append(ConnectionData(one.client_id, one.address, one.language, one.version))
    return found
