"""Light queues end to end: sent once, found through each queue it lists, by our client and raw."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import aerobee.testing
from aerobee.client import Message, MessageQueue, Producer, PullConsumer
from aerobee.protocol.bodies.clients import ConsumerData, HeartbeatData
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.filters.subscription import parse_tag_expression
from aerobee.protocol.message.batch import BatchItem, encode_batch
from aerobee.protocol.message.record import decode_records
from aerobee.testing import RunningBroker
from tests.contract.conftest import Wire, damage_of

BOTH_FORMS = True
LIMIT = 40


@pytest.fixture(scope="module")
def light() -> Iterator[RunningBroker]:
    with aerobee.testing.broker(
        multi_dispatch=True, lmq_enabled=True, lmq_max_queues=LIMIT
    ) as broker:
        yield broker


@pytest.fixture
async def wire(light: RunningBroker) -> AsyncIterator[Wire]:
    connection = await Wire.to(light.broker)
    yield connection
    connection.caller.close()


def listing(names: str) -> str:
    return f"TAGS\x01a\x02INNER_MULTI_DISPATCH\x01{names}\x02WAIT\x01true"


async def test_our_client_reads_a_message_from_each_light_queue(light: RunningBroker) -> None:
    async with (
        Producer(light.name_server, "PG") as producer,
        PullConsumer(light.name_server, "CG") as consumer,
    ):
        for n in range(3):
            names = "%LMQ%c1,%LMQ%c2" if n != 1 else "%LMQ%c2"
            properties = {"INNER_MULTI_DISPATCH": names}
            await producer.send(Message("Parent", b"%d" % n, properties=properties))
        # Light queues have no route: the parent's says where the broker is.
        parent = (await consumer.queues("Parent"))[0]
        found = {}
        for name in ("%LMQ%c1", "%LMQ%c2"):
            queue = MessageQueue(name, parent.broker_name, 0)
            result = await consumer.pull(queue, await consumer.min_offset(queue))
            found[name] = [(one.topic, one.body) for one in result.messages]
            assert result.next_offset == await consumer.max_offset(queue)
            await consumer.commit(queue, result.next_offset)
            assert await consumer.committed(queue) == result.next_offset
        assert found == {
            "%LMQ%c1": [("Parent", b"0"), ("Parent", b"2")],
            "%LMQ%c2": [("Parent", b"0"), ("Parent", b"1"), ("Parent", b"2")],
        }


async def test_a_pull_held_on_a_light_queue_is_woken_by_a_message_that_lists_it(
    wire: Wire, light: RunningBroker
) -> None:
    held = asyncio.create_task(
        wire.pull("%LMQ%held", sysFlag=4 | 2, suspendTimeoutMillis=60_000, subscription="a")
    )
    where = {"topic": "%LMQ%held", "queueId": 0}
    assert (await wire.call(RequestCode.GET_MAX_OFFSET, where)).code == ResponseCode.SUCCESS
    assert not held.done()
    other = await Wire.to(light.broker)
    await other.send("Waker", b"second", properties=listing("%LMQ%x,%LMQ%held"), queue_id=2)
    answer = await held
    assert answer.code == ResponseCode.SUCCESS
    assert [message.body for message in decode_records(answer.body)] == [b"second"]
    other.caller.close()


async def test_a_live_subscription_to_a_light_queue_is_pushed_to(wire: Wire) -> None:
    await wire.send("Pushed", b"one", properties=listing("%LMQ%pushed"))
    subscription = parse_tag_expression("%LMQ%pushed", "*", 1)
    group = ConsumerData(
        "%LMQ%group", "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_FIRST_OFFSET", [subscription]
    )
    body = HeartbeatData("client", [], [group]).encode()
    assert (await wire.call(RequestCode.HEART_BEAT, None, body)).code == ResponseCode.SUCCESS
    answer = await wire.pull("%LMQ%pushed", sysFlag=0, consumerGroup="%LMQ%group", subVersion=1)
    assert [message.body for message in decode_records(answer.body)] == [b"one"]
    tables = await wire.call(RequestCode.GET_ALL_TOPIC_CONFIG)
    assert b"%LMQ%" not in tables.body
    groups = await wire.call(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    assert b"%LMQ%" not in groups.body


async def test_a_light_topic_takes_messages_of_its_own(wire: Wire) -> None:
    sent = await wire.send("%LMQ%own", b"straight", queue_id=0)
    assert sent.code == ResponseCode.SUCCESS
    assert decode_records((await wire.pull("%LMQ%own")).body)[0].body == b"straight"
    assert (await wire.send("%LMQ%own", queue_id=1)).code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize("names", ["%LMQ%ok,../../../etc", "a/b", "SCHEDULE_TOPIC_XXXX"])
async def test_a_listed_name_that_is_no_queue_is_illegal(wire: Wire, names: str) -> None:
    sent = await wire.send("Bad", properties=listing(names))
    assert sent.code == ResponseCode.MESSAGE_ILLEGAL
    assert sent.remark is not None
    assert names.rpartition(",")[2] in sent.remark


async def test_numbers_that_a_client_invents_are_not_believed(wire: Wire) -> None:
    lie = "\x02INNER_MULTI_QUEUE_OFFSET\x01999999"
    await wire.send("Liar", b"single", properties=listing("%LMQ%liar") + lie)
    items = [BatchItem(0, b"batch", (listing("%LMQ%liar") + lie).encode())]
    await wire.send("Liar", encode_batch(items), batch=True)
    single, batch = decode_records((await wire.pull("Liar")).body)
    assert single.properties["INNER_MULTI_QUEUE_OFFSET"] == "0"
    assert "INNER_MULTI_QUEUE_OFFSET" not in batch.properties
    assert (await wire.pull("%LMQ%liar")).ext["maxOffset"] == "1"


async def test_a_message_sent_back_is_not_dispatched_again(wire: Wire) -> None:
    await wire.send("Back", b"back", properties=listing("%LMQ%back"))
    [message] = decode_records((await wire.pull("%LMQ%back", consumerGroup="BG")).body)
    header = {
        "offset": message.log_offset, "group": "BG", "delayLevel": 1, "originTopic": "Back",
        "maxReconsumeTimes": 16,
    }  # fmt: skip
    assert (await wire.call(RequestCode.CONSUMER_SEND_MSG_BACK, header)).code == 0
    [again] = decode_records((await wire.await_message("%RETRY%BG", consumerGroup="BG")).body)
    assert again.properties["INNER_MULTI_DISPATCH"] == "%LMQ%back"
    assert "INNER_MULTI_QUEUE_OFFSET" not in again.properties
    assert (await wire.pull("%LMQ%back")).ext["maxOffset"] == "1"


async def test_deleting_a_light_topic_removes_its_queue(wire: Wire) -> None:
    await wire.send("Deleting", properties=listing("%LMQ%deleted"))
    where = {"topic": "%LMQ%deleted"}
    assert (await wire.call(RequestCode.DELETE_TOPIC_IN_BROKER, where)).code == 0
    assert (await wire.pull("%LMQ%deleted")).code == ResponseCode.PULL_NOT_FOUND
    assert (await wire.pull("Deleting")).code == ResponseCode.SUCCESS


async def test_one_light_queue_too_many_is_refused_by_name() -> None:
    with aerobee.testing.broker(multi_dispatch=True, lmq_enabled=True, lmq_max_queues=1) as few:
        connection = await Wire.to(few.broker)
        assert (await connection.send("T", properties=listing("%LMQ%one"))).code == 0
        for refused in (
            await connection.send("T", properties=listing("%LMQ%one,%LMQ%two")),
            await connection.send("%LMQ%two"),
        ):
            assert refused.code == ResponseCode.SYSTEM_ERROR
            assert refused.remark is not None
            assert "LMQ_CONSUME_QUEUE_NUM_EXCEEDED" in refused.remark
        assert (await connection.pull("T")).ext["maxOffset"] == "1"
        connection.caller.close()


async def test_offsets_of_light_groups_survive_a_restart(tmp_path: Path) -> None:
    options = {"multi_dispatch": True, "lmq_enabled": True, "store_path": str(tmp_path)}
    where = {"consumerGroup": "%LMQ%g", "topic": "%LMQ%kept", "queueId": 0}
    with aerobee.testing.broker(**options) as first:
        connection = await Wire.to(first.broker)
        for _ in range(3):
            await connection.send("T", properties=listing("%LMQ%kept"))
        await connection.call(RequestCode.UPDATE_CONSUMER_OFFSET, {**where, "commitOffset": 2})
        connection.caller.close()
    table = json.loads((tmp_path / "config" / "lmqConsumerOffset.json").read_text())
    assert table == {"lmqOffsetTable": {"%LMQ%kept@%LMQ%g": 2}, "offsetTable": {}}
    assert damage_of(tmp_path) == []
    with aerobee.testing.broker(**options) as second:
        connection = await Wire.to(second.broker)
        answer = await connection.call(RequestCode.QUERY_CONSUMER_OFFSET, where)
        assert answer.ext["offset"] == "2"
        assert (await connection.pull("%LMQ%kept")).ext["maxOffset"] == "3"
        connection.caller.close()


async def test_without_the_option_such_a_topic_does_not_exist(running: RunningBroker) -> None:
    connection = await Wire.to(running.broker)
    await connection.send("T", properties=listing("%LMQ%off"))
    assert (await connection.pull("%LMQ%off")).code == ResponseCode.TOPIC_NOT_EXIST
    connection.caller.close()
