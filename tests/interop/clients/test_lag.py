"""A group whose listener hangs on its first message, as mqadmin and Apache's exporter see it.

It has committed nothing, or nothing but the beginning. Asked for all of a group's topics the Java
broker tells those that it has offsets in, and refuses to reset a group without; the exporter asks
by topic. Here all of them get one number (protocol/WIRE.md 3.6).
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.interop.administration.mqadmin import AdminPeer
from tests.interop.brokers import Broker, OurBroker, StoreShape
from tests.interop.kit import require
from tests.interop.wire import ROUTE, SUCCESS, Wire

GET_ALL_CONSUMER_OFFSET, CONSUMER_CONNECTIONS, CONSUME_STATS, GROUPS_OF_TOPIC = 43, 203, 208, 300
TOPIC, GROUP, QUEUES, COUNT = "stuck-orders", "stuck", 2, 290


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """With messages in each queue of a topic."""
    require("java-4.9.8")
    broker = OurBroker(tmp_path_factory.mktemp("lag"), StoreShape())
    broker.start()
    try:
        with broker.wire() as wire:
            wire.create_topic(TOPIC, QUEUES)
            for number in range(COUNT):
                sent = wire.send(TOPIC, number % QUEUES, b"%d" % number)
                assert sent.code == SUCCESS, sent.remark
        yield broker
    finally:
        broker.kill()


@pytest.fixture(scope="module")
def mqadmin(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdminPeer]:
    """With a Java consumer that is stuck."""
    peer = AdminPeer(tmp_path_factory.mktemp("mqadmin"), broker.name_server)
    try:
        peer.ask("hang", GROUP, TOPIC, "stuck")
        yield peer
        peer.close()
    finally:
        peer.end()


def behind(body: bytes) -> int:
    """The lag as tools add it up: `consumerOffset` from `brokerOffset`, of each queue of the topic.
    Java's form has objects as keys, which are no JSON: the numbers alone are read."""
    text = body.decode()
    ends, offsets = (
        [int(part.split(",")[0].rstrip("}")) for part in text.split(f'"{name}":')[1:]]
        for name in ("brokerOffset", "consumerOffset")
    )
    return sum(ends) - sum(offsets)


@pytest.mark.usefixtures("mqadmin")
def test_the_calls_of_the_exporter_say_what_it_is_behind(broker: Broker) -> None:
    with Wire(broker.name_server) as names:
        names.done(ROUTE, {"topic": f"%RETRY%{GROUP}"})
    with broker.wire() as wire:
        assert GROUP in wire.done(GROUPS_OF_TOPIC, {"topic": TOPIC}).body.decode()
        online = wire.done(CONSUMER_CONNECTIONS, {"consumerGroup": GROUP}).body
        assert json.loads(online)["messageModel"] == "CLUSTERING"
        for topic in (TOPIC, ""):
            stats = wire.done(CONSUME_STATS, {"consumerGroup": GROUP, "topic": topic})
            assert behind(stats.body) == COUNT
        retries = {"consumerGroup": GROUP, "topic": f"%RETRY%{GROUP}"}
        assert behind(wire.done(CONSUME_STATS, retries).body) == 0


def test_mqadmin_says_the_same_and_resets_it(broker: Broker, mqadmin: AdminPeer) -> None:
    said = mqadmin.run("consumerProgress", "-g", GROUP)
    assert f"Diff Total: {COUNT}" in said.out, said
    reset = mqadmin.run("resetOffsetByTime", "-g", GROUP, "-t", TOPIC, "-s", "now")
    assert "Exception" not in reset.err, reset
    assert all(str(queue_id) in reset.out for queue_id in range(QUEUES)), reset


def test_mqadmin_resets_a_group_that_was_never_online_the_old_way(
    broker: Broker, mqadmin: AdminPeer
) -> None:
    made = mqadmin.run("updateSubGroup", "-b", broker.address, "-g", "never")
    assert "Exception" not in made.err, made
    reset = mqadmin.run("resetOffsetByTime", "-g", "never", "-t", TOPIC, "-s", "now")
    assert "Exception" not in reset.err, reset
    with broker.wire() as wire:
        table = json.loads(wire.done(GET_ALL_CONSUMER_OFFSET).body)["offsetTable"]
    assert set(table[f"{TOPIC}@never"]) == {str(queue_id) for queue_id in range(QUEUES)}
