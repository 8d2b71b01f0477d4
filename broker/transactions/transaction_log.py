"""Half messages, op messages and commits in the store: puts them, and reads them at the start.

Each put changes the table (`transaction_table.py`) as reading it again would. A commit is two
records, the final message and then the op message, put in one turn of the loop, so that no others
come between. After a crash, which leaves a beginning of what was put, a final message without its
op message can only be the last record of the log: the start looks at the last messages of the
queues that undecided ones would go to, and decides what was delivered. So a commit is delivered
once. RocketMQ forgets such a commit, and delivers it a second time after the next check.

Where the op message cannot be put (the disk is full just then), the message is decided all the
same, and `settle` puts the op message later; progress waits for it.

Loop thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import NamedTuple

from aerobee.broker.appending.appending import Appending
from aerobee.broker.broker_stats import MESSAGE_TRANSACTION
from aerobee.broker.second_step.second_step import HALF, SecondStep
from aerobee.broker.transactions.forms import (
    ASIDE,
    DECIDED,
    QUEUE,
    Half,
    aside_form,
    copy_form,
    decided_offsets,
    decided_origin,
    final_form,
    half_form,
    immunity_ms,
    op_form,
)
from aerobee.broker.transactions.transaction_table import REMEMBERED, Pending, TransactionTable
from aerobee.protocol.errors import CorruptRecord
from aerobee.protocol.headers.transactions import COMMIT, ROLLBACK
from aerobee.protocol.message.properties import decode_properties
from aerobee.protocol.message.record import Message, StoreMessage, decode_records
from aerobee.protocol.message.record_layout import SYS_TRANSACTION_MASK
from aerobee.protocol.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from aerobee.store.errors import StoreError
from aerobee.store.message_store import MessageStore
from aerobee.store.segments.results import PutResult

log = logging.getLogger("aerobee.broker.transactions")

_AT_ONCE = 256
# Final messages without op messages are looked for among this number of a queue's last messages. A
# kill of ours leaves a single one; threads of a killed Java broker were perhaps at several.
_LAST = 32
_KNOWN = frozenset({COMMIT, ROLLBACK, ASIDE})


class _Op(NamedTuple):
    """An op message: that the half message there is decided, of the transaction that began with
    the one at `origin`."""

    half_offset: int
    origin: int | None
    decision: int


class _Decided:
    """The half messages that op messages after the op queue's progress name.

    A copy that is decided takes with it all that it replaced, which the half queue's progress need
    not have passed yet. Copies that were stored after it (323) stay undecided.
    """

    def __init__(self) -> None:
        self._offsets: set[int] = set()
        self._newest: dict[int, int] = {}  # by the origin's queue offset

    def add(self, named: list[int], origin: int | None) -> None:
        """An op message names these."""
        self._offsets.update(named)
        if origin is not None and named:
            self._newest[origin] = max(self._newest.get(origin, -1), *named)

    def has(self, offset: int, origin: int | None = None) -> bool:
        """Whether the half message there, of that transaction, is decided."""
        if offset in self._offsets or offset <= self._newest.get(offset, -1):
            return True
        return origin is not None and offset <= self._newest.get(origin, -1)


class TransactionLog:
    """Puts and reads; what is raised by a put is a StoreError, and then nothing was changed."""

    def __init__(
        self, appending: Appending, table: TransactionTable, second_step: SecondStep
    ) -> None:
        self._store = appending.store
        self._second_step = second_step
        self._table = table
        self._stats = appending.stats
        self._host = appending.identity.store_host
        self._clock_ms = appending.clock_ms
        self._timeout_ms = appending.settings.transaction_timeout_ms
        # Op messages that could not be put.
        self._owed: list[_Op] = []

    # --- putting ----------------------------------------------------------------------------

    def prepare(self, message: StoreMessage) -> PutResult:
        """Store a message as a half message."""
        half = half_form(message)
        result = self._put(half)
        offset, store_ms = result.queue_offset, result.store_timestamp_ms
        properties = decode_properties(half.properties)
        due_ms = min(store_ms, self._clock_ms()) + immunity_ms(properties, self._timeout_ms)
        self._table.add(offset, Pending(result.log_offset, store_ms, due_ms, offset))
        return result

    def copy(
        self, half: Half, pending_at: int | None, checks: int | None, not_before_ms: int
    ) -> tuple[StoreMessage, PutResult]:
        """Store a half message again: it takes the place of the message that is pending at that
        queue offset. Its producer is not asked about it before that time."""
        copy = copy_form(half, checks)
        result = self._put(copy)
        if pending_at is not None:
            self._table.remove(pending_at)
        offset = result.queue_offset
        pending = Pending(
            result.log_offset,
            result.store_timestamp_ms,
            not_before_ms,
            offset if half.origin is None else half.origin,
            half.fingerprint,
        )
        self._table.add(offset, pending)
        return copy, result

    def commit(self, half: Half, pending_at: int | None) -> None:
        """Deliver a message; `half` is the copy that the decision names, `pending_at` the queue
        offset of the newest. `drop_if_deleted` was asked before."""
        final = final_form(half)
        result = self._second_step.put(HALF, final, half.message.log_offset, self._store.log.put)
        assert result is not None, half.topic
        stats = self._stats
        stats.stored(stats.topic(half.topic, MESSAGE_TRANSACTION), 1, result.size)
        self._decided(half, pending_at, COMMIT)

    def drop_if_deleted(self, half: Half, pending_at: int | None) -> bool:
        """Whether the topic was deleted since the half message was stored: nobody gets it then, as
        if it were rolled back, and it is counted."""
        if not self.is_of_deleted(half):
            return False
        self.roll_back(half, pending_at)
        self._second_step.drops(HALF, half.topic, half.message)
        return True

    def is_of_deleted(self, half: Half) -> bool:
        """Whether the topic was deleted since the half message was stored."""
        return self._second_step.is_deleted(half.topic, half.message.log_offset)

    def roll_back(self, half: Half, pending_at: int | None) -> None:
        """Deliver a message to nobody."""
        named = half.message.queue_offset
        first = named if pending_at is None else pending_at
        self._put_op(_Op(first, half.origin, ROLLBACK))
        self._decided(half, pending_at, ROLLBACK, noted=first)

    def put_aside(self, half: Half) -> PutResult:
        """Keep a half message where it can be looked at, and ask nobody about it any more."""
        result = self._put(aside_form(half))
        self._decided(half, half.message.queue_offset, ASIDE)
        return result

    def settle(self) -> None:
        """Put the op messages that could not be put."""
        while self._owed:
            op = self._owed[0]
            try:
                self._put_op(op)
            except StoreError as error:
                log.warning("op message waits half_offset=%d why=%s", op.half_offset, error)
                return
            del self._owed[0]

    def _decided(
        self, half: Half, pending_at: int | None, decision: int, noted: int | None = None
    ) -> None:
        """Note the decision about a half message, for the transaction and for the copy that was
        pending; the one at `noted` has its op message. The copy's comes first, because it decides
        all that the copy has replaced; the other one is for Java."""
        named, table = half.message.queue_offset, self._table
        if half.origin is not None:
            table.remember(half.origin, decision)
        if pending_at is not None:
            table.remove(pending_at)
        for offset in dict.fromkeys((named if pending_at is None else pending_at, named)):
            if offset == noted:
                table.remember(offset, decision)
            else:
                self._note(_Op(offset, half.origin, decision))

    def _note(self, op: _Op) -> None:
        self._table.remember(op.half_offset, op.decision)
        try:
            self._put_op(op)
        except StoreError as error:
            log.warning("op message owed half_offset=%d why=%s", op.half_offset, error)
            self._owe(op)

    def _owe(self, op: _Op) -> None:
        self._owed.append(op)
        self._table.op_owed(op.half_offset)

    def _put_op(self, op: _Op) -> None:
        self._store.log.put(op_form(*op, self._host, self._clock_ms()))
        self._table.op_stored(op.half_offset)

    def _put(self, message: StoreMessage) -> PutResult:
        result = self._store.log.put(message)
        stats = self._stats
        stats.stored(stats.topic(message.topic, MESSAGE_TRANSACTION), 1, result.size)
        return result

    # --- reading ----------------------------------------------------------------------------

    def read(self, log_offset: int) -> Half | None:
        """The half message there, in force or put aside; None if there is no message. Raises
        CorruptRecord for any other message."""
        record = self._store.reader.record_at(log_offset)
        return None if record is None else Half.read(record)

    def clear(self) -> None:
        """Forget what the queues hold, and what is owed to them: another broker writes them."""
        self._table.clear()
        self._owed.clear()

    def load(self, half_offset: int | None, op_offset: int | None) -> None:
        """Fill the table, from the progress of the half and the op queue on; None: from where they
        begin. What was delivered and not noted is owed then."""
        store, table = self._store, self._table
        half_first, half_end = _range(store, HALF_TOPIC, half_offset)
        op_first, op_end = _range(store, OP_HALF_TOPIC, op_offset)
        table.begin(half_end, op_first)
        decided = _Decided()
        start = max(store.min_offset(OP_HALF_TOPIC, QUEUE), min(op_first, op_end - REMEMBERED))
        for message in self._messages(OP_HALF_TOPIC, start):
            named, origin = decided_offsets(message.body), decided_origin(message)
            for offset in named if origin is None else [*named, origin]:
                table.remember(offset, message.flag if message.flag in _KNOWN else DECIDED)
            if message.queue_offset >= op_first:
                table.op_stored(max(named, default=-1))
                decided.add(named, origin)
        self._load_pending(half_first, half_end, decided)
        self._find_delivered()

    def _load_pending(self, first: int, end: int, decided: _Decided) -> None:
        # Where half messages lie whose copies do not name them.
        places: dict[object, int] = {}
        offset = first
        while offset < end:
            if decided.has(offset):
                offset += 1
                continue
            with self._store.reader.get(HALF_TOPIC, QUEUE, offset, 1) as result:
                found = _decode(result.views)
                next_offset = max(offset + 1, result.next_offset)
            if found:
                self._load_one(found[0], places, decided)
            offset = next_offset

    def _load_one(self, message: Message, places: dict[object, int], decided: _Decided) -> None:
        table = self._table
        try:
            half = Half.of(message)
        except CorruptRecord as error:
            log.error(
                "half message passed over queue_offset=%d log_offset=%d reason=%s",
                message.queue_offset, message.log_offset, error,
            )  # fmt: skip
            return
        offset, fingerprint = message.queue_offset, half.fingerprint
        if decided.has(offset, half.origin):
            return
        # A kill between a copy and the progress past what it replaces leaves both.
        older = table.newest_of(half) if half.origin != offset else None
        if older is None and half.is_copy and fingerprint is not None:
            older = places.get(fingerprint)
        if older is not None and older != offset:
            table.remove(older)
        if fingerprint is not None:
            places[fingerprint] = offset
        origin = offset if half.origin is None else half.origin
        due_ms = half.check_after_ms(self._timeout_ms, self._clock_ms())
        shared = fingerprint if half.is_copy else None
        store_ms = message.store_timestamp_ms
        table.add(offset, Pending(message.log_offset, store_ms, due_ms, origin, shared))

    def _find_delivered(self) -> None:
        """Decide what a crash has delivered, or put aside, without noting it."""
        table = self._table
        queues: dict[tuple[str, int], None] = {}
        for _, pending in table.due(table.end):
            half = self.read(pending.log_offset)
            if half is not None:
                for queue_id in self._second_step.queues_of(half.topic, half.queue_id):
                    queues[half.topic, queue_id] = None
        for topic, queue_id in queues:
            start = max(
                self._store.min_offset(topic, queue_id),
                self._store.max_offset(topic, queue_id) - _LAST,
            )
            for message in self._messages(topic, start, queue_id):
                if message.sys_flag & SYS_TRANSACTION_MASK == COMMIT:
                    self._delivered(message)
        if len(table):
            self._find_aside()

    def _delivered(self, final: Message) -> None:
        try:
            half = self.read(final.prepared_transaction_offset)
        except CorruptRecord:
            return
        pending_at = None if half is None else self._table.newest_of(half)
        if half is None or pending_at is None:
            return
        log.warning(
            "a commit was stored without its op message, which is added topic=%s queue_offset=%d "
            "half_offset=%d", final.topic, final.queue_offset, pending_at,
        )  # fmt: skip
        self._table.remove(pending_at)
        if half.origin is not None:
            self._table.remember(half.origin, COMMIT)
        for offset in dict.fromkeys((pending_at, half.message.queue_offset)):
            self._table.remember(offset, COMMIT)
            self._owe(_Op(offset, half.origin, COMMIT))

    def _find_aside(self) -> None:
        store, table = self._store, self._table
        first, end = _range(store, CHECK_MAX_TIME_TOPIC, None)
        for message in self._messages(CHECK_MAX_TIME_TOPIC, max(first, end - _LAST)):
            try:
                half = Half.of(message)
            except CorruptRecord:
                continue
            at = table.newest_of(half)
            pending = None if at is None else table.get(at)
            # A half message that is checked anew lies after what was put aside.
            if at is None or pending is None or pending.log_offset > message.log_offset:
                continue
            log.warning(
                "a message was put aside without its op message, which is added topic=%s "
                "half_offset=%d", half.topic, at,
            )  # fmt: skip
            table.remove(at)
            for offset in {at, pending.origin}:
                table.remember(offset, ASIDE)
            self._owe(_Op(at, pending.origin, ASIDE))

    def _messages(self, topic: str, start: int, queue_id: int = QUEUE) -> Iterator[Message]:
        """Those of a queue from `start` to its end, without those that cannot be read."""
        store, offset = self._store, start
        while offset < store.max_offset(topic, queue_id):
            with store.reader.get(topic, queue_id, offset, _AT_ONCE) as result:
                messages = _decode(result.views)
            yield from messages
            if result.next_offset <= offset and not result.pending:
                return
            offset = result.next_offset


def _decode(views: list[memoryview]) -> list[Message]:
    messages: list[Message] = []
    for view in views:
        try:
            messages += decode_records(view)
        except CorruptRecord as error:
            log.error("messages of transactions cannot be read reason=%s", error)
    return messages


def _range(store: MessageStore, topic: str, offset: int | None) -> tuple[int, int]:
    """Where to begin in a queue of ours, and its end."""
    first, end = store.min_offset(topic, QUEUE), store.max_offset(topic, QUEUE)
    return (first if offset is None else min(max(offset, first), end)), end
