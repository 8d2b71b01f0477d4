"""Examines the ports that a broker takes: free, taken by it, or by somebody else."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from typing import Final

from aerobee.cli.doctor.findings import Machine, fault, ok, unknown
from aerobee.cli.doctor.processes import name_of, port_holder
from aerobee.cli.documents.doctor import Finding
from aerobee.config.errors import ConfigError
from aerobee.config.model import Settings
from aerobee.config.ports import Listener, check_ports, listeners

_CHECK: Final = "port"


def ports(settings: Settings, machine: Machine) -> Iterator[Finding]:
    """One finding for each port with a fixed number."""
    try:
        check_ports(settings)
    except ConfigError as error:
        yield fault(_CHECK, error.key, f"{error.value} {error.reason}", f"change {error.key}")
    for one in listeners(settings):
        yield _port(one, machine)


def _port(one: Listener, machine: Machine) -> Finding:
    subject = f"{one.host or '*'}:{one.port}"
    error = _why_not_bound(one)
    if error is None:
        if machine.pid is None:
            return ok(_CHECK, subject, f"free, for {one.what}")
        text = f"nobody listens there, and {name_of(machine, machine.pid)} runs with this store"
        return fault(
            _CHECK, subject, f"{text} ({one.what})",
            "start the broker anew, or name its own configuration: aerobee doctor -c FILE",
        )  # fmt: skip
    if error.errno == errno.EADDRINUSE:
        return _taken(one, subject, machine)
    if error.errno == errno.EACCES:
        return fault(
            _CHECK, subject, "this user may not take a port below 1024",
            f"another port ({one.remedy}), or AmbientCapabilities=CAP_NET_BIND_SERVICE in the unit",
        )  # fmt: skip
    if error.errno == errno.EADDRNOTAVAIL:
        host = one.key.partition(".")[0]
        return fault(
            _CHECK, subject, f"{one.host} is no address of this machine",
            f"another address: the host setting of {host} (aerobee config show --origin)",
        )  # fmt: skip
    return unknown(_CHECK, subject, f"it cannot be tried: {error.strerror or error}")


def _taken(one: Listener, subject: str, machine: Machine) -> Finding:
    holder = port_holder(machine, one.port)
    if holder is not None and holder == machine.pid:
        return ok(_CHECK, subject, f"taken by the broker itself, process {holder} ({one.what})")
    if holder is None and machine.pid is not None and os.geteuid() != 0:
        return unknown(
            _CHECK, subject, f"taken, and this user may not see by whom ({one.what})",
            f"as root: aerobee doctor; or ss -ltnp 'sport = :{one.port}'",
        )  # fmt: skip
    who = "another process" if holder is None else name_of(machine, holder)
    return fault(
        _CHECK, subject, f"taken by {who} ({one.what})",
        f"stop it (ss -ltnp 'sport = :{one.port}' names it), or take another port: {one.remedy}",
    )  # fmt: skip


def _why_not_bound(one: Listener) -> OSError | None:
    """The error of taking the port for a moment; None when that went well. It never listens, so no
    client comes to it."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            one.host or None, one.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as taken:
            # The broker does so too: connections that end do not keep the port.
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(address)
    except OSError as error:
        return error
    return None
