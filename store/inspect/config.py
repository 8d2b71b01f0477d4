"""Checks the broker's tables below `config/`, and its name server's table below `namesrv/`: whether
they can be read, and whether the offsets of groups lie within their queues.

The broker reads `X.json`, or `X.json.bak` when that is missing, empty or damaged, and begins
without the table when neither can be read (FORMAT.md 11.4). The audit reads in the same order and
reports which it was.
"""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from aerobee.protocol.frames.fastjson import JsonError, loads
from aerobee.protocol.names import (
    SCHEDULE_GROUP,
    SCHEDULE_TOPIC,
    SYSTEM_TOPICS,
    is_light,
    is_system_topic,
    is_valid_topic_name,
)
from aerobee.store.disk.files import Files
from aerobee.store.inspect.audit_report import Counts, Findings
from aerobee.store.inspect.start_checks import (
    BACKUP,
    DAMAGED,
    DELAYS,
    LMQ_OFFSETS,
    OFFSETS,
    TEMPORARY,
    TOPICS,
)
from aerobee.store.inspect.state import read_small
from aerobee.store.inspect.store_layout import Layout

# More bytes than any table's limits allow.
_MOST_BYTES = 4 << 30
_TOPICS_SHOWN = 10
# The tables that a file holds; without one of them a start takes the file for damaged.
_MEMBERS = {
    TOPICS: ("topicConfigTable",),
    "subscriptionGroup.json": ("subscriptionGroupTable",),
    OFFSETS: ("offsetTable",),
    LMQ_OFFSETS: ("lmqOffsetTable", "offsetTable"),
    DELAYS: ("offsetTable",),
    "consumerFilter.json": ("filterDataByTopic",),
    "stages.json": ("queries",),
    "deletedTopics.json": ("deletedTopics",),
    "kvConfig.json": ("configTable",),
}

# The members whose entries are numbers; entries of the others are objects.
_OF_NUMBERS = frozenset(
    {
        (LMQ_OFFSETS, "lmqOffsetTable"),
        (DELAYS, "offsetTable"),
        ("deletedTopics.json", "deletedTopics"),
    }
)
# Characters of a name that a finding shows.
_SHOWN = 40

#: The end of the queue (topic, queue id), None if the queue is to be passed over.
MaxOffset = Callable[[tuple[str, int]], int | None]


class Beyond(NamedTuple):
    """An offset above the end of its queue."""

    table: str
    who: str
    topic: str
    queue_id: int
    offset: int
    end: int


