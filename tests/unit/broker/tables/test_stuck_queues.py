"""Claims about queues in which groups do not come on."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee.broker.tables import stuck_queues
from aerobee.broker.tables.clients import Heartbeat
from aerobee.broker.tables.groups import GroupConfig
from aerobee.broker.tables.stuck_queues import Standing, StuckQueues
from aerobee.protocol.bodies.clients import ConsumerData, HeartbeatData
from aerobee.protocol.bodies.topics import TopicConfig
from aerobee.protocol.filters.subscription import Subscription
from tests.inline_loop import drive, made
from tests.unit.broker.tables.clients_support import Peer, Tables

LOOK_S, STUCK_S = 15.0, 60.0


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    tables = Tables(tmp_path)
    made(tables.topics.update(TopicConfig("T", 2, 2)))
    made(tables.groups.update(GroupConfig("g")))
    for queue_id in range(2):
        tables.queues.put("T", queue_id, range(10))
    return tables


@pytest.fixture
def stuck(tables: Tables) -> StuckQueues:
    return StuckQueues(tables.lag, tables.clients, tables.clock, STUCK_S)


def joins(tables: Tables, name: str = "g", model: str = "CLUSTERING") -> Peer:
    peer = Peer(1)
    data = ConsumerData(name, message_model=model, subscriptions=(Subscription("T"),))
    beat = Heartbeat(peer.connection, "JAVA", 409, HeartbeatData("c1", consumers=(data,)))
    drive(tables.clients.heartbeat(beat))
    return peer


def look(stuck: StuckQueues) -> int:
    """A whole look; how many steps it took."""
    steps = 1
    while stuck.step():
        steps += 1
    return steps


def pass_time(tables: Tables, stuck: StuckQueues, seconds: float) -> None:
    """Time passes, with looks as often as in a broker."""
    end = tables.clock.now + seconds
    while tables.clock.now < end:
        tables.clock.now = min(tables.clock.now + LOOK_S, end)
        look(stuck)


def found(stuck: StuckQueues) -> dict[tuple[str, str], int]:
    return {(group, topic): queues for group, topic, queues in stuck.counts()}


def test_a_queue_is_stuck_when_its_offset_stood_for_a_minute_with_messages_given_out(
    tables: Tables, stuck: StuckQueues
) -> None:
    joins(tables)
    tables.offsets.commit("g", "T", 0, 3)
    tables.stats.consumer("g", "T").pulled[0] = 8
    look(stuck)
    pass_time(tables, stuck, STUCK_S - 1)
    assert found(stuck) == {("g", "T"): 0}
    pass_time(tables, stuck, 1)
    assert found(stuck) == {("g", "T"): 1}
    # The other queue was not pulled from: nothing of it was given out.
    assert stuck.standing("g", "T", 0).is_stuck
    assert not stuck.standing("g", "T", 1).is_stuck
    assert stuck.standing("g", "T", 1).is_left
    tables.offsets.commit("g", "T", 0, 4)
    look(stuck)
    assert found(stuck) == {("g", "T"): 0}
    assert stuck.standing("g", "T", 0).stands_s == 0


def test_a_listener_that_hangs_on_its_first_message_is_stuck_without_any_offset(
    tables: Tables, stuck: StuckQueues
) -> None:
    joins(tables)
    tables.stats.consumer("g", "T").pulled[1] = 1
    look(stuck)
    pass_time(tables, stuck, STUCK_S)
    assert found(stuck) == {("g", "T"): 1}


def test_a_queue_that_is_pulled_from_is_not_left(tables: Tables, stuck: StuckQueues) -> None:
    joins(tables)
    counters = tables.stats.consumer("g", "T")
    for offset in range(1, 6):
        counters.pulled[0] = offset
        pass_time(tables, stuck, LOOK_S)
    assert not stuck.standing("g", "T", 0).is_left
    pass_time(tables, stuck, STUCK_S)
    assert stuck.standing("g", "T", 0).is_left
    # It was given everything, and holds that.
    counters.pulled[0] = 10
    look(stuck)
    assert stuck.standing("g", "T", 0).left_s is None


@pytest.mark.parametrize("why", ["offline", "broadcasting", "consumed", "deleted"])
def test_nothing_is_said_of_groups_that_do_not_stand(
    tables: Tables, stuck: StuckQueues, why: str
) -> None:
    peer = joins(tables, model="BROADCASTING" if why == "broadcasting" else "CLUSTERING")
    tables.offsets.commit("g", "T", 0, 3)
    tables.stats.consumer("g", "T").pulled[0] = 8
    look(stuck)
    pass_time(tables, stuck, STUCK_S)
    if why == "offline":
        list(tables.clients.connection_closed(peer.connection))
    elif why == "consumed":
        for queue_id in range(2):
            tables.offsets.commit("g", "T", queue_id, 10)
    elif why == "deleted":
        made(tables.topics.delete("T"))
    look(stuck)
    assert found(stuck) == {}
    assert stuck.standing("g", "T", 0) == Standing()


def test_looks_are_bounded_and_go_in_steps(
    tables: Tables, stuck: StuckQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tables.topics.update(TopicConfig("T", 500, 500)))
    for queue_id in range(500):
        tables.queues.put("T", queue_id, range(3))
    joins(tables)
    assert look(stuck) > 500 // 64
    assert stuck.unwatched == 0
    monkeypatch.setattr(stuck_queues, "MOST_WATCHED", 100)
    look(stuck)
    assert stuck.unwatched == 400
