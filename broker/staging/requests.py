"""STAGE_CAPABILITY, _CHUNK, _INTENT, _STATUS, _ABORT (31000-31004): effectively once into topics.

A job stages what its tasks write, its driver decides once, the broker publishes (decision 10; the
client's side is `client/producing/staging.py`). Every request may be repeated by a client that is
unsure whether the last one arrived: a chunk that is there is not stored again, of two intents for
one batch the first counts, an abort of what an intent names does nothing.

Rows for a batch that is decided are answered like any others and thrown away: a driver that was
killed between its decision and its checkpoint has the whole batch computed again, and learns only
at the end that it is there.

A decision is answered when it is on the disk, not before, whatever the flush mode: the driver's
next step is to write it into its own checkpoint. So the answers about intents and finished batches
wait for the durable mark even under ASYNC_FLUSH, and ask the flush thread not to wait for its
interval (`StageAnswers`). A batch that is not done when its time is over is answered OPEN, an
intent that is not durable FLUSH_DISK_TIMEOUT, and both may be asked for again.

Loop thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from time import perf_counter
from typing import NamedTuple

from aerobee.broker.router import Handler, refusal
from aerobee.broker.staging.log import StageLog
from aerobee.broker.staging.publish import Publisher
from aerobee.broker.staging.rows import ChunkCheck
from aerobee.broker.staging.table import BatchKey, Decision, Stage, StageTable, in_steps
from aerobee.broker.stats import BrokerStats
from aerobee.broker.workers import BodyReader
from aerobee.config.model import Settings
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.command import Command, encode_response, encode_success
from aerobee.protocol.frames.waiting import keep_for_answer
from aerobee.protocol.headers.stages import (
    DONE,
    NONE,
    OPEN,
    STAGE_PROTOCOL,
    StageBatchHeader,
    StageCapability,
    StageChunkHeader,
    StagePart,
    StageState,
    check_batch,
    check_stage,
    chunk_crc,
    decode_names,
    decode_parts,
    encode_parts,
)
from aerobee.remoting.connection import Connection
from aerobee.remoting.turns import Steps
from aerobee.store.message_store import MessageStore

log = logging.getLogger("aerobee.broker.stages")

# A hundred bytes each: 100 MB.
MAX_CHUNKS = 1_000_000
# Drivers wait, one or two requests a query.
MAX_WAITING = 10_000
# A status request waits this long at most, whatever it asks for.
_MAX_WAIT_S = 30.0


class _WaitingAnswer(NamedTuple):
    """One answer; `end` is the log offset its intent ends at, None if it waits for DONE."""

    connection: Connection
    command: Command
    key: BatchKey
    end: int | None
    existed: bool
    deadline: float
    started: float


class StageAnswers:
    """Answers of one broker that wait; `clock` is monotonic, in seconds.

    `send_ready` is called when the durable mark has moved, and by a timer for answers whose time is
    over.
    """

    def __init__(
        self,
        store: MessageStore,
        table: StageTable,
        stats: BrokerStats,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._table = table
        self._stats = stats
        self._clock = clock
        self._waiting: list[_WaitingAnswer] = []
        # Log offsets behind done records that are not durable yet.
        self._done_ends: dict[BatchKey, int] = {}

    def finished(self, key: BatchKey, end: int) -> None:
        """A done record ends at log offset `end`."""
        self._done_ends[key] = end
        self._store.sync_soon()

    def wait(
        self,
        connection: Connection,
        command: Command,
        key: BatchKey,
        end: int | None,
        wait_s: float,
        *,
        existed: bool,
    ) -> None:
        """Answer when the intent ending at `end` is durable, or the batch done."""
        if len(self._waiting) >= MAX_WAITING:
            raise BadRequest(
                ResponseCode.SYSTEM_BUSY, f"{len(self._waiting)} requests wait for batches"
            )
        keep_for_answer(command)
        deadline = self._clock() + wait_s
        self._waiting.append(
            _WaitingAnswer(connection, command, key, end, existed, deadline, perf_counter())
        )
        self._store.sync_soon()
        self.send_ready()

    def state(self, key: BatchKey) -> str:
        """As the table says; DONE not before that is durable."""
        state = self._table.state(key)
        return OPEN if state == DONE and key in self._done_ends else state

    def send_ready(self) -> None:
        """Send the answers that need not wait any longer."""
        durable = self._store.durable
        for key, end in list(self._done_ends.items()):
            if end <= durable:
                del self._done_ends[key]
        if self._done_ends:
            self._store.sync_soon()
        if not self._waiting:
            return
        now = self._clock()
        left: list[_WaitingAnswer] = []
        for one in self._waiting:
            is_done = self.state(one.key) != OPEN
            over = is_done if one.end is None else one.end <= durable
            if over:
                self._send(one, ResponseCode.SUCCESS)
            elif one.deadline <= now:
                late = ResponseCode.FLUSH_DISK_TIMEOUT if one.end is not None else 0
                self._send(one, late)
            else:
                left.append(one)
        self._waiting = left
        if any(one.end is not None for one in left):
            self._store.sync_soon()

    def answer(self, command: Command, key: BatchKey, code: int, *, existed: bool) -> bytes:
        """The frame that tells how a batch stands."""
        intent = self._table.open.get(key)
        state = StageState(self.state(key), existed)
        if intent is not None:
            state.published, state.rows = intent.published, intent.rows
        body = encode_parts(self._table.parts_of(key))
        return encode_response(command, code, None, state.to_ext(), body)

    def _send(self, one: _WaitingAnswer, code: int) -> None:
        took_s = perf_counter() - one.started
        try:
            answer = self.answer(one.command, one.key, code, existed=one.existed)
        except Exception as error:  # noqa: BLE001 - the top of a request; `refusal` logs bugs
            code, remark = refusal(error, one.connection, one.command, self._stats)
            answer = encode_response(one.command, code, remark)
        if code:
            self._stats.request_refused(one.command.code, code, took_s)
        else:
            self._stats.request_served(one.command.code, took_s)
        if not one.command.is_oneway and not one.connection.closed:
            one.connection.write(answer)


class StageRequests:
    """Serves jobs."""

    def __init__(
        self,
        settings: Settings,
        table: StageTable,
        stages: StageLog,
        check: ChunkCheck,
        publisher: Publisher,
        answers: StageAnswers,
        appended: Callable[[], None],
        clock_ms: Callable[[], int],
        bodies: BodyReader,
        *,
        delays: bool,
    ) -> None:
        self._settings = settings
        self._table = table
        self._log = stages
        self._check = check
        self._publisher = publisher
        self._answers = answers
        self._appended = appended
        self._clock_ms = clock_ms
        self._bodies = bodies
        self._delays = delays

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.STAGE_CAPABILITY: self.capability,
            RequestCode.STAGE_CHUNK: self.chunk,
            RequestCode.STAGE_INTENT: self.intent,
            RequestCode.STAGE_STATUS: self.status,
            RequestCode.STAGE_ABORT: self.abort,
        }

    def capability(self, _connection: Connection, command: Command) -> bytes:
        """What this broker takes."""
        settings = self._settings
        capability = StageCapability(
            STAGE_PROTOCOL,
            settings.broker_name,
            settings.max_message_bytes,
            settings.max_message_bytes,
            settings.stage_expiry_ms,
            self._delays,
        )
        return encode_success(command, ext=capability.to_ext())

    # --- chunks -----------------------------------------------------------------------------

    def chunk(self, connection: Connection, command: Command) -> Steps:
        """Store a chunk. It is durable with the intent that names it, not before."""
        header = StageChunkHeader.from_ext(command.ext)
        key = (header.query, header.batch)
        check_batch(*key)
        check_stage(header.stage)
        if min(header.partition, header.chunk, header.rows - 1) < 0:
            raise BadRequest.system_error("partition, chunk or rows is negative")
        if chunk_crc(command.body) != header.crc:
            raise BadRequest.illegal_message("the chunk's checksum does not fit its bytes")
        checked = False
        while self._is_wanted(header, len(command.body)):
            if checked:
                born_ms = self._clock_ms()
                self._log.chunk(header, command.body, born_ms, connection.packed_peer)
                self._appended()
                break
            creations = yield from self._check.check(command.body, header.rows)
            for creation in creations:
                yield creation
                creation.result()
            # Begin again when topics were made: they may have changed meanwhile, as the stage may.
            checked = not creations
        return encode_success(command)

    def _is_wanted(self, header: StageChunkHeader, size: int) -> bool:
        """Whether the chunk is to be stored. Raises BadRequest if it cannot be."""
        stage = self._table.stages.get(header.stage)
        key = (header.query, header.batch)
        given_up = self._table.state(key) != NONE or header.stage in self._table.dropped
        if self._is_known(stage, header) or given_up:
            return False
        self._check_room(size)
        return True

    def _is_known(self, stage: Stage | None, header: StageChunkHeader) -> bool:
        """Whether the chunk is there. Raises BadRequest if it cannot belong to its stage."""
        if stage is None:
            return False
        if stage.key != (header.query, header.batch) or stage.partition != header.partition:
            raise BadRequest(ResponseCode.STAGE_CLOSED, f"stage {stage.name} is one of {stage.key}")
        chunk = stage.chunks.get(header.chunk)
        if chunk is not None and chunk.crc == header.crc:
            return True
        if chunk is not None or self._table.is_named(stage):
            raise BadRequest(
                ResponseCode.STAGE_CLOSED,
                f"stage {stage.name} takes no other chunk {header.chunk}",
            )
        return False

    def _check_room(self, size: int) -> None:
        limit = self._settings.stage_max_bytes
        if size > self._settings.max_message_bytes:
            raise BadRequest.illegal_message(
                f"the chunk has {size} bytes, {self._settings.max_message_bytes} (maxMessageSize) "
                "are allowed"
            )
        if self._table.staged_bytes + size > limit or self._table.chunks >= MAX_CHUNKS:
            raise BadRequest(
                ResponseCode.SYSTEM_BUSY,
                f"{self._table.staged_bytes} bytes in {self._table.chunks} chunks are staged, the "
                f"limits are {limit} (stage.max_bytes) and {MAX_CHUNKS}; try again when batches "
                "were committed or aborted",
            )

    # --- batches ----------------------------------------------------------------------------

    def intent(self, connection: Connection, command: Command) -> Steps:
        """Decide a batch, unless it is decided; answered when the decision is durable."""
        key = _key_of(command)
        parts = yield from self._bodies.read(decode_parts, command.body)
        existed = not (yield from self._decided(key, tuple(parts)))
        intent = self._table.open.get(key)
        end = None if intent is None else intent.end
        self._answers.wait(
            connection,
            command,
            key,
            end,
            self._settings.sync_flush_timeout_ms / 1000,
            existed=existed,
        )
        return None

    def _decided(self, key: BatchKey, parts: tuple[StagePart, ...]) -> Generator[None, None, bool]:
        """Decide a batch, in steps; False when that was done before."""
        table = self._table
        while table.state(key) == NONE:
            decision = Decision(key, parts)
            yield from table.look(decision)
            yield from self._check_parts(decision)
            if not table.stands(decision):
                continue  # what was found good has changed since: it is looked at again
            self._log.intent(decision)
            self._appended()
            self._publisher.add(table.open[key])
            log.info("batch decided query=%s batch=%d stages=%d", *key, len(parts))
            yield from table.drop_unnamed(key)
            return True
        return False

    def _check_parts(self, decision: Decision) -> Generator[None, None, None]:
        if len(decision.names) != len(decision.parts):
            raise BadRequest.system_error("the intent names a stage twice")
        for some in in_steps(decision.parts):
            if self._table.state(decision.key) != NONE:
                return  # another intent has decided it, and given up what that does not name
            for part in some:
                problem = self._problem_with(decision.key, part)
                if problem is not None:
                    raise BadRequest(
                        ResponseCode.STAGE_INCOMPLETE,
                        f"stage {part.stage} of partition {part.partition}: {problem}",
                    )
            yield None

    def _problem_with(self, key: BatchKey, part: StagePart) -> str | None:
        if part.stage in self._table.dropped:
            return "it was given up"
        if part.broker != self._settings.broker_name:
            return None
        stage = self._table.stages.get(part.stage)
        if stage is None or stage.key != key:
            return (
                "it is not here: it was given up, has expired, or was lost in a power cut; the "
                "batch has to be written again"
            )
        return stage.what_is_missing(part)

    def status(self, connection: Connection, command: Command) -> bytes | None:
        """How a batch stands; waits for DONE as long as asked for."""
        header = StageBatchHeader.from_ext(command.ext)
        key = _key_of(command)
        if header.wait_ms <= 0 or self._answers.state(key) != OPEN:
            return self._answers.answer(command, key, ResponseCode.SUCCESS, existed=True)
        wait_s = min(header.wait_ms / 1000, _MAX_WAIT_S)
        self._answers.wait(connection, command, key, None, wait_s, existed=True)
        return None

    def abort(self, _connection: Connection, command: Command) -> Steps:
        """Give stages up that no intent names. Many are several records, each with what it changes:
        so an intent that comes between finds each stage given up, in the log too, or there."""
        key = _key_of(command)
        names = yield from self._bodies.read(decode_names, command.body)
        table = self._table
        if table.state(key) == NONE:
            for some in in_steps(names):
                self._known_of(key, some)
                yield None
            for some in in_steps(names):
                known = self._known_of(key, some)
                if known and table.state(key) == NONE:
                    self._log.drop(key, known)
                    self._appended()
                yield None
        return self._answers.answer(
            command, key, ResponseCode.SUCCESS, existed=table.state(key) != NONE
        )

    def _known_of(self, key: BatchKey, names: list[str]) -> list[str]:
        """Those that are not given up yet. Raises `BadRequest` for one of another batch."""
        known = [name for name in names if name not in self._table.dropped]
        for name in known:
            stage = self._table.stages.get(name)
            if stage is not None and stage.key != key:
                raise BadRequest.system_error(f"stage {name} is one of {stage.key}")
        return known

    # --- housekeeping -----------------------------------------------------------------------

    def expire(self) -> None:
        """Give up stages that nothing was added to for as long as the settings say."""
        names = self._table.silent(self._clock_ms() - self._settings.stage_expiry_ms)
        by_key: dict[BatchKey, list[str]] = {}
        for name in names:
            by_key.setdefault(self._table.stages[name].key, []).append(name)
        for key, expired in by_key.items():
            self._log.drop(key, expired)
            log.warning("stages expired query=%s batch=%d stages=%d", *key, len(expired))
        if names:
            self._appended()


def _key_of(command: Command) -> BatchKey:
    header = StageBatchHeader.from_ext(command.ext)
    check_batch(header.query, header.batch)
    return header.query, header.batch
