"""`aerobee topic create`: it makes a topic, and changes one only with --update.

To a broker both are one request, which replaces the topic that it has. A topic that loses queues
loses their messages for every reader, so a change needs `--update`, and a change that loses
messages needs `--yes`. The command first says what it would do, also to messages that wait
(delayed, timed, in transactions, staged, retries): for those the broker finds other queues.
Settings that are not named stay as they are.
"""

import argparse
from typing import Final, NamedTuple

from msgspec.structs import replace

from aerobee.cli.cluster.command_session import admin_of, client_command, consumer_of
from aerobee.cli.cluster.topics import Waiting, rights_text, waiting_for
from aerobee.cli.printing.output import OK, USAGE, CommandFailed, print_json, say
from aerobee.client.admin import Admin
from aerobee.client.errors import NoRoute
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.bodies.routes import PERM_READ, PERM_READ_WRITE, PERM_WRITE
from aerobee.protocol.bodies.topics import TopicConfig

_QUEUES: Final = 8
_PERMISSIONS: Final = {"r": PERM_READ, "w": PERM_WRITE, "rw": PERM_READ_WRITE}


class _Step(NamedTuple):
    """The topic as one broker has it (None: not at all) and as it should be there."""

    broker: str
    before: TopicConfig | None
    after: TopicConfig

    @property
    def changes(self) -> list[str]:
        """Says what would become different; empty for a topic that is new or the same."""
        if self.before is None:
            return []
        pairs = (
            ("read queues", self.before.read_queues, self.after.read_queues),
            ("write queues", self.before.write_queues, self.after.write_queues),
            ("rights", rights_text(self.before.perm), rights_text(self.after.perm)),
        )
        return [f"{what} {old} -> {new}" for what, old, new in pairs if old != new]

    @property
    def falls_away(self) -> range:
        """The queues that could not be read any more."""
        return range(self.after.read_queues, self.before.read_queues if self.before else 0)


@client_command
async def create_topic(parsed: argparse.Namespace) -> int:
    """Create a topic; change an existing topic only with `--update`, and with loss of messages only
    with `--yes`."""
    _check_flags(parsed)
    async with admin_of(parsed) as admin:
        there = await admin.topic_settings(
            parsed.topic, cluster=parsed.cluster, broker=parsed.broker
        )
        steps = [_Step(broker, data, _asked(parsed, data)) for broker, data in there.items()]
        _check_readable(steps)
        if any(step.changes for step in steps) and not parsed.update:
            loss = await _loss(parsed, admin, steps)
            raise CommandFailed(f"{_what_changes(parsed, steps, loss)} (--update does it)")
        wanted = [step for step in steps if step.before != step.after]
        await admin.check_administered(step.broker for step in wanted)
        if any(step.falls_away for step in wanted) and not parsed.yes:
            loss = await _loss(parsed, admin, steps)
            if not loss.is_none:
                _preview(parsed, steps, loss)
                return OK
        for step in wanted:
            await admin.put_topic(step.broker, step.after)
    _report(parsed, steps)
    return OK


def _check_flags(parsed: argparse.Namespace) -> None:
    if parsed.queues and (parsed.read_queues or parsed.write_queues):
        raise CommandFailed(
            "--queues is the number of both: give it, or --read-queues and --write-queues", USAGE
        )


def _check_readable(steps: list[_Step]) -> None:
    """Nobody is to send where nobody reads, unless it is so already."""
    for step in steps:
        read, write = step.after.read_queues, step.after.write_queues
        before = step.before
        is_so = before is not None and (before.read_queues, before.write_queues) == (read, write)
        if write > read and not is_so:
            raise CommandFailed(
                f"{write} queues to write and {read} to read on {step.broker}: what is sent to "
                f"those from {read} on could not be read; take the write queues first "
                "(--write-queues), the read queues when the others are consumed",
                USAGE,
            )


