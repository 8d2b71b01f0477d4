"""The client port that the kernel chooses stays ours until the broker listens on it."""

from __future__ import annotations

import socket

import pytest

from aerobee.broker.cluster.registration.broker_address import ReservedPorts
from aerobee.config.ports import VIP_BELOW


@pytest.fixture
def reserved():
    found = ReservedPorts("127.0.0.1")
    yield found
    found.release()


@pytest.mark.parametrize("below", [0, VIP_BELOW])
def test_nobody_else_can_have_it(reserved: ReservedPorts, below: int) -> None:
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", reserved.port - below))


@pytest.mark.parametrize("below", [0, VIP_BELOW])
def test_a_listener_can_and_keeps_it(reserved: ReservedPorts, below: int) -> None:
    address = ("127.0.0.1", reserved.port - below)
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()
        reserved.release()
        with socket.create_connection(address, timeout=5):
            pass
