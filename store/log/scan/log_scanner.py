"""Reads the commit log from a place to its end; tells sound records, damage and the tail apart.

One scanner, many reporters: recovery, dispatch of what was not dispatched, the scrub, audit, dump,
rebuild and truncation all read through it, over mapped segments or over files that the disk may
refuse to give. It finds the sound records and the damage; its reporter (`Reporter`) and its caller
decide what that means for the store.

Below the `floor` there were sound records once, so a bad record there is damage, and the scan goes
on after it (`resynchronise.py`). At or above the floor `tail` says how a bad record is taken.
"""

import enum
from collections.abc import Generator, Iterator
from typing import NamedTuple, Protocol

from aerobee.protocol.errors import CorruptRecord
from aerobee.protocol.message.record_check import BLANK, Checked, RecordHead, end_of, store_ms_of
from aerobee.protocol.message.record_layout import BLANK_BYTES, MIN_RECORD_BYTES
from aerobee.store.log.compiled import Derived, Take
from aerobee.store.log.scan.boundaries import Boundaries
from aerobee.store.log.scan.resynchronise import Resynchroniser
from aerobee.store.log.scan.segment_reader import Buffer, MappedReader, SegmentReader
from aerobee.store.log.scan.sequence import Gap
from aerobee.store.segments.mapped_file_queue import MappedFileQueue


class Batch(NamedTuple):
    """Sound records side by side, and the bytes they are in: the first begins at `at`.

    Of records that a compiled form took, there are only the values that follow from them,
    `derived`.
    """

    records: list[Checked]
    buffer: Buffer
    at: int
    derived: Derived | None = None

    @property
    def size(self) -> int:
        """The number of its records."""
        return len(self.records) if self.derived is None else self.derived.records

    @property
    def last_store_ms(self) -> int:
        """Store time of its last record."""
        return store_ms_of(self.records[-1]) if self.derived is None else self.derived.store_ms


class Tail(enum.Enum):
    """Ways to take a bad record at or above the floor.

    It is a part of the last record, left by a crash: always; unless a sound record stands where its
    own lengths lead; unless there is any sound record after it.
    """

    TORN = enum.auto()
    FOLLOWED = enum.auto()
    SEARCHED = enum.auto()


class Segments(Protocol):
    """The source that a log is read from."""

    @property
    def bounds(self) -> tuple[int, int]:
        """The places where the first segment begins and the last one ends; zeros without
        segments."""

    def readers(self, start: int) -> Iterator[SegmentReader]:
        """Readers of the segments that end above `start`, in order; each is valid until the next
        one."""


class MappedSegments:
    """The segments of a loaded queue of segments."""

    def __init__(self, segments: MappedFileQueue) -> None:
        self._segments = segments

    @property
    def bounds(self) -> tuple[int, int]:
        segments = self._segments.segments
        return (segments[0].start, segments[-1].end) if segments else (0, 0)

    def readers(self, start: int) -> Iterator[SegmentReader]:
        for segment in list(self._segments.segments):
            if segment.end > start:
                yield MappedReader(segment)


class OneSegment:
    """A single segment, whose reader the caller closes."""

    def __init__(self, reader: SegmentReader) -> None:
        self._reader = reader
        self.bounds = (reader.start, reader.end)

    def readers(self, start: int) -> Iterator[SegmentReader]:
        yield self._reader


class Reporter:
    """Hears what a scan meets; this class forgets all of it. The scanner keeps the gaps itself."""

    def is_other(self, reader: SegmentReader) -> bool:
        """Whether a file that begins with no sound record holds the records of another place."""
        return False

    def gap(self, gap: Gap) -> None:
        """The scan has met a gap: no usable record is there, but something sound after it."""

    def blank(self) -> None:
        """A segment ended with a blank."""

    def not_closed(self, reader: SegmentReader) -> None:
        """A segment's last record goes up to its end."""

    def nothing_behind(self, reader: SegmentReader, log_offset: int) -> None:
        """The scan has found nothing sound in the segment from `log_offset` on."""


