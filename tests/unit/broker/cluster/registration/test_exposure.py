"""Ports beyond loopback that ask for no account are said at each start."""

from __future__ import annotations

import pytest

from aerobee.broker.cluster.registration.exposure import exposures
from aerobee.config.model import Settings
from aerobee.config.setting_rules import is_loopback


@pytest.mark.parametrize(
    ("host", "alone"),
    [
        ("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True),
        ("", False), ("0.0.0.0", False), ("::", False), ("10.1.2.3", False), ("example.org", False),
    ],
)  # fmt: skip
def test_which_addresses_are_this_machines_alone(host: str, alone: bool) -> None:
    assert is_loopback(host) is alone


def test_nothing_is_said_of_loopback_or_where_accounts_are_asked_for() -> None:
    assert list(exposures(Settings().resolve())) == []
    wide = {"listen_host": "0.0.0.0", "nameserver_host": "0.0.0.0"}
    wide |= {"broker_role": "SYNC_MASTER"}
    closed = Settings(**wide, acl_enabled=True, nameserver_acl_enabled=True)  # type: ignore[arg-type]
    assert list(exposures(closed)) == []


def test_each_open_part_is_said_with_what_closes_it() -> None:
    broker, name_server = exposures(Settings(listen_host="10.1.2.3", nameserver_host=""))
    assert "the broker on 10.1.2.3" in broker
    assert "aclEnable=true" in broker
    assert "the name server on all addresses" in name_server
    assert "namesrvAclEnable=true" in name_server
    slaves = exposures(Settings(listen_host="10.1.2.3", nameserver_host="", ha_enabled=True))[1]
    assert "the port for slaves on 10.1.2.3" in slaves
    assert "haSlaveAddresses" in slaves
    off = Settings(listen_host="10.1.2.3", nameserver_host="", nameserver_enabled=False)
    assert len(list(exposures(off))) == 1
