"""Lists the content of a store: messages of the log, entries of the queues, entries of the index.

Works on whatever state the files are in; damaged places are part of the listing. All of it streams.
Where the place of something is known (by its queue's entry, by the times of segments), reading
begins near it.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

from aerobee.config.model import Settings
from aerobee.protocol.message.filler import is_filler
from aerobee.protocol.message.record import Message, decode_record
from aerobee.protocol.message.record_check import log_offset_of
from aerobee.protocol.message.record_layout import (
    SYS_TRANSACTION_COMMIT,
    SYS_TRANSACTION_MASK,
    SYS_TRANSACTION_PREPARED,
)
from aerobee.protocol.names import WAITING_TOPICS
from aerobee.store.disk.files import Files
from aerobee.store.index.layout import KeyHashes
from aerobee.store.inspect.queue_files import QueueFiles
from aerobee.store.inspect.store_files import StoreFiles
from aerobee.store.log.scan.log_scanner import Batch
from aerobee.store.log.scan.sequence import Gap
from aerobee.store.queues.consume_queue_ext import is_address
from aerobee.store.queues.queue_view import ENTRY, PRE_BLANK_SIZE, names_record

FOREVER = (1 << 63) - 1
# Times of messages next to each other may go back a little; segments are left out with care.
_TIME_SLACK_MS = 60_000


@dataclass(frozen=True, slots=True)
class DumpFilter:
    """Selects what is listed. Ends are exclusive; None or empty means all."""

    topic: str | None = None
    queue_id: int | None = None
    first_offset: int = 0
    end_offset: int = FOREVER
    log_start: int = 0
    log_end: int = FOREVER
    begin_ms: int = 0
    end_ms: int = FOREVER
    key: str | None = None

    def takes(self, message: Message) -> bool:
        """Whether the message is selected."""
        return (
            (self.topic is None or message.topic == self.topic)
            and (self.queue_id is None or message.queue_id == self.queue_id)
            and self.first_offset <= message.queue_offset < self.end_offset
            and self.begin_ms <= message.store_timestamp_ms < self.end_ms
            and (self.key is None or self.key in message.keys)
        )


class DumpedMessage(NamedTuple):
    """A record of the log; `kind` is message, half, commit, rollback or filler."""

    message: Message
    kind: str


class DumpedQueueEntry(NamedTuple):
    """A slot of a queue. `state`: message, lost (pre-blank), empty, deleted (its record is older
    than the log), or a fault. `tags_code` comes from its extension entry, if it has one; if that is
    missing, it is the address of the extension entry."""

    topic: str
    queue_id: int
    queue_offset: int
    log_offset: int
    size: int
    tags_code: int
    state: str


class DumpedQueue(NamedTuple):
    """A queue in a line. `first` and `end` are its slots, `files` is the number of its files."""

    topic: str
    queue_id: int
    first: int
    end: int
    files: int
    first_log_offset: int | None
    last_log_offset: int | None


class DumpedEntry(NamedTuple):
    """An entry of an index file, by its number there. `state`: entry, or a fault."""

    path: str
    number: int
    key_hash: int
    slot: int
    log_offset: int
    time_ms: int
    previous: int
    state: str


class DumpedIndexFile(NamedTuple):
    """The header of an index file."""

    path: str
    begin_ms: int
    end_ms: int
    begin_log_offset: int
    end_log_offset: int
    used_slots: int
    entries: int


class Dump:
    """The listings of one store, which the caller has locked. Raises what `audit.verify` raises."""

    def __init__(
        self, settings: Settings, given: Collection[str] = (), files: Files | None = None
    ) -> None:
        self._store = StoreFiles(files or Files(), settings, given)
        self._log = self._store.log

    def close(self) -> None:
        """Give all files back."""
        self._store.close()

    # --- the log ----------------------------------------------------------------------------

    def messages(self, filters: DumpFilter) -> Iterator[DumpedMessage | Gap]:
        """Records that the filter selects, and the damaged ranges between them."""
        start, end = self._log_range(filters)
        scan, reporter = self._store.scanner(below=end)
        shown = 0
        for log_offset, data in _each(scan.batches(start)):
            for gap in scan.gaps[shown:]:
                if gap.end > filters.log_start:
                    yield gap
            shown = len(scan.gaps)
            if log_offset >= end:
                return
            if log_offset < filters.log_start:
                continue
            message = decode_record(data)
            if filters.takes(message):
                yield DumpedMessage(message, _kind(message))
        yield from scan.gaps[shown:]
        for file, position, high in reporter.tail:
            reason = f"behind the log's end {scan.end}: {scan.end_reason}"
            yield Gap(file.start + position, file.start + high, reason)

    def _log_range(self, filters: DumpFilter) -> tuple[int, int]:
        """The place where a record begins at or before all selected records, and the place to
        stop."""
        start, end = 0, filters.log_end
        for file, following in zip_longest(self._log.files, self._log.files[1:]):
            if file.start + self._store.sizes.segment_bytes <= filters.log_start:
                start = file.start + self._store.sizes.segment_bytes
            elif following is not None and filters.begin_ms:
                first_ms = self._log.first_store_ms(following)
                if first_ms and first_ms < filters.begin_ms - _TIME_SLACK_MS:
                    start = following.start
            begun_ms = 0 if filters.end_ms == FOREVER else self._log.first_store_ms(file)
            if begun_ms > filters.end_ms + _TIME_SLACK_MS:
                end = min(end, file.start)
        queue = self._store.queues.get((filters.topic or "", filters.queue_id or 0))
        if filters.topic is not None and filters.queue_id is not None and queue is not None:
            start = max(start, self._place_of(queue, filters.first_offset) or 0)
            last = self._place_of(queue, filters.end_offset)
            end = end if last is None else min(end, last)
        return start, end

    def _place_of(self, queue: QueueFiles, offset: int) -> int | None:
        """Log offset of the message in a slot, if entry and record agree on it."""
        entry = queue.entry(offset) if 0 <= offset < queue.max_offset else None
        if entry is None:
            return None
        sound = self._log.problem(queue, offset, entry.log_offset, entry.size) is None
        return entry.log_offset if sound else None

    # --- consume queues ---------------------------------------------------------------------

    def queues(self, filters: DumpFilter) -> Iterator[DumpedQueue]:
        """A line for each queue."""
        for queue in self._filtered_queues(filters):
            first = queue.first_named(queue.first_offset, queue.max_offset)
            last = queue.last_named(queue.max_offset)
            yield DumpedQueue(
                queue.topic,
                queue.queue_id,
                queue.first_offset,
                queue.max_offset,
                len(queue.files),
                None if first is None else first.log_offset,
                None if last is None else last.log_offset,
            )

    def queue_entries(self, filters: DumpFilter) -> Iterator[DumpedQueueEntry]:
        """Every slot, compared with the record that it names."""
        log_min = self._log.files[0].start if self._log.files else 0
        for queue in self._filtered_queues(filters):
            for first, data in queue.chunks():
                for offset, entry in enumerate(ENTRY.iter_unpack(data), first):
                    if not filters.first_offset <= offset < filters.end_offset:
                        continue
                    log_offset, size, tags_code = entry
                    if filters.log_start <= log_offset < filters.log_end:
                        state = self._state(queue, offset, log_offset, size, log_min)
                        if is_address(tags_code):
                            tags_code, state = self._resolved(queue, tags_code, state)
                        yield DumpedQueueEntry(
                            queue.topic, queue.queue_id, offset, log_offset, size, tags_code, state
                        )

    def _resolved(self, queue: QueueFiles, address: int, state: str) -> tuple[int, str]:
        """Tags code and state of an entry with an extension entry."""
        key, delayed = (queue.topic, queue.queue_id), queue.topic in WAITING_TOPICS
        found = self._store.extensions.tags_code(key, address, delayed=delayed)
        if found is not None:
            return found, state
        return address, "its extension unit is missing" if state == "message" else state

    def _filtered_queues(self, filters: DumpFilter) -> Iterator[QueueFiles]:
        for (topic, queue_id), queue in sorted(self._store.queues.items()):
            if filters.topic in (None, topic) and filters.queue_id in (None, queue_id):
                yield queue

    def _state(
        self, queue: QueueFiles, offset: int, log_offset: int, size: int, log_min: int
    ) -> str:
        if size == PRE_BLANK_SIZE:
            return "lost"
        if not names_record(log_offset, size):
            return "empty"
        if log_offset < log_min:
            return "deleted"
        return self._log.problem(queue, offset, log_offset, size) or "message"

    # --- index ------------------------------------------------------------------------------

    def index_files(self) -> Iterator[DumpedIndexFile]:
        """The header of each index file, oldest first."""
        for file in self._store.layout.index_files:
            header = self._store.index_view(file.path).header()
            if header is not None:
                yield DumpedIndexFile(file.path, *header[:5], header.next_number - 1)

    def entries(self, filters: DumpFilter) -> Iterator[DumpedEntry]:
        """Entries of all index files; by key if topic and key are given."""
        key_hash = None
        if filters.topic is not None and filters.key is not None:
            (key_hash,) = KeyHashes().of(filters.topic, (filters.key,))
        for header in self.index_files():
            for entry in self._entries_of(header):
                if (
                    (key_hash is None or entry.key_hash == key_hash)
                    and filters.log_start <= entry.log_offset < filters.log_end
                    and filters.begin_ms <= entry.time_ms < filters.end_ms
                ):
                    yield entry

    def _entries_of(self, header: DumpedIndexFile) -> Iterator[DumpedEntry]:
        slots = self._store.sizes.index_slots
        count = min(header.entries + 1, self._store.sizes.index_entries)
        for first, entries in self._store.index_view(header.path).chunks(count):
            for number, (key_hash, log_offset, seconds, previous) in enumerate(entries, first):
                state = "entry"
                if key_hash < 0 or log_offset < 0 or seconds < 0 or not 0 <= previous < number:
                    state = "damaged"
                # The first entry's seconds were taken against the file before (FORMAT.md 6.2).
                time_ms = header.begin_ms + (seconds * 1000 if number > 1 else 0)
                slot = key_hash % slots
                yield DumpedEntry(
                    header.path, number, key_hash, slot, log_offset, time_ms, previous, state
                )


def _each(batches: Iterable[Batch]) -> Iterator[tuple[int, bytes]]:
    """Records one by one: the log offset and the bytes of each."""
    for batch in batches:
        shift = batch.at - log_offset_of(batch.records[0])
        for log_offset, size, *_ in batch.records:
            at = log_offset + shift
            yield log_offset, bytes(batch.buffer[at : at + size])


def _kind(message: Message) -> str:
    transaction = message.sys_flag & SYS_TRANSACTION_MASK
    if not transaction:
        return "message"
    if transaction == SYS_TRANSACTION_PREPARED:
        return "half"
    if transaction == SYS_TRANSACTION_COMMIT:
        return "commit"
    return "filler" if is_filler(message.topic, message.sys_flag) else "rollback"
