"""A certificate for tests, self-signed and good until 2119, and a server's end of TLS.

`broker.key` is no secret of anybody's; `stranger.pem` is another certificate.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

KEY, CERTIFICATE, STRANGER = [
    Path(__file__).with_name(name) for name in ("broker.key", "broker.pem", "stranger.pem")
]


@asynccontextmanager
async def tls_in_front_of(port: int) -> AsyncIterator[int]:
    """A port of the loopback address that takes TLS, and hands on to a plain one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE, KEY)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(_copy(reader, back), _copy(there, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except (ConnectionError, ssl.SSLError):
        pass
    finally:
        writer.close()
