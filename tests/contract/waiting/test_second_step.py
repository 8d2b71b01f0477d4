"""Claims about messages that are stored after they have waited, whatever becomes of their topic
meanwhile."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import aerobee.testing
from aerobee.broker import core
from aerobee.client.errors import PeerError
from aerobee.client.producing.staging import StageClient
from aerobee.protocol.bodies.waiting import WaitingMessages
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.headers.stages import (
    Run,
    StageChunkHeader,
    StagePart,
    chunk_crc,
    encode_chunk,
    stage_checksum,
)
from aerobee.protocol.message.batch import BatchItem, encode_batch
from aerobee.protocol.message.ids import parse_offset_msg_id
from aerobee.protocol.message.record import decode_records
from aerobee.testing import RunningBroker
from tests.contract.conftest import FORMS, Wire, damage_of


@asynccontextmanager
async def connected(broker: RunningBroker) -> AsyncIterator[Wire]:
    wire = await Wire.to(broker.broker)
    try:
        yield wire
    finally:
        wire.caller.close()


async def make(wire: Wire, topic: str, queues: int) -> None:
    ext = {"topic": topic, "defaultTopic": "TBW102", "perm": 6, "topicFilterType": "SINGLE_TAG"}
    ext |= {"readQueueNums": queues, "writeQueueNums": queues, "order": "false"}
    answer = await wire.call(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


async def end(wire: Wire, topic: str, queue_id: int) -> int:
    ext = {"topic": topic, "queueId": queue_id}
    return int((await wire.call(RequestCode.GET_MAX_OFFSET, ext)).ext["offset"])


async def waits(wire: Wire, topic: str) -> int:
    answer = await wire.call(RequestCode.WAITING_MESSAGES, {"topic": topic})
    return WaitingMessages.parse(answer.body).total()


async def nothing_waits(wire: Wire, topic: str) -> None:
    async with asyncio.timeout(20):
        while await waits(wire, topic):
            pass


async def configure(wire: Wire, group: str, retry_queues: int) -> None:
    body = {"groupName": group, "retryQueueNums": retry_queues, "retryMaxTimes": 16}
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    answer = await wire.call(code, {}, json.dumps(body).encode())
    assert answer.code == ResponseCode.SUCCESS, answer.remark


async def give_back(wire: Wire, group: str, topic: str, level: int) -> None:
    """Everything that queue 0 of the topic holds."""
    for message in decode_records((await wire.pull(topic)).body):
        ext = {"offset": message.log_offset, "group": group, "delayLevel": level}
        ext |= {"originTopic": topic, "unitMode": "false", "maxReconsumeTimes": 16}
        answer = await wire.call(RequestCode.CONSUMER_SEND_MSG_BACK, ext)
        assert answer.code == ResponseCode.SUCCESS, answer.remark


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_delayed_message_of_a_deleted_topic_is_in_no_topic_of_its_name(
    tmp_path: Path, restarts: bool
) -> None:
    """Over a restart, too."""
    settings = {"store_path": str(tmp_path), "message_delay_levels": "1s 5s"}
    with aerobee.testing.broker(**settings) as broker:
        async with connected(broker) as wire:
            await make(wire, "T", 1)
            await wire.send("T", b"old", properties="DELAY\x011")
            gone = await wire.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
            assert gone.code == ResponseCode.SUCCESS
            await make(wire, "T", 1)
            if not restarts:
                await wire.send("T", b"new", properties="DELAY\x011")
                found = await wire.await_message("T")
    if restarts:
        with aerobee.testing.broker(**settings) as broker:
            async with connected(broker) as wire:
                await wire.send("T", b"new", properties="DELAY\x011")
                found = await wire.await_message("T")
    assert [message.body for message in decode_records(found.body)] == [b"new"]


async def test_retries_go_to_the_queues_that_their_topic_has() -> None:
    with aerobee.testing.broker(message_delay_levels="1s 5s") as broker:
        async with connected(broker) as wire:
            await make(wire, "T", 1)
            await configure(wire, "G", 4)
            await make(wire, "%RETRY%G", 1)
            for number in range(12):
                await wire.send("T", b"%d" % number)
            await give_back(wire, "G", "T", 1)
            await nothing_waits(wire, "%RETRY%G")
            assert [await end(wire, "%RETRY%G", queue) for queue in range(4)] == [12, 0, 0, 0]


async def test_a_group_that_gets_more_retry_queues_has_them(wire: Wire) -> None:
    await make(wire, "T", 1)
    await configure(wire, "G", 1)
    await wire.send("T", b"x")
    await give_back(wire, "G", "T", 5)  # makes the retry topic
    await configure(wire, "G", 4)
    answer = await wire.pull("%RETRY%G", queueId=3)
    assert answer.code == ResponseCode.PULL_NOT_FOUND
    # A number that is lowered takes nobody's messages away.
    await configure(wire, "G", 2)
    assert (await wire.pull("%RETRY%G", queueId=3)).code == ResponseCode.PULL_NOT_FOUND
    assert await waits(wire, "%RETRY%G") == 1


async def test_more_retry_queues_than_a_topic_may_have_change_nothing(wire: Wire) -> None:
    await configure(wire, "G2", 1)
    await make(wire, "%RETRY%G2", 1)
    body = json.dumps({"groupName": "G2", "retryQueueNums": 100_000}).encode()
    answer = await wire.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert (await wire.pull("%RETRY%G2", queueId=1)).code == ResponseCode.SYSTEM_ERROR


async def test_what_waits_for_queues_that_fall_away_is_in_those_that_stay() -> None:
    with aerobee.testing.broker(message_delay_levels="1s 5s") as broker:
        async with connected(broker) as wire:
            await make(wire, "T", 4)
            for queue in range(4):
                await wire.send("T", b"%d" % queue, queue_id=queue, properties="DELAY\x011")
                timed = f"UNIQ_KEY\x01{queue:032d}\x02TIMER_DELAY_MS\x01900"
                await wire.send("T", b"%d" % queue, queue_id=queue, properties=timed)
            assert await waits(wire, "T") == 8
            await make(wire, "T", 2)
            await nothing_waits(wire, "T")
            assert [await end(wire, "T", queue) for queue in range(4)] == [4, 4, 0, 0]


async def test_dead_letters_of_a_group_have_one_line_with_the_id(
    wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    await make(wire, "Failing", 1)
    await configure(wire, "DG", 1)
    for number in range(30):
        await wire.send("Failing", b"x", properties=f"UNIQ_KEY\x01{number:032d}")
    await give_back(wire, "DG", "Failing", -1)
    said = [text for text in caplog.messages if "dead letter" in text]
    assert len(said) == 1
    assert f"group=DG topic=Failing dead_letters=%DLQ%DG msg_id={0:032d} dead_letter_id=" in said[0]
    assert said[0].endswith("reason=its consumer asked for it")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("fate", ["smaller", "deleted"])
async def test_staged_rows_go_to_the_topic_as_it_is_when_they_are_published(
    monkeypatch: pytest.MonkeyPatch, form: str, fate: str
) -> None:
    if form == "off":
        monkeypatch.setenv("AEROBEE_NATIVE", "off")
    with aerobee.testing.broker() as broker:
        async with connected(broker) as wire, StageClient(broker.name_server) as client:
            await make(wire, "T", 4)
            items = encode_batch([BatchItem(0, b"row", b"TAGS\x01t")] * 300)
            chunk = encode_chunk([Run("T", 3, 300, items)])
            crc, name = chunk_crc(chunk), "0123456789abcdef" * 2
            header = StageChunkHeader("query", 0, 0, name, 0, 300, crc)
            await client.send_chunk("test-broker", header, chunk)
            assert await waits(wire, "T") == 300
            if fate == "deleted":
                await wire.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
            await make(wire, "T", 2)
            part = StagePart("test-broker", 0, name, 1, 300, stage_checksum([crc]))
            if fate == "deleted":
                with pytest.raises(PeerError, match=r"topic\[T\].* was deleted since") as refused:
                    await client.commit("query", 0, [part])
                assert refused.value.code == ResponseCode.STAGE_INCOMPLETE
                # Pretend that another broker had decided it: then it has to be carried out.
                await client.intent("test-broker", "query", 0, [part])
            decision = await client.commit("query", 0, [part], ["test-broker"])
            assert decision.state == "done"
            ends = [await end(wire, "T", queue) for queue in range(4)]
            assert ends == ([0, 300, 0, 0] if fate == "smaller" else [0, 0, 0, 0])
            assert await waits(wire, "T") == 0


@pytest.mark.parametrize("decision", [8, 12])
async def test_a_transaction_of_a_deleted_topic_ends_with_it(wire: Wire, decision: int) -> None:
    """8 is a commit, 12 a rollback."""
    topic = f"Ends{decision}"
    await make(wire, topic, 1)
    properties = "PGROUP\x01PG\x02TRAN_MSG\x01true"
    sent = await wire.send(topic, b"half", properties=properties, sys_flag=4)
    place = parse_offset_msg_id(sent.ext["msgId"])[2]
    await wire.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
    await make(wire, topic, 1)
    ext = {"producerGroup": "PG", "tranStateTableOffset": sent.ext["queueOffset"]}
    ext |= {"commitLogOffset": place, "commitOrRollback": decision}
    answer = await wire.call(RequestCode.END_TRANSACTION, ext)
    wanted = ResponseCode.TOPIC_NOT_EXIST if decision == 8 else ResponseCode.SUCCESS
    assert answer.code == wanted, answer.remark
    assert await end(wire, topic, 0) == 0


async def test_a_deletion_is_remembered_as_long_as_something_waits_from_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "_FORGET_S", 0.02)
    file = tmp_path / "config" / "deletedTopics.json"
    with aerobee.testing.broker(store_path=str(tmp_path)) as broker:
        async with connected(broker) as wire:
            await make(wire, "Before", 1)
            await wire.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Before"})
            await wire.send("Behind", b"waits", properties="DELAY\x0118")
            await wire.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Behind"})
            async with asyncio.timeout(20):
                while '"Before"' in file.read_text():
                    await wire.call(RequestCode.GET_BROKER_RUNTIME_INFO)
            assert '"Behind"' in file.read_text()
    assert damage_of(tmp_path) == []


async def test_replies_that_nobody_takes_have_one_line(
    wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "aerobee.broker")
    await make(wire, "Replies", 1)
    fields: dict[str, object] = {"a": "PG", "b": "Replies", "c": "TBW102", "d": 4, "e": 0, "f": 0}
    fields |= {"g": 1, "h": 0, "i": "REPLY_TO_CLIENT\x01gone", "m": "false"}
    for _ in range(5):
        answer = await wire.call(RequestCode.SEND_REPLY_MESSAGE_V2, fields, b"reply")
        assert answer.code == ResponseCode.SYSTEM_ERROR
    assert len([text for text in caplog.messages if "reply not delivered" in text]) == 1
