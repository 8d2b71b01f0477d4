"""Encodes and decodes the stored message.

A record is the same bytes in the commit log, in a pull's answer and in a query's answer; its layout
is in record_layout.py. Two readers: `decode_record` here trusts a sound record (clients, queries),
`check_record` (record_check.py) trusts nothing (recovery, audit).
"""

import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache

import msgspec

from aerobee.protocol.errors import CorruptRecord
from aerobee.protocol.hashing import tag_code
from aerobee.protocol.message.ids import offset_msg_id
from aerobee.protocol.message.properties import (
    OF_ONE_RECORD,
    PROPERTY_TAGS,
    decode_properties,
    encode_properties,
    index_keys,
)
from aerobee.protocol.message.record_layout import (
    BLANK_MAGIC,
    FIXED_BYTES,
    HEADS,
    HOST_BITS,
    MAX_TOPIC_BYTES,
    MIN_RECORD_BYTES,
    PROPERTIES_LENGTH,
    SIZE_AND_MAGIC,
    SYS_BORN_HOST_V6,
    SYS_STORE_HOST_V6,
    pack_host,
    unpack_host,
)
from aerobee.protocol.message.record_seal import SEAL_BYTES, seal, sealable

_NO_HOST_BITS = ~(SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6)

# The packer of a record's head, ready to call, by (born host bytes, store host bytes).
_PACKERS: dict[tuple[int, int], tuple[int, Callable[..., bytes]]] = {
    lengths: (bits, HEADS[bits].pack) for lengths, bits in HOST_BITS.items()
}
_pack_properties_length = PROPERTIES_LENGTH.pack
_crc32 = zlib.crc32


class StoreMessage(msgspec.Struct, gc=False):
    """A message on its way into the store; offsets and the store time are given by the append.

    `born_host` and `store_host` are in record form (`pack_host`), `properties` is the stored text
    in UTF-8, `tags_code` the hash for the consume queue, `keys` the words by which the index finds
    it.
    """

    topic: str
    queue_id: int
    flag: int
    sys_flag: int
    born_timestamp_ms: int
    born_host: bytes
    store_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    properties: bytes
    tags_code: int = 0
    keys: tuple[str, ...] = ()


