"""The port for slaves, spoken to byte by byte: what slaves get, and what no slave may do."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from aerobee.broker.cluster.replication import ha_port
from aerobee.broker.cluster.replication.slave_connection import State
from aerobee.store.log.replication import feed
from tests.unit.broker.cluster.replication.joined import RawSlave, log_of, master_at, until
from tests.unit.store.support import SEGMENT, message


async def test_a_slave_gets_the_log_in_blocks_that_end_with_their_segment(tmp_path: Path) -> None:
    async with master_at(tmp_path) as master:
        master.put(40)
        slave = await RawSlave.connect(master.port.port)
        slave.report(1)
        end = master.store.marks.written
        assert await slave.take(end) == log_of(master.store)[1:]
        master.put(1)
        assert end < master.store.marks.written
        end = master.store.marks.written
        assert await slave.take(end) == log_of(master.store)[1:]
        slave.report(end)
        await until(lambda: master.store.marks.replicated == end)
        assert master.answers.asked
        slave.close()
        await until(lambda: not master.port.slaves)
        assert master.store.marks.lacks_slaves


async def test_nothing_is_sent_before_the_first_whole_report(tmp_path: Path) -> None:
    async with master_at(tmp_path) as master:
        master.put(2)
        slave = await RawSlave.connect(master.port.port)
        slave.writer.write(bytes(7))
        await until(lambda: master.port.slaves)
        master.put(1)
        (connection,) = master.port.slaves
        assert connection.sent_bytes == 0
        slave.writer.write(bytes(1))
        assert await slave.take(master.store.marks.written) == log_of(master.store)
        slave.close()


@pytest.mark.parametrize(
    "rubbish", [b"\xff" * 8, b"GET / HTTP/1.1\r\n\r\n", (1 << 62).to_bytes(8, "big")]
)
async def test_rubbish_and_impossible_reports_close_the_connection(
    tmp_path: Path, rubbish: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with master_at(tmp_path) as master:
        master.put(2)
        slave = await RawSlave.connect(master.port.port)
        slave.writer.write(rubbish)
        await slave.ended()
        assert master.store.marks.replicated == 0
        assert not master.port.slaves
        # Nobody can do anything about it here, so readiness says nothing.
        assert master.port.all_refusals()["no_slave"] == 1
        assert master.port.problem() is None
        assert "no slave peer=127.0.0.1 why=a report of" in caplog.text
        slave.close()


async def test_a_slave_that_cannot_be_served_is_named_for_a_person(tmp_path: Path) -> None:
    async with master_at(tmp_path) as master:
        master.put(40)
        master.store.reader._segments.take_front([0, SEGMENT])
        for offset in (5, master.store.marks.written + 1):
            slave = await RawSlave.connect(master.port.port)
            slave.report(offset)
            await slave.ended()
            slave.close()
        assert dict(master.port.refusals) == {"below": 1, "above": 1}
        problem = master.port.problem()
        assert problem is not None
        assert problem.startswith("slave 127.0.0.1: it goes on at ")
        assert "truncate DIR --at" in problem


async def test_a_slave_that_goes_back_or_ahead_of_what_was_sent_is_closed(tmp_path: Path) -> None:
    async with master_at(tmp_path) as master:
        master.put(3)
        end = master.store.marks.written
        for second in (0, end):
            slave = await RawSlave.connect(master.port.port)
            if second:
                slave.report(1)
                await slave.block()
                master.store.log.put(message(b"late"))  # written, and sent to nobody yet
                slave.report(master.store.marks.written)
            else:
                slave.report(end)
                await until(lambda: any(one.follower.asked for one in master.port.slaves))
                slave.report(end - 1)
            await slave.ended()
            slave.close()
        assert set(master.port.refusals) == {"unsent", "back"}


async def test_a_slave_that_does_not_read_holds_nobody_up(tmp_path: Path) -> None:
    async with master_at(tmp_path, commit_log_segment_bytes=1 << 22) as master:
        stuck = socket.socket()
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(stuck, ("127.0.0.1", master.port.port))
        await loop.sock_sendall(stuck, (1).to_bytes(8, "big"))
        good = await RawSlave.connect(master.port.port)
        good.report(1)
        await until(lambda: sum(one.follower.asked for one in master.port.slaves) == 2)
        for _ in range(60):
            master.put(50, size=2500)
        end = master.store.marks.written
        assert len(await good.take(end)) == end - 1
        states = sorted(one.state.name for one in master.port.slaves)
        assert states == [State.BLOCKED.name, State.LEVEL.name]
        stuck.close()
        good.close()
        await until(lambda: not master.port.slaves)


async def test_few_connections_are_taken_from_an_address(tmp_path: Path) -> None:
    async with master_at(tmp_path) as master:
        slaves = [await RawSlave.connect(master.port.port) for _ in range(40)]
        await until(lambda: master.port.stats.accepted == 40)
        assert len(master.port.slaves) == ha_port.MOST_OF_ADDRESS
        assert master.port.stats.refused_address == 40 - ha_port.MOST_OF_ADDRESS
        # A slave that is closed before it hears anything is sent to readiness for the reason.
        assert "4 connections of its address are open" in (master.port.problem() or "")
        for slave in slaves:
            slave.close()
        await until(lambda: not master.port.slaves)


async def test_an_address_that_is_not_trusted_gets_nothing(tmp_path: Path) -> None:
    async with master_at(tmp_path) as master:
        master.trusted = False
        slave = await RawSlave.connect(master.port.port)
        await slave.ended()
        assert not master.port.slaves
        slave.close()


async def test_a_slave_has_no_slaves(tmp_path: Path) -> None:
    async with master_at(tmp_path) as master:
        master.role.become(slave=True)
        slave = await RawSlave.connect(master.port.port)
        await slave.ended()
        assert not master.port.slaves
        slave.close()


async def test_signs_of_life_and_the_end_of_the_silent(tmp_path: Path) -> None:
    async with master_at(
        tmp_path, ha_heartbeat_interval_ms=1, ha_housekeeping_interval_ms=1_000_000
    ) as master:
        master.put(1)
        end = master.store.marks.written
        slave = await RawSlave.connect(master.port.port)
        slave.report(end)
        await until(lambda: any(one.follower.asked for one in master.port.slaves))
        await asyncio.sleep(0.002)
        master.port.look()
        assert await slave.block() == (end, b"")
        master.settings.__dict__["ha_housekeeping_interval_ms"] = 0
        await asyncio.sleep(0.002)
        master.port.look()
        await slave.ended()
        slave.close()


async def test_a_slave_far_behind_is_served_by_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "_HOT_BYTES", 2000)
    async with master_at(tmp_path) as master:
        master.put(60)
        slave = await RawSlave.connect(master.port.port)
        slave.report(1)
        assert await slave.take(master.store.marks.written) == log_of(master.store)[1:]
        (connection,) = master.port.slaves
        assert 3 * SEGMENT < connection.worker_bytes <= connection.sent_bytes
        slave.close()


async def test_a_slave_that_leaves_while_a_worker_serves_it_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "_HOT_BYTES", 0)
    async with master_at(tmp_path, commit_log_segment_bytes=1 << 23) as master:
        for _ in range(40):
            master.put(50, size=2500)
        slave = await RawSlave.connect(master.port.port)
        slave.report(1)
        await until(lambda: any(one.state is State.COLD for one in master.port.slaves))
        (connection,) = master.port.slaves
        slave.writer.transport.abort()
        await until(lambda: connection._wire.socket.fileno() == -1)
        assert connection.follower._fd == -1
        assert not master.port.slaves


async def test_a_burst_of_appends_is_sent_as_a_slice_a_turn(tmp_path: Path) -> None:
    async with master_at(tmp_path) as master:
        slave = await RawSlave.connect(master.port.port)
        slave.report(1)
        await until(lambda: any(one.follower.asked for one in master.port.slaves))
        for _ in range(20):
            master.put(10)
        assert await slave.take(master.store.marks.written) == log_of(master.store)[1:]
        slave.close()
