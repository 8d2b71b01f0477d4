"""SIGTERM drains a daemon whose topics another one takes, and systemd hears of it."""

from __future__ import annotations

import http.client
import json
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.kit import WAIT_S, Served, Wire, wait_until

TOPIC = "Orders"
ROUTE, HEARTBEAT = 105, 34
BEAT = {"clientID": "c", "producerDataSet": [{"groupName": "pg"}], "consumerDataSet": []}


@pytest.fixture
def first(tmp_path: Path) -> Iterator[Served]:
    """Broker `a`, with the name server."""
    served = Served(tmp_path / "a", "--set", "broker.name=a").ready()
    yield served
    served.close()


def second_of(first: Served, tmp_path: Path) -> Served:
    """Broker `b`, which is registered at the name server of `a`."""
    name_server = f"127.0.0.1:{first.name_server_port}"
    return Served(tmp_path / "b", "-n", name_server, "--set", "broker.name=b").ready()


def send(served: Served) -> int:
    with Wire(served.port) as wire:
        return wire.send_message(TOPIC, b"x").code


def rights(first: Served) -> dict[str, int]:
    """The permission of the topic at each broker, as its name server tells clients."""
    with Wire(first.name_server_port) as wire:
        body = wire.call(ROUTE, {"topic": TOPIC}).body.decode()
    queues = json.loads(re.sub(r"([{,])(\d+):", r'\1"\2":', body or "{}")).get("queueDatas", [])
    return {one["brokerName"]: one["perm"] for one in queues}


def await_rights(first: Served, expected: dict[str, int]) -> None:
    wait_until(lambda: rights(first) == expected, f"rights {expected}")


def test_sigterm_drains_and_a_second_one_skips_that(first: Served, tmp_path: Path) -> None:
    second = second_of(first, tmp_path)
    try:
        assert [send(one) for one in (first, second)] == [0, 0]
        await_rights(first, {"a": 6, "b": 6})
        with Wire(second.port) as producer:
            # Its heartbeat: it may send by an old route for half a minute.
            beat = {
                "clientID": "c",
                "producerDataSet": [{"groupName": "pg"}],
                "consumerDataSet": [],
            }
            assert producer.call(HEARTBEAT, {}, json.dumps(beat).encode()).code == 0
            second.terminate()
            second.wait_for("EXTEND_TIMEOUT_USEC=15000000")
            await_rights(first, {"a": 6, "b": 4})
            assert producer.send_message(TOPIC, b"by the old route").code == 0
            status, body = second.get("/ready")
            assert status == 503
            assert [one["check"] for one in json.loads(body)["checks"] if not one["ok"]] == [
                "draining"
            ]
            assert any("STATUS=draining" in message for message in second.messages)
            began = time.monotonic()
            second.terminate()
            assert second.wait() == 0
            assert time.monotonic() - began < 10
        assert "the drain is skipped" in second.log
        assert not (second.store / "abort").exists(), "it stopped in order"
    finally:
        second.close()


def test_killed_while_it_drains_it_comes_back_with_its_rights(
    first: Served, tmp_path: Path
) -> None:
    second = second_of(first, tmp_path)
    try:
        assert [send(one) for one in (first, second)] == [0, 0]
        await_rights(first, {"a": 6, "b": 6})
        connection = http.client.HTTPConnection("127.0.0.1", second.http_port, timeout=WAIT_S)
        connection.request("POST", "/drain")
        assert connection.getresponse().status == 200
        connection.close()
        await_rights(first, {"a": 6, "b": 4})
        second.process.send_signal(signal.SIGKILL)
        second.wait()
        second.close()
        second = second_of(first, tmp_path)
        await_rights(first, {"a": 6, "b": 6})
    finally:
        second.close()


def test_the_last_broker_stops_as_quickly_as_ever(first: Served, tmp_path: Path) -> None:
    assert send(first) == 0
    began = time.monotonic()
    first.terminate()
    assert first.wait() == 0
    assert time.monotonic() - began < 5
