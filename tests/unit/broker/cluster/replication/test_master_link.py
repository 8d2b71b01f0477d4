"""A slave follows its master, over real sockets; a false master does no harm."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from aerobee.broker.cluster.comparison.comparing import Asked, RefusalKind, Refused
from aerobee.broker.cluster.comparison.log_route import LogConnection
from aerobee.broker.cluster.replication import master_link
from aerobee.broker.cluster.replication.master_link import MasterLink, Step
from aerobee.broker.cluster.replication.replication import Replication
from aerobee.broker.routing.role import Role
from aerobee.protocol.replication import encode_head
from aerobee.store.message_store import MessageStore
from tests.unit.broker.cluster.replication.joined import Answers, log_of, master_at, until
from tests.unit.store.support import SEGMENT, message, small_settings


class Slave:
    """An open store with a link that asks the master at `port`."""

    def __init__(self, path: Path, port: int, **changes: object) -> None:
        values: dict[str, object] = {"broker_role": "SLAVE", "broker_id": 1, **changes}
        self.settings = small_settings(path / "slave", **values)
        self.store = MessageStore.open(self.settings)
        self.answer: Refused | None = None
        self.compared: asyncio.Event | None = None
        self.port = port
        self.dispatches = self.looks = 0
        loop = asyncio.get_running_loop()
        self.appender = self.store.make_appender()
        self.link = MasterLink(self.settings, loop, self.appender, self, finder=self)

    def address(self) -> tuple[str, int] | Refused | None:
        return "127.0.0.1", self.port

    unknown_because = "the master is not known yet"

    def look_again(self) -> None:
        self.looks += 1

    async def compare(self, connection: LogConnection) -> Asked | Refused:
        if self.compared is not None:
            await self.compared.wait()
        return self.answer or Asked(self.store.marks.written or 1)

    def appended(self) -> None:
        self.dispatches += 1
        self.store.dispatch()


@asynccontextmanager
async def slave_of(path: Path, port: int, **changes: object) -> AsyncIterator[Slave]:
    slave = Slave(path, port, **changes)
    slave.link.start()
    try:
        yield slave
    finally:
        await slave.link.close()
        slave.store.close()


class FakeMaster:
    """Answers each first report with bytes of the test's own."""

    def __init__(self, answer: Callable[[int], bytes]) -> None:
        self.answer = answer
        self.asked: list[int] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        (asked,) = struct.unpack(">q", await reader.readexactly(8))
        self.asked.append(asked)
        writer.write(self.answer(asked))
        while await reader.read(1024):
            pass
        writer.close()


@asynccontextmanager
async def fake_master(answer: Callable[[int], bytes]) -> AsyncIterator[FakeMaster]:
    fake = FakeMaster(answer)
    server = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
    fake.port = server.sockets[0].getsockname()[1]
    async with server:
        yield fake


async def test_a_slave_takes_the_log_and_reports_it(tmp_path: Path) -> None:
    async with master_at(tmp_path) as master, slave_of(tmp_path, master.port.port) as slave:
        for _ in range(30):
            master.put(5)
            await asyncio.sleep(0)
        end = master.store.marks.written
        await until(lambda: master.store.marks.replicated == end)
        assert log_of(slave.store) == log_of(master.store)
        assert slave.store.marks.dispatched == end
        assert (slave.link.step, slave.link.problem) == (Step.TAKING, None)


async def test_large_blocks_go_straight_into_the_segment(tmp_path: Path) -> None:
    size = {"commit_log_segment_bytes": 1 << 21, "max_message_bytes": 200_000}
    async with master_at(tmp_path, **size) as master:
        for _ in range(12):
            master.put(3, size=150_000)
        async with slave_of(tmp_path, master.port.port, **size) as slave:
            await until(lambda: slave.store.marks.written == master.store.marks.written)
            assert log_of(slave.store) == log_of(master.store)


