"""Latencies in buckets: what they forget, and what they must not."""

import random

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from aerobee.cli.bench.counts import LONGEST_US, Histogram, bucket_of, highest_of


def filled(values: list[int]) -> Histogram:
    made = Histogram()
    for value in values:
        made.record(value)
    return made


@given(st.integers(0, LONGEST_US))
def test_a_bucket_is_no_wider_than_a_part_in_128_of_its_values(value: int) -> None:
    highest = highest_of(bucket_of(value))
    assert value <= highest <= value + value / 128


def test_buckets_follow_each_other_without_a_gap() -> None:
    last = bucket_of(LONGEST_US)
    for bucket in range(last):
        assert bucket_of(highest_of(bucket)) == bucket
        assert bucket_of(highest_of(bucket) + 1) == bucket + 1


def test_percentiles_are_those_of_the_sorted_values() -> None:
    source = random.Random(7)
    values = [int(source.lognormvariate(7, 2)) for _ in range(10_000)]
    ordered = sorted(values)
    made = filled(values)
    for percent in (0.01, 50, 75, 95, 99, 99.9, 99.99, 100):
        exact = ordered[max(1, -int(-len(values) * percent // 100)) - 1]
        assert exact <= made.percentile_us(percent) <= exact * (1 + 1 / 128)
    assert made.max_us == ordered[-1]
    assert made.mean_us == sum(values) / len(values)


def test_of_nothing_all_is_zero() -> None:
    empty = Histogram()
    assert (empty.count, empty.mean_us, empty.percentile_us(99), empty.max_us) == (0, 0, 0, 0)
    assert empty.quantiles_us() == {}


def test_no_percentile_is_above_the_maximum() -> None:
    made = filled([1_000_001])
    assert made.percentile_us(50) == made.percentile_us(100) == made.max_us == 1_000_001


def test_what_is_longer_than_the_longest_counts_and_is_the_maximum() -> None:
    made = filled([1, LONGEST_US * 3])
    assert (made.count, made.max_us) == (2, LONGEST_US * 3)
    assert made.percentile_us(100) == LONGEST_US


def test_a_clock_that_went_back_counts_as_nothing() -> None:
    assert bucket_of(-5) == 0


def test_messages_of_one_request_count_each() -> None:
    made = Histogram()
    made.record(100, 32)
    made.record(300)
    assert (made.count, made.sum_us, made.percentile_us(95)) == (33, 3500, 100)


def test_two_added_are_what_one_would_have_counted() -> None:
    source = random.Random(8)
    values = [source.randrange(10_000_000) for _ in range(1000)]
    together = filled(values[:300])
    together.add(filled(values[300:]))
    assert together == filled(values)


def test_it_comes_to_another_process_as_it_was() -> None:
    made = filled([0, 5, 5, 1_000_000])
    there = msgspec.json.decode(msgspec.json.encode(made), type=Histogram)
    assert there == made
    assert (there.count, there.percentile_us(50)) == (4, 5)


def test_quantiles_grow_and_end_with_the_maximum() -> None:
    made = filled(list(range(1, 10_001)))
    quantiles = made.quantiles_us()
    assert list(quantiles) == sorted(quantiles)
    assert list(quantiles.values()) == sorted(quantiles.values())
    assert quantiles[0.0] == 1
    assert quantiles[50.0] == made.percentile_us(50)
    assert quantiles[100.0] == 10_000
    assert max(percent for percent in quantiles if percent < 100) > 99.9
    assert len(quantiles) < 200
