"""Claims about delayed messages, on real sockets: what a client sends, sees, and when."""

from __future__ import annotations

import asyncio
import json
import re
import time
import urllib.request
from pathlib import Path
from typing import Any

import aerobee.testing
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.frames.command import Command
from aerobee.protocol.frames.fastjson import loads
from aerobee.protocol.message.batch import BatchItem, encode_batch
from aerobee.protocol.message.ids import parse_offset_msg_id
from aerobee.protocol.message.record import Message, decode_records
from aerobee.protocol.names import SCHEDULE_TOPIC
from aerobee.testing import RunningBroker
from tests.contract.conftest import Wire

WITH_METRICS = True


def only_message(answer: Command) -> Message:
    [message] = decode_records(answer.body)
    return message


async def test_a_delayed_message_comes_after_its_delay_and_soon_after(wire: Wire) -> None:
    await wire.send("Later", b"the first makes the topic")
    began = time.monotonic()
    sent = await wire.send("Later", b"later", queue_id=1, properties="TAGS\x01A\x02DELAY\x011")
    assert (sent.code, sent.ext["queueId"]) == (ResponseCode.SUCCESS, "1")
    assert (await wire.pull("Later", queueId=1)).code == ResponseCode.PULL_NOT_FOUND
    message = only_message(await wire.await_message("Later", queueId=1))
    took = time.monotonic() - began
    assert message.body == b"later"
    assert message.properties["REAL_QID"] == "1"
    # The store's clock has whole milliseconds. A busy machine may be late; the reference is by
    # up to 100 ms when nothing else happens.
    assert 0.99 < took < 3.0


async def test_a_filter_by_tag_finds_a_delayed_message(wire: Wire) -> None:
    await wire.send("Tagged", b"other", properties="TAGS\x01B\x02DELAY\x011")
    await wire.send("Tagged", b"wanted", properties="TAGS\x01A\x02DELAY\x011")
    pulled = await wire.await_message("Tagged", subscription="A")
    while pulled.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
        pulled = await wire.await_message(
            "Tagged", int(pulled.ext["nextBeginOffset"]), subscription="A"
        )
    assert only_message(pulled).body == b"wanted"


