"""Claims about the store's rates, totals of the day and put times."""

import random
import time
from pathlib import Path

import pytest

from aerobee.store.disk.files import Clock
from aerobee.store.message_store import MessageStore
from aerobee.store.store_stats import (
    BOUNDS_S,
    PUT_RANGES,
    SLOW_NS,
    Histogram,
    StoreStats,
    StoreStatsService,
    Totals,
    rate_text,
)
from tests.unit.store.support import message, small_settings

MS = 1_000_000


class HandClock(Clock):
    """Moves only when told; begins at eight in the evening, local time."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.evening_s = time.mktime((2026, 11, 21, 20, 0, 0, 0, 0, -1))

    def monotonic(self) -> float:
        return self.seconds

    def now_ms(self) -> int:
        return int((self.evening_s + self.seconds) * 1000)


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def stats() -> StoreStats:
    return StoreStats()


@pytest.fixture
def service(stats: StoreStats, clock: HandClock) -> StoreStatsService:
    return StoreStatsService(stats, clock)


# --- rates ----------------------------------------------------------------------------------------


def test_rates_use_their_own_windows(
    stats: StoreStats, clock: HandClock, service: StoreStatsService
) -> None:
    for second in range(700):
        clock.seconds += 1
        stats.appended_messages += 100 if second >= 690 else 10
        stats.get_found += 1
        stats.get_missed += 1
        stats.get_messages += 2
        service.sample()
    rates = service.rates()
    assert rates.put == pytest.approx((100, (10 * 100 + 50 * 10) / 60, (1000 + 590 * 10) / 600))
    assert rates.get_found == rates.get_miss == pytest.approx((1, 1, 1))
    assert rates.get_total == rates.get_transferred == pytest.approx((2, 2, 2))


def test_rates_of_a_young_store_count_from_its_start(
    stats: StoreStats, clock: HandClock, service: StoreStatsService
) -> None:
    assert service.rates().put == (0.0, 0.0, 0.0)
    stats.appended_messages = 30
    clock.seconds += 3
    assert service.rates().put == pytest.approx((10, 10, 10))


def test_samples_stay_bounded_and_ignore_a_hurried_timer(
    clock: HandClock, service: StoreStatsService
) -> None:
    for _ in range(5000):
        clock.seconds += 0.5
        service.sample()
    assert len(service._samples) <= 602


def test_morning_totals_move_at_local_midnight(
    stats: StoreStats, clock: HandClock, service: StoreStatsService
) -> None:
    stats.appended_messages, stats.get_messages = 5, 3
    clock.seconds += 3600
    service.sample()
    assert service.this_morning == Totals(0, 0)
    clock.seconds += 4 * 3600
    service.sample()
    assert (service.yesterday_morning, service.this_morning) == (Totals(0, 0), Totals(5, 3))
    stats.appended_messages += 2
    clock.seconds += 24 * 3600
    service.sample()
    assert (service.yesterday_morning, service.this_morning) == (Totals(5, 3), Totals(7, 3))


def test_rate_text_is_three_plain_numbers() -> None:
    assert rate_text((0.0, 1.23456, 100.0)) == "0.0 1.2346 100.0"


# --- put times ------------------------------------------------------------------------------------


def reference_range(value_ms: int) -> int:
    """The range in which RocketMQ counts a put of that many whole milliseconds
    (StoreStatsService)."""
    if value_ms <= 0:
        return 0
    bounds = (10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000)
    return 1 + sum(value_ms >= bound for bound in bounds)


def test_puts_are_in_the_reference_s_ranges(
    stats: StoreStats, clock: HandClock, service: StoreStatsService, seed: int
) -> None:
    source = random.Random(seed)
    expected = [0] * len(PUT_RANGES)
    edges = [edge + change for edge in SLOW_NS for change in (-1, 0, 1)]
    for duration_ns in edges + [int(10 ** source.uniform(2, 10.5)) for _ in range(2000)]:
        stats.append_times.add(duration_ns)
        expected[reference_range(duration_ns // MS)] += 1
    clock.seconds += 60
    service.sample()
    assert service.put_ranges() == expected
    assert 0 not in expected


def test_only_the_last_whole_minute_is_shown(
    stats: StoreStats, clock: HandClock, service: StoreStatsService
) -> None:
    assert service.put_ranges() == [0] * 13
    for minute in range(1, 4):
        stats.put_times.add_many(5000, minute)
        stats.put_times.add_many(20 * MS, 10 * minute)
        clock.seconds += 59
        service.sample()
        assert sum(service.put_ranges()) == 11 * (minute - 1)
        clock.seconds += 1
        service.sample()
        assert service.put_ranges()[:4] == [minute, 0, 10 * minute, 0]
    clock.seconds += 60
    service.sample()
    assert service.put_ranges() == [0] * 13
    assert service.put_percentile_ms(0.99) == 0.0
    assert stats.put_times.max_s == pytest.approx(0.02)


def test_percentiles_lie_within_the_bucket_of_the_true_value(
    stats: StoreStats, clock: HandClock, service: StoreStatsService, seed: int
) -> None:
    source = random.Random(seed)
    values = sorted(int(10 ** source.uniform(3, 9)) for _ in range(5000))
    for value in values:
        stats.put_times.add(value)
    clock.seconds += 60
    service.sample()
    for share in (0.5, 0.9, 0.99, 0.999):
        true_s = values[int(len(values) * share) - 1] / 1e9
        below = max((bound for bound in BOUNDS_S if bound <= true_s), default=0.0)
        assert below * 1000 <= service.put_percentile_ms(share) <= below * 2000 + 0.002
    assert service.put_percentile_ms(1.0) == pytest.approx(values[-1] / MS)


def test_what_is_negative_or_longer_than_all_ranges_has_its_place() -> None:
    times = Histogram()
    for duration_ns in (-5, 0, 999_999, 60_000 * MS):
        times.add(duration_ns)
    assert (times.counts[0], times.counts[-1], times.count) == (2, 1, 4)
    assert times.slow == [0] * 11 + [1]
    assert (times.sum_ns, times.max_ns) == (60_000 * MS + 999_999, 60_000 * MS)


def test_many_at_once_count_as_one_by_one() -> None:
    one_by_one, at_once = Histogram(), Histogram()
    for duration_ns, times in ((300, 3), (2 * MS, 5), (-1, 2), (7_000 * MS, 1)):
        at_once.add_many(duration_ns, times)
        for _ in range(times):
            one_by_one.add(duration_ns)
    assert [getattr(at_once, name) for name in Histogram.__slots__] == [
        getattr(one_by_one, name) for name in Histogram.__slots__
    ]


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_put_that_waits_for_its_flush_is_counted_by_who_waits(tmp_path: Path, flush: str) -> None:
    store = MessageStore.open(small_settings(tmp_path, flush_disk_type=flush))
    store.log.put(message())
    stats = store.stats
    assert stats.append_times.count == 1
    assert stats.put_times.count == (1 if flush == "ASYNC_FLUSH" else 0)
    assert store.stats_service.totals == Totals(1, 0)
    store.close()
