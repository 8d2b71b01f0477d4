"""The compiled form lets in what is certainly allowed, and leaves all else to the plain path.

A module of its own: those of both forms have another wish in the environment meanwhile.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import aerobee.testing
from aerobee.broker.router import Router
from aerobee.protocol.codes import RequestCode as Code
from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.frames.command import Command
from aerobee.remoting.connection import Connection
from tests.contract.conftest import Wire
from tests.contract.test_access_changes import (
    ACCOUNTS,
    OTHER_SECRET,
    PUT,
    USER,
    call,
    may_send,
)
from tests.forms import compiled_form


async def test_signed_sends_are_served_without_the_plain_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked for everything that is not certain, and other rules count at once."""
    compiled_form()
    file = tmp_path / "plain_acl.yml"
    file.write_text(ACCOUNTS)
    asked: list[int] = []
    serve = Router.serve

    def counting(router: Router, connection: Connection, command: Command) -> Any:
        asked.append(command.code)
        return serve(router, connection, command)

    monkeypatch.setattr(Router, "serve", counting)
    with aerobee.testing.broker(acl_enabled=True, acl_file=str(file)) as running:
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
