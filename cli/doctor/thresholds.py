"""Thresholds and lines of monitoring plugins, as Nagios and its kin read them.

A range says for which values there is no alert: `10` is 0 to 10, `10:` is 10 and more, `~:10` is 10
and less, `10:20` is what lies between, and `@10:20` turns that round.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple, Self

OK: Final = 0
WARNING: Final = 1
CRITICAL: Final = 2
UNKNOWN: Final = 3
STATES: Final = ("OK", "WARNING", "CRITICAL", "UNKNOWN")

_NUMBER: Final = r"-?(?:[0-9]{1,15}(?:\.[0-9]{0,9})?|\.[0-9]{1,9})"
_RANGE: Final = re.compile(rf"(?P<inside>@?)(?:(?P<low>~|{_NUMBER})?:)?(?P<high>{_NUMBER})?")
# A label has no quote and no equals sign; a line of data ends where a pipe begins it.
_NOT_IN_A_LABEL: Final = re.compile(r"[='|\s]+")


class Range(NamedTuple):
    """A range of values; `text` is how it was written."""

    low: float
    high: float
    alerts_inside: bool
    text: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError for a text that is no range."""
        found = _RANGE.fullmatch(text)
        if found is None or not text.strip("@"):
            raise ValueError(
                f"{text!r} is no range: a number, LOW:HIGH, LOW: or ~:HIGH, after @ or not"
            )
        low = found["low"] or "0"
        span = cls(
            float("-inf") if low == "~" else float(low),
            float("inf") if found["high"] is None else float(found["high"]),
            bool(found["inside"]),
            text,
        )
        if span.low > span.high:
            raise ValueError(f"{text!r} ends before it begins")
        return span

    def alerts(self, value: float) -> bool:
        """Whether this value is one to be told of."""
        return (self.low <= value <= self.high) is self.alerts_inside


class Thresholds(NamedTuple):
    """The two ranges of a check."""

    warning: Range
    critical: Range

    def state(self, value: float) -> int:
        """The exit code for a value."""
        if self.critical.alerts(value):
            return CRITICAL
        return WARNING if self.warning.alerts(value) else OK


class Measured(NamedTuple):
    """One value with its label; `unit` is "", "s", "%", "c" or "B", as the plugins have them."""

    label: str
    value: float
    unit: str = ""


def worst_of(thresholds: Thresholds, values: Sequence[Measured]) -> int:
    """The exit code for several values."""
    return max((thresholds.state(one.value) for one in values), default=OK)


def line_of(
    name: str,
    state: int,
    text: str,
    values: Sequence[Measured] = (),
    thresholds: Thresholds | None = None,
) -> str:
    """The one line of a plugin: state, text, performance data."""
    line = f"{name.upper()} {STATES[state]} - {text.replace('|', '/')}"
    data = " ".join(_data(one, thresholds) for one in values)
    return f"{line} | {data}" if data else line


def _data(one: Measured, thresholds: Thresholds | None) -> str:
    label = _NOT_IN_A_LABEL.sub("_", one.label)
    quoted = f"'{label}'" if re.search(r"[^A-Za-z0-9_.-]", label) else label
    ranges = "" if thresholds is None else f";{thresholds.warning.text};{thresholds.critical.text}"
    return f"{quoted}={one.value:.15g}{one.unit}{ranges}"
