"""Byte positions of the stored message: no other module counts bytes (WIRE.md 6.1, FORMAT.md 2).

A record is the same bytes in the commit log, in a pull's answer and in a query's answer. All
integers are big-endian. B and S are the born and store host lengths: 8 for IPv4 (4 + port i32), 20
for IPv6, by bits 4 and 5 of the sysFlag; L body, T topic, P properties length in bytes.

    0 total size    4 magic       8 body CRC        12 queue id      16 flag
    20 queue offset 28 log offset 36 sysFlag        40 born time     48 born host (B)
    48+B store time               56+B store host (S)
    56+B+S reconsume times        60+B+S prepared transaction offset
    68+B+S body length, body      72+B+S+L topic length (i8), topic
    73+B+S+L+T properties length (i16), properties
"""

import socket
import struct
from functools import lru_cache

from aerobee.protocol.layouts import positions

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
PORT_BYTES = 4
BODY_LENGTH_BYTES = 4
TOPIC_LENGTH_BYTES = 1
# Everything but hosts, body, topic and properties.
FIXED_BYTES = 75
MIN_RECORD_BYTES = FIXED_BYTES + 2 * V4_HOST_BYTES
# Size and magic; these bytes always stay free after the last record of a segment.
BLANK_BYTES = 8

MAX_TOPIC_BYTES = 127

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


def _head_struct(born_bytes: int, store_bytes: int) -> struct.Struct:
    return struct.Struct(f">iIiiiqqiq{born_bytes}sq{store_bytes}siqi")


# All fields up to and with the body length, by the two host bits (0x00, 0x10, 0x20, 0x30).
HEADS: dict[int, struct.Struct] = {
    born_bit | store_bit: _head_struct(
        V6_HOST_BYTES if born_bit else V4_HOST_BYTES, V6_HOST_BYTES if store_bit else V4_HOST_BYTES
    )
    for born_bit in (0, SYS_BORN_HOST_V6)
    for store_bit in (0, SYS_STORE_HOST_V6)
}
#: The positions of the fields of a record with two IPv4 hosts, up to and with the body length.
V4_POSITIONS = positions(HEADS[0])
HOST_BITS = {
    (V4_HOST_BYTES, V4_HOST_BYTES): 0,
    (V6_HOST_BYTES, V4_HOST_BYTES): SYS_BORN_HOST_V6,
    (V4_HOST_BYTES, V6_HOST_BYTES): SYS_STORE_HOST_V6,
    (V6_HOST_BYTES, V6_HOST_BYTES): SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6,
}

SIZE_AND_MAGIC = struct.Struct(">iI")
#: Size, magic, queue id and queue offset: they tell a slot's own record at a glance.
SLOT_FIELDS = struct.Struct(">iI4xi4xq")
_INT = struct.Struct(">i")
PROPERTIES_LENGTH = struct.Struct(">h")


def properties_in(buffer: bytes | memoryview, position: int, end: int) -> bytes | None:
    """The properties of the record at [position, end); None if its lengths do not add up."""
    bits = _INT.unpack_from(buffer, position + SYS_FLAG_POSITION)[0]
    head = HEADS[bits & (SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6)].size
    # An i32 before the body, an i8 before the topic.
    topic_at = position + head + _INT.unpack_from(buffer, position + head - 4)[0]
    if not position + head <= topic_at < end:
        return None
    start = topic_at + 1 + buffer[topic_at] + PROPERTIES_LENGTH.size
    if start > end:
        return None
    size = PROPERTIES_LENGTH.unpack_from(buffer, start - PROPERTIES_LENGTH.size)[0]
    return bytes(buffer[start : start + size]) if 0 <= size <= end - start else None


def store_timestamp_position(sys_flag: int) -> int:
    """The position of the store time (i64) in a record with this sysFlag."""
    return BORN_HOST_POSITION + (V6_HOST_BYTES if sys_flag & SYS_BORN_HOST_V6 else V4_HOST_BYTES)


@lru_cache(maxsize=1024)
def pack_host(ip: str, port: int) -> bytes:
    """A host in record form: 4 or 16 address bytes and the port as i32.

    An IPv4 address mapped into IPv6 (::ffff:1.2.3.4, which a dual-stack socket reports) is stored
    as IPv4, as Java does. A scope (`%eth0`) is dropped. Raises ValueError when `ip` is not an
    address.
    """
    if ":" not in ip:
        return _inet(socket.AF_INET, ip) + _INT.pack(port)
    address = _inet(socket.AF_INET6, ip.partition("%")[0])
    if address.startswith(b"\0" * 10 + b"\xff\xff"):
        address = address[12:]
    return address + _INT.pack(port)


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
    return ip, int(_INT.unpack_from(host, len(host) - 4)[0])


def log_offset_at(record: bytes | memoryview, position: int = 0) -> int:
    """The log offset that the record at `position` claims."""
    start = position + LOG_OFFSET_POSITION
    return int.from_bytes(record[start : start + 8], "big")
