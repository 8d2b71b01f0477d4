"""Consumers that choose messages by a SQL92 expression (protocol/WIRE.md 3.2).

`tests/unit/protocol/test_sql_filter.py` and the interop tests hold the meaning of expressions; here
are the messages that each consumer gets, when, and the texts of errors.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import aerobee.testing
from aerobee.client import (
    CallerError,
    ConsumeFrom,
    PullConsumer,
    PushConsumer,
    PushOptions,
    ReceivedMessage,
    RequestRefused,
)
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.frames.command import Command
from aerobee.protocol.message.record import decode_records
from aerobee.testing import RunningBroker
from tests.contract.conftest import Wire, damage_of

SQL = {"expressionType": "SQL92"}
INLINE_SQL = {**SQL, "sysFlag": 4}


async def send(wire: Wire, topic: str, body: str, properties: Mapping[str, str]) -> None:
    text = "\x02".join(f"{name}\x01{value}" for name, value in properties.items())
    answer = await wire.send(topic, body.encode(), properties=text)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


async def send_numbers(wire: Wire, topic: str, count: int) -> None:
    for number in range(count):
        await send(wire, topic, str(number), {"n": str(number), "TAGS": f"t{number % 3}"})


def bodies(answer: Command) -> list[str]:
    assert answer.code == ResponseCode.SUCCESS, (answer.code, answer.remark)
    return [one.body.decode() for one in decode_records(answer.body)]


def next_offset(answer: Command) -> int:
    return int(answer.ext["nextBeginOffset"])


async def heartbeat(
    wire: Wire, group: str, topics: Mapping[str, tuple[str, str]], version: int = 1
) -> Command:
    """A consumer's: topic -> (type, expression)."""
    subscriptions = [
        {"topic": topic, "subString": text, "expressionType": kind, "subVersion": version}
        for topic, (kind, text) in topics.items()
    ]
    data: dict[str, Any] = {
        "clientID": "c1",
        "producerDataSet": [],
        "consumerDataSet": [
            {
                "groupName": group,
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                "subscriptionDataSet": subscriptions,
            }
        ],
    }
    return await wire.call(RequestCode.HEART_BEAT, body=json.dumps(data).encode())


async def group_pull(wire: Wire, group: str, topic: str, version: int = 1, **more: Any) -> Command:
    """A pull of a group whose heartbeats say what it wants."""
    fields = {"consumerGroup": group, "sysFlag": 0, "subVersion": version, **more}
    return await wire.pull(topic, expressionType="SQL92", **fields)


async def test_a_pull_with_its_expression_gets_the_messages_that_match(wire: Wire) -> None:
    await send_numbers(wire, "Inline", 10)
    answer = await wire.pull("Inline", subscription="n > 3 AND TAGS <> 't0'", **INLINE_SQL)
    assert bodies(answer) == ["4", "5", "7", "8"]
    assert next_offset(answer) == 10
    answer = await wire.pull("Inline", subscription="missing IS NULL", **INLINE_SQL)
    assert len(bodies(answer)) == 10
    answer = await wire.pull("Inline", 9, subscription="TAGS IN ('t0')", **INLINE_SQL)
    assert bodies(answer) == ["9"]


async def test_nothing_that_matches_sends_the_consumer_on(wire: Wire) -> None:
    await send_numbers(wire, "None", 5)
    answer = await wire.pull("None", subscription="n > 100", **INLINE_SQL)
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert (answer.remark, next_offset(answer)) == ("NO_MATCHED_MESSAGE", 5)
    answer = await wire.pull("None", 5, subscription="n > 100", **INLINE_SQL)
    assert answer.code == ResponseCode.PULL_NOT_FOUND
    answer = await wire.pull("None", 7, subscription="n > 100", **INLINE_SQL)
    assert answer.code == ResponseCode.PULL_OFFSET_MOVED


async def test_a_text_that_is_no_number_does_not_match_and_stops_nothing(wire: Wire) -> None:
    for body, amount in (("a", "5"), ("b", "five"), ("c", ""), ("d", "9")):
        await send(wire, "Odd", body, {"amount": amount, "x": "1"})
    answer = await wire.pull("Odd", subscription="NOT (amount < 3)", **INLINE_SQL)
    assert bodies(answer) == ["a", "d"]


