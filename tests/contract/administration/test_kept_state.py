"""A start without its tables, and a store that is taken away under a running broker."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

import aerobee.testing
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.testing import RunningBroker
from tests.contract.conftest import FORMS, Wire
from tests.ports import free_port
from tests.service.kit import WAIT_S, wait_until

OFFSET = {"consumerGroup": "billing", "topic": "Orders", "queueId": 0}


@asynccontextmanager
async def connected(broker: RunningBroker) -> AsyncIterator[Wire]:
    wire = await Wire.to(broker.broker)
    try:
        yield wire
    finally:
        wire.caller.close()


async def failing(port: int) -> dict[str, Any]:
    """The reason of each failed check in /ready, by name; and its status."""

    def ask() -> dict[str, Any]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready") as answer:
                status, body = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, body = error.code, error.read()
        checks = json.loads(body)["checks"]
        return {"status": status} | {one["check"]: one["reason"] for one in checks if not one["ok"]}

    return await asyncio.to_thread(ask)


async def test_a_start_without_any_table_serves_what_the_store_has(tmp_path: Path) -> None:
    """A start never dies of a table of its own. Nobody is led past what he has not seen."""
    port = free_port()
    given = {"store_path": str(tmp_path), "http_enabled": True, "http_port": port}
    with aerobee.testing.broker(**given) as broker:
        async with connected(broker) as wire:
            for _ in range(9):
                await wire.send("Orders", b"x" * 100)
            await wire.await_message("Orders", 8)
            commit = {**OFFSET, "commitOffset": 7}
            await wire.pull("Orders", consumerGroup="billing")
            answer = await wire.call(RequestCode.UPDATE_CONSUMER_OFFSET, commit)
            assert answer.code == ResponseCode.SUCCESS
    damaged = [path for name in ("config", "namesrv") for path in (tmp_path / name).glob("*")]
    damaged.append(tmp_path / "config" / "delayOffset.json")
    damaged.append(tmp_path / "namesrv" / "kvConfig.json")
    (tmp_path / "namesrv").mkdir(exist_ok=True)
    for path in damaged:
        path.write_bytes(b'{"damaged":')
    with aerobee.testing.broker(**given, auto_create_topic=False) as broker:
        said = await failing(port)
        assert said["status"] == 200
        for path in damaged:
            assert path.with_name(path.name + ".damaged").read_bytes() == b'{"damaged":'
            assert f"{path}.damaged" in said["tables are whole"]
        async with connected(broker) as wire:
            answer = await wire.call(RequestCode.QUERY_CONSUMER_OFFSET, OFFSET)
            assert (answer.code, answer.ext["offset"]) == (ResponseCode.SUCCESS, "0")
            assert (await wire.send("Orders")).code == ResponseCode.SUCCESS
            assert (await wire.pull("Orders", 7)).code == ResponseCode.SUCCESS
    for path in damaged:
        path.with_name(path.name + ".damaged").unlink()
    with aerobee.testing.broker(**given):
        assert "tables are whole" not in await failing(port)


# The look finds it, or a sync that comes before and has nothing at its path.
_NOTICED = "looking for the store failed|the sync of .* failed: .*No such file or directory"


@contextmanager
def that_loses_its_store(**given: Any) -> Iterator[RunningBroker]:
    """A broker whose stop says that it could not bring everything to the disk."""
    running = aerobee.testing.broker(**given)
    broker = running.__enter__()
    try:
        yield broker
    finally:
        with pytest.raises(ExceptionGroup, match="did not stop cleanly"):
            running.__exit__(None, None, None)


async def until_refused(broker: RunningBroker, port: int) -> None:
    """Send until that is refused, and look what else is."""
    async with connected(broker) as wire:
        while (answer := await wire.send("Orders")).code == ResponseCode.SUCCESS:
            pass
        assert re.search(_NOTICED, answer.remark or "")
        said = await failing(port)
        assert said["status"] == 503
        assert re.search(_NOTICED, said["store"])
        topic = {"topic": "New", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
        topic |= {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG"}
        answer = await wire.call(RequestCode.UPDATE_AND_CREATE_TOPIC, topic)
        assert "the store is gone" in (answer.remark or "")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("what", [".", "consumequeue"])
async def test_a_pull_that_finds_nothing_in_a_store_that_is_gone_is_refused_as_a_send_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, what: str
) -> None:
    """It was answered that there is no new message, which sends whoever looks elsewhere."""
    if form == "off":
        monkeypatch.setenv("AEROBEE_NATIVE", "off")
    store = tmp_path / "store"
    given = {"store_path": str(store), "flush_disk_type": "SYNC_FLUSH"}
    with that_loses_its_store(**given) as broker:
        async with connected(broker) as wire:
            for _ in range(2):
                await wire.send("Orders")
            await wire.await_message("Orders", 1)
            await wire.pull("Orders", 2)
            held = {"sysFlag": 4 | 2, "suspendTimeoutMillis": 3000}
            waiting = asyncio.create_task(wire.pull("Orders", 2, **held))
            by_sql = {"expressionType": "SQL92", "subscription": "a IS NULL"}
            waiting_judged = asyncio.create_task(wire.pull("Orders", 2, **held, **by_sql))
            await wire.pull("Orders", 2)
            shutil.rmtree(store / what)
            while (await wire.send("Orders", queue_id=1)).code == ResponseCode.SUCCESS:
                pass
            # The one before may have waited for its sync meanwhile, and is told more.
            refused = await wire.send("Orders", queue_id=1)
            expected = (refused.code, refused.remark)
            assert "is not there any more" in (refused.remark or "")
            for offset in (2, 3, 900):
                for fields in ({}, held, by_sql, {"maxMsgNums": 4000, "maxMsgBytes": 1 << 20}):
                    answer = await wire.pull("Orders", offset, **fields)
                    assert (answer.code, answer.remark) == expected, (offset, fields)
            for fields in ({"queueId": 3}, {"queueId": 3} | held):
                answer = await wire.pull("Orders", **fields)
                assert (answer.code, answer.remark) == expected
            # Messages that the mappings still have are served.
            assert (await wire.pull("Orders")).code == ResponseCode.SUCCESS
            for answer in (await waiting, await waiting_judged):
                assert (answer.code, answer.remark) == expected


@pytest.mark.parametrize("how", ["removed", "replaced"])
async def test_a_store_that_is_taken_away_refuses_and_is_not_written_to(
    tmp_path: Path, how: str
) -> None:
    """3,000 sends were acknowledged after it, and commits and topics, and /ready was 200."""
    port, store = free_port(), tmp_path / "store"
    running = aerobee.testing.broker(store_path=str(store), http_enabled=True, http_port=port)
    broker = running.__enter__()
    async with connected(broker) as wire:
        await wire.send("Orders")
        await wire.await_message("Orders")
    store.rename(tmp_path / "elsewhere")
    if how == "replaced":
        shutil.copytree(tmp_path / "elsewhere", store)
    there = {path: path.stat().st_mtime_ns for path in store.rglob("*")}
    await until_refused(broker, port)
    with pytest.raises(ExceptionGroup, match="did not stop cleanly"):
        running.__exit__(None, None, None)
    after = {path: path.stat().st_mtime_ns for path in store.rglob("*")}
    # The kept marks are written about once a second, perhaps just before the loss is noticed.
    marks = {store / "offsets", store / "checkpoint"}
    assert {path for path, at in after.items() if there.get(path) != at} <= marks


async def until(condition: Callable[[], object], what: str) -> None:
    await asyncio.to_thread(wait_until, condition, what)


async def until_failing(port: int, check: str, text: str) -> None:
    """Ask until a check says that, or, with "", nothing any more."""
    async with asyncio.timeout(WAIT_S):
        while text not in (said := (await failing(port)).get(check, "")) or (said and not text):
            pass


async def test_tables_that_are_taken_away_are_told_and_written_again_by_the_stop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing told of it, and the stop, in order, left a store without topics and offsets."""
    port, config = free_port(), tmp_path / "config"
    given = {"store_path": str(tmp_path), "http_enabled": True, "http_port": port}
    with aerobee.testing.broker(**given) as broker:
        async with connected(broker) as wire:
            for _ in range(2):
                await wire.send("Orders")
            await wire.await_message("Orders", 1, consumerGroup="billing")
            commit = {**OFFSET, "commitOffset": 2}
            await wire.call(RequestCode.UPDATE_CONSUMER_OFFSET, commit)
            names = {"topics.json", "subscriptionGroup.json", "consumerOffset.json"}
            await until(lambda: names <= {path.name for path in config.glob("*.json")}, "tables")
            config.rename(tmp_path / "elsewhere")
            await until_failing(port, "tables", f"{config} is not there any more")
            assert (await wire.send("Orders")).code == ResponseCode.SUCCESS
            await wire.call(RequestCode.UPDATE_CONSUMER_OFFSET, {**OFFSET, "commitOffset": 1})
            refused = await wire.send("Another")
            assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert not config.exists()
        shutil.rmtree(tmp_path / "elsewhere")
    assert caplog.text.count("tables cannot be saved why=") == 1
    assert names <= {path.name for path in config.glob("*.json")}
    with aerobee.testing.broker(**given, auto_create_topic=False) as broker:
        async with connected(broker) as wire:
            answer = await wire.call(RequestCode.QUERY_CONSUMER_OFFSET, OFFSET)
            assert answer.ext["offset"] == "1"
            assert (await wire.send("Orders")).code == ResponseCode.SUCCESS


async def test_tables_that_are_put_back_are_saved_there_again(tmp_path: Path) -> None:
    port, config = free_port(), tmp_path / "config"
    given = {"store_path": str(tmp_path), "http_enabled": True, "http_port": port}
    with aerobee.testing.broker(**given) as broker:
        async with connected(broker) as wire:
            await wire.send("Orders")
            config.rename(tmp_path / "elsewhere")
            await until_failing(port, "tables", f"{config} is not there any more")
            (tmp_path / "elsewhere").rename(config)
            await until_failing(port, "tables", "")
            assert (await wire.send("Another")).code == ResponseCode.SUCCESS
            shutil.copytree(config, tmp_path / "copy")
            shutil.rmtree(config)
            (tmp_path / "copy").rename(config)
            (config / "topics.json").unlink()
            await until((config / "topics.json").exists, "the table of topics, again")
