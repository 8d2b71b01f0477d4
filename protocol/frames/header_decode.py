"""Command headers, bytes to a Command, in the three serializations.

JSON goes three ways, each slower and more forgiving than the one before (protocol/WIRE.md 1.2):
typed (msgspec fills the Command, 0.8 us; all Java and Go traffic), plain JSON whose values have
other types (numbers in extFields from C++ and Node, keys in another case), and fastjson's dialect
(comments, single quotes, bare keys, raw control characters). What a later way accepts must mean
what the first would have understood. Text that is no UTF-8, or half a surrogate pair, is replaced
as Java does it (java_text.py): it goes the last of these ways, or that of its form a second time.

Nothing but BadHeader leaves `decode_header`, whatever the bytes.
"""

import struct
from collections.abc import Callable
from typing import Any

import msgpack
import msgspec

from aerobee.protocol.codes import LANGUAGE_CODES, LANGUAGES, UNKNOWN_LANGUAGE, LanguageName
from aerobee.protocol.errors import BadHeader
from aerobee.protocol.frames.command import Command
from aerobee.protocol.frames.fastjson import JsonError, decode_as_java, loads, text_of
from aerobee.protocol.frames.header_encode import JSON, MSGPACK, ROCKETMQ

_BINARY_FIXED = struct.Struct(">hbhiii")
_LENGTH = struct.Struct(">i")
_unpack_length = _LENGTH.unpack_from
_MSGPACK_FIELDS = 7
# Values in a header that takes one of the slower ways; real ones have about twenty.
_MAX_FIELDS = 2_000

# The first way alone, for the frame cutter's hot path; raises what msgspec raises.
decode_typed = msgspec.json.Decoder(Command).decode


def decode_header(serialization: int, header: bytes) -> Command:
    """The Command (without body) of a header; BadHeader when the bytes are no header."""
    if serialization == JSON:
        command = _decode_json(header)
    elif serialization == ROCKETMQ:
        command = _decode_binary(header)
    elif serialization == MSGPACK:
        command = _decode_msgpack(header)
    else:
        raise BadHeader(f"serialization type {serialization} is unknown")
    # A JSON header may name these two members; what it says of them is void.
    command.body = b""
    command.serialization = serialization
    return command


def _decode_json(header: bytes) -> Command:
    try:
        return decode_typed(header)
    except (ValueError, RecursionError):
        # msgspec's own errors and UnicodeDecodeError are ValueErrors.
        return _decode_tolerant(header)


def _decode_tolerant(header: bytes) -> Command:
    try:
        members = loads(header, _MAX_FIELDS, replace_broken_text=True)
    except JsonError as error:
        raise BadHeader(f"the JSON header cannot be read: {error}") from error
    if not isinstance(members, dict):
        raise BadHeader("the JSON header is not an object")
    folded = {key.lower(): value for key, value in members.items()}
    remark = folded.get("remark")
    return Command(
        code=_int32(folded, "code"),
        ext=_text_fields(folded.get("extfields")),
        flag=_int32(folded, "flag"),
        language=_language(folded.get("language", "JAVA")),
        opaque=_int32(folded, "opaque"),
        remark=None if remark is None else text_of(remark),
        version=_int32(folded, "version"),
    )


