"""The verdict from the ratios of pairs of runs, in figures and in words.

A pair is a run of this state of the code and a run of the other, one right after the other, and its
ratio is this / base. Pairs of a shared machine are not distributed by any law that a formula could
use: a neighbour's work hits one run of one pair and doubles its figure. So nothing is assumed but
that a pair's ratio lies above the true ratio as often as below. Then the number of n ratios below
it is a toss of n coins, and the true ratio lies between the k-th smallest and the k-th largest
ratio but for the chance that fewer than k coins of n fell on one side. The largest k for which that
chance is at most 1 % gives the interval: the outermost of nine ratios, the second of twelve from
either end, the third of fifteen. The range, smallest to largest, is printed beside it, and decides
nothing. One per cent and not five, because a run of five loads gives ten verdicts, and one wrong
verdict in every third run would be believed by nobody.

The verdict compares the interval with a tolerance of 5 % to either side of 1:

- Within the tolerance and with 1 inside, both states are level.
- On one side of 1, the states differ. How much is said when the interval spans no more than the
  tolerance does, and also when all of it lies beyond the tolerance.
- All others are too wide: they hold "level" as well as a difference that matters.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from statistics import median

TOLERANCE = 1.05
MISS = 0.01
#: With eight pairs the range as a whole just holds the true ratio so surely.
PAIRS_MIN = 9


@dataclass(frozen=True, slots=True)
class Ratio:
    """The median of some ratios, their range, and the interval that holds the true one."""

    median: float
    low: float
    high: float
    sure_low: float
    sure_high: float

    def __str__(self) -> str:
        return (
            f"{self.median:.3f} ({self.low:.3f}-{self.high:.3f}), "
            f"99 % {self.sure_low:.3f}-{self.sure_high:.3f}"
        )


def ratio_of(values: Sequence[float]) -> Ratio:
    """Summary of the ratios of at least PAIRS_MIN pairs."""
    assert len(values) >= PAIRS_MIN, values
    ordered = sorted(values)
    rank = rank_from_end(len(ordered))
    return Ratio(median(ordered), ordered[0], ordered[-1], ordered[rank - 1], ordered[-rank])


def rank_from_end(count: int) -> int:
    """The k of the module's text for `count` ratios."""
    rank, tosses = 0, 1
    while 2 * tosses <= MISS * 2**count:
        rank += 1
        tosses += comb(count, rank)
    return rank


def verdict(ratio: Ratio, more: str = "dearer", less: str = "cheaper") -> str:
    """In words: level, how much `more` or `less` this is than base, or that it cannot be said."""
    low, high = ratio.sure_low, ratio.sure_high
    if 1 / TOLERANCE <= low <= 1 <= high <= TOLERANCE:
        return "level"
    narrow = high / low <= TOLERANCE**2
    if low > 1 and (narrow or low > TOLERANCE):
        return _by(more, ratio.median - 1)
    if high < 1 and (narrow or high < 1 / TOLERANCE):
        return _by(less, 1 - ratio.median)
    return "too wide to judge"


def _by(word: str, difference: float) -> str:
    return f"{word} by {difference:.0%}".replace("%", " %") if difference >= 0.005 else "level"
