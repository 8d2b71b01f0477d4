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
intent that is not durable FLUSH_DISK_TIMEOUT, and both may be asked for again. An intent that waits
while the store breaks is answered SERVICE_NOT_AVAILABLE.

Loop thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable
from itertools import islice

from aerobee.access.control import AccessControl
from aerobee.broker.appending.appending import Appending
from aerobee.broker.background.loop_workers import BodyReader
from aerobee.broker.routing.router import Handler
from aerobee.broker.second_step.second_step import SecondStep
from aerobee.broker.staging.answers import StageAnswers
from aerobee.broker.staging.finished import BatchKey
from aerobee.broker.staging.publish import Publisher
from aerobee.broker.staging.rows import ChunkCheck
from aerobee.broker.staging.stage_log import StageLog
from aerobee.broker.staging.stage_table import (
    OPEN_SHARE,
    STAGES_SHARE,
    Decision,
    Stage,
    StageTable,
    in_steps,
)
from aerobee.broker.tables.topics import TopicTable
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.command import Command, encode_success
from aerobee.protocol.headers.stages import (
    NONE,
    OPEN,
    STAGE_PROTOCOL,
    StageBatchHeader,
    StageCapability,
    StageChunkHeader,
    StagePart,
    check_batch,
    check_stage,
    chunk_crc,
    decode_names,
    decode_parts,
)
from aerobee.remoting.connections.connection import Connection
from aerobee.remoting.turns import Steps

log = logging.getLogger("aerobee.broker.stages")

# A status request waits this long at most, whatever it asks for.
_MAX_WAIT_S = 30.0


