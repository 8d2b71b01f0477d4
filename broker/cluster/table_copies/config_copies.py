"""Takes the topics and groups of a master on its slave.

What is new or has changed is taken at once, in one save. A topic that the master does not have any
more leaves with its queues, as it did there, but not before the log has come as far as the master's
was: otherwise records that come later would make its queues anew. And it stays if its queues have a
newer message than the copy knows of: the master has made a topic of that name again, and its
messages, which are numbered anew, have taken the place of the old ones. A topic that was made again
between two copies is in both: its queues that have messages from before the deletion alone leave as
the master's deletions say (`deleted_topics.py`).

Topics of the broker's own (`TopicTable.is_system`) are made by each broker by its settings: a slave
takes those that it does not have. It takes no template: nothing is made on a slave.

Loop thread only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, TypeVar

from aerobee.broker.tables.config_table import ConfigTable
from aerobee.broker.tables.files.entry_text import NamedConfig
from aerobee.broker.tables.files.state_file import members, read_document
from aerobee.broker.tables.groups import GroupConfig, GroupTable
from aerobee.broker.tables.topics import TopicTable, queues_of
from aerobee.config.model import Settings
from aerobee.protocol.bodies.topics import MULTI_TAG, SINGLE_TAG, TopicConfig, parse_topic_table
from aerobee.protocol.names import AUTO_CREATE_TOPIC, BUILT_IN_GROUPS, is_valid_group_name

log = logging.getLogger("aerobee.broker.replication")

# Entries that are changed, and that are compared, in one step.
_STEP: Final = 64
_COMPARED: Final = 512
_MOST_PERM: Final = 0xF

C = TypeVar("C", bound=NamedConfig)
#: Takes a topic and its queues away, unless they have a message from behind that log offset;
#: returns whether it did. Raises what was in the way.
RemoveTopic = Callable[[str, int], Awaitable[bool]]
#: Takes queues away that have messages from before the deletion of their topic alone, by the log
#: offsets of deletions. Raises what was in the way.
RemoveOlder = Callable[[Mapping[str, int]], Awaitable[None]]


class ConfigCopies:
    """Takes copies, one after the other."""

    def __init__(
        self,
        settings: Settings,
        topics: TopicTable,
        groups: GroupTable,
        *,
        remove: RemoveTopic,
        remove_older: RemoveOlder,
    ) -> None:
        self._settings = settings
        self._topics = topics
        self._groups = groups
        self._remove = remove
        self._remove_older = remove_older
        # The master's deletions until older queues have left, and the end of its log by then.
        self._deletions: tuple[Mapping[str, int], int] | None = None
        # Topics that the master does not have: the ends of its log before and after it said so.
        self._gone: dict[str, tuple[int, int]] = {}

    # --- reading, on any thread

    def read_topics(self, body: bytes) -> dict[str, TopicConfig]:
        """The topics of the answer to GET_ALL_TOPIC_CONFIG. Raises BadRequest, ValueError."""
        topics = parse_topic_table(body).topics
        if len(topics) > self._settings.max_topics:
            raise ValueError(f"it has {len(topics)} topics, and limits.max_topics is less")
        queues = sum(map(queues_of, topics.values()))
        if queues > self._settings.max_queues:
            raise ValueError(f"its topics have {queues} queues, and limits.max_queues is less")
        for topic in topics.values():
            if topic.filter_type not in (SINGLE_TAG, MULTI_TAG) or not (
                0 <= topic.perm <= _MOST_PERM
            ):
                raise ValueError(f"the topic {topic.name} has values that no topic has")
        return topics

    def read_groups(self, body: bytes) -> dict[str, GroupConfig]:
        """The groups of the answer to GET_ALL_SUBSCRIPTIONGROUP_CONFIG, but those with names that
        are not legal here. Raises BadRequest, ValueError, KeyError, TypeError."""
        table = members(members(read_document(body))["subscriptionGroupTable"])
        groups = {
            name: GroupConfig.from_json({**members(value), "groupName": name})
            for name, value in table.items()
            if is_valid_group_name(name)
        }
        if len(groups) > self._settings.max_groups:
            raise ValueError(f"it has {len(groups)} groups, and limits.max_groups is less")
        for group in groups.values():
            numbers = group.retry_max_times, group.broker_id, group.retry_queue_nums
            if not all(-(2**31) <= number < 2**31 for number in numbers):
                raise ValueError(f"the group {group.name} has a number that is out of range")
        return groups

    # --- taking

    async def take_topics(
        self, topics: Mapping[str, TopicConfig], log_begin: int, log_end: int
    ) -> None:
        """Take what is new or has changed, and remember what is gone. Raises what keeps the table
        from being saved."""
        table = self._topics
        for name in list(self._gone):
            if name in topics or name not in table:
                del self._gone[name]
        for one in table.all():
            if one.name not in topics and not table.is_system(one.name):
                self._gone.setdefault(one.name, (log_begin, log_end))
        await self._put(table, await _chosen(topics.values(), self._is_wanted))

    def _is_wanted(self, topic: TopicConfig) -> bool:
        known = self._topics.get(topic.name)
        if self._topics.is_system(topic.name):
            return known is None and topic.name != AUTO_CREATE_TOPIC
        return known != topic

    async def take_groups(self, groups: Mapping[str, GroupConfig]) -> None:
        """Have the groups of the master. Raises what keeps the table from being saved."""
        table = self._groups
        gone = [
            one.name
            for one in table.all()
            if one.name not in groups and one.name not in BUILT_IN_GROUPS
        ]
        changed = await _chosen(groups.values(), lambda one: table.find(one.name) != one)
        await self._put(table, changed, gone)

    def take_deletions(self, deletions: Mapping[str, int], log_end: int) -> None:
        """Remember which topics the master has deleted, at which log offsets."""
        self._deletions = deletions, log_end

    async def _put(
        self, table: ConfigTable[C], entries: Iterable[C], gone: Iterable[str] = ()
    ) -> None:
        saves: set[asyncio.Future[None]] = set()
        with table.together():
            for number, entry in enumerate(entries, 1):
                saves.add(table.update(entry))
                if number % _STEP == 0:
                    await asyncio.sleep(0)
            for name in gone:
                log.info("group deleted, its master has it no more name=%s", name)
                saves.add(table.delete(name))
        for saved in saves:
            await saved

    @property
    def waits(self) -> bool:
        """Whether a topic, or a queue, is to leave when the log has come far enough."""
        return bool(self._gone) or self._deletions is not None

    async def remove_gone(self, reached: int) -> None:
        """Delete the topics that the master does not have, and the queues of those that it had
        before, as far as the log has come for that: it has all below the log offset `reached`."""
        for name, (log_begin, log_end) in list(self._gone.items()):
            if log_end <= reached:
                removed = await self._remove(name, log_begin)
                del self._gone[name]
                if removed:
                    log.info("topic deleted, its master has it no more name=%s", name)
        noted = self._deletions
        if noted is not None and noted[1] <= reached:
            await self._remove_older(noted[0])
            if self._deletions is noted:
                self._deletions = None


async def _chosen(entries: Iterable[C], is_wanted: Callable[[C], bool]) -> list[C]:
    """Those that are wanted, with turns of the loop in between."""
    chosen: list[C] = []
    for number, entry in enumerate(entries, 1):
        if is_wanted(entry):
            chosen.append(entry)
        if number % _COMPARED == 0:
            await asyncio.sleep(0)
    return chosen
