"""JSON as fastjson writes and reads it (WIRE.md 4.1): standard parsers refuse what Java sends.

Reading. Standard JSON goes through msgspec, and so does what is standard but for bare whole
numbers as keys (tables of queues, which may be large). What that refuses goes through a reader of
our own that also knows bare numbers and whole objects as map keys, bare words as keys, single
quotes, comments, stray commas and raw control characters. Both give plain dict, list, str, int,
float, bool, None; all keys are str: a bare number is its digits, an object key is its canonical
compact text (what `dumps` gives), which is also the form newer fastjson accepts as a string key.
Of duplicate keys the last counts. `{"$ref": ...}` stays such a dict: nothing is resolved, and
`@type` means nothing.

Bounds: 32 levels, integers within i64, no NaN or infinity, a number of values that the caller may
choose, and a smaller one of what only our own reader can read: a value costs it fifty times as
much. Bytes that are no UTF-8 and lone surrogates are refused, or replaced where the caller says
so. Nothing but JsonError leaves `loads`, whatever the bytes.

Writing. No white space, members sorted, null members dropped (null elements stay), integer keys
quoted, which every client reads, objects as keys real objects, which the old ones insist on.
What has a `json_members()` is written as the object it returns, as a value and as a key.
"""

import base64
import math
import re
from collections.abc import Generator, Mapping
from decimal import Decimal
from json.encoder import encode_basestring
from typing import Any

import msgspec

MAX_DEPTH = 32
MAX_VALUES = 1_000_000
_ESCAPES_OF_A_VALUE = 8
# Values that are written in one step: some microseconds each.
_STEP = 64
_I64_MIN, _I64_MAX = -(2**63), 2**63 - 1

# Linear: each alternative starts with another character. Possessive: nothing is to be tried again,
# and a repeated group keeps 80 bytes on the way for each time, of which there may be a million.
_SKIP = re.compile(
    r"[\s\b\ufeff]*+(?://[^\n]*+[\s\b]*+|/\*[^*]*+(?:\*(?!/)[^*]*+)*+\*/[\s\b]*+)*+", re.DOTALL
)
_DOUBLE_QUOTED = re.compile(r'"([^"\\]*+(?:\\.[^"\\]*+)*+)"', re.DOTALL)
_SINGLE_QUOTED = re.compile(r"'([^'\\]*+(?:\\.[^'\\]*+)*+)'", re.DOTALL)
_NUMBER = re.compile(r"(-?\d{1,19})(\.\d{1,40})?([eE][+-]?\d{1,4})?[LSB]?", re.ASCII)
_WORD = re.compile(r"[A-Za-z_$][\w$.\-]*")
# Before and behind a bare whole number as a key: places, not texts, so that one native call puts a
# quote at all of them. A number that may be no i64, or has a zero in front, gets none before it.
_BEFORE_BARE_KEY = re.compile(rb"(?<=[{,])(?=(?:0|-?[1-9][0-9]{0,17}):)")
_BEHIND_BARE_KEY = re.compile(rb"(?<=[0-9])(?=:)")
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2}|.)", re.DOTALL)
_SIMPLE_ESCAPES = {
    '"': '"',
    "'": "'",
    "\\": "\\",
    "/": "/",
    "b": "\b",
    "f": "\f",
    "F": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    **{str(digit): chr(digit) for digit in range(8)},
}
_CONSTANTS: dict[str, Any] = {"true": True, "false": False, "null": None, "undefined": None}
# Also escaped by fastjson, beyond what JSON demands.
_ALSO_ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029]")


class JsonError(ValueError):
    """The bytes are not JSON in any dialect read here, or break a bound."""


