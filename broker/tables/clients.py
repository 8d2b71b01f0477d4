"""The connected clients: producers and consumers by group, from heartbeats (protocol/WIRE.md 3.3).

A client heartbeats every 30 s with all it does. A group subscribes to the topics that its members
stated last, each for itself (`statements.py`). Upstream has members that say different things take
turns, and says nothing; here it is logged and counted, and so are two programs that use one client
id, whose queues would be shared out wrongly.

A member leaves when it says so, when its connection closes, or when it was silent for `expiry_s`.
Each change returns the groups whose members or topics it has changed, for the caller to notify
(`requests/clients/heartbeats.py`).

Loop thread only. `clock` is monotonic, in seconds. Bounded: at most `limit` entries of a connection
in a group, and `limit_bytes` of the texts of any length in them: ids, names, subscriptions with
their tags. A text that two hold is counted for both.

There may be hundreds of thousands of entries. The collector of garbage stops everything while it
looks at all objects that may refer to others, so they are of types, and in tables with keys, that
it need not look at; none of them is part of a circle.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import msgspec

from aerobee.broker.broker_stats import Tally
from aerobee.broker.tables.client_sizes import stated_bytes, texts_bytes
from aerobee.broker.tables.statements import Statements, stated_by, text_of
from aerobee.config.model import Settings
from aerobee.protocol.bodies.clients import BROADCASTING, ConsumerData, HeartbeatData
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.filters.subscription import Subscription
from aerobee.remoting.connections.connection import Connection
from aerobee.remoting.peers import address_text

log = logging.getLogger("aerobee.broker.clients")

# Groups of one connection that are looked at in one step, a microsecond each.
_EXPIRY_STEP = 500
# Members that a new one's subscriptions are compared with: thousands may join at once.
_COMPARED = 64

MIXED_SUBSCRIPTIONS = "mixed_subscriptions"
WITHOUT_RETRIES = "without_retries"
SHARED_CLIENT_ID = "shared_client_id"


class GroupMember(msgspec.Struct, eq=False, gc=False):
    """One connection in one group; language and version are those of its heartbeats."""

    connection: Connection
    client_id: str
    language: str
    version: int
    last_heartbeat: float
    # The group's subscriptions as this member last stated them, as texts; empty for producers.
    subscriptions: dict[str, str] = {}
    # The access key of its last heartbeat; empty where no accounts are asked for.
    account: str = ""
    # Bytes that the table has counted for it.
    bytes: int = 0

    @property
    def address(self) -> str:
        """`ip:port` of the other end."""
        return address_text(self.connection.peer)


#: Those of a group, by the `id` of their connections.
Members = dict[int, GroupMember]


class _Groups(NamedTuple):
    """The groups that one connection is in."""

    producers: set[str]
    consumers: set[str]


class ConsumerGroup(msgspec.Struct, eq=False, gc=False):
    """A group with at least one live member."""

    name: str
    consume_type: str
    message_model: str
    consume_from_where: str
    members: Members = {}
    # How many members have a client id, by the id: two are a fault that is looked for at each
    # heartbeat, and there may be thousands of members.
    ids: dict[str, int] = {}
    # How often that has changed.
    id_changes: int = 0
    statements: Statements = msgspec.field(default_factory=Statements)
    #: The last statement about each topic: the table that `statements` keeps.
    subscriptions: dict[str, Subscription] = {}

    def __post_init__(self) -> None:
        self.subscriptions = self.statements.in_force

    @property
    def bytes(self) -> int:
        """Bytes of its name and subscriptions."""
        return texts_bytes((self.name,)) + self.statements.bytes

    def wanted_by(self, connection: Connection, topic: str) -> Subscription | None:
        """The subscription by which a pull from this connection is judged: the statement of the
        member there; if no member is there, the last statement."""
        if self.statements.is_mixed(topic):
            own = self.stated_by(connection, topic)
            if own is not None:
                return own
        return self.subscriptions.get(topic)

    def stated_by(self, connection: Connection, topic: str) -> Subscription | None:
        """The own statement of the member at this connection about a topic."""
        member = self.members.get(id(connection))
        text = member.subscriptions.get(topic) if member is not None else None
        return None if text is None else self.statements.of(topic, text)

    def client_ids(self) -> list[str]:
        """Each client once, in the order they came."""
        return list(self.ids)

    def id_changed(self, before: str | None, now: str | None) -> None:
        """A member has come with an id, changed it, or left."""
        if before == now:
            return
        self.id_changes += 1
        if now is not None:
            self.ids[now] = self.ids.get(now, 0) + 1
        if before is not None:
            self.ids[before] -= 1
            if not self.ids[before]:
                del self.ids[before]

    def find(self, client_id: str) -> GroupMember | None:
        """The member with this client id; of several, as after a connection was lost unseen, that
        which was heard last."""
        found = [one for one in self.members.values() if one.client_id == client_id]
        return max(found, key=lambda one: one.last_heartbeat, default=None)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """One heartbeat as it arrived."""

    connection: Connection
    language: str
    version: int
    data: HeartbeatData
    #: The access key of whoever signed it, or empty.
    account: str = ""


class Heard(NamedTuple):
    """The changes that a heartbeat has made."""

    #: Groups whose members or topics are others now.
    groups: list[ConsumerGroup]
    #: By group the topics of which the sender wants something else than its pulls were judged by
    #: before, or nothing any more.
    restated: dict[str, list[str]]


class ClientTable:
    """All live clients."""

    def __init__(
        self,
        settings: Settings,
        clock: Callable[[], float],
        warnings: Tally,
        *,
        limit: int = 200_000,
    ) -> None:
        """`warnings` counts groups that look set up wrongly, by kind."""
        self._clock = clock
        self._expiry_s = settings.client_expiry_ms / 1000
        self._limit = limit
        # Its limit of bytes may change.
        self._settings = settings
        self._entries = 0
        #: Bytes held of ids, names and subscriptions.
        self.bytes = 0
        self._consumers: dict[str, ConsumerGroup] = {}
        self._producers: dict[str, Members] = {}
        # These members by client id: requests go to the newest.
        self._producers_by_id: dict[str, dict[GroupMember, None]] = {}
        # The groups of a connection, so that its end costs only what it had.
        self._groups_of: dict[Connection, _Groups] = {}
        self._warnings = warnings

    # --- what clients say

    def heartbeat(self, heartbeat: Heartbeat) -> Generator[None, None, Heard]:
        """Note all that a client says, in two steps; returns what it changed. Of a connection that
        closes meanwhile, which has left its groups, nothing is noted.

        Raises `BadRequest` when the table is full; then it notes nothing.
        """
        data = heartbeat.data
        if self._entries + len(data.consumers) + len(data.producer_groups) > self._limit:
            self._check_room(heartbeat)
        sizes = self._check_bytes(heartbeat)
        yield None
        heard = Heard([], {})
        if heartbeat.connection.closed:
            return heard
        for group in data.producer_groups:
            self._note_producer(heartbeat, group)
        for consumer in data.consumers:
            self._note_consumer(heartbeat, consumer, sizes[consumer.group], heard)
        return heard

    def note_without_retries(self, data: ConsumerData, why: str) -> None:
        """Warn of a group that cannot have a retry topic, when its first member says that it comes:
        what fails stays with the clients. To be called before its `heartbeat`."""
        if data.group in self._consumers or data.message_model == BROADCASTING:
            return
        self._warnings.bump(WITHOUT_RETRIES)
        log.warning("group without retries and dead letters group=%s reason=%s", data.group, why)

    def unregister(
        self, connection: Connection, producer_group: str | None, consumer_group: str | None
    ) -> ConsumerGroup | None:
        """A client leaves a group, or two; what it was not in does not matter. Returns the consumer
        group that it left."""
        if producer_group:
            self._drop_producer(connection, producer_group)
        return self._drop_consumer(connection, consumer_group) if consumer_group else None

    def connection_closed(self, connection: Connection) -> Iterator[ConsumerGroup | None]:
        """The connection leaves all its groups, one a step; yields the consumer groups among them,
        None for the others. Groups that it joins meanwhile stay."""
        producers, consumers = self._groups_of.get(connection, _Groups(set(), set()))
        for name in list(producers):
            self._drop_producer(connection, name)
            yield None
        for name in list(consumers):
            yield self._drop_consumer(connection, name)

    def expire(self) -> Iterator[ConsumerGroup | None]:
        """Drop members that were silent too long, and connections that are in no group then.

        A step is a connection, or some groups of a connection that is in many; yields the
        consumer groups that have lost a member.
        """
        oldest = self._clock() - self._expiry_s
        for connection, (producers, consumers) in list(self._groups_of.items()):
            was_silent = False
            for name in self._silent(list(producers), self._producers.get, connection, oldest):
                if name is None:
                    yield None
                else:
                    was_silent = True
                    self._drop_producer(connection, name)
            for name in self._silent(list(consumers), self._consumer_members, connection, oldest):
                if name is None:
                    yield None
                elif group := self._drop_consumer(connection, name):
                    was_silent = True
                    yield group
            # In a later step it may have left by itself, and go on with something else.
            if was_silent and connection not in self._groups_of:
                host, port = connection.peer
                log.info("client silent peer=%s:%d limit_s=%g", host, port, self._expiry_s)
                connection.close("silent client")
            yield None

    def _silent(
        self,
        names: list[str],
        members_of: Callable[[str], Members | None],
        connection: Connection,
        oldest: float,
    ) -> Iterator[str | None]:
        """The names of groups in which a connection was silent; None behind each step."""
        number = id(connection)
        for at in range(0, len(names), _EXPIRY_STEP):
            if at:
                yield None
            for name in names[at : at + _EXPIRY_STEP]:
                member = (members_of(name) or {}).get(number)
                if member is not None and member.last_heartbeat < oldest:
                    yield name

    # --- what others ask

    def consumer_group(self, group: str) -> ConsumerGroup | None:
        """The group if it has a live member."""
        return self._consumers.get(group)

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

    def producer(self, client_id: str) -> GroupMember | None:
        """The live producer of that client id; of several, the last that came."""
        return next(reversed(self._producers_by_id.get(client_id, {})), None)

    def producers(self, group: str) -> list[GroupMember]:
        """The live producers of a group."""
        return list(self._producers.get(group, {}).values())

    def producer_groups(self) -> Iterator[tuple[str, list[GroupMember]]]:
        """All groups with a live producer."""
        for name, members in self._producers.items():
            yield name, list(members.values())

    def producer_group_names(self) -> list[str]:
        """Those groups' names alone."""
        return list(self._producers)

    def memberships(self, connection: Connection) -> Iterator[tuple[str, GroupMember, bool]]:
        """The groups that a connection is in: name, its membership, and whether it consumes there.
        There may be very many; those that it leaves meanwhile are left out."""
        producers, consumers = self._groups_of.get(connection, _Groups(set(), set()))
        number = id(connection)
        for name in list(producers):
            if (member := self._producers.get(name, {}).get(number)) is not None:
                yield name, member, False
        for name in list(consumers):
            if (member := (self._consumer_members(name) or {}).get(number)) is not None:
                yield name, member, True

    def silent_ms(self, member: GroupMember) -> int:
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

    def _check_bytes(self, heartbeat: Heartbeat) -> dict[str, dict[str, int]]:
        """Refuse what would pass the limit of bytes; what adds none is always taken. By group and
        topic the bytes of new statements."""
        sizes: dict[str, dict[str, int]] = {}
        connection, data = heartbeat.connection, heartbeat.data
        added = 0
        for name in data.producer_groups:
            members = self._producers.get(name, {})
            added += _growth(heartbeat, name, members.get(id(connection)), {})
        for consumer in data.consumers:
            group = self._consumers.get(consumer.group)
            members = group.members if group else {}
            stated = _stated(consumer)
            added += _growth(heartbeat, consumer.group, members.get(id(connection)), stated)
            added += 0 if group else texts_bytes((consumer.group,))
            statements = group.statements if group else Statements()
            mine = members.get(id(connection))
            before = mine.subscriptions if mine is not None else {}
            new = sizes[consumer.group] = {}
            added += statements.growth(before, stated, stated_by(consumer.subscriptions), new)
        if added > 0 and self.bytes + added > (limit := self._settings.client_bytes):
            raise BadRequest.system_error(
                f"ids and subscriptions of clients take {self.bytes} bytes, these {added} more, "
                f"and the limit is {limit}: subscribe to fewer topics and tags, or raise "
                "limits.client_bytes"
            )
        return sizes

    def _note_producer(self, heartbeat: Heartbeat, name: str) -> None:
        members = self._producers.get(name)
        if members is None:
            members = self._producers[name] = {}
        member = members.get(id(heartbeat.connection))
        if member is not None and (
            member.client_id != heartbeat.data.client_id or member.account != heartbeat.account
        ):
            self._forget_id(member)
        if self._note_member(heartbeat, name, members, {}):
            self._of(heartbeat.connection).producers.add(name)
        self._note_id(members[id(heartbeat.connection)])

    def _note_id(self, member: GroupMember) -> None:
        """Have the member found by its client id, unless clients of another account have that:
        what is sent to it by its id is not for strangers."""
        known = self._producers_by_id.setdefault(member.client_id, {})
        if not known or next(iter(known)).account == member.account:
            known.setdefault(member)

    def _note_consumer(
        self, heartbeat: Heartbeat, data: ConsumerData, sizes: Mapping[str, int], heard: Heard
    ) -> None:
        group = self._consumers.get(data.group)
        if group is None:
            group = self._consumers[data.group] = ConsumerGroup(
                data.group, data.consume_type, data.message_model, data.consume_from_where
            )
            self.bytes += group.bytes
        mine = group.members.get(id(heartbeat.connection))
        if mine is not None and group.ids[mine.client_id] > 1:
            self._warn_of_shared_id(mine, group)
        stated = _stated(data)
        group.id_changed(mine.client_id if mine else None, heartbeat.data.client_id)
        if joined := self._note_member(heartbeat, data.group, group.members, stated):
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
        member = group.members[id(heartbeat.connection)]
        before, subscriptions = member.subscriptions, stated_by(data.subscriptions)
        if stated != before and (others := _restated(group, before, stated)):
            heard.restated.setdefault(data.group, []).extend(others)
        changed = self._restate(group, before, stated, subscriptions, sizes)
        if stated != before:
            member.subscriptions = stated
            self._warn_of_mixed(group, member)
        if joined or changed:
            heard.groups.append(group)

    def _restate(
        self,
        group: ConsumerGroup,
        before: Mapping[str, str],
        now: Mapping[str, str],
        stated: Mapping[str, Subscription],
        sizes: Mapping[str, int],
    ) -> bool:
        """A member's subscriptions change; True when a topic came to the group or went."""
        held = group.statements.bytes
        changed = group.statements.restate(before, now, stated, sizes)
        self.bytes += group.statements.bytes - held
        return changed

    def _note_member(
        self, heartbeat: Heartbeat, name: str, members: Members, stated: dict[str, str]
    ) -> bool:
        """Put or renew a member of a group, which will have `stated`; True when it is new."""
        now = self._clock()
        member = members.get(id(heartbeat.connection))
        added = _growth(heartbeat, name, member, stated)
        self.bytes += added
        if member is None:
            members[id(heartbeat.connection)] = GroupMember(
                heartbeat.connection,
                heartbeat.data.client_id,
                heartbeat.language,
                heartbeat.version,
                now,
                account=heartbeat.account,
                bytes=added,
            )
            self._entries += 1
            return True
        member.bytes += added
        member.client_id = heartbeat.data.client_id
        member.account = heartbeat.account
        member.last_heartbeat = now
        return False

    def _warn_of_shared_id(self, mine: GroupMember, group: ConsumerGroup) -> None:
        """Two connections whose heartbeats take turns under one client id are two programs.

        A client that lost its connection and made another looks alike only until its old one
        falls silent: the turn is what tells them apart.
        """
        for other in group.members.values():
            if (
                other is not mine
                and other.client_id == mine.client_id
                and other.last_heartbeat > mine.last_heartbeat
            ):
                self._warnings.bump(SHARED_CLIENT_ID)
                log.warning(
                    "two clients share one id, their queues will be shared out wrongly; give each "
                    "an instance name of its own group=%s client=%s peers=%s,%s",
                    group.name,
                    mine.client_id,
                    mine.address,
                    other.address,
                )
                return

    def _warn_of_mixed(self, group: ConsumerGroup, member: GroupMember) -> None:
        # Those that differ among others have been warned of themselves.
        for other in islice(group.members.values(), _COMPARED):
            if other is not member and other.subscriptions != member.subscriptions:
                self._warnings.bump(MIXED_SUBSCRIPTIONS)
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
        if members is None or (member := members.pop(id(connection), None)) is None:
            return
        self.bytes -= member.bytes
        self._forget_id(member)
        self._left(connection, self._groups_of[connection].producers, name)
        if not members:
            del self._producers[name]

    def _forget_id(self, member: GroupMember) -> None:
        known = self._producers_by_id.get(member.client_id, {})
        if member in known:
            del known[member]
            if not known:
                del self._producers_by_id[member.client_id]

    def _drop_consumer(self, connection: Connection, name: str) -> ConsumerGroup | None:
        """Take a member out; returns its group, None when it was not in it."""
        group = self._consumers.get(name)
        if group is None or (member := group.members.pop(id(connection), None)) is None:
            return None
        group.id_changed(member.client_id, None)
        self._restate(group, member.subscriptions, {}, {}, {})
        self.bytes -= member.bytes
        self._left(connection, self._groups_of[connection].consumers, name)
        log.info(
            "consumer left group=%s client=%s members=%d",
            name,
            member.client_id,
            len(group.members),
        )
        if not group.members:
            self.bytes -= group.bytes
            del self._consumers[name]
        return group

    def _left(self, connection: Connection, groups: set[str], name: str) -> None:
        self._entries -= 1
        groups.discard(name)
        if not any(self._groups_of[connection]):
            del self._groups_of[connection]


