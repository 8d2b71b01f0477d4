"""Command headers, values to bytes, in the three serializations (protocol/WIRE.md 1.2, 1.3).

JSON (0): an object with keys in alphabetical order and all extFields values strings; clients exist
that read nothing else. ROCKETMQ (1): the binary form. MSGPACK (2): ours, between our own client and
broker, never sent to a peer that has not shown it:

    [code, language code, version, opaque, flag, remark or nil, {extFields}]

Every function here takes plain values so that replies can be written without making a Command.
"""

import struct
from collections.abc import Callable, Mapping

import msgpack
import msgspec

from aerobee.protocol.codes import LANGUAGE_CODES
from aerobee.protocol.layouts import positions

JSON = 0
ROCKETMQ = 1
MSGPACK = 2

#: The total length, without itself, and behind the serialization the length of the header.
FRAME_WORDS = struct.Struct(">II")
TOTAL_BYTES = 4
SERIALIZATION_SHIFT = 24
_BINARY_FIXED = struct.Struct(">hbhii")
#: The head of a binary header without a remark: code, language, version, opaque, flag, the lengths
#: of the remark and of the fields.
BINARY_HEAD = struct.Struct(">hbhiiii")
BINARY_POSITIONS = positions(BINARY_HEAD)
LENGTH = struct.Struct(">i")
KEY_LENGTH = struct.Struct(">h")
_OTHER_CODE = LANGUAGE_CODES["OTHER"]
_NO_ENTRIES = LENGTH.pack(0)


class _JsonHeader(msgspec.Struct, omit_defaults=True, gc=False):
    """The JSON members in their alphabetical order; None members are left out."""

    code: int
    extFields: Mapping[str, str] | None = None
    flag: int | None = None
    language: str | None = None
    opaque: int | None = None
    remark: str | None = None
    serializeTypeCurrentRPC: str | None = None
    version: int | None = None


#: The names of the members, in that order.
JSON_MEMBERS = _JsonHeader.__struct_fields__
_encode_json = msgspec.json.Encoder().encode


def json_header(
    code: int,
    ext: Mapping[str, str] | None,
    flag: int,
    language: str,
    opaque: int,
    remark: str | None,
    version: int,
) -> bytes:
    """The JSON form; `ext` None leaves `extFields` out, an empty one is written as `{}`."""
    return _encode_json(_JsonHeader(code, ext, flag, language, opaque, remark, "JSON", version))


def binary_header(
    code: int,
    ext: Mapping[str, str] | None,
    flag: int,
    language: str,
    opaque: int,
    remark: str | None,
    version: int,
) -> bytes:
    """The ROCKETMQ form; ValueError for a code beyond 32767, which it cannot carry."""
    if not -0x8000 <= code <= 0x7FFF:
        raise ValueError(f"code {code} does not fit the binary header")
    language_code = LANGUAGE_CODES.get(language, _OTHER_CODE)
    remark_bytes = remark.encode() if remark else b""
    parts = [
        _BINARY_FIXED.pack(code, language_code, version, opaque, flag),
        LENGTH.pack(len(remark_bytes)),
        remark_bytes,
    ]
    if ext:
        entries = binary_entries(ext)
        parts.append(LENGTH.pack(len(entries)))
        parts.append(entries)
    else:
        parts.append(_NO_ENTRIES)
    return b"".join(parts)


def binary_entries(ext: Mapping[str, str]) -> bytes:
    """The entries of a binary extFields map: key length i16, key, value length i32, value."""
    parts: list[bytes] = []
    for key, value in ext.items():
        key_bytes = key.encode()
        value_bytes = value.encode()
        parts.append(KEY_LENGTH.pack(len(key_bytes)))
        parts.append(key_bytes)
        parts.append(LENGTH.pack(len(value_bytes)))
        parts.append(value_bytes)
    return b"".join(parts)


def msgpack_header(
    code: int,
    ext: Mapping[str, str] | None,
    flag: int,
    language: str,
    opaque: int,
    remark: str | None,
    version: int,
) -> bytes:
    """Our own compact form."""
    language_code = LANGUAGE_CODES.get(language, _OTHER_CODE)
    packed = msgpack.packb([code, language_code, version, opaque, flag, remark, dict(ext or {})])
    assert isinstance(packed, bytes)
    return packed


HeaderEncoder = Callable[[int, Mapping[str, str] | None, int, str, int, str | None, int], bytes]
# Position = serialization type.
HEADER_ENCODERS: tuple[HeaderEncoder, ...] = (json_header, binary_header, msgpack_header)


def frame(serialization: int, header: bytes, body: bytes) -> bytes:
    """A whole frame."""
    header_length = len(header)
    words = FRAME_WORDS.pack(4 + header_length + len(body), serialization << 24 | header_length)
    return b"".join((words, header, body)) if body else words + header
