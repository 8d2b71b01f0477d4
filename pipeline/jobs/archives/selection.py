"""What of a log an archive is for. Its ledger counts log offsets, not messages, so one archive has
one selection for ever: with another, what is counted as archived would lack messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, Self


class ArchiveSelection(NamedTuple):
    """Topics (none: all), and store times [begin, end) in ms."""

    topics: tuple[str, ...] = ()
    begin_ms: int | None = None
    end_ms: int | None = None

    @classmethod
    def of(cls, topics: Sequence[str], begin_ms: int | None, end_ms: int | None) -> Self:
        """The same one, in whatever order topics are named."""
        return cls(tuple(sorted(set(topics))), begin_ms, end_ms)

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> Self:
        """From the fields of `_asdict`. Raises KeyError and TypeError."""
        return cls(tuple(fields["topics"]), fields["begin_ms"], fields["end_ms"])

    @property
    def is_everything(self) -> bool:
        """Whether nothing is left aside."""
        return self == ALL

    def __str__(self) -> str:
        found = f"messages of {', '.join(self.topics)}" if self.topics else "all messages"
        for word, time_ms in (("from", self.begin_ms), ("before", self.end_ms)):
            if time_ms is not None:
                time = datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(
                    timespec="milliseconds"
                )
                found += f" {'' if ' stored ' in found else 'stored '}{word} {time}"
        return found


ALL = ArchiveSelection()
