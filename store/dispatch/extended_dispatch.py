"""Dispatch into consume queues with extension files (`extended_queue.py`).

Each message's own queue gets an extension entry; the further queues of a multi-dispatched message
get the plain tags code, as in the reference.

Both ways of dispatch give the same bytes. Fed, extension entries are staged in log order and
written before the queue's own. Read from the log, a slot that names the record already stays as it
is, whether it holds an address or, from a time without the option, a tags code. A round that
failed, on a full disk, may leave extension entries that no slot names; nothing ever reads those.
"""

from collections.abc import Iterable

from aerobee.store.dispatch.dispatcher import Dispatcher
from aerobee.store.dispatch.multi_dispatch import MultiDispatcher
from aerobee.store.dispatch.reput import Reput
from aerobee.store.log.commit_log import Appended
from aerobee.store.queues.consume_queue import ConsumeQueue
from aerobee.store.queues.extended_queue import ExtendedQueue
from aerobee.store.queues.queue_view import ENTRY
from aerobee.store.scan.sequence import Lagging, Sequences
from aerobee.store.segments.results import Arrival

_pack_entry = ENTRY.pack


class ExtendedReput(Reput):
    """Writes an extension entry for each message that it is fed with."""

    def _gather(
        self, entries: list[Appended], touched: list[tuple[ConsumeQueue, int]]
    ) -> list[Arrival]:
        arrivals: list[Arrival] = []
        last_log = -1
        for queue, queue_offset, log_offset, size, tags_code, _, store_ms, _ in entries:
            # A message's further queues follow its own.
            own, last_log = log_offset != last_log, log_offset
            if queue is None:
                continue
            assert isinstance(queue, ExtendedQueue)
            if not queue.pending:
                touched.append((queue, queue_offset))
            code = queue.code_for(tags_code, store_ms) if own else tags_code
            queue.pending.append(_pack_entry(log_offset, size, code))
            arrivals.append(Arrival(queue.topic, queue.queue_id, queue_offset, tags_code))
        _write_staged([queue for queue, _ in touched])
        return arrivals


class ExtendedDispatcher(Dispatcher):
    """Makes extension entries for what is read from the log and not in the queues yet."""

    def merge(self, entries: list[Appended], sequences: Sequences) -> None:
        """As Dispatcher.merge."""
        claims: dict[ConsumeQueue, tuple[list[int], list[bytes]]] = {}
        last_log = -1
        for queue, queue_offset, log_offset, size, tags_code, _, store_ms, _ in entries:
            own, last_log = log_offset != last_log, log_offset
            if queue is None:
                continue
            assert isinstance(queue, ExtendedQueue)
            offsets, packed = claims.setdefault(queue, ([], []))
            offsets.append(queue_offset)
            packed.append(queue.claim(queue_offset, log_offset, size, tags_code, store_ms, own=own))
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


class ExtendedMultiDispatcher(ExtendedDispatcher, MultiDispatcher):
    """The same for a store that multi-dispatches."""


def _write_staged(queues: Iterable[ConsumeQueue]) -> None:
    for queue in queues:
        assert isinstance(queue, ExtendedQueue)
        queue.ext.write()
