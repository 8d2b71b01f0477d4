"""`aerobee offset reset`, `clone` and `undo`: where groups are to go on.

They say what they would change, queue by queue, and do it with `--yes` only. The broker of a group
that is online resets it and informs the members: they commit the new offsets. One that is not gets
them committed in its place. Each prints the command that takes it back.
"""

import argparse
import time
from typing import Final

from aerobee.cli.cluster.command_session import admin_of, check_broker, check_group, client_command
from aerobee.cli.cluster.consumer_groups.group_view import BrokerQueue, GroupView
from aerobee.cli.cluster.consumer_groups.offset_moves import (
    Move,
    conclude,
    preview,
    read_places,
    say_how_to_undo,
)
from aerobee.cli.cluster.groups import members_of
from aerobee.cli.cluster.offsets import why_nowhere
from aerobee.cli.printing.output import OK, USAGE, CommandFailed, say
from aerobee.cli.printing.times import parse_time, time_text
from aerobee.client.admin import END_OF_QUEUE, Admin
from aerobee.client.administration.group_lag import GroupQuestions
from aerobee.client.administration.offset_changes import put_group_offsets
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.names import retry_topic

# Before all messages, and after them.
_NAMED: Final = {"earliest": 0, "latest": END_OF_QUEUE}


# --- reset ----------------------------------------------------------------------------------------


@client_command
async def reset_offsets(parsed: argparse.Namespace) -> int:
    """Have a group go on at the beginning, the end, or a time."""
    check_group(parsed.group)
    timestamp_ms = _timestamp(parsed.to)
    async with admin_of(parsed) as admin:
        moves = await _moves(parsed, admin, timestamp_ms)
        told = await _told(parsed, admin, moves)
        if parsed.to not in _NAMED and not parsed.json:
            say(_meant(parsed.to, timestamp_ms))
        preview(parsed, moves, told)
        if parsed.yes:
            # Elsewhere clients' own requests do.
            await admin.check_administered(told)
            say_how_to_undo(parsed, moves)
            for broker in sorted({move.queue.broker_name for move in moves}):
                await _reset(parsed, admin, broker, timestamp_ms, moves)
    conclude(parsed, moves, told)
    return OK


async def _told(
    parsed: argparse.Namespace, admin: Admin, moves: list[Move]
) -> dict[str, list[str]]:
    """The members that would be told, by the brokers that have moves."""
    state = await admin.group_state(parsed.group)
    brokers = sorted({move.queue.broker_name for move in moves})
    return {name: sorted(members_of({name: state[name]})) for name in brokers if name in state}


def _timestamp(where: str) -> int:
    return _NAMED[where] if where in _NAMED else parse_time(where, ", ".join(_NAMED))


def _meant(where: str, timestamp_ms: int) -> str:
    """The time that was understood, and where that leads."""
    moment = f"{time_text(timestamp_ms) or where} in local time"
    if timestamp_ms > time.time_ns() // 1_000_000:
        return f"{moment} is in the future: queues go to their last message, after it with latest"
    return f"queues go to the message that was stored nearest to {moment}"


async def _moves(parsed: argparse.Namespace, admin: Admin, timestamp_ms: int) -> list[Move]:
    """The offset where each queue is to go on, as the brokers compute it."""
    route = await admin.route(parsed.topic)
    names = {span.broker_name for span in route.queues}
    await admin.check_masters(names if parsed.broker is None else names & {parsed.broker})
    view = await _progress(admin, parsed.group, parsed.topic, parsed.broker)
    if view.is_broadcasting or not view.queues:
        raise CommandFailed(await why_nowhere(admin, view, parsed.topic))
    await check_broker(parsed, [one.broker for one in view.queues])
    moves = []
    for broker, one in view.queues:
        if parsed.broker in (None, broker):
            queue = MessageQueue(one.topic, broker, one.queue_id)
            target = await _target(admin, queue, timestamp_ms)
            if parsed.only_back:
                target = min(target, one.first if one.begin is None else one.begin)
            moves.append(Move(queue, one.committed, one.begin, target))
    return moves


