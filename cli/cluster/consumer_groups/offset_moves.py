"""Moves of a group's offsets: shown as a preview, checked against `--expect`, and the command that
takes them back.

That command names each offset as it was. It is printed before anything is changed, so it is there
if the change breaks off half-way. Places are written shortly, `TOPIC/BROKER=QUEUE:OFFSET,...`, one
word for each topic of a broker.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from aerobee.cli.cluster.previews import check_expected, say_how_to
from aerobee.cli.documents.document import print_document
from aerobee.cli.documents.offsets import OffsetMove, OffsetsMoved
from aerobee.cli.printing.output import USAGE, CommandFailed, print_table, say
from aerobee.protocol.bodies.common import MessageQueue


class Move(NamedTuple):
    """A queue in which a group would go on somewhere else."""

    queue: MessageQueue
    #: Its offset before, None without one; then where it would start, None if nobody knows.
    before: int | None
    begin: int | None
    after: int

    @property
    def change(self) -> int:
        """Messages that it would miss; those that it gets again are below 0."""
        return self.after - (self.begin or 0)

    @property
    def text(self) -> str:
        """Says for people what that means."""
        if self.begin is None:
            return "new"
        if self.change < 0:
            return f"back by {-self.change}"
        return f"forward by {self.change}" if self.change else "stays"

    @property
    def document(self) -> OffsetMove:
        """The move, for scripts."""
        topic, broker, queue_id = self.queue
        return OffsetMove(
            topic=topic,
            broker=broker,
            queue=queue_id,
            before=self.before,
            after=self.after,
            change=self.change,
        )


def preview(parsed: argparse.Namespace, moves: list[Move], told: dict[str, list[str]]) -> None:
    """Show the moves to people; scripts get them with the result. Raises CommandFailed if
    `--expect` names others."""
    if not parsed.json:
        print_table(
            ("topic", "broker", "queue", "offset", "new offset", "change"),
            [
                (*one.queue, "none" if one.before is None else one.before, one.after, one.text)
                for one in moves
            ],
        )
        for broker, members in told.items():
            say(f"{broker} tells {', '.join(members)}")
    check_expected(parsed, [one.document for one in moves])


def say_how_to_undo(parsed: argparse.Namespace, moves: list[Move]) -> None:
    """Print the command that gives the offsets back."""
    back = {one.queue: one.before if one.before is not None else one.begin for one in moves}
    known = {queue: offset for queue, offset in back.items() if offset is not None}
    if known:
        there = ["-n", parsed.name_servers] if parsed.name_servers else []
        words = ["aerobee", "offset", "undo", parsed.group, *places(known), *there, "--yes"]
        command = shlex.join(words)
        say(f"this takes it back: {command}")
    if len(known) < len(back):
        say(f"{len(back) - len(known)} queues had no offset, which cannot be given back")


def conclude(parsed: argparse.Namespace, moves: list[Move], told: dict[str, list[str]]) -> None:
    """Say what was done, or how it is done."""
    shown = [one.document for one in moves]
    if parsed.json:
        print_document(OffsetsMoved(group=parsed.group, done=parsed.yes, told=told, queues=shown))
    if not parsed.yes:
        say_how_to(parsed, shown)
        if told:
            say("the group is online: if it has gone on meanwhile, leave --expect away")
    elif not parsed.json:
        changes = [one.change for one in moves if one.begin is not None]
        again = sum(max(-change, 0) for change in changes)
        missed = sum(max(change, 0) for change in changes)
        made = len(moves) - len(changes)
        new = f", {made} new offsets" if made else ""
        say(f"group {parsed.group}: {again} messages back, {missed} forward{new}")


# --- places ---------------------------------------------------------------------------------------


def places(offsets: dict[MessageQueue, int]) -> Iterator[str]:
    """The words that name these offsets, sorted."""
    words: dict[tuple[str, str], list[str]] = {}
    for queue, offset in sorted(offsets.items()):
        words.setdefault((queue.topic, queue.broker_name), []).append(f"{queue.queue_id}:{offset}")
    for (topic, broker), parts in words.items():
        yield f"{topic}/{broker}={','.join(parts)}"


def read_places(words: Iterable[str]) -> dict[MessageQueue, int]:
    """The offsets that such words name. Raises CommandFailed for a word that names none, and for a
    queue that is named twice."""
    found: dict[MessageQueue, int] = {}
    for word in words:
        where, _, parts = word.rpartition("=")
        topic, _, broker = where.partition("/")
        for part in parts.split(","):
            queue_id, _, offset = part.partition(":")
            is_number = queue_id.isascii() and queue_id.isdigit()
            if not (topic and broker and is_number and offset.isascii() and offset.isdigit()):
                raise CommandFailed(
                    f"{word!r} names no offsets: write TOPIC/BROKER=QUEUE:OFFSET,... as "
                    "aerobee offset reset prints it",
                    USAGE,
                )
            queue = MessageQueue(topic, broker, int(queue_id))
            if queue in found:
                raise CommandFailed(f"queue {queue_id} of {where} is named twice", USAGE)
            found[queue] = int(offset)
    return found
