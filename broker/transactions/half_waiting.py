"""Where half messages wait for their decision (`Waits` of second_step)."""

from __future__ import annotations

from collections.abc import Iterator

from aerobee.broker.second_step.second_step import HALF
from aerobee.broker.second_step.waiting_sources import WaitingRecords
from aerobee.broker.transactions.forms import QUEUE
from aerobee.broker.transactions.transaction_table import TransactionTable
from aerobee.protocol.message.record_layout import log_offset_at
from aerobee.protocol.names import CHECK_MAX_TIME_TOPIC
from aerobee.store.message_store import MessageStore


class TransactionsWaiting(WaitingRecords):
    """The undecided ones. Those that were put aside wait, too, as long as they are kept: each may
    be checked anew."""

    kind = HALF

    def __init__(self, table: TransactionTable, store: MessageStore) -> None:
        super().__init__(store.reader.record_at)
        self._table = table
        self._store = store

    def oldest(self) -> Iterator[int | None]:
        """See `Waits.oldest`."""
        pending = self._table.get(self._table.first_pending)
        yield None if pending is None else pending.log_offset
        first = self._store.min_offset(CHECK_MAX_TIME_TOPIC, QUEUE)
        with self._store.reader.get(CHECK_MAX_TIME_TOPIC, QUEUE, first, 1) as result:
            yield log_offset_at(result.views[0]) if result.views else None

    def places(self) -> Iterator[int]:
        """See `Waits.places`; messages that were put aside are left out."""
        return (pending.log_offset for pending in self._table.all_pending())

    def sizes(self) -> Iterator[int]:
        """See `Waits.sizes`."""
        yield len(self._table)
