"""A scripted cluster over real sockets: a name server and brokers that keep all in memory.

By itself it plays the plain case; a test scripts the rest through `answers`, by request code.
Nothing here knows the client's code, only the protocol.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import pytest

from aerobee.nameserver.bodies import cluster_body, route_body
from aerobee.nameserver.routes import BrokerGroup, QueueData
from aerobee.protocol.bodies.clients import (
    HeartbeatData,
    LockBatch,
    encode_consumer_list,
    encode_locked_queues,
)
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.bodies.routes import BrokerRoute, QueueRoute, TopicRoute
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.filters.subscription import tag_codes
from aerobee.protocol.frames.command import Command, encode_response, make_request
from aerobee.protocol.headers.client import PullMessageHeader
from aerobee.protocol.headers.send import SendMessageHeader
from aerobee.protocol.message.batch import decode_batch
from aerobee.protocol.message.properties import decode_properties
from aerobee.protocol.message.record import StoreMessage, encode_record
from aerobee.protocol.message.record_layout import pack_host
from aerobee.remoting.connections.connection import Connection
from aerobee.remoting.listening.server import RemotingServer
from tests.inline_loop import drive

Answer = Callable[[Connection, Command], bytes | None]


def encode_message(
    topic: str,
    queue_id: int,
    offset: int,
    body: bytes,
    properties: str = "",
    sys_flag: int = 0,
    reconsume_times: int = 0,
) -> bytes:
    """A stored record as a pull brings it."""
    host = pack_host("127.0.0.1", 10911)
    message = StoreMessage(
        topic, queue_id, 0, sys_flag, 1, host, host, reconsume_times, 0, body, properties.encode()
    )
    return encode_record(message, offset, 1_000_000 * queue_id + offset, 2)


class Peer:
    """A server that records requests and answers by code."""

    def __init__(self) -> None:
        self.requests: list[Command] = []
        self.answers: dict[int, Answer] = {}
        self.connections: list[Connection] = []
        self.server = RemotingServer(self)
        self.address = ""

    async def start(self, port: int = 0) -> None:
        self.server = RemotingServer(self)
        port = await self.server.start("127.0.0.1", port)
        self.address = f"127.0.0.1:{port}"

    async def stop(self) -> None:
        await self.server.close()

    def of(self, code: int) -> list[Command]:
        return [command for command in self.requests if command.code == code]

    def connection_opened(self, connection: Connection) -> None:
        self.connections.append(connection)

    def commands_received(self, connection: Connection, commands: Iterable[Command]) -> None:
        for command in commands:
            self.requests.append(command)
            answer = self.answers.get(command.code, self.answer)
            frame = answer(connection, command)
            if frame is not None and not command.is_oneway:
                connection.write(frame)

    def connection_closed(self, connection: Connection, reason: str) -> None:
        self.connections.remove(connection)

    def answer(self, connection: Connection, command: Command) -> bytes | None:
        return encode_response(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "unknown")


def _group(broker: BrokerRoute) -> BrokerGroup:
    return BrokerGroup(broker.name, broker.cluster, broker.addresses)


class FakeNameServer(Peer):
    """Knows the routes it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.routes: dict[str, TopicRoute] = {}

    def answer(self, connection: Connection, command: Command) -> bytes | None:
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            route = self.routes.get(command.ext["topic"])
            if route is None:
                return encode_response(command, ResponseCode.TOPIC_NOT_EXIST, "No topic route")
            queues = {
                queue.broker_name: QueueData(queue.read_queues, queue.write_queues, queue.perm, 0)
                for queue in route.queues
            }
            body = route_body(queues, map(_group, route.brokers), {}, route.order_conf)
            return encode_response(command, 0, body=body)
        if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            groups = {b.name: _group(b) for route in self.routes.values() for b in route.brokers}
            clusters: dict[str, set[str]] = defaultdict(set)
            for group in groups.values():
                clusters[group.cluster].add(group.name)
            return encode_response(command, 0, body=cluster_body(groups, clusters))
        return super().answer(connection, command)


