"""A setting's declaration, and how its text becomes a value.

A setting is declared exactly once, as a field of one of the section classes (`settings/broker.py`
and its neighbours): the attribute name, its default and, through `setting()`, unit, range, reason
and RocketMQ's own key. Everything else is made from that declaration: the manual, the loader's
checks, the answer of `aerobee config show`.

The type of a setting is the type of its default: bool, int, float or str. There is no other type;
a list is one text with a separator, as in RocketMQ.

`effect` says what a setting does today: "now"; "later" (understood and checked, the part it steers
is not built yet); "never" (belongs to the JVM, to Netty or to a part that has no counterpart).
The last two are reported once at start when they are set, so that no operator relies on them. A
section class may say it, as `effect`, for all of its settings that do not say otherwise.

`live` is true of a setting that may change while the broker runs (`config/loading/reload.py`):
every part that uses it reads it from the one `Settings` object at each use, and keeps no copy.
"""

import re
from collections.abc import Callable, Mapping
from typing import (
    Any,
    ClassVar,
    Final,
    Literal,
    NamedTuple,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    dataclass_transform,
)

Value = bool | int | float | str
Effect = Literal["now", "later", "never"]

T = TypeVar("T", bool, int, float, str)

I32_MAX: Final = (1 << 31) - 1
I64_MAX: Final = (1 << 63) - 1

# The unit that the last word of a name says, for a number with a range that names no other.
_UNITS: Final = {
    "ms": "ms",
    "seconds": "s",
    "hours": "h",
    "bits": "bits",
    "bytes": "bytes",
    "pages": "pages of 4096 bytes",
    "files": "files",
    "messages": "messages",
    "events": "events",
    "percent": "percent",
}
_WHOLE_NUMBER: Final = re.compile(r"[+-]?[0-9]+", re.ASCII)
_DECIMAL_NUMBER: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)
_NOTHING: Final[Mapping[str, str]] = {}


class Limit(NamedTuple):
    """The bound that a setting (or a constant) sets; a row of docs/limits.md.

    `holds` says what is bounded, `hit` what happens then, `metric` what shows it. `bytes_each` is
    the memory that each unit of the value may take at worst, 0 when another limit counts it;
    `times` are settings, or properties of `Settings`, that this is multiplied with (true is 1).
    """

    holds: str
    hit: str
    metric: str
    bytes_each: int = 0
    times: tuple[str, ...] = ()


class _Options(TypedDict, total=False):
    """The optional parts of a declaration; the attributes of `Setting`."""

    unit: str
    within: tuple[int | float, int | float]
    clamp: bool
    choices: tuple[str, ...]
    separator: str
    aliases: tuple[str, ...]
    effect: Effect
    refused: Mapping[str, str]
    secret: bool
    limit: Limit
    live: bool
    key_of: str


class Setting(NamedTuple):
    """One declared setting. `name` is the attribute of `Settings`; `section`.`key` its own name;
    `within` is the lowest and the highest value; `key_of` says which program `rocketmq_key` is a
    key of: "RocketMQ", "RocketMQ 5" where 4.9 has none, or "Aerobee" where no RocketMQ has it."""

    name: str
    section: str
    default: Value
    rocketmq_key: str
    reason: str
    unit: str = ""
    within: tuple[int | float, int | float] | None = None
    clamp: bool = False
    choices: tuple[str, ...] = ()
    separator: str = ""
    aliases: tuple[str, ...] = ()
    effect: Effect = "now"
    refused: Mapping[str, str] = _NOTHING
    secret: bool = False
    limit: Limit | None = None
    live: bool = False
    key_of: str = "RocketMQ"

    @property
    def key(self) -> str:
        """Its name in its section: the attribute's, without the section's name before it."""
        return self.name.removeprefix(f"{self.section}_")

    @property
    def type(self) -> type[bool] | type[int] | type[float] | type[str]:
        return type(self.default)

    @property
    def full_key(self) -> str:
        """The name in our own files and on the command line, such as `broker.listen_port`."""
        return f"{self.section}.{self.key}"

    @property
    def range_text(self) -> str:
        """The allowed values, for the manual and for error messages."""
        if self.choices:
            return " or ".join(self.choices)
        if self.type is bool:
            return "true or false"
        return "{} to {}".format(*self.within) if self.within else ""

    def parse(self, text: str) -> Value:
        """Turn configuration text into a value of this setting's type; ValueError says why not."""
        if self.type is str:
            return text
        if self.type is bool:
            return _parse_bool(text)
        return _parse_number(self, text)

    def accept(self, value: object) -> Value:
        """Check an already typed value (TOML, flags); ValueError says what was wanted."""
        if isinstance(value, str) and self.type is not str:
            raise ValueError(f"must be {_article(self)}, not text in quotes")
        if self.separator and isinstance(value, list | tuple):
            return _join(self, value)
        if self.type is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if type(value) is not self.type:
            raise ValueError(f"must be {_article(self)}")
        assert isinstance(value, bool | int | float | str)
        return value

    def check(self, value: Value) -> Value:
        """Hold `value` against range, choices and refusals; returns it, clamped where allowed."""
        if isinstance(value, str):
            return self._check_text(value)
        if isinstance(value, bool):
            self._check_refused("true" if value else "false")
            return value
        low, high = self.within or (value, value)
        if low <= value <= high:
            return value
        if self.clamp:
            return self.type(min(max(value, low), high))
        unit = f" {self.unit}" if self.unit else ""
        raise ValueError(f"must be {self.range_text}{unit}")

    def _check_text(self, value: str) -> str:
        if any(ord(character) < 0x20 or ord(character) == 0x7F for character in value):
            raise ValueError("must not contain control characters")
        if not self.choices:
            return value
        for choice in self.choices:
            if choice.lower() == value.lower():
                self._check_refused(choice)
                return choice
        raise ValueError(f"must be {self.range_text}")

    def _check_refused(self, text: str) -> None:
        if text in self.refused:
            raise ValueError(self.refused[text])


