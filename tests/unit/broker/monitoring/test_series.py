"""Claims about the choice of series: sums are true, no counter falls, the largest are shown."""

import random
from operator import add

from aerobee.broker.broker_stats import OTHER
from aerobee.broker.monitoring.series import Labels, Shown, TopSeries, Vector

TOPIC = ("topic", "is_system")
REST = (OTHER, "false")


def nothing() -> None:
    pass


def key(number: int, system: str = "false") -> Labels:
    return (f"T{number}", system)


def total(shown: Shown) -> Vector:
    vectors = [*shown.own.values(), *shown.rest.values()]
    return tuple(map(sum, zip(*vectors, strict=True)))


def test_few_series_are_shown_as_they_are() -> None:
    values = {key(number): (number,) for number in range(10)}
    shown = TopSeries(TOPIC, 10, counts=True).choose(values, nothing)
    assert (shown.own, shown.rest, shown.folded) == (values, {}, 0)


def test_the_largest_have_their_own_and_the_sum_is_the_truth() -> None:
    values: dict[Labels, Vector] = {key(number): (number,) for number in range(1, 21)}
    shown = TopSeries(TOPIC, 5, counts=True).choose(values, nothing)
    assert shown.own == {key(number): (number,) for number in range(16, 21)}
    assert shown.rest == {REST: (sum(range(1, 16)),)}
    assert shown.folded == 15


def test_labels_of_few_values_keep_theirs_in_the_rest() -> None:
    values = {key(number, "true" if number % 2 else "false"): (1,) for number in range(20)}
    values |= {key(100): (5,), key(101): (5,)}
    shown = TopSeries(TOPIC, 2, counts=True).choose(values, nothing)
    assert shown.rest == {REST: (10,), (OTHER, "true"): (10,)}


def test_no_two_series_of_the_same_labels() -> None:
    """Where the counters themselves overflowed, one of them is called so already."""
    values = {key(number): (number,) for number in range(5)} | {REST: (1000,)}
    shown = TopSeries(TOPIC, 3, counts=True).choose(values, nothing)
    assert REST not in shown.own
    assert shown.rest == {REST: (1001,)}


def test_a_place_is_kept_against_who_is_not_much_larger() -> None:
    top = TopSeries(TOPIC, 1, counts=False)
    assert set(top.choose({key(1): (10,), key(2): (9,)}, nothing).own) == {key(1)}
    assert set(top.choose({key(1): (10,), key(2): (20,)}, nothing).own) == {key(1)}
    assert set(top.choose({key(1): (10,), key(2): (21,)}, nothing).own) == {key(2)}


def test_gauges_are_merged_as_their_family_says() -> None:
    values = {key(number): (number,) for number in range(1, 5)}
    largest = TopSeries(TOPIC, 1, counts=False, merge=max).choose(values, nothing)
    assert (largest.own, largest.rest) == ({key(4): (4,)}, {REST: (3,)})


def test_who_takes_a_place_goes_on_from_the_value_that_stood_there() -> None:
    top = TopSeries(TOPIC, 1, counts=True)
    top.choose({key(1): (10,), key(2): (4,)}, nothing)
    shown = top.choose({key(1): (10,), key(2): (50,)}, nothing)
    assert (shown.own, shown.rest) == ({key(2): (10,)}, {REST: (50,)})
    shown = top.choose({key(1): (11,), key(2): (57,)}, nothing)
    assert (shown.own, shown.rest) == ({key(2): (17,)}, {REST: (51,)})


def test_what_a_deleted_topic_had_counted_stays_in_the_rest() -> None:
    top = TopSeries(TOPIC, 1, counts=True)
    values: dict[Labels, Vector] = {key(1): (100,), key(2): (4,), key(3): (5,)}
    assert top.choose(values, nothing).rest == {REST: (9,)}
    del values[key(2)]
    assert top.choose(values, nothing).rest == {REST: (9,)}
    values[key(3)] = (8,)
    assert top.choose(values, nothing).rest == {REST: (12,)}
    del values[key(1)]
    shown = top.choose(values, nothing)
    assert (shown.own, shown.rest) == ({key(3): (0,)}, {REST: (12,)})


def test_sums_are_true_and_no_counter_falls_while_ranks_change() -> None:
    chance = random.Random(7)
    counts: dict[Labels, list[int]] = {key(number): [0, 0] for number in range(60)}
    top = TopSeries(TOPIC, 8, counts=True)
    places: set[Labels] = set()
    before: dict[Labels, Vector] = {}
    moved = 0
    for turn in range(200):
        for busy in chance.sample(sorted(counts), 12):
            counts[busy] = list(map(add, counts[busy], (chance.randrange(1 + turn), 3)))
        values: dict[Labels, Vector] = {one: tuple(count) for one, count in counts.items()}
        shown = top.choose(values, nothing)
        assert total(shown) == tuple(map(sum, zip(*values.values(), strict=True)))
        assert len(shown.own) == 8
        now = {**shown.own, **shown.rest}
        for one in before.keys() & now.keys():
            assert all(a <= b for a, b in zip(before[one], now[one], strict=True))
        moved += len(places - set(shown.own))
        places, before = set(shown.own), now
    assert moved > 5
