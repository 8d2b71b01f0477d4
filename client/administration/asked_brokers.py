"""Asks several brokers, of which some may be away: each of these costs one time-out at most."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Final, TypeVar

from aerobee.client.connections.session import Session
from aerobee.client.errors import NetworkError
from aerobee.protocol.bodies.routes import MASTER_ID, BrokerRoute
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.frames.command import Command

T = TypeVar("T")
U = TypeVar("U")

_AT_ONCE: Final = 16
_NUMBER: Final = re.compile(r"[0-9]{1,18}", re.ASCII)
_SUCCESS: Final = (ResponseCode.SUCCESS,)


class AskedBrokers:
    """The brokers of a cluster by name: the master of each, or a slave where it has none."""

    def __init__(self, session: Session, brokers: Mapping[str, BrokerRoute]) -> None:
        self._session = session
        self._addresses = {
            name: one.addresses.get(MASTER_ID) or one.addresses[min(one.addresses)]
            for name, one in sorted(brokers.items())
            if one.addresses
        }
        #: The brokers without a master, of which a slave is asked.
        self.slaves = [name for name in self._addresses if MASTER_ID not in brokers[name].addresses]
        #: The brokers that did not answer, with the error. They are not asked again.
        self.unanswered: dict[str, NetworkError] = {}

    @property
    def names(self) -> list[str]:
        """All brokers, sorted, also those that did not answer."""
        return list(self._addresses)

    def address(self, broker: str) -> str:
        """The address where a broker is asked."""
        return self._addresses[broker]

    async def call(
        self,
        broker: str,
        code: RequestCode,
        ext: dict[str, str] | None = None,
        *,
        accept: Collection[int] = _SUCCESS,
    ) -> Command | None:
        """The answer of a broker, None if it does not answer. Raises PeerError for an answer whose
        code is not in `accept`."""
        if broker in self.unanswered:
            return None
        try:
            return await self._session.call(self._addresses[broker], code, ext, accept=accept)
        except NetworkError as error:
            self.unanswered[broker] = error
            return None


async def each(ask: Callable[[T], Awaitable[U]], items: Iterable[T]) -> list[U]:
    """The answers to a question about each item, some at a time, in the order of the items."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def one(item: T) -> U:
        async with turns:
            return await ask(item)

    return await asyncio.gather(*(one(item) for item in items))


def number_of(text: str | None) -> int | None:
    """A whole number that a peer or a property gives as text, None for anything else."""
    return int(text) if text is not None and _NUMBER.fullmatch(text) else None
