"""Telling the members of a group that it changed: in slices, and folded."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Generator
from pathlib import Path

import pytest

from aerobee.broker.requests.clients import member_lists
from aerobee.broker.requests.clients.member_lists import MemberLists
from aerobee.broker.requests.clients.member_notifications import Notifications
from aerobee.broker.tables.clients import ConsumerGroup, Heartbeat
from aerobee.protocol.bodies.clients import HeartbeatData, parse_consumer_list
from aerobee.remoting.turns import Turns
from tests.inline_loop import drive
from tests.unit.broker.tables.clients_support import Clock, Endless, Peer, Tables, heartbeat_body
from tests.unit.remoting.conftest import StepClock, eventually

MEMBERS = 300


async def test_toggles_of_a_large_group_are_folded_and_spread(tmp_path: Path) -> None:
    clients = Tables(tmp_path).clients
    peers = [Peer(number) for number in range(1, MEMBERS + 1)]
    for number, peer in enumerate(peers):
        data = HeartbeatData.parse(heartbeat_body(f"c{number}", {"g": {"T": "*"}}))
        drive(clients.heartbeat(Heartbeat(peer.connection, "JAVA", 397, data)))
    notifications = Notifications(clients, Turns(StepClock()))
    told: list[int] = []

    def look() -> None:
        told.append(notifications.sent)
        notifications.look()
        if notifications.sent < 2 * MEMBERS:
            asyncio.get_running_loop().call_soon(look)

    for _ in range(64):
        notifications.group_changed("g")
    look()
    await eventually(lambda: notifications.sent == 2 * MEMBERS)
    await asyncio.sleep(0)
    # The round under way when the other changes came, and one behind it, which has the newest.
    assert notifications.sent == 2 * MEMBERS
    assert notifications.folded == 62
    assert all(peer.notified() == ["g", "g"] for peer in peers)
    assert max(later - before for before, later in itertools.pairwise([0, *told])) <= 22


class Joining:
    """A group that members join singly, and the notifications that they get."""

    def __init__(self, folder: Path, turns: Turns | None = None) -> None:
        self.clients = Tables(folder).clients
        self.peers: list[Peer] = []
        self.clock = StepClock()
        self.notifications = Notifications(self.clients, turns or Turns(self.clock))

    def join(self) -> None:
        peer = Peer(len(self.peers) + 1)
        data = HeartbeatData.parse(heartbeat_body(f"c{len(self.peers)}", {"g": {"T": "*"}}))
        drive(self.clients.heartbeat(Heartbeat(peer.connection, "JAVA", 397, data)))
        self.peers.append(peer)
        self.notifications.group_changed("g")


async def test_thousands_that_join_are_told_in_few_rounds_and_all_of_the_last_change(
    tmp_path: Path,
) -> None:
    group = Joining(tmp_path)
    for _ in range(1000):
        group.join()
    assert group.notifications.sent < 10_000
    before = group.notifications.sent
    group.clock.now += 1.0
    group.notifications.look()
    await eventually(lambda: group.notifications.sent >= before + 1000)
    assert all(peer.notified() for peer in group.peers)


async def test_a_small_group_is_told_of_each_change_at_once(tmp_path: Path) -> None:
    group = Joining(tmp_path, Endless())
    for number in range(1, 33):
        before = group.notifications.sent
        group.join()
        assert group.notifications.sent == before + number


async def test_a_large_group_that_has_rested_is_told_at_once_again(tmp_path: Path) -> None:
    clock = Clock()  # it stands still: a slice has no end
    group = Joining(tmp_path, Turns(clock))
    for _ in range(100):
        group.join()
    assert group.notifications.sent == sum(range(1, 66))
    clock.now += 1.0
    await asyncio.sleep(0)  # another turn
    group.notifications.look()
    assert group.notifications.sent == sum(range(1, 66)) + 100
    clock.now += 1.0
    await asyncio.sleep(0)  # another turn
    group.notifications.look()
    group.notifications.group_changed("g")
    assert group.notifications.sent == sum(range(1, 66)) + 200


def test_the_list_of_a_large_group_is_encoded_once_a_change(tmp_path: Path) -> None:
    group = Joining(tmp_path)
    lists = MemberLists()
    for number in range(1, 121):
        data = HeartbeatData.parse(heartbeat_body(f"c{number}", {"g": {"T": "*"}}))
        drive(group.clients.heartbeat(Heartbeat(Peer(number).connection, "JAVA", 397, data)))
    found = group.clients.consumer_group("g")
    assert found is not None
    bodies = [ended(lists.of(found)) for _ in range(120)]
    assert lists.encoded == 1
    assert len(set(bodies)) == 1
    found.id_changed(None, "another")
    assert "another" in parse_consumer_list(ended(lists.of(found)))
    assert lists.encoded == 2


def test_kept_lists_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_lists, "KEPT_BYTES", 2000)
    lists = MemberLists()
    groups = [
        ConsumerGroup(f"g{n}", "", "", "", ids={f"client-{m}": 1 for m in range(50)})
        for n in range(5)
    ]
    for group in groups:
        ended(lists.of(group))
    ended(lists.of(groups[-1]))
    assert lists.encoded == 5
    ended(lists.of(groups[0]))
    assert lists.encoded == 6
    assert lists._bytes <= 2000


def ended(steps: Generator[None, None, bytes]) -> bytes:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return bytes(end.value)
