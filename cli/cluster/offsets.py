"""`aerobee offset show`, `reset` and `clone`: where groups are, and where they are to go on.

`reset` and `clone` say what they would change, queue by queue, and do it with `--yes` only. The
broker of a group that is online resets it and informs the members: they commit the new offsets. One
that is not gets them committed in its place.
"""

import argparse
import time
from typing import Any, Final, NamedTuple

from aerobee.cli.cluster.command_session import (
    admin_of,
    check_broker,
    check_group,
    client_command,
    masters_away,
    say_slaves_read,
)
from aerobee.cli.cluster.groups import (
    OWN_OFFSETS,
    keeps_own_offsets,
    members_of,
    retries_text,
    stats_of,
)
from aerobee.cli.printing.output import OK, USAGE, CommandFailed, print_json, print_table, say
from aerobee.cli.printing.times import parse_time, time_text
from aerobee.client.admin import END_OF_QUEUE, Admin
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.bodies.statistics import GroupProgress
from aerobee.protocol.names import retry_topic

# Before all messages, and after them.
_NAMED: Final = {"earliest": 0, "latest": END_OF_QUEUE}
_DRY_RUN: Final = "nothing was changed; --yes does it"


class _Move(NamedTuple):
    """A queue in which a group would go on somewhere else."""

    queue: MessageQueue
    before: int | None  # None: the group has no offset yet in the topic
    after: int

    @property
    def change(self) -> int:
        """Messages that it would miss; those that it gets again are below 0."""
        return self.after - (self.before or 0)

    @property
    def text(self) -> str:
        """Says for people what that means."""
        if self.before is None:
            return "new"
        if self.change < 0:
            return f"back by {-self.change}"
        return f"forward by {self.change}" if self.change else "stays"

    def fields(self) -> dict[str, Any]:
        """Its fields, for scripts."""
        topic, broker, queue_id = self.queue
        return {
            "topic": topic,
            "broker": broker,
            "queue": queue_id,
            "before": self.before,
            "after": self.after,
            "change": self.change,
        }


@client_command
async def show_offsets(parsed: argparse.Namespace) -> int:
    """Print a group's offset in each queue."""
    check_group(parsed.group)
    async with admin_of(parsed, reads_slaves=True) as admin:
        if parsed.topic:
            stats = await admin.group_stats(parsed.group, parsed.topic)
        else:
            state = await admin.group_state(parsed.group)
            stats = await stats_of(admin, parsed.group, state)
        say_slaves_read(admin)
        if not stats.queues:
            raise CommandFailed(await _why_nowhere(admin, parsed.group, parsed.topic))
    rows: list[dict[str, Any]] = [
        {
            "topic": queue.topic,
            "broker": queue.broker_name,
            "queue": queue.queue_id,
            "offset": one.consumer_offset,
            "end": one.broker_offset,
            "behind": one.lag,
            "last_consumed_timestamp_ms": one.last_consumed_ms,
        }
        for queue, one in stats.queues.items()
    ]
    if parsed.json:
        print_json(rows)
        return OK
    print_table(
        ("topic", "broker", "queue", "offset", "end", "behind", "last consumed was stored"),
        [(*list(row.values())[:-1], time_text(row["last_consumed_timestamp_ms"]))
         for row in rows],
    )  # fmt: skip
    if stats.waiting_retries:
        say(f"{retries_text(stats.waiting_retries)}, and are in none of these queues yet")
    return OK


async def _why_nowhere(admin: Admin, group: str, topic: str | None) -> str:
    """Why a group has no progress, in a topic or at all; `admin` has asked for it."""
    if unasked := sorted(set(await masters_away(admin)) - admin.slaves_read):
        return (
            f"no master of {', '.join(unasked)} is registered: whether the group {group} has an "
            "offset there is not known"
        )
    if keeps_own_offsets(await admin.group_state(group)):
        return f"the group {group} has no offset that could be shown or changed: {OWN_OFFSETS}"
    where = f" in topic {topic}" if topic else ""
    return (
        f"the group {group} has no offset{where} (aerobee group list shows the groups there are; a "
        "group that is online shows the topics that it subscribes to)"
    )


# --- reset ----------------------------------------------------------------------------------------


@client_command
async def reset_offsets(parsed: argparse.Namespace) -> int:
    """Have a group go on at the beginning, the end, or a time."""
    check_group(parsed.group)
    timestamp_ms = _timestamp(parsed.to)
    async with admin_of(parsed) as admin:
        moves = await _moves(parsed, admin, timestamp_ms)
        state = await admin.group_state(parsed.group)
        brokers = sorted({move.queue.broker_name for move in moves})
        told = {name: sorted(members_of({name: state[name]})) for name in brokers if name in state}
        if parsed.to not in _NAMED and not parsed.json:
            say(_meant(parsed.to, timestamp_ms))
        _preview(parsed, moves, told)
        if parsed.yes:
            # Elsewhere clients' own requests do.
            await admin.check_administered(told)
            for broker in brokers:
                await _reset(parsed, admin, broker, timestamp_ms, moves)
    _conclude(parsed, moves, told)
    return OK


def _timestamp(where: str) -> int:
    return _NAMED[where] if where in _NAMED else parse_time(where, ", ".join(_NAMED))


