"""The port for slaves under TLS: what a sealed connection gets and does, byte by byte.

A slave that is stuck holds a small receive buffer, so that a few kilobytes fill its connection.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import struct
from pathlib import Path

import pytest

from aerobee.broker.cluster.replication.slave_connection import SlaveConnection, State
from aerobee.broker.cluster.replication.wires import Block, SealedWire
from aerobee.config.tls.certificates import PortCertificates
from aerobee.store.log.replication import feed
from aerobee.store.log.replication.feed import Piece
from tests.tls.authority import client
from tests.tls.key_updates import ClientRecords
from tests.unit.broker.cluster.replication.joined import Master, RawSlave, log_of, master_at, until
from tests.unit.remoting.conftest import shaken
from tests.unit.remoting.tls_ends import server_context, shaken_pair
from tests.unit.store.support import SEGMENT

CONTEXT = server_context()
TAKES = PortCertificates(required=False, handshake_s=5.0, now=lambda: CONTEXT)
REQUIRES = TAKES._replace(required=True)


class StuckSlave:
    """A slave below TLS that reads only when it is told to."""

    def __init__(self, sealed: ssl.SSLSocket) -> None:
        self.sealed = sealed
        self.plain = socket.socket(fileno=socket.dup(sealed.fileno()))
        self.plain.setblocking(False)

    @classmethod
    async def connect(cls, port: int, context: ssl.SSLContext | None = None) -> StuckSlave:
        connected = socket.socket()
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connected.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connected, ("127.0.0.1", port))
        return cls(await shaken(connected, context or client()))

    def report(self, log_offset: int) -> None:
        self.sealed.send(struct.pack(">q", log_offset))

    async def take(self, end: int) -> bytes:
        """Read the blocks from log offset 1 up to `end`."""
        taken = b""
        while len(taken) < end - 1:
            log_offset, size = struct.unpack(">qi", await self._read(12))
            assert log_offset == 1 + len(taken)
            taken += await self._read(size)
        return taken

    async def _read(self, size: int) -> bytes:
        found = b""
        async with asyncio.timeout(10):
            while len(found) < size:
                try:
                    found += self.sealed.recv(min(1 << 16, size - len(found)))
                except ssl.SSLWantReadError:
                    await asyncio.sleep(0.001)
        return found

    def close(self) -> None:
        self.plain.close()
        self.sealed.close()


async def only(master: Master) -> SlaveConnection:
    """The one slave of a master, which has asked; little fits into its connection."""
    await until(lambda: [one.follower.asked for one in master.port.slaves] == [True])
    (connection,) = master.port.slaves
    connection._wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    return connection


@pytest.mark.parametrize("size", [10, 2500])
async def test_a_slave_gets_the_log_in_order(tmp_path: Path, size: int) -> None:
    async with master_at(tmp_path, REQUIRES) as master:
        master.put(12, size)
        slave = await RawSlave.connect(master.port.port, client())
        slave.report(1)
        assert await slave.take(master.store.marks.written) == log_of(master.store)[1:]
        master.put(12, size)
        end = master.store.marks.written
        assert await slave.take(end) == log_of(master.store)[1:]
        slave.report(end)
        await until(lambda: master.store.marks.replicated == end)
        slave.close()
        await until(lambda: not master.port.slaves)


async def test_blocks_of_more_than_is_sealed_at_once_leave_whole(tmp_path: Path) -> None:
    large: dict[str, object] = {
        "commit_log_segment_bytes": 1 << 22,
        "ha_transfer_batch_bytes": 1 << 20,
    }
    async with master_at(tmp_path, TAKES, **large) as master:
        for _ in range(30):
            master.put(50, size=2500)
        slave = await RawSlave.connect(master.port.port, client())
        slave.report(1)
        log_offset, data = await slave.block()
        assert (log_offset, len(data)) == (1, 1 << 20)
        slave.log, slave.at = data, 1 + len(data)
        assert await slave.take(master.store.marks.written) == log_of(master.store)[1:]
        slave.close()


async def test_a_slave_far_behind_is_sent_what_a_worker_has_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "_HOT_BYTES", 2000)
    async with master_at(tmp_path, TAKES) as master:
        master.put(60)
        slave = await RawSlave.connect(master.port.port, client())
        slave.report(1)
        assert await slave.take(master.store.marks.written) == log_of(master.store)[1:]
        (connection,) = master.port.slaves
        assert 3 * SEGMENT < connection.worker_bytes <= connection.sent_bytes + 1
        # The next bytes are in memory again.
        before = connection.worker_bytes
        master.put(2)
        assert await slave.take(master.store.marks.written) == log_of(master.store)[1:]
        assert connection.worker_bytes == before
        slave.close()


async def test_a_slave_that_does_not_read_for_a_while_gets_all_the_same(tmp_path: Path) -> None:
    async with master_at(tmp_path, TAKES, commit_log_segment_bytes=1 << 22) as master:
        stuck = await StuckSlave.connect(master.port.port)
        stuck.report(1)
        connection = await only(master)
        good = await RawSlave.connect(master.port.port)
        good.report(1)
        await until(lambda: sum(one.follower.asked for one in master.port.slaves) == 2)
        for _ in range(20):
            master.put(50, size=2500)
        end = master.store.marks.written
        assert len(await good.take(end)) == end - 1
        assert connection.state is State.BLOCKED
        # No sign of life is mixed into the block that is under way.
        connection.look(connection.wrote_at + 15, sign_s=5, silent_s=1000)
        # It reports meanwhile: what it says is heard.
        heard = connection.heard_at
        stuck.report(1)
        await until(lambda: connection.heard_at > heard)
        assert await stuck.take(end) == log_of(master.store)[1:]
        assert connection.state is State.LEVEL
        stuck.close()
        good.close()


async def test_a_slave_that_takes_no_sign_of_life_is_closed(tmp_path: Path) -> None:
    """It is level, so nothing is on its way to it; and it does not read."""
    async with master_at(tmp_path, TAKES, ha_heartbeat_interval_ms=0) as master:
        stuck = await StuckSlave.connect(master.port.port)
        stuck.report(0)
        connection = await only(master)
        for _ in range(100_000):
            master.port.look()
            if connection.closed:
                break
        assert not master.port.slaves
        stuck.close()


async def test_a_sign_of_life_reaches_a_sealed_slave(tmp_path: Path) -> None:
    async with master_at(tmp_path, TAKES, ha_heartbeat_interval_ms=0) as master:
        master.put(1)
        end = master.store.marks.written
        slave = await RawSlave.connect(master.port.port, client())
        slave.report(end)
        await only(master)
        for _ in range(3):
            master.port.look()
            assert await slave.block() == (end, b"")
        slave.close()


async def test_a_slave_that_is_blocked_may_change_its_keys(tmp_path: Path) -> None:
    context = client()
    context.keylog_filename = str(tmp_path / "keys")
    async with master_at(tmp_path, TAKES, commit_log_segment_bytes=1 << 22) as master:
        stuck = await StuckSlave.connect(master.port.port, context)
        records = ClientRecords(tmp_path / "keys")
        stuck.plain.send(records.data(struct.pack(">q", 1)))
        connection = await only(master)
        await fill(master, connection)
        heard = connection.heard_at
        stuck.plain.send(records.key_update(answered=True) + records.data(struct.pack(">q", 1)))
        await until(lambda: connection.heard_at > heard)
        assert await stuck.take(master.store.marks.written) == log_of(master.store)[1:]
        stuck.close()


async def test_a_slave_that_takes_no_answers_of_tls_is_closed(tmp_path: Path) -> None:
    """Nothing may be read before they have left, so the loop would be woken for ever."""
    async with master_at(tmp_path, TAKES, commit_log_segment_bytes=1 << 22) as master:
        stuck = await StuckSlave.connect(master.port.port)
        stuck.report(1)
        connection = await only(master)
        await fill(master, connection)
        assert isinstance(connection._wire, SealedWire)
        connection._wire._session.outgoing.write(b"an alert")
        stuck.report(1)
        await until(lambda: not master.port.slaves)
        stuck.close()


async def fill(master: Master, connection: SlaveConnection) -> None:
    """Send more than the slave's connection holds."""
    for _ in range(3):
        master.put(50, size=2500)
    await until(lambda: connection.state is State.BLOCKED)


