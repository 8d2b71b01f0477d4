"""The router decides whose fault an error is, and what it answers to the client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aerobee.access.accounts import Rules
from aerobee.access.control import AccessControl
from aerobee.access.errors import AccessDenied
from aerobee.access.files.account_file import parse_account_file
from aerobee.access.needs import BROKER_NEEDS, InBody
from aerobee.broker.broker_stats import BrokerStats
from aerobee.broker.routing.router import Router, known_refusal, refusal
from aerobee.protocol.bodies.common import SMALL_BODY
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.command import Command, encode_response, make_request
from aerobee.protocol.frames.signature import signed
from aerobee.remoting.connections.connection import Connection
from aerobee.remoting.turns import Turns
from aerobee.store.errors import MessageIllegal, SegmentCreateFailed, StoreBroken, StoreInUse
from tests.unit.broker.tables.clients_support import Peer, answer, request

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


# --- what an account may do stands in a body ------------------------------------------------------

SECRET = "very-secret-words"
FILE = f"""\
accounts:
- accessKey: consumer
  secretKey: {SECRET}
  defaultGroupPerm: DENY
  groupPerms:
  - own=SUB
"""
CALLER = cast(Connection, SimpleNamespace(peer=("192.0.2.1", 7), waited_since=0.0))
IN_BODY = sorted(code for code, needs in BROKER_NEEDS.items() if isinstance(needs, InBody))


def large(code: int, group: str) -> Command:
    """A signed request about a group whose body is larger than what is read on the loop."""
    text = (
        f'{{"clientID":"c","clientId":"c","group":"{group}","consumerGroup":"{group}","mqSet":[],'
        f'"consumerDataSet":[{{"groupName":"{group}"}}],"more":"{"x" * SMALL_BODY}"}}'
    )
    body = text.encode()
    return make_request(code, signed({}, body, "consumer", SECRET), body)


def _end(steps: Generator[object, None, bytes | None]) -> bytes | None:
    """Run to the end: the answer."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            answered: bytes | None = end.value
            return answered


@pytest.mark.parametrize("code", IN_BODY)
async def test_a_large_body_is_read_beside_the_loop_before_it_is_judged(code: int) -> None:
    """The whole of it was read on the loop: a LOCK_BATCH_MQ at its limits made others wait for half
    a second."""
    reading: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    handled: list[int] = []

    def read(
        parse: Callable[[bytes], Any], body: bytes
    ) -> Generator[asyncio.Future[Any], None, Any]:
        yield reading
        return parse(body)

    def handle(_connection: object, command: Command) -> bytes:
        handled.append(command.code)
        return b"answer"

    file = parse_account_file("f.yml", FILE.encode())
    control = AccessControl(
        Rules(file.accounts, file.white), BROKER_NEEDS, lambda _place: None, lambda: 0.0
    )
    router = Router(
        {code: handle}, BrokerStats(), lambda _connection: None, Turns(), 1 << 20, {}, control, read
    )
    steps = router.serve(CALLER, large(code, "own"))
    assert isinstance(steps, Generator)
    assert next(steps) is reading
    assert handled == []
    assert (_end(steps), handled) == (b"answer", [code])
    steps = router.serve(CALLER, large(code, "another"))
    assert isinstance(steps, Generator)
    with pytest.raises(AccessDenied, match="another"):
        _end(steps)
    assert handled == [code]


def test_there_are_requests_whose_needs_stand_in_their_body() -> None:
    assert RequestCode.HEART_BEAT in IN_BODY
    assert RequestCode.LOCK_BATCH_MQ in IN_BODY
