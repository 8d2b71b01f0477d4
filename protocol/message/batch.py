"""The body of SEND_BATCH_MESSAGE: messages one after the other, without a count (WIRE.md 6.2).

    total size i32 · magic i32 · CRC i32 · flag i32 · body length i32, body · properties length i16,
    properties

Size, magic and CRC are the client's claims; they are skipped, not trusted: the record gets its own.
All inner lengths are checked before anything is stored, so a batch is taken whole or not at all.
Code 10 with a batch flag has the same body.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from aerobee.protocol.errors import BadRequest
from aerobee.protocol.layouts import positions
from aerobee.protocol.message.properties import MAX_PROPERTIES_BYTES

_HEAD = struct.Struct(">iiiii")
_PROPERTIES_LENGTH = struct.Struct(">h")
ITEM_HEAD_BYTES = _HEAD.size
#: The positions of size, magic, CRC, flag and body length of a message.
ITEM_POSITIONS = positions(_HEAD)
MIN_ITEM_BYTES = ITEM_HEAD_BYTES + _PROPERTIES_LENGTH.size


class BatchItem(NamedTuple):
    """One message of a batch; topic, queue and times are those of the request."""

    flag: int
    body: bytes
    properties: bytes


def decode_batch(body: bytes) -> list[BatchItem]:
    """All messages of a batch body, at least one; properties are valid UTF-8.

    Raises BadRequest (MESSAGE_ILLEGAL) naming the message, counted from 0, that breaks the format.
    """
    items = list(batch_items(body))
    if not items:
        raise BadRequest.illegal_message("the batch holds no message")
    return items


def batch_items(body: bytes) -> Iterator[BatchItem]:
    """The messages of a batch body one after the other. Raises like `decode_batch`, except for an
    empty batch."""
    count = 0
    position = 0
    end = len(body)
    while position < end:
        if end - position < MIN_ITEM_BYTES:
            raise _broken(count, f"{end - position} bytes are left over")
        _size, _magic, _crc, flag, body_length = _HEAD.unpack_from(body, position)
        body_start = position + _HEAD.size
        if not 0 <= body_length <= end - body_start - 2:
            raise _broken(count, f"a body of {body_length} bytes does not fit")
        properties_start = body_start + body_length + 2
        (properties_length,) = _PROPERTIES_LENGTH.unpack_from(body, properties_start - 2)
        item_end = properties_start + properties_length
        if properties_length < 0 or item_end > end:
            raise _broken(count, f"properties of {properties_length} bytes do not fit")
        properties = body[properties_start:item_end]
        if not properties.isascii():
            _check_text(properties, count)
        yield BatchItem(flag, body[body_start : properties_start - 2], properties)
        count += 1
        position = item_end


def _check_text(properties: bytes, index: int) -> None:
    try:
        properties.decode()
    except UnicodeDecodeError as error:
        raise _broken(index, f"its properties are not UTF-8 ({error.reason})") from error


def _broken(index: int, reason: str) -> BadRequest:
    return BadRequest.illegal_message(f"message {index} of the batch is broken: {reason}")


def encode_batch(items: Iterable[BatchItem]) -> bytes:
    """The batch body of some messages, as clients send it (size set, magic and CRC 0).

    Raises ValueError when a message's properties are longer than 32,767 bytes.
    """
    parts: list[bytes] = []
    for flag, body, properties in items:
        if len(properties) > MAX_PROPERTIES_BYTES:
            raise ValueError(f"properties of {len(properties)} bytes, limit {MAX_PROPERTIES_BYTES}")
        size = MIN_ITEM_BYTES + len(body) + len(properties)
        parts.append(_HEAD.pack(size, 0, 0, flag, len(body)))
        parts.append(body)
        parts.append(_PROPERTIES_LENGTH.pack(len(properties)))
        parts.append(properties)
    return b"".join(parts)


def join_properties(inner: bytes, outer: bytes) -> bytes:
    """Stored properties of a batch's message: its own, a U+0002 if needed, the request's.

    Source: protocol/WIRE.md 6.2, store/FORMAT.md 2.6.
    """
    if inner and outer and not inner.endswith(b"\x02"):
        return inner + b"\x02" + outer
    return inner + outer
