"""Asks each name server what it tells clients, and dials the brokers where clients are told to.

All are asked at the same time, so those that do not answer cost one time-out together.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple, TypeVar

from msgspec.structs import replace

from aerobee.client.administration.name_server_tables import cluster_at, route_at, topics_at
from aerobee.client.connections.session import Session
from aerobee.client.errors import CallerError, ClientError, NetworkError, reading
from aerobee.client.options import split_address
from aerobee.config.model import Settings
from aerobee.config.ports import VIP_BELOW, reachable
from aerobee.protocol.bodies.common import parse_kv_table
from aerobee.protocol.bodies.routes import MASTER_ID, ClusterInfo, TopicRoute
from aerobee.protocol.codes import RequestCode

T = TypeVar("T")

#: So many routes are compared.
ROUTES_MOST: Final = 200
_AT_ONCE: Final = 16
# Name servers hear of a change one after the other: what differs is asked for again after that.
_SETTLE_S: Final = 1.0
_RUNTIME: Final = re.compile(
    r"\[ (\d{1,9}) days, (\d{1,9}) hours, (\d{1,9}) minutes, (\d{1,9}) seconds \]"
)
_MOST_DIGITS: Final = 15


class Told(NamedTuple):
    """The tables of one name server, as it tells them."""

    cluster: ClusterInfo
    topics: frozenset[str]


class Answered(NamedTuple):
    """A broker that answered: when it says that it was started, and its clock less ours in seconds,
    None where it says neither."""

    boot_ms: int | None
    clock_off_s: float | None


class Survey(NamedTuple):
    """All answers, by address. An error stands for who did not answer."""

    #: Name servers.
    told: Mapping[str, Told | ClientError]
    #: The routes that each name server tells, by topic; None for a topic that it does not know.
    routes: Mapping[str, Mapping[str, TopicRoute | None]]
    #: Brokers, at the addresses that clients are told, and the one of this machine.
    brokers: Mapping[str, Answered | ClientError]

    @property
    def tables(self) -> dict[str, Told]:
        """The tables of those name servers that answered."""
        return {server: one for server, one in self.told.items() if isinstance(one, Told)}


def local_address(settings: Settings) -> str:
    """Where this machine reaches its own broker."""
    host = reachable(settings.listen_host)
    return f"[{host}]:{settings.listen_port}" if ":" in host else f"{host}:{settings.listen_port}"


def vip_of(address: str) -> str | None:
    """The address of the VIP channel that belongs to a broker's address; None where that has no
    such port, or is no address: a name server may tell anything."""
    try:
        _, port = split_address(address)
    except CallerError:
        return None
    host = address.rpartition(":")[0]
    return f"{host}:{port - VIP_BELOW}" if port > VIP_BELOW else None


def own_addresses(settings: Settings, told: Mapping[str, Told]) -> dict[str, str]:
    """The address of the broker of these settings, by the name server that tells it."""
    number = settings.broker_id if settings.starts_as_slave else MASTER_ID
    name = settings.broker_name
    brokers = {server: one.cluster.brokers.get(name) for server, one in told.items()}
    return {
        server: one.addresses[number]
        for server, one in brokers.items()
        if one is not None and number in one.addresses
    }


async def survey(
    session: Session, settings: Settings, *, is_running: bool, settle_s: float = _SETTLE_S
) -> Survey:
    """Ask all. `is_running`: a broker with these settings runs on this machine."""
    servers = session.name_servers
    told = await _all(servers, lambda one: _told(session, one))
    tables = {server: one for server, one in told.items() if isinstance(one, Told)}
    routes = await _routes(session, tables)
    if _differ(tables, routes):
        await asyncio.sleep(settle_s)
        told |= await _all(tables, lambda one: _told(session, one))
        tables = {server: one for server, one in told.items() if isinstance(one, Told)}
        routes = await _routes(session, tables)
    wanted = {
        address
        for one in tables.values()
        for broker in one.cluster.brokers.values()
        for number, address in broker.addresses.items()
        if number == MASTER_ID
    }
    own = set(own_addresses(settings, tables).values())
    wanted |= own
    if is_running:
        wanted.add(local_address(settings))
        if settings.vip_port_enabled:
            wanted |= {vip for vip in map(vip_of, own) if vip is not None}
    brokers = await _all(sorted(wanted), lambda one: _answer_of(session, one))
    return Survey(told, routes, brokers)


async def _all(
    addresses: Iterable[str], ask: Callable[[str], Awaitable[T]]
) -> dict[str, T | ClientError]:
    """The answer of each, or the error."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def in_turn(address: str) -> T | ClientError:
        async with turns:
            try:
                return await ask(address)
            except ClientError as error:
                return error

    asked = list(addresses)
    return dict(zip(asked, await asyncio.gather(*map(in_turn, asked)), strict=True))