async def _progress(
    admin: Admin, group: str, topic: str | None, broker: str | None = None
) -> GroupView:
    """Ask the brokers about a group before it is changed. Raises NetworkError if a broker does not
    answer, unless the change is of another broker alone."""
    questions = GroupQuestions(admin)
    view = GroupView(group, await questions.of(group, topic))
    for name, error in questions.unanswered.items():
        if broker in (None, name):
            raise error
    return view


async def _target(admin: Admin, queue: MessageQueue, timestamp_ms: int) -> int:
    if timestamp_ms == END_OF_QUEUE:
        return await admin.max_offset(queue)
    return await admin.offset_at(queue, timestamp_ms)


async def _reset(
    parsed: argparse.Namespace, admin: Admin, broker: str, timestamp_ms: int, moves: list[Move]
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
        progress = await _progress(admin, parsed.source, parsed.topic)
        # Messages that wait for its own retry come to no other group.
        skipped = None if parsed.topic else retry_topic(parsed.source)
        source = [] if progress.is_broadcasting else progress.queues
        source = [one for one in source if one.state.topic != skipped]
        if not source:
            raise CommandFailed(await why_nowhere(admin, progress, parsed.topic))
        await admin.check_masters(one.broker for one in source)
        there = await _progress(admin, parsed.group, parsed.topic)
        moves = _clone_moves(source, there.queues)
        state = await admin.group_state(parsed.group)
        preview(parsed, moves, {})
        if parsed.group not in await admin.groups():
            say(f"there is no group {parsed.group} yet: it is made with these offsets")
        if state:
            say(f"the group {parsed.group} is online: its members commit over what it is given")
        remarks = []
        if parsed.yes:
            brokers = sorted({one.broker for one in source})
            await admin.check_administered(brokers)
            say_how_to_undo(parsed, moves)
            for broker in brokers:
                remark = await admin.clone_offsets(
                    broker, parsed.source, parsed.group, parsed.topic
                )
                remarks += [f"{broker}: {remark}"] if remark else []
    for remark in remarks:
        say(remark)
    conclude(parsed, moves, {})
    return OK


def _clone_moves(source: list[BrokerQueue], there: list[BrokerQueue]) -> list[Move]:
    """The offsets that a group would get, in the queues where the source has an offset or would
    start at a known one."""
    known = {(broker, one.topic, one.queue_id): one for broker, one in there}
    moves = []
    for broker, one in source:
        after = one.begin if one.committed is None else one.committed
        own = known.get((broker, one.topic, one.queue_id))
        if after is not None:
            queue = MessageQueue(one.topic, broker, one.queue_id)
            moves.append(
                Move(queue, own.committed if own else None, own.begin if own else None, after)
            )
    return moves


# --- undo -----------------------------------------------------------------------------------------


@client_command
async def undo_offsets(parsed: argparse.Namespace) -> int:
    """Give a group the offsets that a reset or a clone has named."""
    check_group(parsed.group)
    wanted = read_places(parsed.offsets)
    async with admin_of(parsed) as admin:
        await admin.check_masters({queue.broker_name for queue in wanted})
        view = await _progress(admin, parsed.group, None)
        known = {MessageQueue(one.topic, broker, one.queue_id): one for broker, one in view.queues}
        if missing := sorted(wanted.keys() - known.keys()):
            raise CommandFailed(
                f"the group {parsed.group} has nothing in queue {missing[0].queue_id} of "
                f"{missing[0].topic} at {missing[0].broker_name} (aerobee offset show lists where "
                "it has)"
            )
        moves = [
            Move(queue, known[queue].committed, known[queue].begin, offset)
            for queue, offset in sorted(wanted.items())
        ]
        told = await _told(parsed, admin, moves)
        preview(parsed, moves, told)
        if parsed.yes:
            await admin.check_administered(told)
            say_how_to_undo(parsed, moves)
            await put_group_offsets(
                admin,
                parsed.group,
                {one.queue: one.after for one in moves},
                online=set(told),
                cannot={name for name in told if not view.views[name].is_full},
            )
    conclude(parsed, moves, told)
    return OK
