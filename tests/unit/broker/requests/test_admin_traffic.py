"""Claims about traffic of the last minute, hour and day (VIEW_BROKER_STATS_DATA)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aerobee.broker.broker_stats import BrokerStats
from aerobee.broker.requests.administration import traffic_statistics as admin_traffic
from aerobee.broker.requests.administration.traffic_statistics import (
    TrafficHistory,
    TrafficRequests,
)
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.store.disk.files import Clock
from aerobee.store.store_stats import StoreStats, StoreStatsService
from tests.unit.broker.tables.clients_support import Peer, answer, request


class Bench:
    def __init__(self) -> None:
        self.seconds = 50_000.0
        self.stats = BrokerStats()
        self.store = StoreStats()
        service = StoreStatsService(self.store, Clock())
        self.history = TrafficHistory(self.stats, service, "C1", lambda: self.seconds)
        self.handlers = TrafficRequests(self.history).handlers()

    def step(self, seconds: float = 10.0) -> None:
        self.seconds += seconds
        self.history.sample()

    def ask(self, name: str, key: str) -> dict[str, Any]:
        ext = {"statsName": name, "statsKey": key}
        code = RequestCode.VIEW_BROKER_STATS_DATA
        data = self.handlers[code](Peer(1).connection, request(code, ext))
        assert data is not None
        reply = answer(data)
        assert reply.code == ResponseCode.SUCCESS
        found: dict[str, Any] = json.loads(reply.body)
        assert sorted(found) == ["statsDay", "statsHour", "statsMinute"]
        return found


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_steady_stream_has_its_rate_in_each_window(bench: Bench) -> None:
    topic = bench.stats.topic("T")
    for _ in range(3 * 360):
        bench.stats.stored(topic, 20, 4000)
        bench.step()
    found = bench.ask("TOPIC_PUT_NUMS", "T")
    assert found["statsMinute"] == {"avgpt": 1.0, "sum": 120, "tps": 2.0}
    assert found["statsHour"]["tps"] == 2.0
    # An hour ago lies between two samples, ten minutes apart.
    assert 7200 <= found["statsHour"]["sum"] < 7200 + 1200
    assert found["statsDay"]["sum"] == 3 * 7200
    size = bench.ask("TOPIC_PUT_SIZE", "T")["statsMinute"]
    assert size == {"avgpt": 200.0, "sum": 24_000, "tps": 400.0}


def test_what_came_before_a_topic_was_first_seen_counts(bench: Bench) -> None:
    bench.stats.stored(bench.stats.topic("T"), 100, 1000)
    bench.step()
    found = bench.ask("TOPIC_PUT_NUMS", "T")
    assert {window["sum"] for window in found.values()} == {100}
    assert found["statsMinute"]["tps"] == 10.0
    for _ in range(8):
        bench.step()
    found = bench.ask("TOPIC_PUT_NUMS", "T")
    assert found["statsMinute"] == {"avgpt": 0.0, "sum": 0, "tps": 0.0}
    assert found["statsHour"]["sum"] == found["statsDay"]["sum"] == 100


def test_the_last_moments_count_before_they_are_sampled(bench: Bench) -> None:
    topic = bench.stats.topic("T")
    bench.step()
    bench.stats.stored(topic, 5, 50)
    bench.seconds += 3
    assert bench.ask("TOPIC_PUT_NUMS", "T")["statsMinute"]["sum"] == 5


def test_windows_forget_what_is_older(bench: Bench) -> None:
    topic = bench.stats.topic("T")
    for _ in range(2 * 8640):
        bench.stats.stored(topic, 1, 10)
        bench.step()
    found = bench.ask("TOPIC_PUT_NUMS", "T")
    assert found["statsMinute"]["sum"] == 6
    assert 360 <= found["statsHour"]["sum"] < 360 + 60
    assert 8640 <= found["statsDay"]["sum"] < 8640 + 360
    series = bench.history._series["topic", "T"]
    assert [len(samples) // 4 for samples in series.samples] == [7, 7, 25]


def test_kinds_of_a_topic_s_messages_count_together(bench: Bench) -> None:
    bench.stats.stored(bench.stats.topic("T"), 3, 30)
    bench.stats.stored(bench.stats.topic("T", "fifo"), 4, 40)
    bench.step()
    assert bench.ask("TOPIC_PUT_NUMS", "T")["statsDay"]["sum"] == 7


def test_groups_have_their_own(bench: Bench) -> None:
    consumer = bench.stats.consumer("G", "T")
    bench.stats.delivered(consumer, 30, 600)
    consumer.sent_back += 2
    bench.step()
    assert bench.ask("GROUP_GET_NUMS", "T@G")["statsMinute"]["sum"] == 30
    assert bench.ask("GROUP_GET_SIZE", "T@G")["statsMinute"] == {
        "avgpt": 20.0,
        "sum": 600,
        "tps": 60.0,
    }
    assert bench.ask("SNDBCK_PUT_NUMS", "T@G")["statsMinute"]["sum"] == 2


def test_the_broker_s_own_are_the_store_s(bench: Bench) -> None:
    bench.store.appended_messages, bench.store.get_messages = 50, 70
    bench.step()
    assert bench.ask("BROKER_PUT_NUMS", "C1")["statsMinute"]["sum"] == 50
    assert bench.ask("BROKER_GET_NUMS", "C1")["statsMinute"]["sum"] == 70


@pytest.mark.parametrize(
    ("name", "key"),
    [("TOPIC_PUT_NUMS", "other"), ("GROUP_GET_LATENCY", "T"), ("GROUP_GET_NUMS", "T"),
     ("BROKER_PUT_NUMS", "C2"), ("", "")],
)  # fmt: skip
def test_what_is_not_counted_does_not_exist(bench: Bench, name: str, key: str) -> None:
    bench.stats.topic("T")
    bench.step()
    with pytest.raises(BadRequest, match=f"The stats <{name}> <{key}> not exist"):
        bench.ask(name, key)


def test_deleted_topics_are_forgotten(bench: Bench) -> None:
    bench.stats.stored(bench.stats.topic("T"), 1, 1)
    bench.step()
    bench.stats.forget_topic("T")
    bench.step()
    assert bench.history.find("TOPIC_PUT_NUMS", "T") is None
    bench.stats.stored(bench.stats.topic("T"), 2, 2)
    bench.step()
    assert bench.ask("TOPIC_PUT_NUMS", "T")["statsDay"]["sum"] == 2


def test_the_table_is_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_traffic, "_MOST_SERIES", 5)
    for n in range(10):
        bench.stats.topic(f"T{n}")
    bench.step()
    assert len(bench.history._series) == 5
    bench.step()
    assert len(bench.history._series) == 5


def test_queues_have_figures_of_their_own(bench: Bench) -> None:
    topic, consumer = bench.stats.topic("T"), bench.stats.consumer("G", "T")
    # Messages of another kind are counted by themselves, and shown together.
    fifo = bench.stats.topic("T", "fifo")
    for _ in range(12):
        bench.stats.stored(topic, 10, 1000, 0)
        bench.stats.stored(fifo, 5, 500, 0)
        bench.stats.stored(topic, 1, 7, 3)
        bench.stats.delivered(consumer, 4, 400, 3, 0.002)
        bench.step()
    expected = {"QUEUE_PUT_NUMS": ("T@0", 90, 1.0), "QUEUE_PUT_SIZE": ("T@0", 9000, 100.0)}
    for name, (key, total, average) in expected.items():
        found = bench.ask(name, key)["statsMinute"]
        assert found == {"avgpt": average, "sum": total, "tps": total / 60}
    assert bench.ask("QUEUE_PUT_NUMS", "T@3")["statsMinute"]["sum"] == 6
    assert bench.ask("QUEUE_GET_NUMS", "T@3@G")["statsMinute"]["sum"] == 24
    assert bench.ask("QUEUE_GET_SIZE", "T@3@G")["statsMinute"]["sum"] == 2400
    latency = bench.ask("GROUP_GET_LATENCY", "3@T@G")["statsMinute"]
    assert (latency["sum"], latency["avgpt"]) == (12, 2.0)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("QUEUE_PUT_NUMS", "T@9"),
        ("QUEUE_GET_NUMS", "T@0@Nobody"),
        ("GROUP_GET_LATENCY", "0@T"),
        ("GROUP_GET_FROM_DISK_NUMS", "T@G"),
        ("GROUP_GET_FROM_DISK_SIZE", "T@G"),
        ("BROKER_GET_FROM_DISK_NUMS", "C1"),
        ("BROKER_GET_FROM_DISK_SIZE", "C1"),
        ("COMMERCIAL_SEND_TIMES", "T"),
    ],
)
def test_what_nobody_counts_has_no_figures(bench: Bench, name: str, key: str) -> None:
    bench.stats.stored(bench.stats.topic("T"), 1, 100, 0)
    bench.stats.delivered(bench.stats.consumer("G", "T"), 1, 100, 0)
    bench.step()
    with pytest.raises(BadRequest, match=f"<{name}> <{key}> not exist"):
        bench.ask(name, key)


def test_queues_that_are_too_many_are_not_counted_by_queue() -> None:
    stats = BrokerStats(series_limit=3)
    topic = stats.topic("T")
    for queue_id in range(5):
        stats.stored(topic, 1, 100, queue_id)
    assert (topic.messages_in, sorted(topic.queues)) == (5, [0, 1, 2])
    assert stats.overflowed == {"queue": 2}
    # Entries that go with their topic make room.
    stats.forget_topic("T")
    other = stats.topic("U")
    stats.stored(other, 1, 100, 7)
    assert sorted(other.queues) == [7]


def test_a_round_is_made_in_steps(bench: Bench) -> None:
    topic = bench.stats.topic("T")
    for queue_id in range(200):
        bench.stats.stored(topic, 1, 100, queue_id)
    bench.seconds += 10
    steps = 1
    while bench.history.step():
        steps += 1
    assert steps > 10
    assert bench.ask("QUEUE_PUT_NUMS", "T@199")["statsMinute"]["sum"] == 1
