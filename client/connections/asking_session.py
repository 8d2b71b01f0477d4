"""The session of a command that shows what it can learn, and names whoever did not answer.

A peer that accepts and never answers must cost a command one time-out in all. So whoever has not
answered once is not asked again, and while a name server is silent the next one is asked as well
(`RouteCache`). The names of the silent peers, with the reasons, stand in `unanswered`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from aerobee.client.connections.session import SUCCESS, Session
from aerobee.client.errors import NetworkError
from aerobee.client.options import Addresses, ClientOptions
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.frames.command import Command

# After this time without an answer another name server is asked as well: many times a usual answer.
_NEXT_AFTER_S: Final = 0.5


class AskingSession(Session):
    """Belongs to one command."""

    def __init__(self, name_servers: Addresses, options: ClientOptions) -> None:
        next_after_s = min(_NEXT_AFTER_S, options.call_timeout_s / 4)
        super().__init__(name_servers, options, next_after_s=next_after_s)
        self._silent: dict[str, NetworkError] = {}

    async def call(
        self,
        address: str,
        code: RequestCode,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout_s: float | None = None,
        accept: Collection[int] = SUCCESS,
    ) -> Command:
        if (error := self._silent.get(address)) is not None:
            raise type(error)(str(error))
        try:
            return await super().call(address, code, ext, body, timeout_s=timeout_s, accept=accept)
        except NetworkError as failed:
            self._silent.setdefault(address, failed)
            if address in self.name_servers:
                self.routes.unanswered.setdefault(address, failed)
            raise

    @property
    def unanswered(self) -> Mapping[str, NetworkError]:
        """The peers that did not answer, with the reasons."""
        return {**self.routes.unanswered, **self._silent}

    async def settle(self) -> None:
        """Wait until each name server that was asked has answered, or its time is over."""
        await self.routes.settle()