async def test_the_answer_names_the_record_that_waits(wire: Wire) -> None:
    sent = await wire.send("Named", b"named", properties="WAIT\x01true\x02DELAY\x0118")
    _, _, log_offset = parse_offset_msg_id(sent.ext["msgId"])
    viewed = await wire.call(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": log_offset})
    waiting = only_message(viewed)
    assert (waiting.topic, waiting.queue_id) == (SCHEDULE_TOPIC, 17)
    assert str(waiting.queue_offset) == sent.ext["queueOffset"]
    assert waiting.properties["REAL_TOPIC"] == "Named"
    assert waiting.properties["WAIT"] == "true"


async def test_a_batch_with_a_delay_is_refused_as_the_reference_does(wire: Wire) -> None:
    body = encode_batch([BatchItem(0, b"1", b"")])
    answer = await wire.send("Batched", body, batch=True, properties="DELAY\x011")
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL


async def test_a_delay_does_not_pass_the_checks_of_its_topic(wire: Wire) -> None:
    refused = await wire.send(SCHEDULE_TOPIC, properties="DELAY\x011")
    assert refused.code == ResponseCode.NO_PERMISSION
    refused = await wire.send("Checked", queue_id=99, properties="DELAY\x011")
    assert refused.code == ResponseCode.SYSTEM_ERROR


async def test_a_retry_waits_longer_with_each_try(wire: Wire) -> None:
    sent = await wire.send("Failing", b"failing")
    _, _, log_offset = parse_offset_msg_id(sent.ext["msgId"])
    back = {"offset": log_offset, "group": "WaitGroup", "delayLevel": 0, "maxReconsumeTimes": 16}
    assert (await wire.call(RequestCode.CONSUMER_SEND_MSG_BACK, back)).code == 0
    waiting = await last_waiting(wire, 3)
    assert waiting.properties["DELAY"] == "3"
    assert waiting.properties["REAL_TOPIC"] == "%RETRY%WaitGroup"
    assert waiting.reconsume_times == 1
    again = {**back, "offset": waiting.log_offset}
    assert (await wire.call(RequestCode.CONSUMER_SEND_MSG_BACK, again)).code == 0
    assert (await last_waiting(wire, 4)).reconsume_times == 2
    assert (await wire.pull("%RETRY%WaitGroup")).code == ResponseCode.PULL_NOT_FOUND


async def last_waiting(wire: Wire, level: int) -> Message:
    """The last message put into a level."""
    where = {"topic": SCHEDULE_TOPIC, "queueId": level - 1}
    end = await wire.call(RequestCode.GET_MAX_OFFSET, where)
    offset = int(end.ext["offset"]) - 1
    return only_message(await wire.pull(SCHEDULE_TOPIC, offset, queueId=level - 1))


async def test_a_retry_that_a_consumer_sends_itself_waits_too(wire: Wire) -> None:
    own = {"properties": "RETRY_TOPIC\x01T\x02DELAY\x011", "max_reconsume_times": 16}
    sent = await wire.send("%RETRY%OwnGroup", b"own", reconsume_times=2, **own)
    assert sent.code == ResponseCode.SUCCESS
    assert (await wire.pull("%RETRY%OwnGroup")).code == ResponseCode.PULL_NOT_FOUND
    message = only_message(await wire.await_message("%RETRY%OwnGroup"))
    assert (message.body, message.reconsume_times) == (b"own", 2)


async def test_a_dead_letter_does_not_wait(wire: Wire) -> None:
    own = {"properties": "RETRY_TOPIC\x01T\x02DELAY\x013", "max_reconsume_times": 2}
    await wire.send("%RETRY%DeadAtOnce", b"dead", reconsume_times=2, **own)
    assert (only_message(await wire.pull("%DLQ%DeadAtOnce"))).body == b"dead"


async def test_administrators_see_how_far_each_level_is(wire: Wire, running: RunningBroker) -> None:
    before = await progress(wire)
    await wire.send("Seen", b"seen", properties="DELAY\x011")
    await wire.await_message("Seen")
    after = await progress(wire)
    assert after[1] == before.get(1, 0) + 1
    table = loads((await wire.call(RequestCode.GET_BROKER_RUNTIME_INFO)).body)["table"]
    assert table["scheduleMessageOffset_1"] == f"{after[1]},{after[1]}"


async def progress(wire: Wire) -> dict[int, int]:
    answer = await wire.call(RequestCode.GET_ALL_DELAY_OFFSET)
    assert answer.code == ResponseCode.SUCCESS
    return {int(level): at for level, at in json.loads(answer.body)["offsetTable"].items()}


async def test_metrics_show_what_waits_and_what_was_delivered(
    wire: Wire, running: RunningBroker
) -> None:
    await wire.send("Shown", b"soon", properties="DELAY\x012")
    assert sample(running, "aerobee_delayed_messages", "2") >= 1
    before = sample(running, "aerobee_delayed_delivered_messages_total", "1")
    await wire.send("Shown", b"soon", properties="DELAY\x011")
    await wire.await_message("Shown")
    assert sample(running, "aerobee_delayed_delivered_messages_total", "1") == before + 1
    assert sample(running, "aerobee_delayed_messages", "1") == 0
    assert sample(running, "aerobee_delayed_late_seconds", "1") == 0


def sample(running: RunningBroker, name: str, level: str) -> float:
    with urllib.request.urlopen(f"http://{running.http}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    for labels, value in re.findall(rf"^{name}{{(.*)}} (\S+)$", text, re.MULTILINE):
        if f'level="{level}"' in labels:
            return float(value)
    return 0.0


async def test_sends_go_on_while_a_level_is_far_behind(tmp_path: Path) -> None:
    """Two thousand are due at once after a restart; nobody waits for all of them."""
    settings: dict[str, Any] = {"store_path": str(tmp_path), "message_delay_levels": "1s"}
    count = 2000
    with aerobee.testing.broker(**settings) as running:
        wire = await Wire.to(running.broker)
        sends = [wire.send("Behind", b"%d" % n, properties="DELAY\x011") for n in range(count)]
        await asyncio.gather(*sends)
        wire.caller.close()
    await asyncio.sleep(1.1)  # the delay itself
    with aerobee.testing.broker(**settings) as running:
        wire = await Wire.to(running.broker)
        longest, offset = 0.0, 0
        while offset < count:
            began = time.monotonic()
            assert (await wire.send("Meanwhile")).code == ResponseCode.SUCCESS
            longest = max(longest, time.monotonic() - began)
            pulled = await wire.pull("Behind", offset)
            offset += len(decode_records(pulled.body))
        assert longest < 1.0
        wire.caller.close()
