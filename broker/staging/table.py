"""What is staged and what was decided: the state that the stage log's records lead to, and what of
it is remembered for longer than the log.

Each change is one record of the log (`staging/log.py`) and one method here, called with the same
arguments when the record is put and when it is read again at a start. So the state after a start is
that of before, as far as the log has got. Nothing here asks whether a change is wise: requests are
judged before their record is put.

An intent may name many thousand stages. What it is to decide is therefore looked at in steps
(`Decision`, `look`); whether that still stands, and the decision itself, are a few native calls.

    chunks -> stage ---- intent names it ----> published slice by slice -> done
                 `------ nobody does --------> dropped (abort, another intent, expiry)

Of a batch that is done there remains the number, per query: a batch is committed again only as the
query's last one. What an intent named on other brokers is kept with it, for a driver that was
killed between two brokers.

The log forgets with its segments. That a batch was published must be remembered for longer, because
a stream that was stopped begins by committing its last batch again. So `config/stages.json` holds
each query's last batch, and from where a start reads the stage log (`StageFile`). Like the progress
of delayed delivery the file says nothing that is not durable: a text is made of what is known now,
and written when the durable mark has passed it. Without the file, or with one of another store, a
start reads all of the stage log that there is.

Loop thread only, but for `StageFile.save`.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter, is_
from typing import NamedTuple, TypeVar

import msgspec

from aerobee.broker.tables.state_file import JsonStateFile, members, read_document
from aerobee.protocol.headers.stages import DONE, NONE, OPEN, StagePart, stage_checksum

log = logging.getLogger("aerobee.broker.stages")

#: Queries whose last batch is remembered; of more the ones longest silent are forgotten.
QUERIES_KEPT = 10_000
#: Stages given up that are remembered, so that an intent on its way can no longer name them.
DROPPED_KEPT = 100_000
# Stages that are looked at in one step.
_STEP = 500

T = TypeVar("T")

BatchKey = tuple[str, int]


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
    """What one task has sent. `published` rows are in their queues, but for those `missing`, which
    a gap of the log has taken (their numbers, in order)."""

    key: BatchKey
    partition: int
    name: str
    queue_offset: int
    touched_ms: int
    chunks: dict[int, Chunk] = field(default_factory=dict)
    rows: int = 0
    size: int = 0
    published: int = 0
    missing: list[int] = field(default_factory=list)
    lost: int = 0
    last_slice: Slice | None = None
    # The chunk that publishing has come to, and the number of its first row.
    at_chunk: int = 0
    at_first: int = 0

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
    """What an intent is about to decide. `StageTable.look` fills in what it means here: the names
    of all its stages, how many it says are of this broker and their rows, those that are here and
    their bytes."""

    key: BatchKey
    parts: tuple[StagePart, ...]
    names: set[str] = field(default_factory=set)
    own: dict[str, Stage] = field(default_factory=dict)
    expected: int = 0
    rows: int = 0
    size: int = 0


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

    @property
    def published(self) -> int:
        published: int = sum(map(attrgetter("published"), self.stages))
        return published - sum(map(len, map(attrgetter("missing"), self.stages)))


@dataclass(frozen=True, slots=True)
class LastBatch:
    """The newest batch of a query that is done; `others` are its stages on other brokers."""

    batch: int
    at_ms: int
    others: tuple[StagePart, ...] = ()


class StageTable:
    """All stages, open intents and last batches of one broker."""

    def __init__(self, broker: str) -> None:
        self._broker = broker
        self.stages: dict[str, Stage] = {}
        self.open: dict[BatchKey, Intent] = {}
        self.queries: dict[str, LastBatch] = {}
        self.dropped: dict[str, None] = {}
        self.staged_bytes = 0
        self.chunks = 0

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
    ) -> None:
        """A chunk was stored; `queue_offset` is its place in the stage log."""
        stage = self.stages.get(name)
        if stage is None:
            stage = self.stages[name] = Stage(key, partition, name, queue_offset, now_ms)
        if number in stage.chunks:
            return
        stage.chunks[number] = chunk
        stage.touched_ms = now_ms
        stage.rows += chunk.rows
        stage.size += chunk.size
        self.staged_bytes += chunk.size
        self.chunks += 1

    def decide(self, decision: Decision, queue_offset: int, end: int) -> Intent | None:
        """The intent of a batch was stored; None if the batch was decided before. What else was
        staged for the batch is of no use any more (`drop_unnamed`)."""
        key, own = decision.key, decision.own
        if self.state(key) != NONE:
            return None
        intent = self.open[key] = Intent(
            key, decision.parts, own, tuple(own.values()), queue_offset, end, decision.rows
        )
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

    def finish(self, key: BatchKey, now_ms: int, others: Iterable[StagePart]) -> None:
        """All of a batch is published."""
        intent = self.open.pop(key, None)
        if intent is not None:
            for stage in intent.stages:
                self._forget(stage)
        query, batch = key
        known = self.queries.pop(query, None)
        if known is None or known.batch <= batch:
            known = LastBatch(batch, now_ms, tuple(others))
        self.queries[query] = known  # behind all others: they are forgotten from the front
        while len(self.queries) > QUERIES_KEPT:
            del self.queries[next(iter(self.queries))]

    def drop(self, names: Iterable[str]) -> None:
        """Stages are given up, known here or not; those that an intent names stay."""
        for name in names:
            stage = self.stages.get(name)
            if stage is None or not self.is_named(stage):
                self.dropped[name] = None
                if stage is not None:
                    self._forget(stage)
        while len(self.dropped) > DROPPED_KEPT:
            del self.dropped[next(iter(self.dropped))]

    def _forget(self, stage: Stage) -> None:
        if self.stages.pop(stage.name, None) is not None:
            self.staged_bytes -= stage.size
            self.chunks -= len(stage.chunks)

    # --- questions --------------------------------------------------------------------------

    def look(self, decision: Decision) -> Generator[None, None, None]:
        """Fill in what a decision means here, in steps."""
        for some in in_steps(decision.parts):
            decision.names.update([part.stage for part in some])
            for part in some:
                if part.broker == self._broker:
                    decision.expected += 1
                    decision.rows += part.rows
                    stage = self.stages.get(part.stage)
                    if stage is not None and stage.key == decision.key:
                        decision.own[part.stage] = stage
                        decision.size += stage.size
            yield None

    def stands(self, decision: Decision) -> bool:
        """Whether nothing has changed for this decision since it was looked at: nobody has decided
        the batch, and its stages were here, were not given up and not added to."""
        own = decision.own
        return (
            self.state(decision.key) == NONE
            and len(own) == decision.expected
            and all(map(is_, map(self.stages.get, own), own.values()))
            and sum(map(attrgetter("size"), own.values())) == decision.size
            and self.dropped.keys().isdisjoint(decision.names)
        )

    def is_named(self, stage: Stage) -> bool:
        """Whether an open intent names it."""
        intent = self.open.get(stage.key)
        return intent is not None and stage.name in intent.own

    def state(self, key: BatchKey) -> str:
        """NONE, OPEN or DONE. Batches below a query's last one are done."""
        if key in self.open:
            return OPEN
        last = self.queries.get(key[0])
        return DONE if last is not None and key[1] <= last.batch else NONE

    def parts_of(self, key: BatchKey) -> tuple[StagePart, ...]:
        """The stages that a batch's intent names; of a finished batch, those of other brokers."""
        intent = self.open.get(key)
        if intent is not None:
            return intent.parts
        last = self.queries.get(key[0])
        return last.others if last is not None and last.batch == key[1] else ()

    def others(self, parts: Iterable[StagePart]) -> tuple[StagePart, ...]:
        """Those of `parts` that lie on other brokers."""
        return tuple(part for part in parts if part.broker != self._broker)

    def silent(self, before_ms: int) -> list[str]:
        """Stages that no intent names and that nothing was added to since."""
        return [
            stage.name
            for stage in self.stages.values()
            if stage.touched_ms < before_ms and not self.is_named(stage)
        ]

    def oldest_offset(self, end: int) -> int:
        """From where in the stage log a start has to read: the first record still needed."""
        offsets = [stage.queue_offset for stage in self.stages.values()]
        offsets += [intent.queue_offset for intent in self.open.values()]
        return min(offsets, default=end)


