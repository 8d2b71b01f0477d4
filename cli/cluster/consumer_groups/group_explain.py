"""`aerobee group explain`: why a group does not consume, or would not.

Each finding has a cause and a remedy. A `problem` keeps messages from being consumed, or hides how
many there are; a `notice` may be meant so. They are judged from what the brokers say (GROUP_LAG).
RocketMQ's brokers say less: what they cannot tell is named, and not passed over in silence.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Final

from aerobee.cli.cluster.command_session import (
    admin_of,
    check_group,
    client_command,
    say_slaves_read,
)
from aerobee.cli.cluster.consumer_groups.group_view import (
    OWN_OFFSETS,
    BrokerQueue,
    GroupView,
    lag_text,
    say_unanswered,
)
from aerobee.cli.cluster.groups import stuck_queue, view_of
from aerobee.cli.documents.document import print_document
from aerobee.cli.documents.groups import Finding, GroupExplanation
from aerobee.cli.printing.output import OK, say, show
from aerobee.cli.printing.times import span_text
from aerobee.client.administration.group_lag import GroupQuestions
from aerobee.protocol.bodies.group_lag import TopicState
from aerobee.protocol.bodies.routes import PERM_READ
from aerobee.protocol.names import DLQ_PREFIX, is_retry_topic

PROBLEM: Final = "problem"
NOTICE: Final = "notice"
# Findings of one kind about queues that are shown; the rest is counted.
_MOST_QUEUES: Final = 5

_Judge = Callable[[GroupView], Iterator[Finding]]


@client_command
async def explain_group(parsed: argparse.Namespace) -> int:
    """Print why a group does not come on."""
    check_group(parsed.group)
    async with admin_of(parsed, reads_slaves=True) as admin:
        questions = GroupQuestions(admin)
        view = await view_of(questions, parsed.group)
        say_slaves_read(admin)
    findings = findings_of(view)
    if parsed.json:
        print_document(
            GroupExplanation(
                group=view.group,
                members=view.members,
                lag=view.lag(),
                findings=findings,
                cannot_tell=view.brokers_of_rocketmq,
                silent=sorted(questions.unanswered),
            )
        )
        return say_unanswered(questions)
    show(f"group {view.group}: {view.members} members online, lag {lag_text(view)}")
    for one in findings:
        show(f"{one.level}: {one.cause}", f"  {one.remedy}")
    if not findings:
        say(_nothing_found(view))
    if view.brokers_of_rocketmq:
        say(
            f"{', '.join(view.brokers_of_rocketmq)} cannot tell which queues are stuck, how "
            "members subscribe and what is dead: RocketMQ's brokers do not know the question"
        )
    return say_unanswered(questions) or OK


def findings_of(view: GroupView) -> list[Finding]:
    """All that keeps a group from consuming, problems first, and then what may be meant so."""
    found = [one for judge in _JUDGES for one in judge(view)]
    return sorted(found, key=lambda one: one.level != PROBLEM)


def _nothing_found(view: GroupView) -> str:
    lag, given_out = view.lag(), view.given_out()
    if lag and given_out:
        return (
            f"nothing is known to keep it from consuming, but {given_out} messages were given out "
            "and are not acknowledged yet: look again in a minute, a queue that has stood for so "
            "long is stuck"
        )
    if lag:
        return (
            "nothing keeps it from consuming: it comes on, and has not come to the end yet (look "
            "at its lag again; more members help if it grows and there are more queues than "
            "members)"
        )
    return "nothing keeps it from consuming, and nothing waits for it"


def _finding(
    kind: str,
    cause: str,
    remedy: str,
    *,
    level: str = PROBLEM,
    topic: str | None = None,
    broker: str | None = None,
    queue: int | None = None,
) -> Finding:
    return Finding(
        kind=kind, level=level, topic=topic, broker=broker, queue=queue, cause=cause, remedy=remedy
    )


def _queue_finding(
    kind: str, queue: BrokerQueue, cause: str, remedy: str, level: str = PROBLEM
) -> Finding:
    state = queue.state
    return _finding(
        kind,
        cause,
        remedy,
        level=level,
        topic=state.topic,
        broker=queue.broker,
        queue=state.queue_id,
    )


# --- the group itself -----------------------------------------------------------------------------


def _members(view: GroupView) -> Iterator[Finding]:
    if not view.members:
        yield _finding(
            "no_member",
            "no member is online: no client sends heartbeats for the group",
            "start its consumers; if they run, look at their name servers, their account and the "
            "network between them and the brokers",
            level=PROBLEM if view.lag() != 0 else NOTICE,
        )
    for broker, state in view.states.items():
        if view.members and not state.members and _has_queues(view, broker):
            yield _finding(
                "no_member_there",
                f"members are online, and none of them at broker {broker}",
                "look at the network between the members and this broker, and whether its topics "
                "are in the route that they get (aerobee topic describe)",
                broker=broker,
            )
        for shared in state.shared_ids:
            yield _finding(
                "shared_client_id",
                f"{len(shared.addresses)} connections use the client id {shared.client_id} at "
                f"{broker}: {', '.join(shared.addresses)}; queues are shared out among ids, so "
                "both take the same queues and others have nobody",
                "give each client an instance name of its own; after a lost connection it goes by "
                "itself within two minutes",
                broker=broker,
            )


def _has_queues(view: GroupView, broker: str) -> bool:
    return any(one.broker == broker and one.state.lag for one in view.queues)


def _settings(view: GroupView) -> Iterator[Finding]:
    for broker, state in view.states.items():
        settings = state.settings
        if settings is not None and not settings.consume_enable:
            yield _finding(
                "consume_disabled",
                f"consuming is switched off for the group at {broker} (consumeEnable)",
                f"aerobee group update {view.group} --consume on",
                broker=broker,
            )
        if settings is None and (state.members or _has_queues(view, broker)):
            yield _finding(
                "no_settings",
                f"{broker} has no settings for the group, and refuses its pulls",
                f"aerobee group create {view.group}",
                broker=broker,
            )
        may_not = settings is not None and not settings.consume_broadcast_enable
        if view.is_broadcasting and may_not:
            yield _finding(
                "broadcast_disabled",
                f"its members consume in broadcasting mode, which {broker} refuses to the group "
                "(consumeBroadcastEnable)",
                f"aerobee group update {view.group} --broadcast on, or have the members cluster",
                broker=broker,
            )
        if state.broker_perm is not None and not state.broker_perm & PERM_READ:
            yield _finding(
                "broker_not_readable",
                f"nothing can be read from {broker} (brokerPermission {state.broker_perm})",
                "set broker.permission to 6",
                broker=broker,
            )
    if view.is_broadcasting:
        yield _finding(
            "broadcasting",
            OWN_OFFSETS,
            "ask the members themselves (aerobee client show)",
            level=NOTICE,
        )


# --- its topics -----------------------------------------------------------------------------------


def _topics(view: GroupView) -> Iterator[Finding]:
    by_topic: dict[str, dict[str, TopicState]] = {}
    for broker, state in view.states.items():
        for one in state.topics:
            by_topic.setdefault(one.topic, {})[broker] = one
    for topic, states in sorted(by_topic.items()):
        if is_retry_topic(topic):
            continue
        if not any(one.exists for one in states.values()):
            yield _finding(
                "topic_missing",
                f"no broker has the topic {topic}, which the group subscribes to or has offsets in",
                f"aerobee topic create {topic}, or correct the name in the members",
                topic=topic,
                level=PROBLEM if any(one.statements for one in states.values()) else NOTICE,
            )
        for broker, one in states.items():
            if one.exists and not one.perm & PERM_READ:
                yield _finding(
                    "topic_not_readable",
                    f"nothing can be read from {topic} at {broker} (permission {one.perm})",
                    f"aerobee topic create {topic} --perm rw",
                    topic=topic,
                    broker=broker,
                )
        yield from _subscriptions(view, topic, states)


def _subscriptions(view: GroupView, topic: str, states: dict[str, TopicState]) -> Iterator[Finding]:
    for broker, one in states.items():
        if len(one.statements) > 1 or (one.without and one.statements):
            said = [
                f"{', '.join(statement.clients) or statement.members} want "
                f"{statement.expression!r} ({statement.type})"
                for statement in one.statements
            ]
            if one.without:
                said.append(f"{', '.join(one.without)} do not subscribe to it")
            yield _finding(
                "subscription_differs",
                f"members subscribe to {topic} differently: {'; '.join(said)}; whoever has a queue "
                "passes over what the others want of it",
                "have all members of a group subscribe alike; use one group for each subscription",
                topic=topic,
                broker=broker,
            )
            return
    looked = sum(one.looked for one in states.values())
    if looked and not sum(one.wanted for one in states.values()):
        yield _finding(
            "filtered_out",
            f"none of the {looked} newest messages of {topic} passes the group's filter "
            f"({view.expression(topic)})",
            "correct the filter in the members, or the tags and properties in the producers",
            topic=topic,
            level=NOTICE,
        )


# --- its queues -----------------------------------------------------------------------------------


def _stuck(view: GroupView) -> Iterator[Finding]:
    for queue in view.stuck_queues():
        one = stuck_queue(view, queue)
        held = "?" if one.given_out is None else one.given_out
        cause = (
            f"{queue.name} is stuck for {span_text(one.stands_s)}, with {held} messages given out"
        )
        if one.head is not None:
            cause += (
                f": at message {one.head.message_id} (offset {one.head.offset}, stored "
                f"{span_text(one.head.age_s)} ago, try {one.head.attempt})"
            )
        if one.member is not None:
            cause += f", which {one.member} has"
        if one.lock_owner is not None:
            cause += " (it has locked the queue)"
        yield _queue_finding(
            "stuck",
            queue,
            cause,
            "look where its listener hangs (aerobee client show --stack), and at the message "
            "(aerobee message show); a listener that fails in order comes no further by itself",
        )


def _left(view: GroupView) -> Iterator[Finding]:
    for queue in view.queues:
        state = queue.state
        if not state.is_left or state.is_stuck or not view.states[queue.broker].members:
            continue
        member = view.holder(queue)
        yield _queue_finding(
            "not_pulled",
            queue,
            f"nothing was pulled from {queue.name} for {span_text(state.left_s)}, though "
            f"{state.lag if state.lag is not None else 'unknown'} messages wait there"
            + (f"; {member} has it" if member else ""),
            "a member has paused or suspended the queue, holds as many messages as it may, or "
            "nobody has the queue: look at its members (aerobee client show)",
        )


def _offsets(view: GroupView) -> Iterator[Finding]:
    for queue in [] if view.is_broadcasting else view.queues:
        state = queue.state
        if state.lag is None:
            yield _queue_finding(
                "no_offset",
                queue,
                f"the group has no offset in {queue.name}, and nobody knows where it would start: "
                "its first messages are gone, or no member says by which rule it begins",
                f"aerobee offset reset {view.group} {state.topic} --to earliest, or latest",
                NOTICE if view.members else PROBLEM,
            )
        elif state.committed is not None and state.committed > state.end:
            yield _queue_finding(
                "beyond_the_end",
                queue,
                f"the offset of {queue.name}, {state.committed}, is beyond the end of the queue, "
                f"{state.end}: the group gets nothing until the queue has come there",
                f"aerobee offset reset {view.group} {state.topic} --to earliest, or a time",
            )
        elif state.committed is not None and state.committed < state.first:
            yield _queue_finding(
                "behind_expired",
                queue,
                f"{state.first - state.committed} messages of {queue.name} were deleted before the "
                "group had consumed them",
                "they are gone; have it consume more quickly, or keep messages for longer "
                "(retention.hours)",
                NOTICE,
            )


def _waiting(view: GroupView) -> Iterator[Finding]:
    if view.retries:
        yield _finding(
            "retries",
            f"{view.retries} messages that it failed on wait for their next try",
            "look at why its listener fails on them",
            level=NOTICE,
        )
    if view.dead:
        yield _finding(
            "dead",
            f"{view.dead} messages are dead: it failed on them too often",
            f"aerobee dlq peek {view.group}",
            level=NOTICE,
            topic=DLQ_PREFIX + view.group,
        )


def _few(judge: _Judge) -> _Judge:
    """The findings of a judge, some of each kind and topic where it has many."""

    def some(view: GroupView) -> Iterator[Finding]:
        found = sorted(judge(view), key=lambda one: (one.kind, one.topic or ""))
        for (kind, topic), group in groupby(found, key=lambda one: (one.kind, one.topic)):
            same = list(group)
            yield from same[:_MOST_QUEUES]
            if len(same) > _MOST_QUEUES:
                yield _finding(
                    kind,
                    f"and so do {len(same) - _MOST_QUEUES} more queues of {topic}",
                    same[0].remedy,
                    topic=topic,
                    level=same[0].level,
                )

    return some


_JUDGES: Final[tuple[_Judge, ...]] = (
    _members,
    _settings,
    _topics,
    _few(_stuck),
    _few(_left),
    _few(_offsets),
    _waiting,
)
