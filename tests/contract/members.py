"""Members of consumer groups that tests play: they heartbeat, and answer the broker as told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from aerobee.protocol.codes import PROTOCOL_VERSION, LanguageName, RequestCode
from aerobee.protocol.frames.command import Command, make_request, make_response
from aerobee.protocol.headers.client import ConsumerListHeader
from aerobee.remoting.calling.caller import Caller

TIMEOUT_S = 10.0

#: Makes a member's answer; None is no answer.
Answers: TypeAlias = Callable[[Command], Command | None]


def silent(_request: Command) -> None:
    """A member that answers nothing."""


def saying(body: Any = None, code: int = 0, remark: str | None = None) -> Answers:
    """A member that answers everything so; `body` is bytes, or becomes JSON."""
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    return lambda request: make_response(request, code, remark, body=data)


class Member:
    """One connection that is in a consumer group."""

    def __init__(self, client_id: str, answers: Answers) -> None:
        self.client_id = client_id
        self.answers = answers
        self.caller: Caller
        #: The broker's requests, but for news of the group.
        self.asked: list[Command] = []
        self._came = asyncio.Event()

    @classmethod
    async def join(
        cls,
        broker: str,
        group: str,
        topics: Sequence[str] = (),
        *,
        client_id: str = "c1",
        answers: Answers = silent,
        language: LanguageName = "JAVA",
        version: int = PROTOCOL_VERSION,
        expression: str = "*",
        message_model: str = "CLUSTERING",
        expression_type: str = "TAG",
    ) -> Member:
        member = cls(client_id, answers)
        host, _, port = broker.rpartition(":")
        member.caller = await Caller.connect(host, int(port), TIMEOUT_S, member._on_request)
        subscriptions = [
            {
                "topic": name,
                "subString": expression,
                "subVersion": 1,
                "expressionType": expression_type,
            }
            for name in topics
        ]
        data = {
            "groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": message_model,
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "subscriptionDataSet": subscriptions,
        }  # fmt: skip
        body = {"clientID": client_id, "producerDataSet": [], "consumerDataSet": [data]}
        beat = make_request(RequestCode.HEART_BEAT, body=json.dumps(body).encode())
        beat.language, beat.version = language, version
        answer = await member.caller.call(beat, TIMEOUT_S)
        assert answer.code == 0, answer.remark
        return member

    async def wait_asked(self, count: int = 1) -> list[Command]:
        """The requests, once there are `count`."""
        async with asyncio.timeout(TIMEOUT_S):
            while len(self.asked) < count:
                self._came.clear()
                await self._came.wait()
        return self.asked

    async def wait_left(self, other: Caller, group: str) -> None:
        """Close, and wait until the broker has seen it."""
        self.caller.close()
        ext = ConsumerListHeader(group).to_ext()
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                request = make_request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext)
                answer = await other.call(request, TIMEOUT_S)
                if self.client_id.encode() not in answer.body:
                    return

    def close(self) -> None:
        self.caller.close()

    def _on_request(self, caller: Caller, request: Command) -> None:
        if request.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            return
        self.asked.append(request)
        self._came.set()
        answer = self.answers(request)
        if answer is not None and not caller.closed:
            caller.reply(answer.encode())