async def test_many_messages_are_judged_a_part_at_a_time(wire: Wire) -> None:
    """800 entries are examined at most, in steps; the limits of a request are kept to."""
    for number in range(1000):
        await send(wire, "Long", str(number), {"n": str(number)})
    answer = await wire.pull("Long", subscription="n >= 990", **INLINE_SQL)
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert 0 < next_offset(answer) <= 800
    found: list[str] = []
    offset = 0
    while offset < 1000:
        answer = await wire.pull("Long", offset, subscription="n >= 990", **INLINE_SQL)
        if answer.code == ResponseCode.SUCCESS:
            found += bodies(answer)
        assert next_offset(answer) > offset
        offset = next_offset(answer)
    assert found == [str(number) for number in range(990, 1000)]
    answer = await wire.pull("Long", subscription="n >= 10", maxMsgNums=7, **INLINE_SQL)
    assert bodies(answer) == [str(number) for number in range(10, 17)]
    assert next_offset(answer) == 17


async def test_a_group_pulls_by_the_expression_of_its_heartbeat(wire: Wire) -> None:
    await send_numbers(wire, "Beats", 6)
    assert (await heartbeat(wire, "SG", {"Beats": ("SQL92", "n > 3")})).code == 0
    assert bodies(await group_pull(wire, "SG", "Beats")) == ["4", "5"]
    # The next heartbeat replaces it, whatever the client's clock says.
    assert (await heartbeat(wire, "SG", {"Beats": ("SQL92", "n < 1")}, version=3)).code == 0
    assert bodies(await group_pull(wire, "SG", "Beats", version=3)) == ["0"]
    assert (await heartbeat(wire, "SG", {"Beats": ("SQL92", "n > 4")}, version=2)).code == 0
    assert bodies(await group_pull(wire, "SG", "Beats", version=2)) == ["5"]


async def test_a_pull_that_is_newer_than_the_heartbeat_is_told_so(wire: Wire) -> None:
    await send_numbers(wire, "Newer", 1)
    await heartbeat(wire, "NG", {"Newer": ("SQL92", "n > 3")}, version=5)
    answer = await group_pull(wire, "NG", "Newer", version=6)
    assert answer.code == ResponseCode.SUBSCRIPTION_NOT_LATEST


async def test_a_group_without_a_filter_is_refused_and_told_why(wire: Wire) -> None:
    await send_numbers(wire, "Wrong", 1)
    # The heartbeat is taken: its other topics are served.
    topics = {"Wrong": ("SQL92", "n >"), "Beats": ("SQL92", "n > 3"), "Cel": ("CEL", "n")}
    assert (await heartbeat(wire, "WG", topics)).code == 0
    answer = await group_pull(wire, "WG", "Wrong")
    assert answer.code == ResponseCode.FILTER_DATA_NOT_EXIST
    assert "group WG, topic Wrong; SQL92 expression, at the end" in str(answer.remark)
    await send_numbers(wire, "Cel", 1)
    answer = await group_pull(wire, "WG", "Cel")
    assert answer.code == ResponseCode.FILTER_DATA_NOT_EXIST
    assert "TAG or SQL92" in str(answer.remark)
    answer = await group_pull(wire, "WG", "Beats")
    assert answer.code == ResponseCode.SUCCESS
    # A newer expression that is wrong replaces the old expression, and so nothing is served.
    await heartbeat(wire, "WG", {"Beats": ("SQL92", "n > 'x'")}, version=2)
    answer = await group_pull(wire, "WG", "Beats", version=2)
    assert answer.code == ResponseCode.FILTER_DATA_NOT_EXIST


async def test_a_check_of_the_client_compiles(wire: Wire) -> None:
    def check(expression: str) -> bytes:
        one = {"topic": "T", "subString": expression, "expressionType": "SQL92"}
        return json.dumps({"clientId": "c", "group": "g", "subscriptionData": one}).encode()

    code = RequestCode.CHECK_CLIENT_CONFIG
    assert (await wire.call(code, body=check("a BETWEEN 1 AND 2"))).code == 0
    answer = await wire.call(code, body=check("a BETWEEN 2 AND 1"))
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert "at character 11" in str(answer.remark)


