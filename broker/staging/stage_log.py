"""The stage log: queue 0 of the topic STAGE_TOPIC, where everything about staged batches lies.

Staged rows, decisions and progress are records of the commit log, like messages, so whatever a
crash leaves is a beginning of what was stored: an intent never outlives a stage it names, nor the
mark of a slice the slice before it. A record's properties say what it is:

| kind   | further properties                      | body                                   |
|--------|-----------------------------------------|----------------------------------------|
| chunk  | query batch partition stage chunk rows crc topics | the rows (`headers/stages.py`) |
| intent | query batch                             | the stages that count, JSON            |
| slice  | query batch stage first rows            | none; the rows follow in the log       |
| done   | query batch                             | those of its stages elsewhere, JSON    |
| drop   | query batch                             | names of stages given up, JSON         |

A chunk whose rows go to too many topics for a property has none of that name, as those of before
there was one: then they are read from its rows.

The topic is in no topic table: clients can neither send to it nor pull from it. Reading at a start
looks at heads and properties only; the rows stay where they are until they are published.

Loop thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from aerobee.broker.staging.finished import BatchKey, LastBatch, parts_bytes
from aerobee.broker.staging.stage_table import Chunk, Decision, Slice, Stage, StageTable
from aerobee.protocol.errors import BadRequest, CorruptRecord
from aerobee.protocol.headers.stages import (
    NONE,
    StageChunkHeader,
    chunk_runs,
    decode_names,
    decode_parts,
    encode_names,
    encode_parts,
)
from aerobee.protocol.message.properties import decode_properties, encode_properties
from aerobee.protocol.message.record import StoreMessage
from aerobee.protocol.message.record_check import CHECK_NOTHING, check_record
from aerobee.protocol.names import STAGE_TOPIC
from aerobee.store.message_store import MessageStore
from aerobee.store.segments.results import GetResult, PutResult

log = logging.getLogger("aerobee.broker.stages")

CHUNK, INTENT, SLICE, DONE, DROP = "chunk", "intent", "slice", "done", "drop"
_QUEUE = 0
_AT_ONCE = 256
# The characters of topics' names in a chunk's properties, which may have 32,767 bytes in all.
_TOPICS_CHARS = 8_000
_BETWEEN_TOPICS = " "
# A record may have no body, but readers do not expect that.
_NO_BODY = b"-"


class Event(NamedTuple):
    """One record of the stage log."""

    queue_offset: int
    log_offset: int
    end: int
    store_ms: int
    body: bytes
    properties: dict[str, str]

    @property
    def key(self) -> BatchKey:
        return self.properties["query"], int(self.properties["batch"])


class StageLog:
    """Puts and reads the records; each put changes the table as reading it again would."""

    def __init__(
        self, store: MessageStore, table: StageTable, host: bytes, clock_ms: Callable[[], int]
    ) -> None:
        self._store = store
        self._table = table
        self._host = host
        self._clock_ms = clock_ms

    @property
    def end(self) -> int:
        """Queue offset after the last visible record."""
        return self._store.max_offset(STAGE_TOPIC, _QUEUE)

    # --- putting: each raises a StoreError, and then nothing was changed --------------------

    def chunk(
        self,
        header: StageChunkHeader,
        body: bytes,
        topics: Iterable[str],
        born_ms: int,
        peer: bytes,
    ) -> PutResult:
        """Store a chunk's rows, which go to these topics."""
        properties = {
            "kind": CHUNK,
            "query": header.query,
            "batch": str(header.batch),
            "partition": str(header.partition),
            "stage": header.stage,
            "chunk": str(header.chunk),
            "rows": str(header.rows),
            "crc": str(header.crc),
        }
        named = _BETWEEN_TOPICS.join(sorted(topics))
        if len(named) <= _TOPICS_CHARS:
            properties["topics"] = named
        result = self._put(properties, body, born_ms, peer)
        self._table.add_chunk(
            (header.query, header.batch),
            header.partition,
            header.stage,
            header.chunk,
            Chunk(result.log_offset, header.rows, header.crc, result.size),
            result.queue_offset,
            result.store_timestamp_ms,
            topics,
        )
        return result

    def intent(self, decision: Decision) -> PutResult:
        """Decide a batch; `StageTable.drop_unnamed` is the caller's."""
        result = self._put(_of_batch(INTENT, decision.key), encode_parts(decision.parts))
        self._table.decide(decision, result.queue_offset, result.end)
        return result

    def slice(self, stage: Stage, first: int, rows: int) -> PutResult:
        """Say that `rows` rows of a stage follow; the caller puts them in the same turn."""
        properties = _of_batch(SLICE, stage.key)
        properties |= {"stage": stage.name, "first": str(first), "rows": str(rows)}
        result = self._put(properties, _NO_BODY)
        self._table.begin_slice(stage.name, Slice(result.end, first, rows))
        return result

    def done(self, key: BatchKey) -> PutResult:
        """Close a batch."""
        intent = self._table.open[key]
        result = self._put(_of_batch(DONE, key), encode_parts(intent.others))
        last = LastBatch(key[1], result.store_timestamp_ms, intent.others, intent.others_bytes)
        self._table.finish(key, last)
        return result

    def drop(self, key: BatchKey, names: Sequence[str]) -> PutResult:
        """Give stages up."""
        result = self._put(_of_batch(DROP, key), encode_names(names))
        self._table.drop(names)
        return result

    def _put(
        self, properties: dict[str, str], body: bytes, born_ms: int = 0, peer: bytes = b""
    ) -> PutResult:
        return self._store.log.put(
            StoreMessage(
                STAGE_TOPIC,
                _QUEUE,
                0,
                0,
                born_ms or self._clock_ms(),
                peer or self._host,
                self._host,
                0,
                0,
                body,
                encode_properties(properties).encode(),
            )
        )

    # --- reading ----------------------------------------------------------------------------

    def replay(self, start: int) -> None:
        """Bring the table to where the records from queue offset `start` on lead."""
        for event in self._events(start):
            try:
                self._apply(event)
            except (BadRequest, KeyError, ValueError) as error:
                log.error(
                    "stage record passed over log_offset=%d reason=%r", event.log_offset, error
                )

    def _apply(self, event: Event) -> None:
        table, values = self._table, event.properties
        kind = values.get("kind")
        if kind == CHUNK:
            if table.state(event.key) == NONE:
                size = event.end - event.log_offset
                chunk = Chunk(event.log_offset, int(values["rows"]), int(values["crc"]), size)
                table.add_chunk(
                    event.key,
                    int(values["partition"]),
                    values["stage"],
                    int(values["chunk"]),
                    chunk,
                    event.queue_offset,
                    event.store_ms,
                    _topics_of(event),
                )
        elif kind == INTENT:
            self._decide(event)
        elif kind == SLICE:
            slice_ = Slice(event.end, int(values["first"]), int(values["rows"]))
            table.begin_slice(values["stage"], slice_)
        elif kind == DONE:
            others = tuple(decode_parts(event.body))
            last = LastBatch(event.key[1], event.store_ms, others, parts_bytes(others))
            table.finish(event.key, last)
        elif kind == DROP:
            table.drop(decode_names(event.body))
        else:
            log.error("stage record of no known kind log_offset=%d", event.log_offset)

    def _decide(self, event: Event) -> None:
        table = self._table
        decision = Decision(event.key, tuple(decode_parts(event.body)))
        for _ in table.look(decision):
            pass
        if table.decide(decision, event.queue_offset, event.end) is not None:
            for _ in table.drop_unnamed(event.key):
                pass

    def _events(self, start: int) -> Iterator[Event]:
        store = self._store
        offset = max(start, store.min_offset(STAGE_TOPIC, _QUEUE))
        while offset < self.end:
            with store.reader.get(STAGE_TOPIC, _QUEUE, offset, _AT_ONCE) as result:
                events = list(_events_in(result))
            yield from events
            if result.next_offset <= offset and not result.pending:
                return
            offset = result.next_offset


def _events_in(result: GetResult) -> Iterator[Event]:
    for view in result.views:
        position = 0
        while position < len(view):
            log_offset = int.from_bytes(view[position + 28 : position + 36], "big")
            try:
                head = check_record(view, position, log_offset, len(view), CHECK_NOTHING)
            except CorruptRecord as error:
                log.error("stage record cannot be read reason=%s", error)
                return
            start = position + head.properties_position
            properties = decode_properties(view[start : start + head.properties_length])
            body = b""
            if properties.get("kind") != CHUNK or "topics" not in properties:
                start = position + head.body_position
                body = bytes(view[start : start + head.body_length])
            yield Event(
                head.queue_offset,
                log_offset,
                log_offset + head.size,
                head.store_timestamp_ms,
                body,
                properties,
            )
            position += head.size


def _topics_of(event: Event) -> Iterable[str]:
    """The topics of a chunk's rows. Raises BadRequest for another body."""
    named = event.properties.get("topics")
    if named is not None:
        return named.split(_BETWEEN_TOPICS)
    return {run.topic for run in chunk_runs(event.body)}


def _of_batch(kind: str, key: BatchKey) -> dict[str, str]:
    return {"kind": kind, "query": key[0], "batch": str(key[1])}
