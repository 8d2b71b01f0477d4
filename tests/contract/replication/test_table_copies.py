"""A slave has the tables of its master: of a master of ours, and of a broker that knows RocketMQ's
own requests alone. Real daemons on this loop, with a name server of their own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from aerobee.broker.cluster.registration import name_server_link
from aerobee.broker.cluster.replication import finding
from aerobee.broker.cluster.table_copies import table_sync
from aerobee.broker.cluster.table_copies.offset_copies import OffsetCopies
from aerobee.broker.cluster.table_copies.table_sync import TableSync, Times
from aerobee.broker.lifecycle.daemon import Daemon
from aerobee.broker.requests.administration.replica_tables import ReplicaTableRequests
from aerobee.config.model import Settings
from aerobee.nameserver.server import NameServer
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.frames.command import Command
from aerobee.protocol.headers.replica_tables import (
    TABLES,
    ReplicaTablesResponse,
    decode_tables,
    versions_of,
)
from aerobee.protocol.message.record import decode_records
from aerobee.testing import SMALL
from tests.contract.conftest import Wire

QUICK = Times(ours_s=0.02, rocketmq_s=0.05, failed_s=0.05, look_s=0.005)
WHERE = {"consumerGroup": "CG", "topic": "Orders", "queueId": 0}


@pytest.fixture(params=["ours", "rocketmq"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "rocketmq":
        # Then the broker answers the code as RocketMQ does, which does not know it.
        monkeypatch.setattr(ReplicaTableRequests, "handlers", lambda _self: {})
    return str(request.param)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_sync, "Times", lambda: QUICK)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - it looks at what the code under test keeps
            await asyncio.sleep(0.002)


class Cluster:
    """A name server, and brokers of one name."""

    def __init__(self, folder: Path, names: str) -> None:
        self._folder = folder
        self._names = names

    @asynccontextmanager
    async def broker(self, folder: str, **settings: Any) -> AsyncIterator[Daemon]:
        values = {
            **SMALL, "nameserver_enabled": False, "name_servers": self._names, "ha_enabled": True,
            "register_interval_ms": 1000, "store_path": str(self._folder / folder),
            "vip_port_enabled": False, "flush_disk_type": "SYNC_FLUSH", **settings,
        }  # fmt: skip
        daemon = Daemon(Settings.for_tests(**values))
        await daemon.start()
        try:
            yield daemon
        finally:
            await daemon.stop()

    def master(self, folder: str = "a", **settings: Any) -> Any:
        return self.broker(folder, broker_role="ASYNC_MASTER", **settings)

    def slave(self, folder: str = "b", **settings: Any) -> Any:
        return self.broker(folder, broker_role="SLAVE", broker_id=1, **settings)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    settings = Settings.for_tests(**{**SMALL, "store_path": str(tmp_path / "names")})
    server = NameServer.from_settings(settings, None, None)
    await server.start()
    yield Cluster(tmp_path, f"127.0.0.1:{server.port}")
    await server.close()


@asynccontextmanager
async def wire_to(daemon: Daemon) -> AsyncIterator[Wire]:
    wire = await Wire.to(daemon.addresses.broker)
    try:
        yield wire
    finally:
        wire.caller.close()


async def done(asked: Any) -> Command:
    answer: Command = await asked
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return answer


async def create(wire: Wire, topic: str, queues: int = 4) -> None:
    ext = {"topic": topic, "defaultTopic": "TBW102", "perm": 6, "topicFilterType": "SINGLE_TAG"}
    ext |= {"readQueueNums": queues, "writeQueueNums": queues, "topicSysFlag": 0, "order": "false"}
    await done(wire.call(RequestCode.UPDATE_AND_CREATE_TOPIC, ext))


async def commit(wire: Wire, offset: int, **where: Any) -> None:
    ext = {**WHERE, "commitOffset": offset, **where}
    await done(wire.call(RequestCode.UPDATE_CONSUMER_OFFSET, ext))


async def filled(wire: Wire, count: int = 9) -> None:
    group = json.dumps({"groupName": "CG", "retryMaxTimes": 3}).encode()
    await done(wire.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group))
    for number in range(count):
        await done(wire.send("Orders", b"%d" % number))


def sync_of(slave: Daemon) -> TableSync:
    replication = slave.core.replication
    assert replication is not None
    assert replication.tables is not None
    return replication.tables


def offset_at(daemon: Daemon, group: str = "CG") -> int:
    return daemon.core.offsets.query(group, "Orders", 0)


async def test_topics_groups_and_offsets_follow_the_master(cluster: Cluster, kind: str) -> None:
    async with cluster.master() as master, cluster.slave() as slave, wire_to(master) as wire:
        await filled(wire)
        await create(wire, "Wide", 7)
        await commit(wire, 4)
        topics, groups = slave.core.topics, slave.core.groups
        await until(lambda: "Wide" in topics and "Orders" in topics and offset_at(slave) == 4)
        assert topics.get("Wide") == master.core.topics.get("Wide")
        group = groups.find("CG")
        assert group is not None
        assert group.retry_max_times == 3
        # A change, a step back, and what is gone.
        await create(wire, "Wide", 8)
        await commit(wire, 2)
        await until(lambda: offset_at(slave) == 2 and topics.get("Wide").write_queues == 8)
        await done(wire.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Orders"}))
        await done(wire.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "CG"}))
        await until(lambda: "Orders" not in topics and "CG" not in groups)
        await until(lambda: "Orders" not in {topic for topic, _ in slave.store.queues()})
        await until(lambda: offset_at(slave) == -1)
        assert sync_of(slave).problem is None
    stored = json.loads((Path(slave.settings.store_path) / "config" / "topics.json").read_text())
    assert stored["topicConfigTable"]["Wide"]["writeQueueNums"] == 8
    assert "Orders" not in stored["topicConfigTable"]


async def test_a_topic_that_was_made_again_keeps_its_new_messages(
    cluster: Cluster, kind: str
) -> None:
    async with cluster.master() as master, cluster.slave() as slave, wire_to(master) as wire:
        for round_ in range(3):
            await filled(wire, 3)
            await done(wire.send("Orders", b"last %d" % round_))
            await until(lambda: slave.store.written == master.store.written)
            await done(wire.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Orders"}))
        await done(wire.send("Orders", b"new"))
        await until(lambda: "Orders" in slave.core.topics)
        sync = sync_of(slave)
        seen = sync.exchanges
        await until(lambda: sync.exchanges > seen + 3)
        async with wire_to(slave) as other:
            found = decode_records((await other.pull("Orders")).body)
            assert [one.body for one in found] == [b"new"]


async def test_a_topic_made_again_between_two_exchanges_has_lost_its_old_messages(
    cluster: Cluster,
) -> None:
    async with cluster.master() as master, cluster.slave() as slave, wire_to(master) as wire:
        await filled(wire, 0)
        await create(wire, "Orders", 3)
        for number in range(9):
            await done(wire.send("Orders", b"%d" % number, queue_id=number % 3))
        await until(lambda: "Orders" in slave.core.topics and ends(slave) == [3, 3, 3])
        sync = sync_of(slave)
        looks = 0

        async def look_only(_sync: TableSync) -> float:
            nonlocal looks
            looks += 1
            return 0.005

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TableSync, "_try_exchange", look_only)
            await until(lambda: looks)
            await done(wire.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Orders"}))
            await create(wire, "Orders", 3)
            for body in (b"new", b"newer"):
                await done(wire.send("Orders", body))
            await until(lambda: slave.store.dispatched == master.store.written)
        seen = sync.exchanges
        await until(lambda: sync.exchanges > seen + 3)
        assert ends(master) == [2, 0, 0]
        assert ends(slave) == [2, 0, 0]
        async with wire_to(slave) as other:
            found = decode_records((await other.pull("Orders")).body)
            assert [one.body for one in found] == [b"new", b"newer"]


def ends(daemon: Daemon) -> list[int]:
    return [daemon.store.max_offset("Orders", queue_id) for queue_id in range(3)]


@pytest.fixture(params=["as it is", "without the rule"])
def larger_is_taken(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """The control: a slave that takes the master's offset whichever is larger."""
    if request.param == "without the rule":
        take = OffsetCopies.take
        monkeypatch.setattr(
            OffsetCopies, "take", lambda one, table, **_: take(one, table, first=False, whole=False)
        )
        return False
    return True


