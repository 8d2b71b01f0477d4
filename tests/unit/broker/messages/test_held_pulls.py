"""Long polling: who is woken by what, and that everybody leaves in the end."""

from __future__ import annotations

from typing import cast

import pytest

from aerobee.broker.messages.held_pulls import HeldPull, HeldPulls
from aerobee.protocol.frames.command import make_request
from aerobee.protocol.headers.client import PullMessageHeader
from aerobee.remoting.connection import Connection
from aerobee.store.segments.results import Arrival


class Peer:
    closed = False


class Clock:
    now = 50.0

    def __call__(self) -> float:
        return self.now


class Held:
    """The table under test with what left it."""

    def __init__(self, limit: int = 100) -> None:
        self.clock = Clock()
        self.table = HeldPulls(self.clock, limit)
        self.left: list[str] = []
        self.times: list[float] = []

    def _replayed(self, pull: HeldPull) -> None:
        self.left.append(pull.header.consumer_group)
        self.times.append(self.table.held_s(pull))

    def hold(
        self,
        group: str,
        queue: int = 0,
        offset: int = 5,
        codes: frozenset[int] | None = None,
        hold_s: float = 15.0,
    ) -> Peer | None:
        peer = Peer()
        header = PullMessageHeader(group, "T", queue, offset, 32, 2, 0, 15_000, 0)
        connection = cast("Connection", peer)
        kept = self.table.hold(connection, make_request(11), header, codes, hold_s, self._replayed)
        return peer if kept else None


@pytest.fixture
def held() -> Held:
    return Held()


def test_a_message_at_the_awaited_offset_wakes_its_queue_only(held: Held) -> None:
    held.hold("g0", queue=0)
    held.hold("g1", queue=1)
    held.table.arrived([Arrival("T", 0, 5, 0)])
    assert held.left == ["g0"]
    assert len(held.table) == 1


def test_a_message_before_the_awaited_offset_wakes_nobody(held: Held) -> None:
    held.hold("g")
    held.table.arrived([Arrival("T", 0, 4, 0)])
    assert held.left == []


def test_a_filter_wakes_only_for_its_tags(held: Held) -> None:
    held.hold("tagged", codes=frozenset([65]))
    held.table.arrived([Arrival("T", 0, 5, 66)])
    assert held.left == []
    held.table.arrived([Arrival("T", 0, 6, 67), Arrival("T", 0, 7, 65)])
    assert held.left == ["tagged"]


def test_time_over_wakes_and_no_hold_is_longer_than_two_minutes(held: Held) -> None:
    held.hold("short", hold_s=1)
    held.hold("greedy", hold_s=1e9)
    held.clock.now += 1.1
    held.table.sweep()
    assert held.left == ["short"]
    held.clock.now += 119
    held.table.sweep()
    assert held.left == ["short", "greedy"]


def test_a_gone_client_is_forgotten_without_a_replay(held: Held) -> None:
    peer = held.hold("g")
    assert peer is not None
    peer.closed = True
    held.table.sweep()
    assert held.left == []
    assert len(held.table) == 0


def test_there_is_a_limit(held: Held) -> None:
    held = Held(limit=1)
    assert held.hold("a") is not None
    assert held.hold("b") is None


def test_everybody_leaves_at_the_stop(held: Held) -> None:
    held.hold("a")
    held.hold("b", queue=3)
    held.table.release_all()
    assert sorted(held.left) == ["a", "b"]


def test_how_long_a_pull_was_held_is_known_when_it_leaves(held: Held) -> None:
    held.hold("g")
    held.clock.now += 12.5
    held.table.release_all()
    assert held.times == [12.5]
