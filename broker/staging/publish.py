"""Publishes what intents have decided: staged rows become messages of their topics, each once.

Rows are put in slices. A slice is a record of the stage log ("rows 512 to 767 of this stage
follow") and its rows right after it, all in one turn of the loop, so that no other records come
between. That makes progress exact without a second write: a start counts what is in the log and
goes on.

One slice is one turn; queries take turns, batches of one query go in order. A row that the store
does not take now (a full disk) is tried again; a row it will never take (the limits were lowered
since it was staged) and a damaged chunk are passed over, named in the log and counted.

At a start, how far publishing has got follows from the log alone. A kill or a power cut leaves a
beginning of what was put: the records after a stage's last slice mark are the rows that were put
of that slice, as many as a kill has left, and all rows before the slice are in the log because the
mark is.

Where the log has been damaged since, records of some of those rows are no longer usable. Then every
row is looked for from the first open intent on, and those that are not found are put again: no
consumer can have got a damaged record. Recovery begins where all was synced, so this part of the
log is checked once more. The store remembers its gaps, so the next start does the same, and nothing
has to be noted meanwhile.

The queues of a run, and whether its topic is still the topic that was staged for, are asked again
when its rows are put (second_step/second_step.py). So a row's record is known again by what it
holds; of rows that hold the same, each takes a record of its own queue first, and a record of
another queue only where its own has fallen away and no other row took that record. Rows that are
dropped have no record, as those that are passed over.

Loop thread only.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import groupby, takewhile
from typing import NamedTuple

from msgspec.structs import replace

from aerobee.broker.appending.appending import Appending
from aerobee.broker.delay.delay_service import ScheduleMessageService
from aerobee.broker.messages.compiled_requests import CompiledRequests
from aerobee.broker.second_step.second_step import SecondStep
from aerobee.broker.staging.answers import StageAnswers
from aerobee.broker.staging.rows import DELAY_ENTRY, has_entry, publish_form, rows_of
from aerobee.broker.staging.stage_log import StageLog
from aerobee.broker.staging.stage_table import Chunk, Intent, Stage, StageTable
from aerobee.protocol.errors import BadRequest, CorruptRecord
from aerobee.protocol.headers.stages import Run, decode_chunk
from aerobee.protocol.message.properties import (
    PROPERTY_DELAY,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_UNIQUE_KEY,
    decode_properties,
)
from aerobee.protocol.message.record import Message, StoreMessage, decode_record
from aerobee.protocol.message.record_layout import pack_host
from aerobee.protocol.names import SCHEDULE_TOPIC
from aerobee.store.errors import (
    MessageIllegal,
    PropertiesTooLarge,
    StoreBroken,
    StoreClosed,
    StoreError,
)
from aerobee.store.message_store import MessageStore
from aerobee.store.reading.delayed_messages import asked_level

log = logging.getLogger("aerobee.broker.stages")

# A slice is one turn of the loop: some 2 ms, for which sends have to wait.
_SLICE_ROWS = 256
_SLICE_BYTES = 256 * 1024
# Rows of a queue that are put together: what the compiled form takes at once.
_PIECE_ROWS = 127
_RETRY_S = 0.2


class _Piece(NamedTuple):
    """Rows of a slice that follow each other in one run: `skip` rows of it lie before them, `first`
    is the number of the first in its chunk."""

    run: Run
    skip: int
    rows: int
    first: int


class _OpenChunk:
    """The chunk that rows are taken from. Raises BadRequest for a broken chunk."""

    def __init__(self, log_offset: int, chunk: Message, cluster: str, store_host: bytes) -> None:
        self.log_offset = log_offset
        self.born_ms = chunk.born_timestamp_ms
        self.born_host = pack_host(*chunk.born_host)
        self._chunk = chunk
        self._cluster = cluster
        self._store_host = store_host
        self.runs = decode_chunk(chunk.body)
        self.rows = sum(run.rows for run in self.runs)

    @cached_property
    def messages(self) -> list[StoreMessage]:
        """All rows as they are published."""
        return [
            publish_form(row, self._chunk, self._cluster, self._store_host)
            for row in rows_of(self._chunk.body)
        ]

    def slice(self, start: int) -> list[_Piece]:
        """Where the rows of the slice that begins with row `start` lie."""
        pieces: list[_Piece] = []
        first, rows_left, bytes_left = 0, _SLICE_ROWS, _SLICE_BYTES
        for run in self.runs:
            mean = len(run.body) // run.rows + 1
            skip = max(0, start - first)
            while skip < run.rows:
                rows = min(run.rows - skip, rows_left, bytes_left // mean, _PIECE_ROWS)
                if rows < 1 and pieces:
                    return pieces
                pieces.append(_Piece(run, skip, max(1, rows), first + skip))
                skip += pieces[-1].rows
                rows_left -= pieces[-1].rows
                bytes_left -= pieces[-1].rows * mean
            first += run.rows
        return pieces


class Publisher:
    """The publisher of one broker. `finished` is called with each done record: batch, log offset
    after it."""

    def __init__(
        self,
        appending: Appending,
        *,
        loop: asyncio.AbstractEventLoop,
        stages: StageLog,
        table: StageTable,
        answers: StageAnswers,
        second_step: SecondStep,
        delays: ScheduleMessageService | None,
        compiled: CompiledRequests | None,
    ) -> None:
        self._loop = loop
        self._second_step = second_step
        self._store = appending.store
        self._stages = stages
        self._table = table
        self._stats = appending.stats
        self._reput = appending.reput
        self._cluster = appending.settings.cluster_name
        self._store_host = appending.identity.store_host
        self._answers = answers
        # Without it no chunk with a delayed row was taken.
        self._delays = delays
        self._turns: dict[str, deque[Intent]] = {}
        self._chunk: _OpenChunk | None = None
        self._timer: asyncio.Handle | None = None
        self._running = False
        self._compiled = compiled
        self.published_rows = 0
        self.lost_rows = 0

    def start(self) -> None:
        """Go on with what was open when the broker ended."""
        self._running = True
        intents = list(self._table.open.values())
        count_published(self._store, intents, self._load, self._second_step.queue_of_rows)
        for intent in self._table.open.values():
            self._check_all_there(intent)
            intent.next_stage()
            log.warning(
                "batch is published further query=%s batch=%d rows=%d published=%d",
                *intent.key, intent.rows, intent.published,
            )  # fmt: skip
            self.add(intent)

    def stop(self) -> None:
        """Publish nothing more; the next start goes on."""
        self._running = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def clear(self) -> None:
        """Publish nothing more, and forget what was open: another broker publishes it."""
        self.stop()
        self._turns.clear()
        self._chunk = None

    def add(self, intent: Intent) -> None:
        """Publish a batch. Does nothing before `start`, which adds all that are open."""
        if not self._running:
            return
        self._turns.setdefault(intent.key[0], deque()).append(intent)
        self._schedule()

    def _schedule(self, after_s: float = 0.0) -> None:
        if self._timer is not None or not self._turns or not self._running:
            return
        if after_s:
            self._timer = self._loop.call_later(after_s, self._turn)
        else:
            self._timer = self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._timer = None
        query, waiting = next(iter(self._turns.items()))
        intent = waiting[0]
        # After the others, whether it has got on or not.
        del self._turns[query]
        self._turns[query] = waiting
        pause_s = 0.0
        try:
            if not self._is_readable(intent):
                pause_s = _RETRY_S
            elif self._advance(intent):
                waiting.popleft()
                if not waiting:
                    del self._turns[query]
        except (StoreBroken, StoreClosed) as error:
            log.error("publishing waits for a restart why=%s", error)
            self.stop()
        except StoreError as error:
            log.warning("publishing will be tried again query=%s why=%s", query, error)
            pause_s = _RETRY_S
        self._schedule(pause_s)

    def _is_readable(self, intent: Intent) -> bool:
        """Whether its stages can be read: with a transient pool they may be on their way."""
        return intent.end <= self._store.committed and self._store.not_writable_reason() is None

    def _advance(self, intent: Intent) -> bool:
        """Publish a slice, or close the batch: True. Raises StoreError."""
        stage = intent.next_stage()
        if stage is not None:
            if stage.missing:
                self._put_missing(stage)
            else:
                self._put_slice(stage)
            self._reput.appended()
            return False
        result = self._stages.done(intent.key)
        self._reput.appended()
        self._answers.finished(intent.key, result.end)
        log.info("batch published query=%s batch=%d rows=%d", *intent.key, intent.published)
        return True

    # --- one slice --------------------------------------------------------------------------

    def _put_slice(self, stage: Stage) -> None:
        place, first = stage.chunk_at(stage.published)
        chunk = self._open(place)
        if chunk is None:
            self._pass_over(stage, first + place.rows - stage.published, "its chunk is lost")
            return
        pieces = chunk.slice(stage.published - first)
        alive = list(takewhile(lambda piece: not self._is_deleted(chunk, piece), pieces))
        if not alive:
            self._drop_rows(stage, chunk, pieces[0])
            return
        # Dropped rows end a slice, as rows that are passed over do (`_put_run`).
        self._stages.slice(stage, stage.published, sum(piece.rows for piece in alive))
        for piece in alive:
            if not self._put_piece(stage, chunk, piece):
                return

    def _put_piece(self, stage: Stage, chunk: _OpenChunk, piece: _Piece) -> bool:
        """Put the rows of a piece where they go now. False as `_put_run`."""
        run, published, lost = piece.run, stage.published, stage.lost
        queue_id = self._second_step.queue_of_rows(run.topic, run.queue_id)
        try:
            return self._put_plain(stage, chunk, piece, queue_id) or self._put_rows(
                stage, chunk, piece, queue_id
            )
        finally:
            # The rows before the row that the store did not take, without those that were passed
            # over.
            put = stage.published - published - (stage.lost - lost)
            self._second_step.rows_stored(run.topic, run.queue_id, queue_id, put, stage.name)

    def _is_deleted(self, chunk: _OpenChunk, piece: _Piece) -> bool:
        return self._second_step.is_deleted(piece.run.topic, chunk.log_offset)

    def _drop_rows(self, stage: Stage, chunk: _OpenChunk, piece: _Piece) -> None:
        """The rows of a piece go nowhere: their topic was deleted since they were staged."""
        topic = piece.run.topic
        self._second_step.rows_dropped(topic, chunk.log_offset, piece.rows, stage.name)
        stage.published += piece.rows

    def _put_rows(self, stage: Stage, chunk: _OpenChunk, piece: _Piece, queue_id: int) -> bool:
        """Put the rows of a piece into a queue. False as `_put_run`, which puts them."""
        rows = chunk.messages[piece.first : piece.first + piece.rows]
        for (waits, *_), group in groupby(rows, key=_run_of):
            # A batch cannot hold delayed messages.
            together = [_in_queue(row, queue_id) for row in group]
            runs = [[row] for row in together] if waits else [together]
            if not all(self._put_run(stage, run) for run in runs):
                return False
        return True

    def _put_plain(self, stage: Stage, chunk: _OpenChunk, piece: _Piece, queue_id: int) -> bool:
        """Put the rows of a piece by the compiled form; False: it does not take them."""
        if self._compiled is None:
            return False
        run = piece.run
        put = self._compiled.put_rows(
            run.topic, queue_id, run.body, piece.skip, piece.rows, chunk.born_ms, chunk.born_host
        )
        assert put in (0, piece.rows), put
        stage.published += put
        self.published_rows += put
        return put > 0

    def _put_run(self, stage: Stage, rows: list[StoreMessage]) -> bool:
        """Put rows of one queue. False if one was passed over: that ends the slice, because what
        follows a slice's mark in the log has to be its rows without a gap."""
        try:
            self._put(rows)
        except (MessageIllegal, PropertiesTooLarge) as error:
            if len(rows) > 1:
                return all(self._put_run(stage, [row]) for row in rows)
            self._pass_over(stage, 1, str(error))
            return False
        stage.published += len(rows)
        return True

    def _put_missing(self, stage: Stage) -> None:
        """Put the first of the rows that a gap of the log has taken, or pass over all of its chunk.
        It has no mark: a start after a gap looks for every row."""
        row = stage.missing[0]
        place, first = stage.chunk_at(row)
        chunk = self._open(place)
        if chunk is None:
            rows = sum(1 for _ in takewhile((first + place.rows).__gt__, stage.missing))
            self._lose(stage, row, rows, "its chunk is lost")
            for _ in range(rows):
                stage.missing.popleft()
            return
        try:
            self._put_one(stage, chunk, chunk.messages[row - first])
        except (MessageIllegal, PropertiesTooLarge) as error:
            self._lose(stage, row, 1, str(error))
        stage.missing.popleft()

    def _put_one(self, stage: Stage, chunk: _OpenChunk, row: StoreMessage) -> None:
        second_step, topic, asked_for = self._second_step, row.topic, row.queue_id
        if second_step.is_deleted(topic, chunk.log_offset):
            second_step.rows_dropped(topic, chunk.log_offset, 1, stage.name)
            return
        queue_id = second_step.queue_of_rows(topic, asked_for)
        self._put([_in_queue(row, queue_id)])
        second_step.rows_stored(topic, asked_for, queue_id, 1, stage.name)

    def _put(self, rows: list[StoreMessage]) -> None:
        if is_delayed(rows[0]) and self._delays is not None:
            result = self._delays.put(rows[0])
        else:
            result = (
                self._store.log.put_batch(rows) if len(rows) > 1 else self._store.log.put(rows[0])
            )
        self.published_rows += len(rows)
        first = rows[0]
        self._stats.stored(self._stats.topic(first.topic), len(rows), result.size, first.queue_id)

    def _open(self, place: Chunk) -> _OpenChunk | None:
        """The chunk that lies there; None if it cannot be read."""
        if self._chunk is None or self._chunk.log_offset != place.log_offset:
            self._chunk = self._read(place)
        return self._chunk

    def _load(self, place: Chunk) -> list[StoreMessage] | None:
        """The messages of a chunk; None if it cannot be read."""
        chunk = self._read(place)
        return None if chunk is None else chunk.messages

    def _read(self, place: Chunk) -> _OpenChunk | None:
        record = self._store.reader.record_at(place.log_offset)
        if record is None:
            return None
        try:
            chunk = decode_record(record)
            found = _OpenChunk(place.log_offset, chunk, self._cluster, self._store_host)
            rows = found.rows if self._is_plain(found) else len(found.messages)
        except (CorruptRecord, BadRequest):
            return None
        return found if rows == place.rows else None

    def _is_plain(self, chunk: _OpenChunk) -> bool:
        """Whether its rows are what its runs announce; if not, they are looked at singly."""
        plain_rows = None if self._compiled is None else self._compiled.plain_rows
        return plain_rows is not None and all(
            plain_rows(run.body, len(run.body), len(run.body)) == run.rows for run in chunk.runs
        )

    def _pass_over(self, stage: Stage, rows: int, reason: str) -> None:
        self._lose(stage, stage.published, rows, reason)
        stage.published += rows

    def _lose(self, stage: Stage, first: int, rows: int, reason: str) -> None:
        log.error(
            "staged rows lost query=%s batch=%d partition=%d stage=%s first=%d rows=%d reason=%s",
            *stage.key, stage.partition, stage.name, first, rows, reason,
        )  # fmt: skip
        stage.lost += rows
        self.lost_rows += rows

    # --- after a start ----------------------------------------------------------------------

    def _check_all_there(self, intent: Intent) -> None:
        here = sum(stage.rows for stage in intent.stages)
        if here < intent.rows:
            log.error(
                "staged rows lost query=%s batch=%d rows=%d reason=their stages are not in the "
                "log any more; the broker was down for longer than fileReservedTime, or its disk "
                "was full", *intent.key, intent.rows - here,
            )  # fmt: skip
            self.lost_rows += intent.rows - here