async def test_a_slave_comes_again_after_the_master_was_away(tmp_path: Path) -> None:
    async with master_at(tmp_path) as master:
        master.put(7)
        async with slave_of(tmp_path, master.port.port) as slave:
            await until(lambda: slave.store.marks.written == master.store.marks.written)
            for one in list(master.port.slaves):
                one.close("a test")
            master.put(7)
            await until(lambda: slave.store.marks.written == master.store.marks.written)
            assert log_of(slave.store) == log_of(master.store)
            assert slave.link.connections == 2


async def test_a_slave_that_acknowledges_what_is_durable_reports_no_more(tmp_path: Path) -> None:
    async with (
        master_at(tmp_path) as master,
        slave_of(
            tmp_path, master.port.port, ha_ack_durable=True, flush_interval_ms=100_000
        ) as slave,
    ):
        master.put(4)
        await until(lambda: slave.store.marks.written == master.store.marks.written)
        assert master.store.marks.replicated <= 1
        slave.store.sync_soon()
        await until(lambda: slave.store.durable == slave.store.written)
        slave.link.durable_moved()
        await until(lambda: master.store.marks.replicated == master.store.marks.written)


class NoTables:
    """Tables that nobody copies."""

    def start(self) -> None:
        pass

    async def close(self) -> None:
        pass


async def test_a_slave_syncs_at_once_what_it_acknowledges_as_durable(tmp_path: Path) -> None:
    slow = {"flush_interval_ms": 100_000, "flush_thorough_interval_ms": 100_000}
    async with master_at(tmp_path) as master:
        slave = Slave(tmp_path, master.port.port, ha_ack_durable=True, **slow)
        loop = asyncio.get_running_loop()
        role = Role(slave.settings)
        one = Replication(
            slave.settings, loop, slave.store, Answers(), trust=lambda _host: True, role=role
        )
        one.follow(slave, slave, None, NoTables())  # type: ignore[arg-type]
        try:
            for _ in range(2):
                master.put(4)
                await until(lambda: slave.store.durable == master.store.written)
        finally:
            await one.close()
            slave.store.close()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda asked: encode_head(asked + 9, 10), "goes on at 1"),
        (lambda asked: struct.pack(">qi", asked, -1), "a block of -1 bytes"),
        (lambda asked: struct.pack(">qi", asked, 2**31 - 1), "a block of 2147483647 bytes"),
        (lambda asked: encode_head(asked, SEGMENT), "commit_log_segment_bytes"),
        (lambda _asked: b"HTTP/1.1 400 Bad Request\r\n\r\n", "is that the HA port"),
        (lambda asked: encode_head(asked, 200) + b"\xee" * 200, "magic"),
    ],
)
async def test_a_master_that_is_none_is_left_and_nothing_is_kept_of_it(
    tmp_path: Path, answer: Callable[[int], bytes], why: str
) -> None:
    async with fake_master(answer) as fake, slave_of(tmp_path, fake.port) as slave:
        await until(lambda: why in (slave.link.problem or ""))
        assert slave.store.marks.written == 0


async def test_the_same_damage_twice_is_passed_over(tmp_path: Path) -> None:
    async with master_at(tmp_path) as master:
        master.put(40)
        whole = bytearray(log_of(master.store)[:SEGMENT])
        whole[500] ^= 1

        def damaged(asked: int) -> bytes:
            return encode_head(asked, SEGMENT - asked) + bytes(whole[asked:])

        async with fake_master(damaged) as fake, slave_of(tmp_path, fake.port) as slave:
            await until(lambda: slave.store.marks.written == SEGMENT)
            assert fake.asked[:2] == [1, fake.asked[1]]
            assert fake.asked[1] <= 500
            ((start, end),) = slave.store.known_gaps
            assert start <= 500 < end
            assert slave.store.dispatch() == []
            assert slave.store.dispatched == SEGMENT


async def test_a_refusal_stands_until_it_is_lifted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(master_link, "_REFUSED_S", 0.005)
    async with master_at(tmp_path) as master, slave_of(tmp_path, master.port.port) as slave:
        slave.answer = Refused(RefusalKind.CLUSTER, "another cluster: 'a' here, 'b' there")
        for one in list(master.port.slaves):
            one.close("a test")
        await until(lambda: slave.link.step is Step.REFUSED)
        assert slave.link.problem == "another cluster: 'a' here, 'b' there"
        assert slave.link.refusal == "cluster"
        slave.answer = None
        master.put(3)
        await until(lambda: slave.store.marks.written == master.store.marks.written)
        assert slave.link.refusal is None


