"""Replies that brokers push: to whom they go, and how an unreadable reply ends."""

from __future__ import annotations

import zlib

import pytest

from aerobee.client.errors import UnreadableBody
from aerobee.client.producing.request_reply import Replies
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.frames.command import Command, make_request


def pushed(body: bytes, sys_flag: int) -> Command:
    fields = {
        "bornHost": "/127.0.0.1:1", "storeHost": "/127.0.0.1:2", "storeTimestamp": "1",
        "producerGroup": "p", "topic": "C_REPLY_TOPIC", "defaultTopic": "TBW102", "queueId": "0",
        "defaultTopicQueueNums": "4", "sysFlag": str(sys_flag), "bornTimestamp": "1", "flag": "0",
        "properties": "CORRELATION_ID\x01one\x02",
    }  # fmt: skip
    return make_request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, fields, body)


async def test_a_compressed_reply_comes_out_plain() -> None:
    replies = Replies()
    future = replies.expect("one")
    answer = await replies.answer("", pushed(zlib.compress(b"plain"), 1))
    assert answer.code == ResponseCode.SUCCESS
    assert (await future).body == b"plain"


async def test_a_reply_that_cannot_be_read_is_an_error_of_who_asked_and_of_the_broker() -> None:
    replies = Replies()
    future = replies.expect("one")
    answer = await replies.answer("", pushed(b"no zlib", 1))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    with pytest.raises(UnreadableBody, match="a reply came, and it cannot be read"):
        await future
