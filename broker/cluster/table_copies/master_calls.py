"""Requests of a slave to its master, on a connection that is made anew when it was lost.

They go to the master's port for clients, and are signed with the keys of tools.yml as a
registration is. The connection is made with the first request, and where the name servers say that
the master is by then. Loop thread only.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Final

from aerobee.broker.cluster.registration.master_address import MasterAddress, split_address
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.frames.command import Command, make_request
from aerobee.remoting.calling.caller import Caller, caller_set
from aerobee.remoting.errors import RemotingConnectError
from aerobee.remoting.peers import address_text

if TYPE_CHECKING:
    from aerobee.access.files.credentials import Credentials

# RocketMQ's slaves wait so long for an answer.
_ANSWER_S: Final = 3.0
_CONNECT_S: Final = 3.0
_REMARK_SHOWN: Final = 300


class MasterRefused(Exception):
    """The master answered a request with an error; the text has code and remark."""


class MasterCalls:
    """Asks the master. `close` when nobody asks any more."""

    def __init__(
        self,
        master: MasterAddress,
        *,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
        answer_s: float = _ANSWER_S,
    ) -> None:
        """`tls` encrypts the connection, `credentials` sign the requests; an answer may take
        `answer_s` seconds."""
        self._master = master
        self._tls = tls
        self._credentials = credentials
        self._answer_s = answer_s
        self._shared = caller_set(name="master")
        self._caller: Caller | None = None
        # Where that connection leads, as the name servers say it.
        self._address = ""
        self._connecting = asyncio.Lock()
        #: Moves with each new connection: the master may have been away, or be another broker.
        self.connections = 0

    async def caller(self) -> Caller:
        """The connection with the master, made now if need be. Raises RemotingConnectError."""
        async with self._connecting:
            address = self._master.remoting
            if address is None:
                raise RemotingConnectError("no name server knows where the master is")
            known = self._caller
            if known is not None and not known.closed and address == self._address:
                return known
            self.close()
            host, port = split_address(address)
            caller = await Caller.connect(
                host, port, _CONNECT_S, shared=self._shared, tls=self._tls
            )
            self._caller, self._address = caller, address
            self.connections += 1
            return caller

    async def call(
        self, code: RequestCode, ext: dict[str, str] | None = None, body: bytes = b""
    ) -> Command:
        """The answer to a request, whatever its code. Raises RemotingError."""
        caller = await self.caller()
        request = make_request(code, ext, body)
        if self._credentials is not None:
            request = self._credentials.sign(request)
        return await caller.call(request, self._answer_s)

    async def ask(self, code: RequestCode) -> bytes:
        """The body of the answer. Raises RemotingError, and MasterRefused for any but SUCCESS."""
        answer = await self.call(code)
        self.check(answer, code)
        return answer.body

    def check(self, answer: Command, code: RequestCode) -> None:
        """Raise MasterRefused if that is no answer of success."""
        if answer.code != ResponseCode.SUCCESS:
            remark = (answer.remark or "no reason given")[:_REMARK_SHOWN]
            raise MasterRefused(
                f"the master at {self.peer} refuses request {int(code)} with code {answer.code}: "
                f"{remark}"
            )

    @property
    def peer(self) -> str:
        """The address of the present connection, "" without one."""
        return "" if self._caller is None else address_text(self._caller.peer)

    def close(self) -> None:
        """End the connection; the next request makes another."""
        caller, self._caller = self._caller, None
        if caller is not None:
            caller.close()