def _stated(data: ConsumerData) -> dict[str, str]:
    """A member's statement of the group's subscriptions: the texts by topic."""
    return {one.topic: text_of(one) for one in data.subscriptions}


def _restated(group: ConsumerGroup, before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The topics of which a member that is to state `now` will want something else. Before it
    stated anything itself, its pulls were judged by what was stated last."""
    topics = [topic for topic, text in before.items() if now.get(topic) != text]
    for topic in now.keys() - before.keys():
        in_force = group.subscriptions.get(topic)
        if in_force is not None and text_of(in_force) != now[topic]:
            topics.append(topic)
    return topics


def _growth(
    heartbeat: Heartbeat, name: str, member: GroupMember | None, stated: dict[str, str]
) -> int:
    """How much more a member of a group takes after a heartbeat."""
    client_id = heartbeat.data.client_id
    if member is None:
        return texts_bytes((name,)) + _own_bytes(client_id, heartbeat.language, stated)
    if client_id == member.client_id and stated == member.subscriptions:
        return 0
    before = _own_bytes(member.client_id, member.language, member.subscriptions)
    return _own_bytes(client_id, member.language, stated) - before


def _own_bytes(client_id: str, language: str, stated: dict[str, str]) -> int:
    """Bytes of a member in each of its groups."""
    return texts_bytes((client_id,)) + texts_bytes((language,)) + stated_bytes(stated)


def _differing(some: dict[str, str], others: dict[str, str]) -> list[str]:
    topics = some.keys() | others.keys()
    return sorted(topic for topic in topics if some.get(topic) != others.get(topic))[:10]
