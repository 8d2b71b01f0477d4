"""Two parts of one broker on one port are told apart from a stranger on it."""

from typing import Any

import pytest

from aerobee.config.errors import ConfigError
from aerobee.config.model import Settings
from aerobee.config.ports import check_ports


def test_the_defaults_do_not_clash() -> None:
    check_ports(Settings.for_tests())


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        (
            {"listen_port": 12911, "nameserver_port": 12909},
            ("nameserver.port = 12909", "broker.listen_port - 2", "broker.vip_port_enabled"),
        ),
        ({"nameserver_port": 10911}, ("nameserver.port = 10911", "broker.listen_port")),
        ({"http_port": 9876}, ("http.port = 9876", "nameserver.port")),
        (
            {"http_port": 10911, "listen_host": "0.0.0.0"},
            ("http.port = 10911", "broker.listen_port"),
        ),
        (
            {"ha_enabled": True, "http_port": 10912},
            ("http.port = 10912", "replication.ha_listen_port, the port for slaves"),
        ),
        (
            {"broker_role": "SLAVE", "ha_listen_port": 10911},
            ("replication.ha_listen_port = 10911", "broker.listen_port"),
        ),
        (
            {"broker_role": "SYNC_MASTER", "ha_listen_port": 10909},
            ("replication.ha_listen_port = 10909", "broker.listen_port - 2"),
        ),
        ({"ha_enabled": True, "listen_port": 65_535}, ("replication.ha_listen_port = 65535",)),
        ({"listen_port": 2}, ("broker.listen_port = 2", "broker.vip_port_enabled")),
    ],
)
def test_a_clash_names_both_settings(changes: dict[str, Any], names: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        check_ports(Settings.for_tests(**changes))
    for name in names:
        assert name in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"listen_port": 12911, "nameserver_port": 12909, "vip_port_enabled": False},
        {"nameserver_port": 10911, "nameserver_enabled": False},
        {"http_port": 10911, "http_host": "127.0.0.2"},
        {"listen_port": 0, "nameserver_port": 0, "http_port": 0},
        {"listen_port": 0, "ha_enabled": True, "nameserver_port": 1},
        {"http_port": 10912},
        {"ha_enabled": True},
    ],
)
def test_parts_that_are_off_or_elsewhere_do_not_clash(changes: dict[str, Any]) -> None:
    check_ports(Settings.for_tests(**changes))
