"""Retries with backoff, for requests that do no harm when they are made twice.

A broker that is restarted, a name server that has not heard of it again yet, a full disk: what may
pass is tried again, with pauses that grow to a second, for as long as the caller allows. What
cannot pass (the request is wrong, the message too large) is raised at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from aerobee.client.connections.session import Session
from aerobee.client.errors import ClientError, NetworkError, PeerBusy, PeerError, Untrusted
from aerobee.protocol.codes import ResponseCode

T = TypeVar("T")

_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0


async def with_backoff(
    session: Session,
    retry_s: float,
    ask: Callable[[], Awaitable[T]],
    also: tuple[type[ClientError], ...] = (),
) -> T:
    """What `ask` gives, tried again while what it raises may pass (`also`: these as well)."""
    session.check_running()
    until = time.monotonic() + retry_s
    pause_s = _PAUSE_S
    while True:
        try:
            return await ask()
        except ClientError as error:
            may_pass = may_pass_later(error) or isinstance(error, also)
            if not may_pass or time.monotonic() + pause_s >= until:
                raise
            if isinstance(error, NetworkError):
                session.refresh_routes_soon()
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def may_pass_later(error: ClientError) -> bool:
    """Whether the same request may succeed when it is sent again."""
    if isinstance(error, PeerError):
        return isinstance(error, PeerBusy) or error.code == ResponseCode.FLUSH_DISK_TIMEOUT
    return isinstance(error, NetworkError) and not isinstance(error, Untrusted)