async def test_a_slave_that_is_not_admitted_hears_where_to_look(tmp_path: Path) -> None:
    async with master_at(tmp_path) as master:
        master.trusted = False
        async with slave_of(tmp_path, master.port.port) as slave:
            link = slave.link
            await until(lambda: "before it sent anything" in (link.problem or ""))
            for part in ("/ready", "haSlaveAddresses", "from 127.0.0.1:"):
                assert part in (link.problem or "")


async def test_a_slave_that_is_refused_while_it_compares_never_counts_as_following(
    tmp_path: Path,
) -> None:
    async with master_at(tmp_path) as master:
        master.trusted = False
        slave = Slave(tmp_path, master.port.port)
        slave.compared = asyncio.Event()
        slave.link.start()
        try:
            await until(lambda: (reader := slave.link._reader) and reader.closed.done())
            slave.compared.set()
            await until(lambda: "haSlaveAddresses" in (slave.link.problem or ""))
            assert slave.link.connections == 0
        finally:
            await slave.link.close()
            slave.store.close()


async def test_a_slave_whose_disk_is_full_leaves_and_goes_on_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(master_link, "_FAILED_S", 0.005)
    async with master_at(tmp_path) as master, slave_of(tmp_path, master.port.port) as slave:
        from aerobee.store.errors import StoreNotWritable

        real, full = slave.store._allocator.take_ready, [True]

        def take(start: int) -> object:
            if full:
                raise StoreNotWritable("the disk is full")
            return real(start)

        monkeypatch.setattr(slave.store._allocator, "take_ready", take)
        master.put(5)
        await until(lambda: slave.link.problem == "the disk is full")
        await until(lambda: master.store.marks.lacks_slaves)
        full.clear()
        await until(lambda: slave.store.marks.written == master.store.marks.written)


async def test_a_closed_link_leaves_the_log_as_it_is(tmp_path: Path) -> None:
    async with master_at(tmp_path) as master:
        master.put(3)
        async with slave_of(tmp_path, master.port.port) as slave:
            await until(lambda: slave.store.marks.written == master.store.marks.written)
            await slave.link.close()
            before = slave.store.marks.written
            master.store.log.put(message(b"later"))
            master.port.appended()
            await until(lambda: not master.port.slaves)
            assert slave.store.marks.written == before


async def test_a_refused_slave_has_neither_heard_nor_told_its_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(master_link, "_REFUSED_S", 0.01)
    async with master_at(tmp_path) as master:
        slave = Slave(tmp_path, master.port.port)
        slave.answer = Refused(RefusalKind.AHEAD, "it is ahead")
        slave.link.start()
        try:
            await until(lambda: slave.link.refusals["ahead"] >= 2)
            assert (slave.link.heard_ago_s, slave.link.told_ago_s) == (None, None)
        finally:
            await slave.link.close()
            slave.store.close()


async def test_a_slave_without_room_comes_less_and_less_often_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def slept(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0.001)

    caplog.set_level("INFO", "aerobee.broker.replication")
    # Blocks that go on nowhere end each connection, as a full disk does.
    async with (
        fake_master(lambda _asked: encode_head(7 * SEGMENT + 8, 1) + b"x") as fake,
        slave_of(tmp_path, fake.port) as slave,
    ):
        monkeypatch.setattr(master_link.asyncio, "sleep", slept)
        await until(lambda: slave.link.connections >= 8)
        monkeypatch.undo()
    # `until` sleeps too, for less.
    long = [seconds for seconds in pauses if seconds >= 1.0]
    assert long[:6] == [1.0, 2.0, 4.0, 5.0, 5.0, 5.0]
    said = [one.getMessage() for one in caplog.records]
    assert sum(text.startswith("following master") for text in said) <= 2
    assert sum(text.startswith("not following") for text in said) <= 2
