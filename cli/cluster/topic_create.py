"""`aerobee topic create`: it makes a topic, and changes one only with --update.

To a broker both are one request, which replaces whatever it has. A topic that loses queues loses
their messages for every reader, so a change needs `--update`; what it would do is said first.
Settings that are not named stay as they are.
"""

import argparse
from typing import Final, NamedTuple

from msgspec.structs import replace

from aerobee.cli.cluster.session import admin_of, client_command, consumer_of
from aerobee.cli.cluster.topics import rights_text
from aerobee.cli.output import OK, CommandFailed, print_json, say
from aerobee.client.errors import NoRoute
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.bodies.routes import PERM_READ, PERM_READ_WRITE, PERM_WRITE
from aerobee.protocol.bodies.topics import TopicConfig

_QUEUES: Final = 8
_PERMISSIONS: Final = {"r": PERM_READ, "w": PERM_WRITE, "rw": PERM_READ_WRITE}


class _Step(NamedTuple):
    """What one broker has (None: no such topic) and what it should have."""

    broker: str
    before: TopicConfig | None
    after: TopicConfig

    @property
    def changes(self) -> list[str]:
        """What would become different, for people; empty for a topic that is new or the same."""
        if self.before is None:
            return []
        pairs = (
            ("read queues", self.before.read_queues, self.after.read_queues),
            ("write queues", self.before.write_queues, self.after.write_queues),
            ("rights", rights_text(self.before.perm), rights_text(self.after.perm)),
        )
        return [f"{what} {old} -> {new}" for what, old, new in pairs if old != new]


@client_command
async def create_topic(parsed: argparse.Namespace) -> int:
    """Create a topic; change one that exists only with `--update`."""
    async with admin_of(parsed) as admin:
        there = await admin.topic_settings(
            parsed.topic, cluster=parsed.cluster, broker=parsed.broker
        )
        steps = [_Step(broker, data, _asked(parsed, data)) for broker, data in there.items()]
        if any(step.changes for step in steps) and not parsed.update:
            raise CommandFailed(await _refusal(parsed, steps))
        wanted = [step for step in steps if step.before != step.after]
        await admin.check_administered(step.broker for step in wanted)
        for step in wanted:
            await admin.put_topic(step.broker, step.after)
    _report(parsed, steps)
    return OK


def _asked(parsed: argparse.Namespace, before: TopicConfig | None) -> TopicConfig:
    """The settings asked for; what was not asked for stays."""
    if before is None:
        queues = parsed.queues or _QUEUES
        return TopicConfig(parsed.topic, queues, queues, _PERMISSIONS[parsed.perm or "rw"])
    perm = before.perm
    if parsed.perm is not None:
        perm = before.perm & ~PERM_READ_WRITE | _PERMISSIONS[parsed.perm]
    return replace(
        before,
        read_queues=parsed.queues or before.read_queues,
        write_queues=parsed.queues or before.write_queues,
        perm=perm,
    )


async def _refusal(parsed: argparse.Namespace, steps: list[_Step]) -> str:
    """One sentence: what is different where, and what would be lost."""
    parts = [f"{', '.join(step.changes)} on {step.broker}" for step in steps if step.changes]
    text = f"topic {parsed.topic} exists; this would change {'; '.join(parts)}"
    if any(step.before and step.after.read_queues < step.before.read_queues for step in steps):
        lost = await _unreadable(parsed, steps)
        text += f"; {lost} messages would become unreadable, in the queues that fall away"
    return f"{text} (--update does it)"


async def _unreadable(parsed: argparse.Namespace, steps: list[_Step]) -> int:
    """Messages in the queues that could not be read any more."""
    count = 0
    async with consumer_of(parsed) as consumer:
        try:
            await consumer.queues(parsed.topic)  # the consumer gets to know the brokers
        except NoRoute:
            return 0  # no name server knows the topic yet, so no producer could send to it
        for step in steps:
            before = step.before.read_queues if step.before else 0
            for number in range(step.after.read_queues, before):
                queue = MessageQueue(parsed.topic, step.broker, number)
                count += await consumer.max_offset(queue) - await consumer.min_offset(queue)
    return count


def _report(parsed: argparse.Namespace, steps: list[_Step]) -> None:
    """What was done; the first broker stands for all where there is room for one figure."""
    result = "unchanged"
    if any(step.changes for step in steps):
        result = "changed"
    elif any(step.before is None for step in steps):
        result = "created"
    shown = steps[0].after
    rights = rights_text(shown.perm)
    if parsed.json:
        fields = {"topic": parsed.topic, "result": result, "queues": shown.write_queues}
        print_json({**fields, "rights": rights, "brokers": [step.broker for step in steps]})
        return
    state = "exists already, " if result == "unchanged" else ""
    say(f"topic {parsed.topic}: {state}{shown.write_queues} queues, rights {rights}")
