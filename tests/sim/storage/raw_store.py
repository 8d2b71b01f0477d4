"""Reads a store's files without any of its code: what the checker takes for the truth.

Written from store/FORMAT.md. Works on an image (path to bytes), so a state of the disk can be
judged before anything has opened it.
"""

import json
import struct
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

_HEAD = struct.Struct(">iIIiiqqiq")  # up to the born time
_MAGIC = 0xDAA320A7
BLANK = 0xCBD43194
BLANK_HEAD = struct.Struct(">iI")  # length to the segment's end, magic
_UNIT = struct.Struct(">qiq")
_ENTRY = struct.Struct(">iqii")
_INDEX_HEAD = struct.Struct(">qqqqii")
_PRE_BLANK = 0x7FFFFFFF


class RawRecord(NamedTuple):
    """A record of the log that checks out."""

    log_offset: int
    data: bytes
    topic: str
    queue_id: int
    queue_offset: int
    transaction: int  # bits 2-3 of the sysFlag: 0, 4, 8, 12
    store_ms: int

    @property
    def end(self) -> int:
        """Log offset behind it."""
        return self.log_offset + len(self.data)


class RawLog(NamedTuple):
    """Records from the first segment's beginning on, as far as they follow each other."""

    records: list[RawRecord]
    start: int
    # Where the next record would go; bytes behind it that are not zero.
    end: int
    stale_bytes: int
    segments: list[int]


class RawUnit(NamedTuple):
    """A consume queue unit that names a record."""

    log_offset: int
    size: int
    tags_code: int


def parse_record(data: bytes, position: int, log_offset: int) -> RawRecord | None:
    """The record at `position`, None if no record there checks out."""
    if position + 91 > len(data):
        return None
    size, magic, crc, queue_id, _, queue_offset, own_offset, sys_flag, _ = _HEAD.unpack_from(
        data, position
    )
    if magic != _MAGIC or own_offset != log_offset or not 91 <= size <= len(data) - position:
        return None
    record = data[position : position + size]
    at = 48 + (20 if sys_flag & 0x10 else 8)
    (store_ms,) = struct.unpack_from(">q", record, at)
    at += 8 + (20 if sys_flag & 0x20 else 8) + 12
    try:
        (body_size,) = struct.unpack_from(">i", record, at)
        if body_size < 0:
            return None
        body = record[at + 4 : at + 4 + body_size]
        at += 4 + body_size
        topic = record[at + 1 : at + 1 + record[at]].decode()
        at += 1 + record[at]
        (properties_size,) = struct.unpack_from(">h", record, at)
    except (struct.error, IndexError, UnicodeDecodeError):
        return None
    if at + 2 + properties_size != size or zlib.crc32(body) & 0x7FFFFFFF != crc:
        return None
    return RawRecord(log_offset, record, topic, queue_id, queue_offset, sys_flag & 0xC, store_ms)


def parse_log(
    image: Mapping[str, bytes | None], root: str, known: Mapping[int, int] | None = None
) -> RawLog:
    """The log below `root`. `known`: where to go on behind records that are damaged."""
    segments = sorted(
        (int(path.rsplit("/", 1)[1]), data)
        for path, data in image.items()
        if path.startswith(f"{root}/commitlog/") and data
    )
    if not segments:
        return RawLog([], 0, 0, 0, [])
    start = end = segments[0][0]
    records: list[RawRecord] = []
    stale = 0
    ended = False
    for begin, data in segments:
        position = 0
        while not ended and begin == end - position and position < len(data):
            record = parse_record(data, position, end)
            if record is not None:
                records.append(record)
                position += len(record.data)
                end = record.end
                continue
            size, magic = (
                BLANK_HEAD.unpack_from(data, position) if position + 8 <= len(data) else (0, 0)
            )
            if magic == BLANK and size == len(data) - position:
                end = begin + len(data)
                position = len(data)
            elif known and end in known:
                position += known[end] - end
                end = known[end]
            else:
                ended = True
        if ended or begin > end:
            rest = data[max(0, end - begin) :]
            stale += len(rest) - rest.count(0)
    return RawLog(records, start, end, stale, [begin for begin, _ in segments])


def parse_queues(
    image: Mapping[str, bytes | None], root: str
) -> dict[tuple[str, int], dict[int, RawUnit]]:
    """Units that name a record, by queue and slot."""
    queues: dict[tuple[str, int], dict[int, RawUnit]] = {}
    prefix = f"{root}/consumequeue/"
    for path, data in image.items():
        if data is None or not path.startswith(prefix):
            continue
        topic, queue_id, name = path[len(prefix) :].split("/")
        if not queue_id.isdecimal():
            continue  # renamed to be removed; no broker takes it for a queue
        units = queues.setdefault((topic, int(queue_id)), {})
        if not data.strip(b"\0"):
            continue
        slot = int(name) // _UNIT.size
        for number, unit in enumerate(_UNIT.iter_unpack(data[: len(data) // 20 * 20])):
            if unit[1] > 0 and unit[1] != _PRE_BLANK:
                units[slot + number] = RawUnit(*unit)
    return queues


def parse_index(image: Mapping[str, bytes | None], root: str, slots: int) -> list[tuple[int, int]]:
    """(hash, log offset) of all counted entries that a slot leads to, in no particular order."""
    found: list[tuple[int, int]] = []
    for path, data in image.items():
        if data is None or not path.startswith(f"{root}/index/") or len(data) < 40:
            continue
        count = _INDEX_HEAD.unpack_from(data)[5]
        entries_at = 40 + 4 * slots
        for slot in range(slots):
            (number,) = struct.unpack_from(">i", data, 40 + 4 * slot)
            while 0 < number < count:
                key_hash, log_offset, _, previous = _ENTRY.unpack_from(
                    data, entries_at + 20 * number
                )
                if key_hash % slots == slot:
                    found.append((key_hash, log_offset))
                if previous >= number:
                    break
                number = previous
    return found


def stored_entries(
    image: Mapping[str, bytes | None], root: str, slots: int
) -> set[tuple[int, int]]:
    """(hash, log offset) of all entries there are, counted, led to or not."""
    return {
        (key_hash, log_offset)
        for path, data in image.items()
        if data is not None and path.startswith(f"{root}/index/")
        for key_hash, log_offset, _, _ in _ENTRY.iter_unpack(data[60 + 4 * slots :])
    }


def key_hash(topic: str, key: str) -> int:
    """The index's hash of a key: |Java's hashCode of topic#key|, 0 without a positive form."""
    value = 0
    for code in f"{topic}#{key}".encode("utf-16-be")[1::2]:  # the tests' keys are ASCII
        value = (31 * value + code) & 0xFFFFFFFF
    if value >= 1 << 31:
        value = (1 << 32) - value
    return value if value < 1 << 31 else 0


def checkpoint_times(image: Mapping[str, bytes | None], root: str) -> tuple[int, int, int]:
    """The checkpoint's three times; zeros without one."""
    data = image.get(f"{root}/checkpoint") or b""
    return struct.unpack(">qqq", data[:24]) if len(data) >= 24 else (0, 0, 0)


def offsets_file(image: Mapping[str, bytes | None], root: str) -> dict[str, Any] | None:
    """The content of our own offsets file; None unless the file is whole."""
    line, newline, checksum = (image.get(f"{root}/offsets") or b"").partition(b"\n")
    if checksum != b"crc32c=%08x\n" % _crc32c(line + newline):
        return None
    content: dict[str, Any] = json.loads(line)
    return content


def _crc32c_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_CRC32C = _crc32c_table()


def _crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC32C[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF
