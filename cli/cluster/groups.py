"""`aerobee group list` and `describe`: who consumes what, and how far behind."""

import argparse
import asyncio
from typing import Any, Final, NamedTuple

from aerobee.broker.tables.groups import is_system_group
from aerobee.cli.cluster.session import admin_of, check_group, client_command
from aerobee.cli.output import OK, CommandFailed, print_json, print_table, say, show
from aerobee.client.admin import Admin
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.bodies.stats import ConnectionData, GroupProgress, GroupState
from aerobee.protocol.codes import version_name

_GROUPS_AT_ONCE: Final = 16


class _Group(NamedTuple):
    """One group in a listing."""

    name: str
    brokers: list[str]
    members: int
    topics: int
    lag: int


@client_command
async def list_groups(parsed: argparse.Namespace) -> int:
    """Print the groups; those of RocketMQ's own tools only with `--all`."""
    async with admin_of(parsed) as admin:
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
    if parsed.json:
        print_json([group._asdict() for group in groups])
        return OK
    print_table(
        ("group", "brokers", "members", "topics", "behind"),
        [(one.name, ", ".join(one.brokers), *one[2:]) for one in groups],
    )
    if not groups:
        say("no consumer groups yet: the first consumer of one makes it")
    return OK


async def _look(admin: Admin, name: str, brokers: list[str], turns: asyncio.Semaphore) -> _Group:
    async with turns:
        members = members_of(await admin.group_state(name))
        progress = await admin.group_progress(name)
    topics = {queue.topic for queue in progress}
    return _Group(name, brokers, len(members), len(topics), _lag(progress))


def members_of(state: dict[str, GroupState]) -> dict[str, ConnectionData]:
    """Each member once, by its client id; one is online at all brokers of its topics."""
    return {member.client_id: member for one in state.values() for member in one.connections}


def _lag(progress: dict[MessageQueue, GroupProgress]) -> int:
    return sum(max(one.lag, 0) for one in progress.values())


@client_command
async def describe_group(parsed: argparse.Namespace) -> int:
    """Print a group's members, and how far it is behind in each topic."""
    check_group(parsed.group)
    async with admin_of(parsed) as admin:
        brokers = (await admin.groups()).get(parsed.group)
        state = await admin.group_state(parsed.group)
        if brokers is None and not state:
            raise CommandFailed(
                f"there is no consumer group {parsed.group} (aerobee group list shows those there "
                "are)"
            )
        progress = await admin.group_progress(parsed.group)
    members = members_of(state)
    topics = _topics(state, progress)
    if parsed.json:
        print_json(_fields(parsed.group, brokers or sorted(state), state, members, topics))
        return OK
    models = {f"{one.consume_type}, {one.message_model}" for one in state.values()}
    online = f"{len(members)} members online" if members else "no member online"
    say(f"group {parsed.group}: {'; '.join([online, *sorted(models)])}")
    print_table(
        ("client id", "address", "language", "version"),
        [(one.client_id, one.address, one.language, version_name(one.version))
         for one in members.values()],
    )  # fmt: skip
    if members and topics:
        show("")
    print_table(
        ("topic", "subscription", "queues", "behind"), [list(one.values()) for one in topics]
    )
    return OK


def _topics(
    state: dict[str, GroupState], progress: dict[MessageQueue, GroupProgress]
) -> list[dict[str, Any]]:
    """What it subscribes to now, and where it has offsets."""
    subscribed = {
        topic: text for one in state.values() for topic, text in one.subscriptions.items()
    }
    found = []
    for topic in sorted({*subscribed, *(queue.topic for queue in progress)}):
        queues = {queue: one for queue, one in progress.items() if queue.topic == topic}
        found.append(
            {
                "topic": topic,
                "subscription": subscribed.get(topic),
                "queues": len(queues),
                "behind": _lag(queues),
            }
        )
    return found


def _fields(
    group: str,
    brokers: list[str],
    state: dict[str, GroupState],
    members: dict[str, ConnectionData],
    topics: list[dict[str, Any]],
) -> dict[str, Any]:
    one = next(iter(state.values()), None)
    return {
        "group": group,
        "brokers": brokers,
        "consume_type": one.consume_type if one else None,
        "message_model": one.message_model if one else None,
        "members": [
            {
                "client_id": member.client_id,
                "address": member.address,
                "language": member.language,
                "version": version_name(member.version),
            }
            for member in members.values()
        ],
        "topics": topics,
    }
