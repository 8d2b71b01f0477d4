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

# Bytes of clients that an answer has, less than a frame takes.
_MOST_BYTES: Final = 8 * 1024 * 1024
# Connections that are looked at in one step, some 10 us each, and groups of them that take as long.
_STEP: Final = 32
_GROUPS: Final = 16
# Pulls and locks of one client that are listed.
_MOST_QUEUES: Final = 1_000


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
        size = left_out = work = 0
        for connection in list(self._connections()):
            client = self._client(connection, header, pulls[connection])
            work += 1
            if client is not None:
                work += (len(client.producer_groups) + len(client.consumer_groups)) // _GROUPS
                if header.details and header.client_id:
                    client = yield from self._with_details(connection, client)
                text = msgspec.json.encode(client)
                if size + len(text) <= _MOST_BYTES:
                    encoded.append(text)
                    size += len(text) + 1
                else:
                    left_out += 1
            if work >= _STEP:
                work = 0
                yield None
        name = msgspec.json.encode(self._broker)
        return b'{"broker":%b,"leftOut":%d,"clients":[%b]}' % (name, left_out, b",".join(encoded))

    def _client(
        self, connection: Connection, header: ClientsHeader, pulls: int
    ) -> ConnectedClient | None:
        """A connection, None if it has closed or is not among those that are asked for."""
        if connection.closed or not _has_address(connection, header.address):
            return None
        producers, consumers = self._clients.memberships(connection)
        if header.group and header.group not in producers and header.group not in consumers:
            return None
        if header.topic and not any(
            header.topic in one.subscriptions for one in consumers.values()
        ):
            return None
        members = [*producers.values(), *consumers.values()]
        newest = max(members, key=lambda one: one.last_heartbeat, default=None)
        if header.client_id and (newest is None or newest.client_id != header.client_id):
            return None
        return ConnectedClient(
            client_id="" if newest is None else newest.client_id,
            address=address_text(connection.peer),
            language=None if newest is None else newest.language,
            version=None if newest is None else newest.version,
            producer_groups=list(producers),
            consumer_groups=list(consumers),
            connected_ms=self._epoch_ms(connection.opened_at),
            last_active_ms=self._epoch_ms(connection.last_active),
            last_heartbeat_ms=None if newest is None else self._heard_ms(newest),
            waiting_bytes=connection.waiting_bytes,
            unsent_bytes=connection.unsent_bytes,
            held_pulls=pulls,
        )

    def _with_details(
        self, connection: Connection, client: ConnectedClient
    ) -> Generator[None, None, ConnectedClient]:
        _, consumers = self._clients.memberships(connection)
        pulls: list[HeldQueue] = []
        for some in self._held.each_queue():
            pulls += [self._pull(one) for one in some if one.connection is connection]
            yield None
        locks: list[HeldQueue] = []
        for group in consumers:
            for queues in self._locks.held_by(group, client.client_id):
                locks += [HeldQueue(group=group, topic=one[0], queue_id=one[1]) for one in queues]
                yield None
        return msgspec.structs.replace(
            client,
            subscriptions={name: dict(one.subscriptions) for name, one in consumers.items()},
            pulls=pulls[:_MOST_QUEUES],
            locks=locks[:_MOST_QUEUES],
            queues_left_out=sum(max(0, len(one) - _MOST_QUEUES) for one in (pulls, locks)),
        )

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
