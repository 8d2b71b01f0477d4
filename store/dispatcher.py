"""Brings records that were read from the log into consume queues and index, once or again.

Used by recovery and by a reput that is behind, where nobody knows what of it was done before. So
everything is compared first: a slot that holds the same unit is done, an empty or pre-blank one is
filled, what to make of another record in it is `sequence.py`'s affair. The bytes are those the
append would have led to, which a test compares.
"""

from collections.abc import Iterable
from typing import NamedTuple

from aerobee.protocol.properties import decode_properties
from aerobee.protocol.record import (
    SYS_TRANSACTION_MASK,
    SYS_TRANSACTION_PREPARED,
    SYS_TRANSACTION_ROLLBACK,
    RecordHead,
    dispatch_fields,
)
from aerobee.store.commit_log import Appended
from aerobee.store.consume_queue import UNIT, ConsumeQueue
from aerobee.store.delay_levels import DelayLevels
from aerobee.store.errors import MessageIllegal
from aerobee.store.index_service import IndexService
from aerobee.store.mapped_file import MappedFile
from aerobee.store.queue_table import ConsumeQueueTable
from aerobee.store.sequence import Sequences

_pack_unit = UNIT.pack


class Placed(NamedTuple):
    """A checked record and where it is."""

    log_offset: int
    segment: MappedFile
    head: RecordHead


class Dispatcher:
    """Brings records that were read from the log into queues and index, once or again."""

    def __init__(
        self, queues: ConsumeQueueTable, index: IndexService | None, levels: DelayLevels
    ) -> None:
        self._queues = queues
        self._index = index
        self._levels = levels
        # Records whose topic cannot be a directory's name; they stay in the log only.
        self.unusable = 0

    def entry(self, placed: Placed) -> Appended | None:
        """What the append of this record would have left; None when it concerns nobody."""
        head = placed.head
        fields = dispatch_fields(
            placed.segment.view, placed.log_offset - placed.segment.start, head
        )
        transaction = head.sys_flag & SYS_TRANSACTION_MASK
        queue: ConsumeQueue | None = None
        tags_code = fields.tags_code
        if not transaction & SYS_TRANSACTION_PREPARED:
            try:
                queue = self._queues.obtain(fields.topic, fields.queue_id)
            except MessageIllegal:
                self.unusable += 1
                return None
            if queue.delayed:
                tags_code = self._delivery_time(placed, tags_code)
        keys = fields.keys if transaction != SYS_TRANSACTION_ROLLBACK else ()
        return (
            queue,
            head.queue_offset,
            placed.log_offset,
            head.size,
            tags_code,
            keys,
            head.store_timestamp_ms,
            fields.topic,
        )

    def merge(self, entries: list[Appended], sequences: Sequences) -> None:
        """Write what is missing; what is there already stays. Raises OSError or Lagging."""
        claims: dict[ConsumeQueue, tuple[list[int], list[bytes]]] = {}
        for queue, queue_offset, log_offset, size, tags_code, _, _, _ in entries:
            if queue is not None:
                known = claims.get(queue)
                if known is None:
                    known = claims[queue] = ([], [])
                known[0].append(queue_offset)
                known[1].append(_pack_unit(log_offset, size, tags_code))
        self._reserve(entries)
        for queue, (offsets, units) in claims.items():
            sequences.feed(queue, offsets, b"".join(units))
        self.merge_keys(entries)

    def merge_keys(self, entries: Iterable[Appended]) -> None:
        """Index what is not indexed yet; room was reserved."""
        index = self._index
        if index is None:
            return
        for _, _, log_offset, _, _, keys, store_ms, topic in entries:
            if keys:
                index.put_missing_keys(topic, keys, log_offset, store_ms)
        index.finish()

    def _reserve(self, entries: list[Appended]) -> None:
        if self._index is not None:
            self._index.reserve(sum([len(entry[5]) for entry in entries]))

    def reindex(self, entries: list[Appended]) -> None:
        """Index only. Raises OSError."""
        self._reserve(entries)
        self.merge_keys(entries)

    def _delivery_time(self, placed: Placed, tags_code: int) -> int:
        head = placed.head
        start = placed.log_offset - placed.segment.start + head.properties_position
        text = bytes(placed.segment.view[start : start + head.properties_length])
        return self._levels.tags_code(
            head.topic, decode_properties(text), head.store_timestamp_ms, tags_code
        )
