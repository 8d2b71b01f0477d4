"""Numbers about traffic that are made of sums: rates over time, and how evenly queues are used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Rate(NamedTuple):
    """Messages and bytes a second over the whole time, and in the busiest minute."""

    seconds: float
    messages: float
    bytes: float
    peak_messages: float
    peak_bytes: float
    peak_minute_ms: int


def rate(minutes: Sequence[tuple[int, int, int]]) -> Rate:
    """Of sums a minute: (its begin in ms, messages, bytes), in any order, quiet minutes left out.

    The whole time is from the first minute to the end of the last.
    """
    if not minutes:
        return Rate(0.0, 0.0, 0.0, 0.0, 0.0, 0)
    seconds = (max(one[0] for one in minutes) - min(one[0] for one in minutes)) / 1000 + 60
    busiest = max(minutes, key=lambda one: (one[1], one[2]))
    return Rate(
        seconds,
        sum(one[1] for one in minutes) / seconds,
        sum(one[2] for one in minutes) / seconds,
        busiest[1] / 60,
        max(one[2] for one in minutes) / 60,
        busiest[0],
    )


class Skew(NamedTuple):
    """How a topic's messages are spread over its queues: the busiest one's share, and how many
    times the mean that is."""

    queues: int
    busiest: int
    share: float
    times_mean: float


def skew(counts: dict[int, int]) -> Skew:
    """Of messages by queue id (at least one queue, at least one message)."""
    total = sum(counts.values())
    busiest = max(sorted(counts), key=lambda queue_id: counts[queue_id])
    most = counts[busiest]
    return Skew(len(counts), busiest, most / total, most * len(counts) / total)
