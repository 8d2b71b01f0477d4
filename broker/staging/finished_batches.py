"""The finished batches on the disk: `config/stages.json` and the changes beside it.

The stage log forgets with its segments. That a batch was published must be remembered for longer,
because a stream that was stopped begins by committing its last batch again. So the file has the
batches that `finished.py` remembers, and from where a start reads the stage log. Like the progress
of delayed delivery it says nothing that is not durable: the state is taken as it is now, and
written when the durable mark has passed it. Without the file, with a file of another store, or
where parts of the files are damaged, a start reads all of the stage log that there is.

A save writes the changes (broker/tables/files/change_log.py). The worker that saves keeps all
values of its own, and writes the table from them when the log of changes has grown long.

`take_changes` and `mark_unsaved` are of the loop; `save` is of one worker.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from aerobee.broker.staging.finished import FinishedBatches, Forgotten, LastBatch, parts_bytes
from aerobee.broker.tables.files.change_log import ChangeLog
from aerobee.broker.tables.files.state_file import JsonStateFile, members, read_document
from aerobee.protocol.headers.stages import StagePart
from aerobee.store.log.marks import Marks

log = logging.getLogger("aerobee.broker.stages")

# The bytes of a copy that are made in one step: some tenths of a millisecond.
_STEP_BYTES = 64 << 10
_LINE_BEGINS = b'{"generation":'

#: The last batch of a query as far as it is remembered; None: it is forgotten.
Known = LastBatch | Forgotten | None


@dataclass(frozen=True, slots=True)
class StageChanges:
    """The changes that a save has to write."""

    replay_from: int
    queries: Mapping[str, Known]


class StageFile:
    """The files of one broker."""

    def __init__(
        self,
        file: JsonStateFile,
        finished: FinishedBatches,
        oldest_offset: Callable[[], int],
        marks: Marks,
    ) -> None:
        """`oldest_offset` is from where in the stage log a start has to read now."""
        self._file = file
        self._log = ChangeLog(file.path, file.check)
        self._finished = finished
        self._oldest_offset = oldest_offset
        self._marks = marks
        # With the log offset that has to be durable first.
        self._taken: tuple[StageChanges, int] | None = None
        self._given: StageChanges | None = None
        self._replay_from = -1
        # The worker's: all values as they are on the disk, and whether the next save writes them.
        self._saved: dict[str, LastBatch | Forgotten] = {}
        self._generation = 0
        self._starts_over = False
        self._table_bytes = 0

    def load(self, end: int) -> int:
        """Take the last batches over. Returns the queue offset at which reading is to begin.

        `end` is the end of the stage log; reading begins at 0 if the files name a later place, or
        if some of what they held is lost: the stage log may still have it.

        Raises StateFileError, OSError.
        """
        nothing = _Document(0, 0, {})
        found = self._file.load(_parse, nothing)
        with contextlib.suppress(FileNotFoundError):
            self._table_bytes = self._file.path.stat().st_size
        self._saved.update(_known(found.queries))
        replay_from, self._generation = found.replay_from, found.generation
        newest = self._generation
        for line in self._log.read():
            if _generation_of(line) < self._generation:
                continue  # the table has it
            try:
                change = _parse(line)
            except (ValueError, KeyError, TypeError) as error:
                log.error("change of %s passed over why=%r", self._file.path, error)
                continue
            newest = max(newest, change.generation)
            replay_from = change.replay_from
            _change(self._saved, change.queries)
        # Without a table, lines that follow one: a start that found it damaged has kept it aside,
        # and was killed before it wrote another.
        is_gone = found is nothing and (newest > 0 or self._log.follows_a_table)
        is_damaged = self._file.is_lost or self._log.is_damaged or is_gone
        is_whole = self._file.loaded_from == self._file.path and newest == self._generation
        self._starts_over = is_damaged or (found is not nothing and not is_whole)
        self._generation = newest
        for query, known in self._saved.items():
            self._finished.load(query, known)
        self._finished.changed.clear()
        # A table that was put together from a backup or from remains is written at once.
        self._replay_from = -1 if self._starts_over else replay_from
        if is_damaged:
            return 0
        if replay_from > end:
            log.warning(
                "the stage log is shorter than config/stages.json says, all of it is read "
                "end=%d expected=%d", end, replay_from,
            )  # fmt: skip
            return 0
        return replay_from

    @property
    def version(self) -> str:
        """Another text after each change of what `copying` gives."""
        return f"{self._finished.state}.{self._oldest_offset()}"

    def copying(self) -> Generator[None, None, bytes]:
        """The remembered batches as the table has them, for `read`, made in steps."""
        finished = self._finished
        known: dict[str, Known] = {**finished.queries, **finished.forgotten}
        pieces: list[bytes] = []
        size = 0
        for piece in self._table_text(self._oldest_offset(), known):
            pieces.append(piece)
            size += len(piece)
            if size > _STEP_BYTES:
                size = 0
                yield None
        return b"".join(pieces)

    @staticmethod
    def read(content: bytes) -> StageChanges:
        """The content of a `copy`. Raises ValueError, KeyError, TypeError. Any thread."""
        document = _parse(content)
        return StageChanges(document.replay_from, document.queries)

    def replace(self, copied: StageChanges) -> None:
        """Remember what another broker does, and nothing else."""
        self._finished.replace(copied.queries)

    def take_changes(self) -> StageChanges | None:
        """The changes to be saved now, if any: taken earlier, and durable by now."""
        if self._taken is None:
            replay_from, changed = self._oldest_offset(), self._finished.changed
            if not changed and replay_from == self._replay_from:
                return None
            queries = {query: self._finished.get(query) for query in changed}
            changed.clear()
            self._taken = StageChanges(replay_from, queries), self._marks.written
        if self._taken[1] > self._marks.durable:
            return None
        self._given, self._taken = self._taken[0], None
        self._replay_from = self._given.replay_from
        return self._given

    def mark_unsaved(self) -> None:
        """The last `save` failed: the next `take_changes` gives its changes again."""
        assert self._given is not None
        self._finished.changed.update(dict.fromkeys(self._given.queries))
        self._replay_from = -1

    def mark_lost(self) -> None:
        """The files are gone: the next `take_changes` gives a change, and its `save` the table."""
        self._starts_over = True
        self._replay_from = -1

    def save(self, changes: StageChanges) -> None:
        """Write what `take_changes` gave. Raises OSError."""
        _change(self._saved, changes.queries)
        if not self._starts_over:
            queries = {query: _values(known) for query, known in changes.queries.items()}
            self._log.append(_line(self._generation, changes.replay_from, queries))
            if not self._log.is_longer_than(self._table_bytes):
                return
        # Should this fail, the next save writes the table: lines of both generations lead there.
        self._starts_over = True
        self._generation += 1
        text = list(self._table_text(changes.replay_from, self._saved))
        self._file.save(text)
        if self._log.is_damaged:
            self._file.save(text)  # its backup
        self._table_bytes = sum(map(len, text))
        self._log.start_over()
        self._starts_over = False

    def _table_text(self, replay_from: int, queries: Mapping[str, Known]) -> Iterator[bytes]:
        """The table, in pieces of which each is made at once."""
        head = b'{\n\t"generation":%d,\n\t"replayFrom":%d,\n\t"queries":{'
        yield head % (self._generation, replay_from)
        separator = b"\n"
        for query, known in queries.items():
            text = msgspec.json.encode(_values(known))
            yield b"%b\t\t%b:%b" % (separator, msgspec.json.encode(query), text)
            separator = b",\n"
        yield b"\n\t}\n}"


@dataclass(frozen=True, slots=True)
class _Document:
    """The content of a table or a line."""

    generation: int
    replay_from: int
    queries: Mapping[str, Known]


def _line(generation: int, replay_from: int, queries: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(
        {"generation": generation, "replayFrom": replay_from, "queries": queries}
    )


def _generation_of(line: bytes) -> int:
    """The generation with which a line begins; the line may be long."""
    digits = line[len(_LINE_BEGINS) :].partition(b",")[0]
    return int(digits) if line.startswith(_LINE_BEGINS) and digits.isdigit() else 0


def _values(known: Known) -> dict[str, Any] | None:
    if known is None:
        return None
    values: dict[str, Any] = {"at": known.at_ms, "batch": known.batch}
    if isinstance(known, Forgotten):
        return {**values, "forgotten": True, "whole": known.whole}
    return {**values, "others": known.others}


def _parse(content: bytes) -> _Document:
    """Raises ValueError, KeyError, TypeError."""
    document = members(read_document(content))
    queries = {
        query: None if value is None else _known_of(members(value))
        for query, value in members(document["queries"]).items()
    }
    return _Document(int(document.get("generation", 0)), int(document["replayFrom"]), queries)


def _known_of(value: Mapping[str, Any]) -> LastBatch | Forgotten:
    batch, at_ms = int(value["batch"]), int(value["at"])
    if value.get("forgotten"):
        return Forgotten(batch, at_ms, bool(value.get("whole")))
    others = msgspec.convert(value.get("others", []), type=tuple[StagePart, ...])
    return LastBatch(batch, at_ms, others, parts_bytes(others))


def _known(queries: Mapping[str, Known]) -> Iterable[tuple[str, LastBatch | Forgotten]]:
    return [(query, known) for query, known in queries.items() if known is not None]


def _change(table: dict[str, LastBatch | Forgotten], queries: Mapping[str, Known]) -> None:
    for query, known in queries.items():
        table.pop(query, None)  # after all others
        if known is not None:
            table[query] = known
