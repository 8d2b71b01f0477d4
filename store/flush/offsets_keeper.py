"""Keeps the offsets file (`offsets_file.py`) up to date while the store runs.

Marks are taken before the sync that they describe and called synced after it, never the other way
round. The queue flush thread saves the file at each of its ticks, about once a second; the owner
saves it before queue or index files are removed, because fewer files would otherwise look like a
loss at the next start; and it is saved once more, with the poisoned bit, when the store breaks.

Threads: any; the lock is held while the file is written.
"""

import threading

import msgspec

from aerobee.store.disk.checkpoint import Checkpoint
from aerobee.store.disk.offsets_file import (
    MOST_GAPS,
    MOST_RENUMBERED,
    DerivedMarks,
    Offsets,
    OffsetsFile,
)
from aerobee.store.disk.steady_time import SteadyTime
from aerobee.store.index.index_service import IndexService
from aerobee.store.log.marks import Marks
from aerobee.store.queues.consume_queue import ConsumeQueue
from aerobee.store.queues.queue_table import ConsumeQueueTable
from aerobee.store.segments.mapped_file_queue import MappedFileQueue


class OffsetsKeeper:
    """Writes `file`, whose content is `start` now; the other arguments give the values."""

    def __init__(
        self,
        *,
        file: OffsetsFile,
        start: Offsets,
        index: IndexService | None,
        marks: Marks,
        checkpoint: Checkpoint,
        time: SteadyTime,
        segments: MappedFileQueue,
        queues: ConsumeQueueTable,
    ) -> None:
        self._file = file
        self._current = start
        self._index = index
        self._marks = marks
        self._checkpoint = checkpoint
        self._time = time
        self._segments = segments
        self._queues = queues
        self._lock = threading.Lock()
        # Entries of queues that are about to be taken out: a start must not miss them.
        self.leaving = 0

    @property
    def gaps(self) -> tuple[tuple[int, int], ...]:
        """Ranges [start, end) of the log that are known to hold no usable record."""
        return self._current.gaps

    @property
    def synced_to(self) -> int:
        """Log offset below which all entries and keys are known to be synced."""
        return self._current.synced.log_offset

    @property
    def safe_end(self) -> int:
        """Log offset below which all is durable, dispatched and synced in the queues."""
        return min(self._marks.settled, self.synced_to)

    @property
    def behind_bytes(self) -> int:
        """The bytes by which the saved flushed mark could be moved on."""
        return self._marks.durable - self._current.flushed

    def take(self) -> DerivedMarks:
        """The dispatched mark with its sums. Call it before a sync of all queues and the index."""
        return DerivedMarks(*self._marks.counted)

    def _durable(self) -> tuple[int, int]:
        """The durable mark, and the store time of the last synced record, in ms."""
        return self._marks.durable, self._checkpoint.physic_ms

    def _change(self, **changes: object) -> None:
        self._current = msgspec.structs.replace(self._current, **changes)

    def synced(self, marks: DerivedMarks) -> None:
        """Note that all below `marks` has been synced."""
        with self._lock:
            self._change(synced=marks, indexed=-1 if self._index is None else marks.log_offset)

    def forget_queues(self, gone: list[ConsumeQueue], log_end: int) -> None:
        """Note queues that are about to be taken out; their files go after this. Raises OSError.

        Records from `log_end` on may have numbers that begin at 0 again. Only those of the entries
        that the synced mark counts are taken off it: if younger entries were taken off too, the
        same number of missing entries of other queues would not be noticed.
        """
        with self._lock:
            synced = self._current.synced
            entries = sum([queue.entries_below(synced.log_offset) for queue in gone])
            self._change(
                synced=DerivedMarks(synced.log_offset, max(0, synced.entries - entries)),
                renumbered=self._renumbered({queue.topic for queue in gone}, log_end),
            )
        self.begin_later()

    def _renumbered(self, topics: set[str], log_end: int) -> tuple[tuple[str, int], ...]:
        """The renumbered topics with `topics` added, without topics of which the log has no older
        record."""
        known = self._current
        kept = [
            (topic, log_offset)
            for topic, log_offset in known.renumbered
            if topic not in topics and log_offset > known.log_begins
        ]
        kept += [(topic, log_end) for topic in sorted(topics)]
        return tuple(kept[-MOST_RENUMBERED:])

    def begin_later(self) -> None:
        """Note that the log or queues begin later than before; the files go after this. Raises
        OSError."""
        log_begins, queues_begin = self._segments.min_offset, self._queues.beginnings()
        with self._lock:
            self._change(log_begins=log_begins, queues_begin=queues_begin)
        self.save()

    def add_gap(self, start: int, end: int) -> None:
        """Note damage that was found while the store runs; the next save writes it."""
        with self._lock:
            self._change(gaps=merged([*self._current.gaps, (start, end)]))

    def save(self, *, poisoned: bool = False) -> None:
        """Write the file if anything has changed. Raises OSError, but not for a full disk: the
        older marks that stay are still right."""
        with self._lock:
            flushed, last_store_ms = self._durable()
            log_offset, entries = self._marks.counted
            self._change(
                flushed=flushed,
                last_store_ms=last_store_ms or self._current.last_store_ms,
                live=DerivedMarks(log_offset, max(0, entries - self.leaving)),
                index_files=() if self._index is None else self._index.file_names(),
                index_end=-1 if self._index is None else self._index.end_offset,
                poisoned=self._current.poisoned or poisoned,
                clock=self._time.note(),
            )
            self._file.save_if_room(self._current)


def merged(gaps: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The gaps in order, overlapping gaps joined, only the last ones if there are too many."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(gaps):
        if found and start < found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return tuple(found[-MOST_GAPS:])
