"""Selects stored messages: by topic, broker, queue, store time, a range of offsets.

Times are in ms; both ranges include their start and exclude their end. None means no limit. The
offsets are positions in the commit log for the reader of files, and queue offsets for the topic
source.

Spark's filters narrow a selection where less needs to be read. Every filter stays Spark's to
evaluate on the rows as well, so a filter that is not understood is no fault, and a bound may be
wider than the filter. Filters are recognised by the names of their classes, which PySpark has from
4.1 on. Times narrow as far as store times ascend, which a clock set back breaks; that is why the
option `pushdown` can be off.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

T = TypeVar("T")

_EQUAL: Final = ("EqualTo", "EqualNullSafe")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Selection:
    """The messages to be read; the default is all of them."""

    topics: frozenset[str] | None = None
    queue_ids: frozenset[int] | None = None
    start_ms: int | None = None
    end_ms: int | None = None
    start_offset: int | None = None
    end_offset: int | None = None
    brokers: frozenset[str] | None = None

    def intersect(self, other: Selection) -> Selection:
        """The selection of the rows that both select."""
        return Selection(
            _common(self.topics, other.topics),
            _common(self.queue_ids, other.queue_ids),
            _extreme(max, self.start_ms, other.start_ms),
            _extreme(min, self.end_ms, other.end_ms),
            _extreme(max, self.start_offset, other.start_offset),
            _extreme(min, self.end_offset, other.end_offset),
            _common(self.brokers, other.brokers),
        )

    def has_queue(self, topic: str, broker: str, queue_id: int) -> bool:
        """Whether messages of that queue may be selected."""
        return (
            (self.topics is None or topic in self.topics)
            and (self.brokers is None or broker in self.brokers)
            and (self.queue_ids is None or queue_id in self.queue_ids)
        )

    @property
    def has_times(self) -> bool:
        """Whether it depends on the store time."""
        return self.start_ms is not None or self.end_ms is not None

    @property
    def filters_rows(self) -> bool:
        """Whether it may leave out messages within its range of offsets."""
        return self.topics is not None or self.queue_ids is not None or self.has_times

    @property
    def is_empty(self) -> bool:
        """Whether no message at all can be selected."""
        return (
            self.topics == frozenset()
            or self.brokers == frozenset()
            or self.queue_ids == frozenset()
            or _is_empty(self.start_ms, self.end_ms)
            or _is_empty(self.start_offset, self.end_offset)
        )


def _common(one: frozenset[T] | None, other: frozenset[T] | None) -> frozenset[T] | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other


def _extreme(choose: Any, *bounds: int | None) -> int | None:
    given = [bound for bound in bounds if bound is not None]
    return choose(given) if given else None


def _is_empty(start: int | None, end: int | None) -> bool:
    return end is not None and end <= (start or 0)


def selection_of(filters: Iterable[Any], offset_column: str) -> Selection:
    """The messages that pass all of Spark's filters, and perhaps some more.

    `offset_column` is the column that offsets are compared with: queueOffset or commitLogOffset.
    """
    selection = Selection()
    for one in filters:
        column: tuple[str, ...] = tuple(getattr(one, "attribute", ()))
        if len(column) == 1 and hasattr(one, "value"):
            kind = type(one).__name__
            selection = selection.intersect(_selected(kind, column[0], one.value, offset_column))
    return selection


def _selected(kind: str, column: str, value: Any, offset_column: str) -> Selection:
    column = column.lower()
    if kind in _EQUAL or kind == "In":
        values = tuple(value) if kind == "In" else (value,)
        if column == "topic" and all(isinstance(each, str) for each in values):
            return Selection(topics=frozenset(values))
        if column == "brokername" and all(isinstance(each, str) for each in values):
            return Selection(brokers=frozenset(values))
        if column == "queueid" and all(isinstance(each, int) for each in values):
            return Selection(queue_ids=frozenset(values))
    # A time without a zone means the session's zone, which is not known here.
    if column == "storetimestamp" and isinstance(value, datetime) and value.tzinfo:
        start, end = _range(kind, (value - _EPOCH) // _MS, exact=False)
        return Selection(start_ms=start, end_ms=end)
    if column == offset_column.lower() and isinstance(value, int):
        # A record of the log is entered quickest where it begins.
        start, end = _range(kind, value, exact=column == "queueoffset")
        return Selection(start_offset=start, end_offset=end)
    return Selection()


def _range(kind: str, value: int, *, exact: bool) -> tuple[int | None, int | None]:
    """[start, end) around what passes; unless `exact`, the value itself is in it, since of a time
    the fraction of a millisecond was cut off."""
    if kind in _EQUAL:
        return value, value + 1
    if kind in ("GreaterThan", "GreaterThanOrEqual"):
        return value + (exact and kind == "GreaterThan"), None
    if kind in ("LessThan", "LessThanOrEqual"):
        return None, value + 1 - (exact and kind == "LessThan")
    return None, None
