"""Java properties files, read as Java reads them (RocketMQ's broker.conf).

Bytes in, entries out. The dialect: `#` and `!` start a comment line; key and value are separated
by `=`, `:` or a blank; a backslash at the end of a line joins it with the next one, whose leading
blanks go; `\\t \\n \\r \\f \\uXXXX` are escapes and any other escaped character is itself. Java
reads ISO-8859-1; a file that is valid UTF-8 is read as UTF-8, with a note.

Java keeps trailing blanks of a value, which is never meant: they are kept here too, and the
loader trims them with a warning.
"""

import re
from typing import Final, NamedTuple

_BLANKS: Final = " \t\f"
_LINE_END: Final = re.compile(r"\r\n|\n|\r")
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_HEX_DIGITS: Final = re.compile(r"[0-9a-fA-F]{4}")


class PropertiesSyntaxError(ValueError):
    """A `\\u` escape without four hexadecimal digits, or half a surrogate pair; carries `line`."""

    def __init__(self, line: int, reason: str) -> None:
        self.line = line
        self.reason = reason
        super().__init__(f"line {line}: {reason}")


class Property(NamedTuple):
    """One key with its value; `line` counts from 1, where the key stands."""

    key: str
    value: str
    line: int


class Properties(NamedTuple):
    """All entries in file order (of a repeated key the last counts) and the encoding used."""

    entries: list[Property]
    encoding: str


def parse_properties(data: bytes) -> Properties:
    """Read a whole file. Raises PropertiesSyntaxError for a broken escape."""
    text, encoding = _decode(data)
    entries = [_entry(line, number) for number, line in _logical_lines(text)]
    return Properties(entries, encoding)


def _decode(data: bytes) -> tuple[str, str]:
    """Text and encoding: "ASCII" when both candidates read the bytes alike."""
    if data.isascii():
        return data.decode("ascii"), "ASCII"
    try:
        return data.decode("utf-8-sig"), "UTF-8"
    except UnicodeDecodeError:
        return data.decode("iso-8859-1"), "ISO-8859-1"


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """Lines with continuations joined, comments and blank lines left out, escapes untouched."""
    found: list[tuple[int, str]] = []
    pending: list[str] = []
    start = 0
    for number, line in enumerate(_LINE_END.split(text), 1):
        stripped = line.lstrip(_BLANKS)
        if not pending:
            if not stripped or stripped[0] in "#!":
                continue
            start = number
        if _is_continued(stripped):
            pending.append(stripped[:-1])
            continue
        _add(found, start, "".join([*pending, stripped]))
        pending = []
    _add(found, start, "".join(pending))
    return found


def _add(found: list[tuple[int, str]], number: int, line: str) -> None:
    if line:
        found.append((number, line))


def _is_continued(line: str) -> bool:
    """An odd number of backslashes at the end: the last one is not itself escaped."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _entry(line: str, number: int) -> Property:
    position = _key_end(line)
    value_at = position
    while value_at < len(line) and line[value_at] in _BLANKS:
        value_at += 1
    if value_at < len(line) and line[value_at] in "=:":
        value_at += 1
        while value_at < len(line) and line[value_at] in _BLANKS:
            value_at += 1
    key = _unescape(line[:position], number)
    return Property(key, _unescape(line[value_at:], number), number)


def _key_end(line: str) -> int:
    """Position of the first separator that is not escaped."""
    position = 0
    while position < len(line) and line[position] not in "=:" + _BLANKS:
        position += 2 if line[position] == "\\" else 1
    return min(position, len(line))


def _unescape(text: str, line: int) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if character != "\\":
            out.append(character)
            continue
        escaped = text[position : position + 1]
        position += 1
        if escaped == "u":
            out.append(_code_unit(text, position, line))
            position += 4
        else:
            out.append(_ESCAPES.get(escaped, escaped))
    return _join_surrogates("".join(out), line)


def _code_unit(text: str, position: int, line: int) -> str:
    digits = text[position : position + 4]
    if not _HEX_DIGITS.fullmatch(digits):
        raise PropertiesSyntaxError(
            line, f"\\u must be followed by four hex digits, not {digits!r}"
        )
    return chr(int(digits, 16))


def _join_surrogates(text: str, line: int) -> str:
    """Two escaped UTF-16 halves are one character; a lonely half is refused."""
    try:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        raise PropertiesSyntaxError(line, "half of a UTF-16 surrogate pair") from None
