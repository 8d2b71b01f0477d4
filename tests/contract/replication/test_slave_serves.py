"""A slave answers on its ports, in both forms, and goes on as a master after a restart.

What it has was stored by a master before: the test gives its directory to a slave. Records that
arrive while it is a slave are appended to its log as those of a master are.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from aerobee.broker.delay.delivery_progress import DelayProgress
from aerobee.broker.lifecycle.daemon import Daemon
from aerobee.broker.routing.slave_refusals import REFUSED_ON_SLAVES
from aerobee.config.model import Settings
from aerobee.protocol.bodies.clients import ConsumerData, HeartbeatData
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.filters.subscription import parse_tag_expression
from aerobee.protocol.frames.command import Command
from aerobee.protocol.message.batch import BatchItem, encode_batch
from aerobee.protocol.message.ids import parse_offset_msg_id
from aerobee.protocol.message.record import decode_records
from aerobee.protocol.names import OFFSET_MOVED_TOPIC
from aerobee.testing import SMALL
from tests.contract.conftest import FORMS, Wire
from tests.fuzz.seeds import BROKER_SEEDS
from tests.ports import free_port
from tests.unit.store.support import message

SLAVE = {"broker_role": "SLAVE", "broker_id": 1}
# A pull that brings its subscription and may wait.
HELD = {"sysFlag": 4 | 2, "suspendTimeoutMillis": 8000}
WHERE = {"consumerGroup": "CG", "topic": "Orders", "queueId": 0}


@pytest.fixture(params=FORMS, autouse=True)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "off":
        monkeypatch.setenv("AEROBEE_NATIVE", "off")
    return str(request.param)


@asynccontextmanager
async def serving(path: Path, **settings: Any) -> AsyncIterator[tuple[Daemon, Wire]]:
    """A broker over a directory, on this loop, and a connection to it."""
    daemon = Daemon(Settings.for_tests(**{**SMALL, "store_path": str(path), **settings}))
    await daemon.start()
    try:
        wire = await Wire.to(daemon.addresses.broker)
        yield daemon, wire
        wire.caller.close()
    finally:
        await daemon.stop()


async def filled(path: Path) -> None:
    """Five messages of Orders, and the group CG, whose broker is the one with the number 3."""
    async with serving(path) as (_, wire):
        group = json.dumps({"groupName": "CG", "brokerId": 3}).encode()
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        assert (await wire.call(code, {}, group)).code == ResponseCode.SUCCESS
        for number in range(5):
            sent = await wire.send("Orders", b"%d" % number)
            assert sent.code == ResponseCode.SUCCESS


def bodies(answer: Command) -> list[bytes]:
    return [found.body for found in decode_records(answer.body)]


def place(answer: Command) -> tuple[int, str | None, str | None]:
    return answer.code, answer.ext["nextBeginOffset"], answer.ext["suggestWhichBrokerId"]


async def tables(wire: Wire) -> tuple[Any, Any]:
    topics, groups = [
        json.loads((await wire.call(code)).body)
        for code in (RequestCode.GET_ALL_TOPIC_CONFIG, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    ]
    return topics, groups


async def test_a_slave_refuses_what_its_master_alone_may_do_and_changes_nothing(
    tmp_path: Path,
) -> None:
    await filled(tmp_path)
    async with serving(tmp_path, **SLAVE) as (daemon, wire):
        before, written = await tables(wire), daemon.store.written
        asked = set()
        for seed in BROKER_SEEDS:
            answer = await wire.call(seed.code, dict(seed.ext), seed.body)
            refused = REFUSED_ON_SLAVES.get(seed.code)
            if refused is not None:
                asked.add(seed.code)
                assert (answer.code, answer.remark) == refused, seed
                assert answer.remark is not None
                assert "slave" in answer.remark
            assert daemon.store.written == written, seed
        assert asked == set(REFUSED_ON_SLAVES)
        assert await tables(wire) == before
        assert daemon.stats.handler_failures == 0


async def test_sends_that_come_together_are_all_refused(tmp_path: Path) -> None:
    await filled(tmp_path)
    async with serving(tmp_path, **SLAVE) as (daemon, wire):
        written = daemon.store.written
        for batch in (False, True):
            answer = await wire.send("Orders", b"x" * 20, batch=batch)
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert daemon.store.written == written


async def test_a_slave_serves_pulls_queries_and_offsets(tmp_path: Path) -> None:
    await filled(tmp_path)
    async with serving(tmp_path, **SLAVE) as (_, wire):
        found = await wire.pull("Orders")
        assert (bodies(found), place(found)) == ([b"0", b"1", b"2", b"3", b"4"], (0, "5", "0"))
        queue = {"topic": "Orders", "queueId": 0}
        assert (await wire.call(RequestCode.GET_MAX_OFFSET, queue)).ext["offset"] == "5"
        assert (await wire.call(RequestCode.GET_MIN_OFFSET, queue)).ext["offset"] == "0"
        [first, *_] = decode_records(found.body)
        at = parse_offset_msg_id(first.msg_id)[2]
        viewed = await wire.call(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": at})
        assert bodies(viewed) == [b"0"]


async def test_a_slave_commits_offsets_by_request_and_none_by_pulls(tmp_path: Path) -> None:
    await filled(tmp_path)
    async with serving(tmp_path, **SLAVE) as (_, wire):
        assert bodies(await wire.pull("Orders", 3, sysFlag=4 | 1, commitOffset=3)) == [b"3", b"4"]
        asked = await wire.call(RequestCode.QUERY_CONSUMER_OFFSET, WHERE)
        assert (asked.code, asked.ext.get("offset")) != (ResponseCode.SUCCESS, "3")
        # A master that is gone cannot take them.
        await wire.call(RequestCode.UPDATE_CONSUMER_OFFSET, {**WHERE, "commitOffset": 4})
        asked = await wire.call(RequestCode.QUERY_CONSUMER_OFFSET, WHERE)
        assert asked.ext["offset"] == "4"


async def test_a_slave_leaves_consumers_at_their_offsets_and_names_their_broker(
    tmp_path: Path,
) -> None:
    await filled(tmp_path)
    again = ResponseCode.PULL_RETRY_IMMEDIATELY
    async with serving(tmp_path, **SLAVE) as (daemon, wire):
        written = daemon.store.written
        assert place(await wire.pull("Orders", 9)) == (again, "9", "3")
        assert place(await wire.pull("Orders", 9, queueId=1)) == (again, "9", "3")
        assert place(await wire.pull("Orders", 5)) == (ResponseCode.PULL_NOT_FOUND, "5", "0")
        empty = await wire.pull("Orders", 0, queueId=1)
        assert place(empty) == (ResponseCode.PULL_NOT_FOUND, "0", "0")
        assert daemon.store.written == written


async def test_a_slave_that_checks_offsets_corrects_them_and_stores_no_event(
    tmp_path: Path,
) -> None:
    await filled(tmp_path)
    async with serving(tmp_path, **SLAVE, offset_check_in_slave=True) as (daemon, wire):
        moved = await wire.pull("Orders", 9)
        assert place(moved) == (ResponseCode.PULL_OFFSET_MOVED, "5", "0")
        assert daemon.store.max_offset(OFFSET_MOVED_TOPIC, 0) == 0


async def test_a_slave_suggests_a_broker_where_slaves_may_be_read(tmp_path: Path) -> None:
    await filled(tmp_path)
    async with serving(tmp_path, **SLAVE, slave_read=True) as (_, wire):
        assert place(await wire.pull("Orders")) == (0, "5", "3")
        assert place(await wire.pull("Orders", 5)) == (ResponseCode.PULL_NOT_FOUND, "5", "3")


async def test_arrivals_wake_the_pulls_that_a_slave_holds(tmp_path: Path) -> None:
    await filled(tmp_path)
    async with serving(tmp_path, **SLAVE) as (daemon, wire):
        at_end = await start_pull(daemon, wire, 5)
        arrive(daemon, b"5")
        assert bodies(await at_end) == [b"5"]
        # This consumer is further than the slave.
        ahead = await start_pull(daemon, wire, 7)
        arrive(daemon, b"6", b"7")
        assert bodies(await ahead) == [b"7"]


def arrive(daemon: Daemon, *sent: bytes) -> None:
    """Append records to the log of a slave as those of its master are."""
    daemon.store._health.take_puts(taken=True)
    for body in sent:
        daemon.store.log.put(message(body, "Orders", 0))
    daemon.store.refuse_puts()
    daemon.core._reput.appended()


async def start_pull(daemon: Daemon, wire: Wire, offset: int) -> asyncio.Future[Command]:
    """A pull that the broker holds by now: requests of a connection are served in their order."""
    pulling = asyncio.ensure_future(wire.pull("Orders", offset, **HELD))
    await wire.call(RequestCode.GET_MAX_OFFSET, {"topic": "Orders", "queueId": 0})
    assert len(daemon.core.held) == 1
    return pulling


async def test_a_heartbeat_to_a_slave_makes_no_group_and_no_topic(tmp_path: Path) -> None:
    await filled(tmp_path)
    async with serving(tmp_path, **SLAVE) as (_, wire):
        before = await tables(wire)
        consumers = tuple(
            ConsumerData(name, subscriptions=(parse_tag_expression("Orders", "*"),))
            for name in ("CG", "Unknown")
        )
        beat = HeartbeatData("10.0.0.1@1", ("PG",), consumers)
        assert (await wire.call(RequestCode.HEART_BEAT, {}, beat.encode())).code == 0
        members = await wire.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "CG"})
        assert json.loads(members.body) == {"consumerIdList": ["10.0.0.1@1"]}
        assert len(bodies(await wire.pull("Orders", sysFlag=0))) == 5
        refused = await wire.pull("Orders", consumerGroup="Unknown")
        assert refused.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert "this broker is a slave, and its master makes new groups" in (refused.remark or "")
        assert await tables(wire) == before


async def test_a_broker_goes_on_as_a_slave_and_as_a_master_after_restarts(tmp_path: Path) -> None:
    await filled(tmp_path)
    async with serving(tmp_path) as (_, wire):
        sent = await wire.send(
            "Orders", b"late", queue_id=1, properties="DELAY\x011\x02UNIQ_KEY\x01L"
        )
        assert sent.code == ResponseCode.SUCCESS
    async with serving(tmp_path, **SLAVE) as (daemon, wire):
        arrive(daemon, b"5")
        assert bodies(await wire.pull("Orders", 5, **HELD)) == [b"5"]
    async with serving(tmp_path) as (_, wire):
        sent = await wire.send("Orders", b"6")
        assert (sent.code, sent.ext["queueOffset"]) == (ResponseCode.SUCCESS, "6")
        assert bodies(await wire.pull("Orders", 5)) == [b"5", b"6"]
        assert bodies(await wire.await_message("Orders", queueId=1)) == [b"late"]
        assert (await wire.pull("Orders", 1, queueId=1)).code == ResponseCode.PULL_NOT_FOUND


async def test_the_role_changes_while_the_broker_runs(tmp_path: Path) -> None:
    await filled(tmp_path)
    async with serving(tmp_path, ha_enabled=True) as (daemon, wire):
        assert (await wire.send("Orders", b"5")).code == ResponseCode.SUCCESS
        daemon.core.role_change.become_slave()
        assert daemon.core.role.changes == 1
        assert (await wire.send("Orders", b"x")).code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert place(await wire.pull("Orders", 9))[0] == ResponseCode.PULL_RETRY_IMMEDIATELY
        daemon.core.role_change.become_slave()
        await daemon.core.role_change.become_master()
        await daemon.core.role_change.become_master()
        assert daemon.core.role.changes == 2
        assert (await wire.send("Orders", b"6")).ext["queueOffset"] == "6"
        late = await wire.send("Orders", b"late", queue_id=1, properties="DELAY\x011")
        assert late.code == ResponseCode.SUCCESS
        assert bodies(await wire.await_message("Orders", queueId=1)) == [b"late"]


async def test_a_slave_serves_what_its_master_stores_and_takes_its_place(tmp_path: Path) -> None:
    # The slave takes the port below for its master's port for clients, as with RocketMQ.
    ha_port = free_port() + 1
    follows = {"ha_master_address": f"127.0.0.1:{ha_port}", "ha_listen_port": free_port()}
    await filled(tmp_path / "master")
    async with AsyncExitStack() as slaves:
        ports = {"listen_port": ha_port - 1, "ha_listen_port": ha_port}
        at_master = {"broker_role": "SYNC_MASTER", **ports}
        async with serving(tmp_path / "master", **at_master) as (master, wire):
            following = serving(tmp_path / "slave", **SLAVE, **follows)
            slave, from_slave = await slaves.enter_async_context(following)
            await copy_tables(master, slave)
            assert bodies(await from_slave.pull("Orders", 4, **HELD)) == [b"4"]
            late = await wire.send("Orders", b"late", queue_id=1, properties="DELAY\x011")
            assert late.code == ResponseCode.SUCCESS
            assert bodies(await from_slave.await_message("Orders", queueId=1)) == [b"late"]
            places = await wire.call(RequestCode.GET_ALL_DELAY_OFFSET)
            slave.core.delays.replace(DelayProgress.read(places.body))
        await slave.core.role_change.become_master()
        sent = await from_slave.send("Orders", b"mine", queue_id=1)
        assert (sent.code, sent.ext["queueOffset"]) == (ResponseCode.SUCCESS, "1")
        late = await from_slave.send("Orders", b"later", queue_id=1, properties="DELAY\x011")
        assert late.code == ResponseCode.SUCCESS
        assert bodies(await from_slave.await_message("Orders", 2, queueId=1)) == [b"later"]
        assert bodies(await from_slave.pull("Orders", queueId=1)) == [b"late", b"mine", b"later"]


async def copy_tables(master: Daemon, slave: Daemon) -> None:
    """Have the slave know the topic and the group."""
    topic, group = master.core.topics.get("Orders"), master.core.groups.find("CG")
    assert topic is not None
    assert group is not None
    await slave.core.topics.update(topic)
    await slave.core.groups.update(group)


async def test_sends_under_way_store_nothing_once_the_broker_is_a_slave(tmp_path: Path) -> None:
    async with serving(tmp_path, ha_enabled=True) as (daemon, wire):
        core = daemon.core
        assert (await wire.send("Orders", b"0")).code == ResponseCode.SUCCESS
        many = encode_batch([BatchItem(0, b"x", b"")] * 200)
        # A large batch waits for its place before it is stored.
        gate = core._send._large_batches
        assert list(gate.enter()) == []
        sending = asyncio.ensure_future(wire.send("Orders", many, batch=True))
        await until(lambda: gate._waiting)
        # So does a send to a topic that is being made.
        another = await Wire.to(daemon.addresses.broker)
        made, create = asyncio.get_running_loop().create_future(), core.topics.create_on_send
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(core.topics, "create_on_send", lambda *_: made)
            first = asyncio.ensure_future(another.send("New", b"x"))
            await until(lambda: made._callbacks)
        creation = create("New", "TBW102", 4, 0)
        assert creation is not None
        await creation
        written = core.store.written
        core.role_change.become_slave()
        gate.leave()
        made.set_result(None)
        answers = [await sending, await first]
        another.caller.close()
        assert [one.code for one in answers] == [ResponseCode.SERVICE_NOT_AVAILABLE] * 2
        assert core.store.written == written
        await core.role_change.become_master()
        assert (await wire.send("Orders", b"1")).ext["queueOffset"] == "1"
        assert (await wire.send("New", b"1")).ext["queueOffset"] == "0"
        assert (await wire.send("Orders", many, batch=True)).code == ResponseCode.SUCCESS


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - it looks at what the code under test keeps
            await asyncio.sleep(0.002)


async def test_a_sync_master_that_comes_back_waits_for_slaves_that_are_there_now(
    tmp_path: Path,
) -> None:
    ha_port = free_port() + 1
    ports = {"listen_port": ha_port - 1, "ha_listen_port": ha_port}
    follows = {"ha_master_address": f"127.0.0.1:{ha_port}", "ha_listen_port": free_port()}
    at_master = {"broker_role": "SYNC_MASTER", "in_sync_replicas": 2, **ports}
    async with serving(tmp_path / "master", **at_master) as (master, wire):
        async with serving(tmp_path / "slave", **SLAVE, **follows) as (slave, _):
            await until(lambda: master.store.marks.enough_slaves)
            assert (await wire.send("Orders", b"0")).code == ResponseCode.SUCCESS
            master.core.role_change.become_slave()
            assert (await wire.send("Orders", b"x")).code == ResponseCode.SERVICE_NOT_AVAILABLE
            await master.core.role_change.become_master()
            await until(lambda: master.store.marks.enough_slaves)
            assert (await wire.send("Orders", b"1")).code == ResponseCode.SUCCESS
            await until(lambda: slave.store.dispatched == master.store.written)
        await until(lambda: not master.store.marks.enough_slaves)
        master.core.role_change.become_slave()
        await master.core.role_change.become_master()
        assert (await wire.send("Orders", b"2")).code == ResponseCode.SLAVE_NOT_AVAILABLE
        async with serving(tmp_path / "slave", **SLAVE, **follows):
            await until(lambda: master.store.marks.replicated == master.store.written)
            assert (await wire.send("Orders", b"3")).code == ResponseCode.SUCCESS


async def test_a_slave_that_becomes_a_master_promises_its_own_copy_alone(tmp_path: Path) -> None:
    async with serving(tmp_path, **SLAVE, in_sync_replicas=2) as (daemon, wire):
        await daemon.core.role_change.become_master()
        assert (await wire.send("Orders", b"0")).code == ResponseCode.SUCCESS