class StageRequests:
    """Serves jobs."""

    def __init__(
        self,
        appending: Appending,
        *,
        table: StageTable,
        stages: StageLog,
        check: ChunkCheck,
        publisher: Publisher,
        answers: StageAnswers,
        bodies: BodyReader,
        topics: TopicTable,
        control: AccessControl | None,
        delays: bool,
        second_step: SecondStep,
    ) -> None:
        """Without `control` everybody may do everything."""
        self._settings = appending.settings
        self._table = table
        self._log = stages
        self._check = check
        self._publisher = publisher
        self._answers = answers
        self._reput = appending.reput
        self._clock_ms = appending.clock_ms
        self._bodies = bodies
        self._topics = topics
        self._control = control
        self._delays = delays
        self._second_step = second_step

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.STAGE_CAPABILITY: self.capability,
            RequestCode.STAGE_CHUNK: self.chunk,
            RequestCode.STAGE_INTENT: self.intent,
            RequestCode.STAGE_STATUS: self.status,
            RequestCode.STAGE_ABORT: self.abort,
        }

    def capability(self, _connection: Connection, command: Command) -> bytes:
        """Answer with the limits of this broker."""
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
        self._table.finished.check_remembered(*key)
        checked = False
        topics: set[str] = set()
        while self._is_wanted(header, len(command.body), topics):
            if checked:
                born_ms = self._clock_ms()
                self._log.chunk(header, command.body, topics, born_ms, connection.packed_peer)
                self._reput.appended()
                break
            creations = yield from self._check.check(command.body, header.rows, topics)
            for creation in creations:
                yield creation
                creation.result()
            # Begin again when topics were made: they may have changed meanwhile, as the stage may.
            checked = not creations
        return encode_success(command)

    def _is_wanted(self, header: StageChunkHeader, size: int, topics: Iterable[str]) -> bool:
        """Whether the chunk is to be stored. Raises BadRequest if it cannot be."""
        stage = self._table.stages.get(header.stage)
        key = (header.query, header.batch)
        given_up = self._table.state(key) != NONE or self._table.is_dropped(header.stage)
        if self._is_known(stage, header) or given_up:
            return False
        self._check_room(size)
        self._check_memory(self._table.chunk_memory(header.stage, topics), STAGES_SHARE)
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
                ResponseCode.STAGE_CLOSED, f"stage {stage.name} takes no other chunk {header.chunk}"
            )
        return False

    def _check_room(self, size: int) -> None:
        limit = self._settings.stage_max_bytes
        if size > self._settings.max_message_bytes:
            raise BadRequest.illegal_message(
                f"the chunk has {size} bytes, {self._settings.max_message_bytes} (maxMessageSize) "
                "are allowed"
            )
        if self._table.staged_bytes + size > limit:
            raise BadRequest(
                ResponseCode.SYSTEM_BUSY,
                f"{self._table.staged_bytes} bytes in {self._table.chunks} chunks are staged, the "
                f"limit is {limit} (stage.max_bytes); try again when batches were committed or "
                "aborted",
            )

    def _check_memory(self, memory: int, share: float) -> None:
        """Raises BadRequest where stages and open intents would take more than their share."""
        room = int(self._settings.stage_state_bytes * share)
        if self._table.bytes + memory > room:
            raise BadRequest(
                ResponseCode.SYSTEM_BUSY,
                f"what is known of staged chunks and open batches takes {self._table.bytes} bytes, "
                f"with this it would be {self._table.bytes + memory} of {room} ({share} of "
                "limits.stage_state_bytes); try again when batches were published or aborted, or "
                "stage larger chunks",
            )

    # --- batches ----------------------------------------------------------------------------

    def intent(self, connection: Connection, command: Command) -> Steps:
        """Decide a batch, unless it is decided; answered when the decision is durable."""
        key = self._key_of(command)
        is_first = StageBatchHeader.from_ext(command.ext).first
        self._check_sender(connection, command)
        parts = yield from self._bodies.read(decode_parts, command.body)
        decided = self._decided(key, tuple(parts), connection, command, is_first=is_first)
        existed = not (yield from decided)
        intent, answers = self._table.open.get(key), self._answers
        if command.is_oneway:
            return answers.answer(command, key, ResponseCode.SUCCESS, existed=existed)
        if intent is not None:
            answers.wait_intent(connection, command, key, intent.end, existed=existed)
        else:
            wait_s = self._settings.sync_flush_timeout_ms / 1000
            answers.wait_done(connection, command, key, wait_s, existed=existed)
        return None

    def _decided(
        self,
        key: BatchKey,
        parts: tuple[StagePart, ...],
        connection: Connection,
        command: Command,
        *,
        is_first: bool,
    ) -> Generator[None, None, bool]:
        """Decide a batch, in steps; False when that was done before."""
        table = self._table
        while table.state(key) == NONE:
            decision = Decision(key, parts)
            yield from table.look(decision)
            yield from self._check_parts(decision)
            if is_first:
                yield from self._check_deleted(decision)
            yield from self._check_topics(connection, command, sorted(decision.topics))
            if not table.stands(decision):
                continue  # what was found good has changed since: it is looked at again
            self._check_memory(decision.memory, OPEN_SHARE)
            self._log.intent(decision)
            self._reput.appended()
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

    def _check_deleted(self, decision: Decision) -> Generator[None, None, None]:
        """Raises BadRequest if rows would be dropped because their topic was deleted since their
        stage was begun. Not where another broker has decided the batch: it has to be carried out,
        and they are dropped, counted and named (`publish.py`)."""
        for stage in decision.own.values():
            # The first that came is the oldest.
            for chunk in islice(stage.chunks.values(), 1):
                for topic in stage.topics:
                    if self._second_step.is_deleted(topic, chunk.log_offset):
                        raise BadRequest(
                            ResponseCode.STAGE_INCOMPLETE,
                            f"stage {stage.name} of partition {stage.partition}: the "
                            f"topic[{topic}], to which rows of it go, was deleted since it was "
                            "begun; the batch has to be written again, to topics that there are",
                        )
            yield None

    def _problem_with(self, key: BatchKey, part: StagePart) -> str | None:
        if self._table.is_dropped(part.stage):
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
        key = self._key_of(command)
        self._check_sender(connection, command)
        if header.wait_ms <= 0 or self._answers.state(key) != OPEN:
            return self._answers.answer(command, key, ResponseCode.SUCCESS, existed=True)
        wait_s = min(header.wait_ms / 1000, _MAX_WAIT_S)
        self._answers.wait_done(connection, command, key, wait_s, existed=True)
        return None

    def abort(self, connection: Connection, command: Command) -> Steps:
        """Give stages up that no intent names. Many are several records, each with what it changes:
        so an intent that comes between finds each stage given up, in the log too, or there.

        All are judged before the first is dropped, and each again in the turn that drops it: a
        stage may have begun since, or have got rows for another topic."""
        key = self._key_of(command)
        self._check_sender(connection, command)
        names = yield from self._bodies.read(decode_names, command.body)
        table = self._table
        judged: set[str] = set()
        if table.state(key) == NONE:
            for some in in_steps(names):
                yield from self._judge(connection, command, key, some, judged)
                yield None
            for some in in_steps(names):
                yield from self._judge(connection, command, key, some, judged)
                known = self._known_of(key, some)
                if known and table.state(key) == NONE:
                    self._log.drop(key, known)
                    self._reput.appended()
                yield None
        return self._answers.answer(
            command, key, ResponseCode.SUCCESS, existed=table.state(key) != NONE
        )

    def _judge(
        self,
        connection: Connection,
        command: Command,
        key: BatchKey,
        names: list[str],
        judged: set[str],
    ) -> Generator[None, None, None]:
        """Check the right to give these stages up as they are at its end; `judged` are the topics
        that were checked. Raises AccessDenied, BadRequest."""
        while topics := self._topics_of(key, names) - judged:
            yield from self._check_topics(connection, command, sorted(topics))
            judged |= topics

    def _topics_of(self, key: BatchKey, names: list[str]) -> set[str]:
        stages = [self._table.stages.get(name) for name in self._known_of(key, names)]
        return {topic for stage in stages if stage is not None for topic in stage.topics}

    def _known_of(self, key: BatchKey, names: list[str]) -> list[str]:
        """Those that are not given up yet. Raises `BadRequest` for one of another batch."""
        known = [name for name in names if not self._table.is_dropped(name)]
        for name in known:
            stage = self._table.stages.get(name)
            if stage is not None and stage.key != key:
                raise BadRequest.system_error(f"stage {name} is one of {stage.key}")
        return known

    # --- who may ----------------------------------------------------------------------------

    def _check_sender(self, connection: Connection, command: Command) -> None:
        """Batches are of those who may send to some topic. Raises AccessDenied."""
        if self._control is not None:
            self._control.check_sends_somewhere(command, connection.peer[0])

    def _check_topics(
        self, connection: Connection, command: Command, topics: list[str]
    ) -> Generator[None, None, None]:
        """The right to send to all topics of the stages that a request names, in steps: they were
        staged by somebody, perhaps somebody else. Raises AccessDenied; BadRequest for a topic that
        is not there any more, whose rights nobody can tell."""
        if self._control is None:
            return
        for some in in_steps(topics):
            for topic in some:
                if self._topics.get(topic) is None:
                    raise BadRequest(
                        ResponseCode.TOPIC_NOT_EXIST,
                        f"the topic[{topic}], to which staged rows go, is not there any more",
                    )
                self._control.check_send(command, connection.peer[0], topic)
            yield None

    # --- housekeeping -----------------------------------------------------------------------

    def expire_some(self) -> bool:
        """Give up some stages that nothing was added to for as long as the settings say, and forget
        some finished batches; whether there may be more. Raises StoreError."""
        more = self._table.finished.forget_old()
        silent = self._table.silent(self._clock_ms() - self._settings.stage_expiry_ms)
        if silent:
            key = silent[0].key
            self._log.drop(key, [stage.name for stage in silent])
            self._reput.appended()
            log.warning("stages expired query=%s batch=%d stages=%d", *key, len(silent))
        return more or bool(silent)

    def _key_of(self, command: Command) -> BatchKey:
        """The batch that a request is about. Raises BadRequest for an illegal name, or a batch that
        is forgotten."""
        header = StageBatchHeader.from_ext(command.ext)
        check_batch(header.query, header.batch)
        self._table.finished.check_remembered(header.query, header.batch)
        return header.query, header.batch
