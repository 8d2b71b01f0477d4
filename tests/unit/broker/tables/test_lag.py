"""Claims about lag: the messages that count as not consumed, and from where, for groups in every
state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aerobee.broker import broker_stats as stats
from aerobee.broker.requests.clients.offset_requests import OffsetRequests
from aerobee.broker.tables.clients import Heartbeat
from aerobee.broker.tables.groups import GroupConfig
from aerobee.broker.tables.lag import needed_by_queue
from aerobee.protocol.bodies.clients import ConsumerData, HeartbeatData
from aerobee.protocol.bodies.topics import TopicConfig
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.filters.subscription import Subscription
from aerobee.protocol.names import dlq_topic, retry_topic
from aerobee.store.disk.owner import here
from tests.inline_loop import drive, made
from tests.unit.broker.tables.clients_support import Peer, Tables, answer, request

LAST, FIRST = "CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_FIRST_OFFSET"


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    return Tables(tmp_path)


def topic(tables: Tables, name: str, read: int = 1, write: int | None = None) -> None:
    made(tables.topics.update(TopicConfig(name, read, read if write is None else write)))


def group(tables: Tables, name: str) -> None:
    made(tables.groups.update(GroupConfig(name)))


def joins(tables: Tables, name: str, *topics: str, **of_data: Any) -> Peer:
    """A member of a group, online."""
    peer = Peer(1)
    wanted = tuple(map(Subscription, topics))
    consumer = ConsumerData(name, subscriptions=wanted, **of_data)
    data = HeartbeatData("c1", consumers=(consumer,))
    drive(tables.clients.heartbeat(Heartbeat(peer.connection, "JAVA", 409, data)))
    return peer


def lag(tables: Tables, name: str, where: str = "T") -> list[int | None]:
    """The lag by queue, None where it is unknown."""
    return [one.lag for one in tables.lag.queues(name, where)]


def fails(tables: Tables, name: str, number: int) -> None:
    """Let `number` messages that a group has failed on wait for their next try."""
    for _ in range(number):
        tables.retries.waits(3, retry_topic(name))


def judged(tables: Tables) -> dict[tuple[str, str], int]:
    """The lag of all groups in all topics that they are judged in, as the metrics have it."""
    found: dict[tuple[str, str], int] = {}
    for pair in tables.lag.pairs():
        if pair is not None and tables.lag.queue_count(pair[1], pair[0]):
            assert (pair[1], pair[0]) not in found
            queues = sum(one or 0 for one in lag(tables, pair[1], pair[0]))
            found[pair[1], pair[0]] = queues + tables.lag.waiting_retries(pair[1], pair[0])
    return found


def asked(
    tables: Tables, name: str, where: str = "T", queue_id: int = 0, by: Peer | None = None
) -> int:
    """The code of the answer to a group that asks for its offset, as each member does that takes a
    queue up; by default from a connection that is no member's."""
    requests = OffsetRequests(tables.offsets, tables.lag, tables.queues)
    ext = {"consumerGroup": name, "topic": where, "queueId": queue_id}
    asker = (by or Peer(9)).connection
    return answer(requests.query(asker, request(RequestCode.QUERY_CONSUMER_OFFSET, ext))).code


def test_a_group_that_never_committed_is_behind_by_all_it_would_start_with(tables: Tables) -> None:
    """A listener that hangs on its first message: 0 before, in command and metric."""
    topic(tables, "T", 2)
    tables.queues.put("T", 0, range(290))
    joins(tables, "hangs", "T", consume_from_where=LAST)
    assert asked(tables, "hangs") == ResponseCode.SUCCESS
    assert lag(tables, "hangs") == [290, 0]
    assert judged(tables) == {("hangs", "T"): 290}
    # Messages that the group was given still count as lag.
    tables.stats.consumer("hangs", "T").pulled[0] = 32
    assert lag(tables, "hangs") == [290, 0]
    assert next(tables.lag.queues("hangs", "T")).given_out == 32


def test_each_queue_without_an_offset_counts_beside_those_with_one(tables: Tables) -> None:
    topic(tables, "T", 3)
    for queue_id in range(3):
        tables.queues.put("T", queue_id, range(10))
    joins(tables, "g", "T")
    tables.offsets.commit("g", "T", 1, 10)
    tables.offsets.commit("g", "T", 2, 4)
    assert lag(tables, "g") == [10, 0, 6]


