"""Our client, and Java's as its witness, against the real Java broker.

Java's client against our broker is among test_clients.py.
"""

from pathlib import Path

import pytest

from tests.interop import scenarios
from tests.interop.brokers import Broker
from tests.interop.kit import require
from tests.interop.peers import PEERS, Peer
from tests.interop.processes import Child

both = pytest.mark.parametrize("peer", ["aerobee", "java-4.9.8"], indirect=True)


@both
def test_all_modes_cross_the_java_broker(java_broker: Broker, peer: Peer, tmp_path: Path) -> None:
    scenarios.send_and_consume_all(java_broker, peer, tmp_path)


def test_our_consumer_and_javas_share_one_group(
    java_broker: Broker, tmp_path: Path, children: list[Child]
) -> None:
    require("java-4.9.8")
    members = [PEERS["aerobee"], PEERS["java-4.9.8"]]
    scenarios.share_queues(java_broker, members, tmp_path, children)


@pytest.mark.parametrize("peer", ["aerobee"], indirect=True)
def test_tags_filter_at_the_java_broker(java_broker: Broker, peer: Peer, tmp_path: Path) -> None:
    scenarios.filter_by_tag(java_broker, peer, tmp_path)


@pytest.mark.parametrize("peer", ["aerobee"], indirect=True)
def test_refused_messages_come_back_from_the_java_broker(
    java_broker: Broker, peer: Peer, tmp_path: Path
) -> None:
    scenarios.refuse_once(java_broker, peer, tmp_path)
