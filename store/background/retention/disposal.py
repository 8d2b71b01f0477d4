"""Takes files off the disk that the store has already let go of. Worker thread.

A segment that was taken out of the log cannot be found any more, but a read begun before may still
have a view of it. So: wait a moment for the views, unmap, remove the name, sync the directory, give
the blocks back, pause, next one. A segment whose views stay out is *hanged*: it, and all after it,
is tried again later, and after a while its name is removed although it is still read. Its mapping
lives until the last view goes, and is then closed here, not by the last reader.

It goes strictly oldest first, each removal synced before the next: whenever the process dies, it
leaves a run without a hole, and the store opens.

The blocks of a large file are given back in steps, after its name is gone, if nobody else has it.
Freeing a gigabyte at once keeps the file system's journal busy, and every sync waits for it: on
ext4 over a fast disk the worst fdatasync of another file took 45 ms, in steps 10 ms.
"""

import logging
import os
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from aerobee.store.disk.files import Clock, Files, is_full
from aerobee.store.disk.store_health import Health
from aerobee.store.segments.mapped_file import MappedFile

log = logging.getLogger("aerobee.store.background.retention")

# A second for views that are out to come back, before a segment counts as hanged.
_GRACE_POLLS = 200
_POLL_S = 0.005
#: Bytes freed at a time; about 5 ms of a journal's time.
STEP_BYTES = 32 << 20
_STEP_PAUSE_S = 0.005


@dataclass(slots=True)
class DeletionCounts:
    """Counts of deletions since the start, by reason where that matters. The worker writes."""

    segments: dict[str, int] = field(default_factory=dict)
    segment_bytes: dict[str, int] = field(default_factory=dict)
    queue_files: int = 0
    index_files: int = 0
    #: Messages deleted before some group had consumed them, counted once for each group.
    unconsumed: int = 0
    #: Removals that the system refused; they are tried again.
    failures: int = 0

    def segment(self, reason: str, size: int) -> None:
        """Count a segment that is gone."""
        self.segments[reason] = self.segments.get(reason, 0) + 1
        self.segment_bytes[reason] = self.segment_bytes.get(reason, 0) + size


class Removal:
    """Removes single files; `stop` ends all waiting, here and of callers of `pause`."""

    def __init__(self, files: Files, health: Health) -> None:
        self._files = files
        self._health = health
        self._stopping = threading.Event()

    @property
    def stopping(self) -> bool:
        """Whether the store is being closed."""
        return self._stopping.is_set()

    def stop(self) -> None:
        """End all pauses."""
        self._stopping.set()

    def pause(self, seconds: float) -> None:
        """Wait, unless the store is being closed."""
        if seconds > 0:
            self._stopping.wait(seconds)

    def remove(self, path: str) -> None:
        """Remove the file; a name that is gone already is fine. OSError: try again later."""
        fd = self._open(path)
        try:
            self.remove_name(path)
            if fd >= 0:
                self._shrink(fd, path)
        finally:
            if fd >= 0:
                self._files.close(fd)

    def remove_name(self, path: str) -> None:
        """Remove the name of a file that somebody may still read. OSError: try again later."""
        try:
            self._files.remove(path)
        except FileNotFoundError:
            log.warning("to be deleted, and gone already path=%s", path)
        self.sync_directory(os.path.dirname(path))

    def sync_directory(self, directory: str) -> None:
        """Make removals of names durable. Raises OSError; The caller deals with FileNotFoundError;
        any other failure breaks the store, as a failed sync does everywhere."""
        try:
            self._files.sync_directory(directory)
        except OSError as error:
            if not is_full(error) and not isinstance(error, FileNotFoundError):
                self._health.poison(f"the sync of {directory}", error)
            raise

    def _open(self, path: str) -> int:
        try:
            return self._files.open(path)
        except OSError:  # then all blocks are freed at once, with the name
            return -1

    def _shrink(self, fd: int, path: str) -> None:
        """Cut the file off in steps, only if nobody else has it: a reader would lose its bytes."""
        try:
            size = self._files.size(fd)
            if size <= STEP_BYTES or not self._files.is_alone(fd):
                return
            while size > STEP_BYTES and not self.stopping:
                size -= STEP_BYTES
                self._files.set_size(fd, size)
                self.pause(_STEP_PAUSE_S)
        except OSError as error:  # closing it frees the rest
            log.info("space is not given back in steps path=%s error=%s", path, error)


