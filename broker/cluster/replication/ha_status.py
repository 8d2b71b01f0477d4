"""GET_BROKER_HA_STATUS (907) of RocketMQ 5, as `mqadmin haStatus` and `aerobee broker ha` show it
(protocol/WIRE.md 4.13).

A master tells of its slaves, a slave of its master; a broker whose port for slaves is closed is a
master without slaves. Members of our own, which `mqadmin` passes over, say why a slave is refused
or does not follow.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from aerobee.protocol.bodies.ha_status import HaStatus, MasterStatus, RefusedSlave, SlaveStatus
from aerobee.protocol.frames.command import Command, encode_success
from aerobee.remoting.peers import address_text
from aerobee.store.message_store import MessageStore

# Most brokers never load these.
if TYPE_CHECKING:
    from aerobee.broker.cluster.replication.ha_port import HaPort, SlaveFigures
    from aerobee.broker.cluster.replication.master_link import MasterLink
    from aerobee.broker.cluster.replication.replication import Replication


def ha_status(
    store: MessageStore, replication: Replication | None, promised: int, command: Command
) -> bytes:
    """The answer to an administrator: the slaves or the master. `promised` is the number of slaves
    that an answer of success waits for. Loop thread only."""
    if replication is None:
        status = HaStatus(store.written)
    elif replication.link is not None:
        status = HaStatus(master=_of_master(replication.link, store.written))
    else:
        status = _of_slaves(replication.port, store.written, promised)
    return encode_success(command, status.encode())


def _of_slaves(port: HaPort, end: int, promised: int) -> HaStatus:
    return HaStatus(
        end,
        tuple(_of_slave(one) for one in port.figures()),
        copies=port.near,
        refused=tuple(RefusedSlave(host, text) for host, text in port.refused_slaves()),
        silent=tuple(address_text(peer) for peer in port.silent_peers()),
        promised=promised,
    )


def _of_slave(figures: SlaveFigures) -> SlaveStatus:
    connection = figures.connection
    return SlaveStatus(
        address_text(connection.peer),
        connection.follower.reported,
        figures.behind,
        figures.is_near,
        connection.rate.bytes_a_second,
        connection.follower.position,
    )


def _of_master(link: MasterLink, end: int) -> MasterStatus:
    return MasterStatus(
        link.master,
        link.problem is None,
        end,
        _ms_ago(link.heard_ago_s),
        _ms_ago(link.told_ago_s),
        link.rate.bytes_a_second,
        problem=link.problem or "",
        refusal=link.refusal or "",
    )


def _ms_ago(seconds: float | None) -> int:
    """The time of the epoch so long ago; 0 for never."""
    return 0 if seconds is None else round((time.time() - seconds) * 1000)
