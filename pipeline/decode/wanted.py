"""Which of the stored messages a reader wants: topics, queues, times, a range of the log.

Times are store times in ms, log offsets are byte positions in the commit log; both ranges include
their start and exclude their end. None means no limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is left of everything; the default wants all of it."""

    topics: frozenset[str] | None = None
    queue_ids: frozenset[int] | None = None
    start_ms: int | None = None
    end_ms: int | None = None
    start_offset: int | None = None
    end_offset: int | None = None

    def both(self, other: Wanted) -> Wanted:
        """What this and the other one want."""
        return Wanted(
            _common(self.topics, other.topics),
            _common(self.queue_ids, other.queue_ids),
            _later(self.start_ms, other.start_ms),
            _earlier(self.end_ms, other.end_ms),
            _later(self.start_offset, other.start_offset),
            _earlier(self.end_offset, other.end_offset),
        )

    @property
    def has_times(self) -> bool:
        """Whether it depends on the store time."""
        return self.start_ms is not None or self.end_ms is not None

    @property
    def has_rules_for_rows(self) -> bool:
        """Whether any message of the range of the log is not wanted."""
        return self.topics is not None or self.queue_ids is not None or self.has_times

    @property
    def is_nothing(self) -> bool:
        """Whether no message at all can be meant."""
        return (
            self.topics == frozenset()
            or self.queue_ids == frozenset()
            or _is_empty(self.start_ms, self.end_ms)
            or _is_empty(self.start_offset, self.end_offset)
        )


def _common(one: frozenset[T] | None, other: frozenset[T] | None) -> frozenset[T] | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other


def _later(one: int | None, other: int | None) -> int | None:
    return max([bound for bound in (one, other) if bound is not None], default=None)


def _earlier(one: int | None, other: int | None) -> int | None:
    return min([bound for bound in (one, other) if bound is not None], default=None)


def _is_empty(start: int | None, end: int | None) -> bool:
    return end is not None and end <= (start or 0)
