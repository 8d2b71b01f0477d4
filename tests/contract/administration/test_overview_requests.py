"""BROKER_STATUS (31030) and CLIENTS (31032) over a socket, as protocol/WIRE.md 9 has them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from aerobee.protocol.bodies.broker_status import BrokerStatus, ConnectedClient, HeldQueue
from aerobee.protocol.bodies.clients import ConsumerData, HeartbeatData
from aerobee.protocol.codes import RequestCode as Code
from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.filters.subscription import Subscription
from tests.contract.conftest import Wire

WIRE_PAGE = Path(__file__).parents[3] / "protocol" / "WIRE.md"


async def told(wire: Wire, code: Code, **fields: str) -> dict[str, Any]:
    answer = await wire.call(code, fields)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    found: dict[str, Any] = json.loads(answer.body)
    return found


@pytest.mark.parametrize(
    ("code", "parts"), [(31030, (BrokerStatus,)), (31032, (ConnectedClient, HeldQueue))]
)
def test_the_page_has_each_member(code: int, parts: tuple[type, ...]) -> None:
    (row,) = [line for line in WIRE_PAGE.read_text().splitlines() if line.startswith(f"| {code} ")]
    members = {name for part in parts for name in part.__struct_encode_fields__}  # type: ignore[attr-defined]
    assert members - set(re.findall(r"\w+", row)) == set()


async def test_a_broker_tells_its_state_and_that_of_a_topic(wire: Wire) -> None:
    found = await told(wire, Code.BROKER_STATUS, topic="nowhere")
    assert (found["ready"], found["permission"], found["role"]) == (True, 6, "master")
    assert (found["topic"]["exists"], found["topic"]["perm"]) == (False, None)
    assert {one["name"] for one in found["checks"]} >= {"store", "registered", "disk"}
    system = await told(wire, Code.BROKER_STATUS, topic="TBW102")
    assert (system["topic"]["exists"], system["topic"]["isSystem"]) == (True, True)
    assert (await told(wire, Code.BROKER_STATUS))["topic"] is None
    illegal = await wire.call(Code.BROKER_STATUS, {"topic": "a b"})
    assert illegal.code == ResponseCode.SYSTEM_ERROR


async def test_connections_are_listed_before_and_after_their_heartbeat(wire: Wire) -> None:
    (before,) = [
        one
        for one in (await told(wire, Code.CLIENTS))["clients"]
        if not one["clientId"] and one["connectedMs"] <= one["lastActiveMs"] + 1000
    ][:1]
    assert (before["producerGroups"], before["consumerGroups"]) == ([], [])
    consumer = ConsumerData("listed", subscriptions=(Subscription("wanted", version=1),))
    beat = HeartbeatData("me@1", ("makers",), (consumer,)).encode()
    assert (await wire.call(Code.HEART_BEAT, body=beat)).code == ResponseCode.SUCCESS
    for fields in (
        {"clientId": "me@1"},
        {"group": "makers"},
        {"group": "listed", "topic": "wanted"},
        {"topic": "wanted", "address": "127.0.0.1"},
    ):
        (client,) = (await told(wire, Code.CLIENTS, **fields))["clients"]
        assert (client["producerGroups"], client["consumerGroups"]) == (["makers"], ["listed"])
        assert client["subscriptions"] is None
    # A producer of a group does not subscribe to anything.
    assert (await told(wire, Code.CLIENTS, group="makers", topic="wanted"))["clients"] == []
    (client,) = (await told(wire, Code.CLIENTS, clientId="me@1", details="true"))["clients"]
    assert client["subscriptions"] == {"listed": {"wanted": "*"}}
    assert (client["pulls"], client["locks"], client["queuesLeftOut"]) == ([], [], 0)
