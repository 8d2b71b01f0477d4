"""`aerobee topic purge`: no group gets the messages any more that a topic has now.

Each group's offset goes to the end of each queue. That is what every broker can do, RocketMQ's too;
no broker takes messages out of a topic that stays. So they can still be read until retention takes
them, and a new group that begins at the first message gets them: the command says so.
"""

from __future__ import annotations

import argparse

from msgspec.structs import replace

from aerobee.cli.cluster.command_session import admin_of, client_command
from aerobee.cli.cluster.delivery.asking import unknown
from aerobee.cli.cluster.groups import keeps_own_offsets
from aerobee.cli.cluster.previews import check_expected, say_how_to
from aerobee.cli.documents.document import print_document
from aerobee.cli.documents.messages import GroupMove, TopicPurge
from aerobee.cli.printing.output import OK, USAGE, CommandFailed, print_table, say
from aerobee.client.admin import END_OF_QUEUE, Admin
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.bodies.statistics import GroupProgress, GroupState
from aerobee.protocol.names import DLQ_PREFIX, is_system_topic


class _Group:
    """A group that consumes the topic, or has an offset in it."""

    def __init__(
        self, name: str, queues: dict[MessageQueue, GroupProgress], state: dict[str, GroupState]
    ) -> None:
        self.name = name
        self.queues = queues
        self.state = state

    @property
    def move(self) -> GroupMove:
        """The messages that it would not get any more."""
        lag = sum(one.lag for one in self.queues.values())
        unknown_lag = keeps_own_offsets(self.state)
        return GroupMove(
            group=self.name, not_consumed=None if unknown_lag else lag, online=bool(self.state)
        )


@client_command
async def purge(parsed: argparse.Namespace) -> int:
    """Move all groups of a topic to its end."""
    _check(parsed.topic)
    async with admin_of(parsed) as admin:
        if parsed.topic not in (known := await admin.topics()):
            raise unknown("topic", parsed.topic, known)
        route = await admin.route(parsed.topic)
        await admin.check_masters({one.broker_name for one in route.queues})
        stats = await admin.topic_stats(parsed.topic)
        messages = sum(one.max_offset - one.min_offset for one in stats.values())
        groups = [
            _Group(
                name, await admin.group_progress(name, parsed.topic), await admin.group_state(name)
            )
            for name in await admin.groups_of_topic(parsed.topic)
        ]
        shown = TopicPurge(
            topic=parsed.topic, messages=messages, groups=[one.move for one in groups], done=False
        )
        if parsed.yes:
            check_expected(parsed, shown)
            ends = {queue: one.max_offset for queue, one in stats.items()}
            await admin.check_administered({queue.broker_name for queue in ends})
            for one in groups:
                await _to_end(admin, one, ends)
    _conclude(parsed, shown)
    return OK


def _check(topic: str) -> None:
    if topic.startswith(DLQ_PREFIX):
        group = topic.removeprefix(DLQ_PREFIX)
        raise CommandFailed(
            f"{topic} has the dead letters of {group}: aerobee dlq purge {group} deletes them",
            USAGE,
        )
    if is_system_topic(topic):
        raise CommandFailed(f"{topic} is a topic of the broker's own: it is not purged", USAGE)


async def _to_end(admin: Admin, group: _Group, ends: dict[MessageQueue, int]) -> None:
    """The members that are online are told by their brokers; elsewhere the offsets are set."""
    (topic,) = {queue.topic for queue in ends}
    told: dict[str, bool] = {}
    for queue, end in ends.items():
        broker = queue.broker_name
        if broker not in told:
            is_online = broker in group.state
            told[broker] = is_online and (
                await admin.reset_group(broker, group.name, topic, END_OF_QUEUE) is not None
            )
        if not told[broker]:
            await admin.commit_offset(group.name, queue, end)


def _conclude(parsed: argparse.Namespace, shown: TopicPurge) -> None:
    if parsed.json:
        print_document(replace(shown, done=parsed.yes))
    elif parsed.yes:
        say(f"{len(shown.groups)} groups are at the end of {parsed.topic}")
    else:
        print_table(
            ("group", "not consumed", "online"),
            [
                (one.group, "?" if one.not_consumed is None else one.not_consumed, one.online)
                for one in shown.groups
            ],
        )
        if not shown.groups:
            say("no group consumes this topic, so there is no offset to move")
        say(
            f"{parsed.topic} has {shown.messages} messages; its groups would go to the end. The "
            "messages can be read until retention takes them, and a new group that begins at the "
            f"first message gets them; aerobee topic delete {parsed.topic} takes them away at once"
        )
    if not parsed.yes:
        say_how_to(parsed, shown)