def loads(
    data: bytes | str,
    max_values: int = MAX_VALUES,
    *,
    dialect_values: int | None = None,
    replace_broken_text: bool = False,
) -> Any:
    """The value of a JSON document; JsonError when the text has none or breaks a bound.

    `dialect_values` bounds the values of a document that is not standard JSON, where they are to
    be fewer than `max_values`; eight escapes in its texts cost as much as a value, and count
    alike. With `replace_broken_text`, broken UTF-8 and half surrogate pairs are read as Java does.
    """
    try:
        value = msgspec.json.decode(data)
    except (ValueError, RecursionError):
        try:
            value = msgspec.json.decode(_with_quoted_keys(data, max_values))
        except (ValueError, RecursionError):
            if dialect_values is not None:
                max_values = dialect_values - _escapes(data) // _ESCAPES_OF_A_VALUE
            return _read_dialect(data, max_values, replace_broken_text)
    _check_bounds(value, max_values)
    return value


def _escapes(data: bytes | str) -> int:
    return data.count("\\") if isinstance(data, str) else data.count(b"\\")


def _with_quoted_keys(data: bytes | str, max_values: int) -> bytes:
    """The document with bare whole numbers as keys in quotes. ValueError if it has no such key, if
    it has more texts than `max_values` values with their keys can be, or if quotes alone do not
    tell what is in a text from what is not.

    It may be no JSON before or after this. If it is JSON after, it says what the reader of the
    dialect would have read: outside of texts a digit before a colon ends a key.
    """
    if isinstance(data, str) or b"\\" in data or b"\0" in data:
        raise ValueError
    if data.count(b'"') > 4 * max_values:
        raise ValueError
    parts = data.split(b'"')
    outside = b"\0".join(parts[0::2])
    quoted, count = _BEFORE_BARE_KEY.subn(b'"', outside)
    if not count:
        raise ValueError
    parts[0::2] = _BEHIND_BARE_KEY.sub(b'"', quoted).split(b"\0")
    return b'"'.join(parts)


def _check_bounds(root: Any, max_values: int) -> None:
    level: list[Any] = [root]
    seen = depth = 0
    while level:
        seen += len(level)
        if seen > max_values:
            raise JsonError(f"more than {max_values} values")
        below: list[Any] = []
        containers = False
        for value in level:
            kind = type(value)
            if kind is dict:
                containers = True
                below.extend(value.values())
            elif kind is list:
                containers = True
                below.extend(value)
            elif kind is int and not _I64_MIN <= value <= _I64_MAX:
                raise JsonError("an integer does not fit 64 bits")
        depth += containers
        if depth > MAX_DEPTH:
            raise JsonError(f"more than {MAX_DEPTH} levels")
        level = below


def _read_dialect(data: bytes | str, max_values: int, replace: bool) -> Any:
    if not isinstance(data, str):
        try:
            data = decode_as_java(data) if replace else data.decode()
        except UnicodeDecodeError as error:
            raise JsonError(f"not UTF-8: {error.reason}") from error
    return _Reader(data, max_values, replace).document()


