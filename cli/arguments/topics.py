"""The arguments of `aerobee topic`."""

import argparse

from aerobee.cli.arguments.argument_types import text
from aerobee.cli.arguments.shared_arguments import (
    Commands,
    add_previewed,
    add_yes,
    asking,
    commands_of,
)
from aerobee.pipeline.argument_values import count


def add_topic(parser: argparse.ArgumentParser) -> None:
    """The commands of the group `parser`."""
    group = commands_of(parser)
    with asking(group, "topic list", "topics the name server knows") as listing:
        about = "system, retry and dead letter ones too"
        listing.add_argument("--all", action="store_true", help=about)
    _add_create(group)
    with asking(group, "topic describe", "queues and offsets of a topic, by broker") as describe:
        describe.add_argument("topic", type=text)
    about = "why a topic has no route, or cannot be sent to or read, and what helps"
    with asking(group, "topic explain", about, admin=True) as explain:
        explain.add_argument("topic", type=text)
    about = "say what a topic holds; --yes: delete it, with its messages"
    description = (
        "Delete a topic on all brokers: its messages cannot be read any more, and its groups' "
        "offsets in it are gone. Without --yes nothing is deleted."
    )
    with asking(group, "topic delete", about, description, admin=True) as delete:
        delete.add_argument("topic", type=text)
        add_yes(delete)
    about = "say which groups have not consumed a topic; --yes: move them to its end"
    description = (
        "Move all groups of a topic to its end: they do not get the messages any more that it has "
        "now. The messages stay until retention takes them. Without --yes nothing is changed."
    )
    with asking(group, "topic purge", about, description, admin=True) as purge:
        purge.add_argument("topic", type=text)
        add_previewed(purge)


def _add_create(group: Commands) -> None:
    description = (
        "Create a topic, or change an existing topic with --update. A topic that gets fewer queues "
        "loses the messages in those that go: first take away write queues, wait until they are "
        "consumed, then take away read queues. A change that makes messages unreadable is only "
        "described; --yes does it."
    )
    about = "create a topic; --update: change a topic"
    with asking(group, "topic create", about, description, admin=True) as create:
        add = create.add_argument
        add("topic", type=text)
        add("--queues", type=count, metavar="N", help="to read and write (8, or what there is)")
        add("--write-queues", type=count, metavar="N", help="only those that are sent to")
        add("--read-queues", type=count, metavar="N", help="only those that are consumed")
        add("--perm", choices=("r", "w", "rw"), help="rights (rw, or what there is)")
        about = "change a topic that exists with other settings"
        add("--update", action="store_true", help=about)
        about = "with --update: also where messages become unreadable"
        add("--yes", action="store_true", help=about)
        add("--cluster", type=text, metavar="NAME", help="only in this cluster")
        add("--broker", type=text, metavar="NAME", help="only on this broker (default: on all)")
