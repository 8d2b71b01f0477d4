"""The run of segments that makes up the commit log: ordered, contiguous, all of one size.

Readers on any thread work on one immutable tuple, so a roll or a removal never shows them a list in
between (docs/reliability.md B9). Finding the segment of a log offset is a division.

Loading is strict. A file of another length means other settings, and going on would misread
everything: `StoreSizeMismatch` names the file, both sizes and the key. Names that are no segment's
(`lost+found`, an editor's left-over) are left alone and reported. A hole in the run is refused: the
missing part may still be on some disk. So is a segment that is there twice, in two directories:
nobody but its owner knows which one counts.
"""

import os
import threading
from collections.abc import Iterator, Sequence
from itertools import pairwise

from aerobee.store.disk.files import Files
from aerobee.store.disk.segment_names import is_segment_name, segment_name
from aerobee.store.errors import StoreLayoutError, StoreSizeMismatch
from aerobee.store.segments.mapped_file import MappedFile
from aerobee.store.segments.paths import LogPaths


def check_is_file(files: Files, path: str) -> None:
    """Raise StoreLayoutError if `path`, which has the name of a file made from the log, is not a
    file."""
    if files.is_directory(path):
        raise StoreLayoutError(
            f"{path} is a directory, a file is needed. Move it away: the file is made again."
        )


def check_file_size(path: str, found: int, expected: int, keys: str) -> None:
    """Raise StoreSizeMismatch unless `found` is `expected`; `keys` are the settings to look at."""
    if found != expected:
        raise StoreSizeMismatch(
            f"{path} has {found} bytes, but the settings make it {expected}. The sizes of existing "
            f"files cannot be changed: set {keys} to what this directory was written with, or "
            "point the broker at another directory. If only some files have another size, somebody "
            "has changed them: 'aerobee store repair' says what can be kept."
        )


class MappedFileQueue:
    """Segments of `segment_bytes` each in the directories of `paths`."""

    def __init__(self, files: Files, paths: LogPaths, segment_bytes: int) -> None:
        self._files = files
        self.paths = paths
        self.segment_bytes = segment_bytes
        self.segments: tuple[MappedFile, ...] = ()
        # The writer appends on any thread, the owner takes out in front.
        self._change = threading.Lock()
        # Zero-length files that a crash left at the end; recovery removes them.
        self.unfinished: list[str] = []
        # Names in the directories that are not ours.
        self.foreign: list[str] = []

    def load(self, size_keys: str) -> None:
        """Read the directories. Raises StoreSizeMismatch or StoreLayoutError; changes nothing."""
        names: dict[str, str] = {}
        for directory, name in self.paths.names():
            path = os.path.join(directory, name)
            if not is_segment_name(name):
                self.foreign.append(path)
            elif self._files.is_directory(path):
                raise StoreLayoutError(
                    f"{path} is a directory, a segment of the commit log is needed; restore it, or "
                    "move the directory away if there never was one"
                )
            elif name in names:
                raise StoreLayoutError(self._twice(names[name], path))
            else:
                names[name] = path
        last = max(names, default="")
        found: list[MappedFile] = []
        for name, path in sorted(names.items()):
            size = self._files.size_of(path)
            if size == 0 and name == last:
                # A crash between making and lengthening the file.
                self.unfinished.append(path)
                continue
            check_file_size(path, size, self.segment_bytes, size_keys)
            found.append(MappedFile.load(self._files, path, int(name), self.segment_bytes))
        for before, segment in pairwise(found):
            if segment.start != before.end:
                missing = os.path.join(os.path.dirname(before.path), segment_name(before.end))
                raise StoreLayoutError(
                    f"the commit log goes from {before.path} to {segment.path}: the segments "
                    f"between {before.end} and {segment.start} are missing, "
                    f"{missing} first. Restore them, or look with 'aerobee store "
                    f"repair' at what can be done without them.{self.paths.absent()}"
                )
        if found and found[0].start % self.segment_bytes:
            raise StoreLayoutError(
                f"{found[0].path} does not begin at a multiple of {self.segment_bytes} bytes"
            )
        self.segments = tuple(found)

    def _twice(self, one: str, other: str) -> str:
        empty = [path for path in (one, other) if self._is_empty(path)]
        advice = (
            f"{empty[0]} holds nothing but zeros, so it was made ahead and never used: move it away"
            if len(empty) == 1
            else "find out which one the log went on with, and move the other away"
        )
        return f"{one} and {other} are the same segment of the commit log; {advice}."

    def _is_empty(self, path: str) -> bool:
        with self._files.opened(path, read_only=True) as fd:
            return self._files.last_nonzero(fd, 0, self._files.size(fd)) == 0

    @property
    def min_offset(self) -> int:
        """First log offset; 0 when there is no segment."""
        segments = self.segments
        return segments[0].start if segments else 0

    @property
    def max_offset(self) -> int:
        """Log offset after the last written byte; 0 when there is no segment."""
        segments = self.segments
        return segments[-1].start + segments[-1].wrote if segments else 0

    @property
    def last(self) -> MappedFile | None:
        """The segment that is being written, None without segments."""
        segments = self.segments
        return segments[-1] if segments else None

    def find(self, log_offset: int) -> MappedFile | None:
        """The segment that holds `log_offset`, None outside of the log."""
        segments = self.segments
        if not segments:
            return None
        index = (log_offset - segments[0].start) // self.segment_bytes
        return segments[index] if 0 <= index < len(segments) else None

    def between(self, start: int, end: int) -> Iterator[MappedFile]:
        """Segments that hold bytes of [start, end), in order."""
        for segment in self.segments:
            if segment.end > start and segment.start < end:
                yield segment

    def append(self, segment: MappedFile) -> None:
        """Make `segment` the last one."""
        assert not self.segments or segment.start == self.segments[-1].end
        with self._change:
            self.segments = (*self.segments, segment)

    def take_front(self, starts: Sequence[int]) -> tuple[MappedFile, ...]:
        """Take out the first segments, which must begin at `starts`, and never the last one.

        Their files stay; nothing is taken if the segments are not, or no longer, these.
        """
        count = len(starts)
        with self._change:
            front, rest = self.segments[:count], self.segments[count:]
            if not rest or [segment.start for segment in front] != list(starts):
                return ()
            self.segments = rest
        return front

    def drop_from(self, log_offset: int) -> list[str]:
        """Remove segments that begin at or above `log_offset`, last to first; return their paths.

        The first segment stays whatever it holds: its name is where numbering goes on. Each removal
        is durable before the next: of two removals, a power cut could undo the later one alone, and
        the log would have a hole.
        """
        removed: list[str] = []
        while len(self.segments) > 1 and self.segments[-1].start >= log_offset:
            segment = self.segments[-1]
            self.segments = self.segments[:-1]
            segment.close()
            self._files.remove(segment.path)
            self._files.sync_directory(os.path.dirname(segment.path))
            removed.append(segment.path)
        return removed

    def sync_names(self) -> None:
        """Make the segments' names durable: the process that made them may have been killed first.

        Raises OSError.
        """
        for directory in {os.path.dirname(segment.path) for segment in self.segments}:
            self._files.sync_directory(directory)

    def note_checked_from(self, log_offset: int) -> None:
        """Note that all records at or above `log_offset` have been checked, with CRC."""
        for segment in self.segments:
            unchecked = max(0, log_offset - segment.start)
            segment.unchecked_below = min(segment.unchecked_below, unchecked)

    def close(self) -> None:
        """Close all segments."""
        for segment in self.segments:
            segment.close()