class Tables:
    """The tables of one store as a start would read them; damage goes to `findings`.

    `read` are the paths of the tables that a start reads.
    """

    def __init__(
        self,
        files: Files,
        layout: Layout,
        read: Collection[str],
        findings: Findings,
        counts: Counts,
    ) -> None:
        self._files = files
        self._read_by_start = read
        self._findings = findings
        self._counts = counts
        self._directory = os.path.join(layout.root, "config")
        self._paths = paths = frozenset(layout.config_files)
        # The content of each table, by path.
        self._tables: dict[str, Any] = {}
        bases = {path.removesuffix(BACKUP) for path in paths if not path.endswith(TEMPORARY)}
        for path in sorted(base for base in bases if base.endswith(".json")):
            self._tables[path] = self._read(path)
        for path in sorted(path for path in paths if path.endswith(TEMPORARY)):
            findings.add("config-unfinished", path, None, "was being written")
        for path in sorted(path for path in paths if DAMAGED in os.path.basename(path)):
            findings.add("config-aside", path, None, "is a damaged table that a start kept aside")

    def path(self, name: str) -> str:
        """The path of a table of the broker."""
        return os.path.join(self._directory, name)

    def topics(self) -> frozenset[str] | None:
        """All topics, None when they are not known (no broker has kept a table here)."""
        table = _member(self._tables.get(self.path(TOPICS)), "topicConfigTable")
        return None if table is None else frozenset(table) | SYSTEM_TOPICS

    def check_topics(self, queues: Iterable[tuple[str, int]]) -> None:
        """Report if the store's `queues` (topic, queue id) have no table of topics, and which
        topics a start would make again from them."""
        path = self.path(TOPICS)
        if any(self._files.exists(one) or one in self._paths for one in (path, path + BACKUP)):
            return
        stored: dict[str, int] = {}
        for topic, queue_id in queues:
            if is_valid_topic_name(topic) and not is_light(topic) and not is_system_topic(topic):
                stored[topic] = max(stored.get(topic, 0), queue_id + 1)
        if not stored:
            return
        shown = [f"{topic} (--queues {stored[topic]})" for topic in sorted(stored)[:_TOPICS_SHOWN]]
        if len(stored) > _TOPICS_SHOWN:
            shown.append(f"and {len(stored) - _TOPICS_SHOWN} more")
        what = f"is not there, nor its backup, but the store has queues of {', '.join(shown)}"
        self._findings.add("topics-missing", path, None, what)

    def check_offsets(self, max_offset: MaxOffset) -> None:
        """Report offsets that groups have committed beyond the end of their queue."""
        self._counts.consumer_offsets += sum(one[0] != DELAYS for one in self._all_committed())
        for found in self.beyond(max_offset):
            self._findings.add(
                "offset-beyond",
                self.path(found.table),
                None,
                f"{found.who} stands at {found.offset} in {found.topic}/{found.queue_id}, which "
                f"goes to {found.end}",
                queue_offset=found.offset,
            )

    def beyond(self, max_offset: MaxOffset) -> Iterator["Beyond"]:
        """Committed offsets above the end of their queue.

        `max_offset` gives None for a queue that is missing, or to be passed over: brokers keep the
        offsets of deleted topics for a while.
        """
        for table, group, topic, queue_id, offset in self._all_committed():
            end = max_offset((topic, queue_id))
            if end is not None and offset > end:
                who = f"delay level {queue_id + 1}" if table == DELAYS else f"group {group}"
                yield Beyond(table, who, topic, queue_id, offset, end)

    def committed(self) -> Iterator[tuple[str, str, int, int]]:
        """(topic, group, queue id, offset) of all committed offsets, delay levels too."""
        for _, group, topic, queue_id, offset in self._all_committed():
            yield topic, group, queue_id, offset

    def set_back(self, max_offset: MaxOffset) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """(path, new content) of tables with offsets beyond the end of their queue, which are set
        to that end. Keys that are whole numbers become numbers in it."""
        for name in dict.fromkeys(found.table for found in self.beyond(max_offset)):
            table = dict(self._tables[self.path(name)])
            for key, value in table.items():
                if key == "lmqOffsetTable":
                    table[key] = {
                        place: _at_most(offset, max_offset((place.rpartition("@")[0], 0)))
                        for place, offset in value.items()
                    }
                elif key == "offsetTable" and name == DELAYS:
                    table[key] = {
                        level: _at_most(offset, max_offset((SCHEDULE_TOPIC, level - 1)))
                        for level, offset in _numbers(value)
                    }
                elif key == "offsetTable":
                    table[key] = {
                        place: {
                            number: _at_most(offset, max_offset((place.rpartition("@")[0], number)))
                            for number, offset in _numbers(queues)
                        }
                        for place, queues in value.items()
                    }
            yield self.path(name), table

    def _all_committed(self) -> Iterator[tuple[str, str, str, int, int]]:
        """(table, group, topic, queue id, offset)."""
        for name in (OFFSETS, LMQ_OFFSETS):
            for topic, group, queue_id, offset in committed_in(self._tables.get(self.path(name))):
                yield name, group, topic, queue_id, offset
        delays = _member(self._tables.get(self.path(DELAYS)), "offsetTable")
        for level, offset in _numbers(delays):
            yield DELAYS, SCHEDULE_GROUP, SCHEDULE_TOPIC, level - 1, offset

    def _read(self, path: str) -> Any:
        value, problem = self._parse(path)
        backup, worse = self._parse(path + BACKUP)
        if problem is None:
            if worse not in (None, _ABSENT):
                self._findings.add("config-backup", path + BACKUP, None, str(worse))
            return value
        if path not in self._read_by_start:
            what = problem if worse is None else f"{problem}; its backup {worse}"
            self._findings.add("config-unused", path, None, what)
            return backup
        if worse is None:
            self._findings.add("config-from-backup", path, None, problem)
            return backup
        if (problem, worse) != (_ABSENT, _ABSENT):
            self._findings.add("config-damaged", path, None, f"{problem}; its backup {worse}")
        return None

    def _parse(self, path: str) -> tuple[Any, str | None]:
        if path not in self._paths:
            return None, _ABSENT
        content = read_small(self._files, path, _MOST_BYTES)
        self._counts.config_files += 1
        if not content:
            return None, _EMPTY
        try:
            value = loads(content, len(content) + 1)
        except JsonError as error:
            return None, f"cannot be read: {error}"
        if not isinstance(value, dict):
            return None, "holds no table"
        file = os.path.basename(path).removesuffix(BACKUP)
        for name in _MEMBERS.get(file, ()):
            table = _member(value, name)
            if table is None:
                return None, f"holds no {name}"
            kind = int if (file, name) in _OF_NUMBERS else dict
            odd = next((key for key, one in table.items() if not isinstance(one, kind)), None)
            if odd is not None:
                return None, f"holds something else than an entry of {name} at {odd[:_SHOWN]!r}"
        return value, None


def committed_in(table: Any) -> Iterator[tuple[str, str, int, int]]:
    """(topic, group, queue id, offset) of all entries of a table of consumer offsets."""
    for key, queues in (_member(table, "offsetTable") or {}).items():
        topic, _, group = key.rpartition("@")
        for queue_id, offset in _numbers(queues):
            yield topic, group, queue_id, offset
    for key, offset in (_member(table, "lmqOffsetTable") or {}).items():
        topic, _, group = key.rpartition("@")
        if isinstance(offset, int):
            yield topic, group, 0, offset


_ABSENT, _EMPTY = "is not there", "is empty"


def _at_most(offset: int, end: int | None) -> int:
    return offset if end is None else min(offset, end)


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
