"""Every client sends to and push-consumes from the broker under test, as its users would."""

from pathlib import Path

import pytest

from tests.interop import scenarios
from tests.interop.brokers import Broker
from tests.interop.kit import require
from tests.interop.peers import LITE_PULL, PEERS, Peer
from tests.interop.processes import Child

everyone = pytest.mark.parametrize("peer", PEERS, indirect=True)


@everyone
def test_messages_of_all_modes_are_sent_and_consumed_in_order(
    broker: Broker, peer: Peer, tmp_path: Path
) -> None:
    scenarios.send_and_consume_all(broker, peer, tmp_path)


@everyone
def test_two_consumers_share_the_queues_and_one_takes_over(
    broker: Broker, peer: Peer, tmp_path: Path, children: list[Child]
) -> None:
    scenarios.share_queues(broker, [peer, peer], tmp_path, children)


@everyone
def test_only_messages_with_the_tag_arrive(broker: Broker, peer: Peer, tmp_path: Path) -> None:
    scenarios.filter_by_tag(broker, peer, tmp_path)


@everyone
def test_refused_messages_come_back(broker: Broker, peer: Peer, tmp_path: Path) -> None:
    scenarios.refuse_once(broker, peer, tmp_path)


@pytest.mark.parametrize("version", LITE_PULL)
def test_lite_pull_consumers_get_everything(broker: Broker, version: str, tmp_path: Path) -> None:
    require(f"java-{version}")
    if broker.kind == "Java" and version == "5.5.0":
        pytest.skip("a Java 4.9 broker does not know the request of 5.x")
    scenarios.consume_from_wire(broker, LITE_PULL[version], tmp_path)
