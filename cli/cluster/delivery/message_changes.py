"""`aerobee message resend` and `skip`: one message again, or past one message.

`resend` sends a copy to the message's topic, where all groups get it again, or to the retry topic
of one group, which alone gets it. `skip` takes the message at the head of a group's queue out of
its way: it becomes a dead letter of the group first, and then the group's offset goes behind it, so
a skip that is broken off loses nothing and goes on where it was.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from contextlib import AsyncExitStack
from typing import Final, NamedTuple

from msgspec.structs import replace

from aerobee.cli.cluster.command_session import admin_of, check_group, client_command, consumer_of
from aerobee.cli.cluster.delivery.asking import (
    all_brokers,
    check_retry_topic,
    say_unanswered,
    unknown,
)
from aerobee.cli.cluster.delivery.message_state import found_messages, place_of, print_place
from aerobee.cli.cluster.previews import check_expected, say_how_to
from aerobee.cli.documents.document import print_document
from aerobee.cli.documents.messages import MessageResend, MessageSkip
from aerobee.cli.printing.output import USAGE, CommandFailed, say
from aerobee.cli.printing.times import time_text
from aerobee.client.admin import Admin
from aerobee.client.administration.asked_brokers import AskedBrokers
from aerobee.client.administration.foreign_places import (
    groups_consuming,
    known_groups,
    offset_of,
    query_unique,
    subscription_of,
)
from aerobee.client.administration.message_places import searched_topics, told_by_broker
from aerobee.client.administration.resending import Resending
from aerobee.client.consuming.pull_consumer import PullConsumer
from aerobee.client.consuming.send_back import send_back
from aerobee.client.message import ReceivedMessage
from aerobee.nearest_name import nearest_name
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.message.properties import PROPERTY_ORIGIN_MESSAGE_ID, PROPERTY_UNIQUE_KEY
from aerobee.protocol.names import dlq_topic, retry_topic

# A give-back with this level makes a dead letter at once.
_DEAD_AT_ONCE: Final = -1
_LOOK_S: Final = 0.05
TOPIC, GROUP = "topic", "group"


@client_command
async def resend(parsed: argparse.Namespace) -> int:
    """Send a message again, to all groups of its topic or to one group."""
    async with admin_of(parsed) as admin:
        asked = await all_brokers(admin)
        kind = await _kind_of(parsed, admin, asked)
        topic = parsed.target if kind == TOPIC else None
        message = (await found_messages(admin, asked, parsed.id, topic))[-1]
        if topic is not None and message.topic != topic:
            raise CommandFailed(
                f"{parsed.id} is a message of {message.topic}, not of {topic}: nothing was sent"
            )
        resending = Resending(admin.session)
        shown = await _resend_document(parsed, admin, asked, kind, message)
        if parsed.yes:
            check_expected(parsed, shown)
            if kind == TOPIC:
                await resending.to_topic(message.topic, message)
            else:
                await resending.to_group(parsed.target, message)
        elif kind == GROUP and (copy := await resending.copy_of(parsed.target, message)):
            at = time_text(copy.store_timestamp_ms)
            say(f"the group {parsed.target} was sent it again already, at {at}")
    if parsed.json:
        print_document(replace(shown, done=parsed.yes))
    elif parsed.yes:
        say(f"{message.msg_id} went to {shown.to}")
    else:
        print_place(shown.message)
        say(f"by {shown.to} it goes again to {', '.join(shown.groups) or 'no group'}")
    if not parsed.yes:
        say_how_to(parsed, shown)
    return say_unanswered(asked)


async def _kind_of(parsed: argparse.Namespace, admin: Admin, asked: AskedBrokers) -> str:
    """Whether the target is a topic or a group. CommandFailed for both, or neither."""
    target = parsed.target
    topics = searched_topics(await admin.topics())
    groups = await known_groups(asked)
    kinds = [kind for kind, known in ((TOPIC, topics), (GROUP, groups)) if target in known]
    if parsed.kind is not None:
        kinds = [kind for kind in kinds if kind == parsed.kind]
    if len(kinds) == 2:
        raise CommandFailed(
            f"{target} is a topic and a group: say which is meant, --as topic or --as group", USAGE
        )
    if not kinds:
        near = nearest_name(target, [*topics, *groups])
        hint = f"; did you mean {near}?" if near else ""
        raise CommandFailed(f"there is no {parsed.kind or 'topic or group'} {target}{hint}")
    return kinds[0]


async def _resend_document(
    parsed: argparse.Namespace,
    admin: Admin,
    asked: AskedBrokers,
    kind: str,
    message: ReceivedMessage,
) -> MessageResend:
    if kind == GROUP:
        to = retry_topic(parsed.target)
        await check_retry_topic(admin, parsed.target)
        groups = [parsed.target]
    else:
        to = message.topic
        groups = await groups_consuming(asked, message.topic)
    return MessageResend(message=place_of(message), to=to, groups=groups, done=False)


# --- skip -----------------------------------------------------------------------------------------


class _Head(NamedTuple):
    """The first message of a queue that a group has before it. `message_model` is None while no
    member of the group is online at the queue's broker."""

    queue: MessageQueue
    offset: int
    message: ReceivedMessage
    message_model: str | None


