"""`aerobee group list` and `describe`: consumers, their topics, and how far they are.

The brokers judge the lag (`group_view.py`). Members that keep their offsets themselves
(broadcasting) have a lag that only they know: in its place stands that word, and null in JSON.
"""

import argparse
import asyncio
from typing import Final

from aerobee.cli.cluster.command_session import (
    admin_of,
    check_group,
    client_command,
    say_silent_name_servers,
    say_slaves_read,
)
from aerobee.cli.cluster.consumer_groups.group_view import (
    OWN_OFFSETS,
    BrokerQueue,
    GroupView,
    lag_text,
    number_text,
    retries_text,
    say_unanswered,
)
from aerobee.cli.documents import groups as documents
from aerobee.cli.documents.document import print_document
from aerobee.cli.documents.groups import GroupDescription, GroupSummary, GroupTopic, Member
from aerobee.cli.printing.output import CommandFailed, print_table, say, show
from aerobee.cli.printing.times import span_text
from aerobee.client.administration.group_lag import GroupQuestions
from aerobee.nearest_name import nearest_name
from aerobee.protocol.bodies.clients import BROADCASTING
from aerobee.protocol.bodies.statistics import ConnectionData, GroupState
from aerobee.protocol.codes import version_name
from aerobee.protocol.names import is_system_group

_GROUPS_AT_ONCE: Final = 16


@client_command
async def list_groups(parsed: argparse.Namespace) -> int:
    """Print the groups; those of RocketMQ's own tools only with `--all`, and with `--behind` those
    that are behind, the worst first."""
    async with admin_of(parsed, reads_slaves=True, leaves_out_silent=True) as admin:
        questions = GroupQuestions(admin)
        known = await questions.groups()
        chosen = [name for name in known if parsed.all or not is_system_group(name)]
        views = await _views(questions, chosen)
        say_slaves_read(admin)
        groups = [_summary(one, known[one.group]) for one in views]
        if parsed.behind is not None:
            groups = _behind(groups, parsed.behind)
        if parsed.json:
            print_document(groups, compact=parsed.watch is not None)
        else:
            _print(groups, {one.group: lag_text(one) for one in views})
        if not views:
            say("no consumer groups yet: the first consumer of one makes it")
        elif parsed.behind is not None:
            _say_left_out(views, groups, parsed.behind)
        return max(say_unanswered(questions), await say_silent_name_servers(admin))


def _print(groups: list[GroupSummary], lags: dict[str, int | str]) -> None:
    print_table(
        ("group", "brokers", "members", "topics", "lag", "given out", "retries", "dead", "stuck"),
        [
            (
                one.group,
                ", ".join(one.brokers),
                one.members,
                one.topics,
                lags[one.group],
                *map(number_text, (one.given_out, one.retries, one.dead, one.stuck_queues)),
            )
            for one in groups
        ],
    )


async def _views(questions: GroupQuestions, groups: list[str]) -> list[GroupView]:
    turns = asyncio.Semaphore(_GROUPS_AT_ONCE)

    async def look(group: str) -> GroupView:
        async with turns:
            return GroupView(group, await questions.of(group))

    return await asyncio.gather(*map(look, groups))


def _summary(view: GroupView, brokers: list[str]) -> GroupSummary:
    return GroupSummary(
        group=view.group,
        brokers=brokers,
        members=view.members,
        topics=len(view.topics),
        lag=view.lag(),
        lag_at_least=view.lag_at_least(),
        unknown_queues=view.unknown_queues(),
        given_out=view.given_out(),
        retries=view.retries,
        dead=view.dead,
        stuck_queues=view.stuck(),
    )


def _behind(groups: list[GroupSummary], least: int) -> list[GroupSummary]:
    """Those that are behind by as many messages, or may be, the worst first."""
    found = [one for one in groups if one.lag_at_least >= least or one.unknown_queues]
    return sorted(found, key=lambda one: (-one.lag_at_least, not one.unknown_queues, one.group))


def _say_left_out(views: list[GroupView], shown: list[GroupSummary], least: int) -> None:
    if not shown:
        say(f"no group is behind by {least} messages or more")
    if own := sorted(one.group for one in views if one.is_broadcasting):
        say(f"how far {', '.join(own)} is, no broker knows (broadcasting)")


@client_command
async def describe_group(parsed: argparse.Namespace) -> int:
    """Print a group's members, how far it is behind in each topic, and where it is stuck."""
    check_group(parsed.group)
    async with admin_of(parsed, reads_slaves=True) as admin:
        questions = GroupQuestions(admin)
        view = await view_of(questions, parsed.group)
        known = (await questions.groups()).get(parsed.group)
        state = await questions.members(parsed.group) if view.members else {}
        say_slaves_read(admin)
    members = members_of(state)
    topics = [_topic(view, one) for one in view.subscribed]
    stuck = [stuck_queue(view, one) for one in view.stuck_queues()]
    if parsed.json:
        brokers = known or sorted(name for name, one in view.states.items() if one.members)
        print_document(_description(view, brokers, members, topics, stuck))
        return say_unanswered(questions)
    _show(view, members, topics)
    _show_stuck(stuck)
    return say_unanswered(questions)


