"""Who is to blame for an error, and what the client is told of it."""

from __future__ import annotations

import logging

import pytest

from aerobee.broker.router import known_refusal, refusal
from aerobee.broker.stats import BrokerStats
from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.command import encode_response
from aerobee.store.errors import MessageIllegal, SegmentCreateFailed, StoreBroken, StoreInUse
from tests.unit.broker.clients_support import Peer, answer, request

PEER = Peer(7).connection


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BadRequest(ResponseCode.NO_PERMISSION, "a reason"), ResponseCode.NO_PERMISSION),
        (MessageIllegal("a reason"), ResponseCode.MESSAGE_ILLEGAL),
        (StoreBroken("a reason"), ResponseCode.SERVICE_NOT_AVAILABLE),
        (SegmentCreateFailed("a reason"), ResponseCode.SYSTEM_ERROR),
        (StoreInUse("a reason"), ResponseCode.SYSTEM_ERROR),
    ],
)
def test_an_error_with_an_owner_has_its_code_and_text(error: Exception, code: int) -> None:
    stats = BrokerStats()
    assert known_refusal(error) == (code, "a reason")
    assert refusal(error, PEER, request(10), stats) == (code, "a reason")
    assert stats.handler_failures == 0


def test_a_bug_is_logged_with_its_traceback_once_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stats, bug = BrokerStats(), ZeroDivisionError("secret")
    assert known_refusal(bug) is None
    code, remark = refusal(bug, PEER, request(11), stats)
    assert code == ResponseCode.SYSTEM_ERROR
    assert remark == "the broker failed on this request (ZeroDivisionError); see its log"
    [record] = caplog.records
    assert (record.levelno, record.exc_info is not None) == (logging.ERROR, True)
    assert record.getMessage() == "request failed code=11 peer=192.0.2.1:7"
    assert stats.handler_failures == 1


@pytest.mark.parametrize("serialization", [0, 1])
def test_a_path_that_is_not_utf_8_can_be_told(serialization: int) -> None:
    command = request(11)
    command.serialization = serialization
    code, remark = refusal(StoreBroken("no /data/\udcff"), PEER, command, BrokerStats())
    assert answer(encode_response(command, code, remark)).remark == "no /data/\\udcff"
