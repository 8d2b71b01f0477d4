"""Requests on the wire, against a whole broker: what a client sends and what it must get."""

from __future__ import annotations

import asyncio
import json
import struct
import time

import pytest

from aerobee.protocol.bodies.clients import ConsumerData, HeartbeatData
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.filters.subscription import parse_tag_expression
from aerobee.protocol.message.batch import BatchItem, encode_batch
from aerobee.protocol.message.ids import parse_offset_msg_id
from aerobee.protocol.message.record import decode_record, decode_records
from aerobee.testing import RunningBroker
from tests.contract.conftest import Wire

BOTH_FORMS = True


async def test_a_send_is_answered_with_its_place_and_pulled_as_it_was_sent(wire: Wire) -> None:
    sent = await wire.send("T1", b"body", properties="KEYS\x01k1\x02TAGS\x01TagA\x02WAIT\x01true")
    assert sent.code == ResponseCode.SUCCESS
    assert sent.ext["queueId"] == "0"
    assert sent.ext["queueOffset"] == "0"
    assert sent.ext["MSG_REGION"] == "DefaultRegion"
    assert sent.ext["TRACE_ON"] == "true"
    assert sent.version >= 232

    pulled = await wire.pull("T1")
    assert pulled.code == ResponseCode.SUCCESS
    assert pulled.remark == "FOUND"
    assert (pulled.ext["nextBeginOffset"], pulled.ext["minOffset"], pulled.ext["maxOffset"]) == (
        "1",
        "0",
        "1",
    )
    [message] = decode_records(pulled.body)
    assert message.body == b"body"
    assert message.msg_id == sent.ext["msgId"]
    assert message.properties == {"KEYS": "k1", "TAGS": "TagA", "CLUSTER": "DefaultCluster"}


async def test_messages_of_one_connection_are_stored_in_the_order_they_were_sent(
    wire: Wire,
) -> None:
    calls = [wire.send("Ordered", str(n).encode()) for n in range(300)]
    answers = await asyncio.gather(*calls)
    assert [int(answer.ext["queueOffset"]) for answer in answers] == list(range(300))
    bodies: list[bytes] = []
    while len(bodies) < 300:
        pulled = await wire.pull("Ordered", len(bodies))
        bodies += [message.body for message in decode_records(pulled.body)]
    assert bodies == [str(n).encode() for n in range(300)]


async def test_a_batch_is_stored_as_single_messages_side_by_side(wire: Wire) -> None:
    items = [BatchItem(n, b"b%d" % n, b"KEYS\x01batch-%d" % n) for n in range(3)]
    sent = await wire.send("Batch", encode_batch(items), batch=True)
    assert sent.code == ResponseCode.SUCCESS
    ids = sent.ext["msgId"].split(",")
    assert len(ids) == 3
    messages = decode_records((await wire.pull("Batch")).body)
    assert [(m.body, m.flag, m.msg_id) for m in messages] == [
        (b"b%d" % n, n, ids[n]) for n in range(3)
    ]
    assert messages[1].properties == {
        "KEYS": "batch-1",
        "WAIT": "true",
        "CLUSTER": "DefaultCluster",
    }


async def test_of_a_batch_s_double_properties_the_request_s_counts_everywhere(wire: Wire) -> None:
    """The queue's filter goes by the record, as a rebuild would find it."""
    own = b"TAGS\x01own\x02KEYS\x01mine"
    body = encode_batch([BatchItem(0, b"x", own), BatchItem(0, b"y", b"")])
    await wire.send("BatchTags", body, batch=True, properties="TAGS\x01shared\x02UNIQ_KEY\x01U")
    messages = decode_records((await wire.pull("BatchTags")).body)
    assert [(message.tags, message.keys) for message in messages] == [
        ("shared", ("U", "mine")),
        ("shared", ("U",)),
    ]
    assert (await wire.pull("BatchTags", subscription="own")).code == (
        ResponseCode.PULL_RETRY_IMMEDIATELY
    )
    filtered = await wire.pull("BatchTags", subscription="shared")
    assert len(decode_records(filtered.body)) == 2


