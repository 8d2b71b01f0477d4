"""A slave takes the log of the master that it was compared with, wherever haMasterAddress leads."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aerobee.protocol.codes import ResponseCode
from aerobee.testing import RunningBroker
from tests.contract.conftest import Wire
from tests.contract.replication.test_operations import master, note, slave, until, value
from tests.ports import free_port

FOLLOWS = "follows its master"


def reason_of(broker: RunningBroker) -> str:
    return str(note(broker, FOLLOWS).get("reason", ""))


async def put(broker: RunningBroker, topic: str, count: int) -> None:
    wire = await Wire.to(broker.broker)
    for _ in range(count):
        sent = await wire.send(topic, b"x" * 300)
        assert sent.code in (ResponseCode.SUCCESS, ResponseCode.SLAVE_NOT_AVAILABLE)
    wire.caller.close()


async def test_a_slave_does_not_take_the_log_of_another_pair(tmp_path: Path) -> None:
    ha_of_b = free_port()
    with (
        master(broker_name="broker-a") as a,
        master(
            broker_name="broker-b",
            nameserver_port=0,
            name_servers=a.name_server,
            ha_listen_port=ha_of_b,
        ) as b,
    ):
        await put(a, "OfA", 1)
        await put(b, "OfB", 30)
        wrong = f"127.0.0.1:{ha_of_b}"
        with slave(a, broker_name="broker-a", ha_master_address=wrong) as stranger:
            await asyncio.to_thread(until, lambda: "another pair" in reason_of(stranger))
            reason = reason_of(stranger)
            for part in (wrong, a.broker, "leave haMasterAddress out", "brokerIP2"):
                assert part in reason
            assert value(stranger, "aerobee_store_mark_bytes", "written") == 0
            assert value(stranger, "aerobee_master_refusals_total", "other_pair") != 0
            assert value(b, "aerobee_slaves") == 0


@pytest.mark.parametrize("which", ["broker", "name_server"])
def test_a_port_that_is_not_for_slaves_is_refused_as_that(which: str) -> None:
    with master() as first:
        wrong = first.broker if which == "broker" else first.name_server
        with slave(first, ha_master_address=wrong) as second:
            until(lambda: "another pair" in reason_of(second))
            assert "haSlaveAddresses" not in reason_of(second)
            assert value(second, "aerobee_store_mark_bytes", "written") == 0


def test_another_way_to_the_same_master_is_taken() -> None:
    """The master tells an address of its own that nobody can reach."""
    port = free_port()
    with (
        master(ha_host="192.0.2.1", ha_listen_port=port) as first,
        slave(first, ha_master_address=f"127.0.0.1:{port}") as second,
    ):
        until(lambda: value(first, "aerobee_slaves_near") == 1)
        assert note(second, FOLLOWS)["ok"]


def test_a_name_of_the_masters_address_is_that_address() -> None:
    port = free_port()
    with master(ha_listen_port=port) as first, slave(first, ha_master_address=f"localhost:{port}"):
        until(lambda: value(first, "aerobee_slaves_near") == 1)


def test_a_slave_finds_itself_among_others_that_have_not_asked_yet() -> None:
    """Without an address of a name server's the connection has to be listed: whether it has asked
    for the log yet, and whether it is plain where TLS could come."""
    port = free_port() + 1
    follows = {"ha_master_address": f"127.0.0.1:{port}", "name_servers": ""}
    with (
        master(listen_port=port - 1, ha_listen_port=port) as first,
        slave(first, **follows) as second,
        slave(first, **follows, broker_id=2),
    ):
        until(lambda: value(first, "aerobee_slaves") == 2)
        assert note(second, FOLLOWS)["ok"]


def test_a_master_that_no_name_server_knows_is_not_known_yet() -> None:
    with master(broker_name="other") as first, slave(first, broker_name="lone") as second:
        until(lambda: "know no master of the name lone" in reason_of(second))
