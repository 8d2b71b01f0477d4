"""`aerobee topic list`, `describe` and `delete`: the topics, and their messages."""

import argparse
import asyncio
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from aerobee.cli.cluster.command_session import (
    admin_of,
    check_topic,
    client_command,
    say_unanswered,
)
from aerobee.cli.documents.document import print_document
from aerobee.cli.documents.topics import TopicDescription, TopicOnBroker, TopicQueue, TopicSummary
from aerobee.cli.printing.output import OK, CommandFailed, print_json, print_table, say
from aerobee.cli.printing.times import time_text
from aerobee.client.admin import Admin
from aerobee.client.errors import BadAnswer, NoRoute
from aerobee.protocol.bodies.routes import (
    PERM_INHERIT,
    PERM_READ,
    PERM_WRITE,
    ClusterInfo,
    QueueRoute,
    TopicRoute,
    masters,
)
from aerobee.protocol.bodies.waiting import WaitingMessages
from aerobee.protocol.names import DLQ_PREFIX, REPLY_TOPIC_SUFFIX, RETRY_PREFIX, is_system_topic

_ROUTES_AT_ONCE: Final = 16
# The routes of no more topics than these are asked for one by one.
_FEW_TOPICS: Final = 500
_WAITING_WORDS: Final = {
    "delayed": "delayed",
    "timed": "with a time of their own",
    "half": "in transactions",
    "staged": "in staged batches",
}
_RIGHTS: Final = ((PERM_READ, "r"), (PERM_WRITE, "w"), (PERM_INHERIT, "x"))


@client_command
async def list_topics(parsed: argparse.Namespace) -> int:
    """Print the topics; those of the system itself only with `--all`."""
    async with admin_of(parsed, leaves_out_silent=True) as admin:
        names = await admin.topics()
        cluster = await admin.cluster()
        if not cluster.brokers:
            raise CommandFailed("no broker is registered")
        if not parsed.all:
            names = [name for name in names if not is_internal(name, cluster)]
        spans = await _spans(admin, names, cluster)
        if parsed.json:
            print_document([_summary(name, found) for name, found in spans.items()])
        else:
            print_table(
                ("topic", "broker", "read queues", "write queues", "rights"),
                [
                    (
                        name,
                        one.broker_name,
                        one.read_queues,
                        one.write_queues,
                        rights_text(one.perm),
                    )
                    for name, found in spans.items()
                    for one in found
                ],
            )
            if not spans:
                say(
                    "no topics yet: the first message to one makes it, or aerobee topic create NAME"
                )
        return await say_unanswered(admin)


async def _spans(
    admin: Admin, names: list[str], cluster: ClusterInfo
) -> dict[str, tuple[QueueRoute, ...]]:
    """The queues of topics on each broker. The route of each topic tells it, in a request each; for
    many topics the tables of the brokers do, and routes are asked for what no table has."""
    known: dict[str, tuple[QueueRoute, ...]] = {}
    left = names
    if len(names) > _FEW_TOPICS:
        # For clusters with many topics alone.
        from aerobee.cli.cluster.overview.topic_table import spans_by_tables

        tables = await spans_by_tables(admin, frozenset(names), cluster)
        known = {} if tables is None else tables.spans
        left = [name for name in names if name not in known]
        if tables is not None and tables.silent:
            say(f"queues on {', '.join(tables.silent)} are not shown, nor the {len(left)} topics "
                "that no other broker has")  # fmt: skip
            left = []
    routes = await _routes(admin, left)
    found = {**known, **{name: route.queues for name, route in routes.items()}}
    return {name: found[name] for name in names if name in found}


async def _routes(admin: Admin, names: list[str]) -> dict[str, TopicRoute]:
    """Routes by topic, in order; a topic that goes away meanwhile is left out."""
    turns = asyncio.Semaphore(_ROUTES_AT_ONCE)

    async def route(name: str) -> TopicRoute | None:
        async with turns:
            try:
                return await admin.route(name)
            except NoRoute:
                return None
            except BadAnswer as error:
                # One that somebody registered with nonsense does not hide the others.
                say(f"topic {name} is left out: {error}")
                return None

    found = await asyncio.gather(*(route(name) for name in names))
    return {name: one for name, one in zip(names, found, strict=True) if one is not None}


@client_command
async def describe_topic(parsed: argparse.Namespace) -> int:
    """Print the queues of a topic with their offsets."""
    async with admin_of(parsed) as admin:
        try:
            route = await admin.route(parsed.topic)
        except NoRoute:
            check_topic(parsed.topic)
            raise
        stats = await admin.topic_stats(parsed.topic)
    queues = [
        TopicQueue(
            broker=queue.broker_name,
            queue=queue.queue_id,
            min_offset=offsets.min_offset,
            max_offset=offsets.max_offset,
            messages=offsets.max_offset - offsets.min_offset,
            last_store_timestamp_ms=offsets.last_update_ms,
        )
        for queue, offsets in stats.items()
    ]
    if parsed.json:
        brokers = _summary(parsed.topic, route.queues).brokers
        print_document(TopicDescription(topic=parsed.topic, brokers=brokers, queues=queues))
        return OK
    names = {span.broker_name for span in route.queues}
    if away := sorted(names - masters(route.brokers).keys()):
        say(f"no master of {', '.join(away)} is registered: its queues are not shown")
    for span in route.queues:
        say(
            f"{parsed.topic} on {span.broker_name}: {span.read_queues} queues to read, "
            f"{span.write_queues} to write, rights {rights_text(span.perm)}"
        )
    print_table(
        ("broker", "queue", "min offset", "max offset", "messages", "last stored"),
        [
            (
                *(one.broker, one.queue, one.min_offset, one.max_offset, one.messages),
                time_text(one.last_store_timestamp_ms),
            )
            for one in queues
        ],
    )
    return OK


