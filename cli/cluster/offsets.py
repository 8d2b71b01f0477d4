"""`aerobee offset show`: where a group is in each queue, and how far it is behind there."""

import argparse

from aerobee.cli.cluster.command_session import (
    admin_of,
    check_group,
    client_command,
    masters_away,
    say_slaves_read,
)
from aerobee.cli.cluster.consumer_groups.group_view import (
    OWN_OFFSETS,
    GroupView,
    number_text,
    retries_text,
    say_unanswered,
)
from aerobee.cli.documents.document import print_document
from aerobee.cli.documents.offsets import QueueOffset
from aerobee.cli.printing.output import CommandFailed, print_table, say
from aerobee.cli.printing.times import time_text
from aerobee.client.admin import Admin
from aerobee.client.administration.group_lag import GroupQuestions
from aerobee.protocol.names import retry_topic


@client_command
async def show_offsets(parsed: argparse.Namespace) -> int:
    """Print a group's offset in each queue."""
    check_group(parsed.group)
    async with admin_of(parsed, reads_slaves=True) as admin:
        questions = GroupQuestions(admin)
        view = GroupView(parsed.group, await questions.of(parsed.group, parsed.topic))
        say_slaves_read(admin)
        if view.is_broadcasting or not view.queues:
            if questions.unanswered:
                return say_unanswered(questions)
            raise CommandFailed(await why_nowhere(admin, view, parsed.topic))
    rows = [
        QueueOffset(
            topic=one.state.topic,
            broker=one.broker,
            queue=one.state.queue_id,
            offset=one.state.committed,
            begin=one.state.begin,
            end=one.state.end,
            lag=one.state.lag,
            given_out=one.state.given_out,
            last_consumed_timestamp_ms=one.state.last_consumed_ms,
        )
        for one in view.queues
    ]
    if parsed.json:
        print_document(rows)
        return say_unanswered(questions)
    print_table(
        ("topic", "broker", "queue", "offset", "end", "lag", "given out",
         "last consumed was stored"),
        [(one.topic, one.broker, one.queue, "none" if one.offset is None else one.offset, one.end,
          number_text(one.lag), number_text(one.given_out),
          time_text(one.last_consumed_timestamp_ms or 0))
         for one in rows],
    )  # fmt: skip
    if view.retries and parsed.topic in (None, retry_topic(parsed.group)):
        say(f"{retries_text(view.retries)}, and are in none of these queues yet")
    return say_unanswered(questions)


async def why_nowhere(admin: Admin, view: GroupView, topic: str | None) -> str:
    """Why a group has no progress, in a topic or at all."""
    group = view.group
    if unasked := sorted(set(await masters_away(admin)) - admin.slaves_read):
        return (
            f"no master of {', '.join(unasked)} is registered: whether the group {group} has an "
            "offset there is not known"
        )
    if view.is_broadcasting:
        return f"the group {group} has no offset that could be shown or changed: {OWN_OFFSETS}"
    where = f" in topic {topic}" if topic else ""
    return (
        f"the group {group} has no offset{where} (aerobee group list shows the groups there are; a "
        "group that is online shows the topics that it subscribes to)"
    )
