"""Checks, before any port is taken, that no two parts of a broker want the same one.

The system's own error reads as if another process had the port ("is another broker running?").
The check is made by the daemon, on the settings it starts with: the command line may have changed
ports after they were loaded. Ports that are off, or 0 (any free one), cannot clash.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from aerobee.config.errors import ConfigError
from aerobee.config.model import Settings

VIP_BELOW: Final = 2
_ANY: Final = ("", "0.0.0.0", "::")


class Listener(NamedTuple):
    """One port to be taken: the setting that moves it, how its number comes about, what to do when
    somebody else has it."""

    key: str
    what: str
    host: str
    port: int
    remedy: str


def listeners(settings: Settings) -> list[Listener]:
    """The ports with fixed numbers that this configuration takes."""
    found = []
    host, port = settings.listen_host, settings.listen_port
    if port:
        remedy = "--port N or broker.listen_port"
        found.append(Listener("broker.listen_port", "broker.listen_port", host, port, remedy))
    if port and settings.vip_port_enabled:
        what = "the VIP port, broker.listen_port - 2 (broker.vip_port_enabled = false: off)"
        remedy = "it moves with --port; --set broker.vip_port_enabled=false turns it off"
        found.append(Listener("broker.vip_port_enabled", what, host, port - VIP_BELOW, remedy))
    if settings.replicates and (port := settings.ha_listen_port):
        needed = settings.starts_as_slave or settings.waits_for_slaves
        found.append(_of_slaves(host, port, may_be_off=not needed))
    if settings.admin_port:
        found.append(_of_administrators(settings, "admin.port", settings.admin_port))
    if settings.nameserver_enabled and (port := settings.nameserver_admin_port):
        found.append(_of_administrators(settings, "nameserver.admin_port", port))
    for part in ("nameserver", "http"):
        host, port = getattr(settings, f"{part}_host"), getattr(settings, f"{part}_port")
        if getattr(settings, f"{part}_enabled") and port:
            remedy = f"--{part}-port N or {part}.port; 0 turns it off"
            found.append(Listener(f"{part}.port", f"{part}.port (0: off)", host, port, remedy))
    return found


def _of_slaves(host: str, port: int, *, may_be_off: bool) -> Listener:
    key = "replication.ha_listen_port"
    what = f"{key}, the port for slaves (0: broker.listen_port + 1)"
    remedy = f"{key} (in a broker.conf it is listenPort + 1)"
    if may_be_off:
        remedy += "; replication.ha_enabled = false: off"
    return Listener(key, what, host, port, remedy)


def _of_administrators(settings: Settings, key: str, port: int) -> Listener:
    return Listener(key, key, settings.admin_host, port, f"{key}; 0: no port of its own")


def check_ports(settings: Settings) -> None:
    """Raises ConfigError, which names both settings, when two parts would take the same port."""
    check_clashes(listeners(settings))


def check_clashes(wanted: Iterable[Listener]) -> None:
    """Raise ConfigError when the ports of several processes clash."""
    seen: list[Listener] = []
    for late in wanted:
        if late.port < 1:
            reason = "leaves no VIP port, listen_port - 2; set broker.vip_port_enabled = false"
            raise ConfigError("broker.listen_port", str(late.port + VIP_BELOW), reason)
        for early in seen:
            if early.port == late.port and _same_host(early.host, late.host):
                reason = f"is also {early.what}; give one of the two another port"
                raise ConfigError(late.key, str(late.port), reason)
        seen.append(late)


def reachable(host: str) -> str:
    """An address for our own connections to a part that listens on `host`."""
    return "127.0.0.1" if host in _ANY else host


def _same_host(one: str, other: str) -> bool:
    return one == other or one in _ANY or other in _ANY
