"""Typed headers: extFields to attributes and back, declared once (protocol/WIRE.md 1.7).

A header is a struct whose attribute `queue_id` is the field `queueId`; `field(name="clientID")`
names the few that differ. Attribute types say how the text is read: `str`, `Int32`, `Int64`, `bool`
(true only for the word "true" in any case, as in Java), `float`, each `| None` when it may be
absent. Unlike the reference, which logs a missing or unreadable field and goes on with null, a
required field that is missing and a number that cannot be read are answered with code 1 and the
field's name. An empty text where a number belongs counts as absent: the binary header cannot tell
them apart. Unknown fields are ignored.
"""

from collections.abc import Callable, Mapping
from functools import cache
from types import NoneType
from typing import Annotated, Any, NamedTuple, Self, get_args

import msgspec
from msgspec.structs import fields as struct_fields

from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.fastjson import text_of

Int32 = Annotated[int, 32]
Int64 = Annotated[int, 64]
TRUE, FALSE = "true", "false"


class _Field(NamedTuple):
    attribute: str
    key: str
    parse: Callable[[str, str], Any]
    required: bool
    default: Any

    @property
    def bits(self) -> int:
        """How wide a number is; 0 for other types."""
        if self.parse is _parse_int32:
            return 32
        return 64 if self.parse is _parse_int64 else 0


class Header(msgspec.Struct, rename="camel", gc=False):
    """Base of the typed headers; `from_ext` and `to_ext` follow the declared attributes."""

    @classmethod
    def from_ext(cls, ext: Mapping[str, str]) -> Self:
        """The header in a command's ext; BadRequest (code 1) names the field that is wrong."""
        values = []
        for _, key, parse, required, default in fields_of(cls):
            text = ext.get(key)
            if text is None or (not text and parse is not _parse_text):
                if required:
                    raise missing_field(key)
                values.append(default)
            else:
                values.append(parse(key, text))
        return cls(*values)

    def to_ext(self) -> dict[str, str]:
        """The fields as text; those that are None are left out."""
        ext = {}
        for attribute, key, _, _, _ in fields_of(type(self)):
            value = getattr(self, attribute)
            if value is not None:
                ext[key] = text_of(value)
        return ext


def missing_field(key: str) -> BadRequest:
    """The answer to a request without a field that it needs."""
    return BadRequest.system_error(f"the field {key} is missing")


def parse_int(key: str, text: str, bits: int) -> int:
    """A decimal integer of at most `bits` bits; BadRequest (code 1) names the field."""
    # int() alone would take "1_000", " 1" and thousands of digits.
    if len(text) <= 20 and text.isascii() and text.lstrip("+-").isdigit():
        try:
            number = int(text)
        except ValueError:  # two signs
            number = None
        if number is not None:
            if -1 << bits - 1 <= number < 1 << bits - 1:
                return number
            raise BadRequest.system_error(f"the field {key} does not fit {bits} bits")
    shown = text if len(text) <= 64 else text[:64] + "..."
    raise BadRequest.system_error(f"the field {key} must be a number, got {shown!r}")


def parse_bool(text: str) -> bool:
    """Java's reading: true for the word "true" in any case, false for everything else."""
    return text.lower() == TRUE


def _parse_text(_key: str, text: str) -> str:
    return text


def _parse_int32(key: str, text: str) -> int:
    return parse_int(key, text, 32)


def _parse_int64(key: str, text: str) -> int:
    return parse_int(key, text, 64)


def _parse_bool(_key: str, text: str) -> bool:
    return parse_bool(text)


_PARSERS: dict[Any, Callable[[str, str], Any]] = {
    str: _parse_text,
    Int32: _parse_int32,
    Int64: _parse_int64,
    bool: _parse_bool,
}


@cache
def fields_of(header: type[Header]) -> tuple[_Field, ...]:
    """The fields of a header, in the order of its attributes."""
    table = []
    for info in struct_fields(header):
        kinds = [kind for kind in get_args(info.type) if kind is not NoneType]
        # Annotated[int, 32] has arguments too; only a union has a None among them.
        optional = NoneType in get_args(info.type)
        parse = _PARSERS[kinds[0] if optional else info.type]
        default = None if info.required else info.default
        table.append(_Field(info.name, info.encode_name, parse, info.required, default))
    return tuple(table)
