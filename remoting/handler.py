"""Who is told what happens on connections: the broker's router, the name server, a client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from aerobee.protocol.frames.command import Command

if TYPE_CHECKING:
    from aerobee.remoting.connection import Connection


class Handler(Protocol):
    """What a connection tells its owner. Plain calls on the loop; none may wait."""

    def connection_opened(self, connection: Connection) -> None:
        """The connection can be written to."""

    def commands_received(self, connection: Connection, commands: list[Command]) -> None:
        """Requests of one socket read, or a part of them, in order; no answers of the peer.

        Who keeps answers back until the loop's turn ends counts them in `unwritten` until then.
        """

    def connection_closed(self, connection: Connection, reason: str) -> None:
        """Called once, after `connection_opened`; nothing follows."""
