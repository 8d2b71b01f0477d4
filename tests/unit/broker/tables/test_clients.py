"""Members of groups, notifications of changes, and how members leave."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from aerobee.broker.broker_stats import Tally
from aerobee.broker.requests.clients.heartbeats import ClientRequests
from aerobee.broker.tables.client_sizes import stated_bytes, subscription_bytes, texts_bytes
from aerobee.broker.tables.clients import ClientTable, ConsumerGroup, GroupMember, Heartbeat
from aerobee.broker.tables.groups import GroupConfig
from aerobee.protocol.bodies.clients import ConsumerData, HeartbeatData
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.remoting.turns import Turns
from tests.inline_loop import drive
from tests.unit.broker.tables.clients_support import (
    BODIES,
    Clock,
    Endless,
    Peer,
    Tables,
    answer,
    heartbeat_body,
    no_pulls_held,
    request,
)
from tests.unit.remoting.conftest import StepClock, eventually


class Settings:
    notify_consumer_ids_changed = True
    lmq_enabled = False
    property_filter = True


class Broker:
    """The handlers under test around real tables."""

    def __init__(
        self, folder: Path, *, auto_create: bool = True, turns: Turns | None = None
    ) -> None:
        self.tables = Tables(folder, auto_create=auto_create)
        self.settings = Settings()
        self.warnings = self.tables.warnings
        self.clients = self.tables.clients
        self.requests = ClientRequests(
            self.settings, self.tables, no_pulls_held(), turns=turns or Endless(), bodies=BODIES
        )

    def beat(self, peer: Peer, client_id: str, version: int = 1, **groups: dict[str, str]) -> None:
        body = heartbeat_body(client_id, groups, version=version)
        data = self.requests.heartbeat(peer.connection, request(RequestCode.HEART_BEAT, body=body))
        assert answer(data).code == ResponseCode.SUCCESS

    def ids(self, group: str) -> list[str]:
        found = self.clients.consumer_group(group)
        return found.client_ids() if found else []

    def in_force(self, group: str) -> set[str]:
        """The tags of topic T that count for who is no member."""
        found = self.clients.subscription(group, "T")
        assert found is not None
        return set(found.tags)

    def wanted(self, peer: Peer) -> set[str]:
        """The tags of topic T in group g that count for who pulls there."""
        live = self.clients.consumer_group("g")
        assert live is not None
        found = live.wanted_by(peer.connection, "T")
        assert found is not None
        return set(found.tags)


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return Broker(tmp_path)


def test_a_new_member_is_told_to_all_members_and_itself(broker: Broker) -> None:
    first, second = Peer(1), Peer(2)
    broker.beat(first, "c1", g={"T": "*"})
    assert first.notified() == ["g"]
    broker.beat(second, "c2", g={"T": "*"})
    assert (first.notified(), second.notified()) == (["g"], ["g"])
    assert broker.ids("g") == ["c1", "c2"]


def test_a_group_too_long_for_a_retry_topic_is_warned_of_once_while_it_is_there(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    group = "G" * 121
    for client in ("c1", "c2"):
        broker.beat(Peer(int(client[1])), client, **{group: {"T": "*", f"%RETRY%{group}": "*"}})
    assert broker.ids(group) == ["c1", "c2"]
    assert broker.warnings == {"without_retries": 1}
    [line] = [line for line in caplog.messages if "without retries" in line]
    assert "would have 128 characters, the limit of a topic is 127" in line
    assert f"%RETRY%{group}" not in broker.tables.topics


def test_a_heartbeat_that_changes_nothing_tells_nobody(broker: Broker) -> None:
    peer = Peer(1)
    broker.beat(peer, "c1", g={"T": "*"})
    peer.notified()
    broker.beat(peer, "c1", g={"T": "*"})
    broker.beat(peer, "c1", 2, g={"T": "A"})
    assert peer.notified() == []


def test_a_topic_that_comes_or_goes_is_told(broker: Broker) -> None:
    peer = Peer(1)
    broker.beat(peer, "c1", g={"T": "*"})
    peer.notified()
    broker.beat(peer, "c1", g={"T": "*", "U": "*"})
    assert peer.notified() == ["g"]
    broker.beat(peer, "c1", g={"U": "*"})
    assert peer.notified() == ["g"]
    assert broker.clients.subscription("g", "T") is None
    assert broker.clients.groups_subscribed("U") == ["g"]


def test_the_next_heartbeat_of_a_member_counts_whatever_its_clock_says(broker: Broker) -> None:
    peer = Peer(1)
    broker.beat(peer, "c1", 1_000, g={"T": "A"})
    broker.beat(peer, "c1", 5, g={"T": "B"})
    assert broker.in_force("g") == {"B"}
    broker.beat(peer, "c1", 5, g={"T": "A"})
    assert broker.in_force("g") == {"A"}


def test_a_new_member_whose_clock_is_behind_is_heard(broker: Broker) -> None:
    first, second = Peer(1), Peer(2)
    broker.beat(first, "c1", 1_000, g={"T": "A"})
    broker.beat(second, "c2", 5, g={"T": "B"})
    assert broker.in_force("g") == {"B"}
    # A member that repeats its statement changes nothing: members do not take turns.
    broker.beat(first, "c1", 1_000, g={"T": "A"})
    assert broker.in_force("g") == {"B"}


def test_members_that_differ_have_each_what_it_states(broker: Broker) -> None:
    first, second, stranger = Peer(1), Peer(2), Peer(3)
    broker.beat(first, "c1", 1_000, g={"T": "A", "U": "*"})
    broker.beat(second, "c2", 5, g={"T": "B", "V": "*"})
    assert broker.wanted(first) == {"A"}
    assert broker.wanted(second) == broker.wanted(stranger) == {"B"}
    # Topics that one of them states are the group's.
    assert sorted(broker.clients.consumer_group("g").subscriptions) == ["T", "U", "V"]
    first.notified(), second.notified()
    broker.beat(first, "c1", 1_000, g={"T": "A", "U": "*"})
    assert first.notified() == second.notified() == []


def test_what_the_last_one_has_taken_with_it_does_not_count_any_more(broker: Broker) -> None:
    first, second = Peer(1), Peer(2)
    broker.beat(first, "c1", 5, g={"T": "A"})
    broker.beat(second, "c2", 1_000, g={"T": "B", "U": "*"})
    broker.requests.connection_closed(second.connection)
    assert broker.in_force("g") == {"A"}
    assert list(broker.clients.consumer_group("g").subscriptions) == ["T"]


def test_a_version_never_falls_as_long_as_somebody_says_the_same(broker: Broker) -> None:
    """A client that has lost its connection pulls on, and is not told that it is too new."""
    first, second = Peer(1), Peer(2)
    broker.beat(first, "c1", 5, g={"T": "A"})
    broker.beat(second, "c2", 1_000, g={"T": "A"})
    broker.requests.connection_closed(second.connection)
    found = broker.clients.subscription("g", "T")
    assert found is not None
    assert (found.tags, found.version) == (frozenset({"A"}), 1_000)


def test_heartbeats_that_repeat_leave_the_object_that_routes_are_found_by(broker: Broker) -> None:
    first, second = Peer(1), Peer(2)
    broker.beat(first, "c1", 5, g={"T": "A"})
    broker.beat(second, "c2", 7, g={"T": "A"})
    found = broker.clients.subscription("g", "T")
    broker.beat(first, "c1", 5, g={"T": "A"})
    broker.beat(second, "c2", 7, g={"T": "A"})
    assert broker.clients.subscription("g", "T") is found


def test_a_heartbeat_makes_group_and_retry_topic(broker: Broker) -> None:
    broker.beat(Peer(1), "c1", g={"T": "*"})
    assert broker.tables.groups.find("g") == GroupConfig("g")
    retry = broker.tables.topics.get("%RETRY%g")
    assert retry is not None
    assert (retry.read_queues, retry.write_queues, retry.perm) == (1, 1, 6)


@pytest.mark.parametrize("enabled", [True, False])
def test_a_heartbeat_makes_no_retry_topic_for_a_light_group(broker: Broker, enabled: bool) -> None:
    broker.settings.lmq_enabled = enabled
    broker.beat(Peer(1), "c1", **{"%LMQ%g": {"T": "*"}})
    assert (broker.tables.topics.get("%RETRY%%LMQ%g") is None) is enabled
    assert broker.ids("%LMQ%g") == ["c1"]


def test_without_auto_creation_a_group_is_live_but_not_made(tmp_path: Path) -> None:
    broker = Broker(tmp_path, auto_create=False)
    broker.beat(Peer(1), "c1", g={"T": "*"})
    assert broker.tables.groups.find("g") is None
    assert broker.tables.topics.get("%RETRY%g") is None
    assert broker.ids("g") == ["c1"]


@pytest.mark.parametrize("name", ["../g", "g.g", "g/g", ""])
def test_an_illegal_name_anywhere_changes_nothing(broker: Broker, name: str) -> None:
    for body in (
        heartbeat_body("c1", {"good": {"T": "*"}, name: {"T": "*"}}),
        heartbeat_body("c1", {"good": {name: "*"}}),
        heartbeat_body("c1", {"good": {"T": "*"}}, [name]),
    ):
        with pytest.raises(BadRequest):
            drive(broker.requests.heartbeat(Peer(1).connection, request(34, body=body)))
    assert broker.tables.groups.find("good") is None
    assert len(broker.clients) == 0


def test_an_empty_heartbeat_is_refused(broker: Broker) -> None:
    with pytest.raises(BadRequest) as caught:
        drive(broker.requests.heartbeat(Peer(1).connection, request(34)))
    assert caught.value.code == ResponseCode.SYSTEM_ERROR


def test_unregistering_tells_the_rest_and_never_fails(broker: Broker) -> None:
    first, second = Peer(1), Peer(2)
    broker.beat(first, "c1", g={"T": "*"})
    broker.beat(second, "c2", g={"T": "*"})
    first.notified()
    second.notified()
    leave = request(35, {"clientID": "c1", "consumerGroup": "g", "producerGroup": "p"})
    for _ in range(2):
        reply = answer(broker.requests.unregister(first.connection, leave))
        assert (reply.code, reply.ext) == (ResponseCode.SUCCESS, {})
    assert broker.ids("g") == ["c2"]
    assert (first.notified(), second.notified()) == ([], ["g"])


def test_a_closed_connection_leaves_all_groups(broker: Broker) -> None:
    first, second = Peer(1), Peer(2)
    broker.beat(first, "c1", g={"T": "*"}, h={"T": "*"})
    broker.beat(second, "c2", g={"T": "*"})
    second.notified()
    broker.requests.connection_closed(first.connection)
    assert (broker.ids("g"), broker.ids("h")) == (["c2"], [])
    assert second.notified() == ["g"]
    assert broker.clients.consumer_group("h") is None
    assert len(broker.clients) == 1
    broker.requests.connection_closed(first.connection)


async def test_a_connection_in_thousands_of_groups_leaves_them_in_slices(tmp_path: Path) -> None:
    clock = StepClock()
    broker = Broker(tmp_path, turns=Turns(clock))
    peer = Peer(1)
    names = [f"g{number}" for number in range(300)]
    data = HeartbeatData("c1", (), tuple(map(ConsumerData, names)))
    drive(broker.clients.heartbeat(Heartbeat(peer.connection, "JAVA", 397, data)))
    left: list[int] = []

    def look() -> None:
        left.append(len(broker.clients.consumer_groups()))
        if left[-1]:
            asyncio.get_running_loop().call_soon(look)

    broker.requests.connection_closed(peer.connection)
    look()
    await eventually(lambda: left[-1] == 0)
    assert max(before - later for before, later in itertools.pairwise(left)) <= 22
    assert len(broker.clients) == 0


def test_silent_members_are_dropped_and_their_connection_closed(broker: Broker) -> None:
    silent, lively = Peer(1), Peer(2)
    broker.beat(silent, "c1", g={"T": "*"})
    broker.beat(lively, "c2", g={"T": "*"})
    lively.notified()
    broker.tables.clock.now += 100
    broker.beat(lively, "c2", g={"T": "*"})
    broker.requests.expire()
    assert broker.ids("g") == ["c1", "c2"]
    broker.tables.clock.now += 21
    broker.requests.expire()
    assert broker.ids("g") == ["c2"]
    assert silent.closed
    assert not lively.closed
    assert lively.notified() == ["g"]


def test_silence_is_looked_for_a_connection_a_step(broker: Broker) -> None:
    peers = [Peer(port) for port in range(1, 6)]
    for peer in peers:
        broker.beat(peer, f"c{peer.connection.peer[1]}", g={"T": "*"})
    broker.tables.clock.now += 130
    steps = broker.clients.expire()
    for left in (4, 3):
        group = next(steps)
        assert group is not None
        assert group.name == "g"
        assert next(steps) is None
        assert len(broker.clients) == left
    # One client leaves by itself meanwhile: it is not silent, and may go on with something else.
    broker.clients.unregister(peers[2].connection, None, "g")
    assert [step.name for step in steps if step is not None] == ["g", "g"]
    assert [peer.closed for peer in peers] == [True, True, False, True, True]


def test_silence_is_looked_for_some_groups_of_one_connection_a_step(broker: Broker) -> None:
    peer = Peer(1)
    groups = {f"g{number}": {"T": "*"} for number in range(1_000)}
    broker.beat(peer, "c1", **groups)
    lively = list(broker.clients.expire())
    assert lively == [None] * 2
    broker.tables.clock.now += 130
    steps = broker.clients.expire()
    found = [next(steps) for _ in range(600)]
    # It leaves some by itself that were not looked at yet, and is looked at further.
    broker.clients.unregister(peer.connection, None, next(iter(set(groups) - _names(found))))
    found += list(steps)
    assert len(_names(found)) == 999
    assert peer.closed


def _names(steps: Iterable[ConsumerGroup | None]) -> set[str]:
    return {step.name for step in steps if step is not None}


def test_a_group_left_silent_goes_without_its_connection(broker: Broker) -> None:
    peer = Peer(1)
    broker.beat(peer, "c1", g={"T": "*"}, h={"T": "*"})
    broker.tables.clock.now += 100
    broker.beat(peer, "c1", h={"T": "*"})
    broker.tables.clock.now += 50
    broker.requests.expire()
    assert (broker.ids("g"), broker.ids("h")) == ([], ["c1"])
    assert not peer.closed


def test_notifications_follow_both_switches(broker: Broker) -> None:
    peer, other = Peer(1), Peer(2)
    broker.tables.groups.update(GroupConfig("g", notify_consumer_ids_changed_enable=False)).result()
    broker.beat(peer, "c1", g={"T": "*"})
    broker.beat(other, "c2", g={"T": "*"})
    assert peer.notified() == []
    # The group's own switch does not count when a connection closes (protocol/WIRE.md 3.8).
    broker.requests.connection_closed(other.connection)
    assert peer.notified() == ["g"]
    broker.settings.notify_consumer_ids_changed = False
    broker.beat(peer, "c1", h={"T": "*"})
    assert peer.notified() == []


def test_the_list_of_nobody_is_an_error(broker: Broker) -> None:
    ask = request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "g"})
    with pytest.raises(BadRequest, match="no consumer for this group, g") as caught:
        drive(broker.requests.consumer_list(Peer(1).connection, ask))
    assert caught.value.code == ResponseCode.SYSTEM_ERROR
    broker.beat(Peer(1), "c1", g={"T": "*"})
    reply = answer(broker.requests.consumer_list(Peer(9).connection, ask))
    assert reply.body == b'{"consumerIdList":["c1"]}'


def test_one_client_on_two_connections_is_one_member(broker: Broker) -> None:
    broker.beat(Peer(1), "c1", g={"T": "*"})
    broker.beat(Peer(2), "c1", g={"T": "*"})
    assert broker.ids("g") == ["c1"]


def test_two_programs_with_one_id_are_warned_of(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = Peer(1), Peer(2)
    broker.beat(first, "c1", g={"T": "*"})
    broker.beat(second, "c1", g={"T": "*"})  # may be the same client, reconnected
    assert broker.warnings == {}
    broker.tables.clock.now += 30
    broker.beat(second, "c1", g={"T": "*"})
    assert broker.warnings == {}
    broker.tables.clock.now += 1
    with caplog.at_level(logging.WARNING):
        broker.beat(first, "c1", g={"T": "*"})  # still there: two of them
    assert broker.warnings == {"shared_client_id": 1}
    assert "share one id" in caplog.text


def test_members_that_subscribe_differently_are_warned_of(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = Peer(1), Peer(2)
    broker.beat(first, "c1", 1, g={"T": "A"})
    with caplog.at_level(logging.WARNING):
        broker.beat(second, "c2", 2, g={"T": "B"})
    assert broker.warnings == {"mixed_subscriptions": 1}
    assert "subscribe differently" in caplog.text
    broker.beat(second, "c2", 2, g={"T": "B"})
    assert broker.warnings == {"mixed_subscriptions": 1}
    broker.beat(second, "c2", 3, g={"T": "A"})
    assert broker.warnings == {"mixed_subscriptions": 1}


def test_producers_are_known_until_they_leave(broker: Broker) -> None:
    peer = Peer(1)
    body = heartbeat_body("c1", {}, ["p", "CLIENT_INNER_PRODUCER"])
    drive(broker.requests.heartbeat(peer.connection, request(34, body=body)))
    [member] = broker.clients.producers("p")
    assert (member.client_id, member.address, member.language) == ("c1", "192.0.2.1:1", "PYTHON")
    assert peer.received == []
    leave = request(35, {"clientID": "c1", "producerGroup": "p"})
    broker.requests.unregister(peer.connection, leave)
    assert broker.clients.producers("p") == []
    broker.requests.connection_closed(peer.connection)
    assert list(broker.clients.producer_groups()) == []


def test_nobody_takes_over_the_client_id_of_another_account(broker: Broker) -> None:
    def beat(port: int, account: str, peer: Peer | None = None) -> Peer:
        peer = peer or Peer(port)
        data = HeartbeatData.parse(heartbeat_body("c1", {}, ["p"]))
        drive(broker.clients.heartbeat(Heartbeat(peer.connection, "JAVA", 409, data, account)))
        return peer

    def peer_of_id() -> tuple[str, int] | None:
        member = broker.clients.producer("c1")
        return member and member.connection.peer

    first, stranger = beat(1, "owner"), beat(2, "stranger")
    assert peer_of_id() == first.peer
    # Its own new connection is the one to talk to, whoever else came meanwhile.
    again = beat(3, "owner")
    assert peer_of_id() == again.peer
    broker.requests.connection_closed(first.connection)
    beat(2, "stranger", stranger)
    assert peer_of_id() == again.peer
    # A connection that goes on with another account is another's.
    beat(3, "somebody", again)
    assert peer_of_id() == again.peer
    broker.requests.connection_closed(again.connection)
    assert peer_of_id() is None
    beat(2, "stranger", stranger)
    assert peer_of_id() == stranger.peer
    broker.requests.connection_closed(stranger.connection)
    assert peer_of_id() is None
    assert not broker.clients._producers_by_id


def _check_body(kind: str, expression: str) -> bytes:
    subscription = {"topic": "T", "subString": expression, "expressionType": kind}
    return json.dumps({"subscriptionData": subscription}).encode()


@pytest.mark.parametrize(
    "body", [b"", _check_body("TAG", "A"), _check_body("", "A"), _check_body("SQL92", "a > 1")]
)
def test_what_this_broker_can_filter_by_passes_the_client_check(
    broker: Broker, body: bytes
) -> None:
    ask = request(RequestCode.CHECK_CLIENT_CONFIG, body=body)
    assert answer(broker.requests.check_config(Peer(1).connection, ask)).code == 0


@pytest.mark.parametrize(
    ("kind", "expression", "why"),
    [
        ("SQL92", "a > ", "at the end: the expression ends where"),
        ("SQL92", "a > 'x'", r"at character 5 \("),
        ("SQL92", "", "is empty"),
        ("SQL92", "a = 1 " + "x" * 8192, "has 8198 characters, the limit is 8192 .*max_sql_chars"),
        ("SQL92", "(" * 70 + "a = 1" + ")" * 70, "has 72 levels .*limit is 64 .*max_sql_depth"),
        (
            *("SQL92", "(a = 1 OR " * 70 + "a = 1" + ")" * 70),
            "has more than 100 levels .*limit is 64 .*max_sql_depth",
        ),
        ("SQL92", " OR ".join(["a = 1"] * 200), "601 operands .*limit is 512 .*max_sql_nodes"),
        ("CEL", "a > 1", "no expression type 'CEL'; it is TAG or SQL92"),
    ],
)
def test_the_client_check_says_what_is_wrong_with_an_expression(
    broker: Broker, kind: str, expression: str, why: str
) -> None:
    ask = request(RequestCode.CHECK_CLIENT_CONFIG, body=_check_body(kind, expression))
    # A refused statement is remembered, and refused alike.
    for _ in range(2):
        with pytest.raises(BadRequest, match=why) as caught:
            drive(broker.requests.check_config(Peer(1).connection, ask))
        assert caught.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


def test_the_client_check_refuses_expressions_where_they_are_not_served(broker: Broker) -> None:
    broker.settings.property_filter = False
    ask = request(RequestCode.CHECK_CLIENT_CONFIG, body=_check_body("SQL92", "a > 1"))
    with pytest.raises(BadRequest, match=r"does not support .* SQL92; enableProp") as caught:
        drive(broker.requests.check_config(Peer(1).connection, ask))
    assert caught.value.code == ResponseCode.SYSTEM_ERROR


def _sql_beat(count: int) -> bytes:
    said = [
        {"topic": f"T{n}", "subString": "a > 1", "expressionType": "SQL92", "subVersion": 1}
        for n in range(count)
    ]
    consumer = {"groupName": "g", "subscriptionDataSet": said}
    return json.dumps({"clientID": "c1", "consumerDataSet": [consumer]}).encode()


def test_the_filters_of_a_group_die_with_its_last_member(broker: Broker) -> None:
    first, second = Peer(1), Peer(2)
    for peer in (first, second):
        drive(broker.requests.heartbeat(peer.connection, request(34, body=_sql_beat(2))))
    filters = broker.tables.filters
    broker.requests.connection_closed(first.connection)
    assert [one.dead_ms for n in range(2) if (one := filters.get(f"T{n}", "g"))] == [0, 0]
    leave = request(35, {"clientID": "c1", "consumerGroup": "g"})
    broker.requests.unregister(second.connection, leave)
    assert [bool(one.dead_ms) for n in range(2) if (one := filters.get(f"T{n}", "g"))] == [True] * 2


def test_a_client_that_leaves_while_its_filters_are_noted_leaves_none_alive(broker: Broker) -> None:
    peer = Peer(1)
    steps = broker.requests.heartbeat(peer.connection, request(34, body=_sql_beat(20)))
    while broker.tables.filters.get("T0", "g") is None:
        next(steps)
    broker.requests.connection_closed(peer.connection)
    drive(steps)
    found = [broker.tables.filters.get(f"T{n}", "g") for n in range(20)]
    assert [bool(one and one.dead_ms) for one in found] == [True] * 20


def test_the_table_is_bounded() -> None:
    table = ClientTable(cast("Any", Counted(1 << 20)), Clock(), Tally(), limit=3)

    def beat(port: int, *groups: str) -> None:
        body = heartbeat_body("c", {name: {"T": "*"} for name in groups})
        peer = peers.setdefault(port, Peer(port))
        drive(table.heartbeat(Heartbeat(peer.connection, "JAVA", 409, HeartbeatData.parse(body))))

    peers: dict[int, Peer] = {}
    beat(1, "a", "b")
    beat(2, "a")
    beat(1, "a", "b")  # renewing is always possible
    with pytest.raises(BadRequest, match="limit"):
        beat(3, "a")
    list(table.connection_closed(peers[2].connection))
    beat(3, "a")


# --- bytes ----------------------------------------------------------------------------------------


class Counted:
    """A table with a limit of bytes, and its clients."""

    client_expiry_ms = 120_000

    def __init__(self, limit: int) -> None:
        self.clock = Clock()
        self.limit = limit
        self.table = ClientTable(cast("Any", self), self.clock, Tally())
        self.peers: dict[int, Peer] = {}

    def beat(
        self,
        port: int,
        groups: dict[str, dict[str, str]],
        producers: tuple[str, ...] = (),
        *,
        client_id: str = "c",
        version: int = 1,
    ) -> None:
        body = heartbeat_body(client_id, groups, producers, version)
        peer = self.peers.setdefault(port, Peer(port))
        data = HeartbeatData.parse(body)
        drive(self.table.heartbeat(Heartbeat(peer.connection, "JAVA", 409, data)))

    @property
    def client_bytes(self) -> int:
        return self.limit

    def close(self, port: int) -> None:
        list(self.table.connection_closed(self.peers.pop(port).connection))

    def held(self) -> int:
        """The bytes held, counted anew."""
        table, total = self.table, 0
        for group in table.consumer_groups():
            total += texts_bytes((group.name,))
            topics = group.statements.topics.values()
            stated = [one.subscription for topic in topics for one in topic.by_text.values()]
            total += sum(map(subscription_bytes, stated))
            total += sum(self._own(group.name, member) for member in group.members.values())
        for name, members in table.producer_groups():
            total += sum(self._own(name, member) for member in members)
        return total

    def _own(self, name: str, member: GroupMember) -> int:
        texts = [texts_bytes((text,)) for text in (name, member.client_id, member.language)]
        return sum(texts) + stated_bytes(member.subscriptions)


def test_bytes_of_clients_are_counted_as_they_come_change_and_go() -> None:
    random, world = Random(11), Counted(1 << 30)
    most = 0
    for turn in range(2_000):
        port = random.randrange(6)
        action = random.random()
        world.clock.now += 1
        if action < 0.7:
            groups = {
                f"g{number}": {
                    f"T{random.randrange(9)}": random.choice(("*", "a||b", "\u4e2d||x", "a"))
                    for _ in range(random.randrange(5))
                }
                for number in random.sample(range(8), 3)
            }
            producers = tuple(f"p{number}" for number in random.sample(range(4), 2))
            client_id = f"c{random.choice((1, 22, 333))}"
            world.beat(
                port, groups, producers, client_id=client_id, version=random.randrange(turn + 1)
            )
        elif port in world.peers and action < 0.85:
            peer = world.peers[port].connection
            world.table.unregister(peer, f"p{random.randrange(4)}", f"g{random.randrange(8)}")
        elif port in world.peers and action < 0.95:
            world.close(port)
        elif action > 0.98:
            world.clock.now += 100
            list(world.table.expire())
        assert world.table.bytes == world.held()
        most = max(most, world.table.bytes)
        check_ids(world.table)
    assert most > 10_000
    for port in list(world.peers):
        world.close(port)
    assert world.table.bytes == world.held() == 0
    check_ids(world.table)


def check_ids(table: ClientTable) -> None:
    """A producer is found by its client id exactly as long as it is in a group under that id."""
    live = [member for _, members in table.producer_groups() for member in members]
    for client_id in ("c1", "c22", "c333"):
        with_id = [member for member in live if member.client_id == client_id]
        found = table.producer(client_id)
        assert found in with_id if with_id else found is None
    assert sum(map(len, table._producers_by_id.values())) == len(live)


def test_what_clients_say_is_bounded_in_bytes() -> None:
    world = Counted(1 << 20)
    tags = "||".join(f"tag{number:09}" for number in range(1_000))
    refused = most = 0
    for port in range(10, 30):
        if world.table.bytes + most > world.limit:
            with pytest.raises(BadRequest, match=r"limits\.client_bytes") as caught:
                world.beat(port, {f"g{port}": {"T": tags}})
            assert caught.value.code == 1
            assert world.table.consumer_group(f"g{port}") is None
            refused += 1
            continue
        before = world.table.bytes
        world.beat(port, {f"g{port}": {"T": tags}})
        most = max(most, world.table.bytes - before)
        assert world.table.bytes <= world.limit
    assert 0 < refused < 20
    taken = 20 - refused
    assert len(world.table) == taken
    world.limit = world.table.bytes
    world.beat(10, {"g10": {"T": tags}})  # renewing is always possible
    world.beat(10, {"g10": {"T": tags}}, version=2)
    with pytest.raises(BadRequest, match=r"limits\.client_bytes"):
        world.beat(10, {"g10": {"T": tags, "U": "*"}}, version=2)
    world.beat(10, {"g10": {"U": "*"}}, version=2)
    world.beat(10, {"g10": {"T": tags}}, version=3)
    world.limit = 0  # lowered below what there is
    world.beat(10, {"g10": {"U": "*"}}, version=4)
    with pytest.raises(BadRequest, match=r"limits\.client_bytes"):
        world.beat(99, {}, ("p",))
    world.close(11)
    world.limit = 1 << 20
    world.beat(99, {"g99": {"T": tags}}, ("p",))
