"""`aerobee broker`: what administrators ask of running brokers."""

import argparse

from aerobee.cli.cluster.command_session import admin_of, client_command, masters_away
from aerobee.cli.printing.output import OK, USAGE, CommandFailed, print_json, print_table, say
from aerobee.nearest_name import nearest_name


@client_command
async def clean(parsed: argparse.Namespace) -> int:
    """Have brokers delete things of no use any more."""
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


@client_command
async def show_config(parsed: argparse.Namespace) -> int:
    """Print the settings that running brokers have; `--set` changes some of them first."""
    changes = dict(parsed.set)
    if parsed.address and (changes or parsed.broker):
        raise CommandFailed("--address reads one broker: give neither --set nor --broker", USAGE)
    async with admin_of(parsed) as admin:
        if changes:
            changed = await admin.change_broker_settings(changes, parsed.broker)
            say(f"{', '.join(changed)}: changed {', '.join(changes)}")
            if not parsed.key and not parsed.json:
                return OK
        if parsed.address:
            found = {parsed.address: await admin.settings_at(parsed.address)}
        else:
            found = await admin.broker_settings(parsed.broker)
            if parsed.broker is None and (away := await masters_away(admin)):
                say(
                    f"no master of {', '.join(away)} is registered: --address HOST:PORT shows the "
                    "settings of a slave"
                )
    known = {key for settings in found.values() for key in settings}
    for key in parsed.key:
        if key not in known:
            raise CommandFailed(_unknown(key, known))
    chosen = {
        name: {key: settings[key] for key in parsed.key or sorted(settings) if key in settings}
        for name, settings in found.items()
    }
    if parsed.json:
        print_json(chosen)
        return OK
    print_table(
        ("broker", "setting", "value"),
        [(name, *pair) for name, settings in chosen.items() for pair in settings.items()],
    )
    return OK


def _unknown(key: str, known: set[str]) -> str:
    near = nearest_name(key, known)
    hint = f"; did you mean {near}?" if near else " (aerobee config explain knows all names)"
    return f"no broker has a setting {key}, by RocketMQ's names{hint}"
