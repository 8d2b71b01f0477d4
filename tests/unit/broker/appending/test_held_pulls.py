"""Long polling: who is woken by what, and that everybody leaves in the end."""

from __future__ import annotations

import asyncio
import itertools
from types import SimpleNamespace
from typing import cast

import pytest

from aerobee.broker.appending.held_pulls import _MOST_RESTATED, HeldPull, HeldPulls
from aerobee.protocol.filters.property_filter import MessageFilter, PropertyFilter
from aerobee.protocol.filters.sql_filter import compile_sql
from aerobee.protocol.frames.command import make_request
from aerobee.protocol.headers.client import PullMessageHeader
from aerobee.remoting.connections.connection import Connection
from aerobee.remoting.turns import Turns
from aerobee.store.segments.results import Arrival
from tests.unit.broker.tables.clients_support import Endless
from tests.unit.remoting.conftest import StepClock, eventually


class Peer:
    closed = False


class Clock:
    now = 50.0

    def __call__(self) -> float:
        return self.now


class Held:
    """The table under test with what left it."""

    def __init__(
        self, limit: int = 100, limit_bytes: int = 1 << 30, turns: Turns | None = None
    ) -> None:
        self.clock = Clock()
        self.turns = turns or Endless()
        self.stored: dict[tuple[str, int, int], bytes] = {}
        limits = SimpleNamespace(held_pulls=limit, held_pull_bytes=limit_bytes)
        store = SimpleNamespace(reader=SimpleNamespace(properties_at=self._properties_at))
        self.table = HeldPulls(limits, self.clock, self.turns, store)  # type: ignore[arg-type]
        self.left: list[str] = []
        self.times: list[float] = []

    def _properties_at(self, topic: str, queue_id: int, queue_offset: int) -> bytes | None:
        return self.stored.get((topic, queue_id, queue_offset))

    def arrive(self, *messages: tuple[int, bytes], queue: int = 0) -> None:
        """Messages of (queue offset, properties)."""
        for offset, text in messages:
            self.stored["T", queue, offset] = text
        self.table.arrived([Arrival("T", queue, offset, 0) for offset, _ in messages])

    def _replayed(self, pull: HeldPull) -> None:
        self.left.append(pull.header.consumer_group)
        self.times.append(self.table.held_s(pull))

    def restated(self, peer: Peer, group: str, *topics: str) -> None:
        self.table.restated(cast("Connection", peer), group, topics)

    def hold(
        self,
        group: str,
        queue: int = 0,
        offset: int = 5,
        codes: frozenset[int] | None = None,
        hold_s: float = 15.0,
        wanted: MessageFilter | None = None,
        topic: str = "T",
        peer: Peer | None = None,
    ) -> Peer | None:
        peer = peer or Peer()
        header = PullMessageHeader(group, topic, queue, offset, 32, 2, 0, 15_000, 0)
        connection = cast("Connection", peer)
        kept = self.table.hold(
            connection, make_request(11), header, codes, hold_s, self._replayed, wanted
        )
        return peer if kept else None


def test_a_held_pull_keeps_neither_its_requests_fields_nor_the_text_of_its_filter(
    held: Held,
) -> None:
    request = make_request(11, {"x": "y" * 200_000}, b"z" * 200_000)
    header = PullMessageHeader("g", "T", 0, 5, 32, 6, 0, 15_000, 0, "t" * 200_000, "k" * 200_000)
    left: list[HeldPull] = []
    connection = cast("Connection", Peer())
    assert held.table.hold(connection, request, header, frozenset([1]), 15.0, left.append)
    assert (request.ext, request.body) == ({}, b"")
    held.table.release_all()
    [pull] = left
    assert (pull.header.subscription, pull.header.expression_type) == (None, None)


def test_a_held_pull_counts_for_its_names(held: Held) -> None:
    held.hold("g")
    short = held.table.bytes
    held.hold("g" * 255)
    assert held.table.bytes == 2 * short + 254


def test_what_finds_no_room_is_served_with_all_it_brought() -> None:
    held = Held(limit=0)
    request = make_request(11, {"x": "y"}, b"z")
    header = PullMessageHeader("g", "T", 0, 5, 32, 6, 0, 15_000, 0, "tag")
    connection = cast("Connection", Peer())
    assert not held.table.hold(connection, request, header, None, 15.0, held._replayed)
    assert (request.ext, request.body) == ({"x": "y"}, b"z")


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