class Message(msgspec.Struct, gc=False):
    """A decoded record; `body` as stored, still compressed if the sysFlag says so."""

    topic: str
    queue_id: int
    flag: int
    queue_offset: int
    log_offset: int
    sys_flag: int
    born_timestamp_ms: int
    born_host: tuple[str, int]
    store_timestamp_ms: int
    store_host: tuple[str, int]
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    body_crc: int
    properties: dict[str, str]
    size: int

    @property
    def msg_id(self) -> str:
        """The offsetMsgId: store host and log offset (protocol/WIRE.md 6.6)."""
        return offset_msg_id(pack_host(*self.store_host), self.log_offset)

    @property
    def tags(self) -> str | None:
        """The tag text, None without one."""
        return self.properties.get(PROPERTY_TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        """UNIQ_KEY, then the words of KEYS."""
        return index_keys(self.properties)


def stored_again(
    message: Message, topic: str, queue_id: int, properties: Mapping[str, str]
) -> StoreMessage:
    """A message that was read, on its way into the store once more, in another queue and with these
    properties, without those that held for its first record only.

    All other values stay; the caller sets further differences.
    """
    kept = {name: value for name, value in properties.items() if name not in OF_ONE_RECORD}
    return StoreMessage(
        topic,
        queue_id,
        message.flag,
        message.sys_flag,
        message.born_timestamp_ms,
        pack_host(*message.born_host),
        pack_host(*message.store_host),
        message.reconsume_times,
        0,
        message.body,
        encode_properties(kept).encode(),
        tag_code(kept.get(PROPERTY_TAGS, "")),
        index_keys(kept),
    )


@lru_cache(maxsize=4096)
def _topic_field(topic: str) -> bytes:
    """Length byte and topic; cached because a broker sees the same topics again and again."""
    encoded = topic.encode()
    assert 0 < len(encoded) <= MAX_TOPIC_BYTES
    return bytes((len(encoded),)) + encoded


def record_size(message: StoreMessage) -> int:
    """Bytes that `encode_record` will give for the message."""
    return (
        FIXED_BYTES
        - 1
        + len(message.born_host)
        + len(message.store_host)
        + len(message.body)
        + len(_topic_field(message.topic))
        + len(message.properties)
    )


def encode_record(
    message: StoreMessage, queue_offset: int, log_offset: int, store_timestamp_ms: int
) -> bytes:
    """The record of a message at its final place.

    The IPv6 bits of the sysFlag follow the host lengths, whatever the client sent. The caller has
    checked the limits; a broken limit here is an assertion or struct.error, never a bad record.
    """
    body = message.body
    properties = message.properties
    born_host = message.born_host
    store_host = message.store_host
    topic = _topic_field(message.topic)
    body_length = len(body)
    host_bits, pack = _PACKERS[len(born_host), len(store_host)]
    return b"".join(
        (
            pack(
                74  # FIXED_BYTES without the topic's length byte, which is part of `topic`
                + len(born_host)
                + len(store_host)
                + body_length
                + len(topic)
                + len(properties),
                0xDAA320A7,
                _crc32(body) & 0x7FFFFFFF,
                message.queue_id,
                message.flag,
                queue_offset,
                log_offset,
                message.sys_flag & _NO_HOST_BITS | host_bits,
                message.born_timestamp_ms,
                born_host,
                store_timestamp_ms,
                store_host,
                message.reconsume_times,
                message.prepared_transaction_offset,
                body_length,
            ),
            body,
            topic,
            _pack_properties_length(len(properties)),
            properties,
        )
    )


def sealed_record_size(message: StoreMessage) -> int:
    """Bytes that `encode_sealed_record` will give for the message."""
    properties = sealable(message.properties)
    return record_size(message) - len(message.properties) + len(properties) + SEAL_BYTES


def encode_sealed_record(
    message: StoreMessage, queue_offset: int, log_offset: int, store_timestamp_ms: int
) -> bytes:
    """Do `encode_record`, with the CRC of the whole record as its last property."""
    properties = sealable(message.properties) + bytes(SEAL_BYTES)
    roomy = msgspec.structs.replace(message, properties=properties)
    record = encode_record(roomy, queue_offset, log_offset, store_timestamp_ms)[:-SEAL_BYTES]
    return record + seal(record)


def encode_blank(size: int) -> bytes:
    """The 8 bytes that fill the last `size` bytes of a segment (store/FORMAT.md 2.4)."""
    return SIZE_AND_MAGIC.pack(size, BLANK_MAGIC)


def decode_record(buffer: bytes | bytearray | memoryview, position: int = 0) -> Message:
    """The message at `position`; body and texts are copies.

    Raises CorruptRecord when lengths do not add up or a text is not UTF-8. Like clients, it judges
    neither the magic nor the CRC.
    """
    try:
        return _decode(memoryview(buffer), position)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise CorruptRecord(f"no message at position {position}: {error}") from error


def _decode(view: memoryview, position: int) -> Message:
    sys_flag = int.from_bytes(view[position + 36 : position + 40], "big", signed=True)
    head = HEADS[sys_flag & 0x30]
    (
        size,
        _magic,
        body_crc,
        queue_id,
        flag,
        queue_offset,
        log_offset,
        sys_flag,
        born_timestamp_ms,
        born_host,
        store_timestamp_ms,
        store_host,
        reconsume_times,
        prepared_transaction_offset,
        body_length,
    ) = head.unpack_from(view, position)
    body_start = position + head.size
    topic_length_at = body_start + body_length
    if body_length < 0 or size < MIN_RECORD_BYTES:
        raise CorruptRecord(f"impossible length in the message at position {position}")
    topic_end = topic_length_at + 1 + view[topic_length_at]
    (properties_length,) = PROPERTIES_LENGTH.unpack_from(view, topic_end)
    end = topic_end + 2 + properties_length
    if properties_length < 0 or end - position != size or end > len(view):
        raise CorruptRecord(f"lengths of the message at position {position} do not add up")
    return Message(
        str(view[topic_length_at + 1 : topic_end], "utf-8"),
        queue_id,
        flag,
        queue_offset,
        log_offset,
        sys_flag,
        born_timestamp_ms,
        unpack_host(born_host),
        store_timestamp_ms,
        unpack_host(store_host),
        reconsume_times,
        prepared_transaction_offset,
        bytes(view[body_start:topic_length_at]),
        body_crc,
        decode_properties(str(view[topic_end + 2 : end], "utf-8")),
        size,
    )


def decode_records(body: bytes | bytearray | memoryview) -> list[Message]:
    """All messages of a pull's or query's body, which has no count and no separators."""
    return list(iterate_records(body))


def iterate_records(body: bytes | bytearray | memoryview) -> Iterator[Message]:
    """The messages of such a body one by one, for a caller that may not want all of them."""
    position = 0
    view = memoryview(body)
    while position < len(view):
        message = decode_record(view, position)
        yield message
        position += message.size