class FakeBroker(Peer):
    """Keeps messages, offsets, members and locks in memory; holds empty pulls until an append."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.records: dict[tuple[str, int], list[tuple[bytes, int]]] = defaultdict(list)
        self.committed: dict[tuple[str, str, int], int] = {}
        self.members: dict[str, dict[str, Connection]] = defaultdict(dict)
        self.locks: dict[MessageQueue, str] = {}
        self.held: list[tuple[Connection, Command]] = []

    def append(self, topic: str, queue_id: int, body: bytes, **fields: Any) -> int:
        """Store a message and answer who waits for it."""
        queue = self.records[topic, queue_id]
        tags = decode_properties(fields.get("properties", "")).get("TAGS", "")
        codes = tag_codes(tags) if tags else None
        record = encode_message(topic, queue_id, len(queue), body, **fields)
        queue.append((record, next(iter(codes)) if codes else 0))
        held, self.held = self.held, []
        for connection, command in held:
            frame = self.pull(connection, command)
            if frame is not None:
                connection.write(frame)
        return len(queue) - 1

    def notify(self, group: str, code: int, body: bytes = b"", **ext: str) -> None:
        """Tell every member of a group something, oneway."""
        for connection in set(self.members[group].values()):
            names = {"consumerGroup": group, "group": group}
            connection.push(make_request(code, names | ext, body, oneway=True))

    def waits_at(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether a pull is held at that offset."""
        wanted = {"topic": topic, "queueId": str(queue_id), "queueOffset": str(offset)}
        return any(wanted.items() <= command.ext.items() for _, command in self.held)

    def answer(self, connection: Connection, command: Command) -> bytes | None:
        handler = getattr(self, f"on_{command.code}", None)
        return handler(connection, command) if handler else super().answer(connection, command)

    def on_34(self, connection: Connection, command: Command) -> bytes:
        heartbeat = HeartbeatData.parse(command.body)
        for consumer in heartbeat.consumers:
            self.members[consumer.group][heartbeat.client_id] = connection
        return encode_response(command, 0)

    def on_35(self, connection: Connection, command: Command) -> bytes:
        self.members[command.ext.get("consumerGroup", "")].pop(command.ext["clientID"], None)
        return encode_response(command, 0)

    def on_38(self, connection: Connection, command: Command) -> bytes:
        members = sorted(self.members[command.ext["consumerGroup"]])
        if not members:
            return encode_response(command, 1, "no consumer for this group")
        return encode_response(command, 0, body=drive(encode_consumer_list(members)))

    def on_310(self, connection: Connection, command: Command) -> bytes:
        header = SendMessageHeader.from_command(command)
        bodies = [command.body]
        if header.batch:
            bodies = [item.body for item in decode_batch(command.body)]
        offsets = [
            self.append(
                header.topic,
                header.queue_id,
                body,
                properties=header.properties,
                sys_flag=header.sys_flag,
            )
            for body in bodies
        ]
        ext = {
            "msgId": ",".join(f"ID{offset}" for offset in offsets),
            "queueId": str(header.queue_id),
            "queueOffset": str(offsets[0]),
        }
        return encode_response(command, 0, ext=ext)

    on_320 = on_310

    def on_11(self, connection: Connection, command: Command) -> bytes | None:
        header = PullMessageHeader.from_ext(command.ext)
        if header.sys_flag & 1:
            key = (header.consumer_group, header.topic, header.queue_id)
            self.committed[key] = header.commit_offset
        return self.pull(connection, command)

    def pull(self, connection: Connection, command: Command) -> bytes | None:
        header = PullMessageHeader.from_ext(command.ext)
        queue = self.records[header.topic, header.queue_id]
        offset, end = header.queue_offset, len(queue)
        found = [record for record, _ in queue[offset : offset + header.max_msg_nums]]
        if not found and offset <= end and header.sys_flag & 2:
            self.held.append((connection, command))
            return None
        code, following = ResponseCode.SUCCESS, offset + len(found)
        if not found:
            code = ResponseCode.PULL_NOT_FOUND if offset == end else ResponseCode.PULL_OFFSET_MOVED
            following = end
        ext = {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(following),
            "minOffset": "0",
            "maxOffset": str(end),
        }
        return encode_response(command, code, ext=ext, body=b"".join(found))

    def on_14(self, connection: Connection, command: Command) -> bytes:
        ext = command.ext
        offset = self.committed.get((ext["consumerGroup"], ext["topic"], int(ext["queueId"])))
        if offset is None:
            return encode_response(command, ResponseCode.QUERY_NOT_FOUND)
        return encode_response(command, 0, ext={"offset": str(offset)})

    def on_15(self, connection: Connection, command: Command) -> bytes:
        ext = command.ext
        key = (ext["consumerGroup"], ext["topic"], int(ext["queueId"]))
        self.committed[key] = int(ext["commitOffset"])
        return encode_response(command, 0)

    def on_29(self, connection: Connection, command: Command) -> bytes:
        return encode_response(command, 0, ext={"offset": command.ext["timestamp"]})

    def on_30(self, connection: Connection, command: Command) -> bytes:
        queue = self.records[command.ext["topic"], int(command.ext["queueId"])]
        return encode_response(command, 0, ext={"offset": str(len(queue))})

    def on_31(self, connection: Connection, command: Command) -> bytes:
        return encode_response(command, 0, ext={"offset": "0"})

    def on_36(self, connection: Connection, command: Command) -> bytes:
        return encode_response(command, 0)

    def on_41(self, connection: Connection, command: Command) -> bytes:
        request = LockBatch.parse(command.body)
        for queue in request.queues:
            self.locks.setdefault(queue, request.client_id)
        held = [queue for queue in request.queues if self.locks[queue] == request.client_id]
        return encode_response(command, 0, body=drive(encode_locked_queues(held)))

    def on_42(self, connection: Connection, command: Command) -> bytes:
        request = LockBatch.parse(command.body)
        for queue in request.queues:
            if self.locks.get(queue) == request.client_id:
                del self.locks[queue]
        return encode_response(command, 0)


