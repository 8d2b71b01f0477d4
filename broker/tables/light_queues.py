"""Light queues (`enableLmq`): topics and groups whose names begin with `%LMQ%` (FORMAT.md 2.8).

There may be many thousands of them, so they stand in no table and are registered nowhere: each such
topic has one queue for reading and writing, each such group the default settings, from the first
time that it is named. Offsets of light groups are kept by topic and group alone, and all offsets
in `lmqConsumerOffset.json` instead of `consumerOffset.json` (11.2). The store bounds their number.

These tables take the place of the ordinary ones when the option is on; `core.py` chooses.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any

from aerobee.broker.tables.config_table import done
from aerobee.broker.tables.files.offsets_text import (
    DocumentText,
    Pair,
    TableText,
    offset_key,
    parse_key,
    rescued_light_offsets,
    rescued_offsets,
)
from aerobee.broker.tables.files.state_file import JsonStateFile, members, read_document
from aerobee.broker.tables.groups import GroupConfig, GroupTable
from aerobee.broker.tables.offsets import (
    NO_OFFSET,
    STEP,
    Admit,
    ConsumerOffsets,
    OffsetTable,
    PairIndex,
    admit_all,
    parse_table,
)
from aerobee.broker.tables.topics import TopicTable
from aerobee.protocol.bodies.topics import TopicConfig
from aerobee.protocol.frames.fastjson import quote
from aerobee.protocol.names import check_group_name, check_topic_name, is_light

log = logging.getLogger("aerobee.broker.light")


class LightTopicTable(TopicTable):
    """The topic table of a broker with light queues."""

    def get(self, name: str) -> TopicConfig | None:
        return TopicConfig(name, 1, 1) if is_light(name) else super().get(name)

    def update(self, entry: TopicConfig) -> asyncio.Future[None]:
        """Store a topic, new or changed; a light one stays as it always is."""
        return done(self._loop) if is_light(entry.name) else super().update(entry)

    def complete(self, queues: Iterable[tuple[str, int]]) -> None:
        """See TopicTable.complete; light topics are in no table and never lost."""
        super().complete([queue for queue in queues if not is_light(queue[0])])


class LightGroupTable(GroupTable):
    """The group table of a broker with light queues."""

    def get(self, name: str) -> GroupConfig | None:
        return GroupConfig(check_group_name(name)) if is_light(name) else super().get(name)

    def find(self, name: str) -> GroupConfig | None:
        return GroupConfig(name) if is_light(name) else super().find(name)

    def update(self, entry: GroupConfig) -> asyncio.Future[None]:
        """Store a group's settings; a light one keeps the default ones."""
        return done(self._loop) if is_light(entry.name) else super().update(entry)


LightOffsetTable = dict[Pair, int]


