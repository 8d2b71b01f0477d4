"""The transactions of one broker: the table, what puts and reads, requests and checks, wired."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

from aerobee.access.control import AccessControl
from aerobee.broker.appending.answers import AtOnce
from aerobee.broker.appending.appending import Appending
from aerobee.broker.background.scheduler import Scheduler
from aerobee.broker.routing.router import Handler
from aerobee.broker.second_step.second_step import HALF, SecondStep
from aerobee.broker.second_step.waiting_sources import WaitingRecords
from aerobee.broker.tables.offsets import NO_OFFSET
from aerobee.broker.tables.tables import Tables
from aerobee.broker.transactions.check_back import CheckCounts, CheckRules, CheckService
from aerobee.broker.transactions.forms import QUEUE
from aerobee.broker.transactions.transaction_log import TransactionLog
from aerobee.broker.transactions.transaction_requests import EndCounts, TransactionRequests
from aerobee.broker.transactions.transaction_table import TransactionTable
from aerobee.config.model import Settings
from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.message.record import StoreMessage
from aerobee.protocol.message.record_layout import log_offset_at
from aerobee.protocol.names import (
    CHECK_MAX_TIME_TOPIC,
    HALF_TOPIC,
    OP_HALF_TOPIC,
    TRANSACTION_GROUP,
)
from aerobee.remoting.turns import Turns
from aerobee.store.message_store import MessageStore
from aerobee.store.segments.results import PutResult

log = logging.getLogger("aerobee.broker.transactions")

_TICK_S = 1.0
# At a stop: the progress that waits, what came since, and a look that finds nothing more.
_SAVES = 3
_SYNC_S = 5.0
_HOUR_MS = 3_600_000


class Transactions:
    """Reads the two queues when built on a master; asks producers after `start_tasks`, but on a
    slave. Loop thread only."""

    def __init__(
        self,
        appending: Appending,
        tables: Tables,
        *,
        loop: asyncio.AbstractEventLoop,
        turns: Turns,
        answers: AtOnce,
        second_step: SecondStep,
        access: AccessControl | None = None,
    ) -> None:
        """`access` says who may decide and be asked, where accounts are asked for."""
        self._settings = appending.settings
        self._loop = loop
        self._store = appending.store
        self._table = TransactionTable()
        self._log = TransactionLog(appending, self._table, second_step)
        self._role = appending.role
        self._offsets = tables.offsets
        if not self._role.is_slave:
            self._load()
        self._requests = TransactionRequests(
            appending,
            table=self._table,
            transactions=self._log,
            topics=tables.topics,
            answers=answers,
            loop=loop,
            access=access,
        )
        self._checks = CheckService(
            appending,
            tables,
            rules=_check_rules(appending.settings),
            turns=turns,
            table=self._table,
            transactions=self._log,
            clock=loop.time,
            access=access,
        )

    def _load(self) -> None:
        half, op = [
            self._offsets.query(TRANSACTION_GROUP, name, QUEUE)
            for name in (HALF_TOPIC, OP_HALF_TOPIC)
        ]
        self._log.load(None if half == NO_OFFSET else half, None if op == NO_OFFSET else op)
        if len(self._table):
            log.info(
                "undecided half messages found count=%d from_queue_offset=%d; their producers are "
                "asked from the first round of checks on", len(self._table), self._table.first,
            )  # fmt: skip

    def prepare(self, message: StoreMessage) -> PutResult:
        """Store a message as a half message. Raises `BadRequest` when too many are undecided, and a
        StoreError; then nothing was changed."""
        limit = self._settings.pending_transactions
        if len(self._table) >= limit:
            raise BadRequest(
                ResponseCode.SYSTEM_BUSY,
                f"[OVERLOAD]system busy, {len(self._table)} transactions are undecided, the limit "
                f"is {limit} (limits.pending_transactions); have their producers decide, or raise "
                "it",
            )
        return self._log.prepare(message)

    def handlers(self) -> dict[int, Handler]:
        """The handlers by request code."""
        return self._requests.handlers()

    def start_tasks(self, scheduler: Scheduler) -> None:
        """Register what has to be done again and again."""
        interval_s = self._settings.transaction_check_interval_ms / 1000
        scheduler.every(min(_TICK_S, interval_s), "transactions", self._checks.tick)

    def lead(self, *, anew: bool) -> None:
        """See `Led`."""
        if anew:
            self._load()
        self._checks.begin()

    def follow(self) -> None:
        """See `Led`."""
        self._checks.pause()
        self._log.clear()

    def close(self) -> None:
        """Ask nobody any more."""
        self._checks.close()

    async def save_progress(self) -> None:
        """Bring the progress to where it is now, after `close`. A slave's is its master's."""
        for _ in range(0 if self._role.is_slave else _SAVES):
            end = self._checks.save_progress()
            if end is None:
                break
            self._store.sync_soon()
            await self._loop.run_in_executor(None, self._store.wait_durable, end, _SYNC_S)

    def waiting(self) -> TransactionsWaiting:
        """Where half messages wait."""
        return TransactionsWaiting(self._table, self._store)

    @property
    def pending(self) -> int:
        """Undecided half messages."""
        return len(self._table)

    @property
    def ends(self) -> EndCounts:
        """Counts of the fates of decisions."""
        return self._requests.counts

    @property
    def checks(self) -> CheckCounts:
        """Counts of the fates of undecided half messages."""
        return self._checks.counts


def _check_rules(settings: Settings) -> CheckRules:
    return CheckRules(
        settings.transaction_check_max,
        settings.transaction_check_interval_ms / 1000,
        lambda: settings.retention_hours * _HOUR_MS,
    )


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
