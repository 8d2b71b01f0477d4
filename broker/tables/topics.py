"""Topics of this broker (`config/topics.json`, store/FORMAT.md 11.2 and 11.5).

System topics exist from the start. Any other topic that does not exist is created by the first send
to it, from a template topic that allows it (protocol/WIRE.md 3.1). A change becomes visible when it
is on disk: otherwise a send to a topic that only memory has would be acknowledged, and after a
restart its message would be in no topic. Each save moves the data version, and is reported to the
observers of the table, among them the registration at the name servers. Automatic creation is
bounded in number, because each new topic costs files.

A deleted topic leaves in two steps, because a worker has to prepare the removal of its queues:
`withdraw` takes it out of the file, `forget` takes it out of memory, in the step in which its
queues leave the store. In between it is served as before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from functools import partial
from typing import Any

from msgspec.structs import replace

from aerobee.broker.routing.role import Role
from aerobee.broker.tables.config_table import ConfigTable
from aerobee.broker.tables.files.state_file import JsonStateFile
from aerobee.config.model import Settings
from aerobee.protocol.bodies.routes import PERM_INHERIT, PERM_READ_WRITE
from aerobee.protocol.bodies.topics import SINGLE_TAG, TopicConfig
from aerobee.protocol.names import (
    AUTO_CREATE_TOPIC,
    BENCHMARK_TOPIC,
    OFFSET_MOVED_TOPIC,
    REPLY_TOPIC_SUFFIX,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    SYSTEM_TOPICS,
    check_group_topic,
    check_topic_name,
    is_light,
    is_system_topic,
    is_valid_topic_name,
    why_no_group_topic,
)

log = logging.getLogger("aerobee.broker.topics")

_SCHEDULE_QUEUES = 18
_BENCHMARK_QUEUES = 1_024
_CLUSTER_TOPIC_QUEUES = 16
# A log line names at most this many lost topics.
_LOST_SHOWN = 10


class TopicTable(ConfigTable[TopicConfig]):
    """All topics of this broker; the weight of a topic is its number of queues. Loop thread
    only."""

    def __init__(
        self,
        settings: Settings,
        file: JsonStateFile,
        clock_ms: Callable[[], int],
        loop: asyncio.AbstractEventLoop,
        pool: Executor | None = None,
        *,
        role: Role | None = None,
    ) -> None:
        """Without a `role` the broker keeps that of its settings."""
        self._settings = settings
        self._role = role or Role(settings)
        built_in = _built_in(settings)
        self._system = SYSTEM_TOPICS | {topic.name for topic in built_in}
        super().__init__(
            file,
            key="topicConfigTable",
            built_in={topic.name: topic for topic in built_in},
            parse=partial(_parse, settings.auto_create_topic, self._system),
            clock_ms=clock_ms,
            loop=loop,
            pool=pool,
        )
        self._ordered = {topic.name for topic in self._entries.values() if topic.order}
        # Topics that have left the file, each with the future that is done when the topic has left
        # memory too.
        self._leaving: dict[str, asyncio.Future[None]] = {}
        self.created_on_send = 0
        # The minute of the last automatic creation, and how many there were in it.
        self._minute = (0, 0)

    def get(self, name: str) -> TopicConfig | None:
        return self._entries.get(name)

    def system_names(self) -> frozenset[str]:
        """Names that clients may not create, change or delete here."""
        return frozenset(self._system)

    def is_system(self, name: str) -> bool:
        return name in self._system or is_system_topic(name)

    def create_on_send(
        self, name: str, template_name: str, queues: int, sys_flag: int
    ) -> asyncio.Future[None] | None:
        """Begin to make the topic of a first send, as `update` does, unless that is under way.

        None when the template or a limit does not allow it; `limit_reached` knows which. Raises
        `BadRequest` for an illegal name.
        """
        check_topic_name(name)
        template = self._template(template_name)
        if template is None:
            return None
        creation = self.under_way(name)
        if creation is not None:
            return creation
        if not self._room_for_one_more(name):
            return None
        perm = template.perm
        if template_name == AUTO_CREATE_TOPIC and not self._settings.auto_create_topic:
            perm = PERM_READ_WRITE
        queues = max(1, min(queues, template.write_queues))
        topic = TopicConfig(
            name, queues, queues, perm & ~PERM_INHERIT, template.filter_type, sys_flag
        )
        self.created_on_send += 1
        log.info("topic created name=%s queues=%d template=%s", name, queues, template_name)
        return self.update(topic)

    def limit_reached(self, template_name: str) -> str | None:
        """The limit that has just kept `create_on_send` from making a topic, and what to do; None
        when it was the template. To be asked in the same step."""
        return None if self._template(template_name) is None else self._limit_text()

    def _template(self, name: str) -> TopicConfig | None:
        template = self._entries.get(name)
        return template if template is not None and template.perm & PERM_INHERIT else None

    def _room_for_one_more(self, name: str) -> bool:
        """Whether a send may create a topic now: clients that invent names must not fill the
        disk."""
        minute, created = self._minute
        this_minute = self._clock_ms() // 60_000
        if minute != this_minute:
            created = 0
        room = not self._is_full and created < self._settings.auto_create_per_minute
        self._minute = (this_minute, created + room)
        if not room:
            log.warning("topic not created name=%s reason=%s", name, self._limit_text())
        return room

    @property
    def _is_full(self) -> bool:
        return self.expected >= self._settings.max_topics

    def _limit_text(self) -> str:
        """The text for the limit that keeps a topic from being made. If it is not the number of
        topics it is the rate: so the text stays right when the minute ends just now."""
        if self._is_full:
            return (
                f"there are {self.expected} topics, the limit is {self._settings.max_topics} "
                "(limits.max_topics); delete topics not in use, or raise it"
            )
        created = self._minute[1]
        left_s = 60 - self._clock_ms() // 1_000 % 60
        return (
            f"sends made {created} topic{'s' if created != 1 else ''} in this minute, the limit is "
            f"{self._settings.auto_create_per_minute} (topics.auto_create_per_minute); try again "
            f"in {left_s} s, or create it: aerobee topic create NAME"
        )

    def create_retry(
        self, name: str, queues: int, sys_flag: int = 0
    ) -> asyncio.Future[None] | None:
        """Begin to make a retry topic, or another of the broker's own, that anybody may read and
        write; None when it is there, and on a slave, which has the topics of its master. Raises
        `BadRequest` for a group whose name is too long."""
        if self.get(name) is not None or self._role.is_slave:
            return None
        creation = self.under_way(name)
        if creation is None:
            check_group_topic(name)
            creation = self.update(
                TopicConfig(name, queues, queues, PERM_READ_WRITE, sys_flag=sys_flag)
            )
        return creation

    def expected_config(self, name: str) -> TopicConfig | None:
        """The topic as it will be when the changes under way are done."""
        for batch in (self._pending, self._saving):
            if batch is not None and name in batch.changes:
                return batch.changes[name]
        return self.get(name)

    def registered_anew(self) -> None:
        """Move the version: the registered form of every topic has changed, though the table has
        not."""
        self._changed()
        self._move_version()
        self._tell([])

    # --- deletion -----------------------------------------------------------------------------

    def under_way(self, name: str) -> asyncio.Future[None] | None:
        """The change of this topic that is not done yet, its deletion among them."""
        return self._leaving.get(name) or super().under_way(name)

    def withdraw(self, name: str) -> asyncio.Future[None]:
        """Take a topic out of the file; memory keeps it until `forget`, which must follow.

        Nothing else may be under way for it. Returns a future like that of `update`.
        """
        assert self.under_way(name) is None, name
        leaving = self._leaving[name] = self._loop.create_future()

        def written(withdrawn: asyncio.Future[None]) -> None:
            if withdrawn.exception() is not None:
                del self._leaving[name]
                leaving.set_result(None)

        withdrawn = self._change(name, None)
        withdrawn.add_done_callback(written)
        return withdrawn

    def reserve(self, name: str) -> None:
        """Let nobody make a topic of this name until `forget`, which must follow. No topic has the
        name now."""
        assert self.under_way(name) is None, name
        self._leaving[name] = self._loop.create_future()

    def leave(self, name: str) -> bool:
        """Take a withdrawn topic out of memory too; nobody makes it anew until `forget`. Returns
        False for any other topic, and for a topic that has left memory."""
        if name not in self._leaving or name not in self._entries:
            return False
        self._ordered.discard(name)
        super()._remove(name)
        self._move_version()
        self._tell([])
        return True

    def forget(self, name: str) -> bool:
        """Take a withdrawn topic out of memory, unless `leave` has done so, and let it be made
        anew. Returns False for any other topic."""
        self.leave(name)
        leaving = self._leaving.pop(name, None)
        if leaving is not None:
            leaving.set_result(None)
        return leaving is not None

    def _remove(self, name: str) -> None:
        if name not in self._leaving:
            self._ordered.discard(name)
            super()._remove(name)

    # --- what the store knows -----------------------------------------------------------------

    def complete(self, queues: Iterable[tuple[str, int]]) -> None:
        """Compare the table with the `queues` (topic, queue id) of the store, and log the topics
        that the table lacks.

        If the table was read from a backup, which is older than the lost file, or there was no
        file, these topics are added, and known topics get the read queues that they lack: otherwise
        nobody could reach their messages. After a crash before the next save a start reads the
        backup again, or no file, and does the work again. If the table's own file was read, these
        topics are only logged: most likely RocketMQ deleted them and left their queues.
        """
        stored: dict[str, int] = {}
        for name, queue_id in queues:
            stored[name] = max(stored.get(name, 0), queue_id + 1)
        if self._file.loaded_from != self._file.path:
            self._complete(stored)
        lost = {
            name: count
            for name, count in stored.items()
            if name not in self._entries and name not in SYSTEM_TOPICS
        }
        if lost:
            self._report_lost(lost)

    def _complete(self, stored: Mapping[str, int]) -> None:
        added: dict[str, int] = {}
        for name, count in stored.items():
            if not is_valid_topic_name(name) or is_light(name) or self.is_system(name):
                continue
            topic = self._entries.get(name)
            if topic is None:
                self._add_unsaved(TopicConfig(name, count, count))
            elif topic.read_queues < count:
                self._add_unsaved(replace(topic, read_queues=count))
            else:
                continue
            added[name] = count
        if added:
            log.warning(
                "topics made again from the queues in the store, because the table %s path=%s "
                "topics=%s; queues without messages, rights and other settings may have changed: "
                "aerobee topic list, aerobee topic create NAME --queues N",
                "is that of its backup" if self._file.loaded_from else "was not there",
                self._file.path,
                _names_of(added),
            )

    def _report_lost(self, lost: dict[str, int]) -> None:
        log.log(
            logging.INFO if self._file.loaded_from == self._file.path else logging.WARNING,
            "topics with messages in the store are not in the topic table path=%s topics=%s; their "
            "messages cannot be reached until they are there again: "
            "aerobee topic create NAME --queues N",
            self._file.path,
            _names_of(lost),
        )

    # --- order topics -------------------------------------------------------------------------

    def set_order_topics(self, names: frozenset[str]) -> asyncio.Future[None] | None:
        """Take the set of order topics from a name server's KV table (protocol/WIRE.md 5.4); None
        when the set is known already."""
        changed = [name for name in names - self._ordered if name in self._entries]
        changed += self._ordered - names
        saved = None
        for name in changed:
            # A topic with a change under way is set by the next answer of the name server.
            if self.under_way(name) is None:
                self._pending.other = True
                saved = self._change(name, replace(self._entries[name], order=name in names))
        return saved

    def _put(self, entry: TopicConfig) -> None:
        super()._put(entry)
        if entry.order:
            self._ordered.add(entry.name)
        else:
            self._ordered.discard(entry.name)

    def _weight(self, entry: TopicConfig) -> int:
        return queues_of(entry)


def queues_of(topic: TopicConfig) -> int:
    """How many queues of a topic count for the limits."""
    return max(topic.read_queues, topic.write_queues)


def _names_of(lost: Mapping[str, int]) -> str:
    shown = [f"{name} (--queues {lost[name]})" for name in sorted(lost)[:_LOST_SHOWN]]
    if len(lost) > _LOST_SHOWN:
        shown.append(f"and {len(lost) - _LOST_SHOWN} more")
    return ", ".join(shown)


def _built_in(settings: Settings) -> list[TopicConfig]:
    def system(name: str, queues: int = 1, perm: int = PERM_READ_WRITE) -> TopicConfig:
        return TopicConfig(name, queues, queues, perm)

    everything = PERM_READ_WRITE | PERM_INHERIT
    topics = [
        system(SELF_TEST_TOPIC),
        system(BENCHMARK_TOPIC, _BENCHMARK_QUEUES),
        system(
            settings.cluster_name,
            _CLUSTER_TOPIC_QUEUES,
            everything if settings.cluster_topic else PERM_INHERIT,
        ),
        system(settings.broker_name, 1, everything if settings.broker_topic else PERM_INHERIT),
        system(OFFSET_MOVED_TOPIC),
        system(SCHEDULE_TOPIC, _SCHEDULE_QUEUES),
        system(settings.cluster_name + REPLY_TOPIC_SUFFIX),
    ]
    if settings.auto_create_topic:
        topics.append(system(AUTO_CREATE_TOPIC, settings.default_topic_queues, everything))
    if settings.trace_topic:
        topics.append(system(settings.trace_topic_name))
    return topics


def _parse(
    template: bool, system: frozenset[str], name: str, value: Mapping[str, Any]
) -> TopicConfig | None:
    """An entry of the file; missing members take their defaults. Raises ValueError.

    Returns None for an entry that is left out. Without `template` (automatic creation is off) the
    template topic in the file is left out, so that it does not go on creating topics. A `system`
    topic may have a name that clients could not use: that of the broker or its cluster.
    """
    if name == AUTO_CREATE_TOPIC and not template:
        return None
    if not is_valid_topic_name(name) and name not in system:
        why = why_no_group_topic(name) or "its name is illegal"
        log.warning("topic left out name=%r reason=%s", name, why)
        return None
    return TopicConfig(
        name,
        int(value.get("readQueueNums", 16)),
        int(value.get("writeQueueNums", 16)),
        int(value.get("perm", PERM_READ_WRITE)),
        str(value.get("topicFilterType") or SINGLE_TAG),
        int(value.get("topicSysFlag", 0)),
        str(value.get("order", False)).lower() == "true",
    )
