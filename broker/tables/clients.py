"""Who is connected: producers and consumers by group, from their heartbeats (protocol/WIRE.md 3.3).

A client heartbeats every 30 s with all it does. What a group subscribes to is what its last
heartbeat said: members that say different things take turns, and each change sends all of them
rebalancing. Upstream does the same and says nothing; here it is logged and counted, and so are two
programs that use one client id, whose queues would be shared out wrongly.

A member leaves when it says so, when its connection closes, or when it was silent for `expiry_s`.
Each change returns the groups whose members or topics it has changed, for the caller to notify
(`requests/clients.py`).

Loop thread only. `clock` is monotonic, in seconds. Bounded: at most `limit` entries of a connection
in a group.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from aerobee.protocol.bodies.clients import ConsumerData, HeartbeatData
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.filters.subscription import Subscription
from aerobee.remoting.connection import Connection
from aerobee.remoting.peers import address_text

log = logging.getLogger("aerobee.broker.clients")

MIXED_SUBSCRIPTIONS = "mixed_subscriptions"
SHARED_CLIENT_ID = "shared_client_id"


@dataclass(slots=True, eq=False)
class Member:
    """One connection in one group; language and version are those of its heartbeats."""

    connection: Connection
    client_id: str
    language: str
    version: int
    last_heartbeat: float
    # What this member last said the group subscribes to; empty for producers.
    subscriptions: dict[str, str] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """`ip:port` of the other end."""
        return address_text(self.connection.peer)


Members = dict[Connection, Member]


class _Groups(NamedTuple):
    """The groups that one connection is in."""

    producers: set[str]
    consumers: set[str]


@dataclass(slots=True, eq=False)
class ConsumerGroup:
    """A group with at least one live member."""

    name: str
    consume_type: str
    message_model: str
    consume_from_where: str
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    members: Members = field(default_factory=dict)

    def client_ids(self) -> list[str]:
        """Each client once, in the order they came."""
        return list(dict.fromkeys(member.client_id for member in self.members.values()))

    def find(self, client_id: str) -> Member | None:
        """The member with this client id."""
        return next((m for m in self.members.values() if m.client_id == client_id), None)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """One heartbeat as it arrived."""

    connection: Connection
    language: str
    version: int
    data: HeartbeatData


class ClientTable:
    """All live clients."""

    def __init__(
        self,
        clock: Callable[[], float],
        expiry_s: float,
        on_warning: Callable[[str], None],
        *,
        limit: int = 200_000,
    ) -> None:
        """`on_warning` counts groups that look set up wrongly, by kind."""
        self._clock = clock
        self._expiry_s = expiry_s
        self._limit = limit
        self._entries = 0
        self._consumers: dict[str, ConsumerGroup] = {}
        self._producers: dict[str, Members] = {}
        # The groups of a connection, so that its end costs only what it had.
        self._groups_of: dict[Connection, _Groups] = {}
        self._on_warning = on_warning

    # --- what clients say

    def heartbeat(self, heartbeat: Heartbeat) -> list[ConsumerGroup]:
        """Note all that a client says; returns the groups whose members or topics it changed.

        Raises `BadRequest` when the table is full.
        """
        data = heartbeat.data
        if self._entries + len(data.consumers) + len(data.producer_groups) > self._limit:
            self._check_room(heartbeat)
        for group in data.producer_groups:
            self._note_producer(heartbeat, group)
        return [
            self._consumers[consumer.group]
            for consumer in data.consumers
            if self._note_consumer(heartbeat, consumer)
        ]

    def unregister(
        self, connection: Connection, producer_group: str | None, consumer_group: str | None
    ) -> ConsumerGroup | None:
        """A client leaves a group, or two; what it was not in does not matter. Returns the consumer
        group that it left."""
        if producer_group:
            self._drop_producer(connection, producer_group)
        return self._drop_consumer(connection, consumer_group) if consumer_group else None

    def connection_closed(self, connection: Connection) -> list[ConsumerGroup]:
        """The connection leaves all its groups; returns the consumer groups among them."""
        producers, consumers = self._groups_of.get(connection, _Groups(set(), set()))
        for name in list(producers):
            self._drop_producer(connection, name)
        return [
            group for name in list(consumers) if (group := self._drop_consumer(connection, name))
        ]

    def expire(self) -> list[ConsumerGroup]:
        """Drop members that were silent too long, and connections that are in no group then;
        returns the consumer groups that have lost a member."""
        changed: list[ConsumerGroup] = []
        oldest = self._clock() - self._expiry_s
        for connection, (producers, consumers) in list(self._groups_of.items()):
            for name in self._silent(producers, self._producers.get, connection, oldest):
                self._drop_producer(connection, name)
            for name in self._silent(consumers, self._consumer_members, connection, oldest):
                if group := self._drop_consumer(connection, name):
                    changed.append(group)
            if connection not in self._groups_of:
                host, port = connection.peer
                log.info("client silent peer=%s:%d limit_s=%g", host, port, self._expiry_s)
                connection.close("silent client")
        return changed

    def _silent(
        self,
        names: Iterable[str],
        members_of: Callable[[str], Members | None],
        connection: Connection,
        oldest: float,
    ) -> list[str]:
        return [
            name
            for name in names
            if (members := members_of(name)) and members[connection].last_heartbeat < oldest
        ]

    # --- what others ask

    def consumer_group(self, group: str) -> ConsumerGroup | None:
        """The group if it has a live member."""
        return self._consumers.get(group)

    def consumer_ids(self, group: str) -> list[str]:
        """The client ids of a group's live members."""
        found = self._consumers.get(group)
        return found.client_ids() if found else []

    def subscription(self, group: str, topic: str) -> Subscription | None:
        """The subscription of a live group to a topic."""
        found = self._consumers.get(group)
        return found.subscriptions.get(topic) if found else None

    def consumer_groups(self) -> list[ConsumerGroup]:
        """All groups with a live consumer."""
        return list(self._consumers.values())

    def groups_subscribed(self, topic: str) -> list[str]:
        """The live groups that subscribe to a topic."""
        return [name for name, group in self._consumers.items() if topic in group.subscriptions]

    def producers(self, group: str) -> list[Member]:
        """The live producers of a group."""
        return list(self._producers.get(group, {}).values())

    def producer_groups(self) -> Iterator[tuple[str, list[Member]]]:
        """All groups with a live producer."""
        for name, members in self._producers.items():
            yield name, list(members.values())

    def producer_group_names(self) -> list[str]:
        """Those groups' names alone."""
        return list(self._producers)

    def silent_ms(self, member: Member) -> int:
        """Milliseconds since a member's last heartbeat."""
        return round((self._clock() - member.last_heartbeat) * 1000)

    def __len__(self) -> int:
        """Connections that are in some group."""
        return len(self._groups_of)

    # --- inside

    def _check_room(self, heartbeat: Heartbeat) -> None:
        """Near the limit: refuse only what really adds beyond it."""
        producers, consumers = self._groups_of.get(heartbeat.connection, _Groups(set(), set()))
        added = sum(group not in producers for group in heartbeat.data.producer_groups)
        added += sum(consumer.group not in consumers for consumer in heartbeat.data.consumers)
        if added and self._entries + added > self._limit:
            raise BadRequest.system_error(
                f"the broker knows {self._entries} clients in groups, the limit is {self._limit}"
            )

    def _note_producer(self, heartbeat: Heartbeat, name: str) -> None:
        members = self._producers.get(name)
        if members is None:
            members = self._producers[name] = {}
        if self._note_member(heartbeat, members):
            self._of(heartbeat.connection).producers.add(name)

    def _note_consumer(self, heartbeat: Heartbeat, data: ConsumerData) -> bool:
        group = self._consumers.get(data.group)
        if group is None:
            group = self._consumers[data.group] = ConsumerGroup(
                data.group, data.consume_type, data.message_model, data.consume_from_where
            )
        self._warn_of_shared_id(heartbeat, group)
        joined = self._note_member(heartbeat, group.members)
        if joined:
            self._of(heartbeat.connection).consumers.add(data.group)
            log.info(
                "consumer joined group=%s client=%s members=%d",
                data.group,
                heartbeat.data.client_id,
                len(group.members),
            )
        group.consume_type = data.consume_type
        group.message_model = data.message_model
        group.consume_from_where = data.consume_from_where
        changed = _subscribe(group, data.subscriptions)
        member = group.members[heartbeat.connection]
        stated = {s.topic: s.expression for s in data.subscriptions}
        if stated != member.subscriptions:
            member.subscriptions = stated
            self._warn_of_mixed(group, member)
        return joined or changed

    def _note_member(self, heartbeat: Heartbeat, members: Members) -> bool:
        """Put or renew a member; True when it is new."""
        now = self._clock()
        member = members.get(heartbeat.connection)
        if member is None:
            members[heartbeat.connection] = Member(
                heartbeat.connection,
                heartbeat.data.client_id,
                heartbeat.language,
                heartbeat.version,
                now,
            )
            self._entries += 1
            return True
        member.client_id = heartbeat.data.client_id
        member.last_heartbeat = now
        return False

    def _warn_of_shared_id(self, heartbeat: Heartbeat, group: ConsumerGroup) -> None:
        """Two connections whose heartbeats take turns under one client id are two programs.

        A client that lost its connection and made another looks alike only until its old one
        falls silent: the turn is what tells them apart.
        """
        mine = group.members.get(heartbeat.connection)
        if mine is None:
            return
        for other in group.members.values():
            if (
                other is not mine
                and other.client_id == mine.client_id
                and other.last_heartbeat > mine.last_heartbeat
            ):
                self._on_warning(SHARED_CLIENT_ID)
                log.warning(
                    "two clients share one id, their queues will be shared out wrongly; give each "
                    "an instance name of its own group=%s client=%s peers=%s,%s",
                    group.name,
                    mine.client_id,
                    mine.address,
                    other.address,
                )
                return

    def _warn_of_mixed(self, group: ConsumerGroup, member: Member) -> None:
        for other in group.members.values():
            if other is not member and other.subscriptions != member.subscriptions:
                self._on_warning(MIXED_SUBSCRIPTIONS)
                log.warning(
                    "members of a group subscribe differently, messages will be missed; they must "
                    "all subscribe alike group=%s clients=%s,%s topics=%s",
                    group.name,
                    member.client_id,
                    other.client_id,
                    ",".join(_differing(member.subscriptions, other.subscriptions)),
                )
                return

    def _of(self, connection: Connection) -> _Groups:
        return self._groups_of.setdefault(connection, _Groups(set(), set()))

    def _consumer_members(self, name: str) -> Members | None:
        group = self._consumers.get(name)
        return group.members if group else None

    def _drop_producer(self, connection: Connection, name: str) -> None:
        members = self._producers.get(name)
        if members is None or members.pop(connection, None) is None:
            return
        self._left(connection, self._groups_of[connection].producers, name)
        if not members:
            del self._producers[name]

    def _drop_consumer(self, connection: Connection, name: str) -> ConsumerGroup | None:
        """Take a member out; returns its group, None when it was not in it."""
        group = self._consumers.get(name)
        if group is None or (member := group.members.pop(connection, None)) is None:
            return None
        self._left(connection, self._groups_of[connection].consumers, name)
        log.info(
            "consumer left group=%s client=%s members=%d",
            name,
            member.client_id,
            len(group.members),
        )
        if not group.members:
            del self._consumers[name]
        return group

    def _left(self, connection: Connection, groups: set[str], name: str) -> None:
        self._entries -= 1
        groups.discard(name)
        if not any(self._groups_of[connection]):
            del self._groups_of[connection]


def _subscribe(group: ConsumerGroup, subscriptions: tuple[Subscription, ...]) -> bool:
    """Make a heartbeat's subscriptions the group's; True when a topic came or went.

    A newer version replaces the subscription of a known topic, which counts as no change; others
    are ignored (protocol/WIRE.md 3.3).
    """
    changed = False
    named = set()
    for subscription in subscriptions:
        topic = subscription.topic
        named.add(topic)
        known = group.subscriptions.get(topic)
        if known is None:
            changed = True
        elif subscription.version <= known.version:
            continue
        group.subscriptions[topic] = subscription
    for topic in group.subscriptions.keys() - named:
        del group.subscriptions[topic]
        changed = True
    return changed


def _differing(some: dict[str, str], others: dict[str, str]) -> list[str]:
    topics = some.keys() | others.keys()
    return sorted(topic for topic in topics if some.get(topic) != others.get(topic))[:10]
