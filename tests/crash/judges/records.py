"""Reads the store's own files as bytes: records of the log, entries of the queues.

Shares no code with the package on purpose: a mistake in the package's codec cannot hide behind
itself. The layouts are those of store/FORMAT.md; integers are big-endian.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

MESSAGE_MAGIC, BLANK_MAGIC = 0xDAA320A7, 0xCBD43194
UNIT = struct.Struct(">qiq")
PRE_BLANK_SIZE = 0x7FFFFFFF
_LEAST_BYTES = 91
_BORN_V6, _STORE_V6 = 16, 32
_HEAD = struct.Struct(">IIIiiqqi")


class Unreadable(Exception):
    """No sound record stands there; the text says why."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record of the log, as it stands there or as a pull returned it."""

    topic: str
    queue_id: int
    queue_offset: int
    log_offset: int
    size: int
    body: bytes
    properties: bytes
    store_ms: int
    born_ms: int = 0
    # The sysFlag; its bits 2 and 3 say the kind of a transaction's record.
    flags: int = 0
    # Log offset of the half message that a committed one was.
    prepared_at: int = 0

    def property(self, name: str) -> str:
        """A property's text, empty without one."""
        for pair in self.properties.split(b"\2"):
            key, _, value = pair.partition(b"\1")
            if key.decode() == name:
                return value.decode()
        return ""


def read_record(data: bytes | memoryview, position: int, *, check_crc: bool = True) -> Record:
    """The record at `position`. Raises Unreadable."""
    if position + _LEAST_BYTES > len(data):
        raise Unreadable("cut short")
    size, magic, crc, queue_id, _, queue_offset, log_offset, flags = _HEAD.unpack_from(
        data, position
    )
    if magic != MESSAGE_MAGIC or not _LEAST_BYTES <= size <= len(data) - position:
        raise Unreadable(f"magic {magic:#x}, size {size}")
    at = position + _HEAD.size
    (born_ms,) = struct.unpack_from(">q", data, at)
    at += 8 + (20 if flags & _BORN_V6 else 8)
    (store_ms,) = struct.unpack_from(">q", data, at)
    at += 8 + (20 if flags & _STORE_V6 else 8) + 4 + 8
    (prepared_at,) = struct.unpack_from(">q", data, at - 8)
    (body_bytes,) = struct.unpack_from(">i", data, at)
    end = position + size
    if not 0 <= body_bytes <= end - at - 4:
        raise Unreadable(f"body of {body_bytes} bytes")
    body = bytes(data[at + 4 : at + 4 + body_bytes])
    at += 4 + body_bytes
    topic = bytes(data[at + 1 : at + 1 + data[at]])
    at += 1 + len(topic)
    properties = bytes(data[at + 2 : end])
    if at + 2 > end or int.from_bytes(data[at : at + 2], "big") != len(properties):
        raise Unreadable("lengths do not add up")
    if check_crc and body and zlib.crc32(body) & 0x7FFFFFFF != crc:
        raise Unreadable("CRC")
    return Record(
        topic.decode(), queue_id, queue_offset, log_offset, size, body, properties, store_ms,
        born_ms, flags, prepared_at,
    )  # fmt: skip


def records_of(data: bytes | memoryview) -> Iterator[Record]:
    """The records of a pull's or query's answer, side by side, whatever their bodies hold."""
    position = 0
    while position < len(data):
        record = read_record(data, position, check_crc=False)
        yield record
        position += record.size


@dataclass(slots=True)
class LogFiles:
    """The content of the files of a commit log from their first byte to the first bad byte."""

    start: int
    end: int
    records: list[Record]
    # Why reading stopped, and whether anything but zeros follows there.
    reason: str
    rest_is_zero: bool


def read_log(directory: Path, gaps: Iterable[tuple[int, int]] = ()) -> LogFiles:
    """Read all segments in order, up to the first byte that begins no record; `gaps` are passed."""
    behind = dict(gaps)
    listed = os.listdir(directory) if directory.exists() else []
    names = sorted(name for name in listed if len(name) == 20 and name.isdigit())
    log = LogFiles(int(names[0]) if names else 0, 0, [], "the last segment is full", True)
    log.end = log.start
    for name in names:
        data = (directory / name).read_bytes()
        if log.reason != "the last segment is full":
            log.rest_is_zero &= not any(data)
            continue
        position = max(0, log.end - int(name))  # a gap may reach into this segment
        while position < len(data):
            if (place := int(name) + position) in behind:
                position += behind[place] - place
                continue
            blank, magic = struct.unpack_from(">II", data.ljust(position + 8, b"\0"), position)
            if magic == BLANK_MAGIC and position + blank == len(data):
                position = len(data)
                break
            try:
                record = read_record(data, position)
                if record.log_offset != int(name) + position:
                    raise Unreadable(f"it says it stands at {record.log_offset}")
            except Unreadable as error:
                log.reason = str(error)
                log.rest_is_zero = not any(data[position:])
                break
            log.records.append(record)
            position += record.size
        log.end = int(name) + position
    return log


Unit = tuple[int, int, int]


def read_queues(directory: Path) -> dict[tuple[str, int], dict[int, Unit]]:
    """(log offset, size, tags code) by queue offset, of every queue; empty slots are left out."""
    queues: dict[tuple[str, int], dict[int, Unit]] = {}
    for file in sorted(directory.glob("*/*/*")):
        key = (file.parent.parent.name, int(file.parent.name))
        units = queues.setdefault(key, {})
        first = int(file.name) // UNIT.size
        data = file.read_bytes().rstrip(b"\0")
        data += bytes(-len(data) % UNIT.size)
        for index, unit in enumerate(UNIT.iter_unpack(data)):
            if unit[1] > 0:
                units[first + index] = unit
    return queues


def java_hash(text: str) -> int:
    """String.hashCode of Java."""
    value = 0
    for unit in struct.iter_unpack(">H", text.encode("utf-16-be")):
        value = (value * 31 + unit[0]) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value
