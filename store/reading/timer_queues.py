"""Reads the queues of TIMER_TOPIC, which hold the messages of an hour (store/FORMAT.md 12.4).

Queue ids repeat after `BUCKETS` hours. So a queue holds the records of one hour, and perhaps of
hours `BUCKETS` before and after it, in the order in which they were stored. Their entries have
action times where other entries have tags codes.

Threads: the store's caller only.
"""

import logging
from typing import NamedTuple

from aerobee.protocol.errors import CorruptRecord
from aerobee.protocol.message.record import Message, decode_record
from aerobee.protocol.names import TIMER_TOPIC
from aerobee.store.queues.delay_levels import out_ms
from aerobee.store.queues.queue_table import ConsumeQueueTable
from aerobee.store.queues.queue_view import ENTRY, ENTRY_BYTES, PRE_BLANK_SIZE
from aerobee.store.reading.queue_reader import QueueReader

log = logging.getLogger("aerobee.store")

# How many entries are read at a time after an entry whose time is not known.
_READ_ENTRIES = 2048


class Waiting(NamedTuple):
    """A record that waits: the time when it is to be looked at, and its place."""

    action_ms: int
    log_offset: int


class Span(NamedTuple):
    """The entries of a queue: from its first file on, visible up to `end`, numbered up to
    `next`."""

    first: int
    end: int
    next: int


class TimerQueues:
    """The timer queues of a store."""

    def __init__(self, queues: ConsumeQueueTable, reader: QueueReader) -> None:
        self._queues = queues
        self._reader = reader

    def ids(self) -> list[int]:
        """The ids of the existing queues."""
        return sorted(queue_id for topic, queue_id in self._queues.queues if topic == TIMER_TOPIC)

    def span(self, queue_id: int) -> Span:
        """The range of the queue."""
        queue = self._queues.get(TIMER_TOPIC, queue_id)
        if queue is None:
            return Span(0, 0, 0)
        return Span(queue.first_offset, queue.max_offset, queue.next_offset)

    def readable(self, queue_id: int, position: int = 0) -> int:
        """The number of entries from queue offset `position` on whose records the log still has;
        entries that are not dispatched yet are counted."""
        queue = self._queues.get(TIMER_TOPIC, queue_id)
        return 0 if queue is None else max(0, queue.next_offset - max(queue.min_offset, position))

    def first_from(self, queue_id: int, begin_ms: int, log_offset: int) -> int:
        """Queue offset of the first entry of the hour that begins at `begin_ms`, or of a later one,
        whose record lies at `log_offset` or above; without such an entry, the offset after all
        visible ones.

        Hours and log offsets grow along a queue, so this is a binary search. Raises OSError.
        """
        queue = self._queues.get(TIMER_TOPIC, queue_id)
        if queue is None:
            return 0

        def is_before(position: int) -> bool:
            one = self._known_from(queue_id, position, end)
            return one is not None and (one.action_ms < begin_ms or one.log_offset < log_offset)

        low, end = max(queue.first_offset, queue.min_offset), queue.max_offset
        high = end
        # Most queues have the entries of a single hour, so the ends are looked at first.
        if low >= high or is_before(high - 1):
            return high
        middle = low
        while low < high:
            if is_before(middle):
                low = middle + 1
            else:
                high = middle
            middle = (low + high) // 2
        return low

    def _known_from(self, queue_id: int, position: int, end: int) -> Waiting | None:
        """The first entry of [position, end) whose time is known."""
        most = 1
        while position < end:
            found, position = self.entries(queue_id, position, min(most, end - position))
            known = [one for one in found if one.action_ms]
            if known:
                return known[0]
            most = _READ_ENTRIES
        return None

    def entries(self, queue_id: int, first: int, most: int) -> tuple[list[Waiting], int]:
        """Entries from queue offset `first` on, and the offset after them. Raises OSError."""
        queue = self._queues.get(TIMER_TOPIC, queue_id)
        if queue is None:
            return [], first
        first = max(first, queue.first_offset)
        data = queue.read_coded(first, most)
        if not data:
            return [], min(queue.next_file_offset(first), queue.max_offset)
        found = [
            Waiting(code, log_offset)
            for log_offset, size, code in ENTRY.iter_unpack(data)
            if 0 < size < PRE_BLANK_SIZE
        ]
        if any(code < 0 for code, _ in found):
            found = [one if one.action_ms >= 0 else self._looked_up(one) for one in found]
        return found, first + len(data) // ENTRY_BYTES

    def _looked_up(self, entry: Waiting) -> Waiting:
        """The entry with its time from the record, because it has the address of a lost extension
        entry in the place of its time."""
        message = self.message(entry.log_offset)
        return Waiting(0 if message is None else out_ms(message.properties), entry.log_offset)

    def message(self, log_offset: int) -> Message | None:
        """The record there, checked; None without a record of this topic."""
        record = self._reader.record_at(log_offset)
        if record is None:
            return None
        try:
            message = decode_record(record)
        except CorruptRecord as error:
            log.error("timed message cannot be read log_offset=%d reason=%s", log_offset, error)
            return None
        return message if message.topic == TIMER_TOPIC else None
