"""Reads parts of the log for a comparison with another broker's: checksums, and single records.

A slave compares its log with its master's before it follows (broker/cluster/comparison/), and a
master of ours answers it with checksums. Both read files, not the mappings: old segments may be on
a slow or failing disk, and a page that is not there stops every thread of the process.

Where a record begins is not written down anywhere near. `record_start` finds it from a sound record
shortly before: its magic, its own place and its CRC must fit, and records follow each other from
there. So a place in a log of terabytes is found by reading some 64 KiB.

Threads: any; each call opens files of its own. Segments may be removed meanwhile (`RangeGone`).
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from aerobee.protocol.errors import CorruptRecord
from aerobee.protocol.message.record_check import BLANK, CHECK_BODY
from aerobee.store.errors import StoreError
from aerobee.store.log.scan.segment_reader import FileReader
from aerobee.store.log.scan.sources import Source, Window
from aerobee.store.log.store_core import StoreCore
from aerobee.store.segments.mapped_file import MappedFile

# One read of a checksum, and the bytes after which its caller may do something else.
_READ_BYTES = 256 << 10
_STEP_BYTES = 4 << 20
# How far before a place a sound record is looked for at first.
_LOOK_BACK_BYTES = 64 << 10


class RangeGone(StoreError):
    """A part of the range is not in the log: retention has removed it, or it was never there."""


class RangeNotRead(StoreError):
    """The disk does not give a part of the range."""


class LogPiece(NamedTuple):
    """The bytes of the log from `start` to `end`: a record with its `data`, or, without, what is no
    sound record: a blank, or damage."""

    start: int
    end: int
    data: bytes | None
    is_blank: bool = False


class LogRanges:
    """The log of an open store, by log offsets. Made by `MessageStore.make_log_ranges`."""

    def __init__(self, core: StoreCore) -> None:
        self._files = core.files
        self._segments = core.segments
        self._marks = core.marks
        self.segment_bytes = core.segments.segment_bytes

    @property
    def is_empty(self) -> bool:
        """Whether the log has no segment."""
        return not self._segments.segments

    @property
    def first(self) -> int:
        """First log offset."""
        return self._segments.min_offset

    @property
    def end(self) -> int:
        """Log offset up to which the bytes are in the files, and are records."""
        return self._marks.readable

    def cut(self, start: int, end: int) -> tuple[int, int]:
        """The part of [start, end) that the log has; empty at `start` without any."""
        begin, stop = max(start, self.first), min(end, self.end)
        return (begin, stop) if begin < stop else (start, start)

    def checksums(self, ranges: Sequence[tuple[int, int]]) -> Generator[None, None, list[int]]:
        """The CRC-32 of each of `ranges`, in steps of 4 MiB. Raises RangeGone, RangeNotRead."""
        sums: list[int] = []
        read = 0
        for start, end in ranges:
            crc = 0
            for data in self._pieces(start, end):
                crc = zlib.crc32(data, crc)
                read += len(data)
                if read >= _STEP_BYTES:
                    read = 0
                    yield None
            sums.append(crc)
        return sums

    def record_start(self, log_offset: int) -> int:
        """Where the record, blank or damage begins that holds the byte at `log_offset`. Raises
        RangeGone, RangeNotRead."""
        with self._reader(log_offset) as reader:
            width = _LOOK_BACK_BYTES
            while True:
                begin = max(reader.start, log_offset - width)
                found = _start_between(reader, begin, log_offset)
                if found is not None:
                    return found
                width *= 8

    def piece_at(self, log_offset: int) -> LogPiece:
        """The record that begins at `log_offset`, or what is there instead: a blank goes on to the
        end of its segment, damage to the next record that is sound. Raises RangeGone,
        RangeNotRead."""
        with self._reader(log_offset) as reader:
            try:
                head = reader.head(log_offset, CHECK_BODY)
            except CorruptRecord:
                return LogPiece(log_offset, _after_damage(reader, log_offset), None)
            end = log_offset + head.size
            if head.kind == BLANK:
                return LogPiece(log_offset, end, None, is_blank=True)
            buffer, index = reader.record_bytes(log_offset, head.size)
            return LogPiece(log_offset, end, bytes(buffer[index : index + head.size]))

    # --- inside -----------------------------------------------------------------------------

    def _pieces(self, start: int, end: int) -> Iterator[bytes]:
        """The bytes of [start, end), some at a time."""
        while start < end:
            segment = self._segment(start)
            stop = min(end, segment.end)
            with _named(segment), self._files.opened(segment.path, read_only=True) as fd:
                while start < stop:
                    size = min(_READ_BYTES, stop - start)
                    data = self._files.read(fd, start - segment.start, size)
                    if len(data) < size:
                        raise RangeNotRead(f"{segment.path} is shorter than a segment")
                    yield data
                    start += size

    def _segment(self, log_offset: int) -> MappedFile:
        segment = self._segments.find(log_offset)
        if segment is None or log_offset >= self.end:
            raise RangeGone(f"the log has nothing at {log_offset}")
        return segment

    @contextmanager
    def _reader(self, log_offset: int) -> Iterator[FileReader]:
        """A reader of the segment that holds `log_offset`, up to the end of the log."""
        segment = self._segment(log_offset)
        with _named(segment):
            source = Source(self._files, segment.path)
            try:
                yield FileReader(
                    path=segment.path,
                    start=segment.start,
                    size=segment.size,
                    file_bytes=min(segment.size, self.end - segment.start),
                    window=Window(source, _LOOK_BACK_BYTES),
                )
            finally:
                source.close()


def next_step(steps: Generator[None, None, list[int]]) -> list[int] | None:
    """Do a step of `LogRanges.checksums`; the sums, None while there is more to read."""
    try:
        next(steps)
    except StopIteration as end:
        sums: list[int] = end.value
        return sums
    return None


@contextmanager
def _named(segment: MappedFile) -> Iterator[None]:
    """Errors of the disk as the store's."""
    try:
        yield
    except FileNotFoundError:
        raise RangeGone(f"{segment.path} was removed meanwhile") from None
    except OSError as error:
        reason = error.strerror or (os.strerror(error.errno) if error.errno else str(error))
        raise RangeNotRead(f"{segment.path} cannot be read: {reason}") from error


def _start_between(reader: FileReader, begin: int, log_offset: int) -> int | None:
    """`record_start` by what lies from `begin` on; None if no record begins there."""
    at = begin if begin == reader.start else _sound_after(reader, begin, log_offset)
    place = None
    while at is not None:
        place = at
        try:
            size = reader.head(at, CHECK_BODY).size
        except CorruptRecord:
            at = _sound_after(reader, at + 1, log_offset)
            continue
        if at + size > log_offset:
            return at
        at += size
    return place


def _sound_after(reader: FileReader, begin: int, last: int) -> int | None:
    """The first place from `begin` to `last` at which a sound record begins."""
    for found in reader.magics(begin, last + 1):
        if found is not None and reader.is_sound(found, CHECK_BODY):
            return found
    return None


def _after_damage(reader: FileReader, bad: int) -> int:
    end = reader.start + reader.limit
    following = _sound_after(reader, bad + 1, end - 1)
    return end if following is None else following
