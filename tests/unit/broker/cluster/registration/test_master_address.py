"""Where a slave's master is, by the name servers and by haMasterAddress."""

from __future__ import annotations

import asyncio

import pytest

from aerobee.broker.cluster.registration.broker_address import Advertised, ha_endpoint
from aerobee.broker.cluster.registration.master_address import (
    MasterAddress,
    check_master,
    is_own_address,
    port_below,
    split_address,
)
from aerobee.config.errors import ConfigError
from aerobee.config.model import Settings

ONE, TWO = "ns-1:9876", "ns-2:9876"


def master(**settings: str) -> MasterAddress:
    return MasterAddress(Settings.for_tests(**settings), [ONE, TWO])


def both(found: MasterAddress) -> tuple[str | None, str | None]:
    return found.remoting, found.ha


def test_nobody_knows_the_master_at_first() -> None:
    found = master()
    assert (both(found), found.changes) == ((None, None), 0)
    found.heard(ONE, None, None)
    assert (both(found), found.changes) == ((None, None), 0)


def test_a_name_servers_answer_counts_and_a_change_is_counted_once() -> None:
    found = master()
    found.heard(ONE, "a:10911", "a:10912")
    found.heard(ONE, "a:10911", "a:10912")
    assert (both(found), found.changes) == (("a:10911", "a:10912"), 1)
    found.heard(ONE, "b:10911", "b:10912")
    assert (both(found), found.changes) == (("b:10911", "b:10912"), 2)


def test_a_master_that_is_away_keeps_its_address() -> None:
    found = master()
    found.heard(ONE, "a:10911", "a:10912")
    found.heard(ONE, None, None)
    found.lost(ONE)
    assert (both(found), found.changes) == (("a:10911", "a:10912"), 1)


def test_of_name_servers_that_differ_the_first_that_knows_a_master_counts() -> None:
    found = master()
    found.heard(TWO, "b:10911", "b:10912")
    assert found.remoting == "b:10911"
    found.heard(ONE, "a:10911", "a:10912")
    found.heard(TWO, "b:10911", "b:10912")
    assert (found.remoting, found.changes) == ("a:10911", 2)
    found.lost(ONE)
    assert (both(found), found.changes) == (("b:10911", "b:10912"), 3)


def test_a_master_whose_port_for_slaves_is_closed_has_no_such_address() -> None:
    found = master()
    found.heard(ONE, "a:10911", "")
    assert both(found) == ("a:10911", None)


def test_name_servers_that_cannot_be_asked_are_told_apart_from_those_that_know_no_master() -> None:
    found = master(broker_name="broker-a")
    assert "no name server could be asked: ns-1:9876: not asked yet; ns-2" in found.unknown_because
    found.lost(ONE, "cannot connect to ns-1:9876: Connection refused")
    assert ": cannot connect to ns-1:9876: Connection refused; ns-2" in found.unknown_because
    found.heard(TWO, None, None)
    assert found.unknown_because == (
        "the master is not known yet: the name servers know no master of the name broker-a, and "
        "not all could be asked: cannot connect to ns-1:9876: Connection refused"
    )
    found.heard(ONE, None, None)
    assert found.unknown_because.endswith("know no master of the name broker-a")
    found.heard(ONE, "a:10911", "")
    assert found.unknown_because.startswith("the master at a:10911 has no port for slaves")
    alone = MasterAddress(Settings.for_tests())
    assert alone.unknown_because.endswith("no name server is configured")


def test_the_address_that_the_name_servers_tell_is_known_beside_the_given_one() -> None:
    found = master(ha_master_address="given:10912")
    assert (found.is_given, found.told_ha) == (True, None)
    found.heard(ONE, "a:10911", "a:10912")
    found.heard(ONE, None, None)
    assert (found.ha, found.told_ha) == ("given:10912", "a:10912")
    assert not master().is_given


@pytest.mark.parametrize(
    "text", ["a", "a:", ":1", "a:0", "a:65536", "a:x", "a\n:1", "a" * 300 + ":1"]
)
def test_a_text_that_is_no_address_is_none(text: str) -> None:
    found = master()
    found.heard(ONE, text, "a:10912")
    assert (both(found), found.changes) == ((None, None), 0)
    found.heard(ONE, "a:10911", text)
    assert both(found) == ("a:10911", None)


