"""Administrators' requests on a port of their own (admin.port, nameserver.admin_port)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

import aerobee.testing
from aerobee.access.administration import OF_BROKERS, OF_NAME_SERVERS
from aerobee.cli.main import main
from aerobee.client.blocking_roles import Admin
from aerobee.client.errors import CallerError, NoRoute, PeerError
from aerobee.protocol.codes import RequestCode as Code
from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.frames.command import Command
from aerobee.testing import RunningBroker
from tests.contract.access.test_access import ADMINISTRATORS
from tests.contract.access.test_access_name_server import CHANGES, KV
from tests.contract.conftest import Wire
from tests.ports import free_port
from tests.service.kit import wait_until

#: A slave asks its master for these, at the port that routes name.
SLAVES = {
    Code.LOG_RANGES,
    *(Code.GET_ALL_TOPIC_CONFIG, Code.GET_ALL_CONSUMER_OFFSET, Code.GET_ALL_DELAY_OFFSET),
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    Code.REPLICA_TABLES,
}
REGISTRATIONS = {Code.REGISTER_BROKER, Code.UNREGISTER_BROKER}


class Ports:
    """A broker with its name server, and where administrators reach both."""

    def __init__(self, running: RunningBroker, broker: str, names: str) -> None:
        self.running, self.broker, self.names = running, broker, names


@pytest.fixture(scope="module")
def ports() -> Iterator[Ports]:
    broker = free_port()
    names = broker + 1
    with aerobee.testing.broker(admin_port=broker, nameserver_admin_port=names) as running:
        yield Ports(running, f"127.0.0.1:{broker}", f"127.0.0.1:{names}")


@pytest.fixture
async def wires(ports: Ports) -> AsyncIterator[dict[str, Wire]]:
    running = ports.running
    addresses = {
        "clients": running.broker,
        "vip": running.vip,
        "administrators": ports.broker,
        "routes": running.name_server,
        "names": ports.names,
    }
    opened = {name: await Wire.to(address) for name, address in addresses.items()}
    yield opened
    for wire in opened.values():
        wire.caller.close()


def is_elsewhere(answer: Command) -> bool:
    found = "administrators have one of their own" in (answer.remark or "")
    assert not found or answer.code == ResponseCode.NO_PERMISSION
    return found


def test_the_codes_are_the_administrators_but_for_what_machines_ask() -> None:
    assert OF_BROKERS == ADMINISTRATORS - SLAVES
    assert OF_NAME_SERVERS == CHANGES - REGISTRATIONS


@pytest.mark.parametrize("code", sorted(ADMINISTRATORS), ids=lambda code: Code(code).name.lower())
async def test_brokers_take_them_at_that_port_alone(wires: dict[str, Wire], code: int) -> None:
    ext = {"topic": "made", "group": "G", "consumerGroup": "G"}
    for port in ("clients", "vip"):
        assert is_elsewhere(await wires[port].call(code, ext)) is (code not in SLAVES), port
    assert not is_elsewhere(await wires["administrators"].call(code, ext))


@pytest.mark.parametrize("code", sorted(CHANGES), ids=lambda code: Code(code).name.lower())
async def test_name_servers_too(wires: dict[str, Wire], code: int) -> None:
    answer = await wires["routes"].call(code, {**KV, "topic": "none"})
    assert is_elsewhere(answer) is (code not in REGISTRATIONS)
    if code not in REGISTRATIONS:
        assert not is_elsewhere(await wires["names"].call(code, {**KV, "topic": "none"}))


async def test_both_ports_serve_clients(wires: dict[str, Wire]) -> None:
    for number, port in enumerate(("clients", "administrators")):
        sent = await wires[port].send("everywhere")
        assert sent.code == ResponseCode.SUCCESS
        assert sent.ext["queueOffset"] == str(number)
        assert (await wires[port].pull("everywhere")).code == ResponseCode.SUCCESS
    for port in ("routes", "names"):
        answer = await wires[port].call(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"})
        assert answer.code == ResponseCode.SUCCESS


def test_our_client_is_told_the_port(ports: Ports) -> None:
    with (
        Admin(ports.running.name_server) as admin,
        pytest.raises(PeerError, match="not taken at this port"),
    ):
        admin.create_topic("ours")
    with Admin(ports.names, admin_address=ports.broker) as admin:
        admin.create_topic("ours", queues=3)
        assert admin.topic_settings("ours")["test-broker"].read_queues == 3
        assert admin.broker_settings()["test-broker"]["brokerName"] == "test-broker"
        admin.delete_topic("ours")
    with pytest.raises(CallerError, match="host:port"):
        Admin(ports.names, admin_address="nowhere")


def test_commands_are_told_the_port(ports: Ports, capsys: pytest.CaptureFixture[str]) -> None:
    create = ["topic", "create", "commanded", "-n", ports.running.name_server]
    assert main(create) == 1
    assert "update_and_create_topic (code 17) is not taken at this port" in capsys.readouterr().err
    assert main([*create, "--admin", ports.broker]) == 0
    half = ["topic", "delete", "commanded", "--yes", "-n", ports.running.name_server]
    assert main([*half, "--admin", ports.broker]) == 1
    assert "commanded is deleted at its brokers, and not at name" in capsys.readouterr().err
    assert main([*create, "--admin", ports.broker]) == 0
    delete = ["topic", "delete", "commanded", "--yes", "-n", ports.names, "--admin", ports.broker]
    assert main(delete) == 0


def test_what_is_about_several_brokers_is_not_half_done(
    ports: Ports, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of two brokers has such a port, and then both."""
    names = ["-n", ports.names]
    with aerobee.testing.broker(
        broker_name="another", nameserver_enabled=False, name_servers=ports.running.name_server
    ):
        create = ["topic", "create", "both", *names]
        assert main(create) == 2
        told = capsys.readouterr().err
        assert "test-broker takes what administrators ask for at a port of its own" in told
        assert told.endswith("nothing was changed\n")
        with Admin(ports.names, admin_address=ports.broker) as admin:
            assert set(admin.topic_settings("both").values()) == {None}
        assert main([*create, "--admin", ports.broker]) == 0
        delete = ["topic", "delete", "both", "--yes", *names]
        wait_until(lambda: len(brokers_of("both", ports)) == 2, "both are registered")
        assert main(delete) == 2
        assert main([*delete, "--admin", ports.broker]) == 0
    port = free_port()
    with aerobee.testing.broker(
        broker_name="another",
        nameserver_enabled=False,
        name_servers=ports.running.name_server,
        admin_port=port,
    ):
        assert main([*create, "--admin", ports.broker]) == 2
        assert "another takes what administrators ask for" in capsys.readouterr().err
        both = ["--admin", ports.broker, "--admin", f"127.0.0.1:{port}"]
        assert main([*create, *both]) == 0
        wait_until(lambda: len(brokers_of("both", ports)) == 2, "both are registered")
        assert main([*delete, *both]) == 0
        # One of them alone needs the other's port for nothing.
        assert main([*create, "--broker", "test-broker", "--admin", ports.broker]) == 0


def brokers_of(topic: str, ports: Ports) -> list[str]:
    with Admin(ports.names) as admin:
        try:
            return [one.name for one in admin.route(topic).brokers]
        except NoRoute:
            return []
