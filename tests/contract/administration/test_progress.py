"""How far groups are, in times and offsets; groups that begin where another is; consume queues."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

import aerobee.testing
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.frames.command import Command
from aerobee.protocol.hashing import tag_code
from aerobee.protocol.message.record import decode_records
from aerobee.testing import RunningBroker
from tests.contract.conftest import Wire
from tests.contract.members import Member

SPANS = RequestCode.QUERY_CONSUME_TIME_SPAN
CORRECTION = RequestCode.QUERY_CORRECTION_OFFSET
CLONE = RequestCode.CLONE_GROUP_OFFSET
QUEUE = RequestCode.QUERY_CONSUME_QUEUE


async def filled(wire: Wire, topic: str, *messages: int) -> None:
    """A topic with these numbers of messages in its four queues."""
    for queue_id, count in enumerate(messages):
        for number in range(count):
            properties = f"TAGS\x01{'ab'[number % 2]}\x02"
            answer = await wire.send(topic, b"x", queue_id=queue_id, properties=properties)
            assert answer.code == 0


async def commit(wire: Wire, group: str, topic: str, *offsets: int) -> None:
    for queue_id, offset in enumerate(offsets):
        ext = {
            "consumerGroup": group, "topic": topic, "queueId": queue_id, "commitOffset": offset,
        }  # fmt: skip
        assert (await wire.call(RequestCode.UPDATE_CONSUMER_OFFSET, ext)).code == 0


async def committed(wire: Wire) -> dict[str, dict[str, int]]:
    body = (await wire.call(RequestCode.GET_ALL_CONSUMER_OFFSET)).body
    table = json.loads(body)["offsetTable"]
    assert isinstance(table, dict)
    return table


def refused(answer: Command, code: int, word: str) -> None:
    assert (answer.code, word in (answer.remark or "")) == (code, True), answer.remark


# --- times ----------------------------------------------------------------------------------------


async def test_time_spans_are_the_store_times_of_messages(
    running: RunningBroker, wire: Wire
) -> None:
    await filled(wire, "Spans", 3, 1)
    stored = [m.store_timestamp_ms for m in decode_records((await wire.pull("Spans")).body)]
    await commit(wire, "Spans", "Spans", 2, 1)
    asked_ms = time.time_ns() // 1_000_000
    answer = await wire.call(SPANS, {"topic": "Spans", "group": "Spans"})
    first, second, empty, _ = json.loads(answer.body)["consumeTimeSpanSet"]
    name = running.settings.broker_name
    assert first["messageQueue"] == {"brokerName": name, "queueId": 0, "topic": "Spans"}
    times = [first[f"{which}TimeStamp"] for which in ("min", "consume", "max")]
    assert times == stored
    assert first["delayTime"] >= asked_ms - stored[2]
    seconds, ms = divmod(stored[0], 1000)
    text = time.strftime("%Y-%m-%d#%H:%M:%S", time.localtime(seconds))
    assert first["minTimeStampStr"] == f"{text}:{ms:03}"
    # All is consumed; there is nothing.
    assert second["delayTime"] == 0
    assert [empty[f"{which}TimeStamp"] for which in ("min", "consume", "max")] == [-1, -1, -1]
    assert empty["delayTime"] == 0


async def test_a_group_that_is_nowhere_waits_since_the_first_message(wire: Wire) -> None:
    await filled(wire, "Fresh", 1)
    [message] = decode_records((await wire.pull("Fresh")).body)
    answer = await wire.call(SPANS, {"topic": "Fresh", "group": "Nobody"})
    span = json.loads(answer.body)["consumeTimeSpanSet"][0]
    assert span["consumeTimeStamp"] == span["minTimeStamp"] == message.store_timestamp_ms
    assert span["delayTime"] >= 0
    refused(
        await wire.call(SPANS, {"topic": "Nowhere", "group": "G"}),
        ResponseCode.TOPIC_NOT_EXIST,
        "Nowhere",
    )


# --- corrected offsets ----------------------------------------------------------------------------


async def correction(wire: Wire, topic: str, compared: str, without: str = "") -> dict[str, int]:
    ext = {"topic": topic, "compareGroup": compared, "filterGroups": without}
    answer = await wire.call(CORRECTION, ext)
    assert answer.code == 0
    found = json.loads(answer.body)["correctionOffsets"]
    assert isinstance(found, dict)
    return found


async def test_the_least_offset_of_all_groups_is_given_by_queue(wire: Wire) -> None:
    await filled(wire, "Least", 9, 9)
    await commit(wire, "LeastA", "Least", 5, 2)
    await commit(wire, "LeastB", "Least", 3, 4)
    await commit(wire, "LeastC-start", "Least", 1)
    before = await committed(wire)
    assert await correction(wire, "Least", "LeastA") == {"0": 3, "1": 2}
    assert await correction(wire, "Least", "Nobody", "LeastB") == {"0": 5, "1": 2}
    assert await correction(wire, "Least", "LeastB", "LeastB, LeastX") == {"0": 2**63 - 1, "1": 2}
    assert await correction(wire, "Nowhere", "LeastB") == {}
    # Found: the reference forgets the offsets of those that it leaves out.
    assert await committed(wire) == before


# --- clones ---------------------------------------------------------------------------------------


def clone(source: str, group: str, topic: str = "", *, offline: bool = False) -> dict[str, Any]:
    return {
        "srcGroup": source, "destGroup": group, "topic": topic, "offline": str(offline).lower(),
    }  # fmt: skip


async def test_a_group_gets_the_offsets_of_another(wire: Wire) -> None:
    await filled(wire, "CloneA", 5, 5)
    await filled(wire, "CloneB", 5)
    await commit(wire, "Source", "CloneA", 3, 1)
    await commit(wire, "Source", "CloneB", 2)
    answer = await wire.call(CLONE, clone("Source", "One", "CloneA"))
    assert (answer.code, answer.remark) == (0, None)
    offsets = await committed(wire)
    assert offsets["CloneA@One"] == {"0": 3, "1": 1}
    assert "CloneB@One" not in offsets
    # Found: without a topic the reference does nothing and says that it did.
    await commit(wire, "All", "CloneA", 5)
    assert (await wire.call(CLONE, clone("Source", "All"))).code == 0
    offsets = await committed(wire)
    assert offsets["CloneA@All"] == {"0": 3, "1": 1}
    assert offsets["CloneB@All"] == {"0": 2}


async def test_a_clone_of_all_topics_leaves_out_the_retry_topic_of_its_source(wire: Wire) -> None:
    own = "%RETRY%Retrying"
    await filled(wire, "CloneD", 5)
    ext = {"group": "Retrying", "offset": 0, "delayLevel": 0, "originTopic": "CloneD"}
    await commit(wire, "Retrying", "CloneD", 3)
    await wire.call(RequestCode.CONSUMER_SEND_MSG_BACK, ext)
    await commit(wire, "Retrying", own, 0)
    assert f"{own}@Retrying" in await committed(wire)
    assert (await wire.call(CLONE, clone("Retrying", "Fresh"))).code == 0
    offsets = await committed(wire)
    assert (offsets["CloneD@Fresh"], f"{own}@Fresh" in offsets) == ({"0": 3}, False)
    assert (await wire.call(CLONE, clone("Retrying", "Fresh", own))).code == 0
    assert (await committed(wire))[f"{own}@Fresh"] == {"0": 0}


async def test_what_a_clone_cannot_do_it_says(running: RunningBroker, wire: Wire) -> None:
    await filled(wire, "CloneC", 5)
    await commit(wire, "SourceC", "CloneC", 3)
    for source, topic in (("Nobody", ""), ("SourceC", "Nowhere")):
        answer = await wire.call(CLONE, clone(source, "Target", topic))
        assert (answer.code, "no offset" in (answer.remark or "")) == (0, True)
    error = ResponseCode.SYSTEM_ERROR
    refused(await wire.call(CLONE, clone("SourceC", "../x", "CloneC")), error, "group")
    refused(await wire.call(CLONE, {"srcGroup": "SourceC"}), error, "destGroup")
    member = await Member.join(running.broker, "SourceC", ("Else",))
    # It does not subscribe to the topic any more; only who says so gets its old offsets.
    answer = await wire.call(CLONE, clone("SourceC", "Target", "CloneC"))
    assert (answer.code, "no offset" in (answer.remark or "")) == (0, True)
    answer = await wire.call(CLONE, clone("SourceC", "Target", "CloneC", offline=True))
    assert (answer.code, answer.remark) == (0, None)
    assert (await committed(wire))["CloneC@Target"] == {"0": 3}
    member.close()
    member = await Member.join(running.broker, "Target", ("CloneC",), client_id="c2")
    answer = await wire.call(CLONE, clone("SourceC", "Target", "CloneC", offline=True))
    assert (answer.code, "online" in (answer.remark or "")) == (0, True)
    member.close()


# --- consume queues -------------------------------------------------------------------------------


async def test_entries_of_a_queue_are_shown_as_they_stand(
    running: RunningBroker, wire: Wire
) -> None:
    await filled(wire, "Queue", 5)
    messages = decode_records((await wire.pull("Queue")).body)
    answer = await wire.call(QUEUE, {"topic": "Queue", "index": 1, "count": 3})
    shown = json.loads(answer.body)
    assert (answer.code, shown["minQueueIndex"], shown["maxQueueIndex"]) == (0, 0, 5)
    assert shown["queueData"] == [
        {
            "eval": False,
            "physicOffset": one.log_offset,
            "physicSize": one.size,
            "tagsCode": tag_code(one.tags or ""),
        }
        for one in messages[1:4]
    ]
    assert set(shown) == {"minQueueIndex", "maxQueueIndex", "queueData"}
    ext = {"topic": "Queue", "count": 100, "consumerGroup": "QueueGroup"}
    shown = json.loads((await wire.call(QUEUE, ext)).body)
    assert len(shown["queueData"]) == 5
    assert shown["filterData"] == "QueueGroup@Queue is not online!"
    member = await Member.join(running.broker, "QueueGroup", ("Queue",))
    shown = json.loads((await wire.call(QUEUE, ext)).body)
    assert shown["filterData"] == "null"
    assert shown["subscriptionData"]["topic"] == "Queue"
    member.close()


async def test_what_a_queue_does_not_have_is_said(wire: Wire) -> None:
    await filled(wire, "Short", 2)
    for index in (2, -1, 2**62):
        answer = await wire.call(QUEUE, {"topic": "Short", "index": index, "count": 3})
        assert (answer.code, answer.body) == (0, b"")
        assert (answer.remark or "").startswith(f"Index {index} of 0@Short is not exist!")
    error = ResponseCode.SYSTEM_ERROR
    for ext in ({"topic": "Nowhere"}, {"topic": "Short", "queueId": 3}):
        refused(await wire.call(QUEUE, {**ext, "count": 1}), error, "is not exist!")
    refused(await wire.call(QUEUE, {"topic": "Short", "count": "all"}), error, "count")
    for count in (0, -5):
        answer = await wire.call(QUEUE, {"topic": "Short", "count": count})
        assert json.loads(answer.body)["queueData"] == []


@pytest.mark.parametrize("subscribed", ["a", "*"])
async def test_entries_with_extensions_are_judged_by_the_groups_filter(subscribed: str) -> None:
    with aerobee.testing.broker(consume_queue_ext_enabled=True) as running:
        wire = await Wire.to(running.broker)
        await filled(wire, "Ext", 2)
        [first, _] = decode_records((await wire.pull("Ext")).body)
        member = await Member.join(running.broker, "G", ("Ext",), expression=subscribed)
        ext = {"topic": "Ext", "count": 9, "consumerGroup": "G"}
        shown = json.loads((await wire.call(QUEUE, ext)).body)["queueData"]
        assert [one["eval"] for one in shown] == [True, subscribed == "*"]
        extension = json.loads(shown[0]["extendDataJson"])
        assert extension["msgStoreTime"] == first.store_timestamp_ms
        assert extension["tagsCode"] == tag_code("a")
        assert shown[0]["tagsCode"] < 0
        member.close()
        wire.caller.close()
