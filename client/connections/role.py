"""What the roles of a client have in common: one session, started and closed with the role."""

from __future__ import annotations

from typing import Self

from aerobee.client.connections.session import Session


class Role:
    """A role that needs nothing but its session. Belongs to the loop it was started on."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def start(self) -> None:
        """Get ready; connections are made by the first call."""
        self._session.start()

    async def close(self) -> None:
        """Close the connections; calls still waiting fail."""
        await self._session.close()