def test_what_waits_in_the_retry_topic_counts_though_nothing_of_it_was_consumed(
    tables: Tables,
) -> None:
    """A listener that fails on all: each message has gone to the retry topic, which it reads from
    its beginning whatever rule it begins with."""
    topic(tables, "T")
    topic(tables, "%RETRY%fails")
    tables.queues.put("T", 0, range(20))
    tables.queues.put("%RETRY%fails", 0, range(20), min_offset=5)
    joins(tables, "fails", "T", "%RETRY%fails", consume_from_where=LAST)
    tables.offsets.commit("fails", "T", 0, 20)
    assert asked(tables, "fails", "%RETRY%fails") == ResponseCode.QUERY_NOT_FOUND
    assert judged(tables) == {("fails", "T"): 0, ("fails", "%RETRY%fails"): 20}


def test_expired_messages_are_nothing_to_be_behind_of(tables: Tables) -> None:
    topic(tables, "T", 2)
    tables.queues.put("T", 0, [], min_offset=30)
    tables.queues.put("T", 1, range(5), min_offset=10)
    group(tables, "g")
    tables.offsets.commit("g", "T", 0, 5)
    tables.offsets.commit("g", "T", 1, 0)
    assert lag(tables, "g") == [0, 5]
    assert [one.position for one in tables.lag.queues("g", "T")] == [30, 10]


def test_an_offset_beyond_the_end_is_told_and_no_lag(tables: Tables) -> None:
    """A restored store beside newer offsets leads to this."""
    topic(tables, "T")
    group(tables, "g")
    tables.queues.put("T", 0, range(9))
    tables.offsets.commit("g", "T", 0, 9)
    tables.queues.put("T", 0, range(4))
    [one] = tables.lag.queues("g", "T")
    assert (one.messages, one.position, one.end) == (0, 9, 4)


def test_a_group_that_begins_at_the_end_is_behind_from_where_it_asked(tables: Tables) -> None:
    topic(tables, "T")
    tables.queues.put("T", 0, range(100), min_offset=50)
    joins(tables, "g", "T", consume_from_where=LAST)
    assert lag(tables, "g") == [0]
    assert asked(tables, "g") == ResponseCode.QUERY_NOT_FOUND
    tables.queues.put("T", 0, range(107), min_offset=50)
    assert lag(tables, "g") == [7]
    # The group holds messages that it was given, while its first messages expire.
    tables.stats.consumer("g", "T").pulled[0] = 157
    tables.queues.put("T", 0, range(4), min_offset=153)
    assert lag(tables, "g") == [4]
    tables.offsets.commit("g", "T", 0, 156)
    assert lag(tables, "g") == [1]


def test_a_tool_that_asks_later_does_not_move_where_a_member_began(tables: Tables) -> None:
    """A dashboard that looks at offsets made a group whose listener hangs be behind by nothing."""
    topic(tables, "T")
    tables.queues.put("T", 0, range(100), min_offset=50)
    member = joins(tables, "g", "T", consume_from_where=LAST)
    assert asked(tables, "g", by=member) == ResponseCode.QUERY_NOT_FOUND
    tables.queues.put("T", 0, range(107), min_offset=50)
    assert asked(tables, "g", by=Peer(9)) == ResponseCode.QUERY_NOT_FOUND
    assert lag(tables, "g") == [7]
    # A member that takes the queue up anew begins there.
    assert asked(tables, "g", by=member) == ResponseCode.QUERY_NOT_FOUND
    assert lag(tables, "g") == [0]


def test_where_it_began_before_this_run_is_unknown_and_never_all_messages(tables: Tables) -> None:
    topic(tables, "T")
    tables.queues.put("T", 0, range(100), min_offset=50)
    joins(tables, "g", "T", consume_from_where=LAST)
    tables.stats.consumer("g", "T").pulled[0] = 150
    [one] = tables.lag.queues("g", "T")
    assert (one.lag, one.held) == (None, None)
    # Retention and resets take the first message: nothing is passed over.
    assert (one.begin, tables.lag.start("g", "T", 0)) == (50, 50)
    tables.offsets.commit("g", "T", 0, 140)
    assert lag(tables, "g") == [10]


def test_a_group_that_is_not_online_and_has_no_offset_has_an_unknown_lag(tables: Tables) -> None:
    """It may begin with the first message or at the end. A queue that is all there is different:
    each group is told to begin with its first message."""
    topic(tables, "T", 4)
    tables.queues.put("T", 0, range(100), min_offset=50)
    tables.queues.put("T", 1, range(100))
    tables.queues.put("T", 2, [], min_offset=50)
    tables.queues.put("T", 3, range(100))
    tables.queues.on_disk.add(("T", 3))
    group(tables, "g")
    assert lag(tables, "g") == [None, 100, 0, None]
    joins(tables, "g", "T", consume_from_where=FIRST)
    assert lag(tables, "g") == [100, 100, 0, 100]


