"""`config/stages.json`: each query's last batch, and from where a start reads the stage log.

The log forgets with its segments; that a batch was published must be remembered for longer, because
a stream that was stopped begins by committing its last batch again. Like delayed delivery's
progress the file says nothing that is not durable: a text is made of what is known now, and written
when the durable mark has passed it.

Without the file, or with one of another store, a start reads all of the stage log there is.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from aerobee.broker.staging.table import LastBatch, StageTable
from aerobee.broker.tables.state_file import JsonStateFile, members, pretty
from aerobee.protocol.frames.fastjson import loads
from aerobee.protocol.headers.stages import StagePart

log = logging.getLogger("aerobee.broker.stages")


class Remembered(NamedTuple):
    """The file's content."""

    replay_from: int
    queries: dict[str, LastBatch]


class StageMemory:
    """The file of one broker. Loop thread only, but for `save`."""

    def __init__(self, file: JsonStateFile, table: StageTable) -> None:
        self._file = file
        self._table = table
        self._taken: tuple[str, int] | None = None
        self._last = ""

    def load(self, end: int) -> int:
        """Take the last batches over; where reading is to begin, the stage log ending at `end`.

        Raises StateFileError for a damaged file without a backup that helps.
        """
        found = self._file.load(_parse, Remembered(0, {}))
        self._table.queries.update(found.queries)
        if found.replay_from > end:
            log.warning(
                "the stage log is shorter than config/stages.json says, all of it is read "
                "end=%d expected=%d", end, found.replay_from,
            )  # fmt: skip
            return 0
        return found.replay_from

    def take(self, stage_end: int, written: int, durable: int) -> str | None:
        """The text to be saved now, if any: one taken when `durable` was still below what it says.

        `stage_end`: the queue offset behind the stage log; `written`: the log offset behind all.
        """
        if self._taken is None:
            text = self._text(stage_end)
            if text != self._last:
                self._taken = (text, written)
        if self._taken is None or self._taken[1] > durable:
            return None
        text, self._taken = self._taken[0], None
        return text

    def save(self, text: str) -> None:
        """Write a text of `take`. Any thread. Raises OSError."""
        self._file.save(text)
        self._last = text

    def _text(self, stage_end: int) -> str:
        document: Mapping[str, Any] = {
            "queries": {
                query: {
                    "at": last.at_ms,
                    "batch": last.batch,
                    "others": msgspec.to_builtins(last.others),
                }
                for query, last in self._table.queries.items()
            },
            "replayFrom": self._table.oldest_slot(stage_end),
        }
        return pretty(document)


def _parse(content: bytes) -> Remembered:
    document = members(loads(content))
    queries: dict[str, LastBatch] = {}
    for query, value in members(document["queries"]).items():
        last = members(value)
        others = msgspec.convert(last.get("others", []), type=tuple[StagePart, ...])
        queries[query] = LastBatch(int(last["batch"]), int(last["at"]), others)
    return Remembered(int(document["replayFrom"]), queries)
