"""Brings records that were read from the log into consume queues and index, once or again.

Used by recovery and by a reput that is behind, where nobody knows what of it was done before. So
everything is compared first: a slot that holds the same entry is done, an empty or pre-blank one is
filled, what to make of another record in it is `sequence.py`'s affair. The bytes are those the
append would have led to, which a test compares.
"""

from collections.abc import Iterable

from aerobee.protocol.hashing import tag_code
from aerobee.protocol.message.properties import decode_properties, tags_and_keys
from aerobee.protocol.message.record_check import Checked
from aerobee.protocol.message.record_layout import (
    SYS_TRANSACTION_MASK,
    SYS_TRANSACTION_PREPARED,
    SYS_TRANSACTION_ROLLBACK,
)
from aerobee.store.errors import MessageIllegal
from aerobee.store.index.service import IndexService
from aerobee.store.log.commit_log import Appended
from aerobee.store.queues.consume_queue import ConsumeQueue
from aerobee.store.queues.delay_levels import DelayLevels
from aerobee.store.queues.queue_view import ENTRY
from aerobee.store.queues.table import ConsumeQueueTable
from aerobee.store.scan.sequence import Sequences

_pack_entry = ENTRY.pack


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

    @property
    def directory(self) -> str:
        """Where the consume queues are."""
        return self._queues.directory

    def entries(self, records: Iterable[Checked]) -> list[Appended]:
        """What the appends of these records would have left; less those that concern nobody."""
        found: list[Appended] = []
        known = self._queues.queues
        for record in records:
            log_offset, size, queue_id, queue_offset, sys_flag, store_ms, topic = record[:7]
            tags, keys = tags_and_keys(record[10])
            tags_code = tag_code(tags) if tags else 0
            transaction = sys_flag & SYS_TRANSACTION_MASK
            queue: ConsumeQueue | None = None
            if not transaction & SYS_TRANSACTION_PREPARED:
                queue = known.get((topic, queue_id)) or self._obtain(topic, queue_id)
                if queue is None:
                    continue
                if queue.delayed:
                    properties = decode_properties(record[10])
                    tags_code = self._levels.tags_code(topic, properties, store_ms, tags_code)
            elif transaction == SYS_TRANSACTION_ROLLBACK:
                keys = ()
            found.append((queue, queue_offset, log_offset, size, tags_code, keys, store_ms, topic))
        return found

    def _obtain(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        try:
            return self._queues.obtain(topic, queue_id)
        except MessageIllegal:
            self.unusable += 1
            return None

    def merge(self, entries: list[Appended], sequences: Sequences) -> None:
        """Write what is missing; what is there already stays. Raises OSError or Lagging."""
        claims: dict[ConsumeQueue, tuple[list[int], list[bytes]]] = {}
        for queue, queue_offset, log_offset, size, tags_code, _, _, _ in entries:
            if queue is not None:
                known = claims.get(queue)
                if known is None:
                    known = claims[queue] = ([], [])
                known[0].append(queue_offset)
                known[1].append(_pack_entry(log_offset, size, tags_code))
        self._reserve(entries)
        for queue, (offsets, packed) in claims.items():
            sequences.feed(queue, offsets, b"".join(packed))
        self.merge_keys(entries)

    def merge_keys(self, entries: list[Appended]) -> None:
        """Index what is not indexed yet; room was reserved."""
        index = self._index
        if index is None:
            return
        done = index.end_offset
        known = sum([entry[2] <= done for entry in entries])
        for _, _, log_offset, _, _, keys, store_ms, topic in entries[:known]:
            if keys:
                index.put_missing_keys(topic, keys, log_offset, store_ms)
        index.put_all(entries[known:])
        index.finish()

    def _reserve(self, entries: list[Appended]) -> None:
        if self._index is not None:
            self._index.reserve(sum([len(entry[5]) for entry in entries]))

    def reindex(self, entries: list[Appended]) -> None:
        """Index only. Raises OSError."""
        self._reserve(entries)
        self.merge_keys(entries)
