"""Tells whether strangers may do anything here: on a port beyond loopback that asks for no
account."""

from __future__ import annotations

from typing import Final

from aerobee.config.model import Settings
from aerobee.config.setting_rules import is_loopback

_EVERYTHING: Final = "send, read, delete topics and move offsets"


def exposures(settings: Settings) -> list[str]:
    """A sentence for each open part of a broker: what a stranger could do, and the setting that
    closes it."""
    found = [broker_exposure(settings), administration_exposure(settings)]
    if settings.replicates:
        found.append(replication_exposure(settings))
    if settings.nameserver_enabled:
        found.append(name_server_exposure(settings))
    return [text for text in found if text is not None]


def broker_exposure(settings: Settings) -> str | None:
    """The sentence for the ports of clients; None if they are closed to strangers."""
    if is_loopback(settings.listen_host) or settings.acl_enabled:
        return None
    what = "send, read and move offsets" if settings.admin_port else _EVERYTHING
    return _open_broker("the broker", settings.listen_host, what)


def administration_exposure(settings: Settings) -> str | None:
    """The sentence for the port that administrators have for themselves."""
    if not settings.admin_port or is_loopback(settings.admin_host) or settings.acl_enabled:
        return None
    return _open_broker("the administrators' port", settings.admin_host, _EVERYTHING)


def replication_exposure(settings: Settings) -> str | None:
    """The sentence for the port for slaves. With aclEnable its white addresses are asked for."""
    limited = settings.ha_slave_addresses or settings.acl_enabled
    if is_loopback(settings.listen_host) or limited:
        return None
    return (
        f"whoever reaches the port for slaves on {_shown(settings.listen_host)} may copy every "
        "message: set haSlaveAddresses (replication.ha_slave_addresses), or keep the port behind a "
        "firewall"
    )


def _open_broker(part: str, host: str, what: str) -> str:
    return (
        f"whoever reaches {part} on {_shown(host)} may {what}, since it asks for no account: set "
        "aclEnable=true and aclFile=FILE (docs/security.md), or keep its ports behind a firewall"
    )


def name_server_exposure(settings: Settings) -> str | None:
    """The sentence for a name server, embedded or alone."""
    if is_loopback(settings.nameserver_host) or settings.nameserver_acl_enabled:
        return None
    return (
        f"whoever reaches the name server on {_shown(settings.nameserver_host)} may register a "
        "broker in another one's place or take its routes away: set namesrvAclEnable=true and "
        "aclFile=FILE (docs/security.md), or keep its port behind a firewall"
    )


def _shown(host: str) -> str:
    return host or "all addresses"
