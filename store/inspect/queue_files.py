"""Reads the files of a consume queue for an audit: read-only, whatever state they are in.

`ConsumeQueue` is the same for a running broker; it insists on a whole queue and opens for writing.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush

from aerobee.protocol.errors import CorruptRecord
from aerobee.protocol.message.properties import decode_properties, further_queues
from aerobee.protocol.message.record import RECORD
from aerobee.store.inspect.layout import FoundFile, FoundQueue
from aerobee.store.inspect.reader import SegmentReader
from aerobee.store.inspect.report import Findings
from aerobee.store.inspect.sources import Sources, Window
from aerobee.store.queues.consume_queue import ENTRY, ENTRY_BYTES, PRE_BLANK_SIZE

CHUNK_ENTRIES = 3200
#: An entry that names a record more segments than this behind the log's end is damaged.
MISSING_MOST = 1000


class QueueReader:
    """One consume queue. `first` is the first slot that has a file, `top` the one behind the last
    that is not empty."""

    __slots__ = (
        "_entries",
        "_sources",
        "_starts",
        "directory",
        "files",
        "first",
        "queue_id",
        "segment_bytes",
        "top",
        "topic",
    )  # fmt: skip

    def __init__(self, sources: Sources, found: FoundQueue, segment_bytes: int) -> None:
        self._sources = sources
        self.topic = found.topic
        self.queue_id = found.queue_id
        self.directory = found.directory
        self.segment_bytes = segment_bytes
        self._entries = segment_bytes // ENTRY_BYTES
        self.files = tuple(file for file in found.files if file.start % segment_bytes == 0)
        self._starts = tuple(file.start for file in self.files)
        self.first = self.files[0].start // ENTRY_BYTES if self.files else 0
        self.top = self._find_top()

    @property
    def name(self) -> str:
        """The queue as people write it."""
        return f"{self.topic}/{self.queue_id}"

    @property
    def used_bytes(self) -> int:
        """How much there is to read, about."""
        return (self.top - self.first) * ENTRY_BYTES

    def read(self, first: int, count: int) -> bytes:
        """Up to `count` entries from `first` on, within one file; empty where there is none."""
        file = self._file_of(first)
        if file is None:
            return b""
        skipped = first % self._entries
        count = min(count, self._entries - skipped)
        data = self._sources.get(file.path).read(skipped * ENTRY_BYTES, count * ENTRY_BYTES)
        return data[: len(data) // ENTRY_BYTES * ENTRY_BYTES]

    def entry(self, offset: int) -> tuple[int, int, int] | None:
        """(log offset, size, tags code) of a slot; None where there is no file."""
        data = self.read(offset, 1)
        return ENTRY.unpack(data) if data else None

    def file_end(self, offset: int, limit: int) -> int:
        """The slot behind the last one of the file that `offset` is in, or would be; at most
        `limit`."""
        return min((offset // self._entries + 1) * self._entries, limit)

    def place(self, offset: int) -> tuple[str, int]:
        """File and byte position of a slot; the directory where there is no file."""
        file = self._file_of(offset)
        if file is None:
            return self.directory, 0
        return file.path, offset % self._entries * ENTRY_BYTES

    def chunks(self) -> Iterator[tuple[int, bytes]]:
        """(first slot, entries) of all that the files hold below `top`, in order."""
        for file in self.files:
            offset = file.start // ENTRY_BYTES
            stop = min(offset + self._entries, self.top)
            while offset < stop:
                data = self.read(offset, min(CHUNK_ENTRIES, stop - offset))
                if not data:
                    break  # the file is shorter than it should be
                yield offset, data
                offset += len(data) // ENTRY_BYTES

    def check_files(self, findings: Findings, found: FoundQueue) -> None:
        """Lengths and the run of the files."""
        expected = found.files[0].start if found.files else 0
        for file in found.files:
            if file.size != self.segment_bytes:
                findings.add(
                    "queue-file-size",
                    file.path,
                    None,
                    f"has {file.size} bytes instead of {self.segment_bytes}",
                )
            if file.start != expected:
                findings.add(
                    "queue-file-missing",
                    file.path,
                    None,
                    f"does not follow the file before it: {self.name} has none for message "
                    f"{expected // ENTRY_BYTES}",
                    queue_offset=expected // ENTRY_BYTES,
                )
            expected = file.start + self.segment_bytes

    def first_named(self, start: int, end: int) -> tuple[int, int, int] | None:
        """(slot, log offset, size) of the first entry of [start, end) that names a record."""
        count = 8
        while start < end:
            data = self.read(start, min(count, end - start))
            if not data:
                start = (start // self._entries + 1) * self._entries
                continue
            for index, (log_offset, size, _) in enumerate(ENTRY.iter_unpack(data)):
                if names_record(log_offset, size):
                    return start + index, log_offset, size
            start += len(data) // ENTRY_BYTES
            count = CHUNK_ENTRIES
        return None

    def last_named(self, end: int) -> tuple[int, int, int] | None:
        """The same of the last entry below `end`."""
        while end > self.first:
            start = max(self.first, end - 64, (end - 1) // self._entries * self._entries)
            data = self.read(start, end - start)
            entries = list(ENTRY.iter_unpack(data))
            for index in range(len(entries) - 1, -1, -1):
                if names_record(entries[index][0], entries[index][1]):
                    return start + index, entries[index][0], entries[index][1]
            end = start
        return None

    def first_at(self, log_offset: int) -> int:
        """The first slot that names a record at or above `log_offset`, `top` if none does."""
        low, high = self.first, self.top
        while low < high:
            middle = (low + high) // 2
            found = self.first_named(middle, high)
            if found is None:
                high = middle
            elif found[1] < log_offset:
                low = found[0] + 1
            else:
                high = middle
        found = self.first_named(low, self.top)
        return self.top if found is None else found[0]

    def _file_of(self, offset: int) -> FoundFile | None:
        position = offset * ENTRY_BYTES
        index = bisect_right(self._starts, position) - 1
        if index < 0 or position >= self._starts[index] + self.segment_bytes:
            return None
        return self.files[index]

    def _find_top(self) -> int:
        for file in reversed(self.files):
            size = min(file.size, self.segment_bytes)
            high = self._sources.get(file.path).last_nonzero(0, size)
            if high:
                return file.start // ENTRY_BYTES + -(-high // ENTRY_BYTES)
        return self.files[-1].start // ENTRY_BYTES if self.files else 0


def names_record(log_offset: int, size: int) -> bool:
    """Whether an entry with these fields names a record: it is neither empty nor pre-blank."""
    return 0 < size < PRE_BLANK_SIZE and log_offset >= 0


class RecordsByPlace:
    """Reads single records, for entries that want to know what stands where they point."""

    def __init__(self, sources: Sources, segments: Sequence[FoundFile], segment_bytes: int) -> None:
        self._sources = sources
        self._segment_bytes = segment_bytes
        self._by_start = {file.start // segment_bytes: file for file in segments}

    def has_file(self, log_offset: int) -> bool:
        """Whether there is a file for that part of the log."""
        return log_offset // self._segment_bytes in self._by_start

    def may_be(self, log_offset: int, size: int, log_end: int) -> bool:
        """Whether a record could lie there, in a log that goes on not too far behind `log_end`."""
        room = self._segment_bytes - log_offset % self._segment_bytes
        return size <= room and log_offset < log_end + MISSING_MOST * self._segment_bytes

    def problem(self, queue: QueueReader, offset: int, log_offset: int, size: int) -> str | None:
        """Why the record an entry names is not that queue's message; None if it is."""
        file = self._by_start.get(log_offset // self._segment_bytes)
        if file is None:
            return f"the log has no file for log offset {log_offset}"
        source = self._sources.get(file.path)
        # A window of its own: these reads are scattered, and only as long as the entry says.
        window = _Narrow(source)
        reader = SegmentReader(file, self._segment_bytes, window)
        try:
            head, index = reader.head_at(log_offset - file.start, False)
        except CorruptRecord as error:
            return str(error)
        if head.kind != RECORD:
            return f"the rest of the segment at {log_offset} is blank"
        if head.size != size:
            return f"the record at {log_offset} has {head.size} bytes, the unit says {size}"
        found = (head.topic, head.queue_id, head.queue_offset)
        if found != (queue.topic, queue.queue_id, offset):
            start = index + head.properties_position
            properties = decode_properties(window.buffer[start : start + head.properties_length])
            if (queue.topic, offset) in further_queues(properties):
                return None
            return (
                f"the record at {log_offset} says it is message {head.queue_offset} of "
                f"{head.topic}/{head.queue_id}"
            )
        return None


class _Narrow(Window):
    """A window that reads no further than it is asked to."""

    __slots__ = ()

    def locate(self, position: int, size: int) -> int:
        """As in Window, a little at a time."""
        index = position - self.start
        if index < 0 or index + size > len(self.buffer):
            self.buffer = self.source.read(position, max(size, 512))
            self.start = position
            return 0
        return index


class QueueSet:
    """All queues of a store, and what their entries together say about the log."""

    def __init__(
        self,
        sources: Sources,
        found: Sequence[FoundQueue],
        queue_bytes: int,
        records: RecordsByPlace,
    ) -> None:
        self._records = records
        self.queues = {
            (queue.topic, queue.queue_id): QueueReader(sources, queue, queue_bytes)
            for queue in found
        }
        self._in_order = list(self.queues.values())
        # The next named record of each queue behind what was asked for last, nearest first: (log
        # offset, number of the queue, slot, size).
        self._ahead: list[tuple[int, int, int, int]] | None = None
        self._asked = 0

    def named_end(self) -> int:
        """Log offset behind the last record that an entry names and that names it back, or 0."""
        last = []
        for queue in self.queues.values():
            named = queue.last_named(queue.top)
            if named is not None:
                last.append((named, queue))
        best = 0
        for named, queue in sorted(last, key=lambda item: -item[0][1]):
            found: tuple[int, int, int] | None = named
            while found is not None and found[1] >= best:
                offset, log_offset, size = found
                if self._records.problem(queue, offset, log_offset, size) is None:
                    best = log_offset + size
                    break
                found = queue.last_named(offset)
        return best

    def name_anything(self) -> bool:
        """Whether any entry of any queue names a record."""
        return any(queue.last_named(queue.top) is not None for queue in self.queues.values())

    def next_named(self, log_offset: int, limit: int) -> int:
        """The next record in (log_offset, limit) that an entry names and that names it back.

        Asked with growing log offsets, as a scan does, it looks at each queue once in a while only.
        """
        if self._ahead is None or log_offset < self._asked:
            self._ahead = []
            for number, queue in enumerate(self._in_order):
                self._look_ahead(number, queue, queue.first_at(log_offset + 1))
        self._asked = log_offset
        ahead = self._ahead
        while ahead and ahead[0][0] < limit:
            place, number, offset, size = ahead[0]
            queue = self._in_order[number]
            is_behind = place <= log_offset
            if not is_behind and self._records.problem(queue, offset, place, size) is None:
                return place
            heappop(ahead)
            following = queue.first_at(log_offset + 1) if is_behind else offset + 1
            self._look_ahead(number, queue, max(following, offset + 1))
        return limit

    def _look_ahead(self, number: int, queue: QueueReader, offset: int) -> None:
        """Remember the next entry of the queue, from a slot on, that names a record."""
        named = queue.first_named(offset, queue.top)
        while named is not None and not self._records.has_file(named[1]):
            named = queue.first_named(named[0] + 1, queue.top)
        if named is not None and self._ahead is not None:
            heappush(self._ahead, (named[1], number, named[0], named[2]))
