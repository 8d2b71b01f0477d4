"""Knows where the master of this slave is: from the name servers, and from haMasterAddress.

Each answer to a slave's registration names the live master of its broker name: `masterAddr`, the
port for clients, and `haServerAddr`, the port for slaves (protocol/WIRE.md 5.2). haMasterAddress,
where it is set, counts for the second; the first is asked of the name servers all the same, and is
one port below it while none of them knows.

Name servers may differ for a while, as a master that has moved is registered at one before the
other. Then the first configured server that knows a master counts, so that a slave does not go back
and forth. What was known stays when no server knows a master: it may be restarting.

Loop thread only.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterable
from typing import Final, NamedTuple, TypeGuard

from aerobee.broker.cluster.registration.broker_address import (
    Advertised,
    default_route_address,
    ha_endpoint,
)
from aerobee.config.errors import ConfigError
from aerobee.config.model import BY_NAME, Settings
from aerobee.config.setting_rules import is_master_address
from aerobee.remoting.peers import naming

log = logging.getLogger("aerobee.broker.registration")

_ANY: Final = ("", "0.0.0.0", "::")
# A host name has at most 255.
_ADDRESS_CHARS: Final = 300


class _Master(NamedTuple):
    """A master as a name server knows it."""

    remoting: str
    ha: str | None


class MasterAddress:
    """The addresses of the master, `host:port` each with IPv6 numbers in brackets or not; None
    where nobody has said one. `changes` counts their changes."""

    def __init__(self, settings: Settings, servers: Iterable[str] = ()) -> None:
        """`servers` are the name servers in the order in which they count."""
        given = settings.ha_master_address
        self._given = given if is_master_address(given) else None
        self._order = tuple(dict.fromkeys(servers))
        # The answers of the name servers that are connected and know a master; why the others could
        # not be asked.
        self._said: dict[str, _Master] = {}
        self._unasked: dict[str, str] = dict.fromkeys(self._order, "not asked yet")
        self._name = settings.broker_name
        #: The port for slaves by the name servers, whatever haMasterAddress says.
        self.told_ha: str | None = None
        self.ha: str | None = self._given
        self.remoting: str | None = None if self._given is None else port_below(self._given)
        self.changes = 0
        self._changed = asyncio.Event()

    @property
    def known(self) -> bool:
        """Whether a name server knows a live master now."""
        return bool(self._said)

    @property
    def is_given(self) -> bool:
        """Whether haMasterAddress says where the port for slaves is."""
        return self._given is not None

    @property
    def unknown_because(self) -> str:
        """Why `remoting` or `ha` is None, for people."""
        if self.remoting is not None:
            return f"the master at {self.remoting} has no port for slaves: it has to be open there"
        reasons = "; ".join(naming(server, why) for server, why in self._unasked.items())
        if not self._order:
            return "the master is not known yet: no name server is configured"
        if len(self._unasked) == len(self._order):
            return f"the master is not known yet: no name server could be asked: {reasons}"
        of_name = f"the name servers know no master of the name {self._name}"
        rest = f", and not all could be asked: {reasons}" if reasons else ""
        return f"the master is not known yet: {of_name}{rest}"

    async def wait_change(self, seen: int) -> int:
        """Wait until `changes` is not `seen` any more; returns it."""
        while self.changes == seen:
            await self._changed.wait()
        return self.changes

    def heard(self, server: str, remoting: str | None, ha: str | None) -> None:
        """Take what a name server has answered; without `remoting` it knows no live master. A text
        that is no address counts as none."""
        self._unasked.pop(server, None)
        if not is_address(remoting):
            self._forget(server)
            return
        self._said[server] = _Master(remoting, ha if is_address(ha) else None)
        self._choose()

    def lost(self, server: str, why: str = "not connected") -> None:
        """Pass over what this name server has said: it cannot be asked."""
        self._unasked[server] = why
        self._forget(server)

    def _forget(self, server: str) -> None:
        if self._said.pop(server, None) is not None:
            self._choose()

    def _choose(self) -> None:
        master = next((self._said[one] for one in self._order if one in self._said), None)
        if master is None:
            return
        self.told_ha = master.ha
        remoting, ha = master.remoting, self._given or master.ha
        if (remoting, ha) == (self.remoting, self.ha):
            return
        self.remoting, self.ha = remoting, ha
        log.info("master found address=%s ha_address=%s", remoting, ha or "none")
        self.changes += 1
        waiting, self._changed = self._changed, asyncio.Event()
        waiting.set()


def check_master(settings: Settings, advertised: Advertised) -> None:
    """Raise ConfigError if haMasterAddress is where this slave itself would be reached."""
    given = settings.ha_master_address
    if not settings.starts_as_slave or not is_master_address(given):
        return
    own = ha_endpoint(settings, advertised, settings.ha_listen_port)
    if own and is_own_address(given, [own], settings.listen_host):
        key = BY_NAME["ha_master_address"].full_key
        raise ConfigError(key, given, "is this slave's own port for slaves: name its master's")


def check_master_of_file(settings: Settings) -> list[str]:
    """Check the same of a file that may have been written for another machine. Raises ConfigError
    only if the file itself shows it; returns a warning if it is so on this machine."""
    own, listens = settings.ha_host or settings.advertised_host, settings.listen_host
    if own or listens not in _ANY:
        # Every interface of that machine, of which only loopback is the same on all machines.
        known = settings.with_changes(listen_host="127.0.0.1" if listens in _ANY else listens)
        check_master(known, Advertised(own or listens, "", ()))
        return []
    try:
        here = default_route_address()
        check_master(settings, Advertised(here, here, ()))
    except ConfigError as error:
        return [f"if this file is for this machine, the slave does not start: {error}"]
    return []


def port_below(address: str) -> str | None:
    """The address of a master's port for clients, where only its port for slaves is known: RocketMQ
    has the latter one above. None for a text that is no `host:port` of such a port."""
    host, port = split_address(address)
    return f"{address.rpartition(':')[0]}:{port - 1}" if host and port > 1 else None


def is_address(text: str | None) -> TypeGuard[str]:
    """Whether a name server's text is an address that can be connected to."""
    if not text or len(text) > _ADDRESS_CHARS or not text.isprintable():
        return False
    host, port = split_address(text)
    return bool(host) and 0 < port < 65_536


def split_address(address: str) -> tuple[str, int]:
    """Host and port, as names and numbers without brackets; a text without a port has port 0."""
    host, _, port = address.rpartition(":")
    number = int(port) if port.isascii() and port.isdigit() else 0
    return host.strip("[]"), number


def is_own_address(address: str, own: Iterable[str], listen_host: str) -> bool:
    """Whether a broker would reach itself at `address`: it has one of the ports of `own`, our
    endpoints as others get them, and the host of that endpoint, or a host that we listen on.

    Names are compared as they are; none is resolved, because that may take long.
    """
    host, port = split_address(address)
    host = _number_of(host)
    for endpoint in own:
        own_host, own_port = split_address(endpoint)
        if port != own_port:
            continue
        if host in (_number_of(own_host), _number_of(listen_host)):
            return True
        if listen_host in _ANY and _is_of_this_machine(host):
            return True
    return False


def _number_of(host: str) -> str:
    return "127.0.0.1" if host == "localhost" else host.lower()


def _is_of_this_machine(host: str) -> bool:
    """Whether the kernel lets a socket have this address; False for a name."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        packed = socket.inet_pton(family, host)
    except OSError:
        return False
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((socket.inet_ntop(family, packed), 0))
        except OSError:
            return False
    return True
