"""From routes to queues: the merge rules of protocol/WIRE.md 5.3."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aerobee.client.connections.routes import (
    brokers_by_name,
    read_queues,
    route_by_template,
    write_queues,
)
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.bodies.routes import MAX_TOPIC_QUEUES, BrokerRoute, QueueRoute, TopicRoute
from aerobee.protocol.errors import BadRequest


def route(*spans: QueueRoute, order: str | None = None, slave_only: str = "") -> TopicRoute:
    brokers = tuple(
        BrokerRoute(name, "C", {1 if name == slave_only else 0: f"{name}:1"})
        for name in sorted({span.broker_name for span in spans})
    )
    return TopicRoute(spans, brokers, order)


def test_a_producer_uses_the_write_queues_of_brokers_in_order_of_their_names() -> None:
    found = write_queues("T", route(QueueRoute("b", 1, 1, 6), QueueRoute("a", 4, 2, 6)))
    assert found == [
        MessageQueue("T", "a", 0),
        MessageQueue("T", "a", 1),
        MessageQueue("T", "b", 0),
    ]


def test_a_producer_needs_the_write_permission_and_a_master() -> None:
    spans = (QueueRoute("a", 1, 1, 4), QueueRoute("b", 1, 1, 6), QueueRoute("c", 1, 1, 6))
    assert write_queues("T", route(*spans, slave_only="b")) == [MessageQueue("T", "c", 0)]


def test_a_consumer_reads_from_slaves_too_but_not_without_permission() -> None:
    spans = (QueueRoute("a", 1, 1, 2), QueueRoute("b", 2, 1, 4))
    found = read_queues("T", route(*spans, slave_only="b"))
    assert found == [MessageQueue("T", "b", 0), MessageQueue("T", "b", 1)]


def test_an_order_topic_has_the_queues_its_configuration_names() -> None:
    found = write_queues("T", route(QueueRoute("a", 8, 8, 6), order="b:1;a:2;;nonsense"))
    assert found == [
        MessageQueue("T", "a", 0),
        MessageQueue("T", "a", 1),
        MessageQueue("T", "b", 0),
    ]


def test_a_topic_to_be_made_gets_no_more_queues_than_asked_for() -> None:
    template = route(QueueRoute("a", 8, 8, 7), QueueRoute("b", 2, 2, 7))
    found = write_queues("NEW", route_by_template(template, 4))
    assert [(queue.broker_name, queue.queue_id) for queue in found] == [
        ("a", 0),
        ("a", 1),
        ("a", 2),
        ("a", 3),
        ("b", 0),
        ("b", 1),
    ]


def test_brokers_of_all_routes_are_known_by_name() -> None:
    routes = {"T": route(QueueRoute("a", 1, 1, 6)), "U": route(QueueRoute("b", 1, 1, 6))}
    assert sorted(brokers_by_name(routes)) == ["a", "b"]


def body(*, order: str | None = None, **queues: int) -> bytes:
    span = {"brokerName": "a", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, **queues}
    members: dict[str, Any] = {"queueDatas": [span], "brokerDatas": [], "orderTopicConf": order}
    return json.dumps(members).encode()


@pytest.mark.parametrize(
    "claims",
    [
        {"readQueueNums": 2**31 - 1},
        {"writeQueueNums": MAX_TOPIC_QUEUES + 1},
        {"order": "a:2000000000"},
        {"order": "a:150000;b:150000"},
    ],
    ids=str,
)
def test_a_route_of_more_queues_than_a_client_takes_is_refused_with_a_sentence(
    claims: dict[str, Any],
) -> None:
    with pytest.raises(BadRequest, match=r"the topic has \d+ queues, and a client takes 200000"):
        TopicRoute.parse(body(**claims))


def test_a_number_of_thousands_of_digits_is_refused_with_a_sentence() -> None:
    with pytest.raises(BadRequest, match="a number of queues has 5000 digits"):
        TopicRoute.parse(body(order=f"a:{'9' * 5000}"))


def test_an_order_configuration_names_numbers_and_other_parts_are_passed_over() -> None:
    found = TopicRoute.parse(body(order="a:2;c:x;:3;d;e:1"))
    assert found.ordered_queues() == [("a", 2), ("e", 1)]
    assert [queue.broker_name for queue in write_queues("T", found)] == ["a", "a", "e"]
