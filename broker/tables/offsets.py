"""Consumer offsets: how far each group has come in each queue (`config/consumerOffset.json`).

The value is the next queue offset to consume. Offsets may move back (a group is reset by its
clients); one beyond the queue's end is refused and logged, because a consumer that skips messages
not yet written would lose them (docs/reliability.md 8, "offsets from clients"). Groups that only
keep where a stream began (START_GROUP_SUFFIX) have offsets one higher than meant, and skip nothing.

Changed in memory at once, written by housekeeping and at stop: a worker makes the text from what
has changed (`offsets_text.py`), the loop only notes that. Loop thread only, but for `save`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from aerobee.broker.tables.offsets_text import (
    Changes,
    DocumentText,
    Pair,
    TableText,
    offset_key,
    parse_key,
    queues_text,
)
from aerobee.broker.tables.state_file import JsonStateFile, members
from aerobee.protocol.frames.fastjson import loads
from aerobee.protocol.names import START_GROUP_SUFFIX, check_group_name, check_topic_name
from aerobee.store.disk.owner import OnOwner
from aerobee.store.retention.plan import OffsetsByQueue

log = logging.getLogger("aerobee.broker.offsets")

NO_OFFSET = -1
_BEYOND_LOGGED = 20

OffsetTable = dict[Pair, dict[int, int]]


class ConsumerOffsets:
    """Offsets by (topic, group) and queue id. `max_offset(topic, queue)` is the queue's end."""

    def __init__(self, file: JsonStateFile, max_offset: Callable[[str, int], int]) -> None:
        self._file = file
        self._max_offset = max_offset
        self._table = self._load(file)
        self._queues_text = TableText("offsetTable", self._table, queues_text)
        self._text = self._document_text()
        # One save at a time: the text is made in parts that the last one left.
        self._saving = threading.Lock()
        self._taken: Changes = []
        self.refused = 0
        self._warn_of_offsets_beyond()

    def _warn_of_offsets_beyond(self) -> None:
        """Log the groups whose offsets their queues have not reached: after a loss of messages, or
        with a restored store beside newer offsets. They get nothing until the queue gets there."""
        beyond = [
            (group, topic, queue_id, offset, end)
            for (topic, group), queues in self._table.items()
            for queue_id, offset in queues.items()
            if offset > (end := self._max_offset(topic, queue_id))
        ]
        for one in beyond[:_BEYOND_LOGGED]:
            log.warning(
                "consumer offset beyond its queue group=%s topic=%s queue=%d offset=%d "
                "queue_end=%d advice=reset the group there, or it misses what comes up to it",
                *one,
                extra={"each": True},
            )
        if len(beyond) > _BEYOND_LOGGED:
            log.warning("and more of them count=%d", len(beyond) - _BEYOND_LOGGED)

    def _document_text(self) -> DocumentText:
        return DocumentText(self._queues_text)

    def _load(self, file: JsonStateFile) -> OffsetTable:
        return file.load(lambda content: parse_table(loads(content)), {})

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Set a group's next offset in a queue; False when it was refused.

        Raises `BadRequest` for a name that could not stand in the file.
        """
        pair = (topic, group)
        queues = self._table.get(pair)
        known = queues.get(queue_id) if queues is not None else None
        if known == offset:
            return True
        beyond = 1 if group.endswith(START_GROUP_SUFFIX) else 0
        if offset < 0 or queue_id < 0 or offset > self._max_offset(topic, queue_id) + beyond:
            self._refuse(group, topic, queue_id, offset)
            return False
        if queues is None:
            pair = (check_topic_name(topic), check_group_name(group))
            queues = self._table[pair] = {}
        queues[queue_id] = offset
        self._queues_text.changed[pair] = None
        return True

    def query(self, group: str, topic: str, queue_id: int) -> int:
        """A group's next offset in a queue, `NO_OFFSET` when it never committed one."""
        queues = self._table.get((topic, group))
        return NO_OFFSET if queues is None else queues.get(queue_id, NO_OFFSET)

    def of(self, group: str, topic: str) -> Mapping[int, int]:
        """All offsets of a group in a topic, by queue id."""
        return self._table.get((topic, group), {})

    def pairs(self) -> list[tuple[str, str]]:
        """All (topic, group) that have offsets here."""
        return list(self._table)

    def tables(self) -> list[tuple[tuple[str, str], Mapping[int, int]]]:
        """((topic, group), offsets by queue id) of all; the offsets go on changing."""
        return list(self._table.items())

    def topics_of(self, group: str) -> list[str]:
        return [topic for topic, name in self._table if name == group]

    def groups_of(self, topic: str) -> list[str]:
        return [group for name, group in self._table if name == topic]

    def remove_group(self, group: str) -> None:
        """Forget all offsets of a group."""
        for pair in [pair for pair in self._table if pair[1] == group]:
            del self._table[pair]
            self._queues_text.changed[pair] = None

    def all(self) -> dict[str, dict[int, int]]:
        """The table as RocketMQ names it: `topic@group` -> queue id -> offset."""
        return {
            offset_key(topic, group): dict(queues) for (topic, group), queues in self._table.items()
        }

    def document(self) -> dict[str, Any]:
        """What the file holds."""
        return {"offsetTable": self.all()}

    def take_changes(self) -> Changes | None:
        """What has changed since the last call, for `save`; None when nothing has."""
        changes = self._text.take()
        if changes is not None:
            self._taken = changes
        return changes

    def save(self, changes: Changes) -> None:
        """Write the table with what `take_changes` gave. Any thread. Raises OSError."""
        with self._saving:
            self._file.save(self._text.text(changes))

    def flush(self) -> None:
        """Write what changed, now. Raises OSError."""
        changes = self.take_changes()
        if changes is not None:
            self.save(changes)

    def mark_unsaved(self) -> None:
        """The last `save` failed: the next `take_changes` gives its changes again."""
        self._text.put_back(self._taken)

    def _refuse(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        self.refused += 1
        log.warning(
            "offset refused group=%s topic=%s queue=%d offset=%d queue_end=%d",
            group,
            topic,
            queue_id,
            offset,
            self._max_offset(topic, queue_id),
        )


class OffsetTables(Protocol):
    """Committed offsets, of consumer groups or of delay levels."""

    def tables(self) -> list[tuple[tuple[str, str], Mapping[int, int]]]:
        """((topic, group), offsets by queue id) of all."""
        ...


def committed_by_queue(on_loop: OnOwner, *tables: OffsetTables) -> OffsetsByQueue:
    """Each group's offset by queue, with which retention says which groups still need what is about
    to be deleted. Worker thread; the tables are read on the loop."""
    by_queue: dict[tuple[str, int], dict[str, int]] = {}
    for (topic, group), offsets in on_loop(
        lambda: [entry for table in tables for entry in table.tables()]
    ):
        # Copied at once: the loop may be changing it.
        for queue_id, offset in dict(offsets).items():
            by_queue.setdefault((topic, queue_id), {})[group] = offset
    return by_queue


def parse_table(document: Any) -> OffsetTable:
    """The offsets of a file's document. Raises ValueError, KeyError or TypeError."""
    table: OffsetTable = {}
    for key, queues in members(members(document)["offsetTable"]).items():
        table[parse_key(key)] = {
            int(queue): int(offset) for queue, offset in members(queues).items()
        }
    return table
