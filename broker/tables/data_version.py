"""The version stamp of a table that brokers, name servers and slaves compare (FORMAT.md 11.2).

Two versions are the same only when both numbers are; every change moves both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class DataVersion(NamedTuple):
    """Time of the last change in ms, and how many changes there were."""

    timestamp_ms: int
    counter: int

    def next(self, now_ms: int) -> DataVersion:
        return DataVersion(now_ms, self.counter + 1)

    def to_json(self) -> dict[str, int]:
        return {"counter": self.counter, "timestamp": self.timestamp_ms}

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | None, now_ms: int) -> DataVersion:
        """Read a version; a missing one is of now, unchanged. Raises ValueError, TypeError."""
        if not value:
            return cls(now_ms, 0)
        if not isinstance(value, Mapping):
            raise ValueError("the data version is not an object")
        return cls(int(value.get("timestamp", now_ms)), int(value.get("counter", 0)))