async def test_a_batch_of_the_cpp_client_is_stored_message_by_message(wire: Wire) -> None:
    ext = {
        "producerGroup": "PG",
        "topic": "CppBatch",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 4,
        "queueId": 0,
        "sysFlag": 0,
        "bornTimestamp": 0,
        "flag": 0,
        "properties": "",
        "reconsumeTimes": 0,
        "unitMode": "0",
        "batch": "1",
    }
    body = encode_batch([BatchItem(0, b"x", b""), BatchItem(0, b"y", b"")])
    assert (await wire.call(RequestCode.SEND_MESSAGE, ext, body)).code == 0
    bodies = [message.body for message in decode_records((await wire.pull("CppBatch")).body)]
    assert bodies == [b"x", b"y"]


async def test_a_negative_queue_id_lets_the_broker_choose(wire: Wire) -> None:
    sent = await wire.send("AnyQueue", queue_id=-1)
    assert 0 <= int(sent.ext["queueId"]) < 4


async def test_tags_are_filtered_by_the_broker(wire: Wire) -> None:
    for tag in ("A", "B", "C", "A"):
        await wire.send("Tagged", tag.encode(), properties=f"TAGS\x01{tag}")
    pulled = await wire.pull("Tagged", subscription="A || C")
    assert [message.body for message in decode_records(pulled.body)] == [b"A", b"C", b"A"]
    none = await wire.pull("Tagged", subscription="Z")
    assert none.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert none.ext["nextBeginOffset"] == "4"


async def test_a_held_pull_is_answered_when_a_message_arrives(
    wire: Wire, running: RunningBroker
) -> None:
    await wire.send("Held")
    waiting = asyncio.create_task(wire.pull("Held", 1, sysFlag=4 | 2, suspendTimeoutMillis=60_000))
    other = await Wire.to(running.broker)
    # The answer to a later request of the same connection says that the pull was seen and held.
    assert (await wire.call(RequestCode.GET_MAX_OFFSET, {"topic": "Held", "queueId": 0})).code == 0
    assert not waiting.done()
    await other.send("Held", b"second")
    pulled = await waiting
    assert pulled.code == ResponseCode.SUCCESS
    assert [message.body for message in decode_records(pulled.body)] == [b"second"]
    other.caller.close()


async def test_a_held_pull_ends_with_its_time(wire: Wire) -> None:
    await wire.send("HeldShort")
    pulled = await wire.pull("HeldShort", 1, sysFlag=4 | 2, suspendTimeoutMillis=300)
    assert pulled.code == ResponseCode.PULL_NOT_FOUND


@pytest.mark.parametrize(
    ("offset", "code", "next_offset"),
    [(3, ResponseCode.PULL_NOT_FOUND, "3"), (99, ResponseCode.PULL_OFFSET_MOVED, "3")],
)
async def test_offsets_at_and_past_the_end(
    wire: Wire, offset: int, code: int, next_offset: str
) -> None:
    topic = f"End{offset}"
    for _ in range(3):
        await wire.send(topic)
    pulled = await wire.pull(topic, offset)
    assert (pulled.code, pulled.ext["nextBeginOffset"]) == (code, next_offset)


async def test_a_moved_offset_leaves_an_event(wire: Wire) -> None:
    await wire.send("Moved")
    assert (await wire.pull("Moved", 50)).code == ResponseCode.PULL_OFFSET_MOVED
    events = decode_records((await wire.pull("OFFSET_MOVED_EVENT")).body)
    body = json.loads(events[-1].body)
    assert (body["consumerGroup"], body["offsetNew"], body["offsetRequest"]) == ("CG", 1, 50)
    assert events[-1].properties == {"KEYS": "CG", "DELAY": "0", "TAGS": "CG"}


