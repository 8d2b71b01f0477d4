"""Claims about messages with a time of their own, on real sockets."""

from __future__ import annotations

import re
import time
import urllib.request
from pathlib import Path

import pytest

import aerobee.testing
from aerobee.client import Message, Producer
from aerobee.client.blocking_roles import Producer as BlockingProducer
from aerobee.client.errors import BadMessage, PeerError
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.frames.command import Command
from aerobee.protocol.message.batch import BatchItem, encode_batch
from aerobee.protocol.message.ids import parse_offset_msg_id
from aerobee.protocol.message.recall import RecallHandle, decode_handle
from aerobee.protocol.message.record import Message as StoredMessage
from aerobee.protocol.message.record import decode_records
from aerobee.protocol.names import TIMER_TOPIC
from aerobee.testing import RunningBroker
from tests.contract.conftest import Wire
from tests.service.kit import wait_until

WITH_METRICS = True


def only_message(answer: Command) -> StoredMessage:
    [message] = decode_records(answer.body)
    return message


def in_ms(wait_ms: int) -> int:
    return time.time_ns() // 1_000_000 + wait_ms


async def test_a_message_comes_at_its_time_and_soon_after(wire: Wire) -> None:
    await wire.send("Timed", b"the first makes the topic")
    deliver_ms = in_ms(700)
    asked = f"TAGS\x01A\x02TIMER_DELIVER_MS\x01{deliver_ms}"
    sent = await wire.send("Timed", b"timed", queue_id=1, properties=asked)
    assert (sent.code, sent.ext["queueId"]) == (ResponseCode.SUCCESS, "1")
    assert (await wire.pull("Timed", queueId=1)).code == ResponseCode.PULL_NOT_FOUND
    message = only_message(await wire.await_message("Timed", queueId=1, subscription="A"))
    assert message.body == b"timed"
    assert message.properties["TIMER_DELIVER_MS"] == str(deliver_ms)
    assert "TIMER_OUT_MS" not in message.properties
    # A busy machine may be late.
    assert deliver_ms <= message.store_timestamp_ms < deliver_ms + 2000


