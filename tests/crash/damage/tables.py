"""The tables kept as JSON, as the daemon loads them, and what was put into them."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from aerobee.broker.tables.files.state_file import JsonStateFile
from aerobee.broker.tables.groups import GroupConfig, GroupTable
from aerobee.broker.tables.light_queues import LightConsumerOffsets
from aerobee.broker.tables.offsets import ConsumerOffsets
from aerobee.broker.tables.topics import TopicTable
from aerobee.config.model import Settings
from aerobee.nameserver.kv import KvFile
from aerobee.protocol.bodies.topics import TopicConfig
from tests.inline_loop import INLINE

NOW_MS = 1_700_000_000_000
TOPICS, GROUPS = "config/topics.json", "config/subscriptionGroup.json"
OFFSETS, LIGHT = "config/consumerOffset.json", "config/lmqConsumerOffset.json"
KV = "namesrv/kvConfig.json"

_OPTIONS = Settings.for_tests(
    broker_name="broker-a",
    cluster_name="DefaultCluster",
    max_topics=1000,
    auto_create_per_minute=100,
)
Contents = Mapping[str, Any]


def fill(root: Path) -> None:
    """Two changes to each table: the file holds both, its backup the first."""
    topics, groups = _topic_table(root), _group_table(root)
    offsets = ConsumerOffsets(JsonStateFile(root / OFFSETS), _any)
    # Its own beginnings are not those of the plain table.
    light = LightConsumerOffsets(JsonStateFile(root / LIGHT), JsonStateFile(root / "none"), _any)
    kv = KvFile(root / KV)
    table = kv.load()
    for turn in range(2):
        for name in ("Orders", "Payments"):
            topics.update(TopicConfig(name, 2 + turn, 2 + turn)).result()
        for name in ("billing", "stock"):
            groups.update(GroupConfig(name, retry_max_times=5 + turn)).result()
        for table_of_offsets in (offsets, light):
            for queue_id in range(2):
                table_of_offsets.commit("billing", "Orders", queue_id, 7 + turn)
            table_of_offsets.commit("%LMQ%stock", "Payments", 0, 3 + turn)
            table_of_offsets.flush()
        table.put("ORDER_TOPIC_CONFIG", "Orders", f"broker-a:{4 + turn}")
        table.put("other", "key", f"value {turn}")
        kv.save(table.to_json())


def _any(_topic: str, _queue_id: int) -> int:
    return 1 << 40


def _file(path: Path) -> JsonStateFile:
    """A state file as the daemon opens it."""
    return JsonStateFile(path, sets_aside=True)


def _topic_table(root: Path) -> TopicTable:
    return TopicTable(_OPTIONS, _file(root / TOPICS), lambda: NOW_MS, INLINE)


def _group_table(root: Path) -> GroupTable:
    file = _file(root / GROUPS)
    return GroupTable(
        file, auto_create=True, limit=lambda: 100, clock_ms=lambda: NOW_MS, loop=INLINE
    )


def _topics(root: Path) -> Contents:
    return {one.name: one for one in _topic_table(root).all()}


def _groups(root: Path) -> Contents:
    return {one.name: one for one in _group_table(root).all()}


def _offsets(root: Path) -> Contents:
    return ConsumerOffsets(_file(root / OFFSETS), _any).all()


def _light(root: Path) -> Contents:
    plain = _file(root / OFFSETS)
    document = LightConsumerOffsets(_file(root / LIGHT), plain, _any).document()
    return {**document["lmqOffsetTable"], **document["offsetTable"]}


def _kv(root: Path) -> Contents:
    table = KvFile(root / KV).load()
    names = ("ORDER_TOPIC_CONFIG", "other")
    return {name: found for name in names if (found := table.namespace(name)) is not None}


#: Readers of a file: its entries by name, without the version stamps. They raise the errors of
#: loading.
LOADERS: dict[str, Callable[[Path], Contents]] = {
    TOPICS: _topics,
    GROUPS: _groups,
    OFFSETS: _offsets,
    LIGHT: _light,
    KV: _kv,
}
#: The member that the entries stand in.
MEMBERS = {
    TOPICS: ("topicConfigTable",),
    GROUPS: ("subscriptionGroupTable",),
    OFFSETS: ("offsetTable",),
    LIGHT: ("lmqOffsetTable", "offsetTable"),
    KV: ("configTable",),
}
