"""The statistics of `make pair`: the interval of a median, and what it is said to mean."""

import random

import pytest

from tests.bench.ratios import PAIRS_MIN, Ratio, rank_from_end, ratio_of, verdict


def between(low: float, high: float) -> Ratio:
    return Ratio((low + high) / 2, low - 0.1, high + 0.1, low, high)


@pytest.mark.parametrize(
    ("count", "rank"), [(8, 1), (9, 1), (11, 1), (12, 2), (15, 3), (18, 4), (20, 4), (23, 5)]
)
def test_rank_is_that_of_the_sign_test(count: int, rank: int) -> None:
    assert rank_from_end(count) == rank  # as in the tables of the binomial distribution


def test_summary_of_twelve_leaves_the_outermost_out_of_the_interval() -> None:
    ratio = ratio_of([1.03, 0.99, 5.0, 1.00, 1.01, 0.98, 0.2, 1.02, 0.97, 1.00, 1.00, 1.00])
    assert ratio == Ratio(1.00, 0.2, 5.0, 0.97, 1.03)
    assert str(ratio) == "1.000 (0.200-5.000), 99 % 0.970-1.030"


def test_fewer_pairs_than_nine_are_not_summed_up() -> None:
    with pytest.raises(AssertionError):
        ratio_of([1.0] * (PAIRS_MIN - 1))


def noisy(rng: random.Random, true: float, noise: float) -> float:
    """A pair as a neighbour's work makes it: now and then one of the runs takes twice as long."""
    wild = rng.choice([0.5, 2.0]) if rng.random() < 0.1 else 1.0
    return true * wild * rng.lognormvariate(0, noise)


def test_interval_holds_the_true_ratio_but_for_one_case_in_a_hundred(seed: int) -> None:
    rng = random.Random(seed)
    held = 0
    for _ in range(2000):
        ratio = ratio_of([noisy(rng, 1.02, 0.3) for _ in range(15)])
        held += ratio.sure_low <= 1.02 <= ratio.sure_high
    assert 0.985 <= held / 2000 <= 0.9995  # 99.26 % is exact


@pytest.mark.parametrize(
    ("true", "noise", "words"),
    [(1.0, 0.02, "level"), (1.15, 0.03, "dearer"), (0.85, 0.03, "cheaper"), (1.0, 0.3, "too wide")],
)
def test_verdict_on_noisy_pairs_is_right_nearly_always(
    true: float, noise: float, words: str, seed: int
) -> None:
    rng = random.Random(seed)
    verdicts = [verdict(ratio_of([noisy(rng, true, noise) for _ in range(15)])) for _ in range(500)]
    right = sum(one.startswith(words) for one in verdicts)
    undecided = sum(one.startswith("too wide") for one in verdicts)
    assert right > 410
    assert right + undecided > 485 or words == "too wide"


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (0.99, 1.01, "level"),
        (0.953, 1.049, "level"),
        (1.0005, 1.003, "level"),  # surely more, by nothing that counts
        (1.01, 1.03, "dearer by 2 %"),
        (1.01, 1.10, "dearer by 6 %"),
        (0.96, 0.98, "cheaper by 3 %"),
        (1.20, 1.60, "dearer by 40 %"),  # wide, and all of it beyond the tolerance
        (0.40, 0.60, "cheaper by 50 %"),
        (0.98, 1.07, "too wide to judge"),  # may be level, may be dearer than is allowed
        (0.94, 1.01, "too wide to judge"),
        (0.50, 2.00, "too wide to judge"),
        (1.01, 1.30, "too wide to judge"),
        (0.70, 0.99, "too wide to judge"),
    ],
)
def test_verdict_follows_from_the_interval(low: float, high: float, words: str) -> None:
    assert verdict(between(low, high)) == words


def test_verdict_takes_the_words_of_what_is_compared() -> None:
    assert verdict(between(1.09, 1.11), "quicker", "slower") == "quicker by 10 %"
    assert verdict(between(0.89, 0.91), "quicker", "slower") == "slower by 10 %"