@client_command
async def skip(parsed: argparse.Namespace) -> int:
    """Make the message at the head of a group's queue a dead letter, and go on behind it."""
    check_group(parsed.group)
    async with AsyncExitStack() as clients:
        admin = await clients.enter_async_context(admin_of(parsed))
        consumer = await clients.enter_async_context(consumer_of(parsed))
        asked = await all_brokers(admin)
        await _check_names(parsed, admin, asked)
        queue = await _queue(parsed, admin)
        head = await _head(parsed.group, asked, consumer, queue)
        is_online = await _is_online(parsed.group, admin, asked, head)
        shown = _skip_document(parsed, head)
        if parsed.yes:
            check_expected(parsed, shown)
            await _make_dead(parsed, admin, asked, head.message)
            await _go_behind(parsed.group, admin, head, is_online=is_online)
    if parsed.json:
        print_document(replace(shown, done=parsed.yes))
    elif parsed.yes:
        say(f"{head.message.msg_id} is in {shown.to}; {parsed.group} goes on behind it")
    else:
        print_place(shown.message)
        say(f"it would go to {shown.to}, and {parsed.group} would go on at {shown.offset_after}")
        if is_online:
            say("the group is online: its members are told, and drop what they hold of the queue")
    if not parsed.yes:
        say_how_to(parsed, shown)
    return say_unanswered(asked)


def _skip_document(parsed: argparse.Namespace, head: _Head) -> MessageSkip:
    return MessageSkip(
        group=parsed.group,
        message=place_of(head.message),
        to=dlq_topic(parsed.group),
        offset_before=head.offset,
        offset_after=head.message.queue_offset + 1,
        done=False,
    )


async def _check_names(parsed: argparse.Namespace, admin: Admin, asked: AskedBrokers) -> None:
    if parsed.topic not in (topics := await admin.topics()):
        raise unknown("topic", parsed.topic, topics)
    if parsed.group not in (groups := await known_groups(asked)):
        raise unknown("group", parsed.group, groups)


async def _queue(parsed: argparse.Namespace, admin: Admin) -> MessageQueue:
    """The queue that is meant. CommandFailed where several brokers or none have it."""
    spans = (await admin.route(parsed.topic)).queues
    names = sorted(one.broker_name for one in spans if parsed.queue < one.read_queues)
    if parsed.broker is not None:
        names = [name for name in names if name == parsed.broker]
    if not names:
        where = f" at {parsed.broker}" if parsed.broker else ""
        raise CommandFailed(f"topic {parsed.topic} has no queue {parsed.queue}{where}")
    if len(names) > 1:
        raise CommandFailed(
            f"queue {parsed.queue} of {parsed.topic} is at {', '.join(names)}: name one (--broker)",
            USAGE,
        )
    return MessageQueue(parsed.topic, names[0], parsed.queue)


async def _head(
    group: str, asked: AskedBrokers, consumer: PullConsumer, queue: MessageQueue
) -> _Head:
    """The first message behind a group's offset that its members subscribe to."""
    broker = queue.broker_name
    offset = await offset_of(asked, broker, group, queue.topic, queue.queue_id)
    if broker in asked.unanswered:
        raise asked.unanswered[broker]
    if offset is None:
        raise CommandFailed(
            f"the group {group} has no offset in queue {queue.queue_id} of {queue.topic}"
        )
    expression, kind, model = await subscription_of(asked, broker, group, queue.topic)
    at = offset
    end = await consumer.max_offset(queue)
    while at < end:
        result = await consumer.pull(
            queue, at, max_messages=1, expression=expression or "*", expression_type=kind
        )
        if result.messages:
            return _Head(queue, offset, result.messages[0], model)
        if result.next_offset <= at:
            break
        at = result.next_offset
    raise CommandFailed(
        f"there is nothing to skip: {group} has no message before it in queue {queue.queue_id} of "
        f"{queue.topic} (its offset is {offset}, the end is {end})"
    )


async def _is_online(group: str, admin: Admin, asked: AskedBrokers, head: _Head) -> bool:
    """Whether members of the group are online at the queue's broker. CommandFailed for members that
    the broker cannot tell to go on at one offset: they would commit over it."""
    if head.message_model is None:
        return False
    if await told_by_broker(admin, asked, head.message) is None:
        raise CommandFailed(
            f"the group {group} is online, and would commit over the new offset: "
            f"{head.queue.broker_name} is not Aerobee's and cannot tell members to go on at one "
            "offset of a queue; stop the group's members first"
        )
    return True


async def _make_dead(
    parsed: argparse.Namespace, admin: Admin, asked: AskedBrokers, message: ReceivedMessage
) -> None:
    """Make the message a dead letter of the group, unless that was done; returns when it can be
    read there."""
    group = parsed.group
    if await _is_dead(group, asked, message):
        return
    letters = MessageQueue(dlq_topic(group), message.queue.broker_name, 0)
    before = await _end_of(admin, letters)
    await send_back(admin.session, group, message, delay_level=_DEAD_AT_ONCE)
    deadline = time.monotonic() + parsed.timeout
    while await _end_of(admin, letters) <= before:
        if time.monotonic() > deadline:
            raise CommandFailed(
                f"no dead letter came to {letters.topic} in {parsed.timeout:g} s, so the group's "
                "offset was not changed: has the group retry queues (retryQueueNums)?"
            )
        await asyncio.sleep(_LOOK_S)


async def _end_of(admin: Admin, queue: MessageQueue) -> int:
    # The broker's route is known; a topic that is not there yet ends at 0.
    return await admin.max_offset(queue)


async def _is_dead(group: str, asked: AskedBrokers, message: ReceivedMessage) -> bool:
    unique_id = message.properties.get(PROPERTY_UNIQUE_KEY)
    if unique_id is None:
        return False
    letters = await query_unique(asked, dlq_topic(group), unique_id, [message.queue.broker_name])
    return any(
        one.properties.get(PROPERTY_ORIGIN_MESSAGE_ID) == message.offset_msg_id for one in letters
    )


async def _go_behind(group: str, admin: Admin, head: _Head, *, is_online: bool) -> None:
    offset = head.message.queue_offset + 1
    if not is_online or not await admin.reset_queue(group, head.queue, offset):
        await admin.commit_offset(group, head.queue, offset)
