"""The arguments of `aerobee broker`."""

import argparse

from aerobee.cli.arguments.argument_types import assignment, text
from aerobee.cli.arguments.shared_arguments import (
    Commands,
    add_previewed,
    add_watch,
    asking,
    commands_of,
)


def add_broker(parser: argparse.ArgumentParser) -> None:
    """The commands of the group `parser`."""
    group = commands_of(parser)
    this_one = "this one alone (default: all masters)"
    description = (
        "Have running brokers delete data of no use any more. Only expired data goes; aerobee "
        "store retention foretells which."
    )
    about = "delete now data of no use any more"
    with asking(group, "broker clean", about, description, admin=True) as clean:
        add = clean.add_argument
        add("--log", action="store_true", help="expired commit log segments, without waiting")
        add("--queues", action="store_true", help="queues without a message left")
        add("--topics", action="store_true", help="queues of topics that are not there any more")
        add("--broker", type=text, metavar="NAME", help=this_one)
    description = (
        "Ask running masters for their settings, RocketMQ's or ours, or with --address any broker, "
        "such as a slave. Secrets are not shown. "
        "aerobee config show gives the settings of a file, this environment and flags. On a broker "
        "of ours --set changes, at once and for its next starts, the settings that a reload may "
        "change, if admin.remote_config is on there."
    )
    about = "the settings that running brokers have, under RocketMQ's names; --set changes them"
    with asking(group, "broker config", about, description, admin=True) as config:
        add = config.add_argument
        add("key", nargs="*", type=text, metavar="KEY", help="only these")
        add(
            "--set", action="append", default=[], type=assignment, metavar="KEY=VALUE",
            help="change a setting (more than once: all of them or none)",
        )  # fmt: skip
        add("--broker", type=text, metavar="NAME", help=this_one)
        about = "show those of the broker at this address, such as a slave"
        add("--address", type=text, metavar="HOST:PORT", help=about)
    description = (
        "Show the brokers of each name: which is the master, where its log ends, what each slave "
        "has acknowledged and lacks. RocketMQ 4.9 tells the ends of its logs only. Lag in bytes."
    )
    about = "masters and slaves, and how far each slave is"
    with asking(group, "broker ha", about, description) as ha:
        ha.add_argument(
            "--broker", type=text, metavar="NAME", help="those of this name (default: all)"
        )
        add_watch(ha)
    description = (
        "Show what a broker as a whole allows, or change it. Without the right to write producers "
        "turn to other brokers within half a minute; consumers go on. A broker of ours takes the "
        "change if admin.remote_config is on there."
    )
    about = "what a broker allows; --read, --write change it"
    with asking(group, "broker permission", about, description, admin=True) as permission:
        add = permission.add_argument
        add("broker", type=text, metavar="NAME")
        add("--read", choices=("yes", "no"), help="whether consumers may read from it")
        add("--write", choices=("yes", "no"), help="whether producers may send to it")
        add_previewed(permission)
    _add_drain(group)


def _add_drain(group: Commands) -> None:
    description = (
        "Send a broker's producers elsewhere before it is stopped: its topics are registered "
        "without the right to write, and it serves until they have left. Topics that no other "
        "broker takes are named first; with --yes they are drained all the same. RocketMQ's "
        "brokers are drained at the name servers. A restart ends a drain, and so does --undo."
    )
    about = "let the producers of a broker go before it is stopped"
    with asking(group, "broker drain", about, description, admin=True) as drain:
        add = drain.add_argument
        add("broker", type=text, metavar="NAME")
        add("--undo", action="store_true", help="let producers come back")
        add("--wait", action="store_true", help="return when they have left (1 if they have not)")
        add_previewed(drain)
