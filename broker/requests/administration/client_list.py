"""CLIENTS (31032): the connections of this broker, for administrators (protocol/WIRE.md 9).

RocketMQ tells of the members of a group that is named. Here all connections are listed, those too
that are in no group. They are looked at in steps, one list at a time. An answer is bounded by its
bytes; what does not fit is counted.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from typing import Final

import msgspec

from aerobee.broker.appending.held_pulls import HeldPull, HeldPulls
from aerobee.broker.requests.clients.order_locks import OrderLocks
from aerobee.broker.tables.clients import ClientTable, GroupMember
from aerobee.protocol.bodies.broker_status import ConnectedClient, HeldQueue
from aerobee.protocol.frames.command import Command, encode_success
from aerobee.protocol.headers.admin import ClientsHeader
from aerobee.remoting.connections.connection import Connection
from aerobee.remoting.peers import address_text
from aerobee.remoting.turns import Gate, Steps

# Bytes of clients that an answer has, less than a frame takes; and of one client's subscriptions.
_MOST_BYTES: Final = 8 * 1024 * 1024
_MOST_SUBSCRIBED_BYTES: Final = 512 * 1024
# Connections, and groups or subscriptions of one of them, that are looked at in one step.
_STEP: Final = 16
_NAMES: Final = 64
# Groups of a client that are listed, and of its pulls and locks in detail.
_MOST_GROUPS: Final = 500
_MOST_QUEUES: Final = 1_000


class _Groups:
    """The groups of one connection."""

    __slots__ = ("consumers", "is_wanted", "left_out", "newest", "producers")

    def __init__(self) -> None:
        self.producers: list[str] = []
        self.consumers: list[str] = []
        self.left_out = 0
        self.newest: GroupMember | None = None
        self.is_wanted = False

    def add(self, name: str, member: GroupMember, consumes: bool) -> None:
        names = self.consumers if consumes else self.producers
        if len(names) < _MOST_GROUPS:
            names.append(name)
        else:
            self.left_out += 1
        newest = self.newest
        if newest is None or member.last_heartbeat > newest.last_heartbeat:
            self.newest = member


class ClientLister:
    """Lists connections. `clock` is the loop's, in seconds. Loop thread only."""

    def __init__(
        self,
        broker: str,
        connections: Callable[[], Iterable[Connection]],
        *,
        clients: ClientTable,
        held: HeldPulls,
        locks: OrderLocks,
        clock: Callable[[], float],
    ) -> None:
        self._broker = broker
        self._connections = connections
        self._clients = clients
        self._held = held
        self._locks = locks
        self._clock = clock
        self._one_at_a_time = Gate(1)

    def answer(self, command: Command) -> Steps:
        """The answer, in steps."""
        header = ClientsHeader.from_ext(command.ext)
        yield from self._one_at_a_time.enter()
        try:
            body = yield from self._body(header)
        finally:
            self._one_at_a_time.leave()
        return encode_success(command, body)

    def _body(self, header: ClientsHeader) -> Generator[None, None, bytes]:
        pulls: Counter[Connection] = Counter()
        for some in self._held.each_queue():
            pulls.update(pull.connection for pull in some)
            yield None
        encoded: list[bytes] = []
        size = left_out = 0
        for number, connection in enumerate(self._connections(), 1):
            if number % _STEP == 0:
                yield None
            if connection.closed or not _has_address(connection, header.address):
                continue
            client = yield from self._client(connection, header, pulls[connection])
            if client is None:
                continue
            if header.details and header.client_id:
                client = yield from self._with_details(connection, client)
            text = msgspec.json.encode(client)
            if size + len(text) <= _MOST_BYTES:
                encoded.append(text)
                size += len(text) + 1
            else:
                left_out += 1
        name = msgspec.json.encode(self._broker)
        return b'{"broker":%b,"leftOut":%d,"clients":[%b]}' % (name, left_out, b",".join(encoded))

    def _client(
        self, connection: Connection, header: ClientsHeader, pulls: int
    ) -> Generator[None, None, ConnectedClient | None]:
        """A connection; None if it is not among those that are asked for."""
        groups = yield from self._groups(connection, header)
        newest = groups.newest
        if (header.group or header.topic) and not groups.is_wanted:
            return None
        if header.client_id and (newest is None or newest.client_id != header.client_id):
            return None
        return ConnectedClient(
            client_id="" if newest is None else newest.client_id,
            address=address_text(connection.peer),
            language=None if newest is None else newest.language,
            version=None if newest is None else newest.version,
            producer_groups=sorted(groups.producers),
            consumer_groups=sorted(groups.consumers),
            groups_left_out=groups.left_out,
            connected_ms=self._epoch_ms(connection.opened_at),
            last_active_ms=self._epoch_ms(connection.last_active),
            last_heartbeat_ms=None if newest is None else self._heard_ms(newest),
            waiting_bytes=connection.waiting_bytes,
            unsent_bytes=connection.unsent_bytes,
            held_pulls=pulls,
        )

    def _groups(
        self, connection: Connection, header: ClientsHeader
    ) -> Generator[None, None, _Groups]:
        """The groups of a connection, and whether it is in the group, or subscribes in one to the
        topic, that are asked for."""
        groups = _Groups()
        for number, (name, member, consumes) in enumerate(self._clients.memberships(connection), 1):
            if number % _NAMES == 0:
                yield None
            groups.add(name, member, consumes)
            groups.is_wanted |= header.group in (None, "", name) and (
                not header.topic or header.topic in member.subscriptions
            )
        return groups

    def _with_details(
        self, connection: Connection, client: ConnectedClient
    ) -> Generator[None, None, ConnectedClient]:
        pulls: list[HeldQueue] = []
        left_out = 0
        for some in self._held.each_queue():
            mine = [one for one in some if one.connection is connection]
            room = _MOST_QUEUES - len(pulls)
            pulls += [self._pull(one) for one in mine[:room]]
            left_out += max(0, len(mine) - room)
            yield None
        locks: list[HeldQueue] = []
        for group in client.consumer_groups:
            for queues in self._locks.held_by(group, client.client_id):
                room = _MOST_QUEUES - len(locks)
                locks += [
                    HeldQueue(group=group, topic=topic, queue_id=queue_id)
                    for topic, queue_id in queues[:room]
                ]
                left_out += max(0, len(queues) - room)
                yield None
        subscriptions, unlisted = yield from self._subscriptions(connection)
        return msgspec.structs.replace(
            client,
            subscriptions=subscriptions,
            subscriptions_left_out=unlisted,
            pulls=pulls,
            locks=locks,
            queues_left_out=left_out,
        )

    def _subscriptions(
        self, connection: Connection
    ) -> Generator[None, None, tuple[dict[str, dict[str, str]], int]]:
        """The subscriptions of a connection by group and topic, and the number of those that would
        be too much."""
        found: dict[str, dict[str, str]] = {}
        size = left_out = 0
        for name, member, consumes in self._clients.memberships(connection):
            yield None
            if not consumes:
                continue
            topics = found.setdefault(name, {})
            for number, (topic, text) in enumerate(list(member.subscriptions.items()), 1):
                if number % _NAMES == 0:
                    yield None
                size += len(topic) + len(text)
                if size <= _MOST_SUBSCRIBED_BYTES:
                    topics[topic] = text
                else:
                    left_out += 1
        return found, left_out

    def _pull(self, pull: HeldPull) -> HeldQueue:
        header = pull.header
        return HeldQueue(
            group=header.consumer_group,
            topic=header.topic,
            queue_id=header.queue_id,
            offset=header.queue_offset,
            since_ms=self._epoch_ms(pull.since),
        )

    def _heard_ms(self, member: GroupMember) -> int:
        return int(time.time() * 1000) - self._clients.silent_ms(member)

    def _epoch_ms(self, at: float) -> int:
        return round((time.time() - (self._clock() - at)) * 1000)


def _has_address(connection: Connection, address: str | None) -> bool:
    """Whether the peer has this address, with or without its port."""
    return not address or address in (connection.peer[0], address_text(connection.peer))