async def test_a_pull_waits_and_gets_what_matches(wire: Wire) -> None:
    await send_numbers(wire, "Held", 1)
    waiting = asyncio.create_task(wire.await_message("Held", 1, subscription="n > 3", **SQL))
    # In order for its connection: it is stored behind the pull's first look.
    await asyncio.create_task(send(wire, "Held", "yes", {"n": "4"}))
    assert bodies(await waiting) == ["yes"]


async def test_a_waiting_pull_is_not_answered_for_what_it_does_not_want(wire: Wire) -> None:
    await send_numbers(wire, "Judged", 1)
    await heartbeat(wire, "JG", {"Judged": ("SQL92", "n > 10")})
    by_group = {"queueOffset": 1, "sysFlag": 2, "suspendTimeoutMillis": 8000}
    waiting = [
        asyncio.create_task(wire.await_message("Judged", 1, subscription="n > 10", **SQL)),
        asyncio.create_task(group_pull(wire, "JG", "Judged", **by_group)),
    ]
    for number in range(2, 8):
        await asyncio.create_task(send(wire, "Judged", str(number), {"n": str(number)}))
    # Another pull, that was judged and answered behind them.
    assert bodies(await wire.pull("Judged", 1))[-1] == "7"
    assert [one.result() for one in waiting if one.done()] == []
    await send(wire, "Judged", "11", {"n": "11"})
    for answer in await asyncio.gather(*waiting):
        assert bodies(answer) == ["11"]
        assert next_offset(answer) == 8


async def test_a_waiting_pull_ends_with_its_time(wire: Wire) -> None:
    await send_numbers(wire, "Expires", 1)
    waits = {"sysFlag": 6, "suspendTimeoutMillis": 300}
    waiting = asyncio.create_task(wire.pull("Expires", 1, subscription="n > 10", **SQL, **waits))
    await asyncio.create_task(send(wire, "Expires", "no", {"n": "2"}))
    answer = await waiting
    assert (answer.code, next_offset(answer)) == (ResponseCode.PULL_RETRY_IMMEDIATELY, 2)


async def test_many_waiting_expressions_keep_nobody_else_waiting(wire: Wire) -> None:
    """Each its own; a message that all but one do not want. So many are too dear to be judged where
    they wait: some are answered that there is nothing for them."""
    await send_numbers(wire, "Many", 1)
    tasks = [
        asyncio.create_task(
            wire.await_message("Many", 1, subscription=f"n = {number} AND TAGS IS NULL", **SQL)
        )
        for number in range(2_000)
    ]
    await wire.send("Other", b"first")
    plain = asyncio.create_task(wire.await_message("Other", 1))
    await asyncio.create_task(wire.send("Other", b"second"))
    assert bodies(await plain) == ["second"]
    await send(wire, "Many", "wanted", {"n": "1999"})
    assert bodies(await tasks[1999]) == ["wanted"]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_filters_outlive_a_restart_and_wait_for_their_consumers(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"store_path": str(tmp_path)}
    with aerobee.testing.broker(**settings) as running:
        wire = await Wire.to(running.broker)
        await send_numbers(wire, "Kept", 6)
        await heartbeat(wire, "KG", {"Kept": ("SQL92", "n > 3")}, version=7)
        wire.caller.close()
    stored = json.loads((tmp_path / "config" / "consumerFilter.json").read_bytes())
    kept = stored["filterDataByTopic"]["Kept"]["groupFilterData"]["KG"]
    assert (kept["expression"], kept["clientVersion"]) == ("n > 3", 7)
    assert damage_of(tmp_path) == []
    with aerobee.testing.broker(**settings) as running:
        wire = await Wire.to(running.broker)
        answer = await group_pull(wire, "KG", "Kept")
        assert answer.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
        await heartbeat(wire, "KG", {"Kept": ("SQL92", "n > 3")}, version=7)
        assert bodies(await group_pull(wire, "KG", "Kept", version=7)) == ["4", "5"]
        wire.caller.close()


