"""The calling end of a connection: connect, ask, be asked, close.

Used by the broker towards name servers and by the client. One connection each; making a new one
after a loss is the owner's decision. Answers are matched by opaque, so any number of calls may wait
at once. Loop thread only.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Iterable

from aerobee.protocol.frames.command import Command
from aerobee.remoting.connection_limits import KIB, RemotingLimits
from aerobee.remoting.connection_stats import CloseReason
from aerobee.remoting.connections.connection import Connection
from aerobee.remoting.connections.connection_set import ConnectionSet
from aerobee.remoting.errors import (
    RemotingClosed,
    RemotingConnectError,
    RemotingUntrusted,
    connect_failure,
)
from aerobee.remoting.peers import address_text

log = logging.getLogger("aerobee.remoting")

OnRequest = Callable[["Caller", Command], None]
OnClose = Callable[["Caller", str], None]

# A caller's answers are read in turns of 64 KiB; larger ones gather in the decoder.
CALLER_LIMITS = RemotingLimits(read_buffer_bytes=64 * KIB)


def caller_set(limits: RemotingLimits = CALLER_LIMITS, name: str = "caller") -> ConnectionSet:
    """A set that several callers of one loop may share: one buffer, one timer, common counters."""
    return ConnectionSet(limits, name, full_stops_reading=False)


class Caller:
    """One connection to a server. Made by `Caller.connect` only."""

    def __init__(
        self, shared: ConnectionSet, on_request: OnRequest | None, on_close: OnClose | None
    ) -> None:
        self._on_request = on_request
        self._on_close = on_close
        self.connection = Connection(shared, self)

    @classmethod
    async def connect(
        cls,
        host: str,
        port: int,
        timeout_s: float,
        on_request: OnRequest | None = None,
        on_close: OnClose | None = None,
        *,
        shared: ConnectionSet | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> Caller:
        """Connect, or raise `RemotingConnectError` with the address and the reason.

        `on_request` gets what the server asks of us (answer with `reply`), `on_close` is called
        once with the reason when the connection ends, whoever ended it. `tls` makes it a TLS
        connection.
        """
        caller = cls(shared or caller_set(), on_request, on_close)
        loop = asyncio.get_running_loop()
        where = address_text((host, port))
        try:
            async with asyncio.timeout(timeout_s):
                await loop.create_connection(lambda: caller.connection, host, port, ssl=tls)
        except TimeoutError as error:
            raise RemotingConnectError(
                f"cannot connect to {where}: no answer in {timeout_s:g} s"
            ) from error
        except ssl.SSLCertVerificationError as error:
            raise RemotingUntrusted(connect_failure(error, host)) from error
        except OSError as error:
            reason = connect_failure(error, host, over_tls=tls is not None)
            raise RemotingConnectError(f"cannot connect to {where}: {reason}") from error
        except ValueError as error:
            # A text that no resolver takes: too long between two dots, a NUL, half a character.
            raise RemotingConnectError(f"cannot connect to {where}: {error}") from error
        if caller.closed:
            raise RemotingConnectError(f"cannot connect to {where}: closed at once")
        return caller

    @property
    def closed(self) -> bool:
        return self.connection.closed

    @property
    def peer(self) -> tuple[str, int]:
        """Address and port connected to."""
        return self.connection.peer

    async def call(self, command: Command, timeout_s: float) -> Command:
        """Send a request and return the answer, whatever its code.

        Waits first while the server does not take what was sent. Raises `RemotingTimeout`,
        `RemotingClosed`, `RemotingBusy`.
        """
        if self.connection.full:
            await self.connection.wait_drained()
        return await self.connection.call(command, timeout_s)

    def push(self, command: Command) -> None:
        """Send a request that wants no answer. Raises `RemotingClosed`."""
        if self.connection.closed:
            raise RemotingClosed(f"the connection with {address_text(self.peer)} is closed")
        self.connection.push(command)

    async def wait_drained(self) -> None:
        """Return when the server has taken enough of what was pushed."""
        await self.connection.wait_drained()

    def reply(self, frame: bytes) -> None:
        """Send an encoded answer to a request of the server; nothing if it has gone."""
        self.connection.write(frame)

    def close(self) -> None:
        """End the connection; waiting calls fail with `RemotingClosed`."""
        if not self.connection.closed:
            self.connection.close(CloseReason.LOCAL)

    # --- the connection's handler

    def connection_opened(self, connection: Connection) -> None:
        """Nothing to do: `connect` is waiting for it."""

    def commands_received(self, connection: Connection, commands: Iterable[Command]) -> None:
        for command in commands:
            if self._on_request is None:
                log.debug("request nobody here answers %s", connection)
            else:
                self._on_request(self, command)

    def connection_closed(self, connection: Connection, reason: str) -> None:
        if self._on_close is not None:
            self._on_close(self, reason)
