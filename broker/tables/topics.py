"""Topics of this broker (`config/topics.json`, store/FORMAT.md 11.2 and 11.5).

System topics exist from the start. Any other topic that does not exist is created by the first send
to it, from a template topic that allows it (protocol/WIRE.md 3.1). Every change is on disk before
it is answered, moves the data version, and is reported to the observers of the table, among them
the registration at the name servers. Automatic creation is bounded in number, because each new
topic costs files.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from aerobee.broker.tables.config_table import ConfigTable
from aerobee.broker.tables.state_file import JsonStateFile
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
    check_topic_name,
    is_system_topic,
    is_valid_topic_name,
)

log = logging.getLogger("aerobee.broker.topics")

_SCHEDULE_QUEUES = 18
_BENCHMARK_QUEUES = 1_024
_CLUSTER_TOPIC_QUEUES = 16
# A log line names at most this many lost topics.
_LOST_SHOWN = 10


class TopicTable(ConfigTable[TopicConfig]):
    """All topics of this broker. Loop thread only."""

    def __init__(
        self, settings: Settings, file: JsonStateFile, clock_ms: Callable[[], int]
    ) -> None:
        self._settings = settings
        built_in = _built_in(settings)
        self._system = SYSTEM_TOPICS | {topic.name for topic in built_in}
        super().__init__(
            file, "topicConfigTable", {topic.name: topic for topic in built_in}, _parse, clock_ms
        )
        # Whether the file itself was read; its backup is older, and without both there is nothing.
        present = file.path.is_file() and file.path.stat().st_size > 0
        self.is_whole = present and self._texts_read == 1
        if not settings.auto_create_topic:
            # A template left over from before must not go on creating topics.
            self._entries.pop(AUTO_CREATE_TOPIC, None)
        self._observers: list[Callable[[list[TopicConfig]], None]] = []
        self.created_on_send = 0
        # The minute of the last automatic creation, and how many there were in it.
        self._minute = (0, 0)

    def subscribe(self, observer: Callable[[list[TopicConfig]], None]) -> None:
        """Call `observer` after each change: with the topics that are new or changed, or with an
        empty list when something else about the table has changed."""
        self._observers.append(observer)

    def get(self, name: str) -> TopicConfig | None:
        return self._entries.get(name)

    def system_names(self) -> frozenset[str]:
        """Names that clients may not create, change or delete here."""
        return frozenset(self._system)

    def is_system(self, name: str) -> bool:
        return name in self._system or is_system_topic(name)

    def create_on_send(
        self, name: str, template_name: str, queues: int, sys_flag: int
    ) -> TopicConfig | None:
        """The topic a first send creates, or None when its template does not allow it.

        Raises `BadRequest` for an illegal name, and as `update` when it cannot be written.
        """
        check_topic_name(name)
        template = self._entries.get(template_name)
        if template is None or not template.perm & PERM_INHERIT:
            return None
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

    def _room_for_one_more(self, name: str) -> bool:
        """Whether a send may create a topic now: clients inventing names must not fill the disk."""
        minute, created = self._minute
        this_minute = self._clock_ms() // 60_000
        if minute != this_minute:
            created = 0
        reason = ""
        if len(self._entries) >= self._settings.max_topics:
            reason = f"there are {self._settings.max_topics} topics, the limit"
        elif created >= self._settings.auto_create_per_minute:
            reason = f"{created} topics were created in this minute, the limit"
        self._minute = (this_minute, created + (not reason))
        if reason:
            log.warning("topic not created name=%s reason=%s", name, reason)
        return not reason

    def create_retry(self, name: str, queues: int, perm: int) -> TopicConfig:
        """The retry or dead letter topic `name`, made when it is not there yet."""
        topic = self._entries.get(name)
        if topic is None:
            topic = self.update(TopicConfig(check_topic_name(name), queues, queues, perm))
        return topic

    def report_lost(self, queues: Iterable[tuple[str, int]]) -> None:
        """Log topics that have `queues` (topic, queue id) in the store but are not in the table.

        After a lost or damaged file that is a warning: their messages cannot be reached. With a
        whole file they are most likely remains of topics that RocketMQ deleted.
        """
        lost: dict[str, int] = {}
        for name, queue_id in queues:
            if name not in self._entries and name not in SYSTEM_TOPICS:
                lost[name] = max(lost.get(name, 0), queue_id + 1)
        if not lost:
            return
        shown = [f"{name} (--queues {lost[name]})" for name in sorted(lost)[:_LOST_SHOWN]]
        if len(lost) > _LOST_SHOWN:
            shown.append(f"and {len(lost) - _LOST_SHOWN} more")
        log.log(
            logging.INFO if self.is_whole else logging.WARNING,
            "topics with messages in the store are not in the topic table path=%s topics=%s; their "
            "messages cannot be reached until they are there again: "
            "aerobee topic create NAME --queues N",
            self._file.path,
            ", ".join(shown),
        )

    def set_order_topics(self, names: frozenset[str]) -> None:
        """Take the set of order topics from a name server's KV table (protocol/WIRE.md 5.4)."""
        topics = {
            name: topic if topic.order == (name in names) else replace(topic, order=name in names)
            for name, topic in self._entries.items()
        }
        if topics != self._entries:
            self._change(topics, [])

    def _change(self, entries: dict[str, TopicConfig], changed: list[TopicConfig]) -> None:
        super()._change(entries, changed)
        for observer in self._observers:
            observer(changed)


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


def _parse(name: str, value: Mapping[str, Any]) -> TopicConfig | None:
    """An entry of the file; missing members take their defaults. Raises ValueError."""
    if not is_valid_topic_name(name):
        log.warning("topic left out, its name is illegal name=%r", name)
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
