"""A commit log as files in any state: some missing, cut short, too long, or another log's.

`log/scan/log_scanner.py` reads it; here are the files as its segments, and the reporter that keeps
the facts for an audit besides the gaps: where each file ends, and where it belongs.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import attrgetter

from aerobee.protocol.errors import CorruptRecord
from aerobee.protocol.message.record_check import CHECK_NOTHING
from aerobee.store.inspect.segment_owners import own_start
from aerobee.store.inspect.store_layout import FoundFile
from aerobee.store.log.scan.boundaries import Boundaries, named_back
from aerobee.store.log.scan.log_scanner import LogScanner, Reporter, Tail
from aerobee.store.log.scan.segment_reader import FileReader, SegmentReader
from aerobee.store.log.scan.sequence import Gap
from aerobee.store.log.scan.sources import Sources, Window
from aerobee.store.queues.queue_view import QueueView

# Bytes of a window for single records, which are scattered and mostly short.
_NARROW_BYTES = 512


def reader_of(file: FoundFile, segment_bytes: int, window: Window) -> FileReader:
    """The file as a segment of that length."""
    return FileReader(
        path=file.path, start=file.start, size=segment_bytes, file_bytes=file.size, window=window
    )


def gap_at(gaps: Sequence[Gap], log_offset: int) -> Gap | None:
    """The damaged range that holds a log offset; `gaps` are in order."""
    index = bisect_right(gaps, log_offset, key=attrgetter("start")) - 1
    return gaps[index] if index >= 0 and log_offset < gaps[index].end else None


class FileReporter(Reporter):
    """Keeps the reports of a scan of files."""

    def __init__(self, sources: Sources, files: Sequence[FoundFile], segment_bytes: int) -> None:
        self._sources = sources
        self._segment_bytes = segment_bytes
        self._by_path = {file.path: file for file in files}
        self.blanks = 0
        # Segments that hold nothing but zeros, above the end.
        self.spare: list[FoundFile] = []
        # Bytes above the end: (file, first position, position after the last that is not zero).
        self.tail: list[tuple[FoundFile, int, int]] = []
        # Segments whose last record is not followed by a blank.
        self.not_closed_files: list[FoundFile] = []
        # (file, where it belongs) of files that hold another place's records.
        self.misplaced: list[tuple[FoundFile, int]] = []

    def is_other(self, reader: SegmentReader) -> bool:
        assert isinstance(reader, FileReader)
        written = reader.written_end(0)
        others = {file.start: file for file in self._by_path.values() if file.path != reader.path}
        own = own_start(self._sources, reader, others, written) if written else reader.start
        if own == reader.start:
            return False
        self.misplaced.append((self._by_path[reader.path], own))
        return True

    def gap(self, gap: Gap) -> None:
        self.tail = [
            (file, max(position, gap.end - file.start), written)
            for file, position, written in self.tail
            if file.start + written > gap.end
        ]
        self.spare = [file for file in self.spare if file.start >= gap.end]

    def blank(self) -> None:
        self.blanks += 1

    def not_closed(self, reader: SegmentReader) -> None:
        self.not_closed_files.append(self._by_path[reader.path])

    def nothing_behind(self, reader: SegmentReader, log_offset: int) -> None:
        position = log_offset - reader.start
        written = reader.written_end(position)
        if written > position:
            self.tail.append((self._by_path[reader.path], position, written))
        elif position == 0:
            self.spare.append(self._by_path[reader.path])


class LogFiles:
    """The files of a log, to be scanned or read for single records."""

    def __init__(self, sources: Sources, files: Sequence[FoundFile], segment_bytes: int) -> None:
        self._sources = sources
        self._segment_bytes = segment_bytes
        # A file whose start is not a multiple of the size cannot be read as a segment.
        self.files = [file for file in files if file.start % segment_bytes == 0]
        self._by_number = {file.start // segment_bytes: file for file in self.files}

    def scanner(
        self,
        boundaries: Boundaries,
        known_end: int,
        check_crc: int,
        *,
        torn_above: bool,
        below: int = 1 << 63,
    ) -> tuple[LogScanner, FileReporter]:
        """A scan of the files that begin `below` a log offset, and its reporter.

        The log is known to reach `known_end`. With `torn_above` a bad record from there on is a
        torn tail, as recovery takes it after a crash; otherwise any sound record after it counts.
        """
        files = [file for file in self.files if file.start < below]
        reporter = FileReporter(self._sources, files, self._segment_bytes)
        scanner = LogScanner(
            LogFiles(self._sources, files, self._segment_bytes),
            known_end,
            boundaries,
            check_crc,
            tail=Tail.TORN if torn_above else Tail.SEARCHED,
            to_the_last=True,
            reporter=reporter,
        )
        return scanner, reporter

    @property
    def bounds(self) -> tuple[int, int]:
        """For a scanner: the places where the first file begins and the last one ends."""
        files = self.files
        return (files[0].start, files[-1].start + self._segment_bytes) if files else (0, 0)

    def readers(self, start: int) -> Iterator[SegmentReader]:
        """For a scanner: the segments that end above `start`, one after the other."""
        for file in self.files:
            if file.start + self._segment_bytes > start:
                source = self._sources.own(file.path)
                try:
                    yield reader_of(file, self._segment_bytes, Window(source))
                finally:
                    self._sources.give_back(source)

    def last_sound_start(self) -> int:
        """The start of the last segment that begins with a sound record or blank; 0 without one."""
        for file in reversed(self.files):
            if self._reader(file).is_sound(file.start, CHECK_NOTHING):
                return file.start
        return 0

    def first_store_ms(self, file: FoundFile) -> int:
        """Store time of a segment's first record, 0 if that is not sound."""
        try:
            return self._reader(file).head(file.start, CHECK_NOTHING).store_timestamp_ms
        except CorruptRecord:
            return 0

    # --- single records that entries name ----------------------------------------------------

    def may_be(self, log_offset: int, size: int, log_end: int, segments: int) -> bool:
        """Whether a record could lie there, in a log that goes on for `segments` after
        `log_end`."""
        room = self._segment_bytes - log_offset % self._segment_bytes
        return size <= room and log_offset < log_end + segments * self._segment_bytes

    def problem(self, queue: QueueView, offset: int, log_offset: int, size: int) -> str | None:
        """The reason why the record that an entry names is not that queue's message; None if it
        is."""
        file = self._by_number.get(log_offset // self._segment_bytes)
        if file is None:
            return f"the log has no file for log offset {log_offset}"
        try:
            named_back(self._reader(file), queue, offset, log_offset, size)
        except CorruptRecord as error:
            return str(error)
        return None

    def names_back(self, queue: QueueView, offset: int, log_offset: int, size: int) -> bool:
        """Whether the record that an entry names is there and is that queue's message."""
        return self.problem(queue, offset, log_offset, size) is None

    def _reader(self, file: FoundFile) -> FileReader:
        window = Window(self._sources.get(file.path), _NARROW_BYTES)
        return reader_of(file, self._segment_bytes, window)