def _in_queue(row: StoreMessage, queue_id: int) -> StoreMessage:
    return row if row.queue_id == queue_id else replace(row, queue_id=queue_id)


def _run_of(message: StoreMessage) -> tuple[bool, str, int]:
    return is_delayed(message), message.topic, message.queue_id


#: The messages of a chunk; None if it cannot be read.
Load = Callable[[Chunk], list[StoreMessage] | None]

#: The queue that rows staged for one of a topic go to now.
QueueNow = Callable[[str, int], int]

#: Whether it waits, topic, flag, body, unique id.
RowIdentity = tuple[bool, str, int, bytes, str | None]
# The hash of a content, and a queue.
_Place = tuple[int, str]


def count_published(
    store: MessageStore, intents: Sequence[Intent], load: Load, queue_now: QueueNow
) -> None:
    """Set `published` and `missing` of the stages of these intents, which are open."""
    if not intents:
        return
    begin = min(intent.end for intent in intents)
    store.look_for_damage(begin)
    gaps = [gap for gap in store.known_gaps if gap[1] > begin]
    stages = [stage for intent in intents for stage in intent.stages]
    if not gaps:
        for stage in stages:
            _count_last_slice(store, stage, load)
        return
    there = Counter(
        _place_of(decode_record(record)) for record in store.reader.records_from(begin, gaps)
    )
    found = [_own_rows(stage, there, load, queue_now) for stage in stages]
    # Records that are left are in other queues than their rows were staged for.
    elsewhere: Counter[int] = Counter()
    for (identity, _), count in there.items():
        elsewhere[identity] += count
    for stage, rows in zip(stages, found, strict=True):
        _take_stock(stage, rows, elsewhere)


