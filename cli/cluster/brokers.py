"""`aerobee broker`: what administrators ask of running brokers."""

import argparse

from aerobee.cli.cluster.session import admin_of, client_command
from aerobee.cli.output import OK, USAGE, CommandFailed, print_json, say


@client_command
async def clean(parsed: argparse.Namespace) -> int:
    """Have brokers delete what is of no use any more."""
    if not (parsed.log or parsed.queues or parsed.topics):
        raise CommandFailed("say what to clean: --log, --queues or --topics", USAGE)
    async with admin_of(parsed) as admin:
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
