"""The arguments of `aerobee client` and `aerobee status`."""

import argparse

from aerobee.cli.arguments.argument_types import text
from aerobee.cli.arguments.shared_arguments import (
    add_admin,
    add_client,
    add_json,
    add_watch,
    asking,
    commands_of,
)


def add_status(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command `parser`."""
    parser.add_argument("--broker", type=text, metavar="NAME", help="of this name (default: all)")
    add_watch(parser)
    add_admin(parser)
    add_client(parser)
    add_json(parser)
    parser.set_defaults(command="status")


def add_clients(parser: argparse.ArgumentParser) -> None:
    """The commands of the group `parser`."""
    group = commands_of(parser)
    about = "who is connected with the brokers, since when, and what waits for it"
    description = (
        "List the clients that are connected, one line a connection. Brokers of RocketMQ list the "
        "members of a group that is named alone."
    )
    with asking(group, "client list", about, description, admin=True) as listing:
        add = listing.add_argument
        add("--group", type=text, metavar="NAME", help="producers and consumers of this group")
        add("--topic", type=text, metavar="NAME", help="consumers that subscribe to it")
        add("--address", type=text, metavar="HOST[:PORT]", help="those at this address")
        add("--all", action="store_true", help="connections that are in no group, too")
        add_watch(listing)
    about = "what a client subscribes to, which queues it holds; --stack: its threads"
    with asking(group, "client show", about, admin=True) as show:
        add = show.add_argument
        add("client_id", type=text, metavar="CLIENT_ID")
        add("--group", type=text, metavar="NAME", help="a group that it is in (RocketMQ's brokers)")
        add("--stack", action="store_true", help="ask the client for the stacks of its threads")