async def test_query_by_key_and_view_by_id_find_the_message(wire: Wire) -> None:
    sent = await wire.send("Query", b"wanted", properties="KEYS\x01order-7\x02UNIQ_KEY\x01U77")
    now_ms = time.time_ns() // 1_000_000
    for key, unique in (("order-7", "false"), ("U77", "true")):
        found = await wire.call(
            RequestCode.QUERY_MESSAGE,
            {
                "topic": "Query",
                "key": key,
                "maxNum": 32,
                "beginTimestamp": now_ms - 60_000,
                "endTimestamp": now_ms + 60_000,
                "_UNIQUE_KEY_QUERY": unique,
            },
        )
        assert [message.body for message in decode_records(found.body)] == [b"wanted"]
    _, _, log_offset = parse_offset_msg_id(sent.ext["msgId"])
    viewed = await wire.call(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": log_offset})
    assert decode_record(viewed.body).body == b"wanted"


async def test_consumer_offsets_are_committed_by_pulls_and_by_request(wire: Wire) -> None:
    for _ in range(5):
        await wire.send("Offsets")
    await wire.pull("Offsets", 0, sysFlag=4 | 1, commitOffset=2, consumerGroup="CGO")
    where = {"consumerGroup": "CGO", "topic": "Offsets", "queueId": 0}
    assert (await wire.call(RequestCode.QUERY_CONSUMER_OFFSET, where)).ext["offset"] == "2"
    await wire.call(RequestCode.UPDATE_CONSUMER_OFFSET, {**where, "commitOffset": 4})
    assert (await wire.call(RequestCode.QUERY_CONSUMER_OFFSET, where)).ext["offset"] == "4"


async def test_min_max_and_search_offsets(wire: Wire) -> None:
    before_ms = time.time_ns() // 1_000_000
    for _ in range(3):
        await wire.send("Range")
    queue = {"topic": "Range", "queueId": 0}
    assert (await wire.call(RequestCode.GET_MAX_OFFSET, queue)).ext["offset"] == "3"
    assert (await wire.call(RequestCode.GET_MIN_OFFSET, queue)).ext["offset"] == "0"
    first = await wire.call(
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {**queue, "timestamp": before_ms - 1000}
    )
    assert first.ext["offset"] == "0"
    earliest = await wire.call(RequestCode.GET_EARLIEST_MSG_STORETIME, queue)
    assert int(earliest.ext["timestamp"]) >= before_ms
    unknown = {"topic": "Nowhere", "queueId": 0}
    assert (await wire.call(RequestCode.GET_MAX_OFFSET, unknown)).ext["offset"] == "0"
    nothing = await wire.call(RequestCode.GET_EARLIEST_MSG_STORETIME, unknown)
    assert nothing.ext["timestamp"] == "-1"


async def test_a_heartbeat_makes_the_group_its_retry_topic_and_its_members(wire: Wire) -> None:
    subscription = parse_tag_expression("Beat", "A")
    beat = HeartbeatData(
        "10.0.0.1@1", ("PG",), (ConsumerData("BeatGroup", subscriptions=(subscription,)),)
    )
    assert (await wire.call(RequestCode.HEART_BEAT, {}, beat.encode())).code == 0
    members = await wire.call(
        RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "BeatGroup"}
    )
    assert json.loads(members.body) == {"consumerIdList": ["10.0.0.1@1"]}
    await wire.send("Beat", b"1", properties="TAGS\x01B")
    await wire.send("Beat", b"2", properties="TAGS\x01A")
    pulled = await wire.pull("Beat", consumerGroup="BeatGroup", sysFlag=0)
    assert [message.body for message in decode_records(pulled.body)] == [b"2"]
    retry = await wire.pull("%RETRY%BeatGroup", consumerGroup="BeatGroup")
    assert retry.code == ResponseCode.PULL_NOT_FOUND


