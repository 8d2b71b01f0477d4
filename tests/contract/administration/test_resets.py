"""Offset resets of running groups: the members are told where to go on, and go on there."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from aerobee.client.consuming.push_consumer import PushConsumer
from aerobee.client.message import ReceivedMessage
from aerobee.client.options import ConsumeFrom, PushOptions
from aerobee.protocol.bodies.common import MessageQueue, parse_offset_table
from aerobee.protocol.bodies.statistics import ConsumeStats
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.frames.command import Command, make_request
from aerobee.protocol.frames.fastjson import dumps
from aerobee.protocol.message.record import decode_records
from aerobee.testing import RunningBroker
from tests.contract.conftest import TIMEOUT_S, Wire
from tests.contract.members import Member

RESET = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
PUSH = RequestCode.RESET_CONSUMER_CLIENT_OFFSET


@pytest.fixture
async def joined(running: RunningBroker) -> AsyncIterator[Any]:
    """Makes members, and closes them."""
    members: list[Member] = []

    async def join(group: str, topic: str, **options: Any) -> Member:
        member = await Member.join(running.broker, group, (topic,), **options)
        members.append(member)
        return member

    yield join
    for member in members:
        member.close()


async def filled(wire: Wire, topic: str, messages: int = 3, queues: int = 2) -> list[int]:
    """A topic with `messages` messages in each queue; the store times of those in queue 0, which
    all differ."""
    ext = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": queues,
        "writeQueueNums": queues, "perm": 6, "topicFilterType": "SINGLE_TAG",
    }  # fmt: skip
    assert (await wire.call(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)).code == 0
    times: list[int] = []
    while len(times) < messages:
        await wire.send(topic, b"%d" % len(times))
        (message,) = decode_records((await wire.pull(topic, len(times))).body)
        times.append(message.store_timestamp_ms)
        for queue_id in range(1, queues):
            await wire.send(topic, b"", queue_id=queue_id)
        while time.time_ns() // 1_000_000 <= times[-1]:  # noqa: ASYNC110 - the clock goes on
            await asyncio.sleep(0)
    return times


async def commit(wire: Wire, group: str, topic: str, *offsets: int) -> None:
    for queue_id, offset in enumerate(offsets):
        ext = {
            "consumerGroup": group, "topic": topic, "queueId": queue_id, "commitOffset": offset,
        }  # fmt: skip
        assert (await wire.call(RequestCode.UPDATE_CONSUMER_OFFSET, ext)).code == 0


async def committed(wire: Wire, group: str, topic: str, queue_id: int = 0) -> str:
    ext = {"consumerGroup": group, "topic": topic, "queueId": queue_id}
    return (await wire.call(RequestCode.QUERY_CONSUMER_OFFSET, ext)).ext["offset"]


async def nothing_committed(wire: Wire, topic: str) -> bool:
    """Whether no group has an offset in a topic."""
    answer = await wire.call(RequestCode.GET_ALL_CONSUMER_OFFSET)
    keys = json.loads(answer.body)["offsetTable"]
    return not any(key.startswith(f"{topic}@") for key in keys)


def reset(group: str, topic: str, timestamp: int, *, force: bool = True) -> dict[str, Any]:
    return {
        "group": group, "topic": topic, "timestamp": timestamp, "isForce": str(force).lower(),
    }  # fmt: skip


def by_queue(body: bytes) -> dict[int, int]:
    return {queue.queue_id: offset for queue, offset in parse_offset_table(body).items()}


async def test_one_queue_is_reset_to_one_offset(
    running: RunningBroker, wire: Wire, joined: Any
) -> None:
    await filled(wire, "OneQueue")
    await commit(wire, "OneQueue", "OneQueue", 0, 0)
    member = await joined("OneQueue", "OneQueue")
    answer = await wire.call(
        RESET, {**reset("OneQueue", "OneQueue", -1), "offset": 2, "queueId": 1}
    )
    assert answer.code == 0
    (told,) = await member.wait_asked()
    assert by_queue(answer.body) == by_queue(told.body) == {1: 2}
    beyond = {**reset("OneQueue", "OneQueue", -1), "offset": 2, "queueId": 9}
    assert "has queues 0 to 1" in ((await wire.call(RESET, beyond)).remark or "")


async def test_members_are_told_where_the_queues_were_at_a_time(
    running: RunningBroker, wire: Wire, joined: Any
) -> None:
    times = await filled(wire, "Back")
    await commit(wire, "Back", "Back", 3, 3)
    members = [await joined("Back", "Back", client_id=f"c{number}") for number in range(2)]
    ext = reset("Back", "Back", times[1], force=False)
    answer = await wire.call(RESET, ext)
    assert (answer.code, answer.remark) == (0, None)
    name = running.settings.broker_name
    table = parse_offset_table(answer.body)
    assert table[MessageQueue("Back", name, 0)] == 1
    assert set(table) == {MessageQueue("Back", name, number) for number in range(2)}
    for member in members:
        (told,) = await member.wait_asked()
        assert (told.code, told.is_oneway) == (PUSH, True)
        assert told.ext == {**{name: str(one) for name, one in ext.items()}, "isForce": "false"}
        assert told.body == answer.body
    # The members commit the new offsets, and nobody before them.
    assert await committed(wire, "Back", "Back") == "3"


@pytest.mark.parametrize(
    ("force", "timestamp", "target"),
    [(False, -1, 1), (True, -1, 3), (False, 0, 0), (True, 2**62, 2), (True, -5, 0)],
)
async def test_only_by_force_does_a_group_skip_messages(
    wire: Wire, joined: Any, force: bool, timestamp: int, target: int
) -> None:
    topic = f"Force{force}{abs(timestamp)}"
    await filled(wire, topic, queues=1)
    await commit(wire, topic, topic, 1)
    member = await joined(topic, topic)
    answer = await wire.call(RESET, reset(topic, topic, timestamp, force=force))
    assert by_queue(answer.body) == {0: target}
    (told,) = await member.wait_asked()
    assert by_queue(told.body) == {0: target}


async def test_consumers_in_cpp_are_told_in_their_form(
    running: RunningBroker, wire: Wire, joined: Any
) -> None:
    await filled(wire, "Cpp", messages=1)
    await commit(wire, "Cpp", "Cpp", 1, 1)
    java = await joined("Cpp", "Cpp", client_id="java")
    cpp = await joined("Cpp", "Cpp", client_id="cpp", language="CPP")
    request = make_request(RESET, {name: str(one) for name, one in reset("Cpp", "Cpp", 0).items()})
    as_list = [
        {"brokerName": running.settings.broker_name, "offset": 0, "queueId": n, "topic": "Cpp"}
        for n in range(2)
    ]

    def as_read(told: Command) -> Any:
        return json.loads(told.body)["offsetTable"]

    answer = await wire.caller.call(request, TIMEOUT_S)
    assert as_read((await cpp.wait_asked())[0]) == as_list
    assert (await java.wait_asked())[0].body == answer.body
    assert by_queue(answer.body) == {0: 0, 1: 0}
    # Their tools say so by their own language; the answer stays the table.
    request = make_request(RESET, request.ext)
    request.language = "CPP"
    again = await wire.caller.call(request, TIMEOUT_S)
    assert again.body == answer.body
    assert as_read((await java.wait_asked(2))[1]) == as_list


async def test_what_cannot_be_reset_is_refused(wire: Wire, joined: Any) -> None:
    await filled(wire, "Refused", messages=1)
    member = await joined("Refused", "Refused")

    async def refused(ext: dict[str, Any], code: int, word: str) -> None:
        answer = await wire.call(RESET, ext)
        assert (answer.code, word in (answer.remark or "")) == (code, True), answer.remark

    error = ResponseCode.SYSTEM_ERROR
    await refused(reset("Refused", "Nowhere", 0), error, "no topic Nowhere")
    await refused(reset("Nobody", "Refused", 0), error, "<Nobody> not exist")
    await filled(wire, "Unwanted", messages=1)
    await refused(reset("Refused", "Unwanted", 0), error, "does not subscribe to Unwanted")
    assert await nothing_committed(wire, "Unwanted")
    await commit(wire, "Refused", "Refused", 1, 1)
    await refused({**reset("Refused", "Refused", 0), "offset": 1}, error, "by time")
    await refused({"group": "Refused", "topic": "Refused"}, error, "timestamp")
    await refused({**reset("Refused", "Refused", 0), "timestamp": "soon"}, error, "timestamp")
    await joined("Refused", "Refused", client_id="old", version=27)
    await refused(reset("Refused", "Refused", 0), error, "old")
    assert member.asked == []


async def test_a_group_without_an_offset_gets_where_it_would_start_and_is_reset(
    wire: Wire, joined: Any
) -> None:
    """A listener that hangs on its first message has none; it could not be reset."""
    times = await filled(wire, "Hangs")
    await commit(wire, "Hangs", "Hangs", 2)  # in queue 0 alone
    member = await joined("Hangs", "Hangs")
    answer = await wire.call(RESET, reset("Hangs", "Hangs", times[1]))
    assert (answer.code, answer.remark) == (0, None)
    (told,) = await member.wait_asked()
    assert told.body == answer.body
    targets = by_queue(answer.body)
    assert (targets[0], set(targets)) == (1, {0, 1})
    # Should no member hear of it, nothing is passed over.
    assert await committed(wire, "Hangs", "Hangs") == "2"
    ext = {"consumerGroup": "Hangs", "topic": "Hangs", "queueId": 1}
    assert (await wire.call(RequestCode.QUERY_CONSUMER_OFFSET, ext)).ext["offset"] == "0"
    table = json.loads((await wire.call(RequestCode.GET_ALL_CONSUMER_OFFSET)).body)["offsetTable"]
    assert table["Hangs@Hangs"] == {"0": 2, "1": 0}


async def test_without_force_a_group_without_an_offset_stays_where_it_would_start(
    wire: Wire, joined: Any
) -> None:
    await filled(wire, "Stays", queues=1)
    member = await joined("Stays", "Stays")
    answer = await wire.call(RESET, reset("Stays", "Stays", -1, force=False))
    assert by_queue(answer.body) == {0: 0}
    (told,) = await member.wait_asked()
    assert by_queue(told.body) == {0: 0}


async def test_members_that_keep_their_offsets_are_reset_by_force_alone(
    wire: Wire, joined: Any
) -> None:
    await filled(wire, "Each", queues=1)
    member = await joined("Each", "Each", message_model="BROADCASTING")
    refused = await wire.call(RESET, reset("Each", "Each", 0, force=False))
    assert (refused.code, "keep their offsets" in (refused.remark or "")) == (1, True)
    answer = await wire.call(RESET, reset("Each", "Each", -1))
    assert by_queue(answer.body) == {0: 3}
    (told,) = await member.wait_asked()
    assert told.body == answer.body
    assert await nothing_committed(wire, "Each")


async def test_the_old_way_finds_the_queues_of_a_group_that_never_committed(
    wire: Wire, joined: Any
) -> None:
    """208, 29, 15, as RocketMQ's tools do it for a group that is not online."""
    times = await filled(wire, "Old")
    member = await joined("Old", "Old")
    await member.wait_left(wire.caller, "Old")
    answer = await wire.call(RESET, reset("Old", "Old", times[1]))
    assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE
    assert await nothing_committed(wire, "Old")
    ext: dict[str, Any] = {"consumerGroup": "Old", "topic": "Old"}
    answer = await wire.call(RequestCode.GET_CONSUME_STATS, ext)
    queues = ConsumeStats.parse(answer.body).queues
    assert [(one.broker_offset, one.consumer_offset) for one in queues.values()] == [(3, 0)] * 2
    for queue in queues:
        search = {"topic": "Old", "queueId": queue.queue_id, "timestamp": times[1]}
        found = await wire.call(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, search)
        commit = {**ext, "queueId": queue.queue_id, "commitOffset": found.ext["offset"]}
        assert (await wire.call(RequestCode.UPDATE_CONSUMER_OFFSET, commit)).code == 0
    assert await committed(wire, "Old", "Old") == "1"


