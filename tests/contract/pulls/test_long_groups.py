"""Groups of long names: a group has 255 characters, a topic 127, its retry topic too."""

from __future__ import annotations

import asyncio
import json

import pytest

from aerobee.client import Consumed, Producer, PushConsumer, PushOptions, ReceivedMessage
from aerobee.client.admin import Admin
from aerobee.client.message import Message
from aerobee.client.options import ConsumeFrom
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.names import retry_topic
from aerobee.testing import RunningBroker
from tests.contract.conftest import TIMEOUT_S, Wire
from tests.contract.members import Member

BOTH_FORMS = True

LENGTHS = (120, 121, 122, 123, 200, 255)


def _group(length: int) -> str:
    return "G" * length


async def _last_log_offset(wire: Wire, topic: str) -> int:
    sent = await wire.send(topic)
    return int(sent.ext["msgId"][16:], 16)


async def _send_back(wire: Wire, group: str, offset: int, level: int = 0) -> tuple[int, str]:
    answer = await wire.call(
        RequestCode.CONSUMER_SEND_MSG_BACK,
        {"offset": offset, "group": group, "delayLevel": level, "unitMode": False},
    )
    return answer.code, answer.remark or ""


@pytest.mark.parametrize("length", LENGTHS)
async def test_a_group_of_any_legal_name_joins_as_java_says_it_and_pulls(
    wire: Wire, running: RunningBroker, length: int
) -> None:
    group = _group(length)
    await wire.send("LongTopic")
    # A Java client names the retry topic by itself.
    member = await Member.join(running.broker, group, ["LongTopic", retry_topic(group)])
    pulled = await wire.pull("LongTopic", consumerGroup=group, sysFlag=0)
    assert (pulled.code, pulled.remark) == (ResponseCode.SUCCESS, "FOUND")
    member.close()


@pytest.mark.parametrize("length", LENGTHS)
async def test_what_a_group_gives_back_is_stored_or_refused_with_the_limit_of_its_retry_topic(
    wire: Wire, length: int
) -> None:
    group = _group(length)
    offset = await _last_log_offset(wire, "LongTopic")
    code, remark = await _send_back(wire, group, offset)
    if length <= 120:
        assert code == ResponseCode.SUCCESS
    else:
        assert code == ResponseCode.SYSTEM_ERROR
        assert remark == (
            f"the retry topic of the group would have {length + 7} characters, the limit of a "
            "topic is 127: give the group a name of at most 120"
        )
    code, remark = await _send_back(wire, group, offset, level=-1)
    if length <= 122:
        assert code == ResponseCode.SUCCESS
    else:
        assert code == ResponseCode.SYSTEM_ERROR
        assert remark == (
            f"the dead letter topic of the group would have {length + 5} characters, the limit of "
            "a topic is 127: give the group a name of at most 122"
        )


async def test_a_retry_that_the_client_sends_itself_is_refused_with_the_same_limit(
    wire: Wire,
) -> None:
    sent = await wire.send(retry_topic(_group(200)))
    assert sent.code == ResponseCode.SYSTEM_ERROR
    assert "the retry topic of the group would have 207 characters" in (sent.remark or "")


async def test_a_topic_that_no_group_has_is_still_refused_in_a_heartbeat(wire: Wire) -> None:
    data = {
        "groupName": "ShortGroup",
        "subscriptionDataSet": [{"topic": "T" * 128, "subString": "*", "subVersion": 1}],
    }
    body = {"clientID": "c1", "producerDataSet": [], "consumerDataSet": [data]}
    answer = await wire.call(RequestCode.HEART_BEAT, body=json.dumps(body).encode())
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "128 characters" in (answer.remark or "")


async def test_offsets_listings_and_deletion_know_a_group_of_a_long_name(
    wire: Wire, running: RunningBroker
) -> None:
    group = _group(254)
    await wire.send("LongTopic")
    member = await Member.join(running.broker, group, ["LongTopic", retry_topic(group)])
    where = {"consumerGroup": group, "topic": "LongTopic", "queueId": 0}
    committed = await wire.call(RequestCode.UPDATE_CONSUMER_OFFSET, {**where, "commitOffset": 1})
    assert committed.code == ResponseCode.SUCCESS
    read = await wire.call(RequestCode.QUERY_CONSUMER_OFFSET, where)
    assert read.ext["offset"] == "1"
    async with Admin(running.name_server) as admin:
        assert group in await admin.groups()
        assert [one.client_id for one in await admin.consumers(group)] == ["c1"]
        assert {queue.topic for queue in await admin.consume_progress(group)} == {"LongTopic"}
        assert await admin.consume_progress(group) == await admin.group_progress(group)
    await member.wait_left(wire.caller, group)
    fields = {"groupName": group, "removeOffset": True}
    deleted = await wire.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, fields)
    assert deleted.code == ResponseCode.SUCCESS
    read = await wire.call(RequestCode.QUERY_CONSUMER_OFFSET, where)
    assert read.code == ResponseCode.QUERY_NOT_FOUND or read.ext["offset"] == "0"
    async with Admin(running.name_server) as admin:
        assert group not in await admin.groups()


async def test_our_consumer_tries_again_by_itself_where_its_group_has_no_retry_topic(
    running: RunningBroker,
) -> None:
    tries: list[int] = []
    third = asyncio.Event()

    async def listener(messages: list[ReceivedMessage]) -> Consumed:
        tries.append(messages[0].reconsume_times)
        if len(tries) < 3:
            return Consumed.RETRY
        third.set()
        return Consumed.SUCCESS

    options = PushOptions(consume_from=ConsumeFrom.FIRST, local_retry_delay_s=0.01)
    async with Producer(running.name_server) as producer:
        await producer.send(Message("LongFails", b"x"))
    async with PushConsumer(running.name_server, _group(255), listener, options) as consumer:
        await consumer.subscribe("LongFails")
        async with asyncio.timeout(TIMEOUT_S):
            await third.wait()
    assert tries == [0, 1, 2]