class Cluster:
    """One name server and any number of brokers, started and stopped together."""

    def __init__(self) -> None:
        self.name_server = FakeNameServer()
        self.brokers: dict[str, FakeBroker] = {}

    async def add_broker(self, name: str) -> FakeBroker:
        broker = self.brokers[name] = FakeBroker(name)
        await broker.start()
        return broker

    def add_topic(self, topic: str, queues: int = 2, perm: int = 6, *, slaves: str = "") -> None:
        """Every broker started so far has the topic; those in `slaves` have lost their masters."""
        self.name_server.routes[topic] = TopicRoute(
            tuple(QueueRoute(name, queues, queues, perm) for name in self.brokers),
            tuple(
                BrokerRoute(name, "C", {int(name in slaves): broker.address})
                for name, broker in self.brokers.items()
            ),
        )

    async def stop(self) -> None:
        await self.name_server.stop()
        for broker in self.brokers.values():
            await broker.stop()


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    """A running name server and no broker."""
    cluster = Cluster()
    await cluster.name_server.start()
    yield cluster
    await cluster.stop()


@pytest.fixture
async def broker(cluster: Cluster) -> FakeBroker:
    """The only broker of the cluster, `a`, with topic `T` of two queues."""
    broker = await cluster.add_broker("a")
    cluster.add_topic("T")
    return broker


@pytest.fixture
def name_server(cluster: Cluster) -> str:
    """The address of the cluster's name server."""
    return cluster.name_server.address


async def eventually(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    """Return once `condition` holds; fail after `timeout_s`."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - any condition, not an event
            await asyncio.sleep(0.002)


@pytest.fixture
def until() -> Callable[..., Awaitable[None]]:
    return eventually


@pytest.fixture
def stored() -> Callable[..., bytes]:
    """Encodes a stored record."""
    return encode_message
