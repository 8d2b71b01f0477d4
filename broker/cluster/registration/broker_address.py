"""The address that clients get, its port, and the store host that records carry.

A frequent complaint of RocketMQ's users is a broker that registers an unreachable address (a
container bridge, one of several cards). So the address is decided in one place and printed at
start, and a doubtful address is named with the setting to change. A host name is passed on as it
is; records need numbers, so the name is resolved once here.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
from typing import NamedTuple

from aerobee.config.model import Settings
from aerobee.config.ports import VIP_BELOW
from aerobee.protocol.message.record_layout import pack_host

_ANY = ("0.0.0.0", "::", "")
_CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")
# Reserved for documentation (RFC 5737): asking the kernel for a route there sends nothing.
_NOWHERE = ("192.0.2.1", 9)


_TRIES = 50


class AddressError(ValueError):
    """The advertised host cannot be used; the text says which setting to change."""


class Advertised(NamedTuple):
    """Clients get `host`, records carry `ip`; `warnings` are for people."""

    host: str
    ip: str
    warnings: tuple[str, ...]

    def endpoint(self, port: int) -> str:
        """`host:port` as in routes; IPv6 numbers without brackets, like RocketMQ's."""
        return f"{self.host}:{port}"

    def packed(self, port: int) -> bytes:
        """The store host of records (protocol/WIRE.md 6.1)."""
        return pack_host(self.ip, port)


def ha_endpoint(settings: Settings, advertised: Advertised, port: int) -> str:
    """The address of the port for slaves, which is `port`, as others get it; "" while it is
    closed."""
    if not settings.replicates or not port:
        return ""
    return f"{settings.ha_host or advertised.host}:{port}"


class Identity(NamedTuple):
    """The address of this broker: `endpoint` for clients, `store_host` in the form of records."""

    advertised: Advertised
    port: int

    @property
    def endpoint(self) -> str:
        return self.advertised.endpoint(self.port)

    @property
    def store_host(self) -> bytes:
        return self.advertised.packed(self.port)


def decide_advertised(asked: str, listen_host: str) -> Advertised:
    """The address for clients: the setting if it is given, else the listening address, else the
    address of the default route. Raises `AddressError` when a name does not resolve.
    """
    host = asked or (listen_host if listen_host not in _ANY else default_route_address())
    ip = _resolve(host)
    return Advertised(host, ip, tuple(_warnings_about(bool(asked), host, ip, listen_host)))


def default_route_address() -> str:
    """This machine's address on its default route; loopback when it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_NOWHERE)
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def _resolve(host: str) -> str:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise AddressError(
            f"the advertised host {host!r} does not resolve ({error}); set brokerIP1 to a name or "
            "address that clients can reach"
        ) from error
    # IPv4 first: the oldest clients read only those records' hosts.
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return str(found[0][4][0])


def _warnings_about(asked: bool, host: str, ip: str, listen_host: str) -> list[str]:
    warnings: list[str] = []
    wide = listen_host in _ANY
    if wide and ipaddress.ip_address(ip).is_loopback:
        warnings.append(
            f"clients are told {host}, a loopback address, though the broker listens on all "
            "addresses: clients on other machines cannot connect; set brokerIP1"
        )
    if not asked and wide and any(os.path.exists(mark) for mark in _CONTAINER_MARKS):
        warnings.append(
            f"clients are told {host}, an address inside a container: clients outside it cannot "
            "connect; set brokerIP1 to the host's name or address"
        )
    return warnings


class ReservedPorts:
    """A free port whose VIP neighbour (port - 2) is free as well, both kept from anything that
    lets the kernel choose a port: other parts of this process (the embedded name server, outgoing
    connections) and other processes. A listener that sets SO_REUSEADDR can still bind them.
    """

    def __init__(self, host: str) -> None:
        """Raise OSError if there is no such pair."""
        self._kept = contextlib.ExitStack()
        self.port = 0
        for _ in range(_TRIES):
            with contextlib.ExitStack() as kept:
                port = _bound(kept, host, 0)
                try:
                    _bound(kept, host, port - VIP_BELOW)
                except OSError:
                    continue
                self.port = port
                self._kept = kept.pop_all()
                return
        raise OSError("no pair of free ports (port and port - 2) was found; name one with --port")

    def release(self) -> None:
        """Give both back; a listener that has bound one by now keeps it."""
        self._kept.close()


def _bound(kept: contextlib.ExitStack, host: str, port: int) -> int:
    held = kept.enter_context(socket.socket())
    # Without it a listener could not bind the port while it is kept.
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((host, port))
    return int(held.getsockname()[1])