async def test_one_message_that_answers_many_pulls_is_spread_over_turns() -> None:
    held = Held(limit=100_000, turns=Turns(StepClock()))
    for number in range(5_000):
        held.hold(f"g{number}")
    left_in_a_turn = []

    def look() -> None:
        left_in_a_turn.append(len(held.left))
        if len(held.left) < 5_000:
            asyncio.get_running_loop().call_soon(look)

    held.table.arrived([Arrival("T", 0, 5, 0)])
    look()
    await eventually(lambda: len(held.left) == 5_000)
    # Ten looks at the clock are a slice.
    steps = [later - before for before, later in itertools.pairwise([0, *left_in_a_turn])]
    assert max(steps) <= 2 * 11
    assert (len(held.table), held.table.bytes) == (0, 0)


async def test_what_arrives_while_pulls_are_looked_at_is_looked_at_next() -> None:
    held = Held(limit=100_000, turns=Turns(StepClock()))
    for number in range(9_000):
        held.hold(f"g{number}", codes=frozenset([number % 2]))
    held.table.arrived([Arrival("T", 0, 5, 0)])
    held.hold("late", codes=frozenset([1]))
    held.table.arrived([Arrival("T", 0, 6, 1)])
    await eventually(lambda: len(held.left) == 9_001)
    assert len(set(held.left)) == 9_001


def test_the_memory_of_filters_is_bounded() -> None:
    held = Held(limit_bytes=1 << 20)
    tags = frozenset(range(50_000))
    assert held.hold("one tag", codes=frozenset([1]))
    assert not held.hold("many tags", codes=tags)
    assert held.table.refused == 1
    assert held.hold("none")
    held.table.release_all()
    assert (len(held.table), held.table.bytes) == (0, 0)


async def test_the_stop_answers_also_those_that_are_being_looked_at() -> None:
    held = Held(limit=100_000, turns=Turns(StepClock()))
    for number in range(9_000):
        held.hold(f"g{number}", codes=frozenset([1]))
    held.table.arrived([Arrival("T", 0, 5, 2)])
    held.table.release_all()
    assert len(held.left) == 9_000


# --- by properties --------------------------------------------------------------------------------


def by(expression: str) -> PropertyFilter:
    return PropertyFilter(compile_sql(expression))


def test_a_filter_over_properties_wakes_only_for_what_it_wants(held: Held) -> None:
    held.hold("sql", wanted=by("n > 3"))
    held.hold("tags")
    held.arrive((5, b"n\x013"), (6, b"n\x01x"))
    assert held.left == ["tags"]
    # One that it wants, before its offset.
    held.arrive((4, b"n\x019"))
    assert held.left == ["tags"]
    held.arrive((7, b"n\x011"), (8, b"n\x014"), (9, b"n\x010"))
    assert held.left == ["tags", "sql"]
    assert (len(held.table), held.table.bytes) == (0, 0)


def test_a_message_that_cannot_be_looked_at_wakes(held: Held) -> None:
    held.hold("sql", wanted=by("n > 3"))
    held.table.arrived([Arrival("T", 0, 5, 0)])
    assert held.left == ["sql"]


def test_a_filter_that_many_pulls_share_is_asked_once_a_message(held: Held) -> None:
    class Counting(PropertyFilter):
        asked = 0

        def matches(self, properties: bytes) -> bool:
            Counting.asked += 1
            return super().matches(properties)

    wanted = Counting(compile_sql("n > 3"))
    for number in range(90):
        held.hold(f"g{number}", offset=number % 3, wanted=wanted)
    held.arrive((0, b"n\x014"), (1, b"n\x014"), (2, b"n\x011"))
    assert Counting.asked == 2
    assert len(held.left) == 60
    assert len(held.table) == 30


def test_what_is_dear_to_judge_is_left_to_the_pulls_themselves(held: Held) -> None:
    cheap, dear = by("n > 3"), by("n > 3")
    dear.cost = 60_000
    held.hold("first", wanted=dear)
    held.hold("cheap", wanted=cheap)
    held.arrive((5, b"n\x011"), (6, b"n\x011"), (7, b"n\x011"))
    assert held.left == ["cheap"]
    held.hold("second", queue=1, wanted=cheap)
    held.arrive(*[(offset, b"n\x011") for offset in range(5, 600)], queue=1)
    assert held.left == ["cheap", "second"]


def test_pulls_by_properties_count_as_the_others(held: Held) -> None:
    held = Held(limit=2)
    assert held.hold("a", wanted=by("n > 3")) is not None
    assert held.hold("b") is not None
    assert held.hold("c", wanted=by("n > 3")) is None
    assert held.table.refused == 1
    held.clock.now += 200
    held.table.sweep()
    assert sorted(held.left) == ["a", "b"]


