"""Routes and cluster info, as clients read them (protocol/WIRE.md 5.3)."""

from collections.abc import Iterable
from typing import Any

import msgspec

from aerobee.protocol.bodies.common import (
    as_object,
    int_member,
    list_member,
    object_member,
    parse_body,
    text_list,
    text_member,
)
from aerobee.protocol.errors import BadRequest

# The broker id of a master; its slaves have others.
MASTER_ID = 0
# The permissions on the queues of a topic. INHERIT: topics may be made after it.
PERM_INHERIT = 1
PERM_READ = 4
PERM_WRITE = 2
PERM_READ_WRITE = PERM_READ | PERM_WRITE

#: The most queues of a topic, on all brokers together, that a client makes a list of: as many as a
#: broker has of all topics together (limits.max_queues). A route of 300 bytes may claim 2^31.
MAX_TOPIC_QUEUES = 200_000
#: The most broker names of a route or of a cluster.
MAX_BROKERS = 10_000
_MAX_VALUES = 2_000_000
# Numbers of a configuration have 32 bits; int() refuses thousands of digits in another way.
_MOST_DIGITS = 10


class QueueRoute(msgspec.Struct, frozen=True, order=True):
    """The queues that one broker name has of a topic."""

    broker_name: str
    read_queues: int
    write_queues: int
    perm: int
    sys_flag: int = 0

    @classmethod
    def from_json(cls, value: Any) -> "QueueRoute":
        """BadRequest (code 1) names what is missing or no number."""
        members = as_object(value, "queue data")
        return cls(
            text_member(members, "brokerName"),
            int_member(members, "readQueueNums"),
            int_member(members, "writeQueueNums"),
            int_member(members, "perm"),
            int_member(members, "topicSysFlag", 0),
        )


class BrokerRoute(msgspec.Struct, frozen=True):
    """The addresses of one broker name by broker id, 0 being the master."""

    name: str
    cluster: str
    addresses: dict[int, str]

    @classmethod
    def from_json(cls, value: Any) -> "BrokerRoute":
        """BadRequest (code 1) names what is missing or no number."""
        members = as_object(value, "broker data")
        addresses = object_member(members, "brokerAddrs")
        return cls(
            text_member(members, "brokerName"),
            text_member(members, "cluster", ""),
            {
                int_member({"broker id": broker_id}, "broker id"): text_member(addresses, broker_id)
                for broker_id in addresses
            },
        )


def masters(brokers: Iterable[BrokerRoute]) -> dict[str, str]:
    """The master's address of each broker that has one, by broker name."""
    return {one.name: one.addresses[MASTER_ID] for one in brokers if MASTER_ID in one.addresses}


class TopicRoute(msgspec.Struct, frozen=True):
    """Where a topic is: the answer to GET_ROUTEINFO_BY_TOPIC."""

    queues: tuple[QueueRoute, ...]
    brokers: tuple[BrokerRoute, ...]
    order_conf: str | None = None
    filter_servers: dict[str, list[str]] = {}

    @classmethod
    def parse(cls, body: bytes) -> "TopicRoute":
        """BadRequest (code 1) when the body is no route, or one of too many queues for a client."""
        members = parse_body(body, "route", _MAX_VALUES)
        servers = object_member(members, "filterServerTable")
        route = cls(
            tuple(map(QueueRoute.from_json, list_member(members, "queueDatas", MAX_BROKERS))),
            tuple(map(BrokerRoute.from_json, list_member(members, "brokerDatas", MAX_BROKERS))),
            text_member(members, "orderTopicConf", "") or None,
            {
                address: text_list(_as_list(servers[address]), "filterServers")
                for address in servers
            },
        )
        check_queue_count(max(0, span.read_queues) for span in route.queues)
        check_queue_count(max(0, span.write_queues) for span in route.queues)
        check_queue_count(count for _, count in route.ordered_queues())
        return route

    def writable_at(self) -> set[str]:
        """The names of the brokers to which producers may send by this route: those whose master is
        registered, and which let the topic be written."""
        writable = {
            span.broker_name
            for span in self.queues
            if span.perm & PERM_WRITE and span.write_queues > 0
        }
        return writable & masters(self.brokers).keys()

    def ordered_queues(self) -> list[tuple[str, int]]:
        """Brokers and their numbers of queues, as the configuration of an order topic names them.

        It is `name:queues;name:queues`; parts that are neither are passed over. BadRequest (code 1)
        for a number of too many digits.
        """
        found = []
        for part in (self.order_conf or "").split(";"):
            name, _, count = part.partition(":")
            if name and count.isascii() and count.isdecimal():
                if len(count) > _MOST_DIGITS:
                    raise BadRequest.system_error(f"a number of queues has {len(count)} digits")
                found.append((name, int(count)))
        return found


def check_queue_count(counts: Iterable[int]) -> None:
    """BadRequest (code 1) when a topic has more queues than a client takes."""
    total = sum(counts)
    if total > MAX_TOPIC_QUEUES:
        raise BadRequest.system_error(
            f"the topic has {total} queues, and a client takes {MAX_TOPIC_QUEUES} of one"
        )


class ClusterInfo(msgspec.Struct, frozen=True):
    """Brokers by name and their clusters: the answer to GET_BROKER_CLUSTER_INFO."""

    brokers: dict[str, BrokerRoute]
    clusters: dict[str, list[str]]

    @classmethod
    def parse(cls, body: bytes) -> "ClusterInfo":
        """BadRequest (code 1) when the body is no cluster info."""
        members = parse_body(body, "cluster info", _MAX_VALUES)
        brokers = object_member(members, "brokerAddrTable")
        clusters = object_member(members, "clusterAddrTable")
        if len(brokers) > MAX_BROKERS:
            raise BadRequest.system_error(f"{len(brokers)} brokers, and the limit is {MAX_BROKERS}")
        return cls(
            {name: BrokerRoute.from_json(value) for name, value in brokers.items()},
            {name: text_list(_as_list(names), "cluster") for name, names in clusters.items()},
        )


def _as_list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise BadRequest.system_error("a member that must be a list is none")
    return value