def _meant(where: str, timestamp_ms: int) -> str:
    """The time that was understood, and where that leads."""
    moment = f"{time_text(timestamp_ms) or where} in local time"
    if timestamp_ms > time.time_ns() // 1_000_000:
        return f"{moment} is in the future: queues go to their last message, after it with latest"
    return f"queues go to the message that was stored nearest to {moment}"


async def _moves(parsed: argparse.Namespace, admin: Admin, timestamp_ms: int) -> list[_Move]:
    """The offset where each queue is to go on, as the brokers compute it."""
    route = await admin.route(parsed.topic)
    names = {span.broker_name for span in route.queues}
    await admin.check_masters(names if parsed.broker is None else names & {parsed.broker})
    progress = await admin.group_progress(parsed.group, parsed.topic)
    if not progress:
        raise CommandFailed(await _why_nowhere(admin, parsed.group, parsed.topic))
    await check_broker(parsed, [queue.broker_name for queue in progress])
    moves = []
    for queue, one in progress.items():
        if parsed.broker in (None, queue.broker_name):
            target = await _target(admin, queue, timestamp_ms)
            if parsed.only_back:
                target = min(target, one.consumer_offset)
            moves.append(_Move(queue, one.consumer_offset, target))
    return moves


async def _target(admin: Admin, queue: MessageQueue, timestamp_ms: int) -> int:
    if timestamp_ms == END_OF_QUEUE:
        return await admin.max_offset(queue)
    return await admin.offset_at(queue, timestamp_ms)


async def _reset(
    parsed: argparse.Namespace, admin: Admin, broker: str, timestamp_ms: int, moves: list[_Move]
) -> None:
    force = not parsed.only_back
    if broker in await admin.group_state(parsed.group):
        told = await admin.reset_group(
            broker, parsed.group, parsed.topic, timestamp_ms, force=force
        )
        if told is not None:
            return
    for move in moves:
        if move.queue.broker_name == broker:
            await admin.commit_offset(parsed.group, move.queue, move.after)


# --- clone ----------------------------------------------------------------------------------------


@client_command
async def clone_offsets(parsed: argparse.Namespace) -> int:
    """Give a group the offsets of another group."""
    check_group(parsed.source)
    check_group(parsed.group)
    if parsed.source == parsed.group:
        raise CommandFailed(f"{parsed.group} has its own offsets: name another group", USAGE)
    # A slave tells which offsets its master has; these cannot be given to a group while it is away.
    async with admin_of(parsed, reads_slaves=True) as admin:
        progress = await admin.group_progress(parsed.source, parsed.topic)
        # Messages that wait for its own retry come to no other group.
        skipped = None if parsed.topic else retry_topic(parsed.source)
        source = {queue: one for queue, one in progress.items() if queue.topic != skipped}
        if not source:
            raise CommandFailed(await _why_nowhere(admin, parsed.source, parsed.topic))
        await admin.check_masters(queue.broker_name for queue in source)
        there = await admin.group_progress(parsed.group, parsed.topic)
        moves = [_clone_move(queue, one, there.get(queue)) for queue, one in source.items()]
        state = await admin.group_state(parsed.group)
        _preview(parsed, moves, {})
        if parsed.group not in await admin.groups():
            say(f"there is no group {parsed.group} yet: it is made with these offsets")
        if state:
            say(f"the group {parsed.group} is online: its members commit over what it is given")
        remarks = []
        if parsed.yes:
            brokers = sorted({queue.broker_name for queue in source})
            await admin.check_administered(brokers)
            for broker in brokers:
                remark = await admin.clone_offsets(
                    broker, parsed.source, parsed.group, parsed.topic
                )
                remarks += [f"{broker}: {remark}"] if remark else []
    for remark in remarks:
        say(remark)
    _conclude(parsed, moves, {})
    return OK


def _clone_move(queue: MessageQueue, source: GroupProgress, there: GroupProgress | None) -> _Move:
    return _Move(queue, there.consumer_offset if there else None, source.consumer_offset)


# --- output ---------------------------------------------------------------------------------------


def _preview(parsed: argparse.Namespace, moves: list[_Move], told: dict[str, list[str]]) -> None:
    """For people; scripts get it with the result."""
    if parsed.json:
        return
    print_table(
        ("topic", "broker", "queue", "offset", "new offset", "change"),
        [(*move.queue, _place(move.before), move.after, move.text) for move in moves],
    )
    for broker, members in told.items():
        say(f"{broker} tells {', '.join(members)}")


def _place(offset: int | None) -> int | str:
    return "none" if offset is None else offset


def _conclude(parsed: argparse.Namespace, moves: list[_Move], told: dict[str, list[str]]) -> None:
    if parsed.json:
        queues = [move.fields() for move in moves]
        print_json({"group": parsed.group, "done": parsed.yes, "told": told, "queues": queues})
    elif not parsed.yes:
        say(_DRY_RUN)
    else:
        changes = [move.change for move in moves if move.before is not None]
        again = sum(max(-change, 0) for change in changes)
        missed = sum(max(change, 0) for change in changes)
        made = len(moves) - len(changes)
        new = f", {made} new offsets" if made else ""
        say(f"group {parsed.group}: {again} messages back, {missed} forward{new}")
