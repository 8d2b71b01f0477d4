"""Builds the parts of staging around a store, and runs them.

    chunks, intents -> requests -> stage log -> table;  publisher -> topics;  table -> stages.json

Loop thread only, but for the file's writing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from aerobee.broker.delay.service import ScheduleMessageService
from aerobee.broker.router import Handler
from aerobee.broker.scheduler import Scheduler
from aerobee.broker.second_step.place import SecondStep
from aerobee.broker.staging.log import StageLog
from aerobee.broker.staging.publish import Publisher
from aerobee.broker.staging.requests import StageAnswers, StageRequests
from aerobee.broker.staging.rows import ChunkCheck, StagedRows
from aerobee.broker.staging.table import StageFile, StageTable
from aerobee.broker.staging.waiting import StagedWaiting
from aerobee.broker.stats import BrokerStats
from aerobee.broker.tables.state_file import JsonStateFile
from aerobee.broker.tables.topics import TopicTable
from aerobee.broker.workers import BodyReader
from aerobee.config.model import Settings
from aerobee.protocol.bodies.routes import PERM_WRITE
from aerobee.store.errors import StoreError
from aerobee.store.message_store import MessageStore

log = logging.getLogger("aerobee.broker.stages")

_ANSWER_S = 0.2
_SAVE_S = 5.0
_EXPIRE_S = 30.0


class Staging:
    """Staged batches of one broker. Reads the stage log when built, publishes after `start`."""

    def __init__(
        self,
        settings: Settings,
        loop: asyncio.AbstractEventLoop,
        store: MessageStore,
        topics: TopicTable,
        stats: BrokerStats,
        file: JsonStateFile,
        store_host: bytes,
        appended: Callable[[], None],
        clock_ms: Callable[[], int],
        bodies: BodyReader,
        delays: ScheduleMessageService | None = None,
        *,
        second_step: SecondStep,
    ) -> None:
        self._loop = loop
        self._store = store
        self.table = StageTable(settings.broker_name)
        self._log = StageLog(store, self.table, store_host, clock_ms)
        self._file = StageFile(file, self.table)
        self._log.replay(self._file.load(self._log.end))
        self.answers = StageAnswers(store, self.table, stats, loop.time)
        self.publisher = Publisher(
            loop,
            store,
            self._log,
            self.table,
            stats,
            appended,
            settings.cluster_name,
            store_host,
            self.answers.finished,
            delays,
            second_step=second_step,
        )
        self._check = ChunkCheck(
            topics,
            settings.max_message_bytes,
            lambda: bool(settings.broker_permission & PERM_WRITE),
            delays=delays is not None,
        )
        #: Why the last save failed; None when it did not.
        self.failure: str | None = None
        self._requests = StageRequests(
            settings,
            self.table,
            self._log,
            self._check,
            self.publisher,
            self.answers,
            appended,
            clock_ms,
            bodies,
            delays=delays is not None,
        )

    def use(self, rows: StagedRows) -> None:
        """Have plain rows looked at and stored by the compiled form."""
        self._check.staged_rows = self.publisher.staged_rows = rows

    def waiting(self) -> StagedWaiting:
        """Where staged rows wait."""
        return StagedWaiting(self.table, self._store)

    def handlers(self) -> dict[int, Handler]:
        """The handlers by request code."""
        return self._requests.handlers()

    def start_tasks(self, scheduler: Scheduler) -> None:
        """Publish what is open, and register what has to be done again and again."""
        self.publisher.start()
        scheduler.every(_ANSWER_S, "waiting batches", self.answers.send_ready)
        scheduler.every(_SAVE_S, "batches", self.save)
        scheduler.every(_EXPIRE_S, "expired stages", self._expire)

    def close(self) -> None:
        """Publish nothing more."""
        self.publisher.stop()

    def save(self) -> None:
        """Write the last batches of all queries, if they have changed and are durable."""
        found = self._file.take(self._log.end, self._store.written, self._store.durable)
        if found is not None:
            saved = self._loop.run_in_executor(None, self._file.save, found)
            saved.add_done_callback(self._saved)

    def _expire(self) -> None:
        try:
            self._requests.expire()
        except StoreError as error:
            log.warning("expired stages stay for now why=%s", error)

    def _saved(self, saved: asyncio.Future[None]) -> None:
        if saved.cancelled():
            return
        error = saved.exception()
        self.failure = None if error is None else f"staged batches cannot be saved: {error}"
        if error is not None:
            log.error("staged batches not saved, will be tried again why=%s", error)
