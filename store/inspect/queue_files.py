"""Consume queues as files in any state: read-only, with some missing, cut short, or wrong.

A running broker's `ConsumeQueue` has the same view of its files (`queues/queue_view.py`); but it
insists on a whole queue and opens for writing.
"""

from bisect import bisect_right

from aerobee.store.inspect.audit_report import Findings
from aerobee.store.inspect.store_layout import FoundFile, FoundQueue
from aerobee.store.log.scan.sources import Sources
from aerobee.store.queues.queue_view import ENTRY_BYTES, QueueView


class QueueFiles(QueueView):
    """A consume queue; `max_offset` is the slot after the last slot that is not empty."""

    __slots__ = ("_sources", "_starts", "directory", "files", "max_offset", "queue_id",
                 "segment_bytes", "topic")  # fmt: skip

    def __init__(self, sources: Sources, found: FoundQueue, segment_bytes: int) -> None:
        self._sources = sources
        self.topic = found.topic
        self.queue_id = found.queue_id
        self.directory = found.directory
        self.segment_bytes = segment_bytes
        self.files = tuple(file for file in found.files if file.start % segment_bytes == 0)
        self._starts = tuple(file.start for file in self.files)
        self.max_offset = self._find_end()

    @property
    def first_offset(self) -> int:
        return self.files[0].start // ENTRY_BYTES if self.files else 0

    @property
    def used_bytes(self) -> int:
        """About the number of bytes to read."""
        return (self.max_offset - self.first_offset) * ENTRY_BYTES

    def read_entries(self, first: int, count: int) -> bytes:
        file = self._file_of(first)
        if file is None:
            return b""
        position = first * ENTRY_BYTES - file.start
        size = min(count * ENTRY_BYTES, self.segment_bytes - position)
        data = self._sources.get(file.path).read(position, size)
        return data[: len(data) // ENTRY_BYTES * ENTRY_BYTES]

    def place(self, offset: int) -> tuple[str, int]:
        """File and byte position of a slot; the directory instead of a missing file."""
        file = self._file_of(offset)
        if file is None:
            return self.directory, 0
        return file.path, offset * ENTRY_BYTES - file.start

    def note(
        self, findings: Findings, kind: str, offset: int, what: str, log_offset: int | None = None
    ) -> None:
        """Add a finding at a slot."""
        path, position = self.place(offset)
        findings.add(kind, path, position, what, log_offset=log_offset, queue_offset=offset)

    def check_files(self, findings: Findings, found: FoundQueue) -> None:
        """Check lengths and the run of the files."""
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

    def _file_of(self, offset: int) -> FoundFile | None:
        position = offset * ENTRY_BYTES
        index = bisect_right(self._starts, position) - 1
        if index < 0 or position >= self._starts[index] + self.segment_bytes:
            return None
        return self.files[index]

    def _find_end(self) -> int:
        for file in reversed(self.files):
            size = min(file.size, self.segment_bytes)
            high = self._sources.get(file.path).last_nonzero(0, size)
            if high:
                return file.start // ENTRY_BYTES + -(-high // ENTRY_BYTES)
        return self.files[-1].start // ENTRY_BYTES if self.files else 0