def test_where_a_group_was_told_to_begin_stays_known_when_the_queue_goes_to_disk(
    tables: Tables,
) -> None:
    topic(tables, "T")
    group(tables, "g")
    tables.queues.put("T", 0, range(5))
    member = joins(tables, "g", "T", consume_from_where=LAST)
    assert asked(tables, "g", by=member) == ResponseCode.SUCCESS
    tables.stats.consumer("g", "T").pulled[0] = 5
    tables.queues.put("T", 0, range(9))
    tables.queues.on_disk.add(("T", 0))
    assert lag(tables, "g") == [9]
    list(tables.clients.connection_closed(member.connection))
    assert lag(tables, "g") == [9]


def test_a_group_that_begins_with_the_first_message_is_behind_by_all(tables: Tables) -> None:
    topic(tables, "T")
    tables.queues.put("T", 0, range(100), min_offset=50)
    joins(tables, "g", "T", consume_from_where=FIRST)
    assert asked(tables, "g") == ResponseCode.QUERY_NOT_FOUND
    assert lag(tables, "g") == [100]
    # By a time that its members alone know: unknown, before they commit an offset.
    joins(tables, "timed", "T", consume_from_where="CONSUME_FROM_TIMESTAMP")
    assert lag(tables, "timed") == [None]


def test_dead_messages_are_those_of_the_dead_letter_topic(tables: Tables) -> None:
    assert tables.lag.dead("g") == 0
    topic(tables, dlq_topic("g"), 2)
    tables.queues.put(dlq_topic("g"), 0, range(3), min_offset=4)
    tables.queues.put(dlq_topic("g"), 1, range(2))
    assert tables.lag.dead("g") == 5


def test_a_stranger_that_asks_leaves_nothing(tables: Tables) -> None:
    topic(tables, "T")
    tables.queues.put("T", 0, range(100), min_offset=50)
    joins(tables, "g", "Other", consume_from_where=LAST)
    for name, where, queue_id in (("nobody", "T", 0), ("g", "T", 0), ("g", "Other", 0)):
        asked(tables, name, where, queue_id)
    joins(tables, "g", "T", consume_from_where=LAST)
    asked(tables, "g", "T", 1)
    assert tables.stats.began("g", "T") == {}


def test_what_is_noted_of_beginnings_is_bounded(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stats, "MOST_BEGINNINGS", 5)
    for number in range(4):
        topic(tables, f"T{number}", 2)
        joins(tables, f"g{number}", f"T{number}", consume_from_where=LAST)
        for queue_id in range(2):
            tables.queues.put(f"T{number}", queue_id, range(100), min_offset=50)
            asked(tables, f"g{number}", f"T{number}", queue_id)
            asked(tables, f"g{number}", f"T{number}", queue_id)
    began = [tables.stats.began(f"g{number}", f"T{number}") for number in range(4)]
    assert began == [{}, {}, {0: 150, 1: 150}, {0: 150, 1: 150}]
    tables.stats.forget_group("g2")
    tables.stats.forget_topic("T3")
    assert tables.stats._began_count == 0


def test_where_a_group_began_just_now_is_not_what_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stats, "MOST_BEGINNINGS", 2)
    counters = stats.BrokerStats()
    for name, queue_id in (("first", 0), ("other", 0), ("first", 1)):
        counters.begins(name, "T", queue_id, 150)
    assert (counters.began("first", "T"), counters.began("other", "T")) == ({0: 150, 1: 150}, {})


def test_what_a_group_began_with_is_forgotten_with_the_topic(tables: Tables) -> None:
    topic(tables, "T")
    tables.queues.put("T", 0, range(100), min_offset=50)
    joins(tables, "g", "T", consume_from_where=LAST)
    asked(tables, "g")
    made(tables.topics.delete("T"))
    for _ in tables.offsets.remove_topic("T"):
        pass
    tables.stats.forget_topic("T")
    assert judged(tables) == {}
    topic(tables, "T")
    tables.queues.put("T", 0, range(160))
    assert lag(tables, "g") == [160]


def test_queues_that_a_smaller_topic_has_no_more_are_nobodys_lag(tables: Tables) -> None:
    topic(tables, "T", 4)
    group(tables, "g")
    for queue_id in range(4):
        tables.queues.put("T", queue_id, range(10))
        tables.offsets.commit("g", "T", queue_id, 1)
    assert lag(tables, "g") == [9] * 4
    topic(tables, "T", 2)
    assert lag(tables, "g") == [9] * 2
    # Queues that are not written any more can still be read.
    topic(tables, "T", 4, 2)
    assert lag(tables, "g") == [9] * 4