class _Declared(NamedTuple):
    """The arguments of `setting`, until the section has read them."""

    default: Value
    options: Mapping[str, Any]


def setting(default: T, rocketmq_key: str = "", *, why: str, **options: Unpack[_Options]) -> T:
    """Declare an attribute of a section class, whose value there is the default. `why` is the
    reason printed in the manual."""
    declared = {"rocketmq_key": rocketmq_key, "reason": " ".join(why.split()), **options}
    return cast(T, _Declared(default, declared))


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Section:
    """The base of the section classes: `settings` are those that the class declares, in the order
    of its source.

    To a type checker it is a frozen dataclass. Python's own compiles methods for each class, which
    took a tenth of a start for 22 sections that only `Settings` makes an object of.
    """

    section: ClassVar[str] = ""
    effect: ClassVar[Effect] = "now"
    settings: ClassVar[tuple[Setting, ...]] = ()

    def __init_subclass__(cls) -> None:
        found = []
        for name, value in list(vars(cls).items()):
            if isinstance(value, _Declared):
                found.append(_setting_of(cls, name, value))
                setattr(cls, name, value.default)
        cls.settings = tuple(found)


def _setting_of(section: type[Section], name: str, declared: _Declared) -> Setting:
    options = {"effect": section.effect, **declared.options}
    if "within" in options:
        options.setdefault("unit", _UNITS.get(name.rpartition("_")[2], ""))
    return Setting(name, section.section, declared.default, **options)


def _parse_bool(text: str) -> bool:
    lowered = text.lower()
    if lowered not in ("true", "false"):
        raise ValueError("must be true or false")
    return lowered == "true"


def _parse_number(declared: Setting, text: str) -> int | float:
    """Whole numbers are plain decimals as in RocketMQ; ratios may have a point."""
    if declared.type is int:
        if not _WHOLE_NUMBER.fullmatch(text):
            raise ValueError(f"must be {_article(declared)}")
        return int(text)
    if not _DECIMAL_NUMBER.fullmatch(text):
        raise ValueError(f"must be {_article(declared)}")
    return float(text)


def _join(declared: Setting, values: list[Any] | tuple[Any, ...]) -> str:
    if not all(isinstance(value, str) for value in values):
        raise ValueError("must be a list of texts")
    return declared.separator.join(values)


_NOUNS: Final[Mapping[type, Callable[[str], str]]] = {
    bool: lambda unit: "true or false",
    int: lambda unit: f"a whole number of {unit}" if unit else "a whole number",
    float: lambda unit: f"a number of {unit}" if unit else "a number",
    str: lambda unit: "a text",
}


def _article(declared: Setting) -> str:
    """The values of the setting, as a noun: "a whole number of bytes, 1 to 9"."""
    noun = _NOUNS[declared.type](declared.unit)
    limits = declared.range_text
    return f"{noun}, {limits}" if limits and declared.type is not bool else noun


def toml_value(value: object) -> str:
    """A value as TOML writes it; texts have no control characters (`Setting.check`)."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return str(value)
