"""Asks producers about half messages that stay undecided (protocol/WIRE.md 3.8, FORMAT.md 12.2).

A round looks at each undecided half message in the order of the half queue. One that is old enough
(`transactionTimeOut`, or its own CHECK_IMMUNITY_TIME_IN_SECONDS) is stored again, with one check
more in its properties, and a producer of its group is asked, each in its turn; any of them may
answer. One that was asked about `transactionCheckMax` times, or is older than messages are kept,
is put aside in TRANS_CHECK_MAX_TIME_TOPIC. The next round begins `transactionCheckInterval` after
the end of this one. A round counts as a check whether or not a producer is there, as in RocketMQ.

Where accounts are asked for, only a producer that may send to the message's topic is asked: the
question carries the message, and any client may say that it is of a group.

A producer whose connection has no room for a question is not asked, and its messages are left for
another pass soon after: they are not stored again until they can be asked about.

Progress is committed as the offsets of a group, as RocketMQ does, so that a Java broker can go on
with it. It never says more than what is durable: a half message before it is never looked at again.

One message is one step; rounds go on in slices of the loop's turns. Loop thread only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import NamedTuple

from aerobee.access.control import AccessControl
from aerobee.broker.appending.appending import Appending
from aerobee.broker.tables.offsets import NO_OFFSET
from aerobee.broker.tables.tables import Tables
from aerobee.broker.transactions.forms import QUEUE, Half, check_request
from aerobee.broker.transactions.transaction_log import TransactionLog
from aerobee.broker.transactions.transaction_table import Pending, TransactionTable
from aerobee.protocol.errors import CorruptRecord
from aerobee.protocol.names import (
    CHECK_MAX_TIME_TOPIC,
    HALF_TOPIC,
    OP_HALF_TOPIC,
    TRANSACTION_GROUP,
)
from aerobee.remoting.connections.connection import Connection
from aerobee.remoting.turns import Turns
from aerobee.store.errors import (
    MessageIllegal,
    PropertiesTooLarge,
    StoreBroken,
    StoreClosed,
    StoreError,
)

log = logging.getLogger("aerobee.broker.transactions")

# Between two passes of one round, where producers had no room for questions.
_PASS_S = 0.2
# Undecided messages whose time has not come, in a step.
_YOUNG_STEP = 64
# Decisions that one undecided message keeps remembered, some 40 bytes each; beyond, it is stored
# again after them, so that progress passes.
MOST_OPS = 100_000


class CheckRules(NamedTuple):
    """The settings; `retention_ms` is asked for each time, it may change."""

    checks: int
    interval_s: float
    retention_ms: Callable[[], int]


class CheckCounts:
    """Counts of the fates of undecided half messages, for /metrics."""

    def __init__(self) -> None:
        self.asked = 0
        self.no_producer = 0
        self.put_aside = 0
        self.lost = 0
        self.rounds = 0


class CheckService:
    """The checks of one broker. `tick` is to be called about once a second, and at least once an
    interval."""

    def __init__(
        self,
        appending: Appending,
        tables: Tables,
        *,
        rules: CheckRules,
        turns: Turns,
        table: TransactionTable,
        transactions: TransactionLog,
        clock: Callable[[], float],
        access: AccessControl | None,
    ) -> None:
        self._access = access
        self._rules = rules
        self._turns = turns
        self._store = appending.store
        self._table = table
        self._log = transactions
        self._clients = tables.clients
        self._offsets = tables.offsets
        self._topics = tables.topics
        self._reput = appending.reput
        self._clock = clock
        self._clock_ms = appending.clock_ms
        self._round: Iterator[None] | None = None
        self._next_round = clock() + rules.interval_s
        self._crowded = False
        self._closed = False
        self._is_paused = appending.role.is_slave
        # How many producers were asked, which chooses the next one of a group.
        self._turn = 0
        # Progress that waits for the durable mark: half queue, op queue, log offset.
        self._unsaved: tuple[int, int, int] | None = None
        self.counts = CheckCounts()

    def close(self) -> None:
        """Ask nobody any more."""
        self._closed = True

    def begin(self) -> None:
        """Go on after a pause, or on a broker that was built as a slave: the next round comes an
        interval from now."""
        if self._is_paused:
            self._is_paused = False
            self._next_round = self._clock() + self._rules.interval_s

    def pause(self) -> None:
        """Ask nobody and save nothing until `begin`; a round that is under way ends here."""
        self._is_paused = True
        self._round = self._unsaved = None
        self._crowded = False

    def tick(self) -> None:
        """Do what it is time for."""
        if self._closed or self._is_paused:
            return
        self.save_progress()
        if self._round is None and (self._clock() >= self._next_round or self._is_long):
            self.begin_round()

    def begin_round(self) -> None:
        """Look at all undecided half messages now, unless a round is under way."""
        if self._round is None:
            self._round = self._steps()
            self._turns.add(self._slice)

    # --- a round ----------------------------------------------------------------------------

    def _slice(self) -> bool:
        """Some steps of the round; whether there are more."""
        turns, steps = self._turns, self._round
        if self._closed or steps is None:
            return False
        until = turns.slice_until(turns.clock())
        written = self._store.written
        more = False
        try:
            for _ in steps:
                if turns.clock() >= until:
                    more = True
                    break
        finally:
            if not more:
                self._end_round()
            if self._store.written > written:
                self._reput.appended()
        return more

    def _end_round(self) -> None:
        self._round = None
        wait_s = _PASS_S if self._crowded else self._rules.interval_s
        self._next_round = self._clock() + wait_s
        if not self._crowded:
            self.counts.rounds += 1
        self._crowded = False

    def _steps(self) -> Iterator[None]:
        now_ms = self._clock_ms()
        if len(self._table):
            self._make_topic(HALF_TOPIC)
        young = 0
        try:
            for offset, pending in self._table.due(self._table.end):
                is_due = now_ms >= pending.check_after_ms
                if is_due or self._is_long:
                    half = self._read(offset, pending)
                    yield None
                    # It may have been decided meanwhile.
                    if half is not None and offset in self._table:
                        self._store_again(offset, half, pending, now_ms if is_due else None)
                        yield None
                else:
                    young += 1
                    if young % _YOUNG_STEP == 0:
                        yield None
        except (StoreBroken, StoreClosed) as error:
            log.error("transactions are not checked before a restart why=%s", error)
            self._closed = True
        except StoreError as error:
            log.error("checks of transactions go on in the next round why=%s", error)

    @property
    def _is_long(self) -> bool:
        """Whether a missing decision makes too many decisions be remembered."""
        return self._table.ops > MOST_OPS

    def _store_again(self, offset: int, half: Half, pending: Pending, now_ms: int | None) -> None:
        """Ask about it, or put it aside; without a time store it as it is, so that progress
        passes. What is of a deleted topic is dropped."""
        try:
            if self._log.drop_if_deleted(half, offset):
                return
            if now_ms is None:
                self._log.copy(half, offset, None, pending.check_after_ms)
            elif self._is_over(half, now_ms):
                self._put_aside(half)
            else:
                self._ask(offset, half, now_ms)
        except (MessageIllegal, PropertiesTooLarge) as error:
            self._give_up(offset, pending, str(error))

    def _is_over(self, half: Half, now_ms: int) -> bool:
        """Whether it was asked about too often, or has been here for longer than messages are kept.
        Its birth is of the producer's clock, which may be days behind."""
        age_ms = now_ms - half.message.store_timestamp_ms
        return half.checks >= self._rules.checks or age_ms > self._rules.retention_ms()

    def _read(self, offset: int, pending: Pending) -> Half | None:
        """The half message; None when it cannot be had, which is noted."""
        if pending.log_offset >= self._store.committed:
            return None  # a transient pool has it, for a moment
        try:
            half = self._log.read(pending.log_offset)
        except CorruptRecord as error:
            self._give_up(offset, pending, str(error))
            return None
        if half is None or half.message.queue_offset != offset:
            deleted = pending.log_offset < self._store.min_log_offset
            self._give_up(offset, pending, "it was deleted" if deleted else "it is damaged")
            return None
        return half

    def _give_up(self, offset: int, pending: Pending, why: str) -> None:
        self._table.remove(offset)
        self.counts.lost += 1
        log.error(
            "half message passed over, its transaction will not be decided queue_offset=%d "
            "log_offset=%d reason=%s", offset, pending.log_offset, why,
        )  # fmt: skip

    def _put_aside(self, half: Half) -> None:
        self._make_topic(CHECK_MAX_TIME_TOPIC)
        result = self._log.put_aside(half)
        self.counts.put_aside += 1
        log.warning(
            "half message was put aside, its producers have not decided group=%s topic=%s "
            "checks=%d msg_id=%s aside_topic=%s aside_log_offset=%d",
            half.group, half.topic, half.checks, half.message.msg_id, CHECK_MAX_TIME_TOPIC,
            result.log_offset,
        )  # fmt: skip

    def _ask(self, offset: int, half: Half, now_ms: int) -> None:
        connection, is_there = self._choose(half)
        if connection is None and is_there:
            self._crowded = True
            return
        not_before_ms = now_ms + round(self._rules.interval_s * 1000)
        copy, place = self._log.copy(half, offset, half.checks + 1, not_before_ms)
        if connection is None:
            self.counts.no_producer += 1
            return
        connection.push(check_request(half, copy, place))
        self.counts.asked += 1

    def _choose(self, half: Half) -> tuple[Connection | None, bool]:
        """A connection of a live producer of its group with room for a question, in turns; and
        whether the group has a live producer at all that may be asked."""
        members = self._clients.producers(half.group)
        self._turn += 1
        is_there = False
        for number in range(len(members)):
            member = members[(self._turn + number) % len(members)]
            connection = member.connection
            if self._access is not None and not self._access.may_see(
                member.account, connection.peer[0], half.topic
            ):
                continue
            is_there = True
            if not connection.closed and not connection.full:
                return connection, True
        return None, is_there

    def _make_topic(self, name: str) -> None:
        """Have the topic table know a topic of ours; puts do not wait for that."""
        made = self._topics.create_retry(name, 1)
        if made is not None:
            made.add_done_callback(_made)

    # --- progress ---------------------------------------------------------------------------

    def save_progress(self) -> int | None:
        """Commit the progress that is durable, and take the next progress. Returns the log offset
        up to which the log has to be synced for it, None without any. Op messages that are owed are
        put before."""
        written = self._store.written
        self._log.settle()
        if self._store.written > written:
            self._reput.appended()
        if self._unsaved is not None:
            half, op, end = self._unsaved
            if end > self._store.durable:
                self._store.sync_soon()
                return end
            if not self._commit(half, op):
                return end
            self._unsaved = None
        half, op = self._table.progress()
        saved = self._saved(HALF_TOPIC), self._saved(OP_HALF_TOPIC)
        if saved != (half, op) and (half or op or saved != (NO_OFFSET, NO_OFFSET)):
            self._unsaved = half, op, self._store.written
            return self._store.written
        return None

    def _saved(self, topic: str) -> int:
        return self._offsets.query(TRANSACTION_GROUP, topic, QUEUE)

    def _commit(self, half: int, op: int) -> bool:
        """False while the queues do not show what they hold."""
        for topic, offset in ((HALF_TOPIC, half), (OP_HALF_TOPIC, op)):
            if offset > self._store.max_offset(topic, QUEUE):
                return False
        for topic, offset in ((HALF_TOPIC, half), (OP_HALF_TOPIC, op)):
            self._offsets.commit(TRANSACTION_GROUP, topic, QUEUE, offset)
        return True


def _made(made: asyncio.Future[None]) -> None:
    if not made.cancelled() and (error := made.exception()) is not None:
        log.error("a topic of transactions is not in the topic table why=%s", error)
