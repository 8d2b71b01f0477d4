"""The result of a job: DataFrames for programs, a report for people, an exit code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Exit codes as those of `aerobee store`.
DONE: Final = 0
DAMAGED: Final = 1
USAGE: Final = 2
COULD_NOT: Final = 3

_UNITS: Final = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


class JobFailed(Exception):
    """A job cannot go on; the text says what was found, where, and what to do."""

    def __init__(self, text: str, code: int = COULD_NOT) -> None:
        super().__init__(text)
        self.code = code


@dataclass(slots=True)
class JobResult:
    """`frames` by name; `facts` are numbers for scripts; `lines` are for people."""

    job: str
    frames: dict[str, DataFrame] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    code: int = DONE

    def say(self, title: str, text: str) -> None:
        """A line of the report, with a word in front that says what it is about."""
        self.lines.append(f"{title:<9} {text}")

    def table(self, title: str, rows: Sequence[Mapping[str, Any]], most: int = 20) -> None:
        """A table of the report; nothing if it is empty."""
        self.lines += table_lines(title, rows, most)


def table_lines(title: str, rows: Sequence[Mapping[str, Any]], most: int = 20) -> list[str]:
    """The rows under their title, aligned; of more than `most` the first ones."""
    if not rows:
        return []
    names = list(rows[0])
    cells = [[cell_text(row[name]) for name in names] for row in rows[:most]]
    right = [isinstance(rows[0][name], int | float) for name in names]
    lines = [[name.upper() for name in names], *cells]
    widths = [max(len(line[column]) for line in lines) for column in range(len(names))]
    found = ["", title]
    for line in lines:
        padded = [
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        ]
        found.append(("  " + "  ".join(padded)).rstrip())
    if len(rows) > most:
        found.append(f"  ... and {len(rows) - most} more")
    return found


def cell_text(value: object) -> str:
    """A value for people."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)


def size_text(count: int) -> str:
    """Bytes for people."""
    for unit, name in _UNITS:
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} bytes"


def key_values(texts: list[str], option: str) -> dict[str, str]:
    """KEY=VALUE of a repeatable option. Raises JobFailed."""
    pairs: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise JobFailed(f"{option} {text}: not KEY=VALUE", USAGE)
        pairs[key] = value
    return pairs
