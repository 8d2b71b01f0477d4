"""Reads the due messages of the queues of SCHEDULE_TOPIC_XXXX (store/FORMAT.md 12.1).

A level's messages lie in one queue, in the order of their delivery times, which stand where other
entries have tags codes. So only the head of a queue has to be looked at: `look` gives its due
messages and the wait of the next one.

Trust: a delivery time before the message was stored is not believed, but computed from the store
time. (An extension entry may be lost, and entries that a reference made again before it had parsed
its levels hold tag hashes there.) Messages that cannot be read are passed over, as for every
consumer (`queue_reader.py`).

Threads: the store's caller only.
"""

import logging
import struct
from collections.abc import Iterator
from typing import NamedTuple

from aerobee.protocol.errors import CorruptRecord
from aerobee.protocol.message.record import Message, StoreMessage, decode_record
from aerobee.protocol.names import SCHEDULE_TOPIC
from aerobee.store.queues.consume_queue import ConsumeQueue
from aerobee.store.queues.delay_levels import DelayLevels
from aerobee.store.queues.queue_table import ConsumeQueueTable
from aerobee.store.queues.queue_view import ENTRY, ENTRY_BYTES, PRE_BLANK_SIZE
from aerobee.store.reading.delayed_messages import due_form
from aerobee.store.reading.queue_reader import QueueReader
from aerobee.store.segments.results import GetResult

log = logging.getLogger("aerobee.store")

# Messages given out at a time: they are read and put without a turn for anybody else.
MOST_AT_ONCE = 32
_READ_ENTRIES = 512
_SIZE = struct.Struct(">i")


class Due(NamedTuple):
    """A message whose time has come, in the form to be put, and the place where it has waited: in
    the level's queue, and in the log."""

    queue_offset: int
    log_offset: int
    message: StoreMessage


class Look(NamedTuple):
    """The result of a look at a level: `due`, in order; when all are put, go on at `next_offset`.

    `wait_ms` is the time until there is something to do there; None if the queue ends there.
    """

    due: list[Due]
    next_offset: int
    wait_ms: int | None
    passed_over: int = 0