def test_a_given_address_counts_for_the_log_and_the_name_servers_for_requests() -> None:
    found = master(ha_master_address="given:10912")
    assert both(found) == ("given:10911", "given:10912")
    found.heard(ONE, "a:20911", "a:20912")
    assert (both(found), found.changes) == (("a:20911", "given:10912"), 1)


def test_fewer_than_6_characters_give_no_address() -> None:
    assert both(master(ha_master_address="a:109")) == (None, None)
    assert both(master(ha_master_address="a:1091")) == ("a:1090", "a:1091")


async def test_a_change_wakes_all_who_wait() -> None:
    found = master()
    seen = found.changes
    waiting = [asyncio.create_task(found.wait_change(seen)) for _ in range(2)]
    await asyncio.sleep(0)
    found.heard(ONE, None, None)
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    found.heard(ONE, "a:10911", "a:10912")
    async with asyncio.timeout(5):
        assert await asyncio.gather(*waiting) == [1, 1]
        assert await found.wait_change(seen) == 1, "a change of before is known at once"


def test_the_port_for_clients_is_one_below() -> None:
    assert port_below("10.0.0.1:10912") == "10.0.0.1:10911"
    assert port_below("[2001:db8::1]:10912") == "[2001:db8::1]:10911"
    assert port_below("10.0.0.1:1") is None
    assert port_below("10.0.0.1") is None
    assert split_address("[2001:db8::1]:10912") == split_address("2001:db8::1:10912")


OWN = ("10.99.0.1:10911", "10.99.0.2:10912", "broker.example:10911")


@pytest.mark.parametrize(
    ("address", "listens", "own"),
    [
        ("10.99.0.1:10911", "10.99.0.1", True),
        ("10.99.0.2:10912", "10.99.0.1", True),
        ("Broker.Example:10911", "10.99.0.1", True),
        ("127.0.0.1:10912", "0.0.0.0", True),
        ("localhost:10912", "", True),
        ("localhost:10912", "127.0.0.1", True),
        ("127.0.0.2:10912", "127.0.0.2", True),
        ("127.0.0.2:10912", "127.0.0.1", False),
        ("127.0.0.1:10913", "0.0.0.0", False),
        ("127.0.0.1:20912", "0.0.0.0", False),
        ("10.99.0.3:10912", "0.0.0.0", False),
        ("other.example:10912", "0.0.0.0", False),
        ("10.99.0.1", "0.0.0.0", False),
    ],
)
def test_a_broker_that_follows_itself_is_known(address: str, listens: str, own: bool) -> None:
    assert is_own_address(address, OWN, listens) is own


def test_a_slave_that_is_given_itself_as_its_master_does_not_start() -> None:
    advertised = Advertised("10.0.0.1", "10.0.0.1", ())
    slave = Settings.for_tests(
        broker_role="SLAVE", listen_host="0.0.0.0", ha_master_address="127.0.0.1:10912"
    )
    with pytest.raises(ConfigError, match=r"ha_master_address = 127\.0\.0\.1:10912: is this"):
        check_master(slave, advertised)
    with pytest.raises(ConfigError):
        check_master(slave.with_changes(ha_master_address="10.0.0.1:10912"), advertised)
    check_master(slave.with_changes(ha_master_address="10.0.0.1:20912"), advertised)
    check_master(slave.with_changes(ha_master_address="10.0.0.9:10912"), advertised)
    check_master(slave.with_changes(ha_master_address=""), advertised)
    check_master(slave.with_changes(broker_role="ASYNC_MASTER"), advertised)


def test_the_address_for_slaves_is_that_of_brokerip2_while_the_port_is_open() -> None:
    advertised = Advertised("10.0.0.1", "10.0.0.1", ())
    assert ha_endpoint(Settings.for_tests(), advertised, 10912) == ""
    opened = Settings.for_tests(ha_enabled=True)
    assert ha_endpoint(opened, advertised, 10912) == "10.0.0.1:10912"
    assert ha_endpoint(opened, advertised, 0) == ""
    of_its_own = Settings.for_tests(ha_enabled=True, ha_host="10.0.0.2")
    assert ha_endpoint(of_its_own, advertised, 10912) == "10.0.0.2:10912"
