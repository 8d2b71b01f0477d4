"""What Spark's filters say about which messages are wanted, as far as reading less follows from it.

Every filter stays Spark's to evaluate as well: what is said here only keeps bytes from being read
and rows from being made. So a filter that is not understood is no fault, and a bound may be wider
than the filter. Filters are told by the names of their classes, which PySpark has from 4.1 on.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from aerobee.pipeline.decode.wanted import Wanted

_EQUAL = ("EqualTo", "EqualNullSafe")


def wanted_by(filters: Iterable[Any]) -> Wanted:
    """The messages that pass all of these filters, and perhaps some more."""
    wanted = Wanted()
    for one in filters:
        column: tuple[str, ...] = getattr(one, "attribute", ())
        if len(column) == 1 and hasattr(one, "value"):
            wanted = wanted.both(_wanted(type(one).__name__, column[0].lower(), one.value))
    return wanted


def _wanted(kind: str, column: str, value: Any) -> Wanted:
    if kind in _EQUAL or kind == "In":
        values = tuple(value) if kind == "In" else (value,)
        if column == "topic" and all(isinstance(each, str) for each in values):
            return Wanted(topics=frozenset(values))
        if column == "queueid" and all(isinstance(each, int) for each in values):
            return Wanted(queue_ids=frozenset(values))
    if column == "storetimestamp":
        start, end = _range(kind, _milliseconds(value))
        return Wanted(start_ms=start, end_ms=end)
    if column == "commitlogoffset" and isinstance(value, int):
        start, end = _range(kind, value)
        return Wanted(start_offset=start, end_offset=end)
    return Wanted()


def _range(kind: str, value: int | None) -> tuple[int | None, int | None]:
    """[start, end) around what passes, an entry wider where a fraction was cut off."""
    if value is None:
        return None, None
    if kind in _EQUAL:
        return value, value + 1
    if kind in ("GreaterThan", "GreaterThanOrEqual"):
        return value, None
    if kind in ("LessThan", "LessThanOrEqual"):
        return None, value + 1
    return None, None


def _milliseconds(value: Any) -> int | None:
    """Of a moment with a time zone; one without means the session's zone, which is not known."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return int(value.timestamp() * 1000 // 1)
