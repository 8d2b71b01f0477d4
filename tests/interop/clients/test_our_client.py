"""Our client, and Java's as its witness, against the real Java broker.

Java's client against our broker is among test_clients.py.
"""

import re
from pathlib import Path

import pytest

from aerobee.cli.main import main
from tests.interop import scenarios
from tests.interop.brokers import BROKER_NAME, Broker
from tests.interop.kit import require
from tests.interop.peers import PEERS, Peer
from tests.interop.processes import Child
from tests.interop.wire import ROUTE

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


def test_our_command_drains_the_java_broker_at_its_name_server(
    java_broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = java_broker.create_topic("Drained")

    def drain(*words: str) -> tuple[int, str, str]:
        code = main(["broker", "drain", BROKER_NAME, *words, "-n", java_broker.name_server])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    def rights() -> int:
        with java_broker.wire_to(java_broker.name_server) as wire:
            body = wire.done(ROUTE, {"topic": topic}).body
        return int(re.search(rb'"perm":(\d)', body)[1])  # type: ignore[index]

    code, out, err = drain()
    assert code == 0
    assert re.search(r"^state +\? \(this broker cannot tell\)$", out, re.MULTILINE)
    assert "Drained" in out, "nobody else takes it"
    assert rights() == 6
    code, out, err = drain("--yes")
    assert code == 0, err
    assert "may not be written any more" in err
    assert "cannot tell who still sends to it" in err
    assert rights() == 4
    code, out, err = drain("--undo", "--yes")
    assert code == 0, err
    assert rights() == 6
