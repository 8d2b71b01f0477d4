"""Which topics other brokers take, by the routes of a name server."""

from __future__ import annotations

import pytest

from aerobee.broker.cluster.registration.takers import find_taken
from aerobee.protocol.bodies.routes import BrokerRoute, QueueRoute, TopicRoute
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.frames.command import Command, make_request
from aerobee.remoting.errors import RemotingTimeout

MASTERS = (BrokerRoute("a", "c", {0: "1:1"}), BrokerRoute("b", "c", {0: "2:1", 1: "3:1"}))


@pytest.mark.parametrize(
    ("queues", "brokers", "expected"),
    [
        ((QueueRoute("b", 4, 4, 6),), MASTERS, {"b"}),
        ((QueueRoute("a", 4, 4, 6),), MASTERS, set()),
        ((QueueRoute("b", 4, 4, 4),), MASTERS, set()),
        ((QueueRoute("b", 4, 0, 6),), MASTERS, set()),
        ((QueueRoute("b", 4, 4, 6),), (BrokerRoute("b", "c", {1: "3:1"}),), set()),
    ],
    ids=["writable", "its own", "not writable", "no queue", "slaves alone"],
)
def test_a_topic_is_taken_where_another_master_may_be_written(queues, brokers, expected) -> None:
    assert TopicRoute(queues, brokers).writable_at() - {"a"} == expected


class Scripted:
    """A name server with other masters, whose routes cannot be read."""

    def __init__(self, brokers: bytes, route: tuple[int, bytes]) -> None:
        self._brokers, self._route = brokers, route
        self.asked = 0

    async def call(self, command: Command, timeout_s: float) -> Command:
        if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            return make_request(0, {}, self._brokers)
        self.asked += 1
        code, body = self._route
        if code < 0:
            raise RemotingTimeout("no answer")
        return make_request(code, {}, body)


TWO = b'{"brokerAddrTable":{"b":{"brokerName":"b","cluster":"c","brokerAddrs":{0:"2:1"}}},"clusterAddrTable":{"c":["b"]}}'  # noqa: E501


async def test_what_cannot_be_read_is_taken_by_nobody() -> None:
    server = Scripted(TWO, (0, b"{no json"))
    assert await find_taken(server, "a", [f"t{n}" for n in range(40)]) == frozenset()
    assert server.asked == 40
    with pytest.raises(RemotingTimeout):
        await find_taken(Scripted(TWO, (-1, b"")), "a", ["t"])


async def test_routes_are_asked_for_only_where_there_is_another_master() -> None:
    server = Scripted(b'{"brokerAddrTable":{},"clusterAddrTable":{}}', (0, b""))
    assert await find_taken(server, "a", ["t"]) == frozenset()
    assert server.asked == 0
