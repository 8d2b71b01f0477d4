"""The route table: brokers, clusters, topics and their queues. Pure; the clock is given.

A broker registers every 30 s with its whole topic table (protocol/WIRE.md 5.2). It is dropped when
the connection it registered on closes, when it has been silent for two minutes, or when it says so;
a broker that says that it restarts stays, and counts as silent. A broker name goes with its last
address, and so do its place in the cluster and its queues; topics that lose their last broker this
way are remembered for a while, so that the answer to a client can say why there is no route.

Topics missing from a registration stay: one registration may carry a single changed topic. Slaves
never change queues. All tables are bounded; a registration that would pass a bound changes nothing.

A broker that goes, or whose permissions change, may have 50,000 topics. Such a change reaches them
in steps (`change_some`), and a topic at once when the topic is asked for or changed. So each
topic looks as if all had been changed together. Only the number of all topics and their list show
topics that the change has still to take away.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Final, NamedTuple, TypeVar, cast

import msgspec

from aerobee.protocol.bodies.routes import MASTER_ID, PERM_WRITE
from aerobee.protocol.bodies.topics import DataVersion
from aerobee.remoting.turns import Spread, Turns

log = logging.getLogger("aerobee.nameserver")

T = TypeVar("T")

# Topics that a step looks at, or takes into the table from a registration.
_STEP_TOPICS = 500
# Topics that a step of a change of all topics of a broker reaches.
_CHANGED_TOPICS = 250
# Topics that are remembered after their last broker went.
_DEPARTED_LIMIT = 10_000


class RouteLimitReached(Exception):
    """A registration would make a table larger than it may be; the text says which."""


#: `QueueData.taken_from` if nothing was taken from the permissions.
NOT_TAKEN: Final = -1


class QueueData(msgspec.Struct, frozen=True, gc=False):
    """Queues of a topic on a broker. The garbage collector passes over them: they are many."""

    read_queues: int
    write_queues: int
    perm: int
    sys_flag: int
    #: The permissions that the broker has registered, while WRITE is taken; otherwise NOT_TAKEN.
    taken_from: int = NOT_TAKEN


class Registration(NamedTuple):
    """A broker as it describes itself. `owner` is the connection of its request.

    The table keeps the last registration of an address without its topics, and with the time of its
    renewal.
    """

    cluster: str
    name: str
    broker_id: int
    address: str
    ha_address: str
    data_version: DataVersion
    topics: Mapping[str, QueueData]
    filter_servers: tuple[str, ...]
    owner: object
    updated_ms: int = 0


@dataclass(slots=True)
class BrokerGroup:
    """A broker name: a master (id 0) and its slaves."""

    name: str
    cluster: str
    addresses: dict[int, str] = field(default_factory=dict)


class _BrokerChange(NamedTuple):
    """A change of all queues of a broker: the topics that it has not reached yet, and the function
    that changes them."""

    rest: dict[str, None]
    apply: Callable[[str], None]


class RouteLimits(NamedTuple):
    """Bounds and times of the route table."""

    brokers: int = 1_000
    # A queue entry is a topic on a broker name.
    queue_entries: int = 200_000
    topics_of_broker: int = 50_000
    expiry_ms: int = 120_000


class RouteTable:
    """All routes. Loop thread only."""

    def __init__(
        self,
        clock_ms: Callable[[], int],
        limits: RouteLimits | None = None,
        turns: Turns | None = None,
    ) -> None:
        """Changes of all topics of a broker are made in `turns`; without them, at once."""
        self._clock_ms = clock_ms
        self._limits = limits or RouteLimits()
        self.groups: dict[str, BrokerGroup] = {}
        self.clusters: dict[str, set[str]] = {}
        # topic -> broker name -> queues
        self.topics: dict[str, dict[str, QueueData]] = {}
        self.live: dict[str, Registration] = {}
        # broker name -> its topics; a broker that goes has no topics any more
        self._topics_of: dict[str, dict[str, None]] = {}
        self._queue_entries = 0
        self._spread = None if turns is None else Spread(turns, self.change_some)
        # The change that is under way, by broker name; at most one for each.
        self._changes: dict[str, _BrokerChange] = {}
        # topic -> (broker name, when, why)
        self._departed: dict[str, tuple[str, int, str]] = {}

    def register(self, registration: Registration) -> Registration | None:
        """Do the steps of `check_room` and `register_in_steps` at once."""
        for _ in self.check_room(registration):
            pass
        steps = self.register_in_steps(registration)
        while True:
            try:
                next(steps)
            except StopIteration as ended:
                return cast("Registration | None", ended.value)

    def register_in_steps(
        self, registration: Registration
    ) -> Generator[None, None, Registration | None]:
        """Take in a registration; a slave gets its live master (protocol/WIRE.md 5.2, steps 1-5).

        Each step takes a part of its topics into the table, until the broker changes in another
        way. The caller has checked that there is room. The broker is in the table from the first
        step, so that its end is noticed.
        """
        name, address, broker_id = registration.name, registration.address, registration.broker_id
        before = self.live.get(address)
        if before is not None and before.name != name:
            log.warning(
                "address=%s was broker=%s, now registers as broker=%s; do two brokers advertise "
                "one address (brokerIP1)?",
                address,
                before.name,
                name,
            )
            self._remove(before, f"its address now registers as {name}")
            before = None
        group = self.groups.get(name)
        if group is None:
            group = self.groups[name] = BrokerGroup(name, registration.cluster)
        self.clusters.setdefault(registration.cluster, set()).add(name)
        for other_id in [i for i, a in group.addresses.items() if a == address and i != broker_id]:
            del group.addresses[other_id]
        is_new = broker_id not in group.addresses
        self._displace(group, broker_id, address)
        group.addresses[broker_id] = address
        changed = is_new or before is None or before.data_version != registration.data_version
        self.live[address] = registration._replace(topics={}, updated_ms=self._clock_ms())
        if before is None:
            log.info(
                "broker joined name=%s id=%d address=%s cluster=%s topics=%d",
                name,
                broker_id,
                address,
                registration.cluster,
                len(registration.topics),
            )
        if broker_id == MASTER_ID and changed:
            yield from self._upsert_topics(registration)
        return None if broker_id == MASTER_ID else self._master_of(group)

    def known_version(self, name: str, broker_id: int, address: str) -> DataVersion | None:
        """The version that this broker last registered at `address`, None if it is unknown
        there."""
        live = self._find_live(name, broker_id, address)
        return None if live is None else live.data_version

    def renew(self, address: str) -> None:
        """Renew a broker that has shown that its table is unchanged (protocol/WIRE.md 5.2)."""
        self.live[address] = self.live[address]._replace(updated_ms=self._clock_ms())

    def unregister(self, name: str, broker_id: int, address: str) -> None:
        """Take out a broker that leaves. Only the address that holds the id may give it up: a
        broker that was replaced and stops late must not take its successor away."""
        live = self._find_live(name, broker_id, address)
        if live is not None:
            self._remove(live, "it unregistered")

    def leave_for_restart(self, name: str, broker_id: int, address: str) -> None:
        """Note that a broker leaves to come back in a moment: its routes stay when its connection
        ends. If it does not come back it expires like a silent broker."""
        live = self._find_live(name, broker_id, address)
        if live is not None:
            self.live[address] = live._replace(owner=None, updated_ms=self._clock_ms())
            log.info("broker restarts name=%s address=%s", name, address)

    def connection_closed(self, owner: object, reason: str) -> None:
        """Drop the brokers that registered last on this connection."""
        for live in [live for live in self.live.values() if live.owner == owner]:
            self._remove(live, f"its connection ended ({reason})")

    def expire(self, most: int | None = None) -> list[Registration]:
        """Drop brokers that have been silent too long, at most `most`; returns them."""
        oldest = self._clock_ms() - self._limits.expiry_ms
        expired = [live for live in self.live.values() if live.updated_ms < oldest][:most]
        for live in expired:
            self._remove(live, f"it did not register for {self._limits.expiry_ms // 1000} s")
        return expired

    def find(self, topic: str) -> tuple[dict[str, QueueData], list[BrokerGroup]] | None:
        """Queues by broker name and the brokers of a topic, None without a route."""
        queues = self._changed(topic)
        if not queues:
            return None
        groups = [self.groups[name] for name in sorted(queues) if name in self.groups]
        return (queues, groups) if groups else None

    def filter_servers(self, groups: Iterable[BrokerGroup]) -> dict[str, list[str]]:
        """Filter servers by address, for the addresses that have some."""
        found: dict[str, list[str]] = {}
        for group in groups:
            for address in group.addresses.values():
                live = self.live.get(address)
                if live is not None and live.filter_servers:
                    found[address] = list(live.filter_servers)
        return found

    def why_missing(self, topic: str) -> str:
        """The cause, for people, that leaves `topic` without a route."""
        self._changed(topic)
        departed = self._departed.get(topic)
        if departed is not None:
            name, when_ms, why = departed
            ago_s = (self._clock_ms() - when_ms) // 1000
            return f"its broker {name} is gone since {ago_s} s: {why}"
        if not self.groups:
            return "no broker is registered here"
        return f"none of the {len(self.groups)} registered brokers has this topic"

    def set_write_perm(self, broker_name: str, allowed: bool) -> int:
        """Take WRITE in all queues of a broker, or give back what was taken: a topic that the
        broker itself has closed stays closed. Returns the number of topics.

        This holds until the broker registers with a new data version (protocol/WIRE.md 5.4). The
        broker's pending changes are finished first, at once.
        """
        for _ in self.finish_changes(broker_name):
            pass
        topics = self._topics_of.get(broker_name)
        if topics is None:
            return 0
        self._begin(broker_name, topics.copy(), partial(self._set_write_perm, broker_name, allowed))
        return len(topics)

    def delete_topic(self, topic: str, cluster: str | None) -> None:
        """Forget a topic of all brokers, or of the brokers in a cluster."""
        names = None if cluster is None else self.clusters.get(cluster, set())
        for name in list(self._changed(topic) or ()):
            if names is None or name in names:
                self._drop_queues(topic, name)

    # --- changes of all topics of a broker

    def change_some(self) -> bool:
        """Bring a change to some more topics; False when there was nothing to do."""
        for name, change in self._changes.items():
            self._change_some(name, change)
            return True
        return False

    def finish_changes(self, name: str) -> Generator[None, None, None]:
        """Finish the change of all topics of a broker, in steps."""
        while (change := self._changes.get(name)) is not None:
            self._change_some(name, change)
            yield None

    def _begin(self, name: str, topics: dict[str, None], apply: Callable[[str], None]) -> None:
        self._changes[name] = _BrokerChange(topics, apply)
        self._begun()

    def _begun(self) -> None:
        """Have `change_some` called until there is nothing to do."""
        if self._spread is not None:
            self._spread.go_on()
            return
        while self.change_some():
            pass

    def _change_some(self, name: str, change: _BrokerChange) -> None:
        rest, apply = change
        for _ in range(min(_CHANGED_TOPICS, len(rest))):
            topic, _ = rest.popitem()
            apply(topic)
        if not rest:
            del self._changes[name]

    def _changed(self, topic: str) -> dict[str, QueueData] | None:
        """Queues of a topic by broker name, with all changes that are under way."""
        queues = self.topics.get(topic)
        if queues is not None and self._changes:
            for name in [name for name in self._changes if name in queues]:
                self._change(name, topic)
            queues = self.topics.get(topic)
        return queues

    def _change(self, name: str, topic: str) -> None:
        """Apply the change of that broker to this topic now, if it has not reached it yet."""
        rest, apply = self._changes[name]
        if topic in rest:
            del rest[topic]
            apply(topic)

    def _set_write_perm(self, name: str, allowed: bool, topic: str) -> None:
        queues = self.topics[topic]
        data = queues[name]
        own = data.perm if data.taken_from == NOT_TAKEN else data.taken_from
        taken_from = NOT_TAKEN if allowed else own
        perm = own if allowed else own & ~PERM_WRITE
        queues[name] = msgspec.structs.replace(data, perm=perm, taken_from=taken_from)

    def _forget_queues(self, name: str, cause: tuple[str, int, str], topic: str) -> None:
        """Forget the topic's queues of a broker that has gone for that cause."""
        queues = self.topics[topic]
        del queues[name]
        if not queues:
            del self.topics[topic]
            self._remember_departed(topic, cause)

    # --- lists

    def topics_of_cluster(self, cluster: str) -> Generator[None, None, list[str]]:
        """Topics of the brokers of a cluster, in steps."""
        found: list[str] = []
        for some in self._looked_at():
            names = self.clusters.get(cluster, set())
            found += [topic for topic, queues in some if not names.isdisjoint(queues)]
            yield None
        return found

    def topics_with_flags(self, having: int, lacking: int = 0) -> Generator[None, None, list[str]]:
        """Topics whose first broker has all flags of `having` and none of `lacking`, in steps."""
        found: list[str] = []
        for some in self._looked_at():
            for topic, queues in some:
                flags = next(iter(queues.values())).sys_flag
                if flags & having == having and not flags & lacking:
                    found.append(topic)
            yield None
        return found

    def _looked_at(self) -> Iterator[list[tuple[str, dict[str, QueueData]]]]:
        """Yield the present topics with their queues, some at a time; a topic that has gone by its
        turn is left out."""
        for some in _parts(list(self.topics)):
            shown = [(topic, self._changed(topic)) for topic in some]
            yield [(topic, queues) for topic, queues in shown if queues]

    def any_address(self) -> str:
        """Some broker's address, "" without brokers: admin tools ask it for system topics."""
        return next(iter(self.live), "")

    def _find_live(self, name: str, broker_id: int, address: str) -> Registration | None:
        live = self.live.get(address)
        same = live is not None and live.name == name and live.broker_id == broker_id
        return live if same else None

    def check_room(self, registration: Registration) -> Generator[None, None, None]:
        """Raise `RouteLimitReached` if a registration passes a limit; in steps."""
        limits = self._limits
        if registration.address not in self.live and len(self.live) >= limits.brokers:
            raise RouteLimitReached(f"{limits.brokers} brokers are registered, the limit")
        if registration.broker_id != MASTER_ID:
            return
        if len(registration.topics) > limits.topics_of_broker:
            raise RouteLimitReached(
                f"broker {registration.name} registers {len(registration.topics)} topics, the "
                f"limit of one broker is {limits.topics_of_broker}"
            )
        added = 0
        for some in _parts(registration.topics):
            known = self._topics_of.get(registration.name, {})
            added += sum([topic not in known for topic in some])
            yield None
        if self._queue_entries + added > limits.queue_entries:
            raise RouteLimitReached(
                f"{added} new topics do not fit, the limit of all brokers together is "
                f"{limits.queue_entries}"
            )

    def _displace(self, group: BrokerGroup, broker_id: int, address: str) -> None:
        """The broker comes back under another address: the old address is nobody's any more.

        A broker that stopped has left before. A broker that is still registered may have lost its
        machine a moment ago, or be another broker of the same name, which loses its clients now.
        """
        old = group.addresses.get(broker_id)
        if old is None or old == address:
            return
        if self.live.pop(old, None) is None:
            text = "broker moved name=%s id=%d from=%s to=%s"
            log.info(text, group.name, broker_id, old, address)
            return
        remedy = (
            "start the one that should be a slave of the other with brokerRole=SLAVE and a "
            "brokerId above 0, or give each a name of its own (brokerName)"
        )
        if broker_id != MASTER_ID:
            remedy = "give each an id of its own (brokerId)"
        log.warning(
            "broker moved name=%s id=%d from=%s to=%s, while it is registered at the first: its "
            "clients are sent to the second from now on; if two brokers run there, %s",
            group.name,
            broker_id,
            old,
            address,
            remedy,
        )

    def _master_of(self, group: BrokerGroup) -> Registration | None:
        address = group.addresses.get(MASTER_ID)
        return None if address is None else self.live.get(address)

    def _upsert_topics(self, registration: Registration) -> Generator[None, None, None]:
        name = registration.name
        for some in _parts(registration.topics.items()):
            live = self.live.get(registration.address)
            if (
                live is None
                or live.owner != registration.owner
                or live.data_version != registration.data_version
            ):
                return  # it has left, or has registered anew
            known = self._topics_of.setdefault(name, {})
            for topic, data in some:
                if name in self._changes:
                    self._change(name, topic)
                if topic not in known:
                    known[topic] = None
                    self._queue_entries += 1
                    self._departed.pop(topic, None)
                self.topics.setdefault(topic, {})[name] = data
            yield None

    def _remove(self, live: Registration, why: str) -> None:
        del self.live[live.address]
        log.info("broker left name=%s address=%s why=%s", live.name, live.address, why)
        group = self.groups.get(live.name)
        if group is None or group.addresses.get(live.broker_id) != live.address:
            return
        del group.addresses[live.broker_id]
        if group.addresses:
            return
        del self.groups[live.name]
        for cluster in [c for c, names in self.clusters.items() if live.name in names]:
            self.clusters[cluster].discard(live.name)
            if not self.clusters[cluster]:
                del self.clusters[cluster]
        self._forget_topics(live.name, (live.name, self._clock_ms(), why))

    def _forget_topics(self, name: str, cause: tuple[str, int, str]) -> None:
        topics = self._topics_of.pop(name, {})
        self._queue_entries -= len(topics)
        change = self._changes.get(name)
        if change is not None:
            # Permissions do not matter any more. Topics that the broker had when it went
            # before, and has not registered since, go with the rest.
            topics |= change.rest
        if topics:
            self._begin(name, topics, partial(self._forget_queues, name, cause))

    def _drop_queues(self, topic: str, name: str) -> None:
        queues = self.topics[topic]
        del queues[name]
        if not queues:
            del self.topics[topic]
        known = self._topics_of[name]
        del known[topic]
        if not known:
            del self._topics_of[name]
        self._queue_entries -= 1

    def _remember_departed(self, topic: str, cause: tuple[str, int, str]) -> None:
        self._departed.pop(topic, None)
        if len(self._departed) >= _DEPARTED_LIMIT:
            del self._departed[next(iter(self._departed))]
        self._departed[topic] = cause


def _parts(topics: Iterable[T]) -> Iterator[tuple[T, ...]]:
    """All topics, in parts that take half a millisecond each."""
    items = iter(topics)
    while some := tuple(islice(items, _STEP_TOPICS)):
        yield some
