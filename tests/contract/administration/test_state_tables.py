"""Tables of topics and groups of a running daemon: how often they are saved, what a start adds."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import aerobee.testing
from aerobee.broker.tables.files.state_file import JsonStateFile
from aerobee.protocol.bodies.topics import parse_topic_table
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.message.record import decode_records
from aerobee.testing import RunningBroker
from tests.contract.conftest import Wire
from tests.unit.broker.tables.clients_support import heartbeat_body


class Saves:
    """The saves of each state file, and the threads that did them."""

    def __init__(self) -> None:
        self.count: dict[str, int] = {}
        self.threads: set[str] = set()

    def of(self, name: str) -> int:
        return self.count.get(name, 0)


@pytest.fixture
def saves(monkeypatch: pytest.MonkeyPatch) -> Iterator[Saves]:
    saves, save = Saves(), JsonStateFile.save

    def counted(self: JsonStateFile, text: str | bytes) -> None:
        saves.count[self.path.name] = saves.of(self.path.name) + 1
        saves.threads.add(threading.current_thread().name)
        save(self, text)

    monkeypatch.setattr(JsonStateFile, "save", counted)
    return saves


@asynccontextmanager
async def connected(broker: RunningBroker) -> AsyncIterator[Wire]:
    wire = await Wire.to(broker.broker)
    try:
        yield wire
    finally:
        wire.caller.close()


def topic_ext(name: str) -> dict[str, object]:
    return {
        "topic": name,
        "defaultTopic": "TBW102",
        "topicFilterType": "SINGLE_TAG",
        "readQueueNums": 1,
        "writeQueueNums": 1,
        "perm": 6,
    }


async def test_a_heartbeat_with_500_new_groups_costs_two_saves_of_each_table(
    tmp_path: Path, saves: Saves
) -> None:
    names = [f"g{n}" for n in range(500)]
    with aerobee.testing.broker(store_path=str(tmp_path)) as broker:
        async with connected(broker) as wire:
            body = heartbeat_body("c1", {name: {"T": "*"} for name in names})
            answer = await wire.call(RequestCode.HEART_BEAT, body=body)
            assert answer.code == ResponseCode.SUCCESS
            table = parse_topic_table((await wire.call(RequestCode.GET_ALL_TOPIC_CONFIG)).body)
            assert {f"%RETRY%{name}" for name in names} <= set(table.topics)
            assert 1 <= saves.of("topics.json") <= 2
    assert 1 <= saves.of("subscriptionGroup.json") <= 2
    assert all(name.startswith("aerobee-state") for name in saves.threads), saves.threads
    stored = json.loads((tmp_path / "config" / "subscriptionGroup.json").read_bytes())
    assert set(names) <= set(stored["subscriptionGroupTable"])


async def test_topics_made_at_once_share_saves(tmp_path: Path, saves: Saves) -> None:
    with aerobee.testing.broker(store_path=str(tmp_path)) as broker:
        wires = [await Wire.to(broker.broker) for _ in range(50)]
        try:
            codes = await asyncio.gather(
                *(wire.send(f"S{n}") for n, wire in enumerate(wires[:25])),
                *(
                    wire.call(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_ext(f"C{n}"))
                    for n, wire in enumerate(wires[25:])
                ),
            )
        finally:
            for wire in wires:
                wire.caller.close()
        assert {answer.code for answer in codes} == {ResponseCode.SUCCESS}
        # How many of them arrive before the first save is done is not ours to say.
        assert saves.of("topics.json") < 25
        stored = json.loads((tmp_path / "config" / "topics.json").read_bytes())
        names = {f"S{n}" for n in range(25)} | {f"C{n}" for n in range(25)}
        assert names <= set(stored["topicConfigTable"])


async def test_a_topic_is_deleted_with_its_messages_and_made_anew(tmp_path: Path) -> None:
    with aerobee.testing.broker(store_path=str(tmp_path)) as broker:
        async with connected(broker) as wire:
            await wire.send("Orders", b"old")
            answer = await wire.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Orders"})
            assert answer.code == ResponseCode.SUCCESS
            stored = json.loads((tmp_path / "config" / "topics.json").read_bytes())
            assert "Orders" not in stored["topicConfigTable"]
            await wire.send("Orders", b"new")
            (message,) = decode_records((await wire.await_message("Orders")).body)
            assert (message.body, message.queue_offset) == (b"new", 0)


async def test_a_topic_since_the_backup_is_there_after_one_bad_byte(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with aerobee.testing.broker(store_path=str(tmp_path)) as broker:
        async with connected(broker) as wire:
            await wire.send("Before", b"1")
            await wire.send("Since", b"2", queue_id=3)
    path = tmp_path / "config" / "topics.json"
    content = bytearray(path.read_bytes())
    assert b'"Since"' not in path.with_name("topics.json.bak").read_bytes()
    content[0] ^= 0x40
    path.write_bytes(content)
    with aerobee.testing.broker(store_path=str(tmp_path), auto_create_topic=False) as broker:
        assert "topics made again from the queues" in caplog.text
        assert "Since (--queues 4)" in caplog.text
        async with connected(broker) as wire:
            found = await wire.pull("Since", queueId=3)
            assert found.code == ResponseCode.SUCCESS
            assert [message.body for message in decode_records(found.body)] == [b"2"]
            assert (await wire.send("Since", b"3", queue_id=2)).code == ResponseCode.SUCCESS
    # It is whole again, and the backup can still be read.
    for file in (path, path.with_name("topics.json.bak")):
        assert "Before" in json.loads(file.read_bytes())["topicConfigTable"]
    assert "Since" in json.loads(path.read_bytes())["topicConfigTable"]


async def test_a_group_since_the_backup_is_there_after_one_bad_byte(tmp_path: Path) -> None:
    path = tmp_path / "config" / "subscriptionGroup.json"
    for group in ("first", "second"):
        with aerobee.testing.broker(store_path=str(tmp_path)) as broker:
            async with connected(broker) as wire:
                await wire.send("Orders", b"1")
                await wire.pull("Orders", consumerGroup=group)
                ext = {"consumerGroup": group, "topic": "Orders", "queueId": 0, "commitOffset": 1}
                await wire.call(RequestCode.UPDATE_CONSUMER_OFFSET, ext)
    content = path.read_bytes()
    assert b'"second"' in content
    path.write_bytes(content.replace(b'"subscriptionGroupTable"', b'"subscriptionGroupTablf"'))
    with aerobee.testing.broker(store_path=str(tmp_path), auto_create_group=False) as broker:
        async with connected(broker) as wire:
            for group in ("first", "second"):
                assert (await wire.pull("Orders", consumerGroup=group)).code == 0
            unknown = await wire.pull("Orders", consumerGroup="third")
            assert unknown.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
