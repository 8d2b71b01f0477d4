"""A member gets the messages that it states, whatever its clock and the other members say."""

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
    # This pull names a newer version than any heartbeat so far.
    early = await pull(leaves, group, topic, AHEAD)
    assert early.code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    await beat(leaves, group, topic, "B", AHEAD)
    assert bodies(await pull(leaves, group, topic, AHEAD)) == ["B"]


HELD = {"sysFlag": 2, "suspendTimeoutMillis": 100_000}
INLINE = {"sysFlag": 6, "suspendTimeoutMillis": 100_000}
TO_B = {"TAG": "B", "SQL92": "TAGS = 'B'"}
TO_C = {"TAG": "C", "SQL92": "TAGS = 'C'"}


async def hold(wire: Wire, group: str, topic: str, **fields: Any) -> asyncio.Task[Command]:
    """A pull behind the only message; it is on its way before whatever the caller sends next."""
    task = asyncio.create_task(pull(wire, group, topic, queueOffset=1, **fields))
    await asyncio.sleep(0)
    return task


async def again_from_1(held: asyncio.Task[Command]) -> None:
    """It is told to pull again from where it had asked."""
    async with asyncio.timeout(TIMEOUT_S):
        answer = await held
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY, (answer.code, answer.remark)
    assert (answer.ext["nextBeginOffset"], answer.body) == ("1", b"")


@pytest.mark.parametrize("version", [AHEAD, 0])
@pytest.mark.parametrize("after", ["TAG", "SQL92"])
@pytest.mark.parametrize("before", ["TAG", "SQL92"])
async def test_a_held_pull_is_sent_to_pull_again_when_its_member_wants_something_else(
    wire: Wire, connect: Connect, before: str, after: str, version: int
) -> None:
    topic = group = f"Held{before}{after}{version}"
    await send(wire, topic, "X")
    await beat(wire, group, topic, TO_B[before], version, before)
    held = await hold(wire, group, topic, version=version, **HELD)
    await beat(wire, group, topic, TO_C[after], min(version, BEHIND), after)
    await again_from_1(held)
    # The next one is held for what is wanted now.
    held = await hold(wire, group, topic, version=min(version, BEHIND), **HELD)
    await send(await connect(), topic, "B", "C")
    async with asyncio.timeout(TIMEOUT_S):
        assert bodies(await held) == ["C"]


@pytest.mark.parametrize("kind", ["TAG", "SQL92"])
async def test_a_held_pull_stays_when_its_member_says_the_same_or_another_wants_something_else(
    connect: Connect, kind: str
) -> None:
    topic = group = f"Stays{kind}"
    other, same = await connect(), await connect()
    await send(same, topic, "X")
    for wire in (same, other):
        await beat(wire, group, topic, TO_B[kind], BEHIND, kind)
    stays = await hold(same, group, topic, version=BEHIND, **HELD)
    leaves = await hold(other, group, topic, version=BEHIND, **HELD)
    await beat(same, group, topic, TO_B[kind], AHEAD, kind)
    await beat(other, group, topic, TO_C[kind], AHEAD, kind)
    await again_from_1(leaves)
    await beat(same, group, topic, TO_B[kind], AHEAD + 1, kind)
    await send(await connect(), topic, "C", "B")
    async with asyncio.timeout(TIMEOUT_S):
        assert bodies(await stays) == ["B"]


@pytest.mark.parametrize("kind", ["TAG", "SQL92"])
async def test_a_held_pull_that_brings_its_expression_is_sent_to_pull_again_like_the_others(
    wire: Wire, kind: str
) -> None:
    topic = group = f"Brings{kind}"
    await send(wire, topic, "X")
    await beat(wire, group, topic, TO_B[kind], BEHIND, kind)
    own = {"subscription": TO_B[kind], "expressionType": kind, **INLINE}
    held = await hold(wire, group, topic, version=BEHIND, **own)
    await beat(wire, group, topic, TO_C[kind], AHEAD, kind)
    await again_from_1(held)


@pytest.mark.parametrize("kind", ["TAG", "SQL92"])
async def test_a_held_pull_is_sent_to_pull_again_when_its_member_does_not_name_the_topic_any_more(
    wire: Wire, kind: str
) -> None:
    topic = group = f"Unnamed{kind}"
    await send(wire, topic, "X")
    await beat(wire, group, topic, TO_B[kind], BEHIND, kind)
    held = await hold(wire, group, topic, version=BEHIND, **HELD)
    await beat(wire, group, "Another", "*", BEHIND)
    await again_from_1(held)


async def test_a_pull_held_before_its_member_came_is_sent_to_pull_again_if_that_wants_another(
    connect: Connect,
) -> None:
    topic = group = "Reconnected"
    other, comes, agrees = await connect(), await connect(), await connect()
    await send(other, topic, "X")
    await beat(other, group, topic, "B", AHEAD)
    held = await hold(comes, group, topic, version=BEHIND, **HELD)
    stays = await hold(agrees, group, topic, version=BEHIND, **HELD)
    await beat(agrees, group, topic, "B", AHEAD)
    await beat(comes, group, topic, "C", AHEAD)
    await again_from_1(held)
    await send(other, topic, "B")
    async with asyncio.timeout(TIMEOUT_S):
        assert bodies(await stays) == ["B"]