@client_command
async def delete_topic(parsed: argparse.Namespace) -> int:
    """Say what would be lost with a topic; delete it with `--yes`."""
    async with admin_of(parsed) as admin:
        route = await admin.route(parsed.topic)
        await admin.check_masters(span.broker_name for span in route.queues)
        stats = await admin.topic_stats(parsed.topic)
        groups = await admin.groups_of_topic(parsed.topic)
        brokers = sorted({span.broker_name for span in route.queues})
        waiting = await waiting_for(admin, parsed.topic, dict.fromkeys(brokers, 0))
        if parsed.yes:
            await admin.delete_topic(parsed.topic)
    messages = sum(offsets.max_offset - offsets.min_offset for offsets in stats.values())
    if parsed.json:
        fields = {"topic": parsed.topic, "brokers": brokers, "queues": len(stats)}
        fields |= {"waiting": waiting.total, "waiting_not_looked_at": waiting.unlooked}
        fields |= {"waiting_not_known_on": list(waiting.silent)}
        print_json({**fields, "messages": messages, "groups": groups, "deleted": parsed.yes})
        return OK
    say(f"topic {parsed.topic} on {', '.join(brokers)}: {len(stats)} queues, {messages} messages")
    if waits := waiting.text("dropped with it" if parsed.yes else "would be dropped"):
        say(waits)
    if groups:
        say(f"groups with offsets in it, or that subscribe to it: {', '.join(groups)}")
    say("deleted" if parsed.yes else "nothing was deleted; --yes does it")
    return OK


def is_internal(name: str, cluster: ClusterInfo) -> bool:
    """Topics that no person made: the system's, those of groups, those named like brokers."""
    return (
        is_system_topic(name)
        or name.startswith((RETRY_PREFIX, DLQ_PREFIX))
        or name in cluster.brokers
        or name in cluster.clusters
        or name.removesuffix(REPLY_TOPIC_SUFFIX) in cluster.clusters
    )


def _summary(name: str, spans: Iterable[QueueRoute]) -> TopicSummary:
    return TopicSummary(
        topic=name,
        brokers=[
            TopicOnBroker(
                broker=span.broker_name,
                read_queues=span.read_queues,
                write_queues=span.write_queues,
                rights=rights_text(span.perm),
            )
            for span in spans
        ],
    )


def rights_text(perm: int) -> str:
    """`rw`, with an x for a topic whose rights new topics inherit."""
    return "".join(letter for bit, letter in _RIGHTS if perm & bit)


# Messages that wait for a topic: commands that take queues away report them


class Waiting(NamedTuple):
    """Messages that were accepted and are not in their queues yet, by what they wait for.
    `unlooked` more records wait, and nobody knows for which topic; `silent` are the brokers that do
    not report."""

    counts: Mapping[str, int]
    unlooked: int
    silent: tuple[str, ...]

    @property
    def total(self) -> int:
        """All that is known."""
        return sum(self.counts.values())

    @property
    def is_none(self) -> bool:
        """Whether it is known that nothing waits."""
        return not (self.total or self.unlooked or self.silent)

    def text(self, consequence: str) -> str:
        """A sentence, empty when nothing waits; `consequence` says what becomes of them."""
        parts = []
        if self.total or self.unlooked:
            kinds = ", ".join(
                f"{count} {_WAITING_WORDS.get(kind, kind)}"
                for kind, count in self.counts.items()
                if count
            )
            least = "at least " if self.unlooked else ""
            named = f" ({kinds})" if kinds else ""
            one = self.total == 1
            messages = "1 message that waits" if one else f"{self.total} messages that wait"
            parts.append(f"{least}{messages}{named} {consequence}")
        if self.unlooked:
            parts.append(f"{self.unlooked} more records wait and were not looked at")
        if self.silent:
            names = ", ".join(self.silent)
            parts.append(
                f"what waits on {names} is not known: RocketMQ's brokers do not tell, and ours "
                "tell administrators alone"
            )
        return "; ".join(parts)


async def waiting_for(admin: Admin, topic: str, first_queues: Mapping[str, int]) -> Waiting:
    """Ask what waits for a topic on the brokers named, for their queues from those numbers on."""
    found = await admin.waiting_messages(topic, first_queues)
    told = {name: found.get(name) for name in first_queues}
    return Waiting(
        _by_kind((one, first_queues[name]) for name, one in told.items() if one is not None),
        sum(one.unlooked for one in told.values() if one is not None),
        tuple(sorted(name for name, one in told.items() if one is None)),
    )


def _by_kind(found: Iterable[tuple[WaitingMessages, int]]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for one, first_queue in found:
        for kind, queues in one.counts.items():
            more = sum(count for queue_id, count in queues.items() if queue_id >= first_queue)
            counts[kind] = counts.get(kind, 0) + more
    return counts
