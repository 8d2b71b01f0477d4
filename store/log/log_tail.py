"""The end of the commit log: the segment that is written, and the one that comes after it.

Opens the last segment that recovery left, or takes a new one; closes a full one with a blank and
hands out the next. What cannot be had is a StoreError, remembered in `problem` until it works again
(readiness and `not_writable_reason` show it).

A segment is always made ahead of need, also behind one that a restart goes on with: whoever rolls
does not wait for the disk. `make_ahead` does it before the first put, which then need not wait for
the disk in an empty log either.

Threads: the writer's, under the put lock.
"""

from aerobee.protocol.message.record import encode_blank
from aerobee.protocol.message.record_layout import BLANK_BYTES
from aerobee.store.errors import MessageIllegal, StoreError
from aerobee.store.segments.allocate import AllocateMappedFileService, refusal
from aerobee.store.segments.mapped_file import MappedFile
from aerobee.store.segments.mapped_file_queue import MappedFileQueue
from aerobee.store.stats import StoreStats


class LogTail:
    """The writable end of `segments`."""

    def __init__(
        self, segments: MappedFileQueue, allocator: AllocateMappedFileService, stats: StoreStats
    ) -> None:
        self._segments = segments
        self._allocator = allocator
        self._stats = stats
        # Why the last attempt to open or make a segment failed, None when it worked.
        self.problem: str | None = None

    def prepare(self) -> None:
        """Ahead of the first put: open the last segment, if it has room. Raises StoreError."""
        last = self._segments.last
        if last is not None and last.wrote < last.size and not last.active:
            self._activate(last)

    def make_ahead(self, written: int) -> None:
        """Have the segment made that will be needed next, without waiting for it."""
        last = self._segments.last
        self._allocator.prepare(last.end if last is not None else written)

    def open(self, written: int) -> MappedFile:
        """The segment to write to, with its successor under way. Raises StoreError."""
        last = self._segments.last
        if last is None or last.wrote == last.size:
            last = self._take(last.end if last is not None else written)
            self._segments.append(last)
        else:
            if not last.active:
                self._activate(last)
            self._allocator.prepare(last.end)
        return last

    def roll(self, segment: MappedFile, size: int) -> MappedFile:
        """Close `segment` with a blank; the next one, which has room for `size`."""
        if size + BLANK_BYTES > segment.size:
            raise MessageIllegal(
                f"a record of {size} bytes does not fit a segment of {segment.size}; "
                "commit_log_segment_bytes (mappedFileSizeCommitLog) would have to be larger"
            )
        following = self._take(segment.end)
        segment.finish(encode_blank(segment.size - segment.wrote))
        self._segments.append(following)
        return following

    def _activate(self, last: MappedFile) -> None:
        try:
            last.activate(last.wrote)
        except OSError as error:
            raise self._failed(refusal(last.path, error)) from error
        self.problem = None

    def _take(self, start: int) -> MappedFile:
        try:
            segment = self._allocator.take(start)
        except StoreError as error:
            raise self._failed(error) from error
        self._stats.segments_created += 1
        self.problem = None
        return segment

    def _failed(self, error: StoreError) -> StoreError:
        self.problem = str(error)
        return error
