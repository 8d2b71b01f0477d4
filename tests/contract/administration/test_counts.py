"""A broker counts and logs requests that do not go well, seen on /metrics."""

from __future__ import annotations

import logging
import re
import urllib.request
from typing import Any

import pytest

from aerobee.broker.requests.clients import running_consumers as consumers
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.message.ids import parse_offset_msg_id
from aerobee.protocol.message.record import decode_records
from aerobee.testing import RunningBroker
from tests.contract.conftest import Wire
from tests.contract.members import Member, saying, silent

BOTH_FORMS = True
WITH_METRICS = True


def count(running: RunningBroker, name: str, **labels: str) -> float:
    """Sum of the samples of a name that carry these labels."""
    with urllib.request.urlopen(f"http://{running.http}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    total = 0.0
    for given, value in re.findall(rf"^{name}{{(.*)}} (\S+)$", text, re.MULTILINE):
        pairs = dict(re.findall(r'(\w+)="([^"]*)"', given))
        if labels.items() <= pairs.items():
            total += float(value)
    return total


async def give_back(wire: Wire, log_offset: int, group: str, tries: int, **more: Any) -> None:
    ext = {"offset": log_offset, "group": group, "delayLevel": 0, "maxReconsumeTimes": tries}
    answer = await wire.call(RequestCode.CONSUMER_SEND_MSG_BACK, {**ext, **more})
    assert answer.code == ResponseCode.SUCCESS


def logged(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    return [line for line in map(logging.LogRecord.getMessage, caplog.records) if text in line]


async def test_dead_letters_are_counted_under_the_topic_they_came_from(
    wire: Wire, running: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    sent = await wire.send("Orders", b"failing")
    _, _, log_offset = parse_offset_msg_id(sent.ext["msgId"])
    await give_back(wire, log_offset, "DeadGroup", 16, delayLevel=1)
    assert count(running, "rocketmq_send_to_dlq_messages_total", consumer_group="DeadGroup") == 0
    [retried] = decode_records((await wire.await_message("%RETRY%DeadGroup")).body)
    await give_back(wire, retried.log_offset, "DeadGroup", 1)
    labels = {"consumer_group": "DeadGroup", "topic": "Orders"}
    assert count(running, "rocketmq_send_to_dlq_messages_total", **labels) == 1
    assert count(running, "aerobee_messages_sent_back_total", **labels) == 2
    [line] = logged(caplog, "message went to the dead letter topic")
    assert "group=DeadGroup topic=Orders " in line


async def test_dead_letters_of_a_group_have_one_line_of_log(
    wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(20):
        sent = await wire.send("Many", b"%d" % number)
        _, _, log_offset = parse_offset_msg_id(sent.ext["msgId"])
        await give_back(wire, log_offset, "ManyDead", 16, delayLevel=-1)
    [line] = logged(caplog, "message went to the dead letter topic group=ManyDead")
    assert "reason=its consumer asked for it" in line


async def test_a_dead_letter_that_its_consumer_sends_itself_is_counted(
    wire: Wire, running: RunningBroker
) -> None:
    await wire.send("SelfSent")
    for original in ("SelfSent", "NoSuchTopic"):
        sent = await wire.send(
            "%RETRY%SelfGroup",
            properties=f"RETRY_TOPIC\x01{original}\x02DELAY\x013",
            reconsume_times=3,
            max_reconsume_times=3,
        )
        assert sent.code == ResponseCode.SUCCESS
    name = "rocketmq_send_to_dlq_messages_total"
    assert count(running, name, consumer_group="SelfGroup", topic="SelfSent") == 1
    # A name that only a property gave makes no series.
    assert count(running, name, consumer_group="SelfGroup", topic="%RETRY%SelfGroup") == 1
    assert len(decode_records((await wire.pull("%DLQ%SelfGroup")).body)) == 2


async def test_each_refused_send_is_counted_under_its_topic(
    wire: Wire, running: RunningBroker
) -> None:
    name = "aerobee_send_failures_total"
    await wire.send("Refusing")
    assert count(running, name, topic="Refusing") == 0
    before = count(running, "aerobee_refused_requests_total")
    unknown_before = count(running, name, topic="__unknown__")
    refused = [
        await wire.send("Refusing", properties="TRAN_MSG\x01true"),
        await wire.send("Refusing", queue_id=99),
        await wire.send("Refusing", b"no batch", batch=True),
        await wire.send("Refusing", bytes(5 * 1024 * 1024)),
        await wire.send("No.Such.Topic"),
        await wire.call(RequestCode.SEND_MESSAGE, {"topic": "Refusing"}),
        await wire.call(RequestCode.SEND_MESSAGE, {}),
    ]
    assert all(answer.code != ResponseCode.SUCCESS for answer in refused)
    assert count(running, name, topic="Refusing") == 5
    # A name that is no topic's makes no series.
    assert count(running, name, topic="__unknown__") - unknown_before == 2
    assert count(running, "aerobee_refused_requests_total") - before == len(refused)


async def test_an_unsupported_request_code_is_logged_once(
    wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "aerobee.broker")
    for code in (54, 54, 60_001):
        assert (await wire.call(code)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    lines = logged(caplog, "request code not supported")
    assert [line.rsplit(":", 1)[0] for line in lines] == [
        f"request code not supported code={code} peer=127.0.0.1" for code in (54, 60_001)
    ]


async def test_so_many_unsupported_codes_are_logged_and_no_more(
    wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "aerobee.broker")
    for code in range(20_000, 20_200):
        await wire.call(code)
    assert 0 < len(logged(caplog, "request code not supported")) <= 100


async def test_what_clients_are_asked_is_counted_by_how_it_ended(
    wire: Wire, running: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "PASS_ON_S", 0.05)
    code = RequestCode.GET_CONSUMER_RUNNING_INFO
    ext = {"consumerGroup": "Counted", "clientId": "c1"}
    member = await Member.join(running.broker, "Counted", answers=saying({}))
    assert (await wire.call(code, ext)).code == ResponseCode.SUCCESS
    member.answers = saying(code=31_999)
    assert (await wire.call(code, ext)).code == 31_999
    member.answers = silent
    assert (await wire.call(code, ext)).code == ResponseCode.CONSUME_MSG_TIMEOUT
    labels = {"request_code": "get_consumer_running_info"}
    for result in ("answered", "refused", "timed_out"):
        name = "aerobee_client_call_seconds_count"
        assert count(running, name, **labels, result=result) == 1
    assert count(running, "aerobee_client_calls_waiting") == 0
    # A code of the client's own making makes no series.
    for response, times in (("success", 1), ("system_error", 1), ("consume_msg_timeout", 1)):
        name = "rocketmq_rpc_latency_milliseconds_count"
        assert count(running, name, **labels, response_code=response) == times
    member.close()
