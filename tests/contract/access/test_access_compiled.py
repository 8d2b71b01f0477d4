"""The compiled form lets in what is certainly allowed, and leaves all else to the plain path.

A module of its own: those of both forms have another wish in the environment meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import aerobee.testing
from aerobee.broker.routing.router import Router
from aerobee.protocol.codes import RequestCode as Code
from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.frames.command import Command
from aerobee.remoting.connections.connection import Connection
from aerobee.testing import RunningBroker
from tests.contract.access.test_access_changes import (
    ACCOUNTS,
    OTHER_SECRET,
    PUT,
    USER,
    call,
    may_send,
)
from tests.contract.conftest import Wire
from tests.forms import compiled_form


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The codes that the plain path was asked for."""
    compiled_form()
    codes: list[int] = []
    serve = Router.serve

    def counting(router: Router, connection: Connection, command: Command) -> Any:
        codes.append(command.code)
        return serve(router, connection, command)

    monkeypatch.setattr(Router, "serve", counting)
    return codes


@pytest.fixture
def running(asked: list[int], tmp_path: Path) -> Iterator[RunningBroker]:
    file = tmp_path / "plain_acl.yml"
    file.write_text(ACCOUNTS)
    with aerobee.testing.broker(acl_enabled=True, acl_file=str(file)) as broker:
        yield broker


async def test_signed_sends_are_served_without_the_plain_path(
    running: RunningBroker, asked: list[int]
) -> None:
    """It is asked for everything that is not certain, and other rules count at once."""
    wire = await Wire.to(running.broker)
    # The first of a topic makes it and its route known.
    assert await may_send(wire, USER)
    asked.clear()
    for _ in range(5):
        assert await may_send(wire, USER)
    assert asked == []
    assert not await may_send(wire, USER, secret=OTHER_SECRET)
    assert not await may_send(wire, None)
    assert not await may_send(wire, USER, "returns")
    assert asked == [Code.SEND_MESSAGE_V2] * 3
    asked.clear()
    given = {"accessKey": USER, "topicPerms": "orders=SUB", "groupPerms": "readers=SUB"}
    assert (await call(wire, PUT, given)).code == ResponseCode.SUCCESS
    assert not await may_send(wire, USER)
    assert asked == [PUT, Code.SEND_MESSAGE_V2]
    wire.caller.close()


async def test_signed_pulls_are_too(running: RunningBroker, asked: list[int]) -> None:
    """From the second message on: the first of a queue is always looked at closely."""
    wire = await Wire.to(running.broker)
    for _ in range(3):
        assert await may_send(wire, USER)
    fields = {
        "consumerGroup": "readers", "topic": "orders", "queueId": 0, "queueOffset": 1,
        "maxMsgNums": 32, "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0,
        "subscription": "*", "subVersion": 0, "expressionType": "TAG",
    }  # fmt: skip
    # The first makes the group.
    for _ in range(2):
        asked.clear()
        answer = await call(wire, Code.PULL_MESSAGE, fields, by=USER)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
    assert asked == []
    for wrong in ({"consumerGroup": "others"}, {"topic": "returns"}):
        answer = await call(wire, Code.PULL_MESSAGE, {**fields, **wrong}, by=USER)
        assert "No default permission" in (answer.remark or "")
    assert asked == [Code.PULL_MESSAGE] * 2
    wire.caller.close()