async def _told(session: Session, name_server: str) -> Told:
    cluster = await cluster_at(session, name_server)
    return Told(cluster, await topics_at(session, name_server))


async def _routes(
    session: Session, tables: Mapping[str, Told]
) -> dict[str, dict[str, TopicRoute | None]]:
    """The routes of topics that all know, the first of them by name."""
    if not tables:
        return {}
    topics = sorted(frozenset.intersection(*(one.topics for one in tables.values())))
    found: dict[str, dict[str, TopicRoute | None]] = {}
    for topic in topics[:ROUTES_MOST]:
        routes = await _all(tables, partial(_route, session, topic))
        found[topic] = {
            server: None if isinstance(one, ClientError) else one for server, one in routes.items()
        }
    return found


async def _route(session: Session, topic: str, name_server: str) -> TopicRoute | None:
    return await route_at(session, name_server, topic)


def _differ(
    tables: Mapping[str, Told], routes: Mapping[str, Mapping[str, TopicRoute | None]]
) -> bool:
    first = next(iter(tables.values()), None)
    return any(one != first for one in tables.values()) or any(
        len(set(map(route_text, one.values()))) > 1 for one in routes.values()
    )


def route_text(route: TopicRoute | None) -> str:
    """A route in one form, whatever order its parts came in."""
    if route is None:
        return "no route"
    queues = sorted(replace(one, sys_flag=0) for one in route.queues)
    brokers = sorted((one.name, addresses_text(one.addresses)) for one in route.brokers)
    parts = [
        f"{one.broker_name} {one.read_queues}r{one.write_queues}w perm {one.perm}" for one in queues
    ]
    return ", ".join([*parts, *(f"{name} at {where}" for name, where in brokers)])


def addresses_text(addresses: Mapping[int, str]) -> str:
    """A broker's addresses by its ids."""
    return ", ".join(f"{number}={address}" for number, address in sorted(addresses.items()))


async def _answer_of(session: Session, address: str) -> Answered:
    """A broker that refuses the question has answered as well."""
    began = time.time()
    try:
        answer = await session.call(address, RequestCode.GET_BROKER_RUNTIME_INFO)
    except NetworkError:
        raise
    except ClientError:
        return Answered(None, None)
    # Half of the way is over when the broker looks at its clock.
    asked_at = (began + time.time()) / 2
    with reading(address):
        table = parse_kv_table(answer.body)
    return answered(table, asked_at)


def answered(table: Mapping[str, str], asked_at: float) -> Answered:
    """A broker's runtime table, read; `asked_at` is by our clock, in seconds since the epoch. The
    table gives the broker's clock in whole seconds."""
    boot = table.get("bootTimestamp", "")
    if not boot.isascii() or not boot.isdecimal() or len(boot) > _MOST_DIGITS:
        return Answered(None, None)
    runs = _RUNTIME.fullmatch(table.get("runtime", ""))
    if runs is None:
        return Answered(int(boot), None)
    days, hours, minutes, seconds = map(int, runs.groups())
    ran_s = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    # Half a second was cut off on average.
    return Answered(int(boot), int(boot) / 1000 + ran_s + 0.5 - asked_at)
