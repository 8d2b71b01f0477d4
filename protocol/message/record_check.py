"""The strict reader of stored messages: recovery, audit and catching up believe nothing.

Every length is bounded before it is used, the record must name its own position, and the traces of
a torn page (zeros in topic or properties, which the CRC does not cover) are refused
(docs/reliability.md B6, B17). Texts that other brokers may have stored, topics with a dot for
example, pass: refusing them here would cut a foreign log. `check_topic_name` guards names that
become paths.

`check_record` judges one record. `scan_records` reads many for a rebuild, and each costs
microseconds: one loop in one function gives plain tuples. The loop itself finds nearly every record
sound, namely records with IPv4 hosts and plain ASCII around the body; `check_fields` judges the
rest.
"""

import struct
import zlib
from collections.abc import Callable
from functools import lru_cache
from operator import itemgetter
from typing import TypeAlias

import msgspec

from aerobee.protocol.errors import CorruptRecord
from aerobee.protocol.message.properties import MAX_PROPERTIES_BYTES
from aerobee.protocol.message.record_layout import (
    BLANK_BYTES,
    BLANK_MAGIC,
    HEADS,
    MAX_TOPIC_BYTES,
    MESSAGE_MAGIC,
    MIN_RECORD_BYTES,
    SIZE_AND_MAGIC,
    SYS_BORN_HOST_V6,
    SYS_STORE_HOST_V6,
)
from aerobee.protocol.message.record_seal import is_intact, is_sealed

RECORD, BLANK = 1, 0
#: The values of `check_crc`: check nothing; the body against its CRC; all of a sealed record
#: (`record_seal.py`), the body of others.
CHECK_NOTHING, CHECK_BODY, CHECK_WHOLE = 0, 1, 2

_crc32 = zlib.crc32

# The needed fields of a record with IPv4 hosts: size, magic, CRC, queue id, queue offset, log
# offset, sysFlag, store time, body length.
_PLAIN = struct.Struct(">iIii4xqqi16xq20xi")
_V6_HOSTS = SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6

#: The most records of a call: enough to be quick, few enough to report progress and to keep memory
#: small.
MOST_RECORDS = 512
MOST_BYTES = 16 << 20

# A page that never reached the disk is a run of zeros of at least a sector (512 bytes). In a field
# it either touches the field's first or last byte or covers a whole sector in it.
_ZERO_RUN = b"\0" * 16


