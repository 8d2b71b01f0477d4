"""MESSAGE_STATE (31033): how far the groups are with the message at a log offset."""

from __future__ import annotations

import time

from aerobee.protocol.bodies.message_state import MessageState
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.message.ids import parse_offset_msg_id
from aerobee.protocol.message.record import decode_records
from tests.contract.conftest import Wire

STATE = RequestCode.MESSAGE_STATE
UNIQUE = "7F0000010000AAAABBBBCCCCDDDD0000"


async def give_back(wire: Wire, log_offset: int, group: str, level: int) -> None:
    fields = {
        "offset": log_offset, "group": group, "delayLevel": level, "originMsgId": UNIQUE,
        "originTopic": "T", "unitMode": "false", "maxReconsumeTimes": 16,
    }  # fmt: skip
    answer = await wire.call(RequestCode.CONSUMER_SEND_MSG_BACK, fields)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


async def state(wire: Wire, log_offset: int) -> MessageState:
    answer = await wire.call(STATE, {"offset": log_offset})
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return MessageState.parse(answer.body)


async def test_tries_that_wait_are_told_until_they_are_delivered(wire: Wire) -> None:
    sent = await wire.send("Stated", properties=f"UNIQ_KEY\x01{UNIQUE}")
    _, _, log_offset = parse_offset_msg_id(sent.ext["msgId"])
    commit = {"topic": "Stated", "queueId": 0, "commitOffset": 1}
    for group in ("Soon", "Late"):
        await wire.call(RequestCode.UPDATE_CONSUMER_OFFSET, {"consumerGroup": group, **commit})
    before_ms = time.time_ns() // 1_000_000
    await give_back(wire, log_offset, "Late", 5)
    await give_back(wire, log_offset, "Soon", 1)
    [retried] = decode_records((await wire.await_message("%RETRY%Soon")).body)
    found = await state(wire, log_offset)
    assert (found.topic, found.queue_id, found.queue_offset) == ("Stated", 0, 0)
    late, soon = found.groups
    assert (late.group, late.committed, soon.group, soon.waiting) == ("Late", 1, "Soon", ())
    [waiting] = late.waiting
    assert waiting.tries == retried.reconsume_times == 1
    assert before_ms + 60_000 <= waiting.due_ms <= before_ms + 70_000
    assert (late.retry_limit, late.online, late.takes) == (16, False, None)


async def test_a_place_without_a_message_is_refused(wire: Wire) -> None:
    sent = await wire.send("Stated")
    _, _, log_offset = parse_offset_msg_id(sent.ext["msgId"])
    for offset in (log_offset + 1, 1 << 40, -1, "x"):
        answer = await wire.call(STATE, {"offset": offset})
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark
