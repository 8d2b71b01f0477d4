"""`aerobee topic explain`: why a topic has no route, cannot be sent to or cannot be read.

All name servers and all brokers are asked at once. `topic_findings.py` judges what they say.
"""

from __future__ import annotations

import argparse
from functools import partial

from aerobee.cli.cluster.command_session import (
    admin_of,
    check_topic,
    client_command,
    say_unanswered,
)
from aerobee.cli.cluster.overview.brokers_named import check_some_answer, silent_peers
from aerobee.cli.cluster.overview.topic_findings import Facts, HereOn, findings, read_on, sent_on
from aerobee.cli.documents.document import print_document
from aerobee.cli.documents.topics import TopicExplanation
from aerobee.cli.printing.output import OK, REFUSED, print_table, say, show
from aerobee.client.admin import Admin
from aerobee.client.administration.overview import (
    Place,
    Told,
    ask_all,
    ask_status,
    route_views,
    topic_table,
)
from aerobee.client.errors import ClientError


@client_command
async def explain_topic(parsed: argparse.Namespace) -> int:
    """Print the findings; exit code 0 if clients can send to the topic and read it somewhere."""
    async with admin_of(parsed, leaves_out_silent=True) as admin:
        facts = await _facts(admin, parsed.topic)
        if not any(view.route for view in facts.routes):
            # Brokers and clusters have topics whose names need not be legal for another.
            check_topic(parsed.topic)
        document = TopicExplanation(
            topic=parsed.topic,
            sent_on=sent_on(facts),
            read_on=read_on(facts),
            findings=findings(facts),
            unanswered=await silent_peers(admin),
        )
        if parsed.json:
            print_document(document)
        else:
            _print(document)
        silent = await say_unanswered(admin)
    return silent or (OK if document.sent_on and document.read_on else REFUSED)


async def _facts(admin: Admin, topic: str) -> Facts:
    ports = await admin.admin_ports()
    views, told = await ask_all(admin, partial(_ask, admin, ports, topic))
    check_some_answer(views)
    routes = await route_views(admin, topic)
    names: list[str] = []
    if not any(one.route for one in routes):
        try:
            names = await admin.topics()
        except ClientError as error:
            say(f"which topics there are is not known: {error}")
    return Facts(topic, views, routes, told, frozenset(names))


async def _ask(admin: Admin, ports: dict[str, str], topic: str, place: Place) -> HereOn:
    """Ask a broker about the topic. RocketMQ's are asked for their tables of topics."""
    told: Told = await ask_status(admin, place, ports, topic)
    if told.status is not None or told.error is not None:
        return HereOn.of_ours(told)
    try:
        table = await topic_table(admin, place)
    except ClientError:
        return HereOn.of_others(told, None, is_known=False)
    return HereOn.of_others(told, table.get(topic), is_known=True)


def _print(shown: TopicExplanation) -> None:
    sent, read = ", ".join(shown.sent_on), ", ".join(shown.read_on)
    show(f"topic {shown.topic}: can be sent to on {sent or 'no broker'}, read on {read or 'none'}")
    if not shown.findings:
        say("nothing is in the way")
        return
    show("")
    print_table(
        ("finding", "where", "cause", "remedy"),
        [(one.finding, one.where or "", one.cause, one.remedy) for one in shown.findings],
    )
