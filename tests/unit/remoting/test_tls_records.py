"""Records of every size, cut anywhere, with updates of keys between, damaged or ended early: data
that came whole is served, in both forms, and no byte besides."""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

import pytest

from aerobee.remoting.connection_limits import RemotingLimits
from tests import campaign
from tests.tls.authority import client
from tests.tls.key_updates import ClientRecords
from tests.unit.remoting.conftest import eventually
from tests.unit.remoting.tls_ends import serving, shaken_pair

FULL = 1 << 14
SIZES = (1, 2, 300, FULL - 1, FULL)


@dataclass
class Stream:
    """A client's stream: its records, and the data that each brings."""

    records: list[tuple[bytes, bytes]]

    def whole_before(self, place: int) -> bytes:
        """The data of the records that lie before a place of the stream."""
        data, end = b"", 0
        for record, brought in self.records:
            end += len(record)
            if end > place:
                break
            data += brought
        return data

    @property
    def wire(self) -> bytes:
        return b"".join(record for record, _ in self.records)


def drawn(rng: random.Random, sealed: ClientRecords) -> Stream:
    records = []
    for _ in range(rng.choice((3, 30, 300))):
        if rng.random() < 0.3:
            for _ in range(rng.choice((1, 1, 70))):
                records.append((sealed.key_update(answered=rng.random() < 0.1), b""))
        size = rng.choice(SIZES) if rng.random() < 0.2 else rng.randrange(1, 600)
        data = rng.randbytes(size)
        records.append((sealed.data(data), data))
    return Stream(records)


@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
async def test_what_came_whole_is_served(compiled: bool, tmp_path: Path) -> None:
    rng = campaign.rng(f"records of TLS {compiled}")
    count = campaign.size("records of TLS") // 2
    ends = {"whole": 0, "cut": 0, "damaged": 0}
    for number in range(count):
        end = rng.choice(list(ends))
        await one_connection(rng, end, tmp_path / f"{compiled}-{number}", compiled=compiled)
        ends[end] += 1
    campaign.note("records of TLS", count, **ends)


async def one_connection(rng: random.Random, end: str, keys: Path, *, compiled: bool) -> None:
    asking = client()
    asking.keylog_filename = str(keys)
    served, peer = await shaken_pair(asking)
    stream = drawn(rng, ClientRecords(keys))
    wire, place = stream.wire, len(stream.wire)
    if end != "whole":
        place = rng.randrange(len(wire))
        flipped = bytes([wire[place] ^ 1 << rng.randrange(8)])
        wire = wire[:place] + (flipped + wire[place + 1 :] if end == "damaged" else b"")
    back = rng.randbytes(rng.choice((0, 10, 1 << 20)))
    limits = RemotingLimits(read_buffer_bytes=rng.choice((FULL, FULL + 1, 40_000, 1 << 18)))
    with serving(served, compiled=compiled, limits=limits) as (transport, protocol):
        transport.write(back)
        sending = asyncio.create_task(send(rng, peer, wire))
        got = await received(peer, len(back))
        assert got == back or (end == "damaged" and back.startswith(got))
        await read_on(peer, sending)
        peer.shutdown(socket.SHUT_WR)
        await eventually(lambda: protocol.told[-1] == "lost", 20)
        assert bytes(protocol.data) == stream.whole_before(place)
        assert (protocol.error is None) == ("eof" in protocol.told)
    peer.close()


async def send(rng: random.Random, peer: ssl.SSLSocket, wire: bytes) -> None:
    """Past TLS, in pieces."""
    raw = socket.socket(fileno=socket.dup(peer.fileno()))
    raw.setblocking(False)
    most = rng.choice((7 if len(wire) < 20_000 else 500, 1000, 100_000))
    try:
        while wire:
            size = rng.randrange(1, most + 1)
            await asyncio.get_running_loop().sock_sendall(raw, wire[:size])
            wire = wire[size:]
            if rng.random() < 0.5:
                await asyncio.sleep(0)
    except OSError:
        # Nothing is taken behind a damaged record.
        pass
    finally:
        raw.close()


async def received(peer: ssl.SSLSocket, size: int) -> bytes:
    """The next `size` bytes, or those before the end."""
    found = b""
    async with asyncio.timeout(60):
        while len(found) < size and (more := await some(peer)):
            found += more
    return found


async def some(peer: ssl.SSLSocket) -> bytes:
    while True:
        try:
            return peer.recv(1 << 16)
        except ssl.SSLWantReadError:
            await asyncio.sleep(0)
        except OSError:
            return b""


async def read_on(peer: ssl.SSLSocket, sending: asyncio.Task[None]) -> None:
    """Take the answers to updates of keys, until all is sent."""
    reading = asyncio.create_task(received(peer, 1 << 30))
    async with asyncio.timeout(30):
        await sending
    reading.cancel()
