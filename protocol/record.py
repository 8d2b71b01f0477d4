"""The stored message: the one place that knows its byte positions (wire spec 6.1, store spec 2).

A record is the same bytes in the commit log, in a pull's answer and in a query's answer. All
integers are big-endian. B and S are the born and store host lengths: 8 for IPv4 (4 + port i32), 20
for IPv6, told by bits 4 and 5 of the sysFlag; L body, T topic, P properties length in bytes.

    0 total size    4 magic       8 body CRC        12 queue id      16 flag
    20 queue offset 28 log offset 36 sysFlag        40 born time     48 born host (B)
    48+B store time               56+B store host (S)
    56+B+S reconsume times        60+B+S prepared transaction offset
    68+B+S body length, body      72+B+S+L topic length (i8), topic
    73+B+S+L+T properties length (i16), properties

Two readers: `decode_record` trusts a sound record (clients, queries), `check_record` trusts
nothing (recovery, audit): every length is bounded before it is used, the record must name its own
position, and what a torn page leaves behind (zeros in topic or properties, which the CRC does not
cover) is refused. Texts that other brokers may have stored, topics with a dot for example, pass:
refusing them here would cut a foreign log. `check_topic_name` guards what becomes a path.
"""

import socket
import struct
import zlib
from collections.abc import Callable
from functools import lru_cache

import msgspec

from aerobee.protocol.errors import CorruptRecord
from aerobee.protocol.hashing import tag_code
from aerobee.protocol.properties import PROPERTY_TAGS, decode_properties, index_keys

MESSAGE_MAGIC = 0xDAA320A7
BLANK_MAGIC = 0xCBD43194

TOTAL_SIZE_POSITION = 0
MAGIC_POSITION = 4
BODY_CRC_POSITION = 8
QUEUE_ID_POSITION = 12
FLAG_POSITION = 16
QUEUE_OFFSET_POSITION = 20
LOG_OFFSET_POSITION = 28
SYS_FLAG_POSITION = 36
BORN_TIMESTAMP_POSITION = 40
BORN_HOST_POSITION = 48

V4_HOST_BYTES = 8
V6_HOST_BYTES = 20
# Everything but hosts, body, topic and properties.
FIXED_BYTES = 75
MIN_RECORD_BYTES = FIXED_BYTES + 2 * V4_HOST_BYTES
# Size and magic; this much always stays free behind the last record of a segment.
BLANK_BYTES = 8

MAX_TOPIC_BYTES = 127
MAX_PROPERTIES_BYTES = 32767

SYS_COMPRESSED = 0x1
SYS_MULTI_TAGS = 0x2
SYS_TRANSACTION_MASK = 0xC
SYS_TRANSACTION_PREPARED = 0x4
SYS_TRANSACTION_COMMIT = 0x8
SYS_TRANSACTION_ROLLBACK = 0xC
SYS_BORN_HOST_V6 = 0x10
SYS_STORE_HOST_V6 = 0x20
SYS_COMPRESSION_MASK = 0x700
SYS_COMPRESSION_LZ4 = 0x100
SYS_COMPRESSION_ZSTD = 0x200
SYS_COMPRESSION_ZLIB = 0x300

_NO_HOST_BITS = ~(SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6)

RECORD, BLANK = 1, 0


def _head_struct(born_bytes: int, store_bytes: int) -> struct.Struct:
    return struct.Struct(f">iIiiiqqiq{born_bytes}sq{store_bytes}siqi")


# By the two host bits (0x00, 0x10, 0x20, 0x30): all fields up to and with the body length.
_HEADS: dict[int, struct.Struct] = {
    born_bit | store_bit: _head_struct(
        V6_HOST_BYTES if born_bit else V4_HOST_BYTES,
        V6_HOST_BYTES if store_bit else V4_HOST_BYTES,
    )
    for born_bit in (0, SYS_BORN_HOST_V6)
    for store_bit in (0, SYS_STORE_HOST_V6)
}
_HOST_BITS = {
    (V4_HOST_BYTES, V4_HOST_BYTES): 0,
    (V6_HOST_BYTES, V4_HOST_BYTES): SYS_BORN_HOST_V6,
    (V4_HOST_BYTES, V6_HOST_BYTES): SYS_STORE_HOST_V6,
    (V6_HOST_BYTES, V6_HOST_BYTES): SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6,
}
# The packer of a record's head, ready to call, by (born host bytes, store host bytes).
_PACKERS: dict[tuple[int, int], tuple[int, Callable[..., bytes]]] = {
    lengths: (bits, _HEADS[bits].pack) for lengths, bits in _HOST_BITS.items()
}
_V4_HEAD = _HEADS[0]
_HEAD_BYTES = {bits: head.size for bits, head in _HEADS.items()}
_SIZE_AND_MAGIC = struct.Struct(">iI")
_PROPERTIES_LENGTH = struct.Struct(">h")
_PORT = struct.Struct(">i")
_pack_properties_length = _PROPERTIES_LENGTH.pack
_crc32 = zlib.crc32

