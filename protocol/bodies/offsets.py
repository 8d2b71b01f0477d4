"""Bodies of offset resets and of what consumers say of their offsets (protocol/WIRE.md 4.10).

Queues are map keys written as real objects, as everywhere; consumers in C++ read a list instead.
"""

from collections.abc import Generator, Iterable, Mapping
from typing import Any

from aerobee.protocol.bodies.common import (
    MessageQueue,
    as_object,
    long_member,
    object_member,
    parse_body,
)
from aerobee.protocol.frames.fastjson import dumps

# Queues of one consumer; it holds those of all its topics.
_MAX_VALUES = 1_000_000
# Queues that are written in one step, some 10 us each.
_STEP = 16


def reset_in_steps(offsets: Mapping[MessageQueue, int]) -> Generator[None, None, bytes]:
    """Encode the offsets to which members of a group shall go; the caller's answer has this form,
    too."""
    table = yield from _table_in_steps(offsets)
    return b'{"offsetTable":%b}' % table


def reset_list_in_steps(offsets: Mapping[MessageQueue, int]) -> Generator[None, None, bytes]:
    """Encode these offsets as a list, which consumers in C++ read."""
    entries = []
    for number, (queue, offset) in enumerate(offsets.items(), 1):
        entries.append(dumps({**queue.json_members(), "offset": offset}))
        if number % _STEP == 0:
            yield None
    return b'{"offsetTable":[%b]}' % b",".join(entries)


def _table_in_steps(offsets: Mapping[MessageQueue, int]) -> Generator[None, None, bytes]:
    entries = []
    for number, (queue, offset) in enumerate(offsets.items(), 1):
        entries.append(b"%b:%d" % (dumps(queue), offset))
        if number % _STEP == 0:
            yield None
    return b"{%b}" % b",".join(entries)


def parse_consumer_status(body: bytes) -> dict[MessageQueue, int]:
    """A consumer's own offsets by queue, from its answer to GET_CONSUMER_STATUS_FROM_CLIENT.
    Raises BadRequest (code 1) when the body has another form."""
    members = parse_body(body, "status of a consumer", _MAX_VALUES)
    table = object_member(members, "messageQueueTable")
    return {MessageQueue.from_key(key): long_member(table, key) for key in table}


def parse_group_status(body: bytes) -> dict[str, dict[MessageQueue, int]]:
    """The offsets of a group's members by client id, from the answer to
    INVOKE_BROKER_TO_GET_CONSUMER_STATUS. Raises BadRequest (code 1) when the body has another
    form."""
    members = parse_body(body, "status of a group", _MAX_VALUES)
    found = {}
    for client_id, value in object_member(members, "consumerTable").items():
        table: dict[str, Any] = as_object(value, "status of a consumer")
        found[client_id] = {MessageQueue.from_key(key): long_member(table, key) for key in table}
    return found


def member_status(
    client_id: str, offsets: Mapping[MessageQueue, int]
) -> Generator[None, None, bytes]:
    """One member's part of a group's status, made in steps."""
    table = yield from _table_in_steps(offsets)
    return b"%b:%b" % (dumps(client_id), table)


def group_status(members: Iterable[bytes]) -> bytes:
    """The answer to INVOKE_BROKER_TO_GET_CONSUMER_STATUS, of the members' parts."""
    return b'{"consumerTable":{%b},"messageQueueTable":{}}' % b",".join(members)
