"""Options as Spark hands them over, made into typed values.

Spark gives every option as text, under a name whose case does not count. An unknown option is
refused by name, with the nearest known name: a misspelt filter that is silently ignored reads the
wrong messages. An error names the option and says what it may be; no error has the value of a
secret.

Imports nothing heavy: this runs in the short process in which Spark asks a source for its schema.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from aerobee.nearest_name import nearest_name
from aerobee.pipeline.decode.columns import KEYS, KEYS_TYPE, MAP_TYPE, PROPERTIES, Column, choose
from aerobee.pipeline.errors import OptionError, known_names

_TRUE: Final = frozenset({"true", "yes", "on", "1"})
_FALSE: Final = frozenset({"false", "no", "off", "0"})
_SIZE: Final = re.compile(r"(\d+)\s*([kmgt]?)i?b?", re.IGNORECASE)
_SHIFT: Final = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_DURATION: Final = re.compile(r"(\d+)\s*(ms|s|m|h|d|)", re.IGNORECASE)
_UNIT_MS: Final = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_INTEGER: Final = re.compile(r"[+-]?\d+")
#: The first millisecond after the year 9999, the last that ISO 8601 can say.
_END_MS: Final = 253_402_300_800_000


class OptionMap:
    """The options of one `format(...)`, looked up without regard to case.

    `known` are all names there are, as they are documented; `aliases` maps further names to those;
    the values of `secrets` are never shown; `foreign` says of an unknown name what it is called
    here. Raises OptionError for a name that is unknown or there twice.
    """

    def __init__(
        self,
        given: Mapping[str, str],
        known: Iterable[str],
        *,
        aliases: Mapping[str, str] | None = None,
        secrets: Collection[str] = (),
        foreign: Callable[[str], str | None] = lambda _name: None,
    ) -> None:
        self._names = list(known)
        self._secrets = {name.lower() for name in secrets}
        by_lower = {name.lower(): name for name in self._names}
        for alias, name in (aliases or {}).items():
            by_lower[alias.lower()] = name
        self._values: dict[str, str] = {}
        for written, value in given.items():
            known_as = by_lower.get(written.lower())
            if known_as is not None:
                if self._values.get(known_as, value) != value:
                    raise OptionError(f"option {known_as} is given twice, with different values")
                self._values[known_as] = value
            else:
                raise OptionError(
                    foreign(written)
                    or f"unknown option {written!r}{known_names(written, self._names)}"
                )

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    def given(self, names: Iterable[str]) -> list[str]:
        """Those of `names` that are given, in that order."""
        return [name for name in names if name in self]

    def required(self, name: str) -> str:
        """The text of an option that must be there and not be empty."""
        value = (self.text(name) or "").strip()
        if not value:
            raise OptionError(f"option {name} is required")
        return value

    def text(self, name: str, default: str | None = None) -> str | None:
        """The text as it was given."""
        assert name in self._names, name
        return self._values.get(name, default)

    def boolean(self, name: str, default: bool) -> bool:
        """true or false, also yes/no, on/off, 1/0."""
        text = self._stripped(name)
        if text is None:
            return default
        if text.lower() in _TRUE:
            return True
        if text.lower() in _FALSE:
            return False
        raise self.wrong(name, "is neither true nor false")

    def integer(
        self, name: str, default: int | None, minimum: int = 0, maximum: int = (1 << 63) - 1
    ) -> int | None:
        """A whole number of that range."""
        text = self._stripped(name)
        if text is None:
            return default
        if not _INTEGER.fullmatch(text):
            raise self.wrong(name, "is no whole number")
        return self._in_range(name, int(text), minimum, maximum)

    def size(self, name: str, default: int, minimum: int = 1, maximum: int = (1 << 63) - 1) -> int:
        """Bytes: a number, or a number with a unit of 1024: `128m`, `128MB`, `1g`."""
        text = self._stripped(name)
        if text is None:
            return default
        match = _SIZE.fullmatch(text)
        if match is None:
            raise self.wrong(name, "is no size: a number of bytes, or one with k, m or g")
        return self._in_range(name, int(match[1]) << _SHIFT[match[2].lower()], minimum, maximum)

    def timestamp_ms(self, name: str) -> int | None:
        """Milliseconds since 1970, given so or as ISO 8601; a time without a zone is UTC."""
        text = self._stripped(name)
        if text is None:
            return None
        try:
            return parse_time_ms(text)
        except ValueError as error:
            raise self.wrong(name, str(error)) from None

    def duration_ms(self, name: str, default: int) -> int:
        """Milliseconds: a number, or a number with ms, s, m, h or d: `90s`, `15m`."""
        text = self._stripped(name)
        if text is None:
            return default
        match = _DURATION.fullmatch(text)
        if match is None:
            raise self.wrong(name, "is no time: milliseconds, or a number with s, m, h or d")
        return self._in_range(name, int(match[1]) * _UNIT_MS[match[2].lower()], 1, 1 << 40)

    def choice(self, name: str, choices: Collection[str], default: str) -> str:
        """One of `choices`, in their spelling, whatever case it was given in."""
        text = self._stripped(name)
        if text is None:
            return default
        for one in choices:
            if one.lower() == text.lower():
                return one
        meant = nearest_name(text, choices)
        hint = f"; did you mean {meant!r}?" if meant else ""
        raise self.wrong(name, f"is not one of {', '.join(choices)}{hint}")

    def names(self, name: str) -> tuple[str, ...] | None:
        """A comma list without its blanks; None if it is not given. Empty places are refused."""
        text = self._stripped(name)
        if text is None:
            return None
        found = tuple(part.strip() for part in text.split(","))
        if not all(found):
            raise self.wrong(name, "has an empty place in its list")
        return found

    def wrong(self, name: str, what: str) -> OptionError:
        """The error of an option that is given and cannot be: names it and what it is."""
        shown = "" if name.lower() in self._secrets else f" {self._values.get(name, '')!r}"
        return OptionError(f"option {name}:{shown} {what}")

    def _stripped(self, name: str) -> str | None:
        value = self.text(name)
        return None if value is None else str(value).strip()

    def _in_range(self, name: str, value: int, minimum: int, maximum: int) -> int:
        if value < minimum:
            raise self.wrong(name, f"is less than {minimum}")
        if value > maximum:
            raise self.wrong(name, f"is more than {maximum}")
        return value


def read_columns(
    options: OptionMap, known: Sequence[Column], properties_format: str, more: Collection[str] = ()
) -> tuple[Column, ...]:
    """The columns that the options columns and keysFormat ask for, and after them those named
    `more`; the properties are text unless their format is map."""
    keys_format = options.choice("keysFormat", ("text", "array"), "text")
    types = {
        PROPERTIES: MAP_TYPE if properties_format == "map" else "string",
        KEYS: KEYS_TYPE if keys_format == "array" else "string",
    }
    typed = [one._replace(type=types.get(one.name, one.type)) for one in known]
    asked = options.names("columns")
    try:
        chosen = choose(typed, asked)
    except ValueError as error:
        raise OptionError(f"option columns: {error}") from error
    return (*chosen, *(one for one in typed if one.name in more and one not in chosen))


def parse_time_ms(text: str) -> int:
    """Milliseconds since 1970, given so or as ISO 8601; a time without a zone is UTC.

    Raises ValueError with what the text is, to be put after it.
    """
    if _INTEGER.fullmatch(text):
        time_ms = int(text)
        if time_ms < 0:
            raise ValueError("is less than 0: no message is older than 1970")
        if time_ms >= _END_MS:
            raise ValueError("is after the year 9999: it counts milliseconds since 1970")
        return time_ms
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            "is no time: milliseconds since 1970, or like 2026-11-21T10:00:00Z"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)
