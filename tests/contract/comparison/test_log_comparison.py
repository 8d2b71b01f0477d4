"""A slave compares its log with a running broker's, over a connection: with a broker of ours, and
with a broker that knows RocketMQ's own requests alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import aerobee.testing
from aerobee.access.files.credentials import Credentials
from aerobee.broker.cluster.comparison.comparing import Asked, RefusalKind, Refused
from aerobee.broker.cluster.comparison.log_ranges import LogRangeRequests
from aerobee.broker.cluster.comparison.master_requests import (
    MasterRefuses,
    MasterUnreachable,
    RemoteMaster,
)
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.frames.command import Command
from aerobee.protocol.headers.log_ranges import (
    MOST_PARTS,
    MOST_RANGE_BYTES,
    LogRangesHeader,
    LogRangesResponse,
    decode_sums,
    parts_of,
)
from aerobee.remoting.calling.caller import Caller
from aerobee.testing import RunningBroker
from tests.contract.conftest import TIMEOUT_S, Wire
from tests.unit.broker.cluster.comparison.masters import NAMES, NearMaster, Stores
from tests.unit.store.support import flip, log_segment

WITH_SLAVES = True
# The least that a daemon takes: the largest record has to fit.
SEGMENT = 1 << 17
SIZES = {"commit_log_segment_bytes": SEGMENT}
SMALL: dict[str, Any] = {
    **NAMES, **SIZES, "ha_enabled": True, "consume_queue_segment_bytes": 200, "index_slots": 50,
    "index_entries": 40, "max_message_bytes": 3000,
}  # fmt: skip
# A body of this size; some forty fill a segment.
BYTES = 2800


@pytest.fixture(params=["ours", "java"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "java":
        # Then the broker answers the code as RocketMQ does, which does not know it.
        monkeypatch.setattr(LogRangeRequests, "handlers", lambda _self: {})
    return str(request.param)


@asynccontextmanager
async def remote(
    running: RunningBroker, credentials: Credentials | None = None
) -> AsyncIterator[RemoteMaster]:
    host, _, port = running.broker.rpartition(":")
    caller = await Caller.connect(host, int(port), TIMEOUT_S)
    try:
        yield RemoteMaster(caller, TIMEOUT_S, credentials)
    finally:
        caller.close()


def on(stores: Stores) -> Any:
    return aerobee.testing.broker(**SMALL, store_path=stores.master_settings.store_path)


async def test_both_kinds_of_master_are_compared_with(tmp_path: Path, kind: str) -> None:
    stores = Stores(tmp_path, **SIZES)
    stores.put_into_master(120, BYTES)
    stores.copy()
    stores.put_into_master(5, BYTES)
    slave = stores.open_slave()
    end = slave.written
    slave.close()
    with on(stores) as running:
        async with remote(running) as master:
            assert master.address == running.broker
            knows = await master.range_sums(0, 0, 1) is not None
            assert knows is (kind == "ours")
            assert await stores.outcome(master) == Asked(end)
            own = stores.put_into_slave(60, BYTES)
            found = await stores.outcome(master)
            assert isinstance(found, Refused)
            assert (found.kind, found.log_offset) == (RefusalKind.DIFFERS, own[0])
            stores.cut_slave(own[0])
            assert await stores.outcome(master) == Asked(own[0])
            found = await stores.outcome(master, running.broker)
            assert isinstance(found, Refused)
            assert found.kind is RefusalKind.ITSELF


async def test_an_empty_slave_and_one_of_another_cluster(tmp_path: Path, kind: str) -> None:
    stores = Stores(tmp_path, **SIZES)
    stores.put_into_master(3, BYTES)
    with on(stores) as running:
        async with remote(running) as master:
            assert await stores.outcome(master) == Asked(1)
            stores.slave_settings = stores.slave_settings.with_changes(cluster_name="Other")
            found = await stores.outcome(master)
            assert isinstance(found, Refused)
            assert found.kind is RefusalKind.CLUSTER


async def test_a_connection_answers_as_the_store_would(tmp_path: Path, kind: str) -> None:
    """The fake of the tests of rules, and the real one."""
    stores = Stores(tmp_path, **SIZES)
    offsets = stores.put_into_master(90, BYTES)
    places = (offsets[7], offsets[7] + 1, 1 << 40)
    store = None
    try:
        with on(stores) as running:
            async with remote(running) as master:
                state = await master.log_state()
                sums = await master.range_sums(100, 200_000, 50)
                records = [
                    await master.record_at(at) for at in (offsets[7], offsets[7] + 1, 1 << 40)
                ]
        from aerobee.store.message_store import MessageStore

        store = MessageStore.open(stores.master_settings)
        near = NearMaster(stores.master_settings, store, java=kind == "java")
        assert await near.log_state() == state
        assert await near.range_sums(100, 200_000, 50) == sums
        assert [await near.record_at(at) for at in places] == records
        assert records[0] is not None
        assert records[1:] == [None, None]
    finally:
        if store is not None:
            store.close()


async def test_damage_in_a_sampled_range_is_found_to_its_record(tmp_path: Path) -> None:
    stores = Stores(tmp_path, **SIZES)
    offsets = stores.put_into_master(120, BYTES)
    stores.copy()
    hit = offsets[17]
    start = hit - hit % SEGMENT
    flip(log_segment(Path(stores.slave_settings.store_path), start), hit - start + 150)
    with on(stores) as running:
        async with remote(running) as master:
            found = await stores.outcome(master)
    assert isinstance(found, Refused)
    assert (found.kind, found.log_offset) == (RefusalKind.DIFFERS, hit)


# --- the request ----------------------------------------------------------------------------------


async def ranges(wire: Wire, **fields: int) -> Command:
    return await wire.call(RequestCode.LOG_RANGES, {**LogRangesHeader().to_ext(), **fields})


async def test_ranges_are_cut_to_the_log_and_the_broker_names_itself(
    wire: Wire, running: RunningBroker
) -> None:
    end = (await wire.send("RangesTopic", b"x" * 5000)).ext
    assert end is not None
    answer = await ranges(wire, start=100, end=1 << 20, parts=7)
    found = LogRangesResponse.from_ext(answer.ext)
    names = (found.cluster_name, found.broker_name, found.broker_role, found.broker_id)
    assert names == ("DefaultCluster", "test-broker", "ASYNC_MASTER", 0)
    assert found.segment_bytes == running.settings.commit_log_segment_bytes
    assert (found.min_offset, found.start, found.end) == (0, 100, found.max_offset)
    assert len(decode_sums(answer.body)) == len(parts_of(100, found.max_offset, 7)) == 7
    nothing = await ranges(wire, start=1 << 40, end=(1 << 40) + 5)
    assert nothing.code == ResponseCode.SUCCESS
    assert nothing.body == b""
    bare = await wire.call(RequestCode.LOG_RANGES)
    assert LogRangesResponse.from_ext(bare.ext).max_offset >= found.max_offset


@pytest.mark.parametrize(
    "fields",
    [
        {"start": 0, "end": MOST_RANGE_BYTES + 1},
        {"start": 5, "end": 4},
        {"start": -1, "end": 4},
        {"end": 4, "parts": 0},
        {"end": 4, "parts": MOST_PARTS + 1},
        {"start": -(1 << 63), "end": (1 << 63) - 1},
    ],
)
async def test_a_range_that_is_none_is_refused(wire: Wire, fields: dict[str, int]) -> None:
    answer = await ranges(wire, **fields)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark


async def test_many_who_ask_at_once_are_all_answered(wire: Wire, running: RunningBroker) -> None:
    await wire.send("RangesTopic", b"x" * 5000)
    wires = [await Wire.to(running.broker) for _ in range(5)]
    wires[0].caller.close()
    answers = await asyncio.gather(*[ranges(one, end=4000, parts=9) for one in wires[1:] * 3])
    assert len({answer.body for answer in answers}) == 1
    for one in wires:
        one.caller.close()


# --- masters that do not answer as they should ----------------------------------------------------


async def test_a_master_with_accounts_refuses_without_keys(tmp_path: Path) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text(
        "accounts:\n- accessKey: rocketmq2\n  secretKey: '12345678'\n  admin: true\n", "utf-8"
    )
    stores = Stores(tmp_path, **SIZES)
    stores.put_into_master(3, BYTES)
    with aerobee.testing.broker(
        **SMALL, store_path=stores.master_settings.store_path, acl_enabled=True, acl_file=str(file)
    ) as running:
        async with remote(running) as master:
            with pytest.raises(MasterRefuses, match="31020"):
                await master.range_sums(0, 0, 1)
            found = await stores.outcome(master)
            assert isinstance(found, Refused)
            assert found.kind is RefusalKind.ACCESS
        async with remote(running, Credentials("rocketmq2", "12345678")) as master:
            assert await stores.outcome(master) == Asked(1)


async def test_a_master_that_has_gone_is_unreachable(running: RunningBroker) -> None:
    async with remote(running) as master:
        pass
    for asked in (master.range_sums(0, 0, 1), master.log_state(), master.record_at(0)):
        with pytest.raises(MasterUnreachable, match="does not answer request"):
            await asked
