"""Requests of administrators to running consumers: the broker asks them, and passes their answers
on; a consumer that is silent, gone or talks rubbish is reported, and is nobody else's trouble."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import aerobee.testing
from aerobee.broker.requests.clients import running_consumers as consumers
from aerobee.client.consuming.push_consumer import PushConsumer
from aerobee.client.message import ReceivedMessage
from aerobee.client.options import ConsumeFrom, PushOptions
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.bodies.offsets import parse_group_status
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.frames.command import Command, make_request, make_response
from aerobee.protocol.frames.fastjson import loads
from aerobee.protocol.message.record import decode_record
from aerobee.testing import RunningBroker
from tests.contract.conftest import TIMEOUT_S, Wire
from tests.contract.members import Member, saying, silent

INFO = RequestCode.GET_CONSUMER_RUNNING_INFO
DIRECTLY = RequestCode.CONSUME_MESSAGE_DIRECTLY
STATUS = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
OF_CLIENT = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
LIMIT = 8


@pytest.fixture(scope="module")
def running() -> Iterator[RunningBroker]:
    """Few calls may wait."""
    limits = {"client_calls": LIMIT, "client_calls_per_connection": 4}
    with aerobee.testing.broker(**limits, http_enabled=False) as broker:
        yield broker


@pytest.fixture
async def joined(running: RunningBroker) -> AsyncIterator[Any]:
    """Makes members, and closes them."""
    members: list[Member] = []

    async def join(group: str, **options: Any) -> Member:
        member = await Member.join(running.broker, group, ("Orders",), **options)
        members.append(member)
        return member

    yield join
    for member in members:
        member.close()


def info(group: str, client_id: str = "c1") -> dict[str, Any]:
    return {"consumerGroup": group, "clientId": client_id, "jstackEnable": "false"}


async def settled(wire: Wire) -> None:
    """All that was asked before is in work: requests of one connection begin in their order."""
    await wire.call(RequestCode.GET_MAX_OFFSET, {"topic": "Orders", "queueId": 0})


# --- passed through -------------------------------------------------------------------------------


async def test_running_info_is_the_members_own_answer(wire: Wire, joined: Any) -> None:
    said = b"{mqTable:{{'topic':'T'}:1}, \"properties\" : {}}"

    def answers(request: Command) -> Command:
        return make_response(request, 0, "as it is", {"own": "field"}, said)

    member = await joined("Running", answers=answers)
    answer = await wire.call(INFO, {**info("Running"), "unknown": "kept"})
    assert (answer.code, answer.remark, answer.body) == (0, "as it is", said)
    assert answer.ext == {"own": "field"}
    (asked,) = member.asked
    assert (asked.code, asked.is_oneway, asked.body) == (INFO, False, b"")
    assert asked.ext == {**info("Running"), "unknown": "kept"}


async def test_a_members_refusal_is_passed_on(wire: Wire, joined: Any) -> None:
    await joined("Refusing", answers=saying(code=1, remark="the listener is closed"))
    answer = await wire.call(INFO, info("Refusing"))
    assert (answer.code, answer.remark, answer.body) == (1, "the listener is closed", b"")


async def test_secrets_of_the_asker_are_not_passed_on(wire: Wire, joined: Any) -> None:
    member = await joined("Secret", answers=saying({}))
    await wire.call(INFO, {**info("Secret"), "AccessKey": "a", "Signature": "s"})
    assert member.asked[0].ext == info("Secret")


async def test_a_client_may_ask_for_itself(joined: Any) -> None:
    """Its own answer comes over the connection that asks."""
    member = await joined("Itself", answers=saying({"jstack": "x"}))
    answer = await member.caller.call(make_request(INFO, info("Itself")), TIMEOUT_S)
    assert (answer.code, answer.body) == (0, b'{"jstack": "x"}')


async def test_a_message_is_given_to_a_member_as_it_is_stored(
    running: RunningBroker, wire: Wire, joined: Any
) -> None:
    sent = await wire.send("Orders", b"this one", properties="KEYS\x01k\x02TAGS\x01t\x02")
    result = {"consumeResult": "CR_SUCCESS", "order": False}
    member = await joined("Directly", answers=saying(result))
    ext = {"consumerGroup": "Directly", "clientId": "c1", "msgId": sent.ext["msgId"]}
    answer = await wire.call(DIRECTLY, ext)
    assert (answer.code, json.loads(answer.body)) == (0, result)
    (asked,) = member.asked
    assert asked.ext == {**ext, "brokerName": running.settings.broker_name}
    message = decode_record(asked.body)
    assert (message.body, message.queue_offset) == (b"this one", int(sent.ext["queueOffset"]))
    stored = await wire.pull("Orders", message.queue_offset, maxMsgNums=1)
    assert stored.body == asked.body


async def test_our_own_consumer_answers(running: RunningBroker, wire: Wire) -> None:
    got: list[bytes] = []
    came = asyncio.Event()

    async def listener(messages: list[ReceivedMessage]) -> None:
        got.extend(message.body for message in messages)
        came.set()

    consumer = PushConsumer(
        running.name_server, "Ours", listener, PushOptions(consume_from=ConsumeFrom.FIRST)
    )
    await consumer.subscribe("Orders")
    sent = await wire.send("Orders", b"for ours")
    async with consumer:
        async with asyncio.timeout(TIMEOUT_S):
            await came.wait()
        listed = await wire.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "Ours"})
        client_id = json.loads(listed.body)["consumerIdList"][0]
        told = await wire.call(INFO, info("Ours", client_id))
        assert loads(told.body)["properties"]["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
        ext = {"consumerGroup": "Ours", "clientId": client_id, "msgId": sent.ext["msgId"]}
        before = len(got)
        told = await wire.call(DIRECTLY, ext)
        assert loads(told.body)["consumeResult"] == "CR_SUCCESS"
        assert got[before:] == [b"for ours"]
        told = await wire.call(STATUS, {"group": "Ours", "topic": "Orders"})
        queues = parse_group_status(told.body)[client_id]
        assert queues[MessageQueue("Orders", running.settings.broker_name, 0)] >= 1


# --- members that do not answer -------------------------------------------------------------------


async def test_who_is_not_online_is_not_asked(wire: Wire, joined: Any) -> None:
    await joined("Online")
    for ext in (info("Online", "c2"), info("Nobody")):
        for code in (INFO, DIRECTLY):
            answer = await wire.call(code, {**ext, "msgId": "0" * 32})
            assert answer.code == ResponseCode.SYSTEM_ERROR
            who = f"The Consumer <{ext['consumerGroup']}> <{ext['clientId']}> not online"
            assert (answer.remark or "").startswith(who)
    for ext in ({"group": "Nobody"}, {"group": "Online", "clientAddr": "c2"}):
        answer = await wire.call(STATUS, {**ext, "topic": "Orders"})
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "online" in (answer.remark or "")


async def test_an_old_client_is_not_asked(wire: Wire, joined: Any) -> None:
    member = await joined("Old", version=61, answers=saying({}))
    answer = await wire.call(INFO, info("Old"))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "too old" in (answer.remark or "")
    await joined("Old", version=27, client_id="c2")
    answer = await wire.call(STATUS, {"group": "Old", "topic": "Orders"})
    assert (answer.code, "c2" in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
    assert member.asked == []


async def test_a_silent_member_costs_its_time_and_no_more(
    wire: Wire, joined: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "PASS_ON_S", 0.05)
    member = await joined("Silent")
    answer = await wire.call(INFO, info("Silent"))
    assert answer.code == ResponseCode.CONSUME_MSG_TIMEOUT
    assert "c1" in (answer.remark or "")
    # Its late answer, and an answer that nobody asked for, are dropped.
    (asked,) = member.asked
    for _ in range(2):
        member.caller.reply(make_response(asked, 0, body=b"late").encode())
    member.answers = saying({"in": "time"})
    assert (await wire.call(INFO, info("Silent"))).body == b'{"in": "time"}'


async def test_the_askers_other_requests_do_not_wait(wire: Wire, joined: Any) -> None:
    member = await joined("Slow")
    waiting = asyncio.create_task(wire.call(INFO, info("Slow")))
    (asked,) = await member.wait_asked()
    await settled(wire)
    assert not waiting.done()
    member.caller.reply(make_response(asked, 0, body=b"at last").encode())
    assert (await waiting).body == b"at last"


async def test_a_member_that_leaves_is_told_of(wire: Wire, joined: Any) -> None:
    member = await joined("Leaving")
    waiting = asyncio.create_task(wire.call(INFO, info("Leaving")))
    await member.wait_asked()
    member.close()
    answer = await waiting
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "could not be asked" in (answer.remark or "")


async def test_an_asker_that_leaves_gets_nothing(
    running: RunningBroker, wire: Wire, joined: Any
) -> None:
    member = await joined("Asked")
    other = await Wire.to(running.broker)
    waiting = asyncio.create_task(other.call(INFO, info("Asked")))
    (asked,) = await member.wait_asked()
    other.caller.close()
    with pytest.raises(Exception, match="closed"):
        await waiting
    member.caller.reply(make_response(asked, 0).encode())
    member.answers = saying({})
    # Its place is free again: as many as may be wait at once.
    for _ in range(LIMIT):
        assert (await wire.call(INFO, info("Asked"))).code == 0


async def test_so_many_wait_and_no_more(running: RunningBroker, wire: Wire, joined: Any) -> None:
    member = await joined("Many")
    others = [await Wire.to(running.broker) for _ in range(2)]
    waiting = []
    for one in others:
        waiting += [asyncio.create_task(one.call(INFO, info("Many"))) for _ in range(4)]
    asked = list(await member.wait_asked(LIMIT))
    answer = await others[0].call(INFO, info("Many"))
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert "limits.client_calls_per_connection" in (answer.remark or "")
    answer = await wire.call(INFO, info("Many"))
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert "limits.client_calls)" in (answer.remark or "")
    answer = await wire.call(STATUS, {"group": "Many", "topic": "Orders"})
    assert answer.code == ResponseCode.SYSTEM_BUSY
    for number, request in enumerate(asked):
        member.caller.reply(make_response(request, 0, body=b"%d" % number).encode())
    assert {one.body for one in await asyncio.gather(*waiting)} == {b"%d" % n for n in range(LIMIT)}
    for one in others:
        one.caller.close()


async def test_what_waiting_requests_hold_is_bounded_in_bytes(wire: Wire, joined: Any) -> None:
    member = await joined("Large")
    large = {"group": "Large", "topic": "T" * 100_000}
    waiting = asyncio.create_task(wire.call(STATUS, large))
    [asked] = await member.wait_asked(1)
    answer = await wire.call(STATUS, large)
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert "limits.client_calls" in (answer.remark or "")
    member.caller.reply(make_response(asked, 0, body=queues_of(1)).encode())
    assert (await waiting).code == 0


# --- rubbish --------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [3, 31_999, -5, 2**31 - 1])
async def test_an_odd_code_of_a_member_is_passed_on(wire: Wire, joined: Any, code: int) -> None:
    await joined(f"Odd{abs(code)}", answers=saying(b"\xff\0", code=code, remark="odd"))
    answer = await wire.call(INFO, info(f"Odd{abs(code)}"))
    assert (answer.code, answer.remark, answer.body) == (code, "odd", b"\xff\0")


@pytest.mark.parametrize(
    ("msg_id", "word"),
    [
        ("", "hexadecimal"),
        ("x" * 32, "hexadecimal"),
        ("7F00000100002A9F00000000000F4240", "no message"),
        ("F" * 32, "no possible"),
    ],
)
async def test_a_message_that_is_not_there_is_not_given(
    wire: Wire, joined: Any, msg_id: str, word: str
) -> None:
    member = await joined("Unknown", answers=saying({}))
    ext = {"consumerGroup": "Unknown", "clientId": "c1", "msgId": msg_id}
    answer = await wire.call(DIRECTLY, ext)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert word in (answer.remark or "")
    assert member.asked == []


async def test_a_message_of_another_broker_is_not_taken_for_ours(wire: Wire, joined: Any) -> None:
    """Found: the reference gives whatever lies at that offset here."""
    sent = await wire.send("Orders")
    member = await joined("Foreign", answers=saying({}))
    foreign = "0A000001" + sent.ext["msgId"][8:]
    ext = {"consumerGroup": "Foreign", "clientId": "c1", "msgId": foreign}
    answer = await wire.call(DIRECTLY, ext)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "another broker's" in (answer.remark or "")
    assert member.asked == []


@pytest.mark.parametrize("missing", ["consumerGroup", "clientId"])
async def test_what_is_missing_is_named(wire: Wire, missing: str) -> None:
    ext = info("Any")
    del ext[missing]
    answer = await wire.call(INFO, ext)
    assert (answer.code, missing in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)


# --- status of a group ----------------------------------------------------------------------------


def queues_of(offset: int) -> bytes:
    key = '{"brokerName":"b","queueId":0,"topic":"Orders"}'
    return f'{{"consumerTable":{{}},"messageQueueTable":{{{key}:{offset}}}}}'.encode()


QUEUE = MessageQueue("Orders", "b", 0)


async def test_the_members_offsets_are_put_together(wire: Wire, joined: Any) -> None:
    members = [
        await joined("Together", client_id=f"c{number}", answers=saying(queues_of(number)))
        for number in range(3)
    ]
    answer = await wire.call(STATUS, {"group": "Together", "topic": "Orders"})
    assert (answer.code, answer.remark) == (0, None)
    assert parse_group_status(answer.body) == {f"c{n}": {QUEUE: n} for n in range(3)}
    for member in members:
        (asked,) = member.asked
        assert (asked.code, asked.ext) == (OF_CLIENT, {"group": "Together", "topic": "Orders"})
    answer = await wire.call(STATUS, {"group": "Together", "topic": "Orders", "clientAddr": "c1"})
    assert parse_group_status(answer.body) == {"c1": {QUEUE: 1}}


async def test_all_members_are_asked_at_once(wire: Wire, joined: Any) -> None:
    members = [await joined("Once", client_id=f"c{number}") for number in range(3)]
    waiting = asyncio.create_task(wire.call(STATUS, {"group": "Once", "topic": "Orders"}))
    for member in members:
        await member.wait_asked()
    for number, member in reversed(list(enumerate(members))):
        reply = make_response(member.asked[0], 0, body=queues_of(number))
        member.caller.reply(reply.encode())
    assert parse_group_status((await waiting).body) == {f"c{n}": {QUEUE: n} for n in range(3)}


async def test_members_without_a_good_answer_are_named(
    wire: Wire, joined: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "STATUS_S", 0.05)
    large = b'{"messageQueueTable":{' + b" " * (3 << 20) + b"}}"
    for name, answers in (
        ("good", saying(queues_of(7))),
        ("silent", silent),
        ("refusing", saying(code=1, remark="no")),
        ("rubbish", saying(b"{[")),
        ("large", saying(large)),
    ):
        await joined("Mixed", client_id=name, answers=answers)
    answer = await wire.call(STATUS, {"group": "Mixed", "topic": "Orders"})
    assert answer.code == 0
    assert parse_group_status(answer.body) == {"good": {QUEUE: 7}}
    remark = answer.remark or ""
    assert remark.startswith("4 of 5 members")
    assert all(name in remark for name in ("silent", "refusing", "rubbish", "large"))


async def test_rounds_wait_for_each_other(wire: Wire, joined: Any) -> None:
    """Two are under way; the third begins when one has ended, and is answered too."""
    member = await joined("Rounds")
    ext = {"group": "Rounds", "topic": "Orders"}
    waiting = [asyncio.create_task(wire.call(STATUS, ext)) for _ in range(3)]
    await member.wait_asked(2)
    await settled(wire)
    assert len(member.asked) == 2
    member.answers = saying(queues_of(1))
    for asked in list(member.asked):
        member.caller.reply(make_response(asked, 0, body=queues_of(1)).encode())
    for one in waiting:
        assert parse_group_status((await one).body) == {"c1": {QUEUE: 1}}
