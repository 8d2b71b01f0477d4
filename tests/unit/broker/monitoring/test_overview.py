"""Administrators learn the refusals of the last hour, growth, and when the disk is full."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from aerobee.broker.broker_stats import BrokerStats
from aerobee.broker.monitoring.overview.growth import DiskRoom, RecentGrowth, disk_room, full_in_s
from aerobee.broker.monitoring.overview.refusals import MOST_KINDS, Refusals
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.store.disk.files import DiskSpace

SEND, BUSY = RequestCode.SEND_MESSAGE, ResponseCode.SYSTEM_BUSY


class Clock:
    def __init__(self) -> None:
        self.now = 7_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def refusals(clock: Clock) -> Refusals:
    return Refusals(clock, clock)


def test_refusals_that_differ_in_numbers_alone_are_one_kind_with_the_last_text(
    refusals: Refusals, clock: Clock
) -> None:
    refusals.add("10.0.0.1", SEND, BUSY, "waited 205 ms, limit 200")
    clock.now += 5
    refusals.add("10.0.0.1", SEND, BUSY, "waited 317 ms, limit 200")
    refusals.add("10.0.0.2", SEND, BUSY, "waited 205 ms, limit 200")
    first, second = refusals.last_hour()
    assert (first.text, first.host, first.times) == ("waited 317 ms, limit 200", "10.0.0.1", 2)
    assert (first.response_code, first.request_code, first.last_s) == (BUSY, SEND, clock.now)
    assert (second.host, second.times) == ("10.0.0.2", 1)


def test_counts_are_those_of_the_last_hour(refusals: Refusals, clock: Clock) -> None:
    """Against a list of all, at drawn times."""
    drawn, seen = random.Random(5), list[float]()
    for _ in range(300):
        clock.now += drawn.choice([0.0, 1.0, 59.0, 61.0, 900.0, 4_000.0])
        refusals.add("h", SEND, BUSY, "no")
        seen.append(clock.now)
        minute = int(clock.now // 60)
        expected = sum(1 for at in seen if int(at // 60) > minute - 60)
        assert [one.times for one in refusals.last_hour()] == [expected]
    clock.now += 3_600
    assert refusals.last_hour() == []


def test_answers_that_are_no_refusals_are_not_counted(refusals: Refusals) -> None:
    refusals.add("h", RequestCode.PULL_MESSAGE, ResponseCode.PULL_NOT_FOUND, "nothing")
    refusals.add("h", RequestCode.GET_TOPIC_CONFIG, ResponseCode.TOPIC_NOT_EXIST, "none")
    assert refusals.last_hour() == []


def test_further_kinds_are_counted_together_until_old_ones_are_an_hour_old(
    refusals: Refusals, clock: Clock
) -> None:
    for number in range(MOST_KINDS + 50):
        refusals.add(f"host-{chr(0x4E00 + number)}", SEND, BUSY, "x" * 10_000)
    found = refusals.last_hour()
    assert len(found) == MOST_KINDS + 1
    assert (found[0].times, found[0].host, found[0].request_code) == (50, "", 0)
    assert max(len(one.text) for one in found) <= 200
    clock.now += 3_700
    refusals.add("new", SEND, BUSY, "no")
    assert [(one.host, one.times) for one in refusals.last_hour()] == [("new", 1)]


def test_a_broker_without_a_memory_of_refusals_goes_on_without() -> None:
    BrokerStats().note_refusal("h", SEND, BUSY, "no")


def test_rates_are_over_the_span_that_is_known(clock: Clock) -> None:
    growth = RecentGrowth(clock)
    assert growth.rates(0, 0, 0) is None
    growth.sample(1_000, 0, 0)
    clock.now += 4
    assert growth.rates(5_000, 0, 0) is None, "too short to tell"
    clock.now += 6
    rates = growth.rates(2_000, 50, 10)
    assert rates is not None
    assert (rates.written, rates.received, rates.sent) == (100.0, 5.0, 1.0)
    for step in range(1, 100):
        growth.sample(2_000 + step * 10_000, 0, 0)
        clock.now += 10
    rates = growth.rates(2_000 + 100 * 10_000, 0, 0)
    assert rates is not None
    assert rates.written == pytest.approx(1_000)


def test_a_disk_is_full_when_the_room_below_the_refusal_is_used_up() -> None:
    assert full_in_s(DiskRoom(0.5, 12_000_000), 1_000.0) == 12_000
    assert full_in_s(DiskRoom(0.95, 0), 1_000.0) == 0
    assert full_in_s(DiskRoom(0.5, 12_000_000), 0.0) is None
    assert full_in_s(DiskRoom(0.5, 12_000_000), None) is None
    assert full_in_s(None, 1_000.0) is None


def test_the_room_is_that_below_the_refusal_and_a_disk_counts_once(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        path.mkdir()
    names = [str(path) for path in paths]
    room = disk_room(names, 0.9, lambda _: DiskSpace(600, 400))
    assert room == DiskRoom(0.6, 300)
    assert disk_room(names, 0.5, lambda _: DiskSpace(600, 400)) == DiskRoom(0.6, 0)
    assert disk_room([str(tmp_path / "gone")], 0.9) is None
