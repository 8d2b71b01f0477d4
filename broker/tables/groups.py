"""Consumer group settings (`config/subscriptionGroup.json`, store/FORMAT.md 11.2).

A group that nobody configured is made when a consumer first names it, if automatic creation is on
(and always for the system's own groups). Every change is on disk before it is answered.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from aerobee.broker.tables.data_version import DataVersion
from aerobee.broker.tables.state_file import JsonStateFile, members, pretty
from aerobee.protocol.frames.fastjson import loads
from aerobee.protocol.names import (
    BUILT_IN_GROUPS,
    SYSTEM_GROUP_PREFIX,
    check_group_name,
    is_valid_group_name,
)
from aerobee.store.errors import StoreNotWritable

log = logging.getLogger("aerobee.broker.groups")

# Request versions below V3_4_9 do not carry a meaningful maxReconsumeTimes (protocol/WIRE.md 1.5).
VERSION_WITH_MAX_RECONSUME = 121


def is_system_group(name: str) -> bool:
    """Groups of RocketMQ's own tools and parts, which nobody set up here."""
    return name.startswith(SYSTEM_GROUP_PREFIX) or name in BUILT_IN_GROUPS


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """One group's settings, with RocketMQ's defaults."""

    name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True

    def retry_limit(self, asked: int | None, version: int) -> int:
        """Deliveries after which a message is dead: the client's wish, if its version has one."""
        if asked is not None and version >= VERSION_WITH_MAX_RECONSUME:
            return asked
        return self.retry_max_times

    def to_json(self) -> dict[str, Any]:
        """As it stands in the file and on the wire, keys in ascending order."""
        values = {_KEYS[name]: value for name, value in asdict(self).items()}
        return dict(sorted(values.items()))

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> GroupConfig:
        """Read one; missing members take their defaults. Raises ValueError, `BadRequest`."""
        name = value.get("groupName")
        if not isinstance(name, str):
            raise ValueError("groupName is missing")
        known: dict[str, Any] = {}
        for attribute, key in _KEYS.items():
            given = value.get(key)
            if attribute != "name" and given is not None:
                default = _DEFAULTS[attribute]
                known[attribute] = (
                    str(given).lower() == "true" if isinstance(default, bool) else int(given)
                )
        return cls(name=check_group_name(name), **known)


_KEYS = {
    "name": "groupName",
    "consume_enable": "consumeEnable",
    "consume_from_min_enable": "consumeFromMinEnable",
    "consume_broadcast_enable": "consumeBroadcastEnable",
    "retry_queue_nums": "retryQueueNums",
    "retry_max_times": "retryMaxTimes",
    "broker_id": "brokerId",
    "which_broker_when_consume_slowly": "whichBrokerWhenConsumeSlowly",
    "notify_consumer_ids_changed_enable": "notifyConsumerIdsChangedEnable",
}
_DEFAULTS: dict[str, bool | int] = {
    name: value for name, value in asdict(GroupConfig("")).items() if name != "name"
}


_Stored: TypeAlias = tuple[DataVersion | None, dict[str, GroupConfig]]


class GroupTable:
    """All groups of this broker. Loop thread only."""

    def __init__(
        self,
        file: JsonStateFile,
        *,
        auto_create: bool,
        limit: int,
        clock_ms: Callable[[], int],
    ) -> None:
        self._file = file
        self._auto_create = auto_create
        self._limit = limit
        self._clock_ms = clock_ms
        self._groups: dict[str, GroupConfig] = {name: GroupConfig(name) for name in BUILT_IN_GROUPS}
        nothing: _Stored = (None, {})
        version, stored = file.load(lambda content: _parse(content, clock_ms()), nothing)
        self._groups.update(stored)
        self.data_version = version or DataVersion(clock_ms(), 0)

    def __len__(self) -> int:
        return len(self._groups)

    def get(self, name: str) -> GroupConfig | None:
        """The group's settings, made now when that is allowed; None when there is no such group.

        Raises `BadRequest` for an illegal name.
        """
        group = self._groups.get(name)
        if group is not None:
            return group
        check_group_name(name)
        if not self._auto_create and not name.startswith(SYSTEM_GROUP_PREFIX):
            return None
        if len(self._groups) >= self._limit:
            log.warning("group not created name=%s reason=limit of %d groups", name, self._limit)
            return None
        log.info("group created name=%s", name)
        group = GroupConfig(name)
        try:
            return self.update(group)
        except (OSError, StoreNotWritable) as error:
            # A full disk keeps nobody from consuming. What is lost in a crash is made again, so.
            log.warning("group not written, the next change will name=%s why=%s", name, error)
        self._groups[name] = group
        return group

    def find(self, name: str) -> GroupConfig | None:
        """The group's settings if it exists; never makes one."""
        return self._groups.get(name)

    def update(self, group: GroupConfig) -> GroupConfig:
        """Store a group's settings. Raises StoreNotWritable when the disk is full, OSError; then
        nothing has changed."""
        self._change({**self._groups, group.name: group})
        return group

    def delete(self, name: str) -> bool:
        """Remove a group; False when there was none. Raises as `update`."""
        if name not in self._groups:
            return False
        self._change({known: one for known, one in self._groups.items() if known != name})
        return True

    def all(self) -> list[GroupConfig]:
        return list(self._groups.values())

    def to_json(self) -> dict[str, Any]:
        """The table as the wire and the file have it."""
        return _to_json(self._groups, self.data_version)

    def _change(self, groups: dict[str, GroupConfig]) -> None:
        version = self.data_version.next(self._clock_ms())
        self._file.save_or_refuse(pretty(_to_json(groups, version)))
        self._groups, self.data_version = groups, version


def _to_json(groups: Mapping[str, GroupConfig], version: DataVersion) -> dict[str, Any]:
    return {
        "dataVersion": version.to_json(),
        "subscriptionGroupTable": {name: group.to_json() for name, group in groups.items()},
    }


def _parse(content: bytes, now_ms: int) -> _Stored:
    document = loads(content)
    groups: dict[str, GroupConfig] = {}
    for name, value in members(members(document)["subscriptionGroupTable"]).items():
        if not is_valid_group_name(name):
            log.warning("group left out, its name is illegal name=%r", name)
            continue
        groups[name] = GroupConfig.from_json({**members(value), "groupName": name})
    return DataVersion.from_json(document.get("dataVersion"), now_ms), groups
