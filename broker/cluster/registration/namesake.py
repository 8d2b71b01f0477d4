"""Finds another broker that is registered under this broker's name and id.

A name server has one address for a name and an id, the last that was registered. So a second broker
that was started with the first broker's name (both have the default if nobody names them) takes its
clients away, and they find its empty topics where their messages were. So do two slaves that were
started with one brokerId. This only causes a warning: a broker that comes back at a new address
finds its old one registered too, for two minutes if its machine was lost, and has to be let in. Two
that were started at one time see each other in a later round: each has registered over the other.
"""

from __future__ import annotations

import logging

from aerobee.protocol.bodies.routes import MASTER_ID, BrokerRoute, ClusterInfo
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.errors import ProtocolError
from aerobee.protocol.frames.command import make_request
from aerobee.remoting.calling.caller import Caller
from aerobee.remoting.connections.connection_set import ConnectionSet
from aerobee.remoting.errors import RemotingError, RemotingTimeout

log = logging.getLogger("aerobee.broker.registration")

# The registration waits for the answer, but not for long: it only decides about a warning.
_ASK_S = 1.0
_CONNECT_S = 0.5


async def find_namesake(
    name_server: Caller, name: str, broker_id: int, address: str, shared: ConnectionSet
) -> str | None:
    """The address of another broker registered as `name` and `broker_id` that takes connections.

    None also when the name server does not answer the question. Raises RemotingError when it has
    gone.
    """
    try:
        brokers = await ask_brokers(name_server)
    except RemotingTimeout:
        return None
    known = brokers.get(name)
    other = known.addresses.get(broker_id) if known is not None else None
    if other is None or other == address:
        return None
    return other if await _listens(other, shared) else None


async def ask_brokers(name_server: Caller) -> dict[str, BrokerRoute]:
    """The brokers that are registered there, by name; empty when it refuses to tell.

    Raises RemotingError."""
    answer = await name_server.call(make_request(RequestCode.GET_BROKER_CLUSTER_INFO), _ASK_S)
    if answer.code != ResponseCode.SUCCESS:
        return {}
    try:
        return ClusterInfo.parse(answer.body).brokers
    except ProtocolError as error:
        log.info("clusters of the name server cannot be read why=%s", error)
        return {}


async def _listens(address: str, shared: ConnectionSet) -> bool:
    # IPv6 numbers stand without brackets there.
    host, _, port = address.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()):
        return False
    try:
        caller = await Caller.connect(host.strip("[]"), int(port), _CONNECT_S, shared=shared)
    except RemotingError:
        return False
    caller.close()
    return True


def namesake_warning(name: str, broker_id: int, other: str, here: str) -> str:
    """The warning of a namesake, for people."""
    if broker_id != MASTER_ID:
        return (
            f"another slave, at {other}, is registered as {name} with id {broker_id}: once this "
            "one is, consumers are sent to it alone; if that is not this slave at its former "
            "address, stop one of them and give it an id of its own (brokerId)"
        )
    return (
        f"another broker, at {other}, is registered as {name} with id {broker_id}: once this "
        f"one is, clients are sent to {here} and do not find what is stored there; if it is not "
        "this broker at its former address, stop one of them. Should that one be the slave of the "
        "other? Then start it with brokerRole=SLAVE and a brokerId above 0; only brokers that hold "
        "different messages need names of their own (brokerName)"
    )
