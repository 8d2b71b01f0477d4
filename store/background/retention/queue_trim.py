"""Trims consume queues and index after the log has lost its oldest segments.

Each queue gives up the leading files whose last entries all name records below the log's beginning,
never its last file, which holds its numbering, and then begins at its first entry that the log
still has, or at its end without one (store/FORMAT.md 10.3, 5.4). The index gives up its oldest
files that know nothing newer.

With thousands of queues that is a lot of reading. So a worker thread plans it, the owner's thread
applies it in small portions, each a few attributes, and the worker removes the files. A crash in
between leaves files too many, which the next start reads, corrects and trims again.

A file goes only if no record that its last entries name is still there: a damaged entry must not
take the others' files with it.
"""

import logging
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from aerobee.store.background.retention.disposal import DeletionCounts, Removal
from aerobee.store.disk.descriptors import QueueFile
from aerobee.store.disk.files import Files
from aerobee.store.index.index_file import IndexFile
from aerobee.store.index.index_service import IndexService
from aerobee.store.queues.consume_queue import ConsumeQueue
from aerobee.store.queues.queue_table import ConsumeQueueTable
from aerobee.store.queues.queue_view import ENTRY, ENTRY_BYTES, PRE_BLANK_SIZE
from aerobee.store.queues.snapshot import snapshot

log = logging.getLogger("aerobee.store.background.retention")

#: Queue files removed in one run; with the pause after each, a run stays short.
MOST_A_RUN = 100
_LAST_ENTRIES = 64


class QueueTrim(NamedTuple):
    """Files that a queue gives up: its leading `files`; it begins at `min_offset` then."""

    queue: ConsumeQueue
    files: tuple[QueueFile, ...]
    min_offset: int


class QueueTrimmer:
    """Trims the queues of `table` and `index`; the module's story says which thread calls what."""

    def __init__(
        self,
        *,
        files: Files,
        table: ConsumeQueueTable,
        index: IndexService | None,
        removal: Removal,
        counts: DeletionCounts,
        pause_s: float,
    ) -> None:
        self._files = files
        self._table = table
        self._index = index
        self._removal = removal
        self._counts = counts
        self._pause_s = pause_s
        self._queue_files: deque[tuple[ConsumeQueue, QueueFile]] = deque()
        self._index_files: deque[IndexFile] = deque()

    # --- worker -----------------------------------------------------------------------------

    def plan(self, log_min: int) -> list[QueueTrim]:
        """Plan what the queues give up when the log begins at `log_min`."""
        planned = []
        for queue in self._table:
            try:
                trim = plan_queue(self._files, queue, log_min)
            except FileNotFoundError:  # its topic has been deleted meanwhile
                continue
            if trim is not None:
                planned.append(trim)
        return planned

    def dispose(self, *, at_once: bool = False) -> int:
        """Remove the files of the applied trims; return how many. Never raises.

        At most `MOST_A_RUN` with pauses, or all `at_once`.
        """
        most = len(self._queue_files) if at_once else MOST_A_RUN
        removed = 0
        try:
            while self._index_files:
                self._index_files[0].close()
                self._removal.remove(self._index_files[0].path)
                self._index_files.popleft()
                self._counts.index_files += 1
                removed += 1
            while self._queue_files and most > 0 and not self._removal.stopping:
                queue, file = self._queue_files[0]
                self._remove(queue, file)
                self._queue_files.popleft()
                self._counts.queue_files += 1
                removed += 1
                most -= 1
                if not at_once:
                    self._removal.pause(self._pause_s)
        except OSError as error:
            self._counts.failures += 1
            log.error("queue or index file not removed, will be tried again error=%s", error)
        return removed

    def _remove(self, queue: ConsumeQueue, file: QueueFile) -> None:
        self._table.cache.discard(file)
        if self._table.unlink(queue, file):
            try:
                self._removal.sync_directory(queue.directory)
            except FileNotFoundError:  # went with its topic just now
                return

    # --- owner ------------------------------------------------------------------------------

    def apply(self, trims: Sequence[QueueTrim]) -> None:
        """Let queues begin as planned. Each takes a few microseconds."""
        for trim in trims:
            queue = trim.queue
            known = self._table.get(queue.topic, queue.queue_id)
            if known is queue and _begin_later(trim):
                self._queue_files.extend((queue, file) for file in trim.files)
                queue.trimmed()

    def apply_index(self, log_min: int) -> bool:
        """Let the index forget files without a record at or above `log_min`; return whether it
        did."""
        taken = () if self._index is None else self._index.take_below(log_min)
        self._index_files.extend(taken)
        return bool(taken)


def plan_queue(files: Files, queue: ConsumeQueue, log_min: int) -> QueueTrim | None:
    """The files that a queue gives up; None without any. Raises OSError."""
    with snapshot(files, queue) as copy:
        if not copy.segments:
            return None
        gone = 0
        while gone < len(copy.segments) - 1 and _all_below(copy, gone, log_min):
            gone += 1
        copy.segments = copy.segments[gone:]
        first = copy.entry(copy.min_offset)
        if not gone and first is not None and first.log_offset >= log_min:
            return None
        min_offset = max(copy.min_offset, copy.first_at(log_min))
    if not gone and min_offset == copy.min_offset:
        return None
    return QueueTrim(queue, queue.segments[:gone], min_offset)


def _begin_later(trim: QueueTrim) -> bool:
    """Let the queue begin later. False, with nothing changed, if the files are not its first ones
    (any more)."""
    queue, files, min_offset = trim
    count = len(files)
    if queue.segments[:count] != files or count >= len(queue.segments):
        return False
    queue.segments = queue.segments[count:]
    queue.min_offset = max(queue.min_offset, min_offset)
    return True


def _all_below(queue: ConsumeQueue, number: int, log_min: int) -> bool:
    """Whether all records that the last entries of a full file name are below `log_min`."""
    file = queue.segments[number]
    if file.end > queue.max_offset * ENTRY_BYTES:
        return False
    first = file.start // ENTRY_BYTES
    end = file.end // ENTRY_BYTES
    while end > first:
        start = max(first, end - _LAST_ENTRIES)
        named = [
            log_offset
            for log_offset, size, _ in ENTRY.iter_unpack(queue.read_entries(start, end - start))
            if 0 < size < PRE_BLANK_SIZE
        ]
        if named:
            return bool(max(named) < log_min)
        end = start
    return True
