"""Brings records that were read from the log into consume queues and index, once or again.

Recovery uses it, and a reput that is late: nobody knows which of the entries were made before. So
everything is compared first: a slot with the same entry is done, an empty or pre-blank slot is
filled, and `sequence.py` decides about a slot with another record's entry. The bytes equal those of
the append, which a test compares.
"""

from collections.abc import Iterable, Sequence

from aerobee.protocol.message.filler import FILLER_TOPIC
from aerobee.protocol.message.record_check import CHECK_BODY, CHECK_WHOLE, Checked, topic_text
from aerobee.protocol.names import WAITING_TOPICS
from aerobee.store.dispatch.derived import Derivation, by_queue
from aerobee.store.errors import MessageIllegal
from aerobee.store.index.index_service import IndexService
from aerobee.store.log.commit_log import Appended
from aerobee.store.log.compiled import Compiled, Derived, Deriver, Take
from aerobee.store.log.scan.sequence import Run, Sequences
from aerobee.store.queues.consume_queue import ConsumeQueue
from aerobee.store.queues.delay_levels import DelayLevels
from aerobee.store.queues.queue_table import ConsumeQueueTable
from aerobee.store.queues.queue_view import ENTRY_BYTES


class Dispatcher:
    """Brings records that were read from the log into queues and index, once or again."""

    def __init__(
        self,
        queues: ConsumeQueueTable,
        index: IndexService | None,
        levels: DelayLevels,
        *,
        multi_dispatch: bool,
        compiled: Compiled | None = None,
    ) -> None:
        self._queues = queues
        self._index = index
        self._compiled = compiled
        listed = self._listed if multi_dispatch else None
        self._derivation = Derivation(queues.queues, self._obtain, listed, levels)
        # Records whose topic cannot be a directory's name; they stay in the log only.
        self.unusable = 0

    @property
    def directory(self) -> str:
        """The directory of the consume queues."""
        return self._queues.directory

    def entries(self, records: Iterable[Checked]) -> list[Appended]:
        """The entries that the appends of these records would have left, without records that
        concern nobody."""
        return self._derivation.entries(records)

    def taker(self, check_crc: int, derive_from: int) -> Take | None:
        """The compiled form's function that takes plain records for one reading of the log, None
        without it; nothing is derived from records below `derive_from`. Its results are for
        `merge_derived`."""
        compiled, index = self._compiled, self._index
        if compiled is None or check_crc == CHECK_WHOLE:
            return None
        given = self._plain_place, check_crc == CHECK_BODY, index is not None, derive_from
        queues, removed = self._queues, -1
        deriver: Deriver | None = None

        def take(
            buffer: bytes | memoryview, position: int, log_offset: int, stop: int
        ) -> Derived | None:
            nonlocal deriver, removed
            if deriver is None or removed != queues.removed:
                # It remembers queues, of which some have left since.
                deriver, removed = compiled.deriver(*given), queues.removed
            low, high = (0, -1) if index is None else index.looked_at
            return deriver.take(buffer, position, log_offset, stop, low, high)

        return take

    def _plain_place(self, topic: bytes, queue_id: int) -> tuple[ConsumeQueue | None, int] | None:
        """See `PlaceOf`. Messages that wait for their time, fillers and names that cannot be a path
        are for `entries`."""
        text = topic_text(topic)
        if text is None or text in WAITING_TOPICS or text == FILLER_TOPIC:
            return None
        prefix = 0 if self._index is None else self._index.hashes.prefix(text)
        if queue_id < 0:
            return None, prefix
        try:
            return self._queues.obtain(text, queue_id), prefix
        except MessageIllegal:
            return None

    def _listed(self, name: str, queue_id: int) -> ConsumeQueue | None:
        return self._obtain(name, self._queues.listed_id(name, queue_id))

    def _obtain(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        try:
            return self._queues.obtain(topic, queue_id)
        except MessageIllegal:
            self.unusable += 1
            return None

    def merge(self, entries: list[Appended], sequences: Sequences) -> None:
        """Write missing entries; existing entries stay. Raises OSError or Lagging."""
        self._reserve(entries)
        for queue, (offsets, packed) in by_queue(entries).items():
            sequences.feed(queue, offsets, b"".join(packed))
        self.merge_keys(entries)

    def merge_derived(self, derived: Derived, sequences: Sequences) -> None:
        """Do `merge` for the values derived from records that were taken as plain."""
        assert self._compiled is not None
        if self._index is not None:
            self._index.reserve(derived.keys)
        for queue, runs in derived.claims:
            sequences.feed_runs(queue, [Run(*run) for run in runs])
        if self._index is not None:
            self._index.put_hashed(self._compiled, derived.hashed)
            self._index.finish()

    def append_derived(self, runs: Sequence[Derived]) -> int | None:
        """Do `merge_derived` for several runs, if all their entries go on where the queues end; the
        number of entries, None if they do not, and nothing was done. Raises OSError; trying again
        is harmless."""
        assert self._compiled is not None
        follow: dict[ConsumeQueue, list[bytes]] = {}
        ends: dict[ConsumeQueue, int] = {}
        for derived in runs:
            for queue, parts in derived.claims:
                for first, entries in parts:
                    if first != ends.get(queue, queue.max_offset):
                        return None
                    ends[queue] = first + len(entries) // ENTRY_BYTES
                    follow.setdefault(queue, []).append(entries)
        if self._index is not None:
            self._index.reserve(sum([derived.keys for derived in runs]))
        added = 0
        for queue, found in follow.items():
            data = b"".join(found)
            added += len(data) // ENTRY_BYTES
            queue.write_entries(queue.max_offset, data)
        if self._index is not None:
            for derived in runs:
                self._index.put_hashed(self._compiled, derived.hashed)
            self._index.finish()
        return added

    def merge_keys(self, entries: list[Appended]) -> None:
        """Index the entries that are not indexed yet; room was reserved."""
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
        """Index the entries only. Raises OSError."""
        self._reserve(entries)
        self.merge_keys(entries)
