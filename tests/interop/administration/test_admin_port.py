"""mqadmin where administrators have ports of their own (docs/security.md)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.administration.mqadmin import AdminPeer
from tests.interop.brokers import OurBroker
from tests.interop.kit import require
from tests.interop.wire import ROUTE, SUCCESS, Wire
from tests.ports import free_port


class AdministeredBroker(OurBroker):
    """Ours, with ports for administrators beside those of clients and of routes."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.admin_port = free_port()
        self.names_port = self.admin_port + 1

    def write_config(self) -> Path:
        config = super().write_config()
        own = {"admin.port": self.admin_port, "nameserver.admin_port": self.names_port}
        config.write_text(config.read_text() + "".join(f"{k}={v}\n" for k, v in own.items()))
        return config


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[AdministeredBroker]:
    running = AdministeredBroker(tmp_path / "broker")
    running.start()
    yield running
    running.kill()


def test_mqadmin_is_given_the_ports(broker: AdministeredBroker, tmp_path: Path) -> None:
    require("java-4.9.8")
    admin, names = f"127.0.0.1:{broker.admin_port}", f"127.0.0.1:{broker.names_port}"
    peer = AdminPeer(tmp_path / "mqadmin", names)
    commands = (
        f"updateTopic -n {names} -c DefaultCluster -t refused",
        f"updateTopic -n {names} -b {broker.address} -t refused",
        f"updateTopic -n {names} -b {admin} -t made -r 3 -w 3",
        f"updateKvConfig -n {broker.name_server} -s N -k k -v refused",
        f"updateKvConfig -n {names} -s N -k k -v made",
    )
    try:
        said = [peer.run(*command.split(" ")) for command in commands]
        peer.close()
    finally:
        peer.end()
    refused = ["administrators have one of their own" in one.out + one.err for one in said]
    assert refused == [True, True, False, True, False]
    with Wire(broker.name_server) as wire:
        made = wire.call(ROUTE, {"topic": "made"})
        assert made.code == SUCCESS
        assert b'"readQueueNums":3' in made.body
        assert wire.call(ROUTE, {"topic": "refused"}).code != SUCCESS
        assert wire.call(101, {"namespace": "N", "key": "k"}).ext["value"] == "made"