class _Reader:
    """A recursive descent over one text; recursion is bounded by MAX_DEPTH."""

    def __init__(self, text: str, max_values: int, replace: bool) -> None:
        self._text = text
        self._replace = replace
        self._position = 0
        self._values_left = max_values

    def document(self) -> Any:
        value = self._value(0)
        if self._peek():
            raise self._error("text follows the value")
        return value

    def _error(self, what: str) -> JsonError:
        return JsonError(f"{what} at character {self._position}")

    def _peek(self) -> str:
        """The next character that means something, "" at the end."""
        match = _SKIP.match(self._text, self._position)
        assert match is not None
        self._position = match.end()
        return self._text[self._position : self._position + 1]

    def _value(self, depth: int) -> Any:
        self._count()
        char = self._peek()
        if char == "{":
            return self._object(depth + 1)
        if char == "[":
            return self._array(depth + 1)
        if char in ('"', "'"):
            return self._string(char)
        if char and char in "-0123456789":
            return self._number()
        word = _WORD.match(self._text, self._position)
        if word is None or word.group() not in _CONSTANTS:
            raise self._error("no value")
        self._position = word.end()
        return _CONSTANTS[word.group()]

    def _object(self, depth: int) -> dict[str, Any]:
        self._enter(depth)
        members: dict[str, Any] = {}
        while (char := self._peek()) != "}":
            if char == ",":
                self._stray_comma()
                continue
            key = self._key(char, depth)
            if self._peek() != ":":
                raise self._error("no colon after a key")
            self._position += 1
            members[key] = self._value(depth)
            self._end_of_item("}")
        self._position += 1
        return members

    def _array(self, depth: int) -> list[Any]:
        self._enter(depth)
        elements: list[Any] = []
        while (char := self._peek()) != "]":
            if char == ",":
                self._stray_comma()
                continue
            elements.append(self._value(depth))
            self._end_of_item("]")
        self._position += 1
        return elements

    def _end_of_item(self, closing: str) -> None:
        char = self._peek()
        if char == ",":
            self._position += 1
        elif char != closing:
            raise self._error(f"no comma or {closing} after a value")

    def _stray_comma(self) -> None:
        # Counted as a value is, because it costs as much.
        self._position += 1
        self._count()

    def _count(self) -> None:
        self._values_left -= 1
        if self._values_left < 0:
            raise JsonError("too many values for what is not standard JSON")

    def _enter(self, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise JsonError(f"more than {MAX_DEPTH} levels")
        self._position += 1

    def _key(self, char: str, depth: int) -> str:
        if char in ('"', "'"):
            return self._string(char)
        if char in ("{", "["):
            return dumps(self._value(depth)).decode()
        if char and char in "-0123456789":
            return text_of(self._number())
        word = _WORD.match(self._text, self._position)
        if word is None:
            raise self._error("no key")
        self._position = word.end()
        return word.group()

    def _string(self, quote: str) -> str:
        pattern = _DOUBLE_QUOTED if quote == '"' else _SINGLE_QUOTED
        match = pattern.match(self._text, self._position)
        if match is None:
            raise self._error("a string without end")
        self._position = match.end()
        text = match.group(1)
        return _unescape(text, self._replace) if "\\" in text else text

    def _number(self) -> int | float:
        match = _NUMBER.match(self._text, self._position)
        if match is None:
            raise self._error("no number")
        self._position = match.end()
        if self._text[self._position : self._position + 1].isalnum():
            raise self._error("a number runs on")
        whole, fraction, exponent = match.groups()
        if fraction is None and exponent is None:
            number = int(whole)
            if not _I64_MIN <= number <= _I64_MAX:
                raise self._error("an integer does not fit 64 bits before this point,")
            return number
        real = float(whole + (fraction or "") + (exponent or ""))
        if not math.isfinite(real):
            raise self._error("a number is out of range before this point,")
        return real


def _unescape(text: str, replace: bool) -> str:
    unescaped = _ESCAPE.sub(_unescaped, text)
    if replace:
        return without_half_pairs(unescaped)
    # Escaped surrogate pairs are two characters until joined; one alone is no character.
    try:
        return unescaped.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError as error:
        raise JsonError("half a surrogate pair in a string") from error


def _unescaped(match: re.Match[str]) -> str:
    escape = match.group(1)
    if len(escape) > 1:
        return chr(int(escape[1:], 16))
    try:
        return _SIMPLE_ESCAPES[escape]
    except KeyError:
        raise JsonError(f"unknown escape {escape!r} in a string") from None


def dumps(value: Any) -> bytes:
    """The document in UTF-8. TypeError for a type that has no JSON form here."""
    return _text(value).encode()


def dumps_in_steps(value: Any) -> Generator[None, None, bytes]:
    """Return the text that `dumps` returns; yield after each `_STEP` values or so."""
    return (yield from _StepWriter().text(value)).encode()


class _StepWriter:
    """Writes one document; counts its values, at all levels together."""

    def __init__(self) -> None:
        self._values = 0

    def text(self, value: Any) -> Generator[None, None, str]:
        """Write a value as `_text` does, in steps."""
        self._values += 1
        if self._values % _STEP == 0:
            yield None
        if not isinstance(value, Mapping | str) and hasattr(value, "json_members"):
            value = value.json_members()
        if isinstance(value, Mapping):
            return (yield from self._object(value))
        if isinstance(value, list):
            texts: list[str] = []
            for one in value:
                texts.append((yield from self.text(one)))
            return f"[{','.join(texts)}]"
        return _text(value)

    def _object(self, members: Mapping[Any, Any]) -> Generator[None, None, str]:
        texts: list[tuple[Any, str]] = []
        sort_key = _own_key if all(type(key) is int for key in members) else _sort_text
        for member in members.items():
            key, value = member
            if value is not None:
                text = yield from self.text(value)
                texts.append((sort_key(member), f"{_key_text(key)}:{text}"))
        # No two members have equal keys, so values are never compared.
        texts.sort()
        return "{" + ",".join([text for _, text in texts]) + "}"


def text_of(value: Any) -> str:
    """A value as the text that Java would keep of it in a string field."""
    if type(value) is str:
        return value
    return "" if value is None else _text(value)


def quote(text: str) -> str:
    """The text as a JSON string with its quotes."""
    quoted = encode_basestring(text)
    if quoted.isascii() and "\x7f" not in quoted:
        return quoted
    return _ALSO_ESCAPED.sub(lambda match: f"\\u{ord(match.group()):04X}", quoted)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return quote(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return _double_text(value)
    if isinstance(value, Mapping):
        return _object_text(value)
    if hasattr(value, "json_members"):
        return _object_text(value.json_members())
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_text, value))}]"
    if isinstance(value, set | frozenset):
        return f"[{','.join(map(_text, sorted(value)))}]"
    if isinstance(value, bytes):
        return quote(base64.b64encode(value).decode())
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _object_text(members: Mapping[Any, Any]) -> str:
    present = [(key, value) for key, value in members.items() if value is not None]
    if all(type(key) is int for key, _ in present):
        present.sort()
    else:
        present.sort(key=_sort_text)
    return "{" + ",".join([f"{_key_text(key)}:{_text(value)}" for key, value in present]) + "}"


