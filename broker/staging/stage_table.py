"""Staged rows and decisions: the state that the stage log's records lead to, and the part of it
that is remembered for longer than the log.

Each change is one record of the log (`staging/stage_log.py`) and one method here, called with the
same arguments when the record is put and when it is read again at a start. So the state after a
start is that of before, as far as the log has got. Nothing here asks whether a change is wise:
requests are judged before their record is put.

An intent may name many thousand stages, so its decision is prepared in steps (`Decision`, `look`);
the question whether it still stands, and the decision itself, are a few native calls.

    chunks -> stage ---- intent names it ----> published slice by slice -> done
                 `------ nobody does --------> dropped (abort, another intent, expiry)

The number of a finished batch remains, per query: only the query's last batch is committed again.
The stages that an intent named on other brokers are kept with it, for a driver that was killed
between two brokers. `finished.py` remembers finished batches, and `finished_batches.py` keeps them
for longer than the log has its segments.

All of it is bounded by bytes: half of what `limits.stage_state_bytes` allows is for stages and open
intents, which are refused beyond it, half for finished batches, of which the dearest are forgotten
beyond it. Only intents free what stages take, so stages must not fill the room of intents: a stage
is charged for its part of the intent that will name it when it begins, and a quarter of the first
half is left to intents, for what they take besides.

Loop thread only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter, is_
from typing import NamedTuple, TypeVar

from aerobee.broker.staging.finished import (
    BatchKey,
    FinishedBatches,
    LastBatch,
    part_bytes,
    parts_bytes,
)
from aerobee.protocol.headers.stages import DONE, NONE, OPEN, StagePart, stage_checksum

#: Stages given up that are remembered, so that an intent on its way can no longer name them.
DROPPED_KEPT = 100_000
# Those among them that were never here: any account with PUB on some topic can name many of them.
_UNSEEN_KEPT = DROPPED_KEPT // 2
# Stages that are looked at in one step.
_STEP = 500
# Memory of a chunk, a stage and an intent, besides their texts.
CHUNK_BYTES = 320
STAGE_BYTES = 1_200
INTENT_BYTES = 800
_TOPIC_BYTES = 120
# Parts of `limits.stage_state_bytes`: what stages and open intents may take when a chunk comes, and
# when an intent comes. At the default the difference is 16 MiB; the largest intent that a frame of
# 4 MiB holds names some 32,000 stages on other brokers, which take 10 MiB.
STAGES_SHARE = 3 / 8
OPEN_SHARE = FINISHED_SHARE = 1 / 2

T = TypeVar("T")


class Chunk(NamedTuple):
    """Where a chunk's record lies, and what is in it."""

    log_offset: int
    rows: int
    crc: int
    size: int


class Slice(NamedTuple):
    """Rows whose publishing was begun: their records follow the slice's record in the log."""

    behind: int
    first: int
    rows: int


@dataclass(slots=True)
class Stage:
    """The rows that a task has sent. `published` rows are in their queues, but for those `missing`,
    which a gap of the log has taken (their numbers, in order)."""

    key: BatchKey
    partition: int
    name: str
    queue_offset: int
    touched_ms: int
    chunks: dict[int, Chunk] = field(default_factory=dict)
    rows: int = 0
    size: int = 0
    published: int = 0
    missing: deque[int] = field(default_factory=deque)
    lost: int = 0
    last_slice: Slice | None = None
    # The chunk that publishing has come to, and the number of its first row.
    at_chunk: int = 0
    at_first: int = 0
    #: The topics of its rows.
    topics: frozenset[str] = frozenset()
    #: Its memory, its part of an intent included.
    memory: int = STAGE_BYTES

    def chunk_at(self, row: int) -> tuple[Chunk, int]:
        """The chunk that a row is in and the number of its first row; rows are asked in order."""
        assert self.at_first <= row < self.rows
        while row >= self.at_first + self.chunks[self.at_chunk].rows:
            self.at_first += self.chunks[self.at_chunk].rows
            self.at_chunk += 1
        return self.chunks[self.at_chunk], self.at_first

    def what_is_missing(self, part: StagePart) -> str | None:
        """How this differs from what an intent says of it; None if it does not."""
        have = sum(map(part.chunks.__gt__, self.chunks))
        if have != part.chunks or len(self.chunks) != part.chunks:
            return f"{have} of its {part.chunks} chunks are here, of {len(self.chunks)} in all"
        if self.rows != part.rows:
            return f"it has {self.rows} rows, not {part.rows}"
        in_order = map(self.chunks.__getitem__, range(part.chunks))
        if stage_checksum(map(attrgetter("crc"), in_order)) != part.checksum:
            return "its checksum is another one"
        return None