async def test_a_message_sent_back_returns_in_the_retry_topic_then_dies(wire: Wire) -> None:
    sent = await wire.send("Back", b"failing", properties="KEYS\x01kb\x02TAGS\x01A")
    _, _, log_offset = parse_offset_msg_id(sent.ext["msgId"])
    back = {
        "offset": log_offset,
        "group": "BackGroup",
        "delayLevel": 1,
        "originMsgId": "the unique key, as Java's client has it",
        "originTopic": "Back",
        "maxReconsumeTimes": 16,
    }
    assert (await wire.call(RequestCode.CONSUMER_SEND_MSG_BACK, back)).code == 0
    [retried] = decode_records((await wire.await_message("%RETRY%BackGroup")).body)
    assert retried.body == b"failing"
    assert retried.reconsume_times == 1
    assert retried.properties["RETRY_TOPIC"] == "Back"
    assert retried.properties["ORIGIN_MESSAGE_ID"] == sent.ext["msgId"]
    again = {**back, "offset": retried.log_offset, "maxReconsumeTimes": 1}
    assert (await wire.call(RequestCode.CONSUMER_SEND_MSG_BACK, again)).code == 0
    [dead] = decode_records((await wire.pull("%DLQ%BackGroup")).body)
    assert (dead.body, dead.reconsume_times) == (b"failing", 2)


async def test_queue_locks_go_to_one_client(running: RunningBroker, wire: Wire) -> None:
    def body(client: str) -> bytes:
        queue = {"topic": "L", "brokerName": "test-broker", "queueId": 0}
        return json.dumps({"clientId": client, "consumerGroup": "LG", "mqSet": [queue]}).encode()

    await wire.send("L")
    for client in ("c1", "c2"):
        consumer = ConsumerData("LG", subscriptions=(parse_tag_expression("L", "*"),))
        beat = HeartbeatData(client, (), (consumer,))
        other = await Wire.to(running.broker)
        assert (await other.call(RequestCode.HEART_BEAT, {}, beat.encode())).code == 0
    first = await wire.call(RequestCode.LOCK_BATCH_MQ, {}, body("c1"))
    assert len(json.loads(first.body)["lockOKMQSet"]) == 1
    second = await wire.call(RequestCode.LOCK_BATCH_MQ, {}, body("c2"))
    assert json.loads(second.body)["lockOKMQSet"] == []
    await wire.call(RequestCode.UNLOCK_BATCH_MQ, {}, body("c1"))
    third = await wire.call(RequestCode.LOCK_BATCH_MQ, {}, body("c2"))
    assert len(json.loads(third.body)["lockOKMQSet"]) == 1


async def test_the_vip_port_serves_all_but_pulls(running: RunningBroker) -> None:
    vip = await Wire.to(running.vip)
    assert (await vip.send("Vip")).code == ResponseCode.SUCCESS
    assert (await vip.pull("Vip")).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    vip.caller.close()


async def test_runtime_info_has_what_the_exporter_parses(wire: Wire) -> None:
    answer = await wire.call(RequestCode.GET_BROKER_RUNTIME_INFO)
    table = json.loads(answer.body)["table"]
    assert table["brokerVersionDesc"] == "V4_9_8"
    assert len(table["putTps"].split(" ")) == 3
    assert table["commitLogDirCapacity"].startswith("Total : ")
    assert table["remainTransientStoreBufferNumbs"] == "2147483647"


async def test_binary_headers_are_answered_in_kind(running: RunningBroker) -> None:
    host, _, port = running.broker.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    ext = b"".join(
        struct.pack(">H", len(key)) + key + struct.pack(">I", len(value)) + value
        for key, value in ((b"topic", b"Nowhere"), (b"queueId", b"0"))
    )
    header = struct.pack(">hbhiiii", 30, 12, 399, 77, 0, 0, len(ext)) + ext
    writer.write(struct.pack(">II", 4 + len(header), 1 << 24 | len(header)) + header)
    total, mark = struct.unpack(">II", await reader.readexactly(8))
    answer = await reader.readexactly(total - 4)
    assert mark >> 24 == 1
    assert struct.unpack_from(">hbhii", answer)[0] == 0
    assert struct.unpack_from(">hbhii", answer)[3:] == (77, 1)
    writer.close()