class Detached(NamedTuple):
    """A segment that was taken out of the log, the reason, and the time (monotonic seconds)."""

    segment: MappedFile
    reason: str
    since: float


class SegmentDisposal:
    """Removes detached segments, oldest first. One caller at a time."""

    def __init__(
        self,
        *,
        clock: Clock,
        removal: Removal,
        counts: DeletionCounts,
        pause_s: float,
        destroy_after_s: float,
        redelete_s: float,
    ) -> None:
        self._clock = clock
        self._removal = removal
        self._counts = counts
        self._pause_s = pause_s
        self._destroy_after_s = destroy_after_s
        self._redelete_s = redelete_s
        self._waiting: deque[Detached] = deque()
        self._again_at = 0.0
        # Segments whose names are removed and whose mappings are still read.
        self._lingering: list[MappedFile] = []

    @property
    def hanged(self) -> int:
        """Segments that are deleted but still there, because somebody reads or the disk refuses."""
        return len(self._waiting) + len(self._lingering)

    @property
    def blocked(self) -> bool:
        """Whether further segments would only wait for a segment that cannot be removed."""
        return bool(self._waiting)

    def run(self, detached: Iterable[Detached]) -> int:
        """Remove the segments that can be removed; return how many."""
        self._lingering = [one for one in self._lingering if not one.dismiss()]
        was_blocked = bool(self._waiting)
        self._waiting.extend(detached)
        if was_blocked and self._clock.monotonic() < self._again_at:
            return 0
        removed = 0
        while self._waiting:
            if removed:
                self._removal.pause(self._pause_s)
            if not self._dispose(self._waiting[0]):
                self._again_at = self._clock.monotonic() + self._redelete_s
                break
            self._waiting.popleft()
            removed += 1
        return removed

    def finish(self) -> None:
        """Remove all deleted segments at close, even while they are read; else a start would find
        them."""
        while self._waiting:
            one = self._waiting[0]
            if not self._remove(one, in_use=not one.segment.dismiss()):
                return
            self._waiting.popleft()

    def _dispose(self, one: Detached) -> bool:
        in_use = not self._dismissed(one.segment)
        if in_use and self._clock.monotonic() - one.since < self._destroy_after_s:
            log.warning(
                "deleted segment is still read, will be tried again path=%s pins=%d",
                one.segment.path,
                one.segment.pins,
            )
            return False
        return self._remove(one, in_use=in_use)

    def _dismissed(self, segment: MappedFile) -> bool:
        """Unmap it, waiting a moment for views that are out."""
        for _ in range(_GRACE_POLLS):
            if segment.dismiss():
                return True
            if self._removal.stopping:
                return False
            self._removal.pause(_POLL_S)
        return segment.dismiss()

    def _remove(self, one: Detached, *, in_use: bool) -> bool:
        segment, reason, _ = one
        try:
            if in_use:
                self._removal.remove_name(segment.path)
                self._lingering.append(segment)
            else:
                self._removal.remove(segment.path)
        except OSError as error:
            self._counts.failures += 1
            log.error("segment not removed, will be tried again path=%s %s", segment.path, error)
            return False
        self._counts.segment(reason, segment.size)
        log.info(
            "segment deleted path=%s bytes=%d reason=%s still_read=%s",
            segment.path,
            segment.size,
            reason,
            in_use,
        )
        return True