@dataclass(slots=True)
class Decision:
    """The decision that an intent is about to make. `StageTable.look` fills in its meaning here:
    the names of all its stages, the number and rows of those that it places on this broker, those
    that are here and their bytes."""

    key: BatchKey
    parts: tuple[StagePart, ...]
    names: set[str] = field(default_factory=set)
    own: dict[str, Stage] = field(default_factory=dict)
    expected: int = 0
    rows: int = 0
    size: int = 0
    #: The topics of the rows of its stages that are here.
    topics: set[str] = field(default_factory=set)
    #: Its stages on other brokers, and their memory.
    others: list[StagePart] = field(default_factory=list)
    others_bytes: int = 0
    #: Its memory when it is decided, besides the share that its stages were charged for.
    memory: int = INTENT_BYTES


@dataclass(slots=True)
class Intent:
    """A decision that counts: these stages are the batch. `own` are those of this broker, by name;
    `stages` are the same, in order."""

    key: BatchKey
    parts: tuple[StagePart, ...]
    own: dict[str, Stage]
    stages: tuple[Stage, ...]
    queue_offset: int
    end: int
    rows: int
    #: Those of `parts` on other brokers, and their memory.
    others: tuple[StagePart, ...]
    others_bytes: int
    memory: int = INTENT_BYTES
    # The stages before `at` are published, with `rows` rows.
    at: int = 0
    published_before: int = 0

    @property
    def published(self) -> int:
        """How many rows are in their queues."""
        left = self.stages[self.at : self.at + 1]
        return self.published_before + sum(stage.published - len(stage.missing) for stage in left)

    def next_stage(self) -> Stage | None:
        """The first stage that is not published whole; None when all are."""
        while self.at < len(self.stages):
            stage = self.stages[self.at]
            if stage.missing or stage.published < stage.rows:
                return stage
            self.at += 1
            self.published_before += stage.published
        return None