# A page that never reached the disk is a run of zeros of at least a sector (512 bytes). Where it
# meets a field it either touches the field's first or last byte or covers a whole sector in it.
_ZERO_RUN = b"\0" * 16


class StoreMessage(msgspec.Struct, gc=False):
    """A message on its way into the store; offsets and the store time are given by the append.

    `born_host` and `store_host` are in record form (`pack_host`), `properties` is the stored text
    in UTF-8, `tags_code` the hash for the consume queue, `keys` what the index finds it by.
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
        """The offsetMsgId: store host and log offset (wire spec 6.6)."""
        return f"{pack_host(*self.store_host).hex().upper()}{self.log_offset:016X}"

    @property
    def tags(self) -> str | None:
        """The tag text, None without one."""
        return self.properties.get(PROPERTY_TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        """UNIQ_KEY, then the words of KEYS."""
        return index_keys(self.properties)


class RecordHead(msgspec.Struct, gc=False):
    """What a strict check learned; positions count from the start of the record.

    `kind` is RECORD or BLANK. Of a blank only `size` means something: the bytes up to the end of
    the segment, as the blank itself claims; the caller knows where its segment ends.
    """

    kind: int
    size: int
    queue_id: int = 0
    queue_offset: int = 0
    sys_flag: int = 0
    store_timestamp_ms: int = 0
    topic: str = ""
    body_position: int = 0
    body_length: int = 0
    properties_position: int = 0
    properties_length: int = 0


class DispatchFields(msgspec.Struct, gc=False):
    """What consume queue and index need of a stored record."""

    topic: str
    queue_id: int
    queue_offset: int
    sys_flag: int
    size: int
    tags_code: int
    keys: tuple[str, ...]
    store_timestamp_ms: int


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

    The IPv6 bits of the sysFlag follow the host lengths, whatever the client sent. Limits are the
    caller's to check before; one broken here is an assertion or struct.error, never a bad record.
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


def encode_blank(size: int) -> bytes:
    """The 8 bytes that fill the last `size` bytes of a segment (store spec 2.4)."""
    return _SIZE_AND_MAGIC.pack(size, BLANK_MAGIC)


def decode_record(buffer: bytes | bytearray | memoryview, position: int = 0) -> Message:
    """The message at `position`; body and texts are copies.

    Raises CorruptRecord when lengths do not add up or a text is not UTF-8. The magic is not
    judged, nor the CRC: as clients do.
    """
    try:
        return _decode(memoryview(buffer), position)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise CorruptRecord(f"no message at position {position}: {error}") from error


def _decode(view: memoryview, position: int) -> Message:
    sys_flag = int.from_bytes(view[position + 36 : position + 40], "big", signed=True)
    head = _HEADS[sys_flag & 0x30]
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
    (properties_length,) = _PROPERTIES_LENGTH.unpack_from(view, topic_end)
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
    messages = []
    position = 0
    view = memoryview(body)
    while position < len(view):
        message = decode_record(view, position)
        messages.append(message)
        position += message.size
    return messages


def check_record(
    buffer: bytes | bytearray | memoryview,
    position: int,
    log_offset: int,
    limit: int,
    check_crc: bool = True,
) -> RecordHead:
    """The record or blank at `position`, believed in nothing (reliability B6, B17).

    `log_offset` is what the record must name as its own place, `limit` the position behind the
    last byte that may belong to it (the segment's end). Raises CorruptRecord with the reason.
    """
    room = limit - position
    if room < BLANK_BYTES or limit > len(buffer):
        raise CorruptRecord(f"{room} bytes at {log_offset} cannot hold a record")
    size, magic = _SIZE_AND_MAGIC.unpack_from(buffer, position)
    if magic == BLANK_MAGIC:
        if not BLANK_BYTES <= size <= room:
            raise CorruptRecord(f"blank at {log_offset} claims {size} of {room} bytes")
        return RecordHead(BLANK, size)
    if magic != MESSAGE_MAGIC:
        raise CorruptRecord(f"magic {magic:#010x} at {log_offset}")
    if not MIN_RECORD_BYTES <= size <= room:
        raise CorruptRecord(f"record at {log_offset} claims {size} of {room} bytes")
    return _check_fields(buffer, position, log_offset, size, check_crc)


def _check_fields(
    buffer: bytes | bytearray | memoryview,
    position: int,
    log_offset: int,
    size: int,
    check_crc: bool,
) -> RecordHead:
    # Bit 4 and 5 lie in the last byte of the sysFlag.
    head = _HEADS[buffer[position + 39] & 0x30]
    head_bytes = head.size
    if head_bytes + 3 > size:
        raise CorruptRecord(f"record at {log_offset} is shorter than its own fields")
    fields = head.unpack_from(buffer, position)
    crc, queue_id, queue_offset, own_offset, sys_flag = (
        fields[2],
        fields[3],
        fields[5],
        fields[6],
        fields[7],
    )
    body_length = fields[14]
    if own_offset != log_offset:
        raise CorruptRecord(f"record at {log_offset} names {own_offset} as its place")
    if queue_id < 0 or queue_offset < 0:
        raise CorruptRecord(f"record at {log_offset} has a negative queue id or queue offset")
    if not 0 <= body_length <= size - head_bytes - 3:
        raise CorruptRecord(f"record at {log_offset} claims a body of {body_length} bytes")
    body_start = position + head_bytes
    topic_at = body_start + body_length + 1
    properties_at = topic_at + buffer[topic_at - 1] + 2
    end = position + size
    if properties_at > end or topic_at == properties_at - 2:
        raise CorruptRecord(f"record at {log_offset} has no room for its topic")
    (properties_length,) = _PROPERTIES_LENGTH.unpack_from(buffer, properties_at - 2)
    if properties_length != end - properties_at:
        raise CorruptRecord(f"lengths of the record at {log_offset} do not add up")
    if check_crc and _crc32(buffer[body_start : topic_at - 1]) & 0x7FFFFFFF != crc:
        raise CorruptRecord(f"body of the record at {log_offset} does not match its CRC")
    topic = _checked_topic(bytes(buffer[topic_at : properties_at - 2]), log_offset)
    _check_properties(bytes(buffer[properties_at:end]), log_offset)
    return RecordHead(
        RECORD,
        size,
        queue_id,
        queue_offset,
        sys_flag,
        fields[10],
        topic,
        head_bytes,
        body_length,
        properties_at - position,
        properties_length,
    )


@lru_cache(maxsize=4096)
def _topic_text(encoded: bytes) -> str | None:
    """The topic, or None when these bytes cannot be one."""
    try:
        topic = encoded.decode()
    except UnicodeDecodeError:
        return None
    sound = topic.isprintable() and "/" not in topic and len(encoded) <= MAX_TOPIC_BYTES
    return topic if sound else None


def _checked_topic(encoded: bytes, log_offset: int) -> str:
    topic = _topic_text(encoded)
    if topic is None:
        raise CorruptRecord(f"topic of the record at {log_offset} is not a topic")
    return topic


def _check_properties(encoded: bytes, log_offset: int) -> None:
    if not encoded:
        return
    if encoded[0] == 0 or encoded[-1] == 0 or _ZERO_RUN in encoded:
        raise CorruptRecord(f"properties of the record at {log_offset} hold unwritten bytes")
    try:
        encoded.decode()
    except UnicodeDecodeError as error:
        raise CorruptRecord(f"properties of the record at {log_offset}: {error}") from error


def dispatch_fields(
    buffer: bytes | bytearray | memoryview, position: int, head: RecordHead
) -> DispatchFields:
    """What consume queue and index take from a checked record (reput that catches up).

    The same values as the append that stored it fed them, so both ways give the same bytes.
    """
    start = position + head.properties_position
    text = bytes(buffer[start : start + head.properties_length])
    properties = decode_properties(text)
    return DispatchFields(
        head.topic,
        head.queue_id,
        head.queue_offset,
        head.sys_flag,
        head.size,
        tag_code(properties.get(PROPERTY_TAGS, "")),
        index_keys(properties),
        head.store_timestamp_ms,
    )


@lru_cache(maxsize=1024)
def pack_host(ip: str, port: int) -> bytes:
    """A host in record form: 4 or 16 address bytes and the port as i32.

    An IPv4 address mapped into IPv6 (::ffff:1.2.3.4, what a dual-stack socket reports) is stored as
    IPv4, as Java does. A scope (`%eth0`) is dropped. Raises ValueError when `ip` is no address.
    """
    if ":" not in ip:
        return _inet(socket.AF_INET, ip) + _PORT.pack(port)
    address = _inet(socket.AF_INET6, ip.partition("%")[0])
    if address.startswith(b"\0" * 10 + b"\xff\xff"):
        address = address[12:]
    return address + _PORT.pack(port)


def _inet(family: int, ip: str) -> bytes:
    try:
        return socket.inet_pton(family, ip)
    except OSError as error:
        raise ValueError(f"{ip!r} is not an IP address") from error


@lru_cache(maxsize=1024)
def unpack_host(host: bytes) -> tuple[str, int]:
    """(ip, port) of a host in record form; ValueError unless it is 8 or 20 bytes long."""
    if len(host) == V4_HOST_BYTES:
        ip = socket.inet_ntop(socket.AF_INET, host[:4])
    elif len(host) == V6_HOST_BYTES:
        ip = socket.inet_ntop(socket.AF_INET6, host[:16])
    else:
        raise ValueError(f"a host has 8 or 20 bytes, not {len(host)}")
    return ip, int(_PORT.unpack_from(host, len(host) - 4)[0])