class RecordHead(msgspec.Struct, gc=False):
    """The result of a strict check; positions count from the start of the record.

    `kind` is RECORD or BLANK. For a blank only `size` has a meaning: the bytes up to the end of the
    segment, as the blank itself claims; the caller knows where its segment ends.
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


#: The result of `scan_records` for a record: log offset, size, queue id, queue offset, sysFlag,
#: store time in ms, topic, body's position and length, properties' position and bytes. It is a
#: plain tuple, because a named tuple made reading a log 14 % dearer.
Checked: TypeAlias = tuple[int, int, int, int, int, int, str, int, int, int, bytes]
log_offset_of: Callable[[Checked], int] = itemgetter(0)
store_ms_of: Callable[[Checked], int] = itemgetter(5)


def end_of(record: Checked) -> int:
    """Log offset after a checked record."""
    return record[0] + record[1]


def check_record(
    buffer: bytes | bytearray | memoryview,
    position: int,
    log_offset: int,
    limit: int,
    check_crc: int = CHECK_BODY,
) -> RecordHead:
    """The record or blank at `position`, with every field checked (docs/reliability.md B6, B17).

    `log_offset` is what the record must name as its own place, `limit` the position after the last
    byte that may belong to it (the segment's end), `check_crc` one of the CHECK_ values (True is
    CHECK_BODY). Raises CorruptRecord with the reason.
    """
    room = limit - position
    if room < BLANK_BYTES or limit > len(buffer):
        raise CorruptRecord(f"{room} bytes at {log_offset} cannot hold a record")
    size, magic = SIZE_AND_MAGIC.unpack_from(buffer, position)
    if magic == BLANK_MAGIC:
        if not BLANK_BYTES <= size <= room:
            raise CorruptRecord(f"blank at {log_offset} claims {size} of {room} bytes")
        return RecordHead(BLANK, size)
    if magic != MESSAGE_MAGIC:
        raise CorruptRecord(f"magic {magic:#010x} at {log_offset}")
    if not MIN_RECORD_BYTES <= size <= room:
        raise CorruptRecord(f"record at {log_offset} claims {size} of {room} bytes")
    checked = check_fields(buffer, position, log_offset, size, check_crc)
    return RecordHead(RECORD, *checked[1:-1], len(checked[-1]))


def check_fields(
    buffer: bytes | bytearray | memoryview,
    position: int,
    log_offset: int,
    size: int,
    check_crc: int,
) -> Checked:
    """The rest of `check_record`, for a record whose magic and size have been looked at."""
    # Bit 4 and 5 lie in the last byte of the sysFlag.
    head = HEADS[buffer[position + 39] & 0x30]
    head_bytes = head.size
    if head_bytes + 3 > size:
        raise CorruptRecord(f"record at {log_offset} is shorter than its own fields")
    fields = head.unpack_from(buffer, position)
    crc, queue_id, _, queue_offset, own_offset, sys_flag = fields[2:8]
    body_length = fields[14]
    if own_offset != log_offset:
        raise CorruptRecord(f"record at {log_offset} names {own_offset} as its place")
    if queue_id < 0 or queue_offset < 0:
        raise CorruptRecord(f"record at {log_offset} has a negative queue id or queue offset")
    if not 0 <= body_length <= size - head_bytes - 3:
        raise CorruptRecord(f"record at {log_offset} claims a body of {body_length} bytes")
    body_start = position + head_bytes
    body_end = body_start + body_length
    # Topic length, topic, properties length, properties.
    tail = bytes(buffer[body_end : position + size])
    properties_at = tail[0] + 3
    if properties_at > len(tail) or properties_at == 3:
        raise CorruptRecord(f"record at {log_offset} has no room for its topic")
    properties_length = tail[properties_at - 2] << 8 | tail[properties_at - 1]
    if properties_length != len(tail) - properties_at or properties_length > MAX_PROPERTIES_BYTES:
        raise CorruptRecord(f"lengths of the record at {log_offset} do not add up")
    if check_crc == CHECK_WHOLE and is_sealed(record := bytes(buffer[position : position + size])):
        if not is_intact(record):
            raise CorruptRecord(f"record at {log_offset} does not match the CRC at its end")
    elif check_crc and _crc32(buffer[body_start:body_end]) & 0x7FFFFFFF != crc:
        raise CorruptRecord(f"body of the record at {log_offset} does not match its CRC")
    topic = topic_text(tail[1 : properties_at - 2])
    if topic is None:
        raise CorruptRecord(f"topic of the record at {log_offset} is not a topic")
    properties = tail[properties_at:]
    if not tail.isascii() or b"\0" in properties:
        _check_properties(properties, log_offset)
    return (
        log_offset,
        size,
        queue_id,
        queue_offset,
        sys_flag,
        fields[10],
        topic,
        head_bytes,
        body_length,
        head_bytes + body_length + properties_at,
        properties,
    )


def scan_records(
    buffer: bytes | bytearray | memoryview,
    position: int,
    log_offset: int,
    limit: int,
    check_crc: int = CHECK_BODY,
) -> list[Checked]:
    """The sound records from `position` on; parameters as for `check_record`.

    At most MOST_RECORDS, all of which begin within MOST_BYTES after the first.

    Ends before the first bytes that are not a sound record; `check_record` names their fault.
    """
    found: list[Checked] = []
    topics: dict[bytes, str] = {}
    unpack, crc32, head_bytes = _PLAIN.unpack_from, _crc32, _PLAIN.size
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
            and len(tail) - properties_at <= MAX_PROPERTIES_BYTES
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


def announced_size(buffer: bytes | memoryview, position: int) -> int:
    """The size that the record at `position` claims, read from its beginning alone; 0 if its size
    and its body's length do not fit each other, or too little of it is there.
    """
    if len(buffer) - position < HEADS[0x30].size:
        return 0
    (size, _) = SIZE_AND_MAGIC.unpack_from(buffer, position)
    head = HEADS[buffer[position + 39] & 0x30]
    body_length = int(head.unpack_from(buffer, position)[14])
    rest = size - head.size - body_length
    fits = body_length >= 0 and 3 < rest <= 3 + MAX_TOPIC_BYTES + MAX_PROPERTIES_BYTES
    return int(size) if fits else 0


@lru_cache(maxsize=4096)
def topic_text(encoded: bytes) -> str | None:
    """The topic of a record, or None when these bytes cannot be a topic."""
    try:
        topic = encoded.decode()
    except UnicodeDecodeError:
        return None
    sound = topic.isprintable() and "/" not in topic and len(encoded) <= MAX_TOPIC_BYTES
    return topic if sound else None


def _check_properties(encoded: bytes, log_offset: int) -> None:
    if not encoded:
        return
    if encoded[0] == 0 or encoded[-1] == 0 or _ZERO_RUN in encoded:
        raise CorruptRecord(f"properties of the record at {log_offset} hold unwritten bytes")
    try:
        encoded.decode()
    except UnicodeDecodeError as error:
        raise CorruptRecord(f"properties of the record at {log_offset}: {error}") from error
