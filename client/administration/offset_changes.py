"""Gives a group certain offsets in certain queues, whether it is online or not."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from aerobee.client.admin import Admin
from aerobee.client.errors import CallerError
from aerobee.protocol.bodies.common import MessageQueue


async def put_group_offsets(
    admin: Admin,
    group: str,
    offsets: Mapping[MessageQueue, int],
    *,
    online: Collection[str],
    cannot: Collection[str] = (),
) -> None:
    """Set a group's offsets. The brokers in `online` have members of it, which commit over what it
    is given elsewhere: they are informed and commit the offsets themselves. Those in `cannot` can
    reset members by a time alone, as RocketMQ's do: CallerError is raised for these, before
    anything is changed."""
    if cannot:
        raise CallerError(
            f"{', '.join(sorted(cannot))} can reset a group that is online by a time alone: stop "
            f"the members of {group} first, or use aerobee offset reset --to TIME"
        )
    by_topic: dict[tuple[str, str], dict[MessageQueue, int]] = {}
    for queue, offset in offsets.items():
        by_topic.setdefault((queue.broker_name, queue.topic), {})[queue] = offset
    for (broker, topic), queues in by_topic.items():
        if broker in online and await admin.put_members_at(broker, group, topic, queues):
            continue
        for queue, offset in queues.items():
            await admin.commit_offset(group, queue, offset)