async def test_without_a_member_the_tool_is_told_to_commit_itself(wire: Wire, joined: Any) -> None:
    """The code on which mqadmin resetOffsetByTime goes the old way."""
    await filled(wire, "Offline", messages=1)
    await commit(wire, "Offline", "Offline", 1, 1)
    member = await joined("Offline", "Offline")
    await member.wait_left(wire.caller, "Offline")
    answer = await wire.call(RESET, reset("Offline", "Offline", 0))
    assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE
    assert "no member online" in (answer.remark or "")


async def test_offsets_in_the_body_are_those_that_members_are_told(
    running: RunningBroker, wire: Wire, joined: Any
) -> None:
    """Aerobee's own way, to take a reset back: the time means nothing then."""
    await filled(wire, "Given")
    await commit(wire, "Given", "Given", 3, 3)
    member = await joined("Given", "Given")
    name = running.settings.broker_name

    async def given(offsets: dict[int, int], topic: str = "Given") -> Command:
        queues = {MessageQueue(topic, name, queue_id): at for queue_id, at in offsets.items()}
        return await wire.call(RESET, reset("Given", "Given", 0), dumps({"offsetTable": queues}))

    answer = await given({1: 2})
    assert (answer.code, by_queue(answer.body)) == (0, {1: 2})
    [told] = await member.wait_asked()
    assert (told.code, by_queue(told.body)) == (PUSH, {1: 2})
    for offsets, topic in (({0: 4}, "Given"), ({2: 0}, "Given"), ({0: 1}, "Other"), ({}, "Given")):
        assert (await given(offsets, topic)).code == ResponseCode.SYSTEM_ERROR
    assert (await wire.call(RESET, reset("Given", "Given", 0), b"[")).code != 0
    assert len(member.asked) == 1


async def test_our_consumer_goes_on_where_it_is_told(running: RunningBroker, wire: Wire) -> None:
    await filled(wire, "Ours", queues=1)
    got: asyncio.Queue[bytes] = asyncio.Queue()

    async def listener(messages: list[ReceivedMessage]) -> None:
        for message in messages:
            got.put_nowait(message.body)

    options = PushOptions(consume_from=ConsumeFrom.FIRST, offset_store_interval_s=0.05)
    consumer = PushConsumer(running.name_server, "Ours", listener, options)
    await consumer.subscribe("Ours")
    async with consumer, asyncio.timeout(TIMEOUT_S):
        assert sorted([await got.get() for _ in range(3)]) == [b"0", b"1", b"2"]
        while await committed(wire, "Ours", "Ours") != "3":  # noqa: ASYNC110 - the broker answers
            await asyncio.sleep(0.01)
        answer = await wire.call(RESET, reset("Ours", "Ours", 0))
        assert by_queue(answer.body) == {0: 0}
        assert sorted([await got.get() for _ in range(3)]) == [b"0", b"1", b"2"]
    assert got.empty()
