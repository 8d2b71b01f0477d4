"""What a filter of a DataFrame spares the source: queues, and ends of ranges, that cannot match.

Nothing is filtered exactly here: every filter is given back to Spark, which evaluates it on the
rows. Only conjunctions of single columns arrive. Times prune as far as the store times of a queue
ascend, which a clock set back breaks; that is one reason for the option `pushdown` to be off.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from aerobee.pipeline.brokers.offsets import Queue

_NAMES = ("topic", "brokerName", "queueId")


@dataclass(slots=True)
class Pruning:
    """Bounds that all wanted rows keep; times in ms, both ends included."""

    values: dict[str, set[Any]] = field(default_factory=dict)
    lowest: int = 0
    highest: int = (1 << 63) - 2
    from_ms: int | None = None
    to_ms: int | None = None

    def wants(self, queue: Queue) -> bool:
        """Whether any row of a queue can match."""
        parts = {"topic": queue.topic, "brokerName": queue.broker, "queueId": queue.number}
        return all(parts[name] in allowed for name, allowed in self.values.items())


def prune(filters: Iterable[Any]) -> Pruning:
    """The bounds that follow from Spark's filter objects; unknown ones bound nothing."""
    pruning = Pruning()
    for one in filters:
        path: tuple[str, ...] = tuple(getattr(one, "attribute", ()))
        column = path[0] if len(path) == 1 else ""
        kind, value = type(one).__name__, getattr(one, "value", None)
        if column in _NAMES:
            _names(pruning, column, kind, value)
        elif column == "queueOffset" and isinstance(value, int):
            _offsets(pruning, kind, value)
        elif column == "storeTimestamp" and isinstance(value, datetime) and value.tzinfo:
            _times(pruning, kind, value)
    return pruning


def _names(pruning: Pruning, column: str, kind: str, value: Any) -> None:
    if kind == "In" and isinstance(value, tuple | list):
        allowed = set(value)
    elif kind in ("EqualTo", "EqualNullSafe"):
        allowed = {value}
    else:
        return
    before = pruning.values.get(column)
    pruning.values[column] = allowed if before is None else before & allowed


def _offsets(pruning: Pruning, kind: str, value: int) -> None:
    if kind in ("EqualTo", "EqualNullSafe", "GreaterThanOrEqual", "GreaterThan"):
        pruning.lowest = max(pruning.lowest, value + (kind == "GreaterThan"))
    if kind in ("EqualTo", "EqualNullSafe", "LessThanOrEqual", "LessThan"):
        pruning.highest = min(pruning.highest, value - (kind == "LessThan"))


def _times(pruning: Pruning, kind: str, value: datetime) -> None:
    delta = value.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    time_ms = (delta.days * 86_400 + delta.seconds) * 1000 + delta.microseconds // 1000
    if kind in ("EqualTo", "EqualNullSafe", "GreaterThanOrEqual", "GreaterThan"):
        pruning.from_ms = max(time_ms, pruning.from_ms or time_ms)
    if kind in ("EqualTo", "EqualNullSafe", "LessThanOrEqual", "LessThan"):
        pruning.to_ms = min(time_ms, time_ms if pruning.to_ms is None else pruning.to_ms)
