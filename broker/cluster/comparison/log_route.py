"""Whether haMasterAddress leads to the master that a slave was compared with.

The comparison asks the master's port for clients, which the name servers tell. The log comes from
the port for slaves, which haMasterAddress may name. If these are two brokers, a slave that fits the
one takes the log of the other, and no check of its records shows it. So the connection for the log
has to lead

    to the port for slaves that the name servers tell of this master, on the host that they tell for
    it or on the host that was compared with; or
    to a port where the compared master sees it: its answer to 907 lists this connection. This is
    the surer way, and the only one while no name server tells a port. It fails where something
    between the two changes addresses (NAT), so it is not asked for where the first holds.

RocketMQ 4.9 does not answer 907. While no name server tells its port for slaves, that has to be on
the compared host, one above the port for clients, where RocketMQ has it.

Loop thread only.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Protocol

from aerobee.broker.cluster.comparison.comparing import RefusalKind, Refused
from aerobee.broker.cluster.registration.master_address import MasterAddress, split_address
from aerobee.remoting.peers import address_text, plain_address

# A connection is listed a moment after it is open: it waits for a turn of the master's loop, and
# with TLS for the end of the handshake there.
_LOOKS = 5
_LOOK_S = 0.1
_RESOLVE_S = 3.0
_LOOPBACK = "127.0.0.1"


class LogConnection(Protocol):
    """The connection over which the log would come."""

    #: Its ends: this slave's socket, and the address that was connected to.
    own: tuple[str, int]
    peer: tuple[str, int]
    #: Done when it has ended.
    closed: asyncio.Future[str]


class ComparedMaster(Protocol):
    """The master that was compared with."""

    @property
    def peer(self) -> tuple[str, int]:
        """The address of its port for clients that is connected to."""

    async def has_connection(self, own: tuple[str, int]) -> bool | None:
        """See `RemoteMaster.has_connection`."""


async def other_pair(
    master: ComparedMaster, connection: LogConnection, known: MasterAddress
) -> Refused | None:
    """The refusal where `connection` may lead to another broker than `master`; None where it leads
    there, or has ended. Raises MasterUnreachable and MasterRefuses."""
    if not known.is_given:
        # The name server told both addresses in one answer.
        return None
    if known.told_ha is not None and await _leads_to(
        split_address(known.told_ha), master, connection
    ):
        return None
    for look in range(_LOOKS):
        seen = await master.has_connection(connection.own)
        if seen or connection.closed.done():
            return None
        if seen is None:
            break
        if look < _LOOKS - 1:
            await asyncio.sleep(_LOOK_S)
    if seen is None and known.told_ha is None:
        host, port = master.peer
        if await _leads_to((host, port + 1), master, connection):
            return None
    return _refused(master, known, lists_slaves=seen is not None)


async def _leads_to(
    told: tuple[str, int], master: ComparedMaster, connection: LogConnection
) -> bool:
    """Whether a connection leads to the port that was told, on the host that was told or compared
    with."""
    told_host, told_port = told
    host, port = connection.peer
    if port != told_port:
        return False
    if _one_form(host) == _one_form(master.peer[0]):
        return True
    return _one_form(host) in await _addresses(told_host)


async def _addresses(host: str) -> set[str]:
    """The addresses of a host; none for a name that cannot be resolved now."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_RESOLVE_S):
            found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError, ValueError):
        return set()
    return {_one_form(str(address[0])) for *_, address in found}


def _one_form(host: str) -> str:
    host, _ = plain_address((host, 0))
    return _LOOPBACK if host == "::1" else host


def _refused(master: ComparedMaster, known: MasterAddress, *, lists_slaves: bool) -> Refused:
    compared = address_text(master.peer)
    if known.told_ha is None:
        told = "no name server tells its port for slaves"
    else:
        told = f"the name servers tell {known.told_ha} as its port for slaves"
    if lists_slaves:
        seen = "it does not see this slave's connection among those of its port for slaves"
    else:
        seen = "RocketMQ 4.9 does not tell which slaves are connected to it"
    return Refused(
        RefusalKind.OTHER_PAIR,
        f"haMasterAddress {known.ha} leads to another pair, or to a port that is not for slaves: "
        f"the master that this slave was compared with is at {compared}, {told}, and {seen}. "
        "Nothing is copied from there. Correct ha_master_address (haMasterAddress), or leave "
        "haMasterAddress out, which takes the address that the name servers tell. If it is another "
        "way to the same master, give that master brokerIP2 and haListenPort (ha_host, "
        "ha_listen_port), so that it tells this address",
    )