def _asked(parsed: argparse.Namespace, before: TopicConfig | None) -> TopicConfig:
    """The settings asked for; what was not asked for stays."""
    read = parsed.read_queues or parsed.queues
    write = parsed.write_queues or parsed.queues
    if before is None:
        perm = _PERMISSIONS[parsed.perm or "rw"]
        return TopicConfig(parsed.topic, read or write or _QUEUES, write or read or _QUEUES, perm)
    perm = before.perm
    if parsed.perm is not None:
        perm = before.perm & ~PERM_READ_WRITE | _PERMISSIONS[parsed.perm]
    return replace(
        before,
        read_queues=read or before.read_queues,
        write_queues=write or before.write_queues,
        perm=perm,
    )


class _Loss(NamedTuple):
    """The losses with queues that fall away: messages in them, and what waits for
    them."""

    unreadable: int
    waiting: Waiting

    @property
    def is_none(self) -> bool:
        """Whether it is known that nothing would be lost to readers."""
        return not self.unreadable and self.waiting.is_none

    @property
    def text(self) -> str:
        """Two sentences, the second where something waits."""
        text = f"{self.unreadable} messages would become unreadable, in the queues that fall away"
        waits = self.waiting.text("for those queues would be stored in the ones that stay")
        return f"{text}; {waits}" if waits else text


def _what_changes(parsed: argparse.Namespace, steps: list[_Step], loss: _Loss) -> str:
    """A sentence about the differences, their brokers, and the messages that would be lost."""
    parts = [f"{', '.join(step.changes)} on {step.broker}" for step in steps if step.changes]
    text = f"topic {parsed.topic} exists; this would change {'; '.join(parts)}"
    return f"{text}; {loss.text}" if any(step.falls_away for step in steps) else text


def _preview(parsed: argparse.Namespace, steps: list[_Step], loss: _Loss) -> None:
    if parsed.json:
        print_json(
            {
                "topic": parsed.topic,
                "result": "unchanged",
                "unreadable": loss.unreadable,
                "waiting": loss.waiting.counts,
                "waiting_not_looked_at": loss.waiting.unlooked,
                "waiting_not_known_on": list(loss.waiting.silent),
                "brokers": [step.broker for step in steps],
            }
        )
        return
    say(_what_changes(parsed, steps, loss))
    say("nothing was changed; --yes does it")


async def _loss(parsed: argparse.Namespace, admin: Admin, steps: list[_Step]) -> _Loss:
    smaller = {step.broker: step.after.read_queues for step in steps if step.falls_away}
    if not smaller:
        return _Loss(0, Waiting({}, 0, ()))
    waiting = await waiting_for(admin, parsed.topic, smaller)
    return _Loss(await _unreadable(parsed, steps), waiting)


async def _unreadable(parsed: argparse.Namespace, steps: list[_Step]) -> int:
    """Messages in the queues that could not be read any more."""
    count = 0
    async with consumer_of(parsed) as consumer:
        try:
            await consumer.queues(parsed.topic)  # the consumer gets to know the brokers
        except NoRoute:
            return 0  # no name server knows the topic yet, so no producer could send to it
        for step in steps:
            for number in step.falls_away:
                queue = MessageQueue(parsed.topic, step.broker, number)
                count += await consumer.max_offset(queue) - await consumer.min_offset(queue)
    return count


def _report(parsed: argparse.Namespace, steps: list[_Step]) -> None:
    """Say what was done; where a single figure fits, it is the first broker's."""
    result = "unchanged"
    if any(step.changes for step in steps):
        result = "changed"
    elif any(step.before is None for step in steps):
        result = "created"
    shown = steps[0].after
    rights = rights_text(shown.perm)
    if parsed.json:
        fields = {"topic": parsed.topic, "result": result, "queues": shown.write_queues}
        if shown.read_queues != shown.write_queues:
            fields["read_queues"] = shown.read_queues
        print_json({**fields, "rights": rights, "brokers": [step.broker for step in steps]})
        return
    state = "exists already, " if result == "unchanged" else ""
    queues = f"{shown.write_queues} queues"
    if shown.read_queues != shown.write_queues:
        queues = f"{shown.write_queues} queues to write, {shown.read_queues} to read"
    say(f"topic {parsed.topic}: {state}{queues}, rights {rights}")
