"""Builds the parts of staging around a store, and runs them.

    chunks, intents -> requests -> stage log -> table;  publisher -> topics;  table -> stages.json

Loop thread only, but for the file's writing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor
from typing import Final

from aerobee.access.control import AccessControl
from aerobee.broker.appending.answers import WhenDurable
from aerobee.broker.appending.appending import Appending
from aerobee.broker.background.loop_workers import BodyReader
from aerobee.broker.background.scheduler import Saver, Scheduler
from aerobee.broker.delay.delay_service import ScheduleMessageService
from aerobee.broker.messages.compiled_requests import CompiledRequests
from aerobee.broker.routing.router import Handler
from aerobee.broker.second_step.second_step import STAGED, SecondStep
from aerobee.broker.staging.answers import StageAnswers
from aerobee.broker.staging.finished import FinishedBatches
from aerobee.broker.staging.finished_batches import StageChanges, StageFile
from aerobee.broker.staging.publish import Publisher
from aerobee.broker.staging.rows import ChunkCheck
from aerobee.broker.staging.stage_log import StageLog
from aerobee.broker.staging.stage_requests import StageRequests
from aerobee.broker.staging.stage_table import FINISHED_SHARE, Stage, StageTable
from aerobee.broker.tables.files.state_file import JsonStateFile
from aerobee.broker.tables.topics import TopicTable
from aerobee.protocol.errors import BadRequest, CorruptRecord
from aerobee.protocol.headers.stages import chunk_runs
from aerobee.protocol.message.record import decode_record
from aerobee.remoting.turns import Spread, Turns
from aerobee.store.errors import StoreError
from aerobee.store.message_store import MessageStore
from aerobee.summed_log import SummedLog

log = logging.getLogger("aerobee.broker.stages")

_ANSWER_S = 0.2
_SAVE_S = 5.0
_EXPIRE_S = 30.0


class Staging:
    """Staged batches of one broker. Reads the stage log when built on a master, publishes between
    `lead` and `follow`."""

    def __init__(
        self,
        appending: Appending,
        topics: TopicTable,
        file: JsonStateFile,
        *,
        loop: asyncio.AbstractEventLoop,
        turns: Turns,
        bodies: BodyReader,
        sums: SummedLog,
        intents: WhenDurable,
        second_step: SecondStep,
        delays: ScheduleMessageService | None = None,
        compiled: CompiledRequests | None = None,
        control: AccessControl | None = None,
        pool: Executor | None = None,
    ) -> None:
        """Without `control` everybody may do everything; `compiled` checks plain rows and stores
        them; the file is written in `pool`."""
        settings = appending.settings
        self._store = appending.store
        self._role = appending.role
        self._build_state(appending, file, sums)
        self.saver: Saver[StageChanges] = Saver(loop, "staged batches", self.file, _SAVE_S, pool)
        self.answers = StageAnswers(intents, self.table, appending.stats, loop.time, turns)
        self.publisher = Publisher(
            appending,
            loop=loop,
            stages=self._log,
            table=self.table,
            answers=self.answers,
            second_step=second_step,
            delays=delays,
            compiled=compiled,
        )
        self._requests = StageRequests(
            appending,
            table=self.table,
            stages=self._log,
            check=ChunkCheck(settings, topics, compiled, delays=delays is not None),
            publisher=self.publisher,
            answers=self.answers,
            bodies=bodies,
            topics=topics,
            control=control,
            delays=delays is not None,
            second_step=second_step,
        )
        self._expiring = Spread(turns, self._expire_some)

    def _build_state(self, appending: Appending, file: JsonStateFile, sums: SummedLog) -> None:
        """Read staged rows and decisions from the file and the stage log."""
        settings, store, clock_ms = appending.settings, appending.store, appending.clock_ms
        finished = FinishedBatches(
            lambda: int(settings.stage_state_bytes * FINISHED_SHARE),
            lambda: settings.stage_remember_ms,
            clock_ms,
            sums,
        )
        self.table = StageTable(settings.broker_name, finished)
        self._log = StageLog(store, self.table, appending.identity.store_host, clock_ms)
        #: The saved part of the table.
        self.file = StageFile(file, finished, self._oldest_offset, store.marks)
        # From where in the stage log a start reads, as the master says; on a slave.
        self._replay_from = self.file.load(self._log.end)
        if not self._role.is_slave:
            self._log.replay(self._replay_from)

    def _oldest_offset(self) -> int:
        if self._role.is_slave:
            return self._replay_from
        return self.table.oldest_offset(self._log.end)

    def waiting(self) -> StagedWaiting:
        """Where staged rows wait."""
        return StagedWaiting(self.table, self._store)

    def handlers(self) -> dict[int, Handler]:
        """The handlers by request code."""
        return self._requests.handlers()

    def start_tasks(self, scheduler: Scheduler) -> None:
        """Register the periodic tasks."""
        scheduler.every(_ANSWER_S, "waiting batches", self.answers.send_ready)
        scheduler.every(Saver.LOOK_S, "batches", self.saver.look)
        scheduler.every(_EXPIRE_S, "expired stages", self._expire)

    def lead(self, *, anew: bool) -> None:
        """See `Led`: the open intents are published."""
        if anew:
            self._log.replay(self._replay_from)
        self.publisher.start()

    def follow(self) -> None:
        """See `Led`."""
        self.publisher.clear()
        self._replay_from = self.table.oldest_offset(self._log.end)
        self.table.clear()

    def replace(self, copied: StageChanges) -> None:
        """Take what the master remembers, when the log has what the master had by then. On a slave
        only."""
        self._replay_from = copied.replay_from
        self.file.replace(copied)

    def close(self) -> None:
        """Publish nothing more."""
        self.publisher.stop()

    def _expire(self) -> None:
        """Begin to give up silent stages, and to forget old finished batches: some in each turn. A
        slave leaves that to its master."""
        if not self._role.is_slave:
            self._expiring.go_on()

    def _expire_some(self) -> bool:
        if self._role.is_slave:
            return False
        try:
            return self._requests.expire_some()
        except StoreError as error:
            log.warning("expired stages stay for now why=%s", error)
            return False


_STEP: Final = 64


class StagedWaiting:
    """Staged rows wait in the chunks of stages, whether or not an intent names the stages. A chunk
    counts until all of its rows are published."""

    kind = STAGED

    def __init__(self, table: StageTable, store: MessageStore) -> None:
        self._table = table
        self._record_at = store.reader.record_at

    def oldest(self) -> Iterator[int | None]:
        """See `Waits.oldest`."""
        for number, stage in enumerate(list(self._table.stages.values())):
            # A stage's first chunk is its oldest.
            found = next(iter(stage.chunks.values()), None)
            if found is not None or number % _STEP == 0:
                yield None if found is None else found.log_offset

    def places(self) -> Iterator[int | None]:
        """See `Waits.places`."""
        for stage in list(self._table.stages.values()):
            yield from _unpublished(stage)

    def sizes(self) -> Iterator[int]:
        """See `Waits.sizes`."""
        yield self._table.chunks

    def found(self, topic: str, log_offset: int) -> Iterable[tuple[int, int]]:
        """See `Waits.found`."""
        record = self._record_at(log_offset)
        if record is None or topic.encode() not in record:
            return ()
        try:
            runs = chunk_runs(decode_record(record).body)
            return [(run.queue_id, run.rows) for run in runs if run.topic == topic]
        except (BadRequest, CorruptRecord):
            return ()


def _unpublished(stage: Stage) -> Iterator[int | None]:
    """The chunks' log offsets; None for each chunk whose rows are all published."""
    behind = 0
    for number in sorted(stage.chunks):
        chunk = stage.chunks[number]
        behind += chunk.rows
        yield chunk.log_offset if behind > stage.published else None