def is_delayed(message: StoreMessage) -> bool:
    """Whether it waits before it is delivered."""
    if not has_entry(message.properties, DELAY_ENTRY):
        return False
    return asked_level(decode_properties(message.properties).get(PROPERTY_DELAY, "")) > 0


def _count_last_slice(store: MessageStore, stage: Stage, load: Load) -> None:
    slice_ = stage.last_slice
    if slice_ is None or slice_.first >= stage.rows:
        return
    place, first = stage.chunk_at(slice_.first)
    messages = load(place)
    if messages is None:
        return
    start = slice_.first - first
    expected = [_identity(message) for message in messages[start : start + slice_.rows]]
    done = 0
    for record in store.reader.records_from(slice_.behind, ()):
        if done == len(expected) or _identity_of(decode_record(record)) != expected[done]:
            break
        done += 1
    stage.published = slice_.first + done


def _own_rows(
    stage: Stage, there: Counter[_Place], load: Load, queue_now: QueueNow
) -> dict[int, int | None]:
    """Take the stage's rows out of `there`, places of what is in the log by how often it is. The
    rows that are not there, by number: hashes of their identities where they may be in another
    queue, else None."""
    absent: dict[int, int | None] = {}
    number = 0
    for index in sorted(stage.chunks):
        chunk = stage.chunks[index]
        messages = load(chunk)
        if messages is None:
            absent |= dict.fromkeys(range(number, number + chunk.rows))
        for at, row in enumerate(messages or (), number):
            one = _place(row)
            if there[one]:
                there[one] -= 1
            else:
                absent[at] = one[0] if _has_moved(row, queue_now) else None
        number += chunk.rows
    return absent


