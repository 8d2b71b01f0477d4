"""Dispatch into consume queues with extension files (`extended_queue.py`).

Each message's own queue gets an extension entry; the further queues of a multi-dispatched message
get the plain tags code, as in the reference.

Both ways of dispatch give the same bytes. When the append feeds it, extension entries are staged in
log order and written before the queue's own. When the log is read, a slot that names the record
already stays as it is, whether it holds an address or, from a time without the option, a tags code.
A round that failed, on a full disk, may leave extension entries that no slot names; nothing ever
reads them.

Bit maps of filters go into the extension entries where they are made (`bit_maps.py`), so both ways
give the same bytes as far as the same filters are known.
"""

from collections.abc import Iterable

from aerobee.store.dispatch.bit_maps import FilterBitMaps
from aerobee.store.dispatch.dispatcher import Dispatcher
from aerobee.store.dispatch.reput import ROUND_MOST, KnownGaps, Reput, Touched
from aerobee.store.index.index_service import IndexService
from aerobee.store.log.commit_log import Appended, CommitLog
from aerobee.store.log.scan.sequence import Lagging, Sequences
from aerobee.store.log.store_core import StoreCore
from aerobee.store.queues.consume_queue import ConsumeQueue
from aerobee.store.queues.delay_levels import DelayLevels
from aerobee.store.queues.extended_queue import ExtendedQueue
from aerobee.store.queues.queue_table import ConsumeQueueTable
from aerobee.store.queues.queue_view import ENTRY
from aerobee.store.segments.results import Arrival

_pack_entry = ENTRY.pack


class ExtendedReput(Reput):
    """Writes an extension entry for each message that it is fed with."""

    def __init__(
        self,
        core: StoreCore,
        log: CommitLog,
        dispatcher: Dispatcher,
        index: IndexService | None,
        known: KnownGaps,
        *,
        maps: FilterBitMaps | None = None,
    ) -> None:
        super().__init__(core, log, dispatcher, index, known)
        self._maps = maps

    def dispatch(self, limit: int, tell: bool = True) -> list[Arrival]:
        """See Reput.dispatch."""
        if self._maps is not None:
            self._round_most = self._maps.begin_round(ROUND_MOST)
        return super().dispatch(limit, tell)

    def _gather(self, entries: list[Appended], touched: Touched) -> list[Arrival]:
        arrivals: list[Arrival] = []
        last_log, maps = -1, self._maps
        for queue, queue_offset, log_offset, size, tags_code, _, store_ms, topic in entries:
            # A message's further queues follow its own.
            own, last_log = log_offset != last_log, log_offset
            if queue is None:
                continue
            assert isinstance(queue, ExtendedQueue)
            of_queue = touched.get(queue)
            if of_queue is None:
                of_queue = touched[queue] = queue_offset, []
            code = tags_code
            if own:
                bit_map = maps.of(topic, log_offset, size) if maps is not None else b""
                code = queue.code_for(tags_code, store_ms, bit_map)
            of_queue[1].append(_pack_entry(log_offset, size, code))
            arrivals.append(Arrival(queue.topic, queue.queue_id, queue_offset, tags_code))
        _write_staged(list(touched))
        return arrivals


class ExtendedDispatcher(Dispatcher):
    """Makes extension entries for records that are read from the log and not in the queues yet."""

    def __init__(
        self,
        queues: ConsumeQueueTable,
        index: IndexService | None,
        levels: DelayLevels,
        maps: FilterBitMaps | None,
        *,
        multi_dispatch: bool,
    ) -> None:
        super().__init__(queues, index, levels, multi_dispatch=multi_dispatch)
        self._maps = maps

    def merge(self, entries: list[Appended], sequences: Sequences) -> None:
        """See Dispatcher.merge."""
        claims: dict[ConsumeQueue, tuple[list[int], list[bytes]]] = {}
        last_log, maps = -1, self._maps
        for queue, queue_offset, log_offset, size, tags_code, _, store_ms, topic in entries:
            own, last_log = log_offset != last_log, log_offset
            if queue is None:
                continue
            assert isinstance(queue, ExtendedQueue)
            offsets, packed = claims.setdefault(queue, ([], []))
            offsets.append(queue_offset)
            entry = queue.standing(queue_offset, log_offset, size, tags_code)
            if entry is None:
                code = tags_code
                if own:
                    bit_map = maps.of(topic, log_offset, size) if maps is not None else b""
                    code = queue.code_for(tags_code, store_ms, bit_map)
                entry = _pack_entry(log_offset, size, code)
            packed.append(entry)
        _write_staged(claims)
        self._reserve(entries)
        try:
            for queue, (offsets, packed) in claims.items():
                sequences.feed(queue, offsets, b"".join(packed))
        except Lagging:
            # All of it will be read again.
            for queue in claims:
                assert isinstance(queue, ExtendedQueue)
                queue.resume_ext()
            raise
        self.merge_keys(entries)


def _write_staged(queues: Iterable[ConsumeQueue]) -> None:
    for queue in queues:
        assert isinstance(queue, ExtendedQueue)
        queue.ext.write()
