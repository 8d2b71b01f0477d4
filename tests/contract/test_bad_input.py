"""Bad input: a clear answer with RocketMQ's code, and not one stored byte changed by it."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import aerobee.testing
from aerobee.broker.routing.unsupported import FEATURES, TO_NAME_SERVERS
from aerobee.client.errors import RequestRefused
from aerobee.client.producing.staging import StageClient
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.frames.command import Command
from aerobee.protocol.headers.stages import Run, StageChunkHeader, chunk_crc, encode_chunk
from aerobee.protocol.message.batch import BatchItem, encode_batch
from aerobee.protocol.names import STAGE_TOPIC, TIMER_TOPIC
from aerobee.remoting.errors import RemotingListenError
from aerobee.store.errors import StoreError, StoreInUse, StoreSizeMismatch
from aerobee.testing import RunningBroker
from tests.contract.conftest import Wire

BOTH_FORMS = True
LIMITS = {"max_message_bytes": 4096, "auto_create_topic": False, "auto_create_group": False}


@pytest.fixture(scope="module")
def strict() -> Iterator[RunningBroker]:
    """A broker that creates nothing by itself and takes small messages only."""
    with aerobee.testing.broker(**LIMITS) as broker:
        yield broker


async def stored(wire: Wire) -> str:
    """How long the commit log is."""
    info = await wire.call(RequestCode.GET_BROKER_RUNTIME_INFO)
    return str(json.loads(info.body)["table"]["commitLogMaxOffset"])


def refused(answer: Command, code: int, *words: str) -> None:
    assert answer.code == code, answer.remark
    for word in words:
        assert word in (answer.remark or ""), answer.remark


# --- sends ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic", "word"),
    [
        ("../../etc", "characters"),
        ("a.b", "characters"),
        ("with blank", "characters"),
        ("  ", "blank"),
        ("x" * 128, "127"),
        ("new\nline", "characters"),
    ],
)
async def test_an_illegal_topic_name_is_refused(wire: Wire, topic: str, word: str) -> None:
    before = await stored(wire)
    refused(await wire.send(topic), ResponseCode.SYSTEM_ERROR, word)
    assert await stored(wire) == before


async def test_a_system_topic_takes_no_sends(wire: Wire) -> None:
    for topic in ("SCHEDULE_TOPIC_XXXX", "OFFSET_MOVED_EVENT", "SELF_TEST_TOPIC"):
        refused(await wire.send(topic), ResponseCode.NO_PERMISSION, topic)


async def test_an_unknown_topic_without_automatic_creation(strict: RunningBroker) -> None:
    wire = await Wire.to(strict.broker)
    refused(await wire.send("Unknown"), ResponseCode.TOPIC_NOT_EXIST, "Unknown", "apply first")
    refused(
        await wire.pull("Unknown", consumerGroup="TOOLS_CONSUMER"),
        ResponseCode.TOPIC_NOT_EXIST,
        "Unknown",
    )
    refused(
        await wire.pull("BenchmarkTest", consumerGroup="Nobody"),
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        "Nobody",
    )
    wire.caller.close()


async def test_a_send_that_a_limit_of_topics_stops_says_so() -> None:
    with aerobee.testing.broker(max_topics=16) as full:
        wire = await Wire.to(full.broker)
        for number in range(16):
            await wire.send(f"T{number}")
        reason = "there are 16 topics, the limit is 16 (limits.max_topics)"
        refused(await wire.send("Tnew"), ResponseCode.TOPIC_NOT_EXIST, "topic[Tnew] not", reason)
        other = await wire.send("Tnew", default_topic="SELF_TEST_TOPIC")
        refused(other, ResponseCode.TOPIC_NOT_EXIST, "template topic [SELF_TEST_TOPIC] does not")
        async with StageClient(full.name_server) as client:
            item = encode_batch([BatchItem(0, b"x", b"")])
            chunk = encode_chunk([Run("Tnew", 0, 1, item)])
            header = StageChunkHeader("q", 0, 0, uuid.uuid4().hex, 0, 1, chunk_crc(chunk))
            with pytest.raises(RequestRefused) as refusal:
                await client.send_chunk("test-broker", header, chunk)
            assert refusal.value.code == ResponseCode.TOPIC_NOT_EXIST
            assert reason in str(refusal.value)
        wire.caller.close()


async def test_a_send_that_the_rate_of_new_topics_stops_says_when_to_try_again() -> None:
    with aerobee.testing.broker(auto_create_per_minute=1) as slow:
        wire = await Wire.to(slow.broker)
        answers = [await wire.send(f"T{number}") for number in range(3)]
        late = next(answer for answer in answers if answer.code)
        refused(
            late,
            ResponseCode.TOPIC_NOT_EXIST,
            "sends made 1 topic in this minute, the limit is 1 (topics.auto_create_per_minute)",
            "try again in ",
        )
        assert "automatic creation is off" not in (late.remark or "")
        wire.caller.close()


async def test_a_pull_that_the_limit_of_groups_stops_says_so() -> None:
    with aerobee.testing.broker(max_groups=16) as full:
        wire = await Wire.to(full.broker)
        await wire.send("T")
        for number in range(16):
            await wire.pull("T", consumerGroup=f"g{number}")
        reason = "there are 16 groups, the limit is 16 (limits.max_groups)"
        heartbeat = {"clientID": "c", "consumerDataSet": [{"groupName": "gnew"}]}
        body = json.dumps(heartbeat).encode()
        assert (await wire.call(RequestCode.HEART_BEAT, {}, body)).code == ResponseCode.SUCCESS
        pull = await wire.pull("T", consumerGroup="gnew")
        refused(pull, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "[gnew]", reason)
        assert "autoCreateSubscriptionGroup" not in (pull.remark or "")
        back = {"group": "gnew", "offset": 0, "delayLevel": 0}
        answer = await wire.call(RequestCode.CONSUMER_SEND_MSG_BACK, back)
        refused(answer, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "gnew", reason)
        answer = await wire.send("%RETRY%gnew")
        refused(answer, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "gnew", reason)
        wire.caller.close()


async def test_a_broker_that_takes_no_messages_takes_none_back(tmp_path: Path) -> None:
    with aerobee.testing.broker(store_path=str(tmp_path)) as broker:
        wire = await Wire.to(broker.broker)
        await wire.send("T")
        wire.caller.close()
    with aerobee.testing.broker(store_path=str(tmp_path), broker_permission=4) as drained:
        wire = await Wire.to(drained.broker)
        before = await stored(wire)
        back = {"group": "g", "offset": 0, "delayLevel": 0}
        answer = await wire.call(RequestCode.CONSUMER_SEND_MSG_BACK, back)
        refused(answer, ResponseCode.NO_PERMISSION, drained.broker, "brokerPermission")
        assert await stored(wire) == before
        wire.caller.close()


async def test_a_message_too_large_is_illegal(strict: RunningBroker) -> None:
    wire = await Wire.to(strict.broker)
    before = await stored(wire)
    topic = "BenchmarkTest"
    refused(await wire.send(topic, b"x" * 4097), ResponseCode.MESSAGE_ILLEGAL, "4096", "4097")
    batch = encode_batch([BatchItem(0, b"x" * 3000, b"")] * 2)
    refused(await wire.send(topic, batch, batch=True), ResponseCode.MESSAGE_ILLEGAL, "4096")
    assert await stored(wire) == before
    assert (await wire.send(topic, b"x" * 4096)).code == ResponseCode.SUCCESS
    wire.caller.close()


async def test_too_many_properties_are_illegal(wire: Wire) -> None:
    before = await stored(wire)
    for text in ("k\x01" + "v" * 32_760, "k\x01" + "\u4e2d" * 12_000):
        answer = await wire.send("Properties", properties=text)
        refused(answer, ResponseCode.MESSAGE_ILLEGAL, "32767")
    assert await stored(wire) == before


@pytest.mark.parametrize("queue_id", [4, 99, 2**31 - 1])
async def test_a_queue_that_is_not_there_is_refused(wire: Wire, queue_id: int) -> None:
    await wire.send("FourQueues")
    before = await stored(wire)
    answer = await wire.send("FourQueues", queue_id=queue_id)
    refused(answer, ResponseCode.SYSTEM_ERROR, f"queueId[{queue_id}]", "FourQueues")
    pulled = await wire.pull("FourQueues", queueId=queue_id)
    refused(pulled, ResponseCode.SYSTEM_ERROR, f"queueId[{queue_id}]")
    assert await stored(wire) == before


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0",
        struct.pack(">iiiii", 22, 0, 0, 0, -1) + b"\0\0",
        struct.pack(">iiiii", 22, 0, 0, 0, 1000) + b"\0\0",
        struct.pack(">iiiiih", 22, 0, 0, 0, 0, -5),
        encode_batch([BatchItem(0, b"whole", b"")]) + b"\0\0\0\x40",
    ],
)
async def test_a_broken_batch_is_refused_whole(wire: Wire, body: bytes) -> None:
    await wire.send("BrokenBatch")
    before = await stored(wire)
    answer = await wire.send("BrokenBatch", body, batch=True)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL, answer.remark
    assert await stored(wire) == before


@pytest.mark.parametrize(
    ("properties", "word"),
    [
        ("TRAN_MSG\x01true", "PGROUP"),
        ("TRAN_MSG\x01true\x02PGROUP\x01PG\x02DELAY\x013", "DELAY"),
        ("TRAN_MSG\x01true\x02PGROUP\x01PG\x02TIMER_DELAY_SEC\x0130", "TIMER_DELAY_SEC"),
        ("TRAN_MSG\x01true\x02PGROUP\x01PG\x02a\x01" + "x" * 32_600, "32"),
    ],
)
async def test_a_transaction_that_nobody_could_end_is_refused(
    wire: Wire, properties: str, word: str
) -> None:
    await wire.send("Half")
    before = await stored(wire)
    half = await wire.send("Half", properties=properties)
    refused(half, ResponseCode.MESSAGE_ILLEGAL, "transactional", word)
    batch = encode_batch([BatchItem(0, b"x", b"")])
    halves = await wire.send("Half", batch, batch=True, properties=properties)
    refused(halves, ResponseCode.MESSAGE_ILLEGAL, "batch")
    assert await stored(wire) == before


@pytest.mark.parametrize(
    "properties",
    ["TRAN_MSG\x01true\x02PGROUP\x01PG", "TIMER_DELAY_SEC\x013600"],
    ids=["half", "time"],
)
async def test_what_is_not_delivered_yet_cannot_be_given_back(wire: Wire, properties: str) -> None:
    await wire.send("Waits")
    sent = await wire.send("Waits", properties=properties)
    assert sent.code == 0, sent.remark
    before = await stored(wire)
    log_offset = int(sent.ext["msgId"][-16:], 16)
    back = {"group": "CG", "offset": log_offset, "delayLevel": 1}
    answer = await wire.call(RequestCode.CONSUMER_SEND_MSG_BACK, back)
    refused(answer, ResponseCode.SYSTEM_ERROR, str(log_offset), "no consumer has had it")
    assert await stored(wire) == before


async def test_a_delay_level_that_is_no_number_is_refused_as_java_does(wire: Wire) -> None:
    await wire.send("Delays")
    before = await stored(wire)
    refused(await wire.send("Delays", properties="DELAY\x01soon"), 1, "DELAY", "'soon'")
    item = encode_batch([BatchItem(0, b"x", b"DELAY\x01soon")])
    outer = await wire.send("Delays", item, batch=True, properties="DELAY\x01soon")
    refused(outer, 1, "DELAY", "'soon'")
    assert await stored(wire) == before
    # Nobody asks it of the messages in a batch.
    assert (await wire.send("Delays", item, batch=True)).code == ResponseCode.SUCCESS


# --- headers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ext", "word"),
    [
        ({}, "missing"),
        ({"topic": "T", "queueId": "many"}, "queueId"),
        ({"topic": "T", "queueId": str(2**40)}, "queueId"),
    ],
)
async def test_a_header_field_that_is_missing_or_no_number_is_named(
    wire: Wire, ext: dict[str, Any], word: str
) -> None:
    refused(await wire.call(RequestCode.GET_MAX_OFFSET, ext), ResponseCode.SYSTEM_ERROR, word)


async def test_an_unknown_code_is_not_supported(wire: Wire) -> None:
    answer = await wire.call(31_999)
    refused(answer, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "31999")
    assert answer.remark == " request type 31999 not supported"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (54, "GET_BROKER_CLUSTER_ACL_CONFIG (access control) is not served by this version"),
        (200_050, "POP_MESSAGE (POP consumption of RocketMQ 5) is not served by this version"),
        (105, "GET_ROUTEINFO_BY_TOPIC is for a name server, and this is a broker's port"),
    ],
)
async def test_a_refusal_names_the_feature_that_is_missing(
    wire: Wire, code: int, words: str
) -> None:
    answer = await wire.call(code)
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    # Clients may look at the beginning, which is the reference's.
    assert answer.remark == f" request type {code} not supported: {words}"


async def test_every_known_code_is_served_or_has_its_feature(wire: Wire) -> None:
    # Brokers of 4.9 have no handler for these either; 39 and 40 go from broker to client.
    of_nobody = {13, 22, 23, 27, 39, 40, 209, 210, 211, 213, 214}
    # Served where the port for slaves opens.
    of_slaves = {RequestCode.LOG_RANGES, RequestCode.REPLICA_TABLES}
    unserved = set()
    for code in RequestCode:
        if (await wire.call(code)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            unserved.add(int(code))
    assert unserved == set(FEATURES) | TO_NAME_SERVERS | of_nobody | of_slaves


_REPLY = {
    "producerGroup": "PG", "topic": "DefaultCluster_REPLY_TOPIC", "defaultTopic": "TBW102",
    "defaultTopicQueueNums": 4, "queueId": 0, "sysFlag": 0, "bornTimestamp": 1, "flag": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        ({}, 1, "REPLY_TO_CLIENT"),
        ({"properties": "REPLY_TO_CLIENT\x01nobody\x02"}, 1, "channel of <nobody> not found"),
        ({"queueId": 9}, 1, "queueId[9]"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, 16, "forbidden"),
        ({"topic": "a.b"}, 1, "characters"),
        ({"topic": "Unknown", "defaultTopic": "NONE"}, 17, "not exist"),
        ({"bornTimestamp": "x"}, 1, "bornTimestamp"),
    ],
)
async def test_a_reply_that_cannot_be_pushed_says_why(
    wire: Wire, more: dict[str, Any], code: int, words: str
) -> None:
    answer = await wire.call(RequestCode.SEND_REPLY_MESSAGE, {**_REPLY, **more}, b"reply")
    refused(answer, code, words)


@pytest.mark.parametrize("topic", [STAGE_TOPIC, TIMER_TOPIC])
async def test_a_reply_does_not_make_a_topic_of_the_brokers_own(wire: Wire, topic: str) -> None:
    answer = await wire.call(RequestCode.SEND_REPLY_MESSAGE, {**_REPLY, "topic": topic}, b"reply")
    refused(answer, ResponseCode.NO_PERMISSION, topic)
    assert (await wire.pull(topic)).code == ResponseCode.TOPIC_NOT_EXIST


async def test_a_reply_over_the_limit_is_illegal_and_goes_to_nobody(strict: RunningBroker) -> None:
    wire = await Wire.to(strict.broker)
    before = await stored(wire)
    answer = await wire.call(RequestCode.SEND_REPLY_MESSAGE, _REPLY, bytes(4097))
    refused(answer, ResponseCode.MESSAGE_ILLEGAL, "4097", "maxMessageSize")
    assert await stored(wire) == before
    wire.caller.close()


async def test_an_illegal_group_name_is_refused(wire: Wire) -> None:
    await wire.send("Groups")
    for group in ("../x", "a@b", "g" * 256):
        pulled = await wire.pull("Groups", consumerGroup=group)
        refused(pulled, ResponseCode.SYSTEM_ERROR, "group")


async def test_an_offset_past_the_queue_is_not_committed(wire: Wire) -> None:
    await wire.send("Commit")
    where = {"consumerGroup": "CGX", "topic": "Commit", "queueId": 0}
    await wire.call(RequestCode.UPDATE_CONSUMER_OFFSET, {**where, "commitOffset": 1})
    await wire.call(RequestCode.UPDATE_CONSUMER_OFFSET, {**where, "commitOffset": 1_000})
    assert (await wire.call(RequestCode.QUERY_CONSUMER_OFFSET, where)).ext["offset"] == "1"


@pytest.mark.parametrize("offset", [-1, 1, 2**62])
async def test_no_message_is_found_where_none_begins(wire: Wire, offset: int) -> None:
    await wire.send("View")
    answer = await wire.call(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset})
    refused(answer, ResponseCode.SYSTEM_ERROR, str(offset))


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"clientID":1}', b"[" * 10_000])
async def test_a_broken_heartbeat_is_refused(wire: Wire, body: bytes) -> None:
    answer = await wire.call(RequestCode.HEART_BEAT, {}, body)
    assert answer.code == ResponseCode.SYSTEM_ERROR


async def test_a_wrong_expression_in_a_pull_is_refused_with_its_place(wire: Wire) -> None:
    await wire.send("Sql")
    for kind, expression, why in (
        ("SQL92", "a >> 1", "at character 4"),
        ("SQL92", "a = 1 AND b > 'x'", "at character 15"),
        ("SQL92", "", "empty"),
        ("SQL92", "x" * 9_000, "limits.max_sql_chars"),
        ("CEL", "a", "TAG or SQL92"),
    ):
        pulled = await wire.pull("Sql", expressionType=kind, subscription=expression)
        refused(pulled, ResponseCode.SUBSCRIPTION_PARSE_FAILED, why)


# --- frames ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"\xff" * 64,
        struct.pack(">i", -1),
        struct.pack(">i", 3),
        struct.pack(">i", 2_000_000_000),
        struct.pack(">ii", 16, 100) + b"x" * 12,
        struct.pack(">iI", 8, 9 << 24 | 4) + b"{}  ",
        struct.pack(">ii", 8, 4) + b'{"c"',
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
async def test_a_broken_frame_ends_its_connection_and_no_other(
    wire: Wire, running: RunningBroker, data: bytes
) -> None:
    host, _, port = running.broker.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    async with asyncio.timeout(5):
        assert await reader.read() == b""
    writer.close()
    assert (await wire.send("StillServed")).code == ResponseCode.SUCCESS


async def test_a_truncated_frame_changes_nothing(wire: Wire, running: RunningBroker) -> None:
    before = await stored(wire)
    host, _, port = running.broker.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(struct.pack(">ii", 1000, 500) + b'{"code":310')
    await writer.drain()
    writer.close()
    assert await stored(wire) == before


# --- the start ------------------------------------------------------------------------------------


def test_a_store_in_use_stops_the_start(running: RunningBroker) -> None:
    with (
        pytest.raises(StoreInUse, match=str(running.store_path)),
        aerobee.testing.broker(store_path=str(running.store_path)),
    ):
        pass


def test_a_store_of_another_segment_size_stops_the_start_unchanged(tmp_path: Path) -> None:
    with aerobee.testing.broker(store_path=str(tmp_path)) as broker:
        asyncio.run(_send_one(broker))
    files = sorted((path, path.stat().st_size) for path in tmp_path.rglob("*") if path.is_file())
    with (
        pytest.raises(StoreSizeMismatch, match="mappedFileSizeCommitLog"),
        aerobee.testing.broker(store_path=str(tmp_path), commit_log_segment_bytes=1 << 20),
    ):
        pass
    after = sorted((path, path.stat().st_size) for path in tmp_path.rglob("*") if path.is_file())
    assert after == files


async def _send_one(broker: RunningBroker) -> None:
    wire = await Wire.to(broker.broker)
    assert (await wire.send("Size")).code == ResponseCode.SUCCESS
    wire.caller.close()


def test_a_store_path_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    # A file where the directory should be fails for root as well.
    (tmp_path / "file").write_bytes(b"")
    with (
        pytest.raises((StoreError, OSError), match="file"),
        aerobee.testing.broker(store_path=str(tmp_path / "file" / "store")),
    ):
        pass


def test_a_port_in_use_stops_the_start_and_names_it(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(RemotingListenError, match=str(port)),
            aerobee.testing.broker(store_path=str(tmp_path), listen_port=port),
        ):
            pass
    # Everything was undone: the same directory opens at once.
    with aerobee.testing.broker(store_path=str(tmp_path)):
        pass