class StageTable:
    """All stages, open intents and last batches of one broker.

    Invariants: `bytes` is the sum of what stages and open intents take; `_touched` holds the stages
    that no open intent names, the longest silent first.
    """

    def __init__(self, broker: str, finished: FinishedBatches) -> None:
        self._broker = broker
        self._stage_bytes = STAGE_BYTES + part_bytes(broker)
        self.stages: dict[str, Stage] = {}
        self.open: dict[BatchKey, Intent] = {}
        self.finished = finished
        # Names of stages that were given up: those that were here, and those that were not.
        self._dropped: dict[str, None] = {}
        self._dropped_unseen: dict[str, None] = {}
        self._touched: dict[str, None] = {}
        self.staged_bytes = 0
        self.chunks = 0
        #: Memory of stages and open intents.
        self.bytes = 0

    def clear(self) -> None:
        """Know no stages and no intents: another broker writes the stage log from now on."""
        self.stages.clear()
        self.open.clear()
        self._dropped.clear()
        self._dropped_unseen.clear()
        self._touched.clear()
        self.staged_bytes = self.chunks = self.bytes = 0

    # --- changes, each one a record ---------------------------------------------------------

    def add_chunk(
        self,
        key: BatchKey,
        partition: int,
        name: str,
        number: int,
        chunk: Chunk,
        queue_offset: int,
        now_ms: int,
        topics: Iterable[str],
    ) -> None:
        """A chunk was stored; `queue_offset` is its place in the stage log, `topics` are those of
        its rows."""
        stage = self.stages.get(name)
        if stage is None:
            stage = self.stages[name] = Stage(
                key, partition, name, queue_offset, now_ms, memory=self._stage_bytes
            )
            self.bytes += stage.memory
        if number in stage.chunks:
            return
        stage.chunks[number] = chunk
        stage.touched_ms = now_ms
        self._touched.pop(name, None)
        self._touched[name] = None
        stage.rows += chunk.rows
        stage.size += chunk.size
        self.staged_bytes += chunk.size
        self.chunks += 1
        memory = CHUNK_BYTES
        new = [topic for topic in topics if topic not in stage.topics]
        if new:
            stage.topics = stage.topics.union(new)
            memory += topics_bytes(new)
        stage.memory += memory
        self.bytes += memory

    def decide(self, decision: Decision, queue_offset: int, end: int) -> Intent | None:
        """The intent of a batch was stored; None if the batch was decided before. What else was
        staged for the batch is of no use any more (`drop_unnamed`)."""
        key, own = decision.key, decision.own
        if self.state(key) != NONE:
            return None
        is_elsewhere = len(decision.others) == len(decision.parts)
        intent = self.open[key] = Intent(
            key,
            decision.parts,
            own,
            tuple(own.values()),
            queue_offset,
            end,
            decision.rows,
            decision.parts if is_elsewhere else tuple(decision.others),
            decision.others_bytes,
            decision.memory,
        )
        self.bytes += intent.memory
        for name in own:
            self._touched.pop(name, None)
        return intent

    def drop_unnamed(self, key: BatchKey) -> Generator[None, None, None]:
        """Give up what failed tries of tasks have staged for a batch that is decided, in steps."""
        for some in in_steps(list(self.stages.values())):
            others = [stage.name for stage in some if stage.key == key]
            # Those that are published meanwhile are no longer here.
            self.drop([name for name in others if name in self.stages])
            yield None

    def begin_slice(self, name: str, slice_: Slice) -> None:
        """Rows of a stage are about to be put; all before them are."""
        stage = self.stages.get(name)
        if stage is not None:
            stage.published = max(stage.published, slice_.first)
            stage.last_slice = slice_

    def finish(self, key: BatchKey, last: LastBatch) -> None:
        """All of a batch is published; `last` is remembered of it."""
        intent = self.open.pop(key, None)
        if intent is not None:
            self.bytes -= intent.memory
            for stage in intent.stages:
                self._forget(stage)
        self.finished.put(key[0], last)

    def drop(self, names: Iterable[str]) -> None:
        """Stages are given up, known here or not; those that an intent names stay."""
        for name in names:
            stage = self.stages.get(name)
            if stage is None:
                self._dropped_unseen[name] = None
            elif not self.is_named(stage):
                self._dropped[name] = None
                self._forget(stage)
        _forget_oldest(self._dropped_unseen, _UNSEEN_KEPT)
        _forget_oldest(self._dropped, DROPPED_KEPT - _UNSEEN_KEPT)

    def _forget(self, stage: Stage) -> None:
        if self.stages.pop(stage.name, None) is not None:
            self._touched.pop(stage.name, None)
            self.staged_bytes -= stage.size
            self.chunks -= len(stage.chunks)
            self.bytes -= stage.memory

    # --- questions --------------------------------------------------------------------------

    def chunk_memory(self, name: str, topics: Iterable[str]) -> int:
        """The most memory of a chunk with rows for these topics, and of its stage where that begins
        with it."""
        began = 0 if name in self.stages else self._stage_bytes
        return CHUNK_BYTES + topics_bytes(topics) + began

    def look(self, decision: Decision) -> Generator[None, None, None]:
        """Fill in what a decision means here, in steps."""
        for some in in_steps(decision.parts):
            decision.names.update([part.stage for part in some])
            others = [part for part in some if part.broker != self._broker]
            decision.others += others
            decision.others_bytes += parts_bytes(others)
            for part in some:
                if part.broker == self._broker:
                    decision.expected += 1
                    decision.rows += part.rows
                    stage = self.stages.get(part.stage)
                    if stage is None or stage.key != decision.key:
                        decision.memory += part_bytes(part.broker)
                        continue
                    decision.own[part.stage] = stage
                    decision.size += stage.size
                    decision.topics |= stage.topics
            yield None
        decision.memory += decision.others_bytes

    def stands(self, decision: Decision) -> bool:
        """Whether nothing has changed for this decision since it was looked at: nobody has decided
        the batch, and its stages were here, were not given up and not added to."""
        own = decision.own
        return (
            self.state(decision.key) == NONE
            and len(own) == decision.expected
            and all(map(is_, map(self.stages.get, own), own.values()))
            and sum(map(attrgetter("size"), own.values())) == decision.size
            and self._dropped.keys().isdisjoint(decision.names)
            and self._dropped_unseen.keys().isdisjoint(decision.names)
        )

    def is_dropped(self, name: str) -> bool:
        """Whether a stage was given up, as far as that is remembered."""
        return name in self._dropped or name in self._dropped_unseen

    def is_named(self, stage: Stage) -> bool:
        """Whether an open intent names it."""
        intent = self.open.get(stage.key)
        return intent is not None and stage.name in intent.own

    def state(self, key: BatchKey) -> str:
        """NONE, OPEN or DONE. Batches below a query's last one are done."""
        if key in self.open:
            return OPEN
        return DONE if self.finished.is_done(*key) else NONE

    def parts_of(self, key: BatchKey) -> tuple[StagePart, ...]:
        """The stages that a batch's intent names; of a finished batch, those of other brokers."""
        intent = self.open.get(key)
        if intent is not None:
            return intent.parts
        last = self.finished.queries.get(key[0])
        return last.others if last is not None and last.batch == key[1] else ()

    def silent(self, before_ms: int) -> list[Stage]:
        """Some stages of a batch that no intent names and that nothing was added to since; an empty
        list at the end."""
        found: list[Stage] = []
        for name in list(islice(self._touched, _STEP)):
            stage = self.stages[name]
            if stage.touched_ms >= before_ms or (found and stage.key != found[0].key):
                break
            found.append(stage)
        return found

    def oldest_offset(self, end: int) -> int:
        """From where in the stage log a start has to read: the first record still needed. Stages
        and intents are in the order of their first records."""
        offsets = [stage.queue_offset for stage in islice(self.stages.values(), 1)]
        offsets += [intent.queue_offset for intent in islice(self.open.values(), 1)]
        return min(offsets, default=end)


def _forget_oldest(names: dict[str, None], kept: int) -> None:
    for name in list(islice(names, max(0, len(names) - kept))):
        del names[name]


def topics_bytes(topics: Iterable[str]) -> int:
    """Memory of the names of a stage's topics."""
    return sum([_TOPIC_BYTES + len(topic) for topic in topics])


def in_steps(values: Sequence[T]) -> Iterator[list[T]]:
    """So many of them at a time as are looked at in one step."""
    left = iter(values)
    while some := list(islice(left, _STEP)):
        yield some