async def test_the_end_that_comes_with_a_report_is_seen_at_once(tmp_path: Path) -> None:
    context = client()
    context.keylog_filename = str(tmp_path / "keys")
    async with master_at(tmp_path, TAKES) as master:
        stuck = await StuckSlave.connect(master.port.port, context)
        records = ClientRecords(tmp_path / "keys")
        damaged = bytearray(records.data(bytes(8)))
        damaged[-1] ^= 1
        stuck.plain.send(records.data(bytes(8)) + damaged)
        await until(lambda: master.port.stats.tls.handshakes == 1 and not master.port.slaves)
        stuck.close()


@pytest.mark.parametrize("rubbish", [b"\x16\x03\x01\xff\xff" + bytes(40), b"\x16" * 100])
async def test_rubbish_in_place_of_a_handshake_takes_no_slave(
    tmp_path: Path, rubbish: bytes
) -> None:
    async with master_at(tmp_path, TAKES) as master:
        slave = await RawSlave.connect(master.port.port)
        slave.writer.write(rubbish)
        await slave.ended()
        assert not master.port.slaves
        assert sum(master.port.stats.tls.failed.values()) == 1
        slave.close()


@pytest.mark.parametrize("rubbish", [b"\xff" * 8, b"GET / HTTP/1.1\r\n\r\n"])
async def test_rubbish_below_tls_closes_the_connection(tmp_path: Path, rubbish: bytes) -> None:
    async with master_at(tmp_path, TAKES) as master:
        slave = await RawSlave.connect(master.port.port, client())
        slave.writer.write(rubbish)
        await slave.ended()
        assert not master.port.slaves
        slave.close()


async def test_a_plain_record_amid_sealed_ones_closes_the_connection(tmp_path: Path) -> None:
    async with master_at(tmp_path, TAKES) as master:
        master.put(1)
        stuck = await StuckSlave.connect(master.port.port)
        stuck.report(0)
        await only(master)
        stuck.plain.send(struct.pack(">q", 1) * 4)
        await until(lambda: not master.port.slaves)
        stuck.close()


async def test_a_plain_slave_is_not_taken_where_tls_is_required(tmp_path: Path) -> None:
    async with master_at(tmp_path, REQUIRES) as master:
        slave = await RawSlave.connect(master.port.port)
        slave.report(0)
        await slave.ended()
        assert not master.port.slaves
        assert sum(master.port.stats.tls.failed.values()) == 1
        slave.close()


async def test_a_file_that_has_become_shorter_is_an_error_and_no_short_block(
    tmp_path: Path,
) -> None:
    served, peer = await shaken_pair(client())
    wire = SealedWire(served)
    (tmp_path / "segment").write_bytes(bytes(100))
    fd = os.open(tmp_path / "segment", os.O_RDONLY)
    with pytest.raises(ConnectionError, match="shorter"):
        wire.push(Block(Piece(fd, 0, 0, 101, True)))
    os.close(fd)
    served.socket.close()
    peer.close()
