"""A consume queue of a running broker: what `queue_view.py` says, and how it is written.

Files are of fixed length, sparse, and written with pwrite, so a full disk is an error here and no
fault.

Offsets here are queue offsets (in entries) unless a name says bytes or log. `max_offset` moves
last, after the entry is in the file; `next_offset` is the numbering and belongs to the put lock.

Threads: the store's caller only; the flush thread syncs files through the DescriptorCache.
"""

import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from aerobee.protocol.names import WAITING_TOPICS
from aerobee.store.disk.descriptors import DescriptorCache, QueueFile
from aerobee.store.disk.segment_names import is_segment_name
from aerobee.store.errors import StoreLayoutError
from aerobee.store.queues.kept_ends import KeptEnds
from aerobee.store.queues.queue_view import (
    BLANK_CHUNK,
    CHUNK_ENTRIES,
    ENTRY_BYTES,
    FEW_ENTRIES,
    PRE_BLANK,
    QueueView,
)
from aerobee.store.segments.mapped_file_queue import check_file_size, check_is_file

_SIZE_KEYS = "consume_queue_segment_bytes (mappedFileSizeConsumeQueue)"
# Missing files are made again; more of them than this in a row are a matter for a person.
_MISSING_MOST = 1000
_NOTHING_KNOWN: Mapping[QueueFile, int] = MappingProxyType({})


