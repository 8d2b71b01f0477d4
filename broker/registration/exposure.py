"""Whether strangers may do what they like here: a port beyond loopback that asks for no account."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from aerobee.config.model import Settings


def exposures(settings: Settings) -> Iterator[str]:
    """A sentence for each part that is open so: what a stranger could do, and what closes it."""
    if not is_loopback(settings.listen_host) and not settings.acl_enabled:
        yield (
            f"whoever reaches the broker on {_shown(settings.listen_host)} may send, read, delete "
            "topics and move offsets, since it asks for no account: set aclEnable=true and "
            "aclFile=FILE (docs/security.md), or keep its ports behind a firewall"
        )
    is_served = settings.nameserver_enabled and not is_loopback(settings.nameserver_host)
    if is_served and not settings.nameserver_acl_enabled:
        yield (
            f"whoever reaches the name server on {_shown(settings.nameserver_host)} may register a "
            "broker in another one's place or take its routes away: set namesrvAclEnable=true and "
            "aclFile=FILE (docs/security.md), or keep its port behind a firewall"
        )


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is for this machine alone; "" means all addresses."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _shown(host: str) -> str:
    return host or "all addresses"