class LogScanner:
    """One reading of `segments`.

    With `to_the_last` segments may be missing, and all are read, whatever the ones before hold;
    without it the log ends at the first bad record above the floor. Nothing from `until` on is
    read; a batch holds records of `step_bytes` at most. `take` belongs to a compiled form: records
    that it takes are not read here.
    """

    def __init__(
        self,
        segments: Segments,
        floor: int,
        boundaries: Boundaries,
        check_crc: int,
        *,
        tail: Tail = Tail.TORN,
        to_the_last: bool = False,
        until: int = 1 << 63,
        step_bytes: int = 1 << 62,
        reporter: Reporter | None = None,
        take: Take | None = None,
    ) -> None:
        self._segments = segments
        self._floor = floor
        self._boundaries = boundaries
        self._check_crc = check_crc
        self._tail = tail
        self._to_the_last = to_the_last
        self._until = until
        self._step_bytes = step_bytes
        self._reporter = reporter or Reporter()
        self._take = take
        self.gaps: list[Gap] = []
        # The end of the part read so far, which is sound or known as a gap; at last the log's end.
        self.end = segments.bounds[0]
        # Why nothing sound was found at `end`, None as long as nobody has looked there.
        self.end_reason: str | None = None

    def records(self, start: int) -> Iterator[Checked]:
        """Sound records from `start` on, where one begins, in order."""
        for batch in self.batches(start):
            yield from batch.records

    def batches(self, start: int) -> Iterator[Batch]:
        """Sound records, many at a time; damage is met between two batches."""
        for batch in self.steps(start):
            if batch is not None:
                yield batch

    def steps(self, start: int) -> Iterator[Batch | None]:
        """Batches in small steps; None says that some time has passed. Raises OSError."""
        first, last = self._segments.bounds
        self.end = max(start, first)
        for reader in self._segments.readers(start):
            if (yield from self._segment(reader, max(start, reader.start))):
                return
        if self._to_the_last:
            self.lose_up_to(min(self._floor, last))

    def _segment(
        self, reader: SegmentReader, log_offset: int
    ) -> Generator[Batch | None, None, bool]:
        """Read one segment; whether that was the end of the log."""
        stop = min(reader.end - BLANK_BYTES + 1, self._until)
        least = MIN_RECORD_BYTES
        while log_offset < stop:
            reader.reading_at(log_offset - reader.start)
            end = min(self._until, log_offset + max(least, self._step_bytes))
            if self._take is not None:
                derived = reader.taken(log_offset, end, self._take)
                if derived is not None:
                    self._sound_from(log_offset)
                    log_offset = self.end = derived.end
                    yield Batch([], b"", 0, derived)
                    continue
            records, buffer, at = reader.scan(log_offset, end, self._check_crc, least)
            if records:
                least = MIN_RECORD_BYTES
                self._sound_from(log_offset)
                log_offset = self.end = end_of(records[-1])
                yield Batch(records, buffer, at)
                continue
            try:
                head = self._head(reader, log_offset)
            except CorruptRecord as error:
                self.end_reason = self.end_reason or str(error)
                following = yield from self._behind(reader, log_offset)
                if following is None:
                    self._reporter.nothing_behind(reader, log_offset)
                    return not self._to_the_last
                self._sound_from(following)
                log_offset = self.end = following
                if following == reader.end:
                    return False
                continue
            if head.kind == BLANK:
                self._sound_from(log_offset)
                self.end = reader.end
                self._reporter.blank()
                reader.done()
                return False
            assert least < head.size
            least = head.size  # the buffer did not hold all of it
        if self._until >= reader.end:
            self.end = reader.end
            self._reporter.not_closed(reader)
        return False

    def _head(self, reader: SegmentReader, log_offset: int) -> RecordHead:
        head = reader.head(log_offset, self._check_crc)
        if head.kind != BLANK and log_offset + head.size > self._until:
            raise CorruptRecord(f"record at {log_offset} goes on behind {self._until}")
        return head

    def _behind(self, reader: SegmentReader, bad: int) -> Generator[None, None, int | None]:
        if bad == reader.start and self._reporter.is_other(reader):
            return None
        resynchronise = Resynchroniser(reader, self._boundaries, self._check_crc)
        if bad < self._floor:
            limit = min(self._floor, reader.end)
            return (yield from resynchronise.below_floor(bad, limit))
        if self._tail is Tail.TORN:
            return None
        following = resynchronise.sound_follower(bad)
        if following is None and self._tail is Tail.SEARCHED:
            following = resynchronise.anything_sound(bad)
        return following

    def _sound_from(self, log_offset: int) -> None:
        """Note that no usable record lies between the end so far and `log_offset`."""
        if log_offset > self.end:
            reason = self.end_reason or "the file that held this part is missing"
            self.gaps.append(Gap(self.end, log_offset, reason))
            self._reporter.gap(self.gaps[-1])
        self.end_reason = None

    def lose_up_to(self, log_offset: int) -> None:
        """Note, when all is read, that the log once went on to `log_offset`."""
        if log_offset > self.end:
            self._sound_from(log_offset)
            self.end = log_offset
