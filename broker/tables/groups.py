"""Consumer group settings (`config/subscriptionGroup.json`, store/FORMAT.md 11.2).

A group that is not configured is made when a consumer first names it, if automatic creation is on
(and always for the system's own groups). Such a group is there at once: nobody waits for its save,
because a full disk must not stop consumers, and a group that is lost in a crash is made again the
same way. A configured group is there when it is on the disk. A slave makes no group: it has those
of its master.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import asdict, dataclass
from typing import Any

from aerobee.broker.routing.role import Role
from aerobee.broker.tables.config_table import ConfigTable
from aerobee.broker.tables.files.state_file import JsonStateFile
from aerobee.config.model import Settings
from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.names import (
    BUILT_IN_GROUPS,
    START_GROUP_SUFFIX,
    SYSTEM_GROUP_PREFIX,
    check_group_name,
    is_light,
    is_valid_group_name,
)

log = logging.getLogger("aerobee.broker.groups")

# Request versions below V3_4_9 do not carry a meaningful maxReconsumeTimes (protocol/WIRE.md 1.5).
VERSION_WITH_MAX_RECONSUME = 121
# A save, and a log line, names at most this many groups.
_SHOWN = 10


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
        """The form of the file and of the wire, keys in ascending order."""
        return {key: getattr(self, attribute) for key, attribute in _BY_KEY}

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
_BY_KEY = sorted((key, attribute) for attribute, key in _KEYS.items())
_DEFAULTS: dict[str, bool | int] = {
    name: value for name, value in asdict(GroupConfig("")).items() if name != "name"
}


class GroupTable(ConfigTable[GroupConfig]):
    """All groups of this broker. Loop thread only."""

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
        super().__init__(
            file,
            key="subscriptionGroupTable",
            built_in={name: GroupConfig(name) for name in BUILT_IN_GROUPS},
            parse=_parse,
            clock_ms=clock_ms,
            loop=loop,
            pool=pool,
        )
        self._settings = settings
        self._role = role or Role(settings)
        self._auto_create = settings.auto_create_group

    def get(self, name: str) -> GroupConfig | None:
        """The group's settings, made now when that is allowed; None when there is no such group,
        for which `limit_reached` may have the reason.

        Raises `BadRequest` for an illegal name.
        """
        group = self._entries.get(name)
        if group is not None:
            return group
        check_group_name(name)
        if not self._may_make(name):
            return None
        if self.under_way(name) is not None:
            # Somebody configures it now; until that is written it has the settings of any group.
            return GroupConfig(name)
        if reason := self.limit_reached(name):
            log.warning("group not created name=%s reason=%s", name, reason)
            return None
        group = GroupConfig(name)
        self._add_unsaved(group)
        return group

    def _now_kept(self, names: list[str]) -> None:
        """Said now and not when it is made: while it cannot be kept, heartbeats are refused."""
        for name in names[:_SHOWN]:
            log.info("group created name=%s", name)
        if len(names) > _SHOWN:
            log.info("and more groups created count=%d", len(names) - _SHOWN)

    def limit_reached(self, name: str) -> str | None:
        """The limit that keeps `get` from making the group, and what to do; None when there is
        room, or it would not be made anyway."""
        limit = self._settings.max_groups
        if self.expected < limit or not self._may_make(name):
            return None
        return (
            f"there are {self.expected} groups, the limit is {limit} (limits.max_groups); "
            "delete groups not in use, or raise it"
        )

    def missing(self, name: str) -> BadRequest:
        """The refusal of what retries for a group that `get` does not give."""
        reason = self.limit_reached(name)
        return BadRequest(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"subscription group not exist, {name}" + (f" ({reason})" if reason else ""),
        )

    def _may_make(self, name: str) -> bool:
        if self._role.is_slave:
            return False
        return self._auto_create or name.startswith(SYSTEM_GROUP_PREFIX)

    def find(self, name: str) -> GroupConfig | None:
        """The group's settings if it exists; never makes one."""
        return self._entries.get(name)

    def complete(self, named: Iterable[str]) -> None:
        """Beside a backup, which is older than the file was, and where the file is lost, add the
        groups `named`: those that have offsets. Without their settings, which are lost; the start
        says so."""
        if self._file.loaded_from != self._file.backup and not self._file.is_lost:
            return
        lost = sorted(name for name in set(named) if self._may_add(name))
        lost = lost[: max(0, self._settings.max_groups - len(self._entries))]
        for name in lost:
            self._add_unsaved(GroupConfig(name))
        if lost:
            shown = ", ".join(lost[:_SHOWN])
            log.warning(
                "groups made again from the consumer offsets, because the table %s path=%s "
                "count=%d groups=%s; they have the default settings",
                "is lost" if self._file.is_lost else "is that of its backup",
                self._file.path,
                len(lost),
                shown + (", ..." if len(lost) > _SHOWN else ""),
            )

    def _may_add(self, name: str) -> bool:
        """Whether that is a group in this table: no light one, and none without consumers."""
        unknown = name not in self._entries and is_valid_group_name(name)
        return unknown and not is_light(name) and not name.endswith(START_GROUP_SUFFIX)


def _parse(name: str, value: Mapping[str, Any]) -> GroupConfig | None:
    if not is_valid_group_name(name):
        log.warning("group left out, its name is illegal name=%r", name)
        return None
    return GroupConfig.from_json({**value, "groupName": name})
