"""From a topic's route to the queues a client may use: pure.

The merge rules are those of protocol/WIRE.md 5.3: a producer uses only brokers that have a master
and the write right, a consumer every broker with the read right; an order topic's queues are those
its configuration names. Both lists come out sorted, which the average assignment depends on.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from aerobee.client.message import MessageQueue
from aerobee.protocol.bodies.routes import BrokerRoute, TopicRoute

MASTER_ID: Final = 0
PERM_READ: Final = 4
PERM_WRITE: Final = 2


def write_queues(topic: str, route: TopicRoute) -> list[MessageQueue]:
    """The queues a producer may send to, sorted."""
    if route.order_conf:
        return sorted(_ordered_queues(topic, route.order_conf))
    with_master = {broker.name for broker in route.brokers if MASTER_ID in broker.addresses}
    return sorted(
        MessageQueue(topic, span.broker_name, number)
        for span in route.queues
        if span.perm & PERM_WRITE and span.broker_name in with_master
        for number in range(span.write_queues)
    )


def read_queues(topic: str, route: TopicRoute) -> list[MessageQueue]:
    """The queues a consumer may read from, sorted; a slave alone is enough."""
    return sorted(
        MessageQueue(topic, span.broker_name, number)
        for span in route.queues
        if span.perm & PERM_READ
        for number in range(span.read_queues)
    )


def _ordered_queues(topic: str, order_conf: str) -> list[MessageQueue]:
    """`name:queues;name:queues`; parts that are neither are passed over."""
    queues = []
    for part in order_conf.split(";"):
        name, _, count = part.partition(":")
        if name and count.isdecimal():
            queues += [MessageQueue(topic, name, number) for number in range(int(count))]
    return queues


def route_by_template(template: TopicRoute, queues: int) -> TopicRoute:
    """The route to assume for a topic that its first message will make (protocol/WIRE.md 5.3)."""
    spans = []
    for span in template.queues:
        count = min(queues, span.read_queues)
        spans.append(replace(span, read_queues=count, write_queues=count))
    return TopicRoute(tuple(spans), template.brokers)


def brokers_by_name(routes: dict[str, TopicRoute]) -> dict[str, BrokerRoute]:
    """Every broker that one of these routes mentions."""
    return {broker.name: broker for route in routes.values() for broker in route.brokers}
