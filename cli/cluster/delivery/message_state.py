"""`aerobee message show`: where a message is, and how far each group is with it."""

from __future__ import annotations

import argparse

from aerobee.cli.cluster.command_session import admin_of, check_message_id, client_command
from aerobee.cli.cluster.delivery.asking import all_brokers, counted, say_unanswered, unknown
from aerobee.cli.documents.document import print_document
from aerobee.cli.documents.messages import GroupWithMessage, MessagePlace, MessageShown, WaitingFor
from aerobee.cli.printing.output import REFUSED, CommandFailed, print_pairs, print_table, say, show
from aerobee.cli.printing.times import time_text
from aerobee.client.admin import Admin
from aerobee.client.administration.asked_brokers import AskedBrokers
from aerobee.client.administration.message_places import (
    MOST_TOPICS,
    GroupState,
    Judge,
    State,
    Waiting,
    find_message,
    find_waiting,
    searched_topics,
)
from aerobee.client.message import ReceivedMessage


@client_command
async def show_message(parsed: argparse.Namespace) -> int:
    """Print a message's place, and for each group of its topic how far it is."""
    async with admin_of(parsed, reads_slaves=True) as admin:
        asked = await all_brokers(admin)
        await check_asked_for(admin, parsed.id, parsed.topic)
        shown = []
        for message in await find_message(admin, asked, parsed.id, parsed.topic):
            judge = Judge(admin, asked, message)
            states = await judge.states()
            shown.append(_document(message, states, tells_all=judge.tells_all))
        if not shown:
            waiting = await find_waiting(asked, parsed.id)
            if waiting is None:
                raise await _not_found(admin, asked, parsed.id, parsed.topic)
            shown.append(_waiting_document(waiting))
    if parsed.json:
        print_document(shown)
    else:
        for number, one in enumerate(shown):
            if number:
                show("")
            _print(one)
    return say_unanswered(asked)


async def found_messages(
    admin: Admin, asked: AskedBrokers, msg_id: str, topic: str | None
) -> list[ReceivedMessage]:
    """The messages with an id that are in a topic; CommandFailed says where it was looked for."""
    await check_asked_for(admin, msg_id, topic)
    if found := await find_message(admin, asked, msg_id, topic):
        return found
    raise await _not_found(admin, asked, msg_id, topic)


async def check_asked_for(admin: Admin, msg_id: str, topic: str | None) -> None:
    """Refuse a text that is no id, and a topic that nobody knows."""
    check_message_id(msg_id)
    if topic is not None and topic not in (known := await admin.topics()):
        raise unknown("topic", topic, known)


async def _not_found(
    admin: Admin, asked: AskedBrokers, msg_id: str, topic: str | None
) -> CommandFailed:
    if topic is not None:
        looked = f"in topic {topic}"
    else:
        count = len(searched_topics(await admin.topics()))
        looked = f"in any of {count} topics"
        if count > MOST_TOPICS:
            looked = f"in {MOST_TOPICS} of {count} topics (--topic names one)"
    code = say_unanswered(asked)
    return CommandFailed(f"no message with id {msg_id} {looked}", code or REFUSED)


def place_of(message: ReceivedMessage) -> MessagePlace:
    """A message for scripts."""
    return MessagePlace(
        topic=message.topic,
        broker=message.queue.broker_name,
        queue=message.queue.queue_id,
        offset=message.queue_offset,
        msg_id=message.msg_id,
        offset_msg_id=message.offset_msg_id,
        tags=message.tags,
        keys=list(message.keys),
        born_timestamp_ms=message.born_timestamp_ms,
        store_timestamp_ms=message.store_timestamp_ms,
        size_bytes=message.size,
    )


def _document(
    message: ReceivedMessage, states: list[GroupState], *, tells_all: bool
) -> MessageShown:
    return MessageShown(
        message=place_of(message),
        broker_tells_all=tells_all,
        groups=[
            GroupWithMessage(
                group=one.group,
                state=one.state.value,
                tries=one.tries,
                limit=one.limit,
                timestamp_ms=one.at_ms,
                ahead=one.ahead,
                subscription=one.subscription,
            )
            for one in states
        ],
    )


def _waiting_document(waiting: Waiting) -> MessageShown:
    reason = WaitingFor(topic=waiting.topic, kind=waiting.kind, due_timestamp_ms=waiting.due_ms)
    return MessageShown(
        message=place_of(waiting.record), broker_tells_all=True, groups=[], waiting=reason
    )


def print_place(message: MessagePlace) -> None:
    """A message for people."""
    print_pairs(
        {
            "topic": message.topic,
            "place": f"{message.broker}/{message.queue}@{message.offset}",
            "message id": message.msg_id,
            "broker's id": message.offset_msg_id,
            "tag": message.tags,
            "keys": " ".join(message.keys),
            "born": time_text(message.born_timestamp_ms),
            "stored": time_text(message.store_timestamp_ms),
        }
    )


def _print(shown: MessageShown) -> None:
    print_place(shown.message)
    if shown.waiting is not None:
        show("", _waiting_text(shown.waiting))
        return
    if not shown.groups:
        say("no group consumes this topic, or has consumed it")
        return
    show("")
    print_table(
        ("group", "state", "subscription"),
        [(one.group, state_text(one), one.subscription or "?") for one in shown.groups],
    )
    if not shown.broker_tells_all:
        say(
            f"{shown.message.broker} does not tell what was given out, nor what filters of "
            "properties decide: Aerobee's brokers tell administrators"
        )


def _waiting_text(waiting: WaitingFor) -> str:
    due_ms = waiting.due_timestamp_ms
    at = "?" if due_ms is None else time_text(due_ms)
    if waiting.kind == "half":
        return (
            f"it is not in {waiting.topic}: its transaction was not committed, and is not decided "
            "yet or was rolled back"
        )
    return f"it goes to {waiting.topic} at {at}, unless it was taken back"


def state_text(one: GroupWithMessage) -> str:
    """The state for people."""
    limit = "?" if one.limit is None else one.limit
    at = "?" if one.timestamp_ms is None else time_text(one.timestamp_ms)
    tried = f"try {one.tries} of {limit}"
    texts = {
        State.CONSUMED: f"consumed at {tried}" if one.tries else "consumed",
        State.PASSED: "passed: its offset is behind it, consumed or filtered out",
        State.NOT_YET: f"not yet: {counted(one.ahead or 0, 'message')} before it",
        State.GIVEN_OUT: "given out, not acknowledged",
        State.WAITS: f"{tried} at {at}",
        State.IN_RETRY: f"{tried} is in its retry queue since {at}",
        State.DEAD: f"dead since {at}, delivered {counted(one.tries + 1, 'time')}",
        State.FILTERED_OUT: "filtered out",
        State.BEGAN_LATER: "began later: it was not to get it",
        State.OWN_OFFSETS: "its members alone know (broadcasting)",
        State.UNKNOWN: "?",
    }
    return texts[State(one.state)]
