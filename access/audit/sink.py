"""Where audit events go: files (`audit_file.py`) or systemd's journal (`journal.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Place(NamedTuple):
    """A place among the events: the number of a file, and a byte in it. (0, 0) is the beginning."""

    file: int = 0
    position: int = 0


class Page(NamedTuple):
    """Lines of events, the place behind them, whether more may follow now, and how many lines
    could not be read."""

    lines: bytes
    next: Place
    more: bool
    damaged: int


class Sink(Protocol):
    """Keeps events. One thread at a time."""

    def write(self, events: Sequence[bytes]) -> None:
        """Keep lines of events; returns once they are kept. Raises OSError."""

    def begin(self, lines: Sequence[bytes], under_way: int) -> None:
        """Keep lines of changes that begin, while `under_way` others have begun and not ended.
        Raises OSError."""

    def page(self, place: Place, since_ms: int) -> Page:
        """Some of the events from a place on. Raises OSError, and BadRequest where events cannot
        be read again."""

    def close(self) -> None:
        """Let go of what is open."""
