"""A rolling restart of two of our brokers under Java's producer: no send fails, nothing is lost.

One broker is drained by the command, the other by SIGTERM; the name server is Java's as well. The
producer tries each send once, and reads routes every second in place of every 30, so that the
brokers need not wait as long.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.interop.brokers import JavaBroker, OurBroker, StoreShape
from tests.interop.kit import require
from tests.interop.peers import PEERS
from tests.interop.processes import Line, wait_until
from tests.interop.wire import Wire

TOPIC, QUEUES = "Rolling", 4
POLL_MS = 1000
WAIT_S = 60
PROGRAM = (sys.executable, "-m", "aerobee.cli")


@pytest.fixture
def brokers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[OurBroker]]:
    """Two brokers at one name server, which is RocketMQ's."""
    require("java-4.9.8")
    require("java-broker")
    monkeypatch.setenv("AEROBEE__DRAIN__ROUTE_REFRESH_MS", str(2 * POLL_MS))
    names = JavaBroker(tmp_path / "names")
    with ExitStack() as stack:
        stack.callback(names.launch_name_server().end)
        both = []
        for name in "ab":
            shape = StoreShape(extra={"brokerName": name})
            broker = OurBroker(tmp_path / name, shape, registers_at=names.name_server)
            stack.callback(broker.kill)
            both.append(broker.start())
        for broker in both:
            broker.create_topic(TOPIC, QUEUES)
        with Wire(both[0].name_server) as wire:
            wait_until(lambda: wire_knows(wire, both), 10, "both brokers have the topic")
        yield both


def wire_knows(wire: Wire, brokers: list[OurBroker]) -> bool:
    body = wire.call(105, {"topic": TOPIC}).body
    return all(str(broker.port).encode() in body for broker in brokers)


def ports_of(lines: list[Line]) -> set[int]:
    """The ports of the brokers that have acknowledged: the second part of a message's offset id."""
    return {int(line["offsetId"][8:16], 16) for line in lines if "offsetId" in line}


def test_no_send_of_javas_producer_fails(brokers: list[OurBroker], tmp_path: Path) -> None:
    producer = PEERS["java-4.9.8"].produce(
        brokers[0], tmp_path, TOPIC, 1_000_000,
        follow="yes", poll_ms=POLL_MS, retries=0, interval_ms=5,
    )  # fmt: skip
    ports = {broker.port for broker in brokers}
    try:
        producer.wait_lines(lambda lines: ports_of(lines) == ports, WAIT_S)
        for broker, by_command in zip(brokers, (True, False), strict=True):
            if by_command:
                drain_by_command(broker)
            broker.stop()
            broker.start()
            seen = len(producer.lines)
            producer.wait_lines(lambda lines, seen=seen: ports_of(lines[seen:]) == ports, WAIT_S)
    finally:
        producer.end()
    assert [line for line in producer.lines if "fail" in line] == []
    acknowledged = {f"m-java-4.9.8-{line['ack']}" for line in producer.lines if "ack" in line}
    stored: list[str] = []
    for broker in brokers:
        with broker.wire() as wire:
            stored += [one.body for one in wire.read_topic(TOPIC, QUEUES)]
    assert len(stored) == len(set(stored)), "no message twice"
    assert acknowledged <= set(stored), "nothing acknowledged is lost"


def drain_by_command(broker: OurBroker) -> None:
    name = broker.shape.extra["brokerName"]
    words = ["broker", "drain", name, "--yes", "--wait", "-n", broker.name_server]
    done = subprocess.run([*PROGRAM, *words], capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
