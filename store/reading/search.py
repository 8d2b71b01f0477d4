"""Searches messages by their time in a queue, and by key through the index.

Both look at the records themselves before they answer: the index knows hashes and seconds only, and
a queue's entries do not know times at all. A record is an answer to a key if it has that key by its
own properties (UNIQ_KEY, or a word of KEYS, as they are indexed), whatever an entry of the index
says: another key may have the same hash, and a flipped bit makes an entry name another message's
record. The reference answers with those as well; its clients and tools compare the keys again, by
the unique key or by the words of KEYS, so they keep the records that are found here.

Threads: the store's caller only.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from itertools import islice
from typing import NamedTuple

from aerobee.protocol.message.record_check import RecordHead
from aerobee.store.dispatch.derived import keys_of
from aerobee.store.index.index_service import IndexService, candidates
from aerobee.store.queues.consume_queue import ConsumeQueue
from aerobee.store.queues.consume_queue_ext import ExtEntry, is_address
from aerobee.store.queues.extended_queue import ExtendedQueue
from aerobee.store.queues.queue_table import ConsumeQueueTable
from aerobee.store.queues.queue_view import ENTRY, QueueEntry
from aerobee.store.reading.queue_reader import QueueReader
from aerobee.store.segments.mapped_file import MappedFile
from aerobee.store.segments.results import QueryResult

_QUERY_ROUNDS = 3
# Records that are looked at if the index cannot tell their time.
_UNORDERED_MOST = 256


class _Timed(NamedTuple):
    """A message of a queue, and its store time in milliseconds."""

    queue_offset: int
    store_ms: int


class SeenEntry(NamedTuple):
    """A consume queue entry as it is stored; `extension` is its extension entry, if its last field
    is the address of an existing one."""

    entry: QueueEntry
    is_address: bool
    extension: ExtEntry | None


class _Records:
    """Records of a query by log offset, until they have `most` bytes."""

    def __init__(self, most: int) -> None:
        self.taken: dict[int, bytes] = {}
        self.full = False
        self._left = most

    def add(self, found: tuple[MappedFile, RecordHead], log_offset: int) -> None:
        """Take a record, unless there are others and it does not fit beside them."""
        segment, head = found
        self._left -= head.size
        self.full = self._left < 0
        if not self.full or not self.taken:
            position = log_offset - segment.start
            self.taken[log_offset] = bytes(segment.view[position : position + head.size])

    def in_log_order(self) -> list[bytes]:
        return [self.taken[log_offset] for log_offset in sorted(self.taken)]


class Search:
    """Finds messages in `queues` and `index`; `reader` reads and checks them."""

    def __init__(
        self,
        queues: ConsumeQueueTable,
        index: IndexService | None,
        reader: QueueReader,
        query_max_messages: int,
    ) -> None:
        self._queues = queues
        self._index = index
        self._reader = reader
        self._query_max_messages = query_max_messages

    def store_time(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Store time of the message at a queue offset; -1 without one."""
        queue = self._queues.get(topic, queue_id)
        entry = None if queue is None else queue.entry(queue_offset)
        return -1 if entry is None else self._reader.store_time_at(entry.log_offset)

    def earliest_store_time(self, topic: str, queue_id: int) -> int:
        """Store time of the queue's first message; -1 if it has none."""
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            return -1
        found = self._timed(queue, queue.min_offset, queue.max_offset)
        return -1 if found is None else found[1]

    # --- as they stand ----------------------------------------------------------------------

    def has_queue(self, topic: str, queue_id: int) -> bool:
        """Whether the queue has, or had, a message."""
        return self._queues.get(topic, queue_id) is not None

    def entries(self, topic: str, queue_id: int, first: int, count: int) -> list[SeenEntry]:
        """Up to `count` consume queue entries from `first` on, within one file, as they stand;
        empty outside of the queue, and for an unknown one. Raises OSError."""
        queue = self._queues.get(topic, queue_id)
        if queue is None or not queue.min_offset <= first < queue.max_offset:
            return []
        data = queue.read_entries(first, count)
        extension = queue.ext.get if isinstance(queue, ExtendedQueue) else None
        return [
            SeenEntry(
                QueueEntry(*fields),
                is_address(fields[2]),
                None if extension is None else extension(fields[2]),
            )
            for fields in ENTRY.iter_unpack(data)
        ]

    # --- by time ----------------------------------------------------------------------------

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Queue offset of the message stored nearest to that time (store/FORMAT.md 5.8).

        The reference's rules hold: the earlier message if two are equally near, the first for a
        time before all, the last for a time after all. But the whole queue is searched by the
        messages' own times; the reference picks a file by its modification time, which a restored
        backup has changed. 0 for an unknown queue.
        """
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            return 0
        low, high = queue.min_offset, queue.max_offset
        while low < high:
            middle = (low + high) // 2
            found = self._timed(queue, middle, high)
            if found is None or found.store_ms >= timestamp_ms:
                high = middle
            else:
                low = found.queue_offset + 1
        after = self._timed(queue, low, queue.max_offset)
        before = self._timed_before(queue, low)
        if after is None or before is None:
            nearest = after or before
            return queue.min_offset if nearest is None else nearest.queue_offset
        if after.store_ms - timestamp_ms < timestamp_ms - before.store_ms:
            return after.queue_offset
        return before.queue_offset

    def _timed(self, queue: ConsumeQueue, start: int, end: int) -> _Timed | None:
        """The first message in [start, end) that can be read."""
        while (named := queue.first_named(start, end)) is not None:
            time_ms = self._reader.store_time_at(named.log_offset)
            if time_ms >= 0:
                return _Timed(named.queue_offset, time_ms)
            start = named.queue_offset + 1
        return None

    def _timed_before(self, queue: ConsumeQueue, end: int) -> _Timed | None:
        """The last message below `end` that can be read."""
        for offset in range(end - 1, queue.min_offset - 1, -1):
            entry = queue.entry(offset)
            time_ms = -1 if entry is None else self._reader.store_time_at(entry.log_offset)
            if time_ms >= 0:
                return _Timed(offset, time_ms)
        return None

    # --- by key -----------------------------------------------------------------------------

    def query(
        self,
        topic: str,
        key: str,
        max_messages: int,
        begin_ms: int,
        end_ms: int,
        max_bytes: int = sys.maxsize,
    ) -> QueryResult:
        """Records of the topic indexed under the key and stored in [begin_ms, end_ms], the first in
        log order that have `max_bytes` together, and at least one.

        Each has the key, not its hash only. The newest `max_messages` hits are looked at, and
        again, further back in time, up to three times, while no hit is an answer.
        """
        steps = self.query_steps(topic, key, max_messages, begin_ms, end_ms, max_bytes)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                found: QueryResult = end.value
                return found

    def places_steps(self, topic: str, key: str, most: int) -> Generator[None, None, list[int]]:
        """The log offsets that the topic's key is indexed under, at most that many, the newest
        first; those of other keys of the same hash among them."""
        if self._index is None:
            return []
        hits = yield from self._index.find(topic, key, most, 0, sys.maxsize)
        return sorted(hits.log_offsets, reverse=True)

    def query_steps(
        self, topic: str, key: str, max_messages: int, begin_ms: int, end_ms: int, max_bytes: int
    ) -> Generator[None, None, QueryResult]:
        """Do `query` in steps of a record or some hundred index entries."""
        index = self._index
        if index is None:
            return QueryResult([], 0, 0)
        most = min(max_messages, self._query_max_messages)
        until_ms = end_ms
        hits = yield from index.find(topic, key, most, begin_ms, until_ms)
        records = _Records(max_bytes)
        for _ in range(_QUERY_ROUNDS):
            oldest_ms = -1
            for log_offset in sorted(hits.log_offsets):
                yield
                found = self._reader.head_at(log_offset, check_crc=True)
                if found is None:
                    continue
                head = found[1]
                if oldest_ms < 0:
                    oldest_ms = head.store_timestamp_ms
                in_time = begin_ms <= head.store_timestamp_ms <= end_ms
                if in_time and head.topic == topic and key in _keys_of(found, log_offset):
                    records.add(found, log_offset)
                    if records.full:
                        break
            if records.taken or oldest_ms < begin_ms:
                break
            hits = yield from index.find(topic, key, most, begin_ms, oldest_ms)
        if most > 0 and not records.taken:
            walk = (topic, key, most, begin_ms, end_ms)
            yield from self._query_unordered(index, *walk, records)
        return QueryResult(records.in_log_order(), hits.last_ms, hits.last_offset)

    def _query_unordered(
        self,
        index: IndexService,
        topic: str,
        key: str,
        most: int,
        begin_ms: int,
        end_ms: int,
        records: _Records,
    ) -> Generator[None, None, None]:
        """Query a log in which times go back: the records' own times decide."""
        hits = candidates(index.files, index.key_hash(topic, key), begin_ms, end_ms)
        for log_offset in islice(hits, _UNORDERED_MOST):
            yield
            record = self._reader.head_at(log_offset, check_crc=True)
            if record is None or record[1].topic != topic:
                continue
            in_time = begin_ms <= record[1].store_timestamp_ms <= end_ms
            if in_time and key in _keys_of(record, log_offset):
                records.add(record, log_offset)
                if len(records.taken) >= most or records.full:
                    break


def _keys_of(found: tuple[MappedFile, RecordHead], log_offset: int) -> tuple[str, ...]:
    """The keys that a record is indexed under."""
    segment, head = found
    at = log_offset - segment.start + head.properties_position
    return keys_of(head.sys_flag, bytes(segment.view[at : at + head.properties_length]))