def _int32(members: dict[str, Any], name: str) -> int:
    """A number that may come as text; absent, null and empty text are 0."""
    value = members.get(name)
    if value is None or value == "":
        return 0
    try:
        number = int(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise BadHeader(f"header member {name} is not a number") from error
    if not -0x80000000 <= number <= 0x7FFFFFFF:
        raise BadHeader(f"header member {name} does not fit 32 bits")
    return number


def _language(value: object) -> LanguageName:
    """A name or the position in the table; everything unknown is OTHER."""
    if isinstance(value, str) and value in LANGUAGE_CODES:
        return LANGUAGES[LANGUAGE_CODES[value]]
    if isinstance(value, int) and 0 <= value < len(LANGUAGES):
        return LANGUAGES[value]
    return UNKNOWN_LANGUAGE


def _text_fields(value: object) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadHeader("header member extFields is not an object")
    return {
        key: field if type(field) is str else text_of(field)
        for key, field in value.items()
        if field is not None
    }


def _decode_binary(header: bytes) -> Command:
    try:
        return _read_binary(header, bytes.decode)
    except UnicodeDecodeError:
        return _read_binary(header, decode_as_java)


def _read_binary(header: bytes, text: Callable[[bytes], str]) -> Command:
    try:
        code, language, version, opaque, flag, remark_length = _BINARY_FIXED.unpack_from(header)
        position = _BINARY_FIXED.size
        remark = None
        if remark_length:
            if not 0 <= remark_length <= len(header) - position:
                raise BadHeader(f"the binary header claims a remark of {remark_length} bytes")
            remark = text(header[position : position + remark_length])
            position += remark_length
        (ext_length,) = _unpack_length(header, position)
        position += 4
        ext: dict[str, str] = {}
        if ext_length > 0:
            ext = _binary_fields(header, position, position + ext_length, text)
    except (struct.error, IndexError) as error:
        raise BadHeader(f"the binary header cannot be read: {error}") from error
    return Command(
        code=code,
        ext=ext,
        flag=flag,
        language=LANGUAGES[language] if 0 <= language < len(LANGUAGES) else UNKNOWN_LANGUAGE,
        opaque=opaque,
        remark=remark,
        version=version,
    )


def _binary_fields(
    header: bytes, position: int, end: int, text: Callable[[bytes], str]
) -> dict[str, str]:
    """The entries from `position` to `end`; the last of duplicate keys counts."""
    if end > len(header):
        raise BadHeader(f"the binary header claims {end - position} bytes of fields")
    ext: dict[str, str] = {}
    while position < end:
        key_end = position + 2 + (header[position] << 8 | header[position + 1])
        (value_length,) = _unpack_length(header, key_end)
        value_start = key_end + 4
        key = text(header[position + 2 : key_end])
        # Lengths only ever move forward, so one check behind the loop sees every overrun; a
        # negative one would not.
        if value_length < 0:
            raise BadHeader(f"the binary header claims a field of {value_length} bytes")
        position = value_start + value_length
        if key:
            ext[key] = text(header[value_start:position])
    if position != end:
        raise BadHeader("a field of the binary header reaches beyond the others' end")
    return ext


def _unpack(header: bytes) -> Any:
    try:
        return msgpack.unpackb(header, raw=False, use_list=False)
    except UnicodeDecodeError:
        # Broken bytes come as surrogates, whole text as it is.
        fields = msgpack.unpackb(
            header, raw=False, use_list=False, unicode_errors="surrogateescape"
        )
        return _without_escapes(fields)


def _without_escapes(value: Any) -> Any:
    """The texts among fields and in their map with surrogate escapes replaced as Java does it."""
    if isinstance(value, str):
        return decode_as_java(value.encode("utf-8", "surrogateescape"))
    if isinstance(value, tuple):
        return tuple([_without_escapes(one) for one in value])
    if isinstance(value, dict):
        return {_without_escapes(key): _without_escapes(one) for key, one in value.items()}
    return value


def _decode_msgpack(header: bytes) -> Command:
    try:
        fields = _unpack(header)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise BadHeader(f"the MSGPACK header cannot be read: {error}") from error
    if type(fields) is not tuple or len(fields) != _MSGPACK_FIELDS:
        raise BadHeader("the MSGPACK header is not an array of seven")
    code, language, version, opaque, flag, remark, ext = fields
    numbers = (code, language, version, opaque, flag)
    if not all(type(n) is int and -0x80000000 <= n <= 0x7FFFFFFF for n in numbers):
        raise BadHeader("the MSGPACK header has numbers that are none")
    if remark is not None and type(remark) is not str:
        raise BadHeader("the MSGPACK header has a remark that is no text")
    if type(ext) is not dict or not {*map(type, ext), *map(type, ext.values())} <= {str}:
        raise BadHeader("the MSGPACK header has fields that are no texts")
    return Command(
        code=code,
        ext=ext,
        flag=flag,
        language=LANGUAGES[language] if 0 <= language < len(LANGUAGES) else UNKNOWN_LANGUAGE,
        opaque=opaque,
        remark=remark,
        version=version,
    )
