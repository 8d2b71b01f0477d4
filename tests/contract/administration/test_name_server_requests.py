"""Requests of brokers, clients and administrators to a name server, over real sockets.

Each test registers a broker of its own on its own connection, as a broker does, and asks the name
server that a daemon embeds.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from aerobee.protocol.codes import RequestCode as Code
from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.frames.command import Command
from aerobee.testing import RunningBroker
from tests.contract.conftest import Wire

ADDRESS = "192.0.2.1:10911"
BROKER = {
    "brokerName": "far-away",
    "brokerAddr": ADDRESS,
    "clusterName": "FarCluster",
    "brokerId": "0",
}
VERSION = {"counter": 1, "timestamp": 7}
UNIT, UNIT_SUB = 1, 2


class Desk(Wire):
    """A connection to the name server."""

    async def done(self, code: int, ext: dict[str, Any] | None = None, body: bytes = b"") -> Any:
        """The answer of a call that must succeed: its JSON, or its fields if it has no body."""
        answer = await self.call(code, ext, body)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return json.loads(answer.body) if answer.body else answer.ext

    async def register(self, **topics: int) -> None:
        """The broker, with topics by name and their flags of units."""
        table = {
            name: {"topicName": name, "readQueueNums": 2, "writeQueueNums": 2, "topicSysFlag": flag}
            for name, flag in topics.items()
        }
        wrapper = {"dataVersion": VERSION, "topicConfigTable": table}
        body = {"topicConfigSerializeWrapper": wrapper, "filterServerList": []}
        header = {**BROKER, "haServerAddr": ""}
        await self.done(Code.REGISTER_BROKER, header, json.dumps(body).encode())

    async def permissions(self, topic: str) -> list[int]:
        route = await self.done(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        return [queue["perm"] for queue in route["queueDatas"]]

    async def topics(self, code: int, ext: dict[str, Any] | None = None) -> set[str]:
        return set((await self.done(code, ext))["topicList"])


@pytest.fixture
async def desk(running: RunningBroker) -> AsyncIterator[Desk]:
    connection = await Desk.to(running.name_server)
    assert isinstance(connection, Desk)
    yield connection
    await connection.call(Code.UNREGISTER_BROKER, BROKER)
    connection.caller.close()


def refused(answer: Command, code: int) -> None:
    assert answer.code == code, answer.remark


async def test_a_broker_registers_and_leaves(desk: Desk) -> None:
    changed = await desk.done(Code.QUERY_DATA_VERSION, BROKER, json.dumps(VERSION).encode())
    assert changed == {"changed": "true"}
    await desk.register(FarTopic=0)
    known = await desk.call(Code.QUERY_DATA_VERSION, BROKER, json.dumps(VERSION).encode())
    assert known.ext == {"changed": "false"}
    route = await desk.done(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "FarTopic"})
    [broker] = route["brokerDatas"]
    assert (broker["brokerName"], broker["brokerAddrs"]) == ("far-away", {"0": ADDRESS})
    cluster = await desk.done(Code.GET_BROKER_CLUSTER_INFO)
    assert cluster["clusterAddrTable"]["FarCluster"] == ["far-away"]
    await desk.done(Code.UNREGISTER_BROKER, BROKER)
    cluster = await desk.done(Code.GET_BROKER_CLUSTER_INFO)
    assert "FarCluster" not in cluster["clusterAddrTable"]
    gone = await desk.call(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "FarTopic"})
    refused(gone, ResponseCode.TOPIC_NOT_EXIST)


async def test_write_permission_is_taken_and_given(desk: Desk) -> None:
    await desk.register(FarTopic=0, FarOther=0)
    name = {"brokerName": "far-away"}
    assert await desk.done(Code.WIPE_WRITE_PERM_OF_BROKER, name) == {"wipeTopicCount": "2"}
    assert await desk.permissions("FarTopic") == [4]
    assert await desk.done(Code.ADD_WRITE_PERM_OF_BROKER, name) == {"addTopicCount": "2"}
    assert await desk.permissions("FarTopic") == [6]


async def test_topics_are_listed_and_forgotten(desk: Desk) -> None:
    await desk.register(FarTopic=0, FarOther=0)
    assert {"FarTopic", "FarOther", "TBW102"} <= await desk.topics(
        Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
    )
    cluster = {"cluster": "FarCluster"}
    assert await desk.topics(Code.GET_TOPICS_BY_CLUSTER, cluster) == {"FarTopic", "FarOther"}
    system = await desk.done(Code.GET_SYSTEM_TOPIC_LIST_FROM_NS)
    assert {"FarCluster", "far-away", "test-broker"} <= set(system["topicList"])
    assert ":" in system["brokerAddr"]
    await desk.done(Code.DELETE_TOPIC_IN_NAMESRV, {"topic": "FarOther"})
    assert await desk.topics(Code.GET_TOPICS_BY_CLUSTER, cluster) == {"FarTopic"}


async def test_topics_of_units_are_listed(desk: Desk) -> None:
    await desk.register(FarPlain=0, FarUnit=UNIT, FarSub=UNIT_SUB, FarBoth=UNIT | UNIT_SUB)
    assert await desk.topics(Code.GET_UNIT_TOPIC_LIST) == {"FarUnit", "FarBoth"}
    assert await desk.topics(Code.GET_HAS_UNIT_SUB_TOPIC_LIST) == {"FarSub", "FarBoth"}
    assert await desk.topics(Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST) == {"FarSub"}


async def test_the_key_value_table_is_kept(desk: Desk) -> None:
    key = {"namespace": "Far", "key": "k"}
    refused(await desk.call(Code.GET_KV_CONFIG, key), ResponseCode.QUERY_NOT_FOUND)
    await desk.done(Code.PUT_KV_CONFIG, {**key, "value": "v 1"})
    assert await desk.done(Code.GET_KV_CONFIG, key) == {"value": "v 1"}
    table = await desk.done(Code.GET_KVLIST_BY_NAMESPACE, {"namespace": "Far"})
    assert table == {"table": {"k": "v 1"}}
    await desk.done(Code.DELETE_KV_CONFIG, key)
    refused(await desk.call(Code.GET_KV_CONFIG, key), ResponseCode.QUERY_NOT_FOUND)


async def test_its_settings_are_told_and_never_changed(desk: Desk) -> None:
    told = await desk.call(Code.GET_NAMESRV_CONFIG)
    settings = dict(line.split("=", 1) for line in told.body.decode().splitlines())
    assert settings["listenPort"] == str(desk.caller.peer[1])
    answer = await desk.call(Code.UPDATE_NAMESRV_CONFIG, {}, b"listenPort=1\n")
    refused(answer, ResponseCode.NO_PERMISSION)
    assert (await desk.call(Code.GET_NAMESRV_CONFIG)).body == told.body
