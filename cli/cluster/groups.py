"""`aerobee group list` and `describe`: consumers, their topics and their lag.

The broker computes the lag. Members that keep their offsets themselves (broadcasting) have a lag
that only they know: in its place stands that word, and null in JSON.
"""

import argparse
import asyncio
from collections.abc import Sequence
from typing import Final

from aerobee.cli.cluster.command_session import (
    admin_of,
    check_group,
    client_command,
    say_slaves_read,
    say_unanswered,
)
from aerobee.cli.documents.document import print_document
from aerobee.cli.documents.groups import GroupDescription, GroupSummary, GroupTopic, Member
from aerobee.cli.printing.output import OK, CommandFailed, print_table, say, show
from aerobee.client.admin import Admin
from aerobee.protocol.bodies.clients import BROADCASTING
from aerobee.protocol.bodies.statistics import ConnectionData, ConsumeStats, GroupState
from aerobee.protocol.codes import version_name
from aerobee.protocol.names import is_system_group, retry_topic

_GROUPS_AT_ONCE: Final = 16
OWN_OFFSETS: Final = (
    "its members keep their offsets themselves (broadcasting): how far each is, no broker knows"
)


@client_command
async def list_groups(parsed: argparse.Namespace) -> int:
    """Print the groups; those of RocketMQ's own tools only with `--all`."""
    async with admin_of(parsed, reads_slaves=True, leaves_out_silent=True) as admin:
        known = await admin.groups()
        chosen = {
            name: brokers
            for name, brokers in known.items()
            if parsed.all or not is_system_group(name)
        }
        turns = asyncio.Semaphore(_GROUPS_AT_ONCE)
        groups = await asyncio.gather(
            *(_look(admin, name, brokers, turns) for name, brokers in chosen.items())
        )
        say_slaves_read(admin)
        if parsed.json:
            print_document(groups, compact=parsed.watch is not None)
        else:
            _print_groups(groups)
        return await say_unanswered(admin)


def _print_groups(groups: Sequence[GroupSummary]) -> None:
    print_table(
        ("group", "brokers", "members", "topics", "behind"),
        [
            (one.group, ", ".join(one.brokers), one.members, one.topics, behind_text(one.lag))
            for one in groups
        ],
    )
    if not groups:
        say("no consumer groups yet: the first consumer of one makes it")


async def _look(
    admin: Admin, name: str, brokers: list[str], turns: asyncio.Semaphore
) -> GroupSummary:
    async with turns:
        state = await admin.group_state(name)
        stats = await stats_of(admin, name, state)
    topics = {queue.topic for queue in stats.queues}
    return GroupSummary(
        group=name,
        brokers=brokers,
        members=len(members_of(state)),
        topics=len(topics),
        lag=_lag(state, stats),
    )


def members_of(state: dict[str, GroupState]) -> dict[str, ConnectionData]:
    """Each member once, by its client id; a member is online at all brokers of its topics."""
    return {member.client_id: member for one in state.values() for member in one.connections}


async def stats_of(admin: Admin, group: str, state: dict[str, GroupState]) -> ConsumeStats:
    """How far a group is in all its topics. RocketMQ's brokers have to be asked by name for those
    that it subscribes to and has not consumed anything of."""
    stats = await admin.group_stats(group)
    progress = dict(stats.queues)
    topics = {queue.topic for queue in progress}
    if not keeps_own_offsets(state):
        for topic in sorted({topic for one in state.values() for topic in one.subscriptions}):
            if topic not in topics:
                progress |= await admin.group_progress(group, topic)
    return ConsumeStats(dict(sorted(progress.items())), stats.tps, stats.waiting_retries)


def keeps_own_offsets(state: dict[str, GroupState]) -> bool:
    """Whether the members keep their offsets themselves, so that no broker knows how far they
    are."""
    return any(one.message_model == BROADCASTING for one in state.values())


def behind_text(lag: int | None) -> int | str:
    """A group's lag for people."""
    return "broadcast" if lag is None else lag


def retries_text(count: int) -> str:
    """The words for messages that a group gets again, and that are in none of its queues yet."""
    return f"{count} messages that it failed on wait for their next try"


def _lag(state: dict[str, GroupState], stats: ConsumeStats) -> int | None:
    return None if keeps_own_offsets(state) else stats.lag


@client_command
async def describe_group(parsed: argparse.Namespace) -> int:
    """Print a group's members, and how far it is behind in each topic."""
    check_group(parsed.group)
    async with admin_of(parsed, reads_slaves=True) as admin:
        brokers = (await admin.groups()).get(parsed.group)
        state = await admin.group_state(parsed.group)
        say_slaves_read(admin)
        if brokers is None and not state:
            raise CommandFailed(
                f"there is no consumer group {parsed.group} (aerobee group list shows those there "
                "are)"
            )
        stats = await stats_of(admin, parsed.group, state)
    members = members_of(state)
    topics = _topics(parsed.group, state, stats)
    if parsed.json:
        print_document(_description(parsed.group, brokers or sorted(state), state, topics))
        return OK
    models = {f"{one.consume_type}, {one.message_model}" for one in state.values()}
    online = f"{len(members)} members online" if members else "no member online"
    show(f"group {parsed.group}: {'; '.join([online, *sorted(models)])}")
    print_table(
        ("client id", "address", "language", "version"),
        [(one.client_id, one.address, one.language, version_name(one.version))
         for one in members.values()],
    )  # fmt: skip
    if members and topics:
        show("")
    print_table(
        ("topic", "subscription", "queues", "behind"),
        [(one.topic, one.subscription, one.queues, behind_text(one.lag)) for one in topics],
    )
    if keeps_own_offsets(state):
        say(OWN_OFFSETS)
    elif stats.waiting_retries:
        say(f"{retries_text(stats.waiting_retries)}: they are among those of its retry topic")
    return OK


def _topics(group: str, state: dict[str, GroupState], stats: ConsumeStats) -> list[GroupTopic]:
    """The topics that it subscribes to now, those where it has offsets, and its retry topic if
    messages wait for it."""
    retry = {retry_topic(group): stats.waiting_retries} if stats.waiting_retries else {}
    subscribed = {
        topic: text for one in state.values() for topic, text in one.subscriptions.items()
    }
    found = []
    for topic in sorted({*subscribed, *(queue.topic for queue in stats.queues), *retry}):
        queues = {queue: one for queue, one in stats.queues.items() if queue.topic == topic}
        in_topic = ConsumeStats(queues, waiting_retries=retry.get(topic, 0))
        found.append(
            GroupTopic(
                topic=topic,
                subscription=subscribed.get(topic),
                queues=len(queues),
                lag=_lag(state, in_topic),
            )
        )
    return found


def _description(
    group: str, brokers: list[str], state: dict[str, GroupState], topics: list[GroupTopic]
) -> GroupDescription:
    one = next(iter(state.values()), None)
    return GroupDescription(
        group=group,
        brokers=brokers,
        consume_type=one.consume_type if one else None,
        message_model=one.message_model if one else None,
        members=[
            Member(
                client_id=member.client_id,
                address=member.address,
                language=member.language,
                version=version_name(member.version),
            )
            for member in members_of(state).values()
        ],
        topics=topics,
    )