async def view_of(questions: GroupQuestions, group: str) -> GroupView:
    """Ask the brokers about a group. Raises CommandFailed if none of them knows it."""
    view = GroupView(group, await questions.of(group))
    if not view.is_known:
        near = nearest_name(group, await questions.groups())
        raise CommandFailed(
            f"there is no consumer group {group}"
            + (f"; did you mean {near}?" if near else "")
            + " (aerobee group list shows those there are)"
        )
    return view


def keeps_own_offsets(state: dict[str, GroupState]) -> bool:
    """Whether the members keep their offsets themselves, so that no broker knows how far they
    are."""
    return any(one.message_model == BROADCASTING for one in state.values())


def members_of(state: dict[str, GroupState]) -> dict[str, ConnectionData]:
    """Each member once, by its client id; a member is online at all brokers of its topics."""
    return {member.client_id: member for one in state.values() for member in one.connections}


def _topic(view: GroupView, topic: str) -> GroupTopic:
    return GroupTopic(
        topic=topic,
        subscription=view.expression(topic),
        queues=len(view.of(topic)),
        lag=view.lag(topic),
        lag_at_least=view.lag_at_least(topic),
        unknown_queues=view.unknown_queues(topic),
        given_out=view.given_out(topic),
        stuck_queues=view.stuck(topic),
    )


def stuck_queue(view: GroupView, queue: BrokerQueue) -> documents.StuckQueue:
    """A queue that stands, with the message that it stands at and the member that has it."""
    state, head = queue.state, queue.state.head
    now_ms = view.states[queue.broker].now_ms
    return documents.StuckQueue(
        topic=state.topic,
        broker=queue.broker,
        queue=state.queue_id,
        stands_s=None if state.stands_s is None else round(state.stands_s, 1),
        given_out=state.given_out,
        head=None
        if head is None
        else documents.HeadMessage(
            offset=head.offset,
            message_id=head.msg_id,
            age_s=max(now_ms - head.stored_ms, 0) / 1000,
            attempt=head.attempt,
        ),
        member=view.holder(queue),
        lock_owner=state.lock_owner,
    )


def _show(view: GroupView, members: dict[str, ConnectionData], topics: list[GroupTopic]) -> None:
    models = {
        f"{one.consume_type}, {one.message_model}"
        for one in view.states.values()
        if one.consume_type
    }
    online = f"{view.members} members online" if view.members else "no member online"
    show(f"group {view.group}: {'; '.join([online, *sorted(models)])}")
    show(
        f"waiting for another try: {number_text(view.retries)}; "
        f"given up (dead): {number_text(view.dead)}"
    )
    print_table(
        ("client id", "address", "language", "version"),
        [(one.client_id, one.address, one.language, version_name(one.version))
         for one in members.values()],
    )  # fmt: skip
    if members and topics:
        show("")
    print_table(
        ("topic", "subscription", "queues", "lag", "given out", "stuck"),
        [
            (one.topic, one.subscription, one.queues, lag_text(view, one.topic),
             *map(number_text, (one.given_out, one.stuck_queues)))
            for one in topics
        ],
    )  # fmt: skip
    if view.is_broadcasting:
        say(OWN_OFFSETS)
    elif view.retries:
        say(f"{retries_text(view.retries)}: they are among those of its retry topic")


def _show_stuck(stuck: list[documents.StuckQueue]) -> None:
    if not stuck:
        return
    show("")
    print_table(
        ("stuck in", "broker", "queue", "for", "at message", "stored", "try", "member"),
        [
            (
                one.topic,
                one.broker,
                one.queue,
                span_text(one.stands_s),
                "?" if one.head is None else one.head.message_id,
                "?" if one.head is None else f"{span_text(one.head.age_s)} ago",
                "?" if one.head is None else one.head.attempt,
                one.member or "?",
            )
            for one in stuck
        ],
    )


def _description(
    view: GroupView,
    brokers: list[str],
    members: dict[str, ConnectionData],
    topics: list[GroupTopic],
    stuck: list[documents.StuckQueue],
) -> GroupDescription:
    live = [one for one in view.states.values() if one.consume_type is not None]
    return GroupDescription(
        group=view.group,
        brokers=brokers,
        consume_type=live[0].consume_type if live else None,
        message_model=live[0].message_model if live else None,
        members=[
            Member(
                client_id=member.client_id,
                address=member.address,
                language=member.language,
                version=version_name(member.version),
            )
            for member in members.values()
        ],
        topics=topics,
        retries=view.retries,
        dead=view.dead,
        stuck=stuck,
    )
