"""`aerobee broker`: what administrators ask of running brokers."""

import argparse

from aerobee.cli.cluster.session import name_servers, run_client
from aerobee.cli.output import OK, USAGE, CommandFailed, print_json, say
from aerobee.client.admin import Admin
from aerobee.client.options import ClientOptions


def clean(parsed: argparse.Namespace) -> int:
    """Have brokers delete what is of no use any more."""
    if not (parsed.log or parsed.queues or parsed.topics):
        raise CommandFailed("say what to clean: --log, --queues or --topics", USAGE)
    return run_client(_clean(parsed))


async def _clean(parsed: argparse.Namespace) -> int:
    async with Admin(name_servers(parsed), ClientOptions(call_timeout_s=parsed.timeout)) as admin:
        done = await admin.clean(
            expired_log=parsed.log,
            expired_queues=parsed.queues,
            unused_topics=parsed.topics,
            broker=parsed.broker,
        )
    if parsed.json:
        print_json({"brokers": done})
    else:
        say(f"{', '.join(done)}: asked; the broker's log says what went")
    return OK
