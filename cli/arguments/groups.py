"""The arguments of `aerobee group` and `aerobee offset`."""

import argparse

from aerobee.cli.arguments.argument_types import text
from aerobee.cli.arguments.shared_arguments import Commands, add_watch, add_yes, asking, commands_of


def add_group(parser: argparse.ArgumentParser) -> None:
    """The commands of the group `parser`."""
    group = commands_of(parser)
    with asking(group, "group list", "groups that brokers know, with members and lag") as listing:
        about = "those of RocketMQ's own tools too"
        listing.add_argument("--all", action="store_true", help=about)
        add_watch(listing)
    about = "members, subscriptions and lag of a group"
    with asking(group, "group describe", about) as describe:
        describe.add_argument("group", type=text)


def add_offset(parser: argparse.ArgumentParser) -> None:
    """The commands of the group `parser`."""
    group = commands_of(parser)
    of_one = "only of this one (default: all)"
    about = "a group's offset in each queue, and how far it is behind"
    with asking(group, "offset show", about) as show:
        show.add_argument("group", type=text)
        show.add_argument("--topic", type=text, metavar="NAME", help=of_one)
    _add_reset(group)
    description = (
        "Show the offsets that a group would get from another group; --yes does it. The group "
        "should not be online: its members would commit over it. A missing group is made. The "
        "source's own retry topic is left out unless --topic names it."
    )
    about = "give a group the offsets of another group"
    with asking(group, "offset clone", about, description, admin=True) as clone:
        clone.add_argument("source", type=text, metavar="SOURCE")
        clone.add_argument("group", type=text, metavar="GROUP")
        clone.add_argument("--topic", type=text, metavar="NAME", help=of_one)
        add_yes(clone)


def _add_reset(group: Commands) -> None:
    description = (
        "Show how many messages of each queue a group would get again or miss, and which members "
        "would be informed; --yes does it. The broker informs members that are online, and they "
        "commit the new offsets; without such members this command commits them. A time means the "
        "message stored nearest to it, so a future time means the last message; latest is after it."
    )
    about = "have a group go on somewhere else"
    with asking(group, "offset reset", about, description, admin=True) as reset:
        add = reset.add_argument
        add("group", type=text)
        add("topic", type=text)
        where = "earliest, latest, or a time (ISO or ms since 1970)"
        add("--to", type=text, required=True, metavar="WHERE", help=where)
        add("--only-back", action="store_true", help="leave queues alone that would miss messages")
        add("--broker", type=text, metavar="NAME", help="only on this broker (default: on all)")
        add_yes(reset)
