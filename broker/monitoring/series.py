"""Chooses the series of a family that stand for themselves, when there are more than a page should
hold.

A page has room for `limit` series of a family. The largest get a place of their own: counters by
what they counted since the start, gauges by their value. All others are added up in a series whose
names (topic, group and others of many values) read `__other__`; labels of few values
(`KEPT_LABELS`) keep theirs, so that a query that selects by one of them is still right.

A place is kept. A hidden series takes the place of a shown one only when it is more than twice as
large, and has the same kept labels; so two topics of one size do not change places at
every scrape, and Prometheus does not collect a series for each.

Sums come out right, and rates as well. Counters are the difficult part: a series that leaves the
rest must not make it smaller, because to Prometheus a counter that falls has begun again at 0. So a
newcomer leaves in the rest what it had counted there (its base) and goes on from the value of the
series whose place it takes: the sum over all series is at each scrape the true total, and no
counter jumps. A hidden series that is deleted (with its topic) stays in the rest for the same
reason.

Threads: only the thread that renders pages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import nlargest
from itertools import compress
from operator import add, sub
from typing import Final, NamedTuple, TypeAlias

from aerobee.broker.broker_stats import OTHER

Labels: TypeAlias = tuple[str, ...]
# A plain value alone, or the counts of a histogram's buckets and its sum.
Vector: TypeAlias = tuple[float, ...]

KEPT_LABELS: Final = frozenset({"message_type", "is_system", "is_retry"})
# How much larger a hidden series has to be to take the place of a shown series.
_TAKES_OVER: Final = 2


class Shown(NamedTuple):
    """One family on a page: series of their own, the rest, and how many make that up."""

    own: Mapping[Labels, Vector]
    rest: Mapping[Labels, Vector]
    folded: int


class TopSeries:
    """The choice for one family, from scrape to scrape. Gauges may name their own `merge`."""

    def __init__(
        self,
        labels: Labels,
        limit: int,
        *,
        counts: bool,
        merge: Callable[[float, float], float] = add,
    ) -> None:
        kept = tuple(label in KEPT_LABELS for label in labels)
        self._kept = (False,) * len(labels) if all(kept) else kept
        self._rest_keys: dict[tuple[str, ...], Labels] = {}
        self._limit = limit
        self._counts = counts
        self._merge = merge
        self._base: dict[Labels, Vector] = {}  # of each series with a place
        self._rest: dict[Labels, Vector] = {}  # as last shown
        self._deleted: dict[Labels, Vector] = {}  # what the rest keeps of series that are gone

    def choose(self, values: Mapping[Labels, Vector], step: Callable[[], None]) -> Shown:
        """The series to show of `values`; `step` is called for each that is looked at."""
        if len(values) <= self._limit and not self._rest:
            return Shown(values, {}, 0)
        base = self._base
        for key in [key for key in base if key not in values]:
            del base[key]
        # A key that already reads `__other__` is part of the rest.
        waiting = [key for key in values if key not in base and not self._is_rest(key)]
        self._give_places(values, waiting)
        own: dict[Labels, Vector] = {}
        rest: dict[Labels, Vector] = {}
        for key, vector in values.items():
            step()
            left = base.get(key)
            if left is not None:
                own[key] = _subtract(vector, left)
            if left is None or self._counts:
                self._merge_into(rest, self._rest_key(key), vector if left is None else left)
        if self._counts:
            rest = self._never_less(rest)
        self._rest = rest
        return Shown(own, rest, len(values) - len(own))

    def _give_places(self, values: Mapping[Labels, Vector], waiting: list[Labels]) -> None:
        """Give out free places, and let the much larger take others."""
        best = nlargest(self._limit, waiting, key=lambda key: _size(values[key]))
        free = self._limit - len(self._base)
        for key in best[:free]:
            # Without a rest on the page before, nothing can fall.
            keeps = self._counts and bool(self._rest)
            self._base[key] = values[key] if keeps else _zero(values[key])
        by_kind: dict[Labels, list[Labels]] = {}
        for key in sorted(self._base, key=lambda key: _size(values[key]), reverse=True):
            by_kind.setdefault(self._rest_key(key), []).append(key)
        for key in best[free:]:
            smallest = by_kind.get(self._rest_key(key))
            if smallest and _size(values[key]) > _TAKES_OVER * _size(values[smallest[-1]]):
                self._take_place(values, key, smallest.pop())

    def _take_place(self, values: Mapping[Labels, Vector], key: Labels, of: Labels) -> None:
        left = self._base.pop(of)
        if self._counts:
            # The newcomer's series goes on where the other one's ends.
            self._base[key] = _subtract(values[key], _subtract(values[of], left))
        else:
            self._base[key] = left

    def _rest_key(self, key: Labels) -> Labels:
        kept = tuple(compress(key, self._kept))
        found = self._rest_keys.get(kept)
        if found is None:
            pairs = zip(key, self._kept, strict=True)
            found = tuple(value if is_kept else OTHER for value, is_kept in pairs)
            self._rest_keys[kept] = found
        return found

    def _is_rest(self, key: Labels) -> bool:
        return OTHER in key and key == self._rest_key(key)

    def _merge_into(self, rest: dict[Labels, Vector], key: Labels, vector: Vector) -> None:
        known = rest.get(key)
        rest[key] = vector if known is None else tuple(map(self._merge, known, vector))

    def _never_less(self, rest: Mapping[Labels, Vector]) -> dict[Labels, Vector]:
        """The rest with what deleted series had in it."""
        whole: dict[Labels, Vector] = {}
        for key in {**self._rest, **rest}:
            before = self._rest.get(key)
            now = rest.get(key) or _zero(before or ())
            kept = self._deleted.get(key) or _zero(now)
            now = tuple(map(add, now, kept))
            if before is not None:
                missing = tuple(max(0, b - n) for b, n in zip(before, now, strict=True))
                self._deleted[key] = tuple(map(add, kept, missing))
                now = tuple(map(add, now, missing))
            whole[key] = now
        return whole


def _size(vector: Vector) -> float:
    """A plain value itself, or the number of observations of a histogram."""
    return vector[0] if len(vector) == 1 else sum(vector[:-1])


def _zero(vector: Vector) -> Vector:
    return (0,) * len(vector)


def _subtract(vector: Vector, other: Vector) -> Vector:
    return tuple(map(sub, vector, other))
