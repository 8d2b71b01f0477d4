"""Claims about the plain counters."""

import pytest

from aerobee.broker.broker_stats import (
    OTHER,
    RPC_LATENCY_BOUNDS,
    UNKNOWN_CODE,
    BrokerStats,
    Buckets,
)


@pytest.fixture
def stats() -> BrokerStats:
    return BrokerStats()


def test_topic_and_consumer_objects_are_the_same_each_time(stats: BrokerStats) -> None:
    assert stats.topic("T") is stats.topic("T")
    assert stats.topic("T") is not stats.topic("T", "fifo")
    assert stats.consumer("G", "T") is stats.consumer("G", "T")
    assert stats.request(310, 0) is stats.request(310, 0)


def test_stored_adds_to_topic_and_broker(stats: BrokerStats) -> None:
    topic = stats.topic("T")
    stats.stored(topic, 1, 200)
    stats.stored(topic, 32, 32 * 2000)
    assert (topic.messages_in, topic.bytes_in) == (33, 64200)
    assert topic.sizes.counts == [1, 32, 0, 0, 0, 0, 0]
    assert topic.sizes.total == 64200
    assert topic.counts == (33, 64200, 0)


def test_failed_counts_with_and_without_a_topic(stats: BrokerStats) -> None:
    stats.failed(stats.topic("T"))
    stats.failed()
    assert stats.put_failures == 2
    assert stats.topic("T").failures == 1


def test_delivered_counts_one_pull_and_its_messages(stats: BrokerStats) -> None:
    stats.delivered(stats.consumer("G", "T"), 32, 9000)
    assert stats.get_found == 1
    assert stats.consumer("G", "T").counts == (32, 9000, 0)


def test_bucket_bound_is_inclusive() -> None:
    buckets = Buckets((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 2.5):
        buckets.add(value)
    assert buckets.counts == [2, 2, 1]
    assert buckets.total == 7.5


def test_request_latency_goes_to_its_bucket(stats: BrokerStats) -> None:
    request = stats.request(310, 0)
    request.add(0.0005)
    request.add(0.05, 3)
    assert request.counts[0] == 1
    assert request.counts[RPC_LATENCY_BOUNDS.index(0.1)] == 3
    assert request.count == 4


def test_served_and_refused_requests_are_told_apart(stats: BrokerStats) -> None:
    stats.request_served(310, 0.002)
    stats.request_served(310, 0.002)
    stats.request_refused(310, 17, 0.002)
    counts = {(r.key.response_code, r.key.result): r.count for r in stats.requests()}
    assert counts == {(0, "success"): 2, (17, "success"): 1}


def test_unknown_request_codes_share_one_series(stats: BrokerStats) -> None:
    for code in range(5000, 6000):
        stats.request(code, 3).add(0.001)
    assert len(stats.requests()) == 1
    assert stats.requests()[0].key.code == UNKNOWN_CODE
    assert stats.requests()[0].count == 1000


def test_series_past_the_limit_share_other() -> None:
    stats = BrokerStats(series_limit=2)
    for name in ("A", "B", "C", "D"):
        stats.stored(stats.topic(name), 1, 100)
        stats.delivered(stats.consumer("G", name), 1, 100)
    assert {topic.topic for topic in stats.topics()} == {"A", "B", OTHER}
    assert stats.topic("C").messages_in == 2
    assert stats.consumer(OTHER, OTHER).messages_out == 2
    assert stats.overflowed["topic"] >= 2


def test_deleted_topic_and_group_take_their_series_along(stats: BrokerStats) -> None:
    stats.stored(stats.topic("T"), 1, 10)
    stats.stored(stats.topic("T", "fifo"), 1, 10)
    stats.delivered(stats.consumer("G", "T"), 1, 10)
    stats.delivered(stats.consumer("H", "U"), 1, 10)
    stats.forget_topic("T")
    assert stats.topics() == []
    assert [(c.group, c.topic) for c in stats.consumers()] == [("H", "U")]
    stats.forget_group("H")
    assert stats.consumers() == []
