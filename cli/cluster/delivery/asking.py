"""Asks all brokers, and says which of them did not answer: shared by these commands."""

from __future__ import annotations

from collections.abc import Iterable

from aerobee.cli.printing.output import CANNOT_CONNECT, OK, CommandFailed, say
from aerobee.client.admin import Admin
from aerobee.client.administration.asked_brokers import AskedBrokers
from aerobee.client.errors import NoRoute
from aerobee.nearest_name import nearest_name
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.names import retry_topic


async def all_brokers(admin: Admin) -> AskedBrokers:
    """The brokers that name servers know."""
    return AskedBrokers(admin.session, (await admin.cluster()).brokers)


def say_unanswered(asked: AskedBrokers) -> int:
    """Say which brokers did not answer, and of which a slave did; the exit code for it."""
    if asked.slaves:
        say(
            f"no master of {', '.join(asked.slaves)} is registered: a slave was asked, which knows "
            "what its master had told it"
        )
    for name, error in sorted(asked.unanswered.items()):
        say(f"{name} did not answer, so what it has is missing here: {error}")
    return CANNOT_CONNECT if asked.unanswered else OK


def unknown(kind: str, name: str, known: Iterable[str]) -> CommandFailed:
    """The error for a name that nobody knows, with the nearest name there is."""
    near = nearest_name(name, known)
    hint = f"; did you mean {near}?" if near else f" (aerobee {kind} list shows what there is)"
    return CommandFailed(f"there is no {kind} {name}{hint}")


def counted(count: int, noun: str) -> str:
    """A number with its noun."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


async def check_retry_topic(admin: Admin, group: str) -> None:
    """Raises CommandFailed for a group that has no retry topic, by which it alone is reached."""
    try:
        await admin.route(retry_topic(group))
    except NoRoute as error:
        raise CommandFailed(
            f"the group {group} has no retry topic yet, so nothing can be sent to it alone: start "
            "a consumer of it once, which makes the topic"
        ) from error


def place(queue: MessageQueue, offset: int) -> str:
    """A place in a queue, as tables show it."""
    return f"{queue.broker_name}/{queue.queue_id}@{offset}"
