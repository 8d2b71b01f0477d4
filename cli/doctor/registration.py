"""Judges what clients are told of a broker, and whether they reach it.

Clients ask any of the name servers, so a server that is dead, or that tells something else
than the others, is felt by some clients only.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from typing import Final

from aerobee.cli.doctor.findings import fault, ok, unknown, warning
from aerobee.cli.doctor.survey import (
    ROUTES_MOST,
    Answered,
    Survey,
    Told,
    addresses_text,
    local_address,
    own_addresses,
    route_text,
    vip_of,
)
from aerobee.cli.documents.doctor import Finding
from aerobee.client.errors import ClientError
from aerobee.config.model import Settings
from aerobee.protocol.bodies.routes import MASTER_ID, TopicRoute

_NAMED: Final = 3
_OFF_MOST_S: Final = 3
_FAR_OFF_S: Final = 60
_REACHABLE: Final = (
    "broker.advertised_host (brokerIP1) has to be an address that clients reach, and the firewall "
    "has to let its port through"
)
_REGISTERS: Final = (
    "brokers register every 30 s: the log of one that is missing says why a registration failed, "
    "and broker.name_servers (namesrvAddr) has to name all"
)


def registration(found: Survey, settings: Settings, *, is_running: bool) -> Iterator[Finding]:
    """All findings. `is_running`: a broker with these settings runs on this machine."""
    if is_running:
        yield _local(found, settings)
    yield from _name_servers(found, settings, is_running=is_running)
    tables = found.tables
    if len(tables) > 1:
        yield from _differences(tables, found.routes)
    if tables:
        own = own_addresses(settings, tables)
        if is_running:
            yield from _registered(settings.broker_name, tables, own)
        yield from _addresses(found, settings, own, is_running=is_running)


def _local(found: Survey, settings: Settings) -> Finding:
    address = local_address(settings)
    answer = found.brokers[address]
    if isinstance(answer, ClientError):
        remedy = "look at its log, and at /ready of its HTTP port"
        return fault("broker", address, f"it runs, and does not answer: {answer}", remedy)
    return ok("broker", address, "it runs and answers")


def _name_servers(found: Survey, settings: Settings, *, is_running: bool) -> Iterator[Finding]:
    for server, one in found.told.items():
        if isinstance(one, Told):
            text = f"it answers, and knows {len(one.cluster.brokers)} brokers"
            yield ok("name server", server, text)
        elif not is_running and not settings.name_server_list:
            text = "it is part of the broker, which does not run"
            yield unknown("name server", server, text, "aerobee serve, and then this again")
        else:
            yield fault(
                "name server", server, f"clients that ask it get no route: {one}",
                "start it, or take it out of broker.name_servers (namesrvAddr) and out of what "
                "clients are given",
            )  # fmt: skip


# --- what they tell


def _differences(
    tables: Mapping[str, Told], routes: Mapping[str, Mapping[str, TopicRoute | None]]
) -> Iterator[Finding]:
    found = list(differences(tables, routes))
    for subject, text in found:
        yield warning("name servers", subject, text, _REGISTERS)
    if not found:
        more = f" (the first {ROUTES_MOST} topics)" if len(routes) == ROUTES_MOST else ""
        text = f"all tell the same, routes of {len(routes)} topics compared{more}"
        yield ok("name servers", ";".join(tables), text)


def differences(
    tables: Mapping[str, Told], routes: Mapping[str, Mapping[str, TopicRoute | None]]
) -> Iterator[tuple[str, str]]:
    """The points in which name servers tell different things: a subject and a sentence for each."""
    for name in sorted({name for one in tables.values() for name in one.cluster.brokers}):
        known = {server: one.cluster.brokers.get(name) for server, one in tables.items()}
        tells = {
            server: "no such broker" if one is None else addresses_text(one.addresses)
            for server, one in known.items()
        }
        if len(set(tells.values())) > 1:
            yield f"broker {name}", _who_tells(tells)
    for server, one in tables.items():
        others = frozenset().union(*(two.topics for key, two in tables.items() if key != server))
        if missing := sorted(others - one.topics):
            yield server, f"it lacks {len(missing)} topics that others know: {_some(missing)}"
    for topic, by_server in routes.items():
        tells = {server: route_text(one) for server, one in by_server.items()}
        if len(set(tells.values())) > 1:
            yield f"topic {topic}", _who_tells(tells)


def _who_tells(tells: Mapping[str, str]) -> str:
    who: dict[str, list[str]] = {}
    for server, text in tells.items():
        who.setdefault(text, []).append(server)
    return "; ".join(f"{', '.join(servers)} tells {text}" for text, servers in who.items())


def _some(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _registered(name: str, tables: Mapping[str, Told], own: Mapping[str, str]) -> Iterator[Finding]:
    for server in tables:
        if server in own:
            yield ok("registration", server, f"it tells clients {own[server]} for {name}")
        else:
            text = f"it does not know the broker {name}, which runs here"
            yield fault("registration", server, text, _REGISTERS)


# --- the addresses


def _addresses(
    found: Survey, settings: Settings, own: Mapping[str, str], *, is_running: bool
) -> Iterator[Finding]:
    """Whether brokers answer where clients are told that they are, and how their clocks are."""
    ours = set(own.values())
    local = found.brokers.get(local_address(settings)) if is_running else None
    for address in sorted(ours):
        yield _dialled(address, found.brokers[address], local, is_running=is_running)
        vip = vip_of(address) if is_running and settings.vip_port_enabled else None
        if vip is not None:
            yield _vip(vip, found.brokers[vip])
    others = {
        broker.addresses[MASTER_ID]
        for one in found.tables.values()
        for broker in one.cluster.brokers.values()
        if MASTER_ID in broker.addresses
    }
    for address in sorted(others - ours):
        answer = found.brokers[address]
        if isinstance(answer, ClientError):
            text = f"clients are told this address, and from here nobody answers: {answer}"
            yield fault("address", address, text, "start this broker, or look at its log")
        else:
            yield ok("address", address, "it answers where clients are told that it is")
    for address in sorted(ours | others):
        answer = found.brokers[address]
        if isinstance(answer, Answered) and answer.clock_off_s is not None:
            yield clock_finding(address, answer.clock_off_s)


def _dialled(
    address: str,
    answer: Answered | ClientError,
    local: Answered | ClientError | None,
    *,
    is_running: bool,
) -> Finding:
    """Judges the address that clients are told for the broker of these settings."""
    if isinstance(answer, ClientError):
        text = f"clients are told this address, and from here nobody answers: {answer}"
        return fault("address", address, text, _REACHABLE if is_running else "start the broker")
    here = local.boot_ms if isinstance(local, Answered) else None
    if here is not None and answer.boot_ms is not None and answer.boot_ms != here:
        text = "another broker answers there than the one that runs on this machine"
        return fault("address", address, text, _REACHABLE)
    if is_loopback(address):
        text = "it answers, and no client of another machine reaches an address of loopback"
        return warning("address", address, text, _REACHABLE)
    return ok("address", address, "it answers where clients are told that it is")


def _vip(address: str, answer: Answered | ClientError) -> Finding:
    if isinstance(answer, ClientError):
        text = f"older clients take this port (the VIP channel), and nobody answers: {answer}"
        remedy = "let the firewall pass it, or have clients set vipChannelEnabled to false"
        return warning("address", address, text, remedy)
    return ok("address", address, "the VIP channel answers")


def clock_finding(address: str, off_s: float) -> Finding:
    """That of a broker's clock, which is `off_s` ahead of ours."""
    if abs(off_s) <= _OFF_MOST_S:
        return ok("clock", address, "the broker's clock agrees with this machine's")
    text = f"the broker's clock is {abs(off_s):.0f} s {'ahead of' if off_s > 0 else 'behind'} ours"
    make = fault if abs(off_s) > _FAR_OFF_S else warning
    remedy = "timedatectl set-ntp true, or install chrony, on both machines"
    return make("clock", address, text, remedy)


def is_loopback(address: str) -> bool:
    """Whether no other machine can reach this address of host and port."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