class LightConsumerOffsets(ConsumerOffsets):
    """Consumer offsets of a broker with light queues.

    `before` is the file of a broker without them: a store that has only that one goes on from it.
    """

    def __init__(
        self,
        file: JsonStateFile,
        before: JsonStateFile,
        max_offset: Callable[[str, int], int],
        admit: Admit = admit_all,
    ) -> None:
        self._light: LightOffsetTable = {}
        self._first_time = not file.path.exists() and not file.backup.exists()
        super().__init__(before if self._first_time else file, max_offset, admit)
        self._light_index = PairIndex(self._light)
        if self._first_time:
            self._file = file
            self._queues_text.changed.update(dict.fromkeys(self._table))

    def _document_text(self) -> DocumentText:
        self._light_text: TableText[int] = TableText("lmqOffsetTable", self._light, str)
        return DocumentText(self._light_text, self._queues_text)

    def _load(self, file: JsonStateFile) -> OffsetTable:
        if self._first_time:
            return super()._load(file)
        # One file for both: where one table is damaged, both are those of the backup.
        nothing: tuple[OffsetTable, LightOffsetTable] = ({}, {})
        table, self._light = file.load(_parse, nothing, _rescue)
        return table

    def try_commit(self, group: str, topic: str, queue_id: int, offset: int) -> str:
        if not is_light(group):
            return super().try_commit(group, topic, queue_id, offset)
        known = self._light.get((topic, group))
        if known == offset:
            return ""
        if offset < 0 or offset > self._max_offset(topic, 0):
            return self._refuse_beyond(group, topic, queue_id, offset)
        pair = (check_topic_name(topic), check_group_name(group))
        if known is None:
            if why := self._admit(group, topic, 0, self.count()):
                return self._refuse(group, topic, queue_id, offset, why)
            self._light_index.add(pair)
        self._light[pair] = offset
        self.state += 1
        self._light_text.changed[pair] = None
        return ""

    def all_pairs(self) -> list[Pair]:
        return [*super().all_pairs(), *self._light]

    def put(self, group: str, topic: str, queues: Mapping[int, int]) -> None:
        if not is_light(group):
            super().put(group, topic, queues)
            return
        pair, offset = (topic, group), queues.get(0)
        if offset is None:
            self._forget_light(pair)
        elif offset != self._light.get(pair):
            self._light[pair] = offset
            self._light_index.add(pair)
            self.state += 1
            self._light_text.changed[pair] = None

    def count(self) -> int:
        return super().count() + len(self._light)

    def query(self, group: str, topic: str, queue_id: int) -> int:
        if is_light(group):
            return self._light.get((topic, group), NO_OFFSET)
        return super().query(group, topic, queue_id)

    def of(self, group: str, topic: str) -> Mapping[int, int]:
        if is_light(group):
            offset = self._light.get((topic, group))
            return {} if offset is None else {0: offset}
        return super().of(group, topic)

    def topics_of(self, group: str) -> list[str]:
        return super().topics_of(group) + self._light_index.topics_of(group)

    def groups_of(self, topic: str) -> list[str]:
        return super().groups_of(topic) + self._light_index.groups_of(topic)

    def remove_group(self, group: str) -> Generator[None, None, None]:
        yield from super().remove_group(group)
        for topic in self._light_index.topics_of(group):
            self._forget_light((topic, group))

    def remove_topic(self, topic: str) -> Generator[None, None, None]:
        yield from super().remove_topic(topic)
        for number, group in enumerate(self._light_index.groups_of(topic), 1):
            self._forget_light((topic, group))
            if number % STEP == 0:
                yield None

    def _topics_with_offsets(self) -> set[str]:
        return super()._topics_with_offsets().union(self._light_index.topics())

    def _forget_light(self, pair: Pair) -> None:
        if self._light.pop(pair, None) is None:
            return
        self._light_index.discard(pair)
        self.state += 1
        self._light_text.changed[pair] = None

    def listing(self) -> Generator[None, None, bytes]:
        listing = yield from super().listing()
        texts: list[str] = []
        for number, (pair, offset) in enumerate(list(self._light.items()), 1):
            texts.append(f"{quote(offset_key(*pair))}:{offset}")
            if number % STEP == 0:
                yield None
        return b'{"lmqOffsetTable":{%b},%b' % (",".join(texts).encode(), listing[1:])

    def document(self) -> dict[str, Any]:
        light = {offset_key(*key): offset for key, offset in self._light.items()}
        return {"lmqOffsetTable": light, **super().document()}


def load_offsets(
    file_of: Callable[[str], JsonStateFile],
    max_offset: Callable[[str, int], int],
    admit: Admit = admit_all,
    *,
    light: bool,
) -> ConsumerOffsets:
    """The consumer offsets of a broker with light queues or without; `file_of` opens by name."""
    before, file = file_of("consumerOffset.json"), file_of("lmqConsumerOffset.json")
    if light:
        return LightConsumerOffsets(file, before, max_offset, admit)
    if file.path.exists():
        log.warning(
            "offsets kept while light queues were on are not used without them path=%s", file.path
        )
    return ConsumerOffsets(before, max_offset, admit)


def _rescue(contents: Sequence[bytes]) -> tuple[OffsetTable, LightOffsetTable]:
    return rescued_offsets(contents), rescued_light_offsets(contents)


def _parse(content: bytes) -> tuple[OffsetTable, LightOffsetTable]:
    document = read_document(content)
    light = members(members(document)["lmqOffsetTable"])
    return parse_table(document), {parse_key(key): int(offset) for key, offset in light.items()}