def test_members_that_keep_their_offsets_have_no_lag_here(tables: Tables) -> None:
    topic(tables, "T")
    tables.queues.put("T", 0, range(10))
    tables.offsets.commit("g", "T", 0, 1)
    peer = joins(tables, "g", "T", message_model="BROADCASTING")
    assert tables.lag.keeps_own_offsets("g")
    assert (lag(tables, "g"), judged(tables)) == ([], {})
    list(tables.clients.connection_closed(peer.connection))
    group(tables, "g")
    assert lag(tables, "g") == [9]


def test_what_is_deleted_counts_for_groups_without_an_offset_too(tables: Tables) -> None:
    """Retention says which groups lose what it deletes; it knew those with an offset alone."""
    topic(tables, "T", 2)
    for queue_id in range(2):
        tables.queues.put("T", queue_id, range(10))
    joins(tables, "hangs", "T", "Nowhere")
    tables.offsets.commit("hangs", "T", 1, 4)
    tables.offsets.commit("done", "T", 1, 10)
    needed = needed_by_queue(here, tables.lag, tables.offsets)
    assert needed == {("T", 0): {"hangs": 0}, ("T", 1): {"hangs": 4, "done": 10}}


def test_a_scrape_and_a_run_of_retention_are_steps_of_one_queue_each(tables: Tables) -> None:
    """However much a group subscribes to, or has offsets in that are passed over."""
    topic(tables, "T", 500)
    joins(tables, "g", "T", *(f"Gone{number}" for number in range(300)))
    calls = 0

    def on_loop(work: Callable[[], Any]) -> Any:
        nonlocal calls
        calls += 1
        return work()

    needed = needed_by_queue(on_loop, tables.lag, tables.offsets)
    assert (len(needed), calls > 800 // 64) == (500, True)
    for number in range(300):
        tables.offsets.commit("deleted", f"Gone{number}", 0, 0)
    assert sum(one is None for one in tables.lag.pairs()) == 300


def test_groups_that_nobody_knows_are_not_judged(tables: Tables) -> None:
    topic(tables, "T")
    tables.queues.put("T", 0, range(10))
    assert (tables.lag.is_known("g"), lag(tables, "g")) == (False, [])
    # Offsets outlive a group that is deleted without them: nothing is to be alarmed about.
    tables.offsets.commit("g", "T", 0, 1)
    assert (tables.lag.is_known("g"), judged(tables)) == (True, {})
    group(tables, "g")
    assert judged(tables) == {("g", "T"): 9}


# --- what waits for its next try ------------------------------------------------------------------


@pytest.mark.parametrize("state", ["online", "offline", "committed"])
def test_a_group_that_fails_on_all_is_behind_by_what_waits_for_its_next_try(
    tables: Tables, state: str
) -> None:
    """0 before, in command and metric. Each (group, topic) is judged once, whatever it has."""
    retry = retry_topic("g")
    topic(tables, "T")
    topic(tables, retry)
    tables.queues.put("T", 0, range(10))
    tables.queues.put(retry, 0, range(3))
    group(tables, "g")
    tables.offsets.commit("g", "T", 0, 10)
    if state == "online":
        joins(tables, "g", "T", retry)
    if state == "committed":
        tables.offsets.commit("g", retry, 0, 2)
    fails(tables, "g", 5)
    in_queues = 1 if state == "committed" else 3
    assert judged(tables) == {("g", "T"): 0, ("g", retry): 5 + in_queues}
    assert sorted(tables.lag.topics_of("g")) == [retry, "T"]
    assert tables.lag.concerns("g", retry)
    assert tables.lag.waiting_retries("g") == tables.lag.waiting_retries("g", retry) == 5
    assert tables.lag.waiting_retries("g", "T") == 0


def test_what_waits_for_nobody_is_nobodys_lag(tables: Tables) -> None:
    """Its group is gone, or its retry topic, or its members keep their offsets themselves."""
    fails(tables, "gone", 1)
    topic(tables, retry_topic("gone"))
    fails(tables, "untopical", 1)
    group(tables, "untopical")
    fails(tables, "each", 1)
    topic(tables, retry_topic("each"))
    joins(tables, "each", "T", message_model="BROADCASTING")
    assert judged(tables) == {}
    for name in ("gone", "untopical", "each"):
        assert tables.lag.waiting_retries(name) == 0
        assert retry_topic(name) not in tables.lag.topics_of(name)
    # Offsets outlive a group that is deleted without them.
    tables.offsets.commit("gone", "T", 0, 1)
    assert tables.lag.waiting_retries("gone") == 0