def in_steps(values: Sequence[T]) -> Iterator[list[T]]:
    """So many of them at a time as are looked at in one step."""
    left = iter(values)
    while some := list(islice(left, _STEP)):
        yield some


class _Stored(NamedTuple):
    """The file's content."""

    replay_from: int
    queries: dict[str, LastBatch]


class StageFile:
    """`config/stages.json` of one broker."""

    def __init__(self, file: JsonStateFile, table: StageTable) -> None:
        self._file = file
        self._table = table
        # With the log offset that has to be durable first.
        self._taken: tuple[_Stored, int] | None = None
        self._last: _Stored | None = None

    def load(self, end: int) -> int:
        """Take the last batches over. Returns the queue offset at which reading is to begin.

        `end` is the end of the stage log; reading begins at 0 if the file names a later place.

        Raises StateFileError for a damaged file without a backup that helps.
        """
        found = self._file.load(_parse, _Stored(0, {}))
        self._table.queries.update(found.queries)
        if found.replay_from > end:
            log.warning(
                "the stage log is shorter than config/stages.json says, all of it is read "
                "end=%d expected=%d", end, found.replay_from,
            )  # fmt: skip
            return 0
        return found.replay_from

    def take(self, stage_end: int, written: int, durable: int) -> _Stored | None:
        """What is to be saved now, if anything: taken when `durable` was still below what it says.

        `stage_end`: the queue offset behind the stage log; `written`: the log offset behind all.
        """
        if self._taken is None:
            found = _Stored(self._table.oldest_offset(stage_end), dict(self._table.queries))
            if found != self._last:
                self._taken = (found, written)
        if self._taken is None or self._taken[1] > durable:
            return None
        found, self._taken = self._taken[0], None
        return found

    def save(self, found: _Stored) -> None:
        """Write what `take` gave. Any thread, and none that others wait for: a batch may have ten
        thousand stages on other brokers. Raises OSError."""
        document = {
            "queries": {
                query: {"at": last.at_ms, "batch": last.batch, "others": last.others}
                for query, last in found.queries.items()
            },
            "replayFrom": found.replay_from,
        }
        self._file.save(msgspec.json.format(msgspec.json.encode(document)))
        self._last = found


def _parse(content: bytes) -> _Stored:
    document = members(read_document(content))
    queries: dict[str, LastBatch] = {}
    for query, value in members(document["queries"]).items():
        last = members(value)
        others = msgspec.convert(last.get("others", []), type=tuple[StagePart, ...])
        queries[query] = LastBatch(int(last["batch"]), int(last["at"]), others)
    return _Stored(int(document["replayFrom"]), queries)