async def test_judging_by_properties_is_spread_and_keeps_no_tag_waiting() -> None:
    held = Held(limit=100_000, turns=Turns(StepClock()))
    for number in range(2_000):
        held.hold(f"g{number}", wanted=by(f"n = {number}"))
    held.hold("tagged")
    held.arrive((5, b"n\x01-1"), (6, b"n\x011999"))
    assert held.left == ["tagged"]
    await eventually(lambda: "g1999" in held.left)
    # Each pull is held or has left once. Pulls whose filters were too dear to judge here have left.
    assert len(held.left) + len(held.table) == 2_001
    held.table.release_all()
    assert len(held.left) == 2_001


async def test_a_sweep_of_very_many_goes_on_in_later_turns_and_misses_no_arrival() -> None:
    """Half of the pulls have waited long enough; for the others a message comes meanwhile."""
    held = Held(limit=100_000, turns=Turns(StepClock()))
    for number in range(4_000):
        held.hold(f"g{number}", queue=number % 3, hold_s=1 if number % 2 else 60)
    held.clock.now += 1.1
    held.table.sweep()
    assert 0 < len(held.table) < 4_000
    held.table.arrived([Arrival("T", 0, 5, 0)])
    most, before = 0, len(held.left)
    async with asyncio.timeout(10):
        while len(held.table) > 2_000 * 2 // 3:
            await asyncio.sleep(0)
            most, before = max(most, len(held.left) - before), len(held.left)
    assert most <= 40
    for _ in range(50):
        await asyncio.sleep(0)
    late = {f"g{number}" for number in range(1, 4_000, 2)}
    woken = {f"g{number}" for number in range(0, 4_000, 2) if number % 3 == 0}
    assert set(held.left) == late | woken
    assert len(held.left) == len(late | woken)


# --- members that want something else -------------------------------------------------------------


def test_the_pulls_of_a_member_that_wants_something_else_leave_and_no_others(held: Held) -> None:
    mine, other = Peer(), Peer()
    held.hold("g", queue=0, peer=mine)
    held.hold("g", queue=1, peer=mine, wanted=by("n > 3"))
    held.hold("g", queue=2, peer=mine, topic="U")
    held.hold("another", peer=mine)
    held.hold("g", peer=other)
    held.restated(mine, "g", "T")
    assert (held.left, len(held.table)) == (["g", "g"], 3)
    held.restated(mine, "g", "U", "V")
    assert (held.left, len(held.table)) == (["g", "g", "g"], 2)
    held.restated(mine, "g", "T")
    assert len(held.table) == 2


def test_what_a_member_pulls_after_its_change_stays(held: Held) -> None:
    peer = Peer()
    held.restated(peer, "g", "T")
    held.hold("g", peer=peer)
    held.table.sweep()
    assert held.left == []


async def test_many_members_that_want_something_else_share_the_looks_at_all_pulls() -> None:
    held = Held(limit=100_000, turns=Turns(StepClock()))
    peers = [Peer() for _ in range(500)]
    for number in range(9_000):
        held.hold(f"g{number}", queue=number % 5, peer=peers[number % 500])
    for number in range(0, 9_000, 2):
        held.restated(peers[number % 500], f"g{number}", "T")
    assert len(held.left) < 50
    held.table.arrived([Arrival("T", 1, 5, 0)])
    turns = 0
    async with asyncio.timeout(10):
        while len(held.table) > 9_000 // 2 - 900:
            await asyncio.sleep(0)
            turns += 1
    # A look at all of them is some forty steps, ten are a slice: one look for each member would
    # take thousands of turns beside those for what leaves.
    assert turns < 1_000
    restated = {f"g{number}" for number in range(0, 9_000, 2)}
    assert restated <= set(held.left)
    assert len(held.left) == len(set(held.left)) == 4_500 + 900


async def test_the_stop_answers_also_those_whose_members_want_something_else() -> None:
    held = Held(limit=100_000, turns=Turns(StepClock()))
    peer = Peer()
    for number in range(9_000):
        held.hold("g", queue=number, peer=peer)
    held.restated(peer, "g", "T")
    held.table.release_all()
    assert len(held.left) == 9_000
    assert (len(held.table), held.table.bytes) == (0, 0)


def test_what_is_remembered_of_members_that_want_something_else_is_bounded(held: Held) -> None:
    peer = Peer()
    held.hold("g", peer=peer)
    held.restated(peer, "g", *(f"T{number}" for number in range(2 * _MOST_RESTATED)), "T")
    assert held.left == []
    held.restated(peer, "g", "T")
    assert held.left == ["g"]
