"""What a member says it wants is what it gets, whatever its clock and the other members say."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.frames.command import Command
from aerobee.protocol.message.record import decode_records
from aerobee.testing import RunningBroker
from tests.contract.conftest import TIMEOUT_S, Wire

BOTH_FORMS = True

AHEAD, BEHIND = 2_000_000_000_000, 5

Connect = Callable[[], Coroutine[Any, Any, Wire]]


@pytest.fixture
async def connect(running: RunningBroker) -> AsyncIterator[Connect]:
    wires: list[Wire] = []

    async def new() -> Wire:
        wires.append(await Wire.to(running.broker))
        return wires[-1]

    yield new
    for wire in wires:
        wire.caller.close()


async def beat(
    wire: Wire, group: str, topic: str, text: str, version: int, kind: str = "TAG"
) -> None:
    one = {"topic": topic, "subString": text, "subVersion": version, "expressionType": kind}
    data = {"groupName": group, "subscriptionDataSet": [one]}
    body = {"clientID": f"c{id(wire)}", "producerDataSet": [], "consumerDataSet": [data]}
    answer = await wire.call(RequestCode.HEART_BEAT, body=json.dumps(body).encode())
    assert answer.code == 0, answer.remark


async def pull(wire: Wire, group: str, topic: str, version: int, **more: Any) -> Command:
    fields = {"consumerGroup": group, "sysFlag": 0, "subVersion": version, **more}
    return await wire.pull(topic, **fields)


async def send(wire: Wire, topic: str, *tags: str) -> None:
    for tag in tags:
        assert (await wire.send(topic, tag.encode(), properties=f"TAGS\x01{tag}")).code == 0


def bodies(answer: Command) -> list[str]:
    assert answer.code == ResponseCode.SUCCESS, (answer.code, answer.remark)
    return [message.body.decode() for message in decode_records(answer.body)]


@pytest.mark.parametrize("kind", ["TAG", "SQL92"])
async def test_a_new_expression_counts_whatever_the_client_s_clock_says(
    wire: Wire, kind: str
) -> None:
    topic = group = f"Clock{kind}"
    await send(wire, topic, "A", "B")
    first, second = ("A", "B") if kind == "TAG" else ("TAGS = 'A'", "TAGS = 'B'")
    await beat(wire, group, topic, first, AHEAD, kind)
    assert bodies(await pull(wire, group, topic, AHEAD)) == ["A"]
    await beat(wire, group, topic, second, BEHIND, kind)
    assert bodies(await pull(wire, group, topic, BEHIND)) == ["B"]


@pytest.mark.parametrize("kind", ["TAG", "SQL92"])
async def test_members_that_are_replaced_one_after_the_other_get_each_what_they_state(
    connect: Connect, kind: str
) -> None:
    topic = group = f"Rolling{kind}"
    old, new = await connect(), await connect()
    await send(old, topic, "A", "B")
    first, second = ("A", "B") if kind == "TAG" else ("TAGS = 'A'", "TAGS = 'B'")
    await beat(old, group, topic, first, AHEAD, kind)
    assert bodies(await pull(old, group, topic, AHEAD)) == ["A"]
    await beat(new, group, topic, second, BEHIND, kind)
    for _ in range(2):
        assert bodies(await pull(new, group, topic, BEHIND)) == ["B"]
        assert bodies(await pull(old, group, topic, AHEAD)) == ["A"]
        await beat(old, group, topic, first, AHEAD, kind)


async def test_a_member_that_leaves_takes_its_expression_with_it(connect: Connect) -> None:
    topic = group = "Leaves"
    stays, leaves = await connect(), await connect()
    await send(stays, topic, "A", "B")
    await beat(stays, group, topic, "A", BEHIND)
    await beat(leaves, group, topic, "B", AHEAD)
    left = {"clientID": "c", "consumerGroup": group}
    assert (await leaves.call(RequestCode.UNREGISTER_CLIENT, left)).code == 0
    stranger = await connect()
    assert bodies(await pull(stranger, group, topic, BEHIND)) == ["A"]
    # What is newer than all that was heard comes before its heartbeat.
    early = await pull(leaves, group, topic, AHEAD)
    assert early.code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    await beat(leaves, group, topic, "B", AHEAD)
    assert bodies(await pull(leaves, group, topic, AHEAD)) == ["B"]


@pytest.mark.parametrize("kind", ["TAG", "SQL92"])
async def test_a_pull_that_is_held_goes_by_what_its_member_says_by_now(
    wire: Wire, connect: Connect, kind: str
) -> None:
    topic = group = f"Held{kind}"
    await send(wire, topic, "X")
    first, second = ("A", "A||B") if kind == "TAG" else ("TAGS = 'A'", "TAGS IN ('A', 'B')")
    await beat(wire, group, topic, first, AHEAD, kind)
    fields = {"sysFlag": 2, "suspendTimeoutMillis": 8_000}
    held = asyncio.create_task(pull(wire, group, topic, AHEAD, queueOffset=1, **fields))
    await asyncio.sleep(0)  # it is on its way before the heartbeat
    await beat(wire, group, topic, second, BEHIND, kind)
    await send(await connect(), topic, "B", "A")
    async with asyncio.timeout(TIMEOUT_S):
        assert bodies(await held)[0] == "B"


async def test_a_pull_that_is_held_while_the_type_changes_is_sent_again(
    wire: Wire, connect: Connect
) -> None:
    topic = group = "Types"
    await send(wire, topic, "X")
    await beat(wire, group, topic, "A", AHEAD)
    fields = {"sysFlag": 2, "suspendTimeoutMillis": 8_000}
    held = asyncio.create_task(pull(wire, group, topic, AHEAD, queueOffset=1, **fields))
    await asyncio.sleep(0)  # it is on its way before the heartbeat
    await beat(wire, group, topic, "TAGS = 'A'", BEHIND, "SQL92")
    await send(await connect(), topic, "A")
    async with asyncio.timeout(TIMEOUT_S):
        assert (await held).code == ResponseCode.SUBSCRIPTION_NOT_LATEST