async def test_expressions_can_be_turned_off() -> None:
    with aerobee.testing.broker(property_filter=False) as running:
        wire = await Wire.to(running.broker)
        await send_numbers(wire, "Off", 1)
        answer = await wire.pull("Off", subscription="n > 3", **INLINE_SQL)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "does not support consumer to filter message by SQL92" in str(answer.remark)
        assert (await heartbeat(wire, "OG", {"Off": ("SQL92", "n > 3")})).code == 0
        answer = await group_pull(wire, "OG", "Off")
        assert (answer.code, "enablePropertyFilter" in str(answer.remark)) == (1, True)
        wire.caller.close()


async def test_retries_are_judged_by_the_filter_of_their_topic_where_that_is_on() -> None:
    with aerobee.testing.broker(filter_retry=True) as running:
        wire = await Wire.to(running.broker)
        retry, sql = "%RETRY%RG", ("SQL92", "n IS NULL")
        beat = {"Origin": ("SQL92", "n > 3"), "Other": ("TAG", "*"), retry: sql}
        assert (await heartbeat(wire, "RG", beat)).code == 0
        for number, origin in ((1, "Origin"), (5, "Origin"), (2, "Other"), (3, None)):
            properties = {"n": str(number)} | ({"RETRY_TOPIC": origin} if origin else {})
            await send(wire, retry, str(number), properties)
        assert bodies(await group_pull(wire, "RG", retry)) == ["5", "2", "3"]
        # Subscribed by tag, as clients do it by themselves, it is not judged.
        assert (await heartbeat(wire, "RG", {**beat, retry: ("TAG", "*")}, version=2)).code == 0
        assert len(bodies(await group_pull(wire, "RG", retry, version=2))) == 4
        wire.caller.close()


# --- our own client -------------------------------------------------------------------------------


async def test_our_push_consumer_gets_what_its_expression_wants(
    running: RunningBroker, wire: Wire
) -> None:
    await send_numbers(wire, "Pushed", 1)
    got: asyncio.Queue[str] = asyncio.Queue()

    async def listen(messages: list[ReceivedMessage]) -> None:
        for one in messages:
            got.put_nowait(one.body.decode())

    options = PushOptions(consume_from=ConsumeFrom.FIRST)
    consumer = PushConsumer(running.name_server, "PushSql", listen, options)
    await consumer.subscribe("Pushed", "n BETWEEN 3 AND 4 OR n = 9", "SQL92")
    async with consumer:
        for number in range(1, 10):
            await send(wire, "Pushed", str(number), {"n": str(number)})
        async with asyncio.timeout(20):
            assert [await got.get() for _ in range(3)] == ["3", "4", "9"]
        # A wrong one changes nothing.
        with pytest.raises(RequestRefused, match="at character 3") as caught:
            await consumer.subscribe("Pushed", "n ! 3", "SQL92")
        assert caught.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        await send(wire, "Pushed", "again", {"n": "3"})
        async with asyncio.timeout(20):
            assert await got.get() == "again"
        assert got.empty()


async def test_our_push_consumer_does_not_start_with_a_wrong_expression(
    running: RunningBroker, wire: Wire
) -> None:
    await send_numbers(wire, "Pushed2", 1)

    async def listen(_messages: list[ReceivedMessage]) -> None:
        raise AssertionError

    consumer = PushConsumer(running.name_server, "WrongSql", listen)
    await consumer.subscribe("Pushed2", "n > 'x'", "SQL92")
    with pytest.raises(RequestRefused, match="at character 5"):
        await consumer.start()
    with pytest.raises(CallerError, match="TAG or SQL92"):
        await consumer.subscribe("Pushed2", "n", "CEL")


async def test_our_pull_consumer_pulls_by_an_expression(running: RunningBroker, wire: Wire) -> None:
    await send_numbers(wire, "Pulled", 6)
    async with PullConsumer(running.name_server) as consumer:
        queue = next(one for one in await consumer.queues("Pulled") if one.queue_id == 0)
        sql = {"expression": "n > 3", "expression_type": "SQL92"}
        result = await consumer.pull(queue, 0, **sql)
        assert [one.body for one in result.messages] == [b"4", b"5"]
        assert (await consumer.pull(queue, 0, expression="t1")).messages[0].body == b"1"
        with pytest.raises(RequestRefused, match="at the end"):
            await consumer.pull(queue, 0, expression="n >", expression_type="SQL92")
