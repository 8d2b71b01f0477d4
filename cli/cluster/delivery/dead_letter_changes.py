"""`aerobee dlq resend` and `purge`: both show first what they would do, and do it with `--yes`.

`resend` sends to the group's retry topic, since from the topic that a letter came from all groups
would get it again. How far it has come is the offset of a group of its own at the broker, and each
copy names its letter, so a resend that was broken off goes on where it was and sends nothing twice
(`client/administration/resending.py`).

`purge` deletes the topic of the dead letters. No broker takes single messages out of a topic, and a
topic of dead letters is made again with the next one; so this is what RocketMQ's brokers can do as
well as ours. The space on the disk is freed when the log's retention comes to these messages.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import AsyncExitStack

from aerobee.cli.cluster.command_session import (
    admin_of,
    check_group,
    check_message_id,
    client_command,
    consumer_of,
)
from aerobee.cli.cluster.delivery.asking import check_retry_topic, place, say_unanswered
from aerobee.cli.cluster.delivery.dead_letters import known_time, letters_of
from aerobee.cli.cluster.previews import check_expected, say_how_to
from aerobee.cli.documents.dead_letters import (
    DeadLetterPurge,
    DeadLetterQueueRange,
    DeadLetterResend,
)
from aerobee.cli.documents.document import print_document
from aerobee.cli.printing.output import OK, CommandFailed, print_table, say
from aerobee.cli.printing.times import time_text
from aerobee.client.admin import Admin
from aerobee.client.administration.asked_brokers import AskedBrokers
from aerobee.client.administration.dead_letters import (
    DeadLetterQueue,
    original_topic,
    progress_group,
)
from aerobee.client.administration.foreign_places import query_unique, subscription_of, view
from aerobee.client.administration.resending import Resending, Resent
from aerobee.client.errors import ClientError
from aerobee.client.message import ReceivedMessage
from aerobee.protocol.names import dlq_topic, retry_topic


@client_command
async def resend(parsed: argparse.Namespace) -> int:
    """Send dead letters to their group again."""
    check_group(parsed.group)
    async with AsyncExitStack() as clients:
        admin = await clients.enter_async_context(admin_of(parsed))
        asked, queues = await letters_of(admin, parsed.group)
        await check_retry_topic(admin, parsed.group)
        if parsed.id is not None:
            await _resend_one(parsed, admin, asked)
            return say_unanswered(asked)
        left = [one for one in queues if one.start < one.end]
        shown = _resend_document(parsed.group, left)
        if not left:
            _nothing_left(parsed, shown, asked)
            return say_unanswered(asked)
        if not parsed.yes:
            await _preview_resend(parsed, asked, left, shown)
            return say_unanswered(asked)
        check_expected(parsed, shown)
        consumer = await clients.enter_async_context(consumer_of(parsed))
        resending = Resending(admin.session)
        done = Resent(0, 0)
        for queue in left:
            try:
                one = await resending.letters(consumer, queue, queue.end)
            except ClientError as error:
                say(f"broken off at {queue.queue.broker_name}: the same command goes on there")
                raise error
            done = Resent(done.sent + one.sent, done.before + one.before)
    _conclude_resend(parsed, left, done)
    return say_unanswered(asked)


def _resend_document(
    group: str, queues: Sequence[DeadLetterQueue], done: Resent | None = None
) -> DeadLetterResend:
    return DeadLetterResend(
        group=group,
        to=retry_topic(group),
        done=done is not None,
        queues=[_range(one, one.start) for one in queues],
        sent=None if done is None else done.sent,
        passed_over=None if done is None else done.before,
    )


def _range(queue: DeadLetterQueue, begin: int) -> DeadLetterQueueRange:
    return DeadLetterQueueRange(
        broker=queue.queue.broker_name,
        queue=queue.queue.queue_id,
        begin=begin,
        end=queue.end,
        oldest_timestamp_ms=queue.oldest_ms,
        newest_timestamp_ms=queue.newest_ms,
    )


def _nothing_left(parsed: argparse.Namespace, shown: DeadLetterResend, asked: AskedBrokers) -> None:
    if parsed.json:
        print_document(shown)
    elif not asked.unanswered:
        say(f"all dead letters of {parsed.group} were sent again already")


async def _preview_resend(
    parsed: argparse.Namespace,
    asked: AskedBrokers,
    left: Sequence[DeadLetterQueue],
    shown: DeadLetterResend,
) -> None:
    if parsed.json:
        print_document(shown)
    else:
        print_table(
            ("broker", "queue", "from offset", "to send", "sent before"),
            [
                (
                    one.queue.broker_name,
                    one.queue.queue_id,
                    one.start,
                    one.end - one.start,
                    one.start - one.least,
                )
                for one in left
            ],
        )
        say(f"the group {parsed.group} alone gets them, by {shown.to}, with all tries before it")
        if not await _is_online(asked, parsed.group, left):
            say("nobody of it is online: they wait there until somebody is")
    say_how_to(parsed, shown)


async def _is_online(asked: AskedBrokers, group: str, left: Sequence[DeadLetterQueue]) -> bool:
    """Whether a member of the group is online at one of the brokers."""
    for one in left:
        broker, topic = one.queue.broker_name, retry_topic(group)
        _, _, model = await subscription_of(asked, broker, group, topic)
        if model is not None:
            return True
    return False


def _conclude_resend(
    parsed: argparse.Namespace, left: Sequence[DeadLetterQueue], done: Resent
) -> None:
    if parsed.json:
        print_document(_resend_document(parsed.group, left, done))
        return
    passed = f"; {done.before} had been sent already" if done.before else ""
    say(f"{done.sent} dead letters went to {retry_topic(parsed.group)}{passed}")


# --- one letter -----------------------------------------------------------------------------------


async def _resend_one(parsed: argparse.Namespace, admin: Admin, asked: AskedBrokers) -> None:
    letter = await _letter(asked, parsed.group, parsed.id)
    resending = Resending(admin.session)
    copy = await resending.copy_of(parsed.group, letter)
    if copy is not None:
        raise CommandFailed(
            f"{parsed.id} was sent to {retry_topic(parsed.group)} already, at "
            f"{time_text(copy.store_timestamp_ms)}: a letter is sent once, and a message that "
            "failed again is a new letter"
        )
    shown = _one_document(parsed.group, letter, done=False)
    if parsed.yes:
        check_expected(parsed, shown)
        await resending.to_group(parsed.group, letter)
        if parsed.json:
            print_document(_one_document(parsed.group, letter, done=True))
        else:
            say(f"{letter.msg_id} went to {retry_topic(parsed.group)}")
        return
    if parsed.json:
        print_document(shown)
    else:
        print_table(
            ("dead since", "place", "message id", "topic"),
            [
                (
                    time_text(letter.store_timestamp_ms),
                    place(letter.queue, letter.queue_offset),
                    letter.msg_id,
                    original_topic(letter) or "?",
                )
            ],
        )
    say_how_to(parsed, shown)


def _one_document(group: str, letter: ReceivedMessage, *, done: bool) -> DeadLetterResend:
    offset = letter.queue_offset
    at = DeadLetterQueueRange(
        broker=letter.queue.broker_name,
        queue=letter.queue.queue_id,
        begin=offset,
        end=offset + 1,
        oldest_timestamp_ms=letter.store_timestamp_ms,
        newest_timestamp_ms=letter.store_timestamp_ms,
    )
    return DeadLetterResend(
        group=group,
        to=retry_topic(group),
        done=done,
        queues=[at],
        offset_msg_id=letter.offset_msg_id,
        sent=1 if done else None,
        passed_over=0 if done else None,
    )


async def _letter(asked: AskedBrokers, group: str, msg_id: str) -> ReceivedMessage:
    """The dead letter with an id, the client's or the broker's; the newest of several."""
    check_message_id(msg_id)
    topic = dlq_topic(group)
    if found := await query_unique(asked, topic, msg_id):
        return found[-1]
    message = await view(asked, msg_id)
    if message is None:
        say_unanswered(asked)
        raise CommandFailed(f"no dead letter of {group} has the id {msg_id}")
    if message.topic != topic:
        raise CommandFailed(f"{msg_id} is no dead letter of {group}: it lies in {message.topic}")
    return message


# --- purge ----------------------------------------------------------------------------------------


@client_command
async def purge(parsed: argparse.Namespace) -> int:
    """Delete the dead letters of a group."""
    check_group(parsed.group)
    topic = dlq_topic(parsed.group)
    async with admin_of(parsed) as admin:
        asked, queues = await letters_of(admin, parsed.group)
        if asked.unanswered:
            say("nothing was changed: the topic is deleted at all brokers, or at none")
            return say_unanswered(asked)
        shown = _purge_document(parsed.group, queues, done=False)
        if not parsed.yes:
            _preview_purge(parsed, queues, shown)
            return OK
        check_expected(parsed, shown)
        await admin.check_administered({one.queue.broker_name for one in queues})
        for one in queues:
            if one.resent:
                # A Java broker keeps it, and the next topic of the name begins at 0 again.
                await admin.commit_offset(progress_group(parsed.group), one.queue, 0)
        await admin.delete_topic(topic)
    if parsed.json:
        print_document(_purge_document(parsed.group, queues, done=True))
    else:
        say(f"{topic} is deleted, with {shown.messages} dead letters")
    return OK


def _purge_document(
    group: str, queues: Sequence[DeadLetterQueue], *, done: bool
) -> DeadLetterPurge:
    return DeadLetterPurge(
        group=group,
        topic=dlq_topic(group),
        messages=sum(one.letters for one in queues),
        not_resent=sum(one.end - one.start for one in queues),
        done=done,
        queues=[_range(one, one.least) for one in queues],
    )


def _preview_purge(
    parsed: argparse.Namespace, queues: Sequence[DeadLetterQueue], shown: DeadLetterPurge
) -> None:
    if parsed.json:
        print_document(shown)
    else:
        print_table(
            ("broker", "queue", "messages", "not resent", "oldest", "newest"),
            [
                (
                    one.queue.broker_name,
                    one.queue.queue_id,
                    one.letters,
                    one.end - one.start,
                    known_time(one.oldest_ms),
                    known_time(one.newest_ms),
                )
                for one in queues
            ],
        )
        say(f"the topic {shown.topic} would be deleted; the next dead letter makes it again")
        say(f"to keep them in a file: aerobee dlq export {parsed.group} FILE")
    say_how_to(parsed, shown)
