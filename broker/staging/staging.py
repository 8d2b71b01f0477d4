"""Builds the parts of staging around a store, and runs them.

    chunks, intents -> requests -> stage log -> table;  publisher -> topics;  table -> stages.json

Loop thread only, but for the file's writing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor

from aerobee.access.control import AccessControl
from aerobee.broker.background.loop_workers import BodyReader
from aerobee.broker.background.scheduler import Saver, Scheduler
from aerobee.broker.broker_stats import BrokerStats
from aerobee.broker.delay.delay_service import ScheduleMessageService
from aerobee.broker.messages.answers import WhenDurable
from aerobee.broker.routing.router import Handler
from aerobee.broker.second_step.second_step import SecondStep
from aerobee.broker.staging.answers import StageAnswers
from aerobee.broker.staging.finished import FinishedBatches
from aerobee.broker.staging.finished_batches import StageChanges, StageFile
from aerobee.broker.staging.publish import Publisher
from aerobee.broker.staging.rows import ChunkCheck, StagedRows
from aerobee.broker.staging.rows_waiting import StagedWaiting
from aerobee.broker.staging.stage_log import StageLog
from aerobee.broker.staging.stage_requests import StageRequests
from aerobee.broker.staging.stage_table import FINISHED_SHARE, StageTable
from aerobee.broker.tables.files.state_file import JsonStateFile
from aerobee.broker.tables.topics import TopicTable
from aerobee.config.model import Settings
from aerobee.protocol.bodies.routes import PERM_WRITE
from aerobee.remoting.turns import Spread, Turns
from aerobee.store.errors import StoreError
from aerobee.store.message_store import MessageStore
from aerobee.summed_log import SummedLog

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
        turns: Turns,
        intents: WhenDurable,
        delays: ScheduleMessageService | None = None,
        *,
        second_step: SecondStep,
        sums: SummedLog,
        control: AccessControl | None = None,
        pool: Executor | None = None,
    ) -> None:
        """Without `control` everybody may do everything; the file is written in `pool`."""
        self._store = store
        self._build_state(settings, file, store_host, clock_ms, sums)
        self.saver: Saver[StageChanges] = Saver(loop, "staged batches", self.file, _SAVE_S, pool)
        self.answers = StageAnswers(intents, self.table, stats, loop.time, turns)
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
            topics,
            control,
            delays=delays is not None,
            is_deleted=second_step.is_deleted,
        )
        self._expiring = Spread(turns, self._expire_some)

    def _build_state(
        self,
        settings: Settings,
        file: JsonStateFile,
        store_host: bytes,
        clock_ms: Callable[[], int],
        sums: SummedLog,
    ) -> None:
        """Read staged rows and decisions from the file and the stage log."""
        store = self._store
        finished = FinishedBatches(
            lambda: int(settings.stage_state_bytes * FINISHED_SHARE),
            lambda: settings.stage_remember_ms,
            clock_ms,
            sums,
        )
        self.table = StageTable(settings.broker_name, finished)
        self._log = StageLog(store, self.table, store_host, clock_ms)
        #: The saved part of the table.
        self.file = StageFile(
            file,
            finished,
            lambda: self.table.oldest_offset(self._log.end),
            store.marks,
        )
        self._log.replay(self.file.load(self._log.end))

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
        scheduler.every(Saver.LOOK_S, "batches", self.saver.look)
        scheduler.every(_EXPIRE_S, "expired stages", self._expire)

    def close(self) -> None:
        """Publish nothing more."""
        self.publisher.stop()

    def _expire(self) -> None:
        """Begin to give up what is silent, and to forget what is old: some a turn."""
        self._expiring.go_on()

    def _expire_some(self) -> bool:
        try:
            return self._requests.expire_some()
        except StoreError as error:
            log.warning("expired stages stay for now why=%s", error)
            return False
