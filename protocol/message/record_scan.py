"""Reads stored records in bulk, for rebuilds: each checked as by `check_record`, none in an object.

A rebuild of consume queues and index costs microseconds for each record, so there is one loop in
one function, and plain tuples come out of it. What nearly every record is, in order, with IPv4
hosts and plain ASCII around the body, the loop sees to be sound by itself; `check_fields` judges
the rest.
"""

import struct
import zlib

from aerobee.protocol.errors import CorruptRecord
from aerobee.protocol.message.record_check import CHECK_BODY, CHECK_WHOLE, Checked, check_fields
from aerobee.protocol.message.record_layout import (
    MESSAGE_MAGIC,
    MIN_RECORD_BYTES,
    SYS_BORN_HOST_V6,
    SYS_STORE_HOST_V6,
)

# The fields that are needed of a record with IPv4 hosts: size, magic, CRC, queue id, queue offset,
# log offset, sysFlag, store time, body length.
_PLAIN = struct.Struct(">iIii4xqqi16xq20xi")
_V6_HOSTS = SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6

#: Of one call: enough to be quick, few enough to tell progress and to keep memory small.
MOST_RECORDS = 512
MOST_BYTES = 16 << 20


def scan_records(
    buffer: bytes | bytearray | memoryview,
    position: int,
    log_offset: int,
    limit: int,
    check_crc: int = CHECK_BODY,
) -> list[Checked]:
    """The sound records from `position` on; parameters as of `check_record`.

    At most MOST_RECORDS, and none that begins MOST_BYTES or more behind the first.

    Ends before the first thing that is not a sound record; `check_record` tells what it is.
    """
    found: list[Checked] = []
    topics: dict[bytes, str] = {}
    unpack, crc32, head_bytes = _PLAIN.unpack_from, zlib.crc32, _PLAIN.size
    end = min(limit - MIN_RECORD_BYTES + 1, position + MOST_BYTES)
    while position < end and len(found) < MOST_RECORDS:
        size, magic, crc, queue_id, queue_offset, own, sys_flag, store_ms, length = unpack(
            buffer, position
        )
        if magic != MESSAGE_MAGIC or not MIN_RECORD_BYTES <= size <= limit - position:
            break
        body_at = position + head_bytes
        tail = bytes(buffer[body_at + length : position + size]) if length >= 0 else b""
        properties_at = tail[0] + 3 if tail else 0
        if (
            own == log_offset
            and queue_id >= 0
            and queue_offset >= 0
            and not sys_flag & _V6_HOSTS
            and 3 < properties_at <= len(tail)
            and (topic := topics.get(tail[1 : properties_at - 2]))
            and len(tail) - properties_at == tail[properties_at - 2] << 8 | tail[properties_at - 1]
            and (properties := tail[properties_at:]).isascii()
            and b"\0" not in properties
            and check_crc != CHECK_WHOLE
            and (not check_crc or crc32(buffer[body_at : body_at + length]) & 0x7FFFFFFF == crc)
        ):
            to_properties = head_bytes + length + properties_at
            found.append(
                (
                    log_offset, size, queue_id, queue_offset, sys_flag, store_ms, topic,
                    head_bytes, length, to_properties, properties,
                )
            )  # fmt: skip
        else:
            try:
                checked = check_fields(buffer, position, log_offset, size, check_crc)
            except CorruptRecord:
                break
            found.append(checked)
            topics[checked[6].encode()] = checked[6]
        position += size
        log_offset += size
    return found
