"""Requests of administrators to a broker, and notifications of its members, over real sockets."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import aerobee.testing
from aerobee.broker import core
from aerobee.protocol.bodies.clients import ConsumerData, HeartbeatData
from aerobee.protocol.bodies.common import parse_topic_list
from aerobee.protocol.bodies.statistics import parse_connections
from aerobee.protocol.bodies.topics import parse_topic_table
from aerobee.protocol.codes import RequestCode as Code
from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.filters.subscription import parse_tag_expression
from aerobee.protocol.frames.command import Command
from aerobee.protocol.frames.fastjson import loads
from aerobee.protocol.message.record import decode_records
from aerobee.remoting.calling.caller import Caller
from aerobee.testing import RunningBroker
from tests.contract.conftest import TIMEOUT_S, Wire

TABLE = "subscriptionGroupTable"


async def done(
    wire: Wire, code: int, ext: dict[str, Any] | None = None, body: bytes = b""
) -> Command:
    """A call that must succeed."""
    answer = await wire.call(code, ext, body)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return answer


async def join(wire: Wire, client: str, group: str, topic: str, producers: str = "") -> None:
    consumer = ConsumerData(group, subscriptions=(parse_tag_expression(topic, "*"),))
    beat = HeartbeatData(client, (producers,) if producers else (), (consumer,))
    await done(wire, Code.HEART_BEAT, {}, beat.encode())


async def members(wire: Wire, group: str) -> list[str]:
    answer = await wire.call(Code.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
    return json.loads(answer.body)["consumerIdList"] if answer.code == 0 else []


async def test_a_group_is_made_told_and_deleted(wire: Wire) -> None:
    body = b'{"groupName":"AdminGroup","retryMaxTimes":3,"consumeEnable":false}'
    await done(wire, Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)
    groups = loads((await done(wire, Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)).body)[TABLE]
    assert groups["AdminGroup"]["retryMaxTimes"] == 3
    await wire.send("AdminPaused")
    paused = await wire.pull("AdminPaused", consumerGroup="AdminGroup")
    assert paused.code == ResponseCode.NO_PERMISSION
    await done(wire, Code.DELETE_SUBSCRIPTIONGROUP, {"groupName": "AdminGroup"})
    groups = loads((await done(wire, Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)).body)[TABLE]
    assert "AdminGroup" not in groups


async def test_topics_are_told_whole(wire: Wire) -> None:
    ext = {
        "topic": "AdminTopic",
        "defaultTopic": "TBW102",
        "readQueueNums": 3,
        "writeQueueNums": 5,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 1,
    }
    await done(wire, Code.UPDATE_AND_CREATE_TOPIC, ext)
    table = parse_topic_table((await done(wire, Code.GET_ALL_TOPIC_CONFIG)).body)
    topic = table.topics["AdminTopic"]
    assert (topic.read_queues, topic.write_queues, topic.perm, topic.sys_flag) == (3, 5, 6, 1)
    system = parse_topic_list((await done(wire, Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)).body)
    assert {"TBW102", "RMQ_SYS_TRANS_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX"} <= set(system)
    assert "AdminTopic" not in system


async def test_one_topic_and_one_group_are_told_as_tools_of_5_read_them(wire: Wire) -> None:
    """Proxies ask for both before anything else, and dashboards for the topic."""
    await wire.send("AdminOne", default_topic_queue_nums=3)
    told = loads((await done(wire, Code.GET_TOPIC_CONFIG, {"topic": "AdminOne", "lo": True})).body)
    table = loads((await done(wire, Code.GET_ALL_TOPIC_CONFIG)).body)["topicConfigTable"]
    assert told == {**table["AdminOne"], "attributes": {}}
    assert (told["topicName"], told["readQueueNums"], told["perm"]) == ("AdminOne", 3, 6)
    unknown = await wire.call(Code.GET_TOPIC_CONFIG, {"topic": "AdminNone"})
    assert unknown.code == ResponseCode.TOPIC_NOT_EXIST

    body = b'{"groupName":"AdminTold","retryMaxTimes":5}'
    await done(wire, Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)
    told = loads((await done(wire, Code.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "AdminTold"})).body)
    groups = loads((await done(wire, Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)).body)[TABLE]
    assert told == {**groups["AdminTold"], "attributes": {}, "consumeMessageOrderly": False}
    assert told["retryMaxTimes"] == 5
    # A missing group is made where its first pull would make it.
    made = loads((await done(wire, Code.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "AdminMade"})).body)
    assert (made["groupName"], made["retryMaxTimes"]) == ("AdminMade", 16)
    illegal = await wire.call(Code.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "a.b"})
    assert illegal.code == ResponseCode.SYSTEM_ERROR


async def test_topics_of_units_have_their_flags(wire: Wire) -> None:
    """topicSysFlag 1: a topic of a unit; 2: a topic that units subscribe to (protocol/WIRE.md
    6.5)."""
    assert (await wire.send("UnitOrders", unit_mode=True)).code == 0
    assert (await wire.send("PlainOrders")).code == 0
    groups = [{"groupName": "UnitBeat", "unitMode": True}, {"groupName": "PlainBeat"}]
    body = json.dumps({"clientID": "10.0.0.1@unit", "consumerDataSet": groups}).encode()
    await done(wire, Code.HEART_BEAT, {}, body)
    back = {"offset": 0, "delayLevel": 0}
    await done(wire, Code.CONSUMER_SEND_MSG_BACK, {**back, "group": "UnitBack", "unitMode": True})
    dead = {**back, "group": "UnitDead", "unitMode": True, "delayLevel": -1}
    await done(wire, Code.CONSUMER_SEND_MSG_BACK, dead)
    table = parse_topic_table((await done(wire, Code.GET_ALL_TOPIC_CONFIG)).body)
    flags = {name: table.topics[name].sys_flag for name in ("UnitOrders", "PlainOrders")}
    flags |= {
        group: table.topics[f"%RETRY%{group}"].sys_flag
        for group in ("UnitBeat", "PlainBeat", "UnitBack")
    }
    assert flags == {
        "UnitOrders": 1, "PlainOrders": 0, "UnitBeat": 2, "PlainBeat": 0, "UnitBack": 2,
    }  # fmt: skip
    assert table.topics["%DLQ%UnitDead"].sys_flag == 0


async def test_a_group_s_connections_are_told(wire: Wire) -> None:
    await join(wire, "10.0.0.1@admin", "AdminMembers", "AdminBeat", "AdminProducers")
    ext = {"consumerGroup": "AdminMembers"}
    consumers = (await done(wire, Code.GET_CONSUMER_CONNECTION_LIST, ext)).body
    assert [one.client_id for one in parse_connections(consumers)] == ["10.0.0.1@admin"]
    assert list(loads(consumers)["subscriptionTable"]) == ["AdminBeat"]
    ext = {"producerGroup": "AdminProducers"}
    producers = (await done(wire, Code.GET_PRODUCER_CONNECTION_LIST, ext)).body
    assert [one.client_id for one in parse_connections(producers)] == ["10.0.0.1@admin"]
    everyone = loads((await done(wire, Code.GET_ALL_PRODUCER_INFO)).body)["data"]
    assert [one["clientId"] for one in everyone["AdminProducers"]] == ["10.0.0.1@admin"]
    nobody = await wire.call(Code.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "AdminNobody"})
    assert nobody.code == ResponseCode.CONSUMER_NOT_ONLINE


async def test_members_are_told_who_joins_and_leaves(wire: Wire, running: RunningBroker) -> None:
    heard: asyncio.Queue[Command] = asyncio.Queue()
    host, _, port = running.broker.rpartition(":")
    other = Wire(
        await Caller.connect(
            host, int(port), TIMEOUT_S, on_request=lambda _, command: heard.put_nowait(command)
        )
    )

    async def told() -> tuple[int, str, bool]:
        command = await asyncio.wait_for(heard.get(), TIMEOUT_S)
        return command.code, command.ext["consumerGroup"], command.is_oneway

    notice = (Code.NOTIFY_CONSUMER_IDS_CHANGED, "AdminTold", True)
    await join(other, "10.0.0.2@stays", "AdminTold", "AdminBeat")
    assert await told() == notice
    await join(wire, "10.0.0.1@goes", "AdminTold", "AdminBeat")
    assert await told() == notice
    assert sorted(await members(other, "AdminTold")) == ["10.0.0.1@goes", "10.0.0.2@stays"]
    # Its connection stays open, so that nothing but the request says that it has gone.
    ext = {"clientID": "10.0.0.1@goes", "consumerGroup": "AdminTold"}
    await done(wire, Code.UNREGISTER_CLIENT, ext)
    assert await told() == notice
    assert await members(other, "AdminTold") == ["10.0.0.2@stays"]
    other.caller.close()


async def test_progress_of_each_group_is_told(wire: Wire) -> None:
    for _ in range(3):
        await wire.send("AdminProgress")
    await wire.pull("AdminProgress", consumerGroup="AdminReaders")
    where = {"consumerGroup": "AdminReaders", "topic": "AdminProgress", "queueId": 0}
    await done(wire, Code.UPDATE_CONSUMER_OFFSET, {**where, "commitOffset": 1})
    told = loads((await done(wire, Code.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})).body)
    [stats] = next(one["AdminReaders"] for one in told["consumeStatsList"] if "AdminReaders" in one)
    queues = list(stats["offsetTable"].values())
    assert sum(queue["brokerOffset"] for queue in queues) == 3
    assert sum(queue["consumerOffset"] for queue in queues) == 1
    assert told["totalDiff"] >= 2
    who = await done(wire, Code.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "AdminProgress"})
    assert loads(who.body) == {"groupList": ["AdminReaders"]}


async def test_traffic_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "SAMPLE_S", 0.02)  # what was sent is first seen after ten seconds
    with aerobee.testing.broker() as quick:
        wire = await Wire.to(quick.broker)
        await wire.send("AdminTraffic", b"12345")
        ask = {"statsName": "TOPIC_PUT_NUMS", "statsKey": "AdminTraffic"}
        async with asyncio.timeout(TIMEOUT_S):
            while (answer := await wire.call(Code.VIEW_BROKER_STATS_DATA, ask)).code:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.01)
        told = loads(answer.body)
        assert sorted(told) == ["statsDay", "statsHour", "statsMinute"]
        assert told["statsMinute"]["sum"] == 1
        other = {**ask, "statsName": "NO_SUCH_FIGURE"}
        unknown = await wire.call(Code.VIEW_BROKER_STATS_DATA, other)
        assert unknown.code == ResponseCode.SYSTEM_ERROR
        wire.caller.close()


async def test_settings_are_told(wire: Wire) -> None:
    answer = await done(wire, Code.GET_BROKER_CONFIG)
    settings = dict(line.split("=", 1) for line in answer.body.decode().splitlines())
    assert settings["brokerName"] == "test-broker"
    assert "counter" in json.loads(answer.ext["version"])


async def test_consumers_that_filter_by_tags_pass_the_check(wire: Wire) -> None:
    check = {
        "clientId": "10.0.0.1@check",
        "group": "AdminCheck",
        "subscriptionData": {"topic": "AdminBeat", "subString": "A", "expressionType": "TAG"},
    }
    await done(wire, Code.CHECK_CLIENT_CONFIG, {}, json.dumps(check).encode())


# --- what clients do with names -------------------------------------------------------------------


async def test_traces_of_java_clients_are_taken(wire: Wire) -> None:
    """A producer with message trace sends what it did as ordinary messages to this topic."""
    properties = "KEYS\x01U1\x02WAIT\x01true"
    sent = await wire.send("RMQ_SYS_TRACE_TOPIC", b"Pub\x01", properties=properties)
    assert sent.code == ResponseCode.SUCCESS, sent.remark
    [trace] = decode_records((await wire.pull("RMQ_SYS_TRACE_TOPIC")).body)
    assert (trace.body, trace.keys) == (b"Pub\x01", ("U1",))


async def test_names_of_a_namespace_are_served(wire: Wire) -> None:
    """Clients put a namespace before names, with a percent sign; to a broker it is part of them."""
    await join(wire, "10.0.0.1@space", "space%readers", "space%orders")
    await wire.send("space%orders", b"in it")
    await wire.send("orders", b"outside")
    pulled = await wire.pull("space%orders", consumerGroup="space%readers", sysFlag=0)
    assert [message.body for message in decode_records(pulled.body)] == [b"in it"]
    retry = await wire.pull("%RETRY%space%readers", consumerGroup="space%readers")
    assert retry.code == ResponseCode.PULL_NOT_FOUND
