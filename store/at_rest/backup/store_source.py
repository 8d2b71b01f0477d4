"""Reads a store for its backup, also while a broker runs on it: tables, mark, names of segments.

The order is what makes a backup whole. Tables that note progress are read first: at that moment
they speak of records that are written. Then `wait_for_mark` looks where the written records end,
and waits until the broker's durable mark has passed that place. So no progress points beyond the
log that is copied. Tables that say what there is (topics, groups) are read after the mark: a topic
is saved before its first message is stored, so each message below the mark finds its topic.

Nothing is locked and nothing is changed. Files that go meanwhile are left out.
"""

import os
import time
from collections.abc import Iterator

import msgspec

from aerobee.store.at_rest.backup.copying import despite_removals, read_whole
from aerobee.store.disk.files import Clock, Files
from aerobee.store.disk.offsets_file import Offsets
from aerobee.store.disk.segment_names import is_segment_name
from aerobee.store.errors import StoreLayoutError
from aerobee.store.inspect.log_files import LogFiles
from aerobee.store.inspect.start_checks import BACKUP, TEMPORARY, TOPICS
from aerobee.store.inspect.state import read_marks
from aerobee.store.inspect.store_files import StoreFiles
from aerobee.store.inspect.store_layout import FoundFile, log_directories
from aerobee.store.log.encoding import crc_checks

_FOLDERS = ("config", "namesrv")
_LATE = (TOPICS, "subscriptionGroup.json", "deletedTopics.json")
# A table's log is read after the table: what moved from the one to the other is found twice then,
# and never missed; the current log before the old one for the same reason.
_ORDER = ("stages.json", "stages.log", "stages.log.old")
_POLL_S = 0.05


class QueueEnd(msgspec.Struct, frozen=True, array_like=True):
    """The queue offset that the next message of a queue gets; whether the log has messages of
    it."""

    topic: str
    queue_id: int
    end: int
    has_messages: bool


class StoreSource:
    """The store below `store.root`."""

    def __init__(self, store: StoreFiles, clock: Clock) -> None:
        self._store = store
        self._files: Files = store.files
        self._clock = clock

    def tables(self, *, late: bool) -> Iterator[tuple[str, bytes]]:
        """(path below the store, content) of the small files to be read before the mark is known,
        or after it (`late`). Raises OSError."""
        for folder in _FOLDERS:
            directory = os.path.join(self._store.root, folder)
            names = self._files.names(directory)
            for name in sorted(names, key=_place):
                if (name.removesuffix(BACKUP) in _LATE) is not late or not _is_kept(name, names):
                    continue
                path = os.path.join(directory, name)
                try:
                    if not self._files.is_directory(path):
                        yield os.path.join(folder, name), read_whole(self._files, path)
                except FileNotFoundError:
                    continue

    def segments(self) -> list[FoundFile]:
        """The segments as they are now, in order; files without length are left out."""
        found: dict[int, FoundFile] = {}
        for directory in log_directories(self._store.settings):
            for name in filter(is_segment_name, self._files.names(directory)):
                path = os.path.join(directory, name)
                try:
                    size = self._files.size_of(path)
                except FileNotFoundError:
                    continue
                if size:
                    found.setdefault(int(name), FoundFile(path, int(name), size))
        return [found[start] for start in sorted(found)]

    def wait_for_mark(self, wait_s: float) -> tuple[int, Offsets | None]:
        """The log offset up to which to copy, and what the broker's offsets file says.

        It is the durable mark once that has passed all that is written now. Where no broker moves
        it within `wait_s` (it was killed), or there is no mark (RocketMQ), it is the end of the
        last whole record. Raises StoreLayoutError or OSError.
        """
        written = despite_removals(self._written_end)
        until = self._clock.monotonic() + (wait_s if self._store.left_open else 0)
        while True:
            known = read_marks(self._files, self._store.root).believed
            if known is None:
                return written, None
            if known.flushed >= written:
                return known.flushed, known
            if self._clock.monotonic() >= until:
                return written, known
            time.sleep(_POLL_S)

    def queue_ends(self, mark: int) -> list[QueueEnd]:
        """Where each queue ends below the mark. Raises OSError."""
        ends = []
        segments = self.segments()
        log_begins = segments[0].start if segments else mark
        for (topic, queue_id), queue in sorted(self._store.queues.items()):
            try:
                end = queue.first_at(mark)
                named = queue.first_named(queue.first_at(log_begins), end)
            except FileNotFoundError:
                continue  # the topic was deleted meanwhile
            if end:
                ends.append(QueueEnd(topic, queue_id, end, named is not None))
        return ends

    def _written_end(self) -> int:
        """The end of the last whole record. Raises FileNotFoundError if a file goes meanwhile."""
        store, segments = self._store, self.segments()
        flushed = store.marks.flushed
        if not segments:
            if flushed:
                raise _short(0, flushed)
            return 0
        segment_bytes = store.sizes.segment_bytes
        log = LogFiles(store.sources, segments, segment_bytes)
        if segments[-1].start + segment_bytes < flushed:
            raise _short(segments[-1].start + segment_bytes, flushed)
        start = max(flushed or log.last_sound_start(), segments[0].start)
        check_crc = crc_checks(verify_property_crc=store.settings.verify_property_crc)
        scan, _ = log.scanner(store.boundaries, start, check_crc, torn_above=False)
        for _ in scan.batches(start):
            pass
        return max(scan.end, start)


def _place(name: str) -> tuple[int, str]:
    return (_ORDER.index(name) if name in _ORDER else -1), name


def _is_kept(name: str, names: list[str]) -> bool:
    """Whether a start may need the file: a backup only where its table is missing."""
    if name.endswith((TEMPORARY, ".spare")):
        return False
    return not (name.endswith(BACKUP) and name.removesuffix(BACKUP) in names)


def _short(end: int, flushed: int) -> StoreLayoutError:
    return StoreLayoutError(
        f"the commit log ends at {end}, but messages up to {flushed} were on the disk: segments "
        "are missing at its end. Restore them, or see what is left with 'aerobee store repair'."
    )
