"""Addresses that clients get, and the warnings that go with them."""

from __future__ import annotations

import pytest

from aerobee.broker.cluster.registration.broker_address import AddressError, decide_advertised


def test_a_loopback_broker_is_told_as_it_listens_without_a_warning() -> None:
    advertised = decide_advertised("", "127.0.0.1")
    assert (advertised.host, advertised.ip, advertised.warnings) == ("127.0.0.1", "127.0.0.1", ())
    assert advertised.endpoint(10911) == "127.0.0.1:10911"


def test_a_host_name_is_passed_on_and_resolved_for_the_records() -> None:
    advertised = decide_advertised("localhost", "127.0.0.1")
    assert advertised.host == "localhost"
    assert advertised.packed(10911) in (b"\x7f\0\0\1\0\0\x2a\x9f", b"\0" * 15 + b"\1\0\0\x2a\x9f")


def test_an_ipv6_address_makes_a_twenty_byte_store_host() -> None:
    assert decide_advertised("::1", "::1").packed(1) == b"\0" * 15 + b"\1\0\0\0\1"


def test_loopback_told_while_listening_wider_is_a_warning() -> None:
    warnings = decide_advertised("127.0.0.1", "0.0.0.0").warnings
    assert any("loopback" in warning and "brokerIP1" in warning for warning in warnings)


def test_a_name_that_does_not_resolve_names_the_setting() -> None:
    with pytest.raises(AddressError, match="brokerIP1"):
        decide_advertised("no-such-host.invalid", "127.0.0.1")
