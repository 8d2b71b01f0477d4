"""Brings records that were read from the log into consume queues and index, once or again.

Used by recovery and by a reput that is behind, where nobody knows what of it was done before. So
everything is compared first: a slot that holds the same entry is done, an empty or pre-blank one is
filled, what to make of another record in it is `sequence.py`'s affair. The bytes are those the
append would have led to, which a test compares.
"""

from collections.abc import Iterable

from aerobee.protocol.message.record_check import Checked
from aerobee.store.dispatch.derived import Derivation, by_queue
from aerobee.store.errors import MessageIllegal
from aerobee.store.index.service import IndexService
from aerobee.store.log.commit_log import Appended
from aerobee.store.queues.consume_queue import ConsumeQueue
from aerobee.store.queues.delay_levels import DelayLevels
from aerobee.store.queues.table import ConsumeQueueTable
from aerobee.store.scan.sequence import Sequences


class Dispatcher:
    """Brings records that were read from the log into queues and index, once or again."""

    def __init__(
        self,
        queues: ConsumeQueueTable,
        index: IndexService | None,
        levels: DelayLevels,
        *,
        multi_dispatch: bool,
    ) -> None:
        self._queues = queues
        self._index = index
        listed = self._listed if multi_dispatch else None
        self._derivation = Derivation(queues.queues, self._obtain, listed, levels)
        # Records whose topic cannot be a directory's name; they stay in the log only.
        self.unusable = 0

    @property
    def directory(self) -> str:
        """Where the consume queues are."""
        return self._queues.directory

    def entries(self, records: Iterable[Checked]) -> list[Appended]:
        """What the appends of these records would have left; less those that concern nobody."""
        return self._derivation.entries(records)

    def _listed(self, name: str, queue_id: int) -> ConsumeQueue | None:
        return self._obtain(name, self._queues.listed_id(name, queue_id))

    def _obtain(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        try:
            return self._queues.obtain(topic, queue_id)
        except MessageIllegal:
            self.unusable += 1
            return None

    def merge(self, entries: list[Appended], sequences: Sequences) -> None:
        """Write what is missing; what is there already stays. Raises OSError or Lagging."""
        self._reserve(entries)
        for queue, (offsets, packed) in by_queue(entries).items():
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