def _has_moved(row: StoreMessage, queue_now: QueueNow) -> bool:
    return queue_now(row.topic, row.queue_id) != row.queue_id


def _take_stock(stage: Stage, absent: dict[int, int | None], elsewhere: Counter[int]) -> None:
    """Set what of a stage is published, and what is missing of that. A row that is not in its own
    queue may be in another one of those in `elsewhere`."""
    missing: list[int] = []
    for number, identity in absent.items():
        if identity is not None and elsewhere[identity] > 0:
            elsewhere[identity] -= 1
        else:
            missing.append(number)
    stage.published = sum(chunk.rows for chunk in stage.chunks.values())
    while missing and missing[-1] == stage.published - 1:
        stage.published = missing.pop()
    stage.missing = deque(missing)


def _place(row: StoreMessage) -> _Place:
    """The hash of a row's content, and the queue that it was staged for."""
    return hash(_identity(row)), str(row.queue_id)


def _identity(message: StoreMessage) -> RowIdentity:
    """The values that identify a row's record. For a delayed row they tell where the row goes, not
    its level: the settings may have had other levels when it was put. They leave the queue out:
    its topic may have had another number of queues."""
    unique = decode_properties(message.properties).get(PROPERTY_UNIQUE_KEY)
    return is_delayed(message), message.topic, message.flag, message.body, unique


def _place_of(message: Message) -> _Place:
    """The hash of a record's content, and the queue that it is in or waits for."""
    queue_id = str(message.queue_id)
    if message.topic == SCHEDULE_TOPIC:
        queue_id = message.properties.get(PROPERTY_REAL_QUEUE_ID, "")
    return hash(_identity_of(message)), queue_id


def _identity_of(message: Message) -> RowIdentity:
    properties = message.properties
    waits = message.topic == SCHEDULE_TOPIC
    topic = properties.get(PROPERTY_REAL_TOPIC, "") if waits else message.topic
    return waits, topic, message.flag, message.body, properties.get(PROPERTY_UNIQUE_KEY)
