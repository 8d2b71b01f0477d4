"""Options of the roles: a mix-up of arguments is named, in every role."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from aerobee.client import (
    Admin,
    ClientOptions,
    Producer,
    ProducerOptions,
    PullConsumer,
    PushConsumer,
    PushOptions,
    TransactionProducer,
    blocking_roles,
)
from aerobee.client.errors import CallerError
from aerobee.client.options import local_ip, split_address

SERVER = "127.0.0.1:9876"


class Listener:
    execute = check = print


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: Producer(SERVER, ProducerOptions(trace=True)),  # type: ignore[arg-type]
            "a group's name stands here: give ProducerOptions as options=",
        ),
        (
            lambda: blocking_roles.Producer(SERVER, ProducerOptions()),  # type: ignore[arg-type]
            "a group's name stands here: give ProducerOptions as options=",
        ),
        (
            lambda: PullConsumer(SERVER, ClientOptions()),  # type: ignore[arg-type]
            "a group's name stands here: give ClientOptions as options=",
        ),
        (
            lambda: PushConsumer(SERVER, 5, print),  # type: ignore[arg-type]
            "a group's name must be a str, got int",
        ),
        (
            lambda: PushConsumer(SERVER, "G", PushOptions()),  # type: ignore[arg-type]
            "a listener must be a function, got PushOptions",
        ),
        (
            lambda: PushConsumer(SERVER, "G", print, ClientOptions()),  # type: ignore[arg-type]
            "options must be PushOptions, got ClientOptions",
        ),
        (
            lambda: Producer(SERVER, "G", {"trace": True}),  # type: ignore[arg-type]
            "options must be ProducerOptions, got dict",
        ),
        (lambda: Admin(SERVER, "G"), "options must be ClientOptions, got str"),  # type: ignore[arg-type]
        (
            lambda: TransactionProducer(
                SERVER,
                "G",
                Listener(),  # type: ignore[arg-type]
                ProducerOptions(),  # type: ignore[arg-type]
            ),
            "options must be TransactionOptions, got ProducerOptions",
        ),
        (
            lambda: TransactionProducer(SERVER, "G", object()),  # type: ignore[arg-type]
            "a transaction listener needs the methods execute and check; object has no execute",
        ),
        (
            lambda: TransactionProducer(SERVER, "G", SimpleNamespace(execute=print)),  # type: ignore[arg-type]
            "a transaction listener needs the methods execute and check; SimpleNamespace has no "
            "check",
        ),
    ],
)
def test_arguments_that_are_mixed_up_are_named(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(CallerError) as caught:
        make()
    assert str(caught.value) == said


def test_options_of_every_role_serve_those_that_need_less() -> None:
    assert PullConsumer(SERVER, options=PushOptions()).group == "TOOLS_CONSUMER"
    Admin(SERVER, ProducerOptions())


@pytest.mark.parametrize("text", ["a:9876 b:9876", "a:9876,b:9876", "a:9876;b:9876"])
def test_two_addresses_are_not_taken_for_one(text: str) -> None:
    with pytest.raises(CallerError, match="an address must be host:port"):
        split_address(text)


def test_a_port_of_thousands_of_digits_is_an_address_that_is_none() -> None:
    with pytest.raises(CallerError, match="an address must be host:port"):
        split_address("127.0.0.1:" + "9" * 5000)


@pytest.mark.parametrize("host", ["a" * 70 + ".x", "a..b"])
def test_a_host_that_no_resolver_takes_is_no_error_before_it_is_connected_to(host: str) -> None:
    """`aerobee -n HOST:9876` ended with a traceback."""
    assert local_ip(f"{host}:9876") == "127.0.0.1"
