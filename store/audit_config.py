"""The broker's tables below `config/`: can they be read, and do groups stand within their queues.

The broker reads `X.json`, or `X.json.bak` when that is missing, empty or damaged, and refuses to
start when neither can be read (store spec 11.4). The audit reads in the same order and says which.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from aerobee.protocol.fastjson import JsonError, loads
from aerobee.protocol.names import SCHEDULE_TOPIC, SYSTEM_TOPICS
from aerobee.store.audit_layout import Layout
from aerobee.store.audit_report import Counts, Findings
from aerobee.store.audit_state import read_small
from aerobee.store.files import Files

_BACKUP, _TEMPORARY = ".bak", ".tmp"
_MOST_BYTES = 256 << 20
_MOST_VALUES = 20_000_000

TOPICS, OFFSETS, DELAYS = "topics.json", "consumerOffset.json", "delayOffset.json"
LMQ_OFFSETS = "lmqConsumerOffset.json"


class Tables:
    """The tables of one store as a start would read them; damage goes to `findings`."""

    def __init__(self, files: Files, layout: Layout, findings: Findings, counts: Counts) -> None:
        self._files = files
        self._findings = findings
        self._counts = counts
        self._directory = os.path.join(layout.root, "config")
        names = {os.path.basename(path) for path in layout.config_files}
        self._names = names
        self._tables: dict[str, Any] = {}
        bases = {name.removesuffix(_BACKUP) for name in names if not name.endswith(_TEMPORARY)}
        for name in sorted(base for base in bases if base.endswith(".json")):
            self._tables[name] = self._read(name)
        for name in sorted(name for name in names if name.endswith(_TEMPORARY)):
            findings.add("config-unfinished", self.path(name), None, "was being written")

    def path(self, name: str) -> str:
        """Where the table is."""
        return os.path.join(self._directory, name)

    def topics(self) -> frozenset[str] | None:
        """All topics there are, None when nobody knows (no broker has kept a table here)."""
        table = _member(self._tables.get(TOPICS), "topicConfigTable")
        return None if table is None else frozenset(table) | SYSTEM_TOPICS

    def check_offsets(self, max_offset: Callable[[str, int], int | None]) -> None:
        """Offsets that groups have committed beyond the end of their queue.

        `max_offset` gives None for a queue that is not there: brokers keep the offsets of deleted
        topics for a while.
        """
        for name in (OFFSETS, LMQ_OFFSETS):
            for topic, group, queue_id, offset in self._committed(name):
                self._counts.consumer_offsets += 1
                highest = max_offset(topic, queue_id)
                if highest is not None and offset > highest:
                    self._beyond(name, f"group {group}", f"{topic}/{queue_id}", offset, highest)
        for level, offset in _numbers(_member(self._tables.get(DELAYS), "offsetTable")):
            highest = max_offset(SCHEDULE_TOPIC, level - 1)
            if highest is not None and offset > highest:
                queue = f"{SCHEDULE_TOPIC}/{level - 1}"
                self._beyond(DELAYS, f"delay level {level}", queue, offset, highest)

    def _beyond(self, name: str, who: str, queue: str, offset: int, highest: int) -> None:
        self._findings.add(
            "offset-beyond",
            self.path(name),
            None,
            f"{who} stands at {offset} in {queue}, which goes to {highest}",
            queue_offset=offset,
        )

    def _committed(self, name: str) -> Iterator[tuple[str, str, int, int]]:
        table = self._tables.get(name)
        for key, queues in (_member(table, "offsetTable") or {}).items():
            topic, _, group = key.rpartition("@")
            for queue_id, offset in _numbers(queues):
                yield topic, group, queue_id, offset
        for key, offset in (_member(table, "lmqOffsetTable") or {}).items():
            topic, _, group = key.rpartition("@")
            if isinstance(offset, int):
                yield topic, group, 0, offset

    def _read(self, name: str) -> Any:
        path = self.path(name)
        value, problem = self._parse(name)
        backup, worse = self._parse(name + _BACKUP)
        if problem is None:
            if worse not in (None, _ABSENT):
                self._findings.add("config-backup", path + _BACKUP, None, str(worse))
            return value
        if worse is None:
            self._findings.add("config-from-backup", path, None, problem)
            return backup
        nothing = (_EMPTY, _ABSENT)
        if problem not in nothing or worse not in nothing:
            self._findings.add("config-damaged", path, None, f"{problem}; its backup {worse}")
        return None

    def _parse(self, name: str) -> tuple[Any, str | None]:
        if name not in self._names:
            return None, _ABSENT
        content = read_small(self._files, self.path(name), _MOST_BYTES)
        self._counts.config_files += 1
        if not content:
            return None, _EMPTY
        try:
            value = loads(content, _MOST_VALUES)
        except JsonError as error:
            return None, f"cannot be read: {error}"
        if not isinstance(value, dict):
            return None, "holds no table"
        return value, None


_ABSENT, _EMPTY = "is not there", "is empty"


def _member(table: Any, name: str) -> Mapping[str, Any] | None:
    value = table.get(name) if isinstance(table, dict) else None
    return value if isinstance(value, dict) else None


def _numbers(table: Any) -> Iterator[tuple[int, int]]:
    """The entries of a map from whole numbers to whole numbers; others are passed over."""
    if not isinstance(table, dict):
        return
    for key, value in table.items():
        if key.isdecimal() and key.isascii() and isinstance(value, int):
            yield int(key), value