async def test_the_first_exchange_takes_the_larger_offset_and_keeps_it_until_the_master_moves(
    cluster: Cluster, kind: str, larger_is_taken: bool
) -> None:
    async with cluster.slave() as slave:
        async with cluster.master() as master, wire_to(master) as wire:
            await filled(wire)
            await commit(wire, 3)
            await until(lambda: offset_at(slave) == 3)
        async with wire_to(slave) as wire:
            await commit(wire, 7)
        # The master is away, and asks nobody when it comes back.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Daemon, "_ask_slaves", _asks_nobody)
            async with cluster.master() as master, wire_to(master) as wire:
                sync = sync_of(slave)
                seen = sync.exchanges
                await until(lambda: sync.exchanges > seen + 3)
                assert offset_at(master) == 3
                if not larger_is_taken:
                    assert offset_at(slave) == 3
                    return
                assert offset_at(slave) == 7
                # The consumer has found its master again.
                await commit(wire, 5)
                await until(lambda: offset_at(slave) == 5)


async def _asks_nobody(*_: object) -> None:
    return None


async def test_a_master_takes_the_larger_offsets_of_its_slaves_before_it_registers(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster.slave() as slave:
        async with cluster.master() as master, wire_to(master) as wire:
            await filled(wire)
            await commit(wire, 3)
            await commit(wire, 6, consumerGroup="ahead")
            await until(lambda: offset_at(slave) == 3 and offset_at(slave, "ahead") == 6)
        async with wire_to(slave) as wire:
            await commit(wire, 7)
            await commit(wire, 2, consumerGroup="ahead")
        with caplog.at_level("INFO"):
            async with cluster.master() as master:
                assert offset_at(master) == 7
                assert offset_at(master, "ahead") == 6
        assert "offsets of slaves taken count=1" in caplog.text


async def test_a_master_takes_no_offsets_of_a_slave_whose_log_differs(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster.slave() as slave, cluster.master() as master, wire_to(master) as wire:
        await filled(wire, 3)
        await commit(wire, 3)
        await until(lambda: offset_at(slave) == 3)
    # Each has been a master without the other, and got messages of its own.
    async with cluster.master() as master, wire_to(master) as wire:
        await filled(wire)
        ends_here = ends(master)
    async with cluster.master("b") as other, wire_to(other) as wire:
        await filled(wire)
        await commit(wire, 5)
    async with cluster.slave() as slave:
        assert offset_at(slave) == 5
        with caplog.at_level("INFO"):
            async with cluster.master() as master:
                assert ends(master) == ends_here
                assert offset_at(master) == 3
    assert "its log differs from this broker's" in caplog.text


async def test_a_slave_finds_a_master_that_comes_after_it_long_before_it_registers_anew(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finding, "_ASK_AGAIN_S", 0.05)
    monkeypatch.setattr(name_server_link, "_SECOND_S", 3600)
    rarely = {"register_interval_ms": 3_600_000}
    async with cluster.slave(**rarely) as slave:
        async with cluster.master() as master, wire_to(master) as wire:
            await filled(wire, 3)
            await until(lambda: slave.store.max_offset("Orders", 0) == 3)
        # Another machine takes its place, at another address.
        async with cluster.master() as master, wire_to(master) as wire:
            await filled(wire, 3)
            await until(lambda: slave.store.max_offset("Orders", 0) == 6)


async def test_a_silent_slave_delays_no_start(cluster: Cluster) -> None:
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    silent = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    loop = asyncio.get_running_loop()
    with pytest.MonkeyPatch.context() as patch:

        async def knows(*_: object) -> list[str]:
            return [f"127.0.0.1:{port}"]

        patch.setattr("aerobee.broker.cluster.table_copies.slave_offsets._slaves_at", knows)
        began = loop.time()
        async with cluster.master() as master:
            assert loop.time() - began < 4
            assert master.serving
    silent.close()


async def test_delays_go_on_in_the_other_role_where_they_were(cluster: Cluster, kind: str) -> None:
    async with cluster.slave() as slave, cluster.master() as master, wire_to(master) as wire:
        await filled(wire)
        await commit(wire, 4)
        await done(wire.send("Orders", b"first", properties="DELAY\x011"))
        await wire.await_message("Orders", 9)
        await done(wire.send("Orders", b"second", properties="DELAY\x012"))
        await until(lambda: slave.core.delays.copy() == master.core.delays.copy())
        await until(lambda: offset_at(slave) == 4)
        await until(lambda: slave.store.durable == master.store.written)
        assert json.loads(master.core.delays.copy())["offsetTable"]["1"] == 1
    async with cluster.master("b", broker_id=0) as now_master, wire_to(now_master) as wire:
        assert offset_at(now_master) == 4
        await wire.await_message("Orders", 10)
        found = decode_records((await wire.pull("Orders", 9)).body)
        assert [one.body for one in found] == [b"first", b"second"]


async def test_timed_messages_go_on_in_the_other_role_where_they_were(cluster: Cluster) -> None:
    async with cluster.slave() as slave, cluster.master() as master, wire_to(master) as wire:
        await filled(wire)
        await done(wire.send("Orders", b"first", properties="TIMER_DELAY_MS\x01100"))
        await wire.await_message("Orders", 9)
        await done(wire.send("Orders", b"second", properties="TIMER_DELAY_MS\x012500"))
        moved = master.core.timer.copy
        await until(lambda: slave.core.timer.copy() == moved() and b":-1" not in moved())
        await until(lambda: slave.store.durable == master.store.written)
    async with cluster.master("b", broker_id=0) as now_master, wire_to(now_master) as wire:
        await wire.await_message("Orders", 10)
        found = decode_records((await wire.pull("Orders", 9)).body)
        assert [one.body for one in found] == [b"first", b"second"]


async def test_what_has_not_changed_is_not_sent_again(cluster: Cluster) -> None:
    async with cluster.master() as master, wire_to(master) as wire:
        await filled(wire)
        asked = dict.fromkeys(TABLES, "")
        answer = await done(wire.call(RequestCode.REPLICA_TABLES, asked))
        tables, versions = decode_tables(answer.body), versions_of(answer.ext)
        assert tables.keys() == versions.keys() == set(TABLES)
        header = ReplicaTablesResponse.from_ext(answer.ext)
        assert header.log_begin == header.log_end == master.store.written
        again = await done(wire.call(RequestCode.REPLICA_TABLES, versions))
        assert not again.body
        assert versions_of(again.ext) == versions
        await commit(wire, 3)
        third = await done(wire.call(RequestCode.REPLICA_TABLES, versions))
        assert set(decode_tables(third.body)) == {"offsets"}
        only = await done(wire.call(RequestCode.REPLICA_TABLES, {"timer": ""}))
        assert set(decode_tables(only.body)) == {"timer"}
        long = await wire.call(RequestCode.REPLICA_TABLES, {"timer": "x" * 65})
        assert long.code == ResponseCode.SYSTEM_ERROR


async def test_an_answer_that_is_full_says_that_there_is_more(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aerobee.broker.requests.administration.replica_tables._ANSWER_BYTES", 500)
    async with cluster.master() as master, wire_to(master) as wire:
        await filled(wire)
        versions = dict.fromkeys(TABLES, "")
        rounds = 0
        while True:
            answer = await done(wire.call(RequestCode.REPLICA_TABLES, versions))
            rounds += 1
            versions |= versions_of(answer.ext)
            if not ReplicaTablesResponse.from_ext(answer.ext).more:
                break
        assert rounds > 2
        assert all(versions.values())
        async with cluster.slave() as slave:
            await commit(wire, 5)
            await until(lambda: offset_at(slave) == 5 and "Orders" in slave.core.topics)
