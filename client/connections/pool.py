"""One connection per address, shared by everything a client does with that peer.

Connections are made when first needed, and made anew after they broke. Callers that need the same
new connection share one attempt; a caller that gives up waiting does not disturb the attempt. A new
connection is greeted (the heartbeat, for a broker) before anybody else uses it: after a broker came
back, the group's members are known there again before their first pull.

Errors of remoting/ leave this module as errors of this folder, with the address in the text. They
say all that those below them say, so a program that does not catch one sees one traceback.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from functools import partial

from aerobee.client.connections.background import TaskOwner, wait_shared
from aerobee.client.errors import (
    CallerError,
    CallTimeout,
    ClientBusy,
    ClientClosed,
    ClientError,
    ConnectFailed,
    ConnectionLost,
    InheritedClient,
    Untrusted,
)
from aerobee.client.options import split_address
from aerobee.protocol.frames.command import Command
from aerobee.remoting.calling.caller import Caller, caller_set
from aerobee.remoting.connection_stats import CloseReason
from aerobee.remoting.errors import (
    RemotingBusy,
    RemotingClosed,
    RemotingConnectError,
    RemotingError,
    RemotingTimeout,
    RemotingUntrusted,
)
from aerobee.remoting.origin import Origin
from aerobee.remoting.peers import naming

Greet = Callable[[str, Caller], Awaitable[None]]
OnRequest = Callable[[str, Caller, Command], None]


def client_error(address: str, error: RemotingError) -> ClientError:
    """The error of this folder for one of remoting/."""
    text = naming(address, str(error))
    if isinstance(error, RemotingClosed) and str(error).endswith(CloseReason.HTTP):
        text = (
            f"{address} speaks HTTP, not RocketMQ's protocol: it may be a broker's port for "
            "metrics; name servers have 9876 mostly"
        )
    if isinstance(error, RemotingUntrusted):
        return Untrusted(text)
    if isinstance(error, RemotingConnectError):
        return ConnectFailed(text)
    if isinstance(error, RemotingTimeout):
        return CallTimeout(text)
    if isinstance(error, RemotingBusy):
        return ClientBusy(text)
    return ConnectionLost(text)


class ConnectionPool:
    """Connections by address; belongs to one event loop, its tasks to `tasks`."""

    def __init__(
        self,
        tasks: TaskOwner,
        connect_timeout_s: float,
        greet: Greet,
        on_request: OnRequest,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._tasks = tasks
        self._connect_timeout_s = connect_timeout_s
        self._greet = greet
        self._on_request = on_request
        self._tls = tls
        self._shared = caller_set(name="client")
        # None until the first connection: before that a fork does no harm.
        self._origin: Origin | None = None
        self._callers: dict[str, Caller] = {}
        self._connecting: dict[str, asyncio.Task[Caller]] = {}
        self._closed = False

    async def call(self, address: str, command: Command, timeout_s: float) -> Command:
        """The answer of the peer, whatever its code; raises NetworkError or ClientClosed."""
        self._check_process()
        caller = self._callers.get(address)
        if caller is None or caller.closed:
            caller = await self._connected(address)
        try:
            return await caller.call(command, timeout_s)
        except RemotingError as error:
            raise client_error(address, error) from None

    async def push(self, address: str, command: Command) -> None:
        """Send a oneway request; waits while the peer does not take the bytes sent before."""
        self._check_process()
        caller = self._callers.get(address)
        if caller is None or caller.closed:
            caller = await self._connected(address)
        try:
            await caller.wait_drained()
            caller.push(command)
        except RemotingError as error:
            raise client_error(address, error) from None

    def _check_process(self) -> None:
        """Two processes must not write into one stream: InheritedClient in a child by fork()."""
        if self._origin is None:
            self._origin = Origin()
        elif self._origin.is_elsewhere:
            raise InheritedClient(self._origin.inherited("the client"))

    def connected_addresses(self) -> list[str]:
        """Peers with a living connection."""
        return [address for address, caller in self._callers.items() if not caller.closed]

    async def _connected(self, address: str) -> Caller:
        if self._closed:
            raise ClientClosed("the client is closed")
        attempt = self._connecting.get(address)
        if attempt is None:
            attempt = self._tasks.spawn(
                self._connect(address), f"connect {address}", expected=ClientError
            )
            self._connecting[address] = attempt
        return await wait_shared(attempt)

    async def _connect(self, address: str) -> Caller:
        try:
            try:
                host, port = split_address(address)
            except CallerError as error:
                # Addresses that the program gave were checked before: this address is a name
                # server's.
                raise ConnectFailed(f"cannot connect: {error}") from None
            caller = await Caller.connect(
                host,
                port,
                self._connect_timeout_s,
                on_request=partial(self._on_request, address),
                shared=self._shared,
                tls=self._tls,
            )
            try:
                await self._greet(address, caller)
            except BaseException:
                caller.close()
                raise
            self._callers[address] = caller
            return caller
        except RemotingError as error:
            raise client_error(address, error) from None
        finally:
            del self._connecting[address]

    def close(self) -> None:
        """Close every connection; calls that wait for answers fail with ConnectionLost."""
        self._closed = True
        for attempt in self._connecting.values():
            attempt.cancel()
        for caller in self._callers.values():
            caller.close()
        self._callers.clear()
