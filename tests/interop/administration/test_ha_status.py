"""mqadmin haStatus of RocketMQ 5, asking a master and a slave of ours."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from aerobee import testing
from aerobee.client.blocking_roles import Admin, Producer
from aerobee.client.message import Message
from aerobee.client.producing.sender import SendStatus
from tests.interop.administration.tools5 import TOOLS, mqadmin
from tests.interop.kit import require
from tests.ports import free_port

WAIT_S = 30.0


@pytest.mark.parametrize("jars", TOOLS, ids=["java5", "5.5.0"])
def test_mqadmin_shows_the_slaves_of_a_master_and_the_master_of_a_slave(
    jars: str, tmp_path: Path
) -> None:
    require(TOOLS[jars])
    ports = {"broker_role": "SYNC_MASTER", "nameserver_port": free_port()}
    with testing.broker(ha_listen_port=free_port(), **ports) as master:
        follows = {"broker_role": "SLAVE", "broker_id": 1, "name_servers": master.name_server}
        with testing.broker(ha_listen_port=free_port(), **follows) as slave:
            with Producer(master.name_server) as producer:
                _send_until_on_both(producer)
            of_master, of_slave = [
                mqadmin(jars, tmp_path, "haStatus", "-n", master.name_server, "-b", one.broker)
                for one in (master, slave)
            ]
            ha_port = master.settings.ha_listen_port
    assert re.search(r"#MasterAddr\s+" + re.escape(master.broker), of_master), of_master
    assert re.search(r"#InSyncSlaveNum\s+1\b", of_master), of_master
    end = re.search(r"#MasterCommitLogMaxOffset\s+(\d+)", of_master)
    assert end is not None, of_master
    assert int(end[1]) > 0
    assert re.search(rf"127\.0\.0\.1:\d+\s+{end[1]}\s+0\s+[\d.]+\s+OK\s+{end[1]}\b", of_master), (
        of_master
    )
    assert f"127.0.0.1:{ha_port}" in of_slave, of_slave
    assert re.search(rf"\b{end[1]}\b", of_slave), of_slave


def test_mqadmin_passes_over_the_reasons_that_ours_tell_besides(tmp_path: Path) -> None:
    require("java-5.5.0")
    guarded = {"broker_role": "SYNC_MASTER", "ha_slave_addresses": "10.1.2.3"}
    with testing.broker(ha_listen_port=free_port(), nameserver_port=free_port(), **guarded) as one:
        follows = {"broker_role": "SLAVE", "broker_id": 1, "name_servers": one.name_server}
        with testing.broker(ha_listen_port=free_port(), **follows) as refused:
            with Admin(one.name_server) as admin:
                end = time.monotonic() + WAIT_S
                while not all(_tells(admin, each) for each in (one.broker, refused.broker)):
                    assert time.monotonic() < end, "nobody said why"
                    time.sleep(0.05)
            of_master, of_slave = [
                mqadmin(
                    "client-5.5.0", tmp_path, "haStatus", "-n", one.name_server, "-b", each.broker
                )
                for each in (one, refused)
            ]
    assert re.search(r"#InSyncSlaveNum\s+0\b", of_master), of_master
    assert "#MasterFlushOffset" in of_slave, of_slave


def _tells(admin: Admin, address: str) -> bool:
    """Whether a broker says why it refuses, or does not follow."""
    status = admin.ha_state(address).status
    assert status is not None
    return bool(status.refused or (status.master is not None and status.master.problem))


def _send_until_on_both(producer: Producer) -> None:
    """Send, until a SYNC_MASTER answers that its slave has it."""
    end = time.monotonic() + WAIT_S
    while producer.send(Message("Copied", b"x")).status is not SendStatus.OK:
        assert time.monotonic() < end, "no message came to the slave"