async def test_the_answer_names_the_record_that_waits(wire: Wire) -> None:
    deliver_ms = in_ms(3_600_000)
    sent = await wire.send("Named", properties=f"KEYS\x01k\x02__STARTDELIVERTIME\x01{deliver_ms}")
    _, _, log_offset = parse_offset_msg_id(sent.ext["msgId"])
    viewed = await wire.call(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": log_offset})
    waiting = only_message(viewed)
    assert (waiting.topic, waiting.queue_id) == (TIMER_TOPIC, deliver_ms // 3_600_000 % 1024)
    assert str(waiting.queue_offset) == sent.ext["queueOffset"]
    assert waiting.properties["REAL_TOPIC"] == "Named"
    assert waiting.properties["TIMER_OUT_MS"] == str(deliver_ms)


async def test_a_time_that_has_passed_is_delivered_at_once(wire: Wire) -> None:
    sent = await wire.send("Past", b"past", properties="TIMER_DELIVER_MS\x0112345")
    assert sent.code == ResponseCode.SUCCESS
    assert only_message(await wire.pull("Past")).body == b"past"


async def test_an_illegal_time_is_refused_and_says_what_to_do(wire: Wire) -> None:
    for asked, remedy in (
        ("TIMER_DELIVER_MS\x01tomorrow", "milliseconds since 1970"),
        ("TIMER_DELAY_SEC\x01-1", "seconds"),
        (f"TIMER_DELIVER_MS\x01{in_ms(41 * 86_400_000)}", "timerMaxDelaySec"),
    ):
        refused = await wire.send("Illegal", properties=asked)
        assert refused.code == ResponseCode.MESSAGE_ILLEGAL
        assert refused.remark is not None
        assert remedy in refused.remark
    assert (await wire.pull("Illegal")).code == ResponseCode.PULL_NOT_FOUND


async def test_a_batch_cannot_have_a_time_neither_its_own_nor_a_message_s(wire: Wire) -> None:
    await wire.send("Batched", b"the first makes the topic")
    for header, own in (("TIMER_DELAY_SEC\x015", b""), ("", b"TIMER_DELAY_SEC\x015")):
        body = encode_batch([BatchItem(0, b"1", own)])
        refused = await wire.send("Batched", body, batch=True, properties=header)
        assert refused.code == ResponseCode.MESSAGE_ILLEGAL
        assert refused.remark is not None
        assert "one by one" in refused.remark
    assert len(decode_records((await wire.pull("Batched")).body)) == 1


async def test_nobody_sends_to_the_timer_s_own_topic(wire: Wire) -> None:
    refused = await wire.send(TIMER_TOPIC, properties=f"TIMER_OUT_MS\x01{in_ms(0)}")
    assert refused.code == ResponseCode.NO_PERMISSION
    refused = await wire.send("Checked", queue_id=99, properties="TIMER_DELAY_SEC\x015")
    assert refused.code == ResponseCode.SYSTEM_ERROR


async def test_what_only_the_broker_says_is_not_taken_from_a_client(wire: Wire) -> None:
    await wire.send("Own", properties=f"TIMER_OUT_MS\x01{in_ms(0)}\x02REAL_TOPIC\x01Secret")
    assert "TIMER_OUT_MS" not in only_message(await wire.pull("Own")).properties


async def test_metrics_show_what_waits_and_what_was_delivered(
    wire: Wire, running: RunningBroker
) -> None:
    await wire.send("Shown", properties="TIMER_DELAY_SEC\x013600")
    # It counts when it is dispatched, which may be after its answer.
    wait_until(lambda: sample(running, "aerobee_timer_messages") >= 1, "one waits")
    before = sample(running, "aerobee_timer_delivered_messages_total")
    await wire.send("Shown", b"soon", properties="TIMER_DELAY_MS\x01300")
    await wire.await_message("Shown")
    assert sample(running, "aerobee_timer_delivered_messages_total") == before + 1
    assert sample(running, "aerobee_timer_late_seconds") == 0


def sample(running: RunningBroker, name: str) -> float:
    with urllib.request.urlopen(f"http://{running.http}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = re.search(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE)
    assert found is not None
    return float(found[1])


async def test_with_the_timer_off_a_time_is_refused_and_what_waits_comes(tmp_path: Path) -> None:
    with aerobee.testing.broker(store_path=str(tmp_path)) as running:
        wire = await Wire.to(running.broker)
        await wire.send("Off", b"waits", properties="TIMER_DELAY_SEC\x012")
        wire.caller.close()
    with aerobee.testing.broker(store_path=str(tmp_path), timer_enabled=False) as running:
        wire = await Wire.to(running.broker)
        refused = await wire.send("Off", b"refused", properties="TIMER_DELAY_SEC\x012")
        assert refused.code == ResponseCode.MESSAGE_ILLEGAL
        assert refused.remark is not None
        assert "timerWheelEnable" in refused.remark
        assert only_message(await wire.await_message("Off")).body == b"waits"
        wire.caller.close()


async def test_under_sync_flush_what_waits_outlives_restarts(tmp_path: Path) -> None:
    settings = {"store_path": str(tmp_path), "flush_disk_type": "SYNC_FLUSH"}
    deliver_ms = in_ms(2500)
    with aerobee.testing.broker(**settings) as running:
        wire = await Wire.to(running.broker)
        for number in range(5):
            asked = f"TIMER_DELIVER_MS\x01{deliver_ms + number}"
            sent = await wire.send("Durable", b"%d" % number, properties=asked)
            assert sent.code == ResponseCode.SUCCESS
        wire.caller.close()
    with aerobee.testing.broker(**settings) as running:
        wire = await Wire.to(running.broker)
        found: list[bytes] = []
        while len(found) < 5:
            pulled = await wire.await_message("Durable", len(found))
            found += [one.body for one in decode_records(pulled.body)]
        assert found == [b"%d" % number for number in range(5)]
        wire.caller.close()


# --- recalling ------------------------------------------------------------------------------


async def timed(wire: Wire, topic: str, body: bytes, unique: str, wait_ms: int) -> str:
    """Send a message with a time of its own; its recall handle."""
    asked = f"UNIQ_KEY\x01{unique}\x02TIMER_DELAY_MS\x01{wait_ms}"
    sent = await wire.send(topic, body, properties=asked)
    assert sent.code == ResponseCode.SUCCESS
    return sent.ext["recallHandle"]


async def recall(wire: Wire, topic: str, handle: str) -> Command:
    return await wire.call(
        RequestCode.RECALL_MESSAGE, {"topic": topic, "recallHandle": handle, "producerGroup": "PG"}
    )


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_a_message_is_recalled_by_the_handle_of_its_answer(flush: str) -> None:
    with aerobee.testing.broker(flush_disk_type=flush) as running:
        wire = await Wire.to(running.broker)
        handle = await timed(wire, "Recalled", b"recalled", "AC1", 1000)
        await timed(wire, "Recalled", b"other", "AC2", 1200)
        parts = decode_handle(handle)
        assert (parts.topic, parts.broker_name, parts.unique_id) == (
            "Recalled", "test-broker", "AC1",
        )  # fmt: skip
        answer = await recall(wire, "Recalled", handle)
        assert (answer.code, answer.ext["msgId"]) == (ResponseCode.SUCCESS, "AC1")
        assert only_message(await wire.await_message("Recalled")).body == b"other"
        wire.caller.close()


async def test_an_answer_without_a_time_or_an_id_has_no_handle(wire: Wire) -> None:
    plain = await wire.send("Handles", properties="UNIQ_KEY\x01AC1")
    nameless = await wire.send("Handles", properties="TIMER_DELAY_SEC\x013600")
    past = await wire.send("Handles", properties="UNIQ_KEY\x01AC1\x02TIMER_DELIVER_MS\x01123")
    for answer in (plain, nameless, past):
        assert answer.code == ResponseCode.SUCCESS
        assert "recallHandle" not in answer.ext


async def test_a_recall_that_cannot_be_says_why(wire: Wire) -> None:
    await wire.send("Why", b"the first makes the topic")
    good = RecallHandle("Why", "test-broker", in_ms(60_000), "AC1")
    for handle, reason in (
        ("%%%", "base64"),
        ("djIgYQ==", "v1 topic broker time id"),
        (good._replace(deliver_ms=in_ms(-1000)).encode(), "has come"),
        (good._replace(deliver_ms=in_ms(41 * 86_400_000)).encode(), "timerMaxDelaySec"),
        (good._replace(topic="Other").encode(), "topic[Other]"),
        (good._replace(broker_name="broker-z").encode(), "broker[broker-z]"),
        (good._replace(unique_id='a"b').encode(), "other characters"),
    ):
        refused = await recall(wire, "Why", handle)
        assert refused.code == ResponseCode.ILLEGAL_OPERATION
        assert refused.remark is not None
        assert reason in refused.remark
    assert (await recall(wire, "Nowhere", good.encode())).code == ResponseCode.TOPIC_NOT_EXIST
    missing = await wire.call(RequestCode.RECALL_MESSAGE, {"topic": "Why"})
    assert missing.code == ResponseCode.SYSTEM_ERROR


async def test_our_producer_sends_with_a_time_and_recalls(running: RunningBroker) -> None:
    async with Producer(running.name_server) as producer:
        sent = await producer.send(Message("Ours", b"recalled", delay_s=3600))
        at = await producer.send(Message("Ours", b"at", deliver_at_ms=in_ms(3_600_000)))
        assert decode_handle(at.recall_handle).unique_id == at.msg_id
        assert await producer.recall("Ours", sent.recall_handle) == sent.msg_id
        with pytest.raises(BadMessage, match="no recall handle"):
            await producer.recall("Ours", "rubbish")
        late = decode_handle(at.recall_handle)._replace(deliver_ms=1).encode()
        with pytest.raises(PeerError, match="has come"):
            await producer.recall("Ours", late)
        with pytest.raises(BadMessage, match="batch"):
            await producer.send_batch([Message("Ours", b"x", delay_s=1)])


def test_the_blocking_producer_recalls_too(running: RunningBroker) -> None:
    with BlockingProducer(running.name_server) as producer:
        sent = producer.send(Message("Ours", b"recalled", delay_s=3600))
        assert producer.recall("Ours", sent.recall_handle) == sent.msg_id
