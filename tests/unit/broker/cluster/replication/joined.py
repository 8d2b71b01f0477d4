"""A master's HA port on a real socket, and raw slaves that speak to it byte by byte."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from aerobee.broker.cluster.replication.ha_port import HaPort
from aerobee.broker.routing.role import Role
from aerobee.protocol.replication import HEAD_BYTES, decode_head
from aerobee.remoting.listening.arrivals import Encryption
from aerobee.store.message_store import MessageStore
from tests.unit.store.support import message, small_settings


class Answers:
    """Counts how often answers could have gone on."""

    def __init__(self) -> None:
        self.asked = 0

    def go_on(self) -> None:
        self.asked += 1


class Master:
    """An open store with its port for slaves."""

    def __init__(self, path: Path, **changes: object) -> None:
        values: dict[str, object] = {"broker_role": "SYNC_MASTER", **changes}
        self.settings = small_settings(path / "master", **values)
        self.store = MessageStore.open(self.settings)
        self.answers = Answers()
        self.trusted = True
        loop = asyncio.get_running_loop()
        self.role = Role(self.settings)
        self.port = HaPort(
            self.settings,
            loop,
            self.store.make_feed(),
            self.answers,
            trust=lambda _host: self.trusted,
            role=self.role,
        )

    def put(self, count: int, size: int = 300) -> None:
        for number in range(count):
            self.store.log.put(message(b"%d" % number + b"x" * size, queue_id=number % 2))
        self.port.appended()


@asynccontextmanager
async def master_at(
    path: Path, encryption: Encryption | None = None, **changes: object
) -> AsyncIterator[Master]:
    """A master whose port is open."""
    master = Master(path, **changes)
    try:
        await master.port.start("127.0.0.1", 0, encryption)
        yield master
    finally:
        await master.port.close()
        master.store.close()


class RawSlave:
    """A connection to a HA port."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.log = b""
        self.at = 0

    @classmethod
    async def connect(cls, port: int, tls: ssl.SSLContext | None = None) -> RawSlave:
        return cls(*await asyncio.open_connection("127.0.0.1", port, ssl=tls))

    def report(self, log_offset: int) -> None:
        self.writer.write(struct.pack(">q", log_offset))

    async def block(self) -> tuple[int, bytes]:
        """The next block, or sign of life."""
        async with asyncio.timeout(10):
            head = decode_head(await self.reader.readexactly(HEAD_BYTES))
            return head.log_offset, await self.reader.readexactly(head.size)

    async def take(self, end: int) -> bytes:
        """Blocks up to the log offset `end`, one after the other."""
        while self.at < end:
            log_offset, data = await self.block()
            if not self.log:
                self.at = log_offset
            assert log_offset == self.at
            self.log += data
            self.at += len(data)
        return self.log

    async def ended(self) -> None:
        """Wait until the master has closed the connection."""
        async with asyncio.timeout(10):
            # The master resets a connection whose bytes it has not read.
            with contextlib.suppress(ConnectionResetError):
                while await self.reader.read(65536):
                    pass

    def close(self) -> None:
        self.writer.close()


def log_of(store: MessageStore) -> bytes:
    """All bytes of a store's log up to *written*."""
    return b"".join(bytes(one.view[: one.wrote]) for one in store.reader._segments.segments)


async def until(condition: Callable[[], object]) -> None:
    """Wait until the condition holds, ten seconds at most."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - it looks at what the code under test keeps
            await asyncio.sleep(0.001)
