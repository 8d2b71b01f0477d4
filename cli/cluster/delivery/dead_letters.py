"""`aerobee dlq list`, `peek` and `export`: dead letters, read without leaving a trace."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack
from typing import Final

import msgspec

from aerobee.cli.cluster.command_session import admin_of, check_group, client_command, consumer_of
from aerobee.cli.cluster.delivery.asking import all_brokers, place, say_unanswered, unknown
from aerobee.cli.documents.dead_letters import DeadLetter, DeadLetterExport, DeadLetterGroup
from aerobee.cli.documents.document import print_document
from aerobee.cli.printing.message_text import full_fields, json_fields
from aerobee.cli.printing.output import (
    CommandFailed,
    body_text,
    print_pairs,
    print_table,
    say,
    show,
)
from aerobee.cli.printing.times import time_text
from aerobee.cli.printing.whole_file import WholeFile
from aerobee.client.admin import Admin
from aerobee.client.administration.asked_brokers import AskedBrokers
from aerobee.client.administration.dead_letters import (
    DeadLetterQueue,
    dead_letter_queues,
    groups_of,
    original_id,
    original_topic,
    read_range,
    reason_of,
    tries_of,
)
from aerobee.client.administration.foreign_places import TOLD_OR_NOT, known_groups
from aerobee.client.consuming.pull_consumer import PullConsumer
from aerobee.client.message import ReceivedMessage, UnreadableMessage
from aerobee.protocol.bodies.statistics import parse_retry_limits
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.names import dlq_topic

_BODY_SHOWN: Final = 60


@client_command
async def list_groups(parsed: argparse.Namespace) -> int:
    """Print the groups that have dead letters; with `--all` those whose dead letters are gone."""
    async with admin_of(parsed, reads_slaves=True) as admin:
        asked = await all_brokers(admin)
        groups = groups_of(await admin.topics())
        queues = await dead_letter_queues(asked, groups)
    rows = [_summary(group, queues, asked) for group in sorted(groups)]
    rows = [row for row in rows if row.messages or parsed.all]
    if parsed.json:
        print_document(rows)
    else:
        _print_groups(rows)
    return say_unanswered(asked)


def _summary(group: str, queues: Iterable[DeadLetterQueue], asked: AskedBrokers) -> DeadLetterGroup:
    having = [one for one in queues if one.group == group and one.letters]
    return DeadLetterGroup(
        group=group,
        messages=sum(one.letters for one in having),
        not_resent=sum(one.end - one.start for one in having),
        oldest_timestamp_ms=min(filter(None, [one.oldest_ms for one in having]), default=None),
        newest_timestamp_ms=max(filter(None, [one.newest_ms for one in having]), default=None),
        brokers=sorted({one.queue.broker_name for one in having}),
        brokers_unanswered=sorted(asked.unanswered),
    )


def _print_groups(rows: list[DeadLetterGroup]) -> None:
    if not rows:
        say("no group has dead letters")
    more = " + ?" if any(row.brokers_unanswered for row in rows) else ""
    print_table(
        ("group", "messages", "not resent", "oldest", "newest", "brokers"),
        [
            (
                row.group,
                f"{row.messages}{more}",
                f"{row.not_resent}{more}",
                known_time(row.oldest_timestamp_ms),
                known_time(row.newest_timestamp_ms),
                ", ".join(row.brokers),
            )
            for row in rows
        ],
    )


def known_time(timestamp_ms: int | None) -> str:
    """A time for people, `?` for a time that nobody knows."""
    return "?" if timestamp_ms is None else time_text(timestamp_ms)


# --- reading them ---------------------------------------------------------------------------------


@client_command
async def peek(parsed: argparse.Namespace) -> int:
    """Print up to `--count` dead letters of a group, the oldest first."""
    check_group(parsed.group)
    async with AsyncExitStack() as clients:
        admin = await clients.enter_async_context(admin_of(parsed, reads_slaves=True))
        consumer = await clients.enter_async_context(consumer_of(parsed))
        asked, queues = await letters_of(admin, parsed.group)
        limits = await _retry_limits(asked)
        found: list[ReceivedMessage] = []
        for queue in queues:
            end = min(queue.end, queue.least + parsed.count)
            found += [one async for one in read_range(consumer, queue.queue, queue.least, end)]
    found.sort(key=lambda one: (one.store_timestamp_ms, one.queue, one.queue_offset))
    shown = found[: parsed.count]
    if parsed.json:
        for message in shown:
            print_document(document_of(parsed.group, message, limits), compact=True)
    elif parsed.full:
        _print_full(parsed.group, shown, limits)
    else:
        _print_letters(shown, limits)
    rest = sum(queue.letters for queue in queues) - len(shown)
    if rest > 0:
        say(f"{len(shown)} shown, {rest} more; --count N for more")
    return say_unanswered(asked)


def _print_letters(messages: list[ReceivedMessage], limits: Mapping[str, int]) -> None:
    print_table(
        ("dead since", "place", "message id", "topic", "tries", "reason", "body"),
        [
            (
                time_text(one.store_timestamp_ms),
                place(one.queue, one.queue_offset),
                one.msg_id,
                original_topic(one) or "?",
                tries_of(one),
                reason_of(one, limits),
                _body(one),
            )
            for one in messages
        ],
    )


def _body(message: ReceivedMessage) -> str:
    if isinstance(message, UnreadableMessage):
        return f"CANNOT BE READ, {len(message.stored_body)} bytes"
    return body_text(message.body, _BODY_SHOWN)


def _print_full(group: str, messages: list[ReceivedMessage], limits: Mapping[str, int]) -> None:
    for number, message in enumerate(messages):
        if number:
            show("")
        more = {
            "group": group,
            "original topic": original_topic(message) or "?",
            "tries": tries_of(message),
            "reason": reason_of(message, limits),
        }
        print_pairs({**more, **full_fields(message)})


def document_of(group: str, message: ReceivedMessage, limits: Mapping[str, int]) -> DeadLetter:
    """A dead letter for scripts."""
    fields = json_fields(message)
    return DeadLetter(
        group=group,
        original_topic=original_topic(message),
        msg_id=message.msg_id,
        original_msg_id=original_id(message),
        offset_msg_id=message.offset_msg_id,
        broker=message.queue.broker_name,
        queue=message.queue.queue_id,
        offset=message.queue_offset,
        tries=tries_of(message),
        reason=reason_of(message, limits),
        dead_timestamp_ms=message.store_timestamp_ms,
        born_timestamp_ms=message.born_timestamp_ms,
        tags=message.tags,
        keys=list(message.keys),
        properties=message.properties,
        body=fields["body"],
        body_base64=fields.get("body_base64"),
        unreadable=fields.get("unreadable"),
    )


@client_command
async def export(parsed: argparse.Namespace) -> int:
    """Write all dead letters of a group into a new file, one JSON object a line."""
    check_group(parsed.group)
    count = 0
    async with AsyncExitStack() as clients:
        admin = await clients.enter_async_context(admin_of(parsed, reads_slaves=True))
        consumer = await clients.enter_async_context(consumer_of(parsed))
        asked, queues = await letters_of(admin, parsed.group)
        if asked.unanswered:
            # A file that lacks some would be taken for all of them.
            say(f"{parsed.file} was not written: not all dead letters can be read")
            return say_unanswered(asked)
        limits = await _retry_limits(asked)
        with WholeFile(parsed.file) as file:
            async for message in _all_letters(consumer, queues):
                line = msgspec.json.encode(document_of(parsed.group, message, limits))
                file.write(line + b"\n")
                count += 1
    done = DeadLetterExport(
        group=parsed.group, file=parsed.file, messages=count, size_bytes=file.size
    )
    if parsed.json:
        print_document(done)
    else:
        say(f"{count} dead letters of {parsed.group} are in {parsed.file} ({file.size} bytes)")
    return say_unanswered(asked)


async def _all_letters(
    consumer: PullConsumer, queues: Iterable[DeadLetterQueue]
) -> AsyncIterator[ReceivedMessage]:
    for queue in queues:
        async for message in read_range(consumer, queue.queue, queue.least, queue.end):
            yield message


async def letters_of(admin: Admin, group: str) -> tuple[AskedBrokers, list[DeadLetterQueue]]:
    """The brokers that were asked, and the queues of a group's dead letters that have some.
    CommandFailed for a group that has none, or that nobody knows."""
    asked = await all_brokers(admin)
    having = groups_of(await admin.topics())
    if group in having:
        queues = await dead_letter_queues(asked, [group])
        found = [one for one in queues if one.letters]
        if found or asked.unanswered:
            await admin.route(dlq_topic(group))
            return asked, found
    elif group not in (known := await known_groups(asked)):
        raise unknown("group", group, {*known, *having})
    raise CommandFailed(f"the group {group} has no dead letters")


async def _retry_limits(asked: AskedBrokers) -> dict[str, int]:
    """How often the groups are delivered messages again, at the first broker that says it."""
    code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
    for broker in asked.names:
        answer = await asked.call(broker, code, accept=TOLD_OR_NOT)
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            return parse_retry_limits(answer.body)
    return {}
