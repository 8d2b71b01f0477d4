import asyncio
import socket
from typing import Any

from aerobee.native.requests import Requests
from aerobee.remoting.tls.tls_session import TlsSession

class Sockets:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        shared: Any,
        requests: Requests | None = None,
        plain: Any = None,
        /,
    ) -> None: ...
    def open(self, arrived: socket.socket | TlsSession, connection: Any, /) -> None: ...
    def close(self) -> None: ...
    def look(self) -> None: ...