class ConsumeQueue(QueueView):
    """One queue. Made in memory by the first put; its files come with the first dispatch."""

    __slots__ = (
        "_cache",
        "_files",
        "_kept",
        "_kept_at",
        "_tail",
        "delayed",
        "directory",
        "max_offset",
        "min_offset",
        "next_offset",
        "odd_sizes",
        "queue_id",
        "segment_bytes",
        "segments",
        "topic",
        "unfinished",
        "unmade",
    )

    def __init__(
        self, cache: DescriptorCache, directory: str, topic: str, queue_id: int, segment_bytes: int
    ) -> None:
        assert segment_bytes % ENTRY_BYTES == 0
        self._files = cache.files
        self._cache = cache
        self._tail: QueueFile | None = None
        # The first and the last entries while a start judges them.
        self._kept: KeptEnds | None = None
        self._kept_at = 0
        self.directory = directory
        self.topic = topic
        self.queue_id = queue_id
        # Entries hold delivery times instead of tags codes.
        self.delayed = topic in WAITING_TOPICS
        self.segment_bytes = segment_bytes
        # Replaced as a whole, never changed: other threads may be reading the one they took.
        self.segments: tuple[QueueFile, ...] = ()
        self.min_offset = 0
        self.max_offset = 0
        self.next_offset = 0
        # Files to repair: an empty file at the end goes, files of another size or missing files
        # before it are made.
        self.unfinished: str | None = None
        self.unmade: tuple[QueueFile, ...] = ()
        # Those that somebody has cut or lengthened.
        self.odd_sizes: Mapping[QueueFile, int] = _NOTHING_KNOWN

    # --- writing ----------------------------------------------------------------------------

    def write_entries(self, first: int, data: bytes) -> None:
        """Put entries at the slots from `first` on. Raises OSError; trying again is harmless."""
        tail = self._tail
        position = first * ENTRY_BYTES
        end = position + len(data)
        if tail is None or first != self.max_offset or position < tail.start or end > tail.end:
            self._write_anywhere(first, data)
            return
        cache = self._cache
        self._files.write(cache.fd(tail), position - tail.start, data)
        cache.wrote(tail, end - tail.start)
        self.max_offset = end // ENTRY_BYTES

    def _write_anywhere(self, first: int, data: bytes) -> None:
        if not self.segments:
            self._create(first * ENTRY_BYTES // self.segment_bytes * self.segment_bytes)
            self.max_offset = self.segments[0].start // ENTRY_BYTES
            self.min_offset = first
        if first < self.first_offset:
            self._extend_front(first)
        while self.max_offset < first:
            blanks = min(first - self.max_offset, CHUNK_ENTRIES)
            self._write_split(self.max_offset, BLANK_CHUNK[: blanks * ENTRY_BYTES])
        self._write_split(first, data, rewritten=first < self.max_offset)

    def _write_split(self, first: int, data: bytes, *, rewritten: bool = False) -> None:
        position = first * ENTRY_BYTES
        while data:
            file = self._segment_at(position) or self._create(self.segments[-1].end)
            part = data[: file.end - position]
            self._files.write(self._cache.fd(file), position - file.start, part)
            high = position - file.start + len(part)
            self._cache.wrote(file, high, rewritten=rewritten)
            self._tail = file
            position += len(part)
            data = data[len(part) :]
        self.max_offset = max(self.max_offset, position // ENTRY_BYTES)

    def _extend_front(self, first: int) -> None:
        """Files went missing at the front while the log still names their slots: make them."""
        kept, self.segments = self.segments, ()
        start = first * ENTRY_BYTES // self.segment_bytes * self.segment_bytes
        for file_start in range(start, kept[0].start, self.segment_bytes):
            self._create(file_start)
        self.segments += kept
        self._tail = kept[-1]
        for slot in range(start // ENTRY_BYTES, first, CHUNK_ENTRIES):
            self._write_split(slot, BLANK_CHUNK[: (first - slot) * ENTRY_BYTES])

    def _create(self, start: int) -> QueueFile:
        # Below the directory of all queues, which a start makes: were the store moved away, it
        # would be made anew here, and the store, moved back, land inside of it.
        root = os.path.dirname(os.path.dirname(self.directory))
        changed = self._files.make_directories(self.directory, below=root)
        self._cache.note_directories(changed)
        file = QueueFile(self.directory, start, self.segment_bytes)
        self._cache.create(file, self.segment_bytes)
        self.segments = (*self.segments, file)
        self._tail = file
        return file

    def zero_from(self, first: int) -> int:
        """Empty all slots from `first` on; files wholly behind it go. Bytes rewritten.

        Last to first, and each removal is durable before the next change: as long as entries are to
        be cut, the files behind them are there only if the ones before are. Raises OSError.
        """
        rewritten, position = 0, first * ENTRY_BYTES
        while len(self.segments) > 1 and self.segments[-1].start >= position:
            file = self.segments[-1]
            self.segments = self.segments[:-1]
            self._remove(file)
        if self.segments:
            file = self.segments[-1]
            begin = max(position, file.start) - file.start
            fd = self._cache.fd(file)
            rewritten = self._files.zero(fd, begin, self.segment_bytes)
            if rewritten:
                self._cache.wrote(file, self.segment_bytes)
            self._tail = file
            self.max_offset = min(self.max_offset, (file.start + begin) // ENTRY_BYTES)
        return rewritten

    def restart_at(self, first: int) -> None:
        """Forget all slots from `first` on, because they are about to be numbered anew."""
        if first > self.first_offset:
            self.zero_from(first)
            return
        for file in reversed(self.segments):
            self._remove(file)
        self.segments = ()
        self._tail = None
        self.max_offset = self.min_offset = 0

    def _remove(self, file: QueueFile) -> None:
        self._cache.discard(file)
        self._files.remove(file.path)
        self._files.sync_directory(self.directory)

    def blank_out(self, offset: int) -> None:
        """Keep the slot, forget its record: a pre-blank entry takes its place."""
        self._write_split(offset, PRE_BLANK)

    # --- reading ----------------------------------------------------------------------------

    def read_entries(self, first: int, count: int) -> bytes:
        """Up to `count` entries from `first` on, within one file; empty without entries."""
        position = first * ENTRY_BYTES
        file = self._segment_at(position)
        if file is None:
            return b""
        end = min(position + count * ENTRY_BYTES, file.end, self.max_offset * ENTRY_BYTES)
        if end <= position:
            return b""
        if self._kept is not None:
            kept = self._kept.find(self._kept_at, file, position, end - position)
            if kept is not None:
                return kept
        return self._files.read(self._cache.fd(file), position - file.start, end - position)

    #: Read entries (see `read_entries`) with tags codes in the place of extension addresses.
    read_coded = read_entries

    def bit_maps(self, entries: bytes, map_bytes: int) -> Sequence[int | None]:
        """The bit maps of `map_bytes` of the entries' messages, as numbers, None for a message
        without a map; empty where no message of the queue has a map. Raises OSError."""
        return ()

    def entries_below(self, log_offset: int) -> int:
        """The `max_offset` when the records below `log_offset` had been dispatched."""
        last = self.entry(self.max_offset - 1) if self.max_offset else None
        if last is not None and last.log_offset < log_offset:
            return self.max_offset
        return self.first_at(log_offset)

    @property
    def first_offset(self) -> int:
        """First slot that has a file."""
        return self.segments[0].start // ENTRY_BYTES if self.segments else 0

    def correct_min_offset(self, log_min: int) -> None:
        """Let the queue begin at its first message that the log still has; at its end if none."""
        self.min_offset = self.first_at(log_min)

    def trimmed(self) -> None:
        """The queue begins later than it did. Raises OSError."""

    def dispose(self) -> None:
        """Flush thread: remove files that were let go of. Raises OSError."""

    def recovered(self) -> None:
        """A recovery is done with the queue: numbering goes on at its end. Raises OSError."""
        self.number_on()
        self._kept = None

    def number_on(self) -> None:
        """Numbering goes on at the end: all messages that the log has are in the queue."""
        self.next_offset = self.max_offset

    # --- loading ----------------------------------------------------------------------------

    def load(self, names: list[str]) -> list[str]:
        """Take the files in `names`; foreign names are returned. `find_end` is next.

        Raises StoreSizeMismatch or StoreLayoutError; nothing is changed.
        """
        foreign: list[str] = []
        for name in names:
            file_path = os.path.join(self.directory, name)
            if not is_segment_name(name):
                foreign.append(file_path)
                continue
            check_is_file(self._files, file_path)
            found = self._files.size_of(file_path)
            if not found and name == names[-1]:
                self.unfinished = file_path  # a crash while it was made
                continue
            self._take_in(QueueFile(self.directory, int(name), self.segment_bytes), found)
        return foreign

    def _take_in(self, file: QueueFile, found: int) -> None:
        """The next file that is there, `found` bytes long; those missing before it are to be made.

        A power cut may take the length or the name of a file and leave a later one's."""
        if found and found != self.segment_bytes:
            self.odd_sizes = {**self.odd_sizes, file: found}
        if file.start % self.segment_bytes:
            self.refuse_sizes()
            raise StoreLayoutError(
                f"{file.path} does not begin at a multiple of {self.segment_bytes} bytes. Consume "
                f"queues can be made again: move {self.directory} away and restart."
            )
        missing = self.segments[-1].end if self.segments else file.start
        if (file.start - missing) // self.segment_bytes > _MISSING_MOST:
            raise StoreLayoutError(
                f"files of {self.directory} are missing between {missing} and {file.start}. Move "
                "it away and restart: consume queues can be made again."
            )
        while missing < file.start:
            absent = QueueFile(self.directory, missing, self.segment_bytes)
            self.unmade = (*self.unmade, absent)
            self.segments = (*self.segments, absent)
            missing = absent.end
        if found != self.segment_bytes:
            self.unmade = (*self.unmade, file)
        self.segments = (*self.segments, file)

    def find_end(
        self, kept: KeptEnds | None = None, known: Mapping[QueueFile, int] = _NOTHING_KNOWN
    ) -> None:
        """`max_offset` behind the last slot that is not empty; numbering survives empty files.

        The ends are kept in `kept`. `known`: behind which byte files have been found to be empty.
        Raises OSError."""
        self._kept = None
        if not self.segments:
            return
        self._tail = self.segments[-1]
        self.max_offset = self._tail.start // ENTRY_BYTES
        for file in reversed(self.segments):
            if file in self.unmade:
                continue
            high = known.get(file)
            if high is None:
                high = self._files.last_nonzero(self._cache.fd(file), 0, self.segment_bytes)
            if high:
                entries = -(-high // ENTRY_BYTES)
                self.max_offset = file.start // ENTRY_BYTES + entries
                if kept is not None:
                    self._keep_ends(file, kept)
                return

    def _keep_ends(self, last: QueueFile, kept: KeptEnds) -> None:
        """Remember the first entries, and the last ones, which are in `last`."""
        near_end = max(last.start // ENTRY_BYTES, self.max_offset - FEW_ENTRIES)
        ends = [(last, near_end)]
        if self.segments[0] not in self.unmade:
            ends.append((self.segments[0], self.first_offset))
        self._kept_at = kept.add(
            [(file, first, self.read_entries(first, FEW_ENTRIES)) for file, first in ends]
        )
        self._kept = kept

    def refuse_sizes(self) -> None:
        """Raise StoreSizeMismatch if there is a file of another size."""
        for file, found in self.odd_sizes.items():
            check_file_size(file.path, found, self.segment_bytes, _SIZE_KEYS)

    def mend_files(self) -> None:
        """Remove or make what a crash left unfinished; made files are empty. Those of another size
        keep their entries, because the log may have lost their messages. Raises OSError."""
        if self.unfinished is not None:
            self._files.remove(self.unfinished)
            self.unfinished = None
        for file in self.unmade:
            if file in self.odd_sizes:
                fd = self._cache.fd(file)
                found = min(self.odd_sizes[file], self.segment_bytes)
                self._files.set_size(fd, found // ENTRY_BYTES * ENTRY_BYTES)
                self._files.set_size(fd, self.segment_bytes)
                self._cache.wrote(file, self.segment_bytes)
                continue
            if self._files.exists(file.path):
                self._files.remove(file.path)
            self._cache.create(file, self.segment_bytes)
        if self.unmade:
            self.unmade, self.odd_sizes = (), _NOTHING_KNOWN
            self.find_end()

    def unsynced_files(self, log_offset: int) -> list[QueueFile]:
        """Files with entries at or above `log_offset`, which nobody may have synced.

        Their names are made durable with the next flush; a killed process could not. OSError.
        """
        first = self.first_at(log_offset)
        if self.first_named(self.first_offset, first) is None:
            first = self.first_offset
            self._cache.note_directories([os.path.dirname(self.directory), self.directory])
        found = [file for file in self.segments if file.end > first * ENTRY_BYTES]
        if any(file.start >= first * ENTRY_BYTES for file in found):
            self._cache.note_directories([self.directory])
        return found

    def dropped_caches(self, kept: KeptEnds, ends: Mapping[QueueFile, int]) -> None:
        """Take the `ends` of files, in bytes, from the disk, which may have less: their cached
        pages were dropped. Raises OSError."""
        self.find_end(kept, ends)

    def sync_further_files(self) -> None:
        """Before a recovery: sync what is kept beside the entries, and read it anew. OSError."""

    def close(self) -> None:
        """Forget the files, for a queue that is being deleted."""
        for file in self.segments:
            self._cache.discard(file)
        self.segments = ()
        self._tail = None

    def _segment_at(self, position: int) -> QueueFile | None:
        if not self.segments:
            return None
        index = (position - self.segments[0].start) // self.segment_bytes
        return self.segments[index] if 0 <= index < len(self.segments) else None