class DelayQueues:
    """The delay queues of a store. Levels count from 1; queue offsets are the level's."""

    def __init__(self, queues: ConsumeQueueTable, reader: QueueReader, levels: DelayLevels) -> None:
        self._queues = queues
        self._reader = reader
        self.levels = levels

    def waiting_levels(self) -> list[int]:
        """The levels that have a queue, also levels that the settings no longer have."""
        return sorted(
            queue_id + 1 for topic, queue_id in self._queues.queues if topic == SCHEDULE_TOPIC
        )

    def range_of(self, level: int) -> tuple[int, int]:
        """The level's first queue offset and the offset after its last visible message."""
        queue = self._queues.get(SCHEDULE_TOPIC, level - 1)
        return (0, 0) if queue is None else (queue.min_offset, queue.max_offset)

    def end(self, level: int) -> int:
        """The queue offset that the level's next message will get, visible or not yet."""
        queue = self._queues.get(SCHEDULE_TOPIC, level - 1)
        return 0 if queue is None else queue.next_offset

    def delivery_time(self, level: int, offset: int) -> int | None:
        """The time at which the message there is due, None without a message. Raises OSError."""
        queue = self._queues.get(SCHEDULE_TOPIC, level - 1)
        entries = b"" if queue is None else queue.read_coded(offset, 1)
        return ENTRY.unpack(entries)[2] if entries else None

    def places(self, level: int, offset: int) -> Iterator[int]:
        """The log offsets of the level's visible messages from `offset` on. Raises OSError."""
        queue = self._queues.get(SCHEDULE_TOPIC, level - 1)
        while queue is not None and offset < queue.max_offset:
            offset = max(offset, queue.min_offset)
            entries = queue.read_entries(offset, _READ_ENTRIES)
            if not entries:
                offset = queue.next_file_offset(offset)
                continue
            offset += len(entries) // ENTRY_BYTES
            for log_offset, size, _ in ENTRY.iter_unpack(entries):
                if 0 < size < PRE_BLANK_SIZE:
                    yield log_offset

    def next_place(self, level: int, offset: int) -> tuple[int | None, int]:
        """The log offset of the level's visible message at `offset`, None for a slot without one,
        and where to go on: at `offset` itself if nothing is visible there yet. Raises OSError."""
        queue = self._queues.get(SCHEDULE_TOPIC, level - 1)
        if queue is None or offset >= queue.max_offset:
            return None, offset
        if offset < queue.min_offset:
            return None, queue.min_offset
        entries = queue.read_entries(offset, 1)
        if not entries:
            return None, queue.next_file_offset(offset)
        log_offset, size, _ = ENTRY.unpack(entries)
        return (log_offset if 0 < size < PRE_BLANK_SIZE else None), offset + 1

    def look(self, level: int, offset: int, now_ms: int) -> Look:
        """The messages due at `now_ms` (wall time) from `offset` on. Raises OSError."""
        queue = self._queues.get(SCHEDULE_TOPIC, level - 1)
        if queue is None:
            return Look([], offset, None)
        if offset < queue.min_offset:
            return Look([], queue.min_offset, 0, _gone(level, offset, queue.min_offset))
        entries = queue.read_coded(offset, MOST_AT_ONCE)
        if not entries:
            if offset >= queue.max_offset:
                return Look([], offset, None)
            return Look([], min(queue.next_file_offset(offset), queue.max_offset), 0)
        count, wait_ms = self._count_due(level, entries, now_ms)
        if not count:
            return Look([], offset, wait_ms)
        return self._read(level, queue, offset, entries[: count * ENTRY_BYTES], now_ms)

    def _count_due(self, level: int, entries: bytes, now_ms: int) -> tuple[int, int]:
        """The number of entries from the first on that are due, and the wait of the next one."""
        count = 0
        for _, size, code in ENTRY.iter_unpack(entries):
            if 0 < size < PRE_BLANK_SIZE:
                wait_ms = self.levels.wait_ms(level, code, now_ms)
                if wait_ms:
                    return count, wait_ms
            count += 1
        return count, 0

    def _read(
        self, level: int, queue: ConsumeQueue, offset: int, entries: bytes, now_ms: int
    ) -> Look:
        with self._reader.read(queue, offset, entries) as result:
            messages = list(_messages(result))
        due: list[Due] = []
        lowest, end, wait_ms = offset, result.next_offset, 0
        for message in messages:
            slot = message.queue_offset
            if not _is_of(queue, message) or not lowest <= slot < end:
                continue  # a damaged entry names another message's record
            code = ENTRY.unpack_from(entries, (slot - offset) * ENTRY_BYTES)[2]
            wait_ms = self._wait_of(level, message, code, now_ms)
            if wait_ms:
                end = slot
                break
            lowest = slot + 1
            try:
                due.append(Due(slot, message.log_offset, due_form(message)))
            except CorruptRecord as error:
                log.error(
                    "delayed message cannot be delivered delay_level=%d queue_offset=%d "
                    "log_offset=%d reason=%s", level, slot, message.log_offset, error,
                )  # fmt: skip
        passed_over = end - offset - len(due)
        if passed_over:
            log.error(
                "delayed messages passed over delay_level=%d queue_offsets=%d-%d count=%d "
                "advice=the lines above say why; they stay in the commit log as long as its files "
                "do",
                level, offset, end - 1, passed_over,
            )  # fmt: skip
        return Look(due, end, wait_ms, passed_over)

    def _wait_of(self, level: int, message: Message, code: int, now_ms: int) -> int:
        """The remaining wait of a message that is due by its entry."""
        if code >= message.store_timestamp_ms:
            return 0
        deliver_at_ms = self.levels.deliver_at_ms(level, message.store_timestamp_ms)
        return self.levels.wait_ms(level, deliver_at_ms, now_ms)


def _gone(level: int, first: int, end: int) -> int:
    log.error(
        "delayed messages were deleted with their files before they were due delay_level=%d "
        "queue_offsets=%d-%d count=%d", level, first, end - 1, end - first,
    )  # fmt: skip
    return end - first


def _is_of(queue: ConsumeQueue, message: Message) -> bool:
    return message.topic == queue.topic and message.queue_id == queue.queue_id


def _messages(result: GetResult) -> Iterator[Message]:
    for view in result.views:
        position = 0
        while position < len(view):
            (size,) = _SIZE.unpack_from(view, position)
            try:
                yield decode_record(view, position)
            except CorruptRecord as error:
                log.error("delayed message cannot be read reason=%s", error)
            position += size
