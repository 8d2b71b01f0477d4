"""A master that starts asks its slaves for the offsets that were committed there meanwhile.

While a master is away consumers go on at its slaves, and commit there. So before it registers it
looks at the name servers for slaves of its name, asks each for all offsets (43, which RocketMQ's
answers too), and takes those that are larger than its own; never larger than a queue's end, which
may be less than the slave's where this log has lost its last messages. Otherwise consumers that
come back would get all that again.

The offsets of a slave whose log differs from this log mean other messages, and would have groups
pass over messages here. So the logs are compared first (`comparison/`).

A start does not wait longer for this than a second and a half. A slave that has not answered by
then is passed over, and its consumers may get messages again.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from aerobee.broker.cluster.comparison.master_requests import (
    MasterRefuses,
    MasterRequests,
    MasterUnreachable,
    RemoteMaster,
)
from aerobee.broker.cluster.registration.master_address import split_address
from aerobee.broker.cluster.registration.name_server_link import parse_server
from aerobee.broker.cluster.registration.namesake import ask_brokers
from aerobee.broker.tables.offsets import ConsumerOffsets, OffsetTable
from aerobee.protocol.bodies.routes import MASTER_ID
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.command import make_request
from aerobee.remoting.calling.caller import Caller, caller_set
from aerobee.remoting.connections.connection_set import ConnectionSet
from aerobee.remoting.errors import RemotingError
from aerobee.store.errors import StoreError
from aerobee.store.log.collector import collector_paused

if TYPE_CHECKING:
    from aerobee.access.files.credentials import Credentials

log = logging.getLogger("aerobee.broker.replication")

# For all name servers and slaves together.
_ALL_S: Final = 1.5
_CONNECT_S: Final = 0.5
# Groups in topics that are looked at in one step, some microseconds each.
_STEP: Final = 64


class Asking(NamedTuple):
    """The broker that asks: its name, its own address, whether a slave has its log
    (`comparison.is_copy`), and how it connects."""

    broker_name: str
    endpoint: str
    is_copy: Callable[[MasterRequests], Awaitable[bool]]
    tls: ssl.SSLContext | None = None
    credentials: Credentials | None = None


async def take_from_slaves(
    asking: Asking,
    servers: Sequence[str],
    offsets: ConsumerOffsets,
    max_offset: Callable[[str, int], int],
    *,
    within_s: float = _ALL_S,
) -> int:
    """Take the larger offsets of the slaves that these name servers know, and that answer within
    `within_s` seconds; returns how many offsets were smaller here. `max_offset` is of the queues.
    Raises ValueError for a name server that is no `host:port`."""
    found: dict[str, OffsetTable] = {}
    try:
        async with asyncio.timeout(within_s):
            await _ask_all(asking, servers, found)
    except TimeoutError:
        log.warning("not all slaves and name servers have answered, the start goes on")
    if not found:
        return 0
    taken = 0
    for table in found.values():
        taken += await take_larger(table, offsets, max_offset)
    log.info("offsets of slaves taken count=%d slaves=%s", taken, ", ".join(found))
    return taken


async def take_larger(
    table: OffsetTable, offsets: ConsumerOffsets, max_offset: Callable[[str, int], int]
) -> int:
    """Take the offsets of a slave that are larger than those here, up to the queues' ends; returns
    how many were."""
    taken = 0
    for number, ((topic, group), queues) in enumerate(table.items(), 1):
        own = offsets.of(group, topic)
        for queue_id, offset in queues.items():
            wanted = min(offset, max_offset(topic, queue_id))
            if wanted > own.get(queue_id, 0):
                taken += offsets.commit(group, topic, queue_id, wanted)
        if number % _STEP == 0:
            await asyncio.sleep(0)
    return taken


async def _ask_all(asking: Asking, servers: Sequence[str], found: dict[str, OffsetTable]) -> None:
    """Ask the slaves for their offsets; `found` has the answers that have come, by address."""
    shared = caller_set(name="slaves")
    asked = await asyncio.gather(*(_slaves_at(asking, server, shared) for server in servers))
    slaves = sorted(set().union(*asked) - {asking.endpoint})
    await asyncio.gather(*(_ask_one(asking, slave, shared, found) for slave in slaves))


async def _slaves_at(asking: Asking, server: str, shared: ConnectionSet) -> Iterable[str]:
    """The slaves of the broker's name that a name server knows; none if it does not answer."""
    host, port = parse_server(server)
    try:
        caller = await Caller.connect(host, port, _CONNECT_S, shared=shared, tls=asking.tls)
    except RemotingError as error:
        log.info("name server not asked for slaves name_server=%s why=%s", server, error)
        return ()
    try:
        route = (await ask_brokers(caller)).get(asking.broker_name)
    except RemotingError as error:
        log.info("name server not asked for slaves name_server=%s why=%s", server, error)
        return ()
    finally:
        caller.close()
    if route is None:
        return ()
    return [at for broker_id, at in route.addresses.items() if broker_id != MASTER_ID]


async def _ask_one(
    asking: Asking, slave: str, shared: ConnectionSet, found: dict[str, OffsetTable]
) -> None:
    """Ask a slave for its offsets."""
    host, port = split_address(slave)
    try:
        caller = await Caller.connect(host, port, _CONNECT_S, shared=shared, tls=asking.tls)
        try:
            if not await asking.is_copy(RemoteMaster(caller, _ALL_S, asking.credentials)):
                raise ValueError("its log differs from this broker's: they mean other messages")
            request = make_request(RequestCode.GET_ALL_CONSUMER_OFFSET)
            if asking.credentials is not None:
                request = asking.credentials.sign(request)
            answer = await caller.call(request, _ALL_S)
        finally:
            caller.close()
        if answer.code != ResponseCode.SUCCESS:
            raise ValueError(f"it answers code {answer.code}: {(answer.remark or '')[:200]}")
        loop = asyncio.get_running_loop()
        found[slave] = await loop.run_in_executor(None, _read, answer.body)
    except (
        RemotingError, BadRequest, ValueError, KeyError, TypeError, OverflowError,
        MasterRefuses, MasterUnreachable, StoreError,
    ) as error:  # fmt: skip
        log.warning("offsets of a slave not taken slave=%s why=%s", slave, error)


def _read(body: bytes) -> OffsetTable:
    with collector_paused():
        return ConsumerOffsets.read(body)