def _sort_text(member: tuple[Any, Any]) -> str:
    key = member[0]
    return key if isinstance(key, str) else _key_text(key)


def _own_key(member: tuple[Any, Any]) -> Any:
    return member[0]


def _key_text(key: Any) -> str:
    if isinstance(key, str):
        return quote(key)
    if isinstance(key, int):
        return f'"{int(key)}"'
    if hasattr(key, "json_members"):
        return _object_text(key.json_members())
    raise TypeError(f"{type(key).__name__} cannot be a JSON key")


def _double_text(value: float) -> str:
    """Java's Double.toString; NaN and infinities become null, as fastjson writes them."""
    if not math.isfinite(value):
        return "null"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)
    rest = "".join(map(str, digits[1:])) or "0"
    return f"{'-' if sign else ''}{digits[0]}.{rest}E{exponent + len(digits) - 1}"


# Broken text of headers is read as Java reads it: replaced, not refused (protocol/WIRE.md 1.2). A
# title that a program cut in the middle of an emoji, or wrote in Latin-1, arrives as bytes that are
# no UTF-8 or as half of a surrogate pair. RocketMQ's servers read the first as U+FFFD, as every
# Java program does, and write the second as "?" when they turn text into bytes. The text that is
# left holds no surrogate, so it can be stored, compared and sent back.

# Half a surrogate pair as if in UTF-8. To Java it is one fault, to Python one for each byte.
_HALF_PAIR = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")


def decode_as_java(data: bytes) -> str:
    """The text of `data`; what is no UTF-8 becomes U+FFFD, as often as in Java."""
    return _HALF_PAIR.sub(b"\xff", data).decode("utf-8", "replace")


def without_half_pairs(text: str) -> str:
    """`text` with its surrogate pairs joined and "?" for each half of a pair."""
    joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return joined.encode("utf-8", "replace").decode()
