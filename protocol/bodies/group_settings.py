"""The settings of consumer groups as administrators send and read them: UPDATE_AND_CREATE_-
SUBSCRIPTIONGROUP (200) and GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201), protocol/WIRE.md 4.4."""

from __future__ import annotations

import msgspec

from aerobee.protocol.bodies.common import parse_body
from aerobee.protocol.bodies.group_lag import GroupSettings

_MAX_VALUES = 2_000_000


class GroupConfigBody(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The settings of a group, with RocketMQ's defaults. Fields of later versions are read over."""

    group_name: str = ""
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True

    @property
    def in_short(self) -> GroupSettings:
        """Those that decide whether and how the group consumes."""
        return GroupSettings(
            consume_enable=self.consume_enable,
            consume_broadcast_enable=self.consume_broadcast_enable,
            retry_max_times=self.retry_max_times,
            retry_queue_nums=self.retry_queue_nums,
        )

    def encode(self) -> bytes:
        """The body of request 200."""
        return msgspec.json.encode(self)


class _Table(msgspec.Struct, rename="camel"):
    subscription_group_table: dict[str, GroupConfigBody] = {}


def parse_group_table(body: bytes) -> dict[str, GroupConfigBody]:
    """The groups of the answer to request 201. Raises ValueError for another body."""
    value = parse_body(body, "group table", _MAX_VALUES)
    try:
        return msgspec.convert(value, _Table).subscription_group_table
    except msgspec.ValidationError as error:
        raise ValueError(f"the table of groups cannot be read: {error}") from error
