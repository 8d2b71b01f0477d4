"""The arguments of `aerobee dlq`."""

import argparse

from aerobee.cli.arguments.argument_types import text
from aerobee.cli.arguments.shared_arguments import Commands, add_previewed, asking, commands_of
from aerobee.pipeline.argument_values import count


def add_dlq(parser: argparse.ArgumentParser) -> None:
    """The commands of the group `parser`."""
    group = commands_of(parser)
    with asking(group, "dlq list", "groups with dead letters: how many, since when") as listing:
        about = "groups whose dead letters are gone, too"
        listing.add_argument("--all", action="store_true", help=about)
    with asking(group, "dlq peek", "print dead letters, oldest first, leaving no trace") as peek:
        add = peek.add_argument
        add("group", type=text)
        add("--count", type=count, default=32, metavar="N", help="most messages (32)")
        add("--full", action="store_true", help="whole bodies and all properties")
    about = "write all dead letters into a new file, one JSON object a line"
    description = (
        f"{about[0].upper()}{about[1:]}. The file is there whole or not at all, and a file that "
        "exists is not touched."
    )
    with asking(group, "dlq export", about, description) as export:
        export.add_argument("group", type=text)
        export.add_argument("file", metavar="FILE")
    _add_changes(group)


def _add_changes(group: Commands) -> None:
    description = (
        "Send dead letters to their group again, and to no other: by the group's retry topic, with "
        "all tries before them. A letter is sent once: a command that was broken off goes on where "
        "it was. The letters stay where they are until they are purged. Without --yes nothing is "
        "sent."
    )
    about = "say what would be sent to the group again; --yes: send it"
    with asking(group, "dlq resend", about, description) as resend:
        resend.add_argument("group", type=text)
        about = "only this dead letter: its client's id, or its broker's"
        resend.add_argument("--id", type=text, metavar="ID", help=about)
        add_previewed(resend)
    description = (
        "Delete the dead letters of a group: all of them, by deleting their topic, which the next "
        "dead letter makes again. Without --yes nothing is deleted."
    )
    about = "say what dead letters there are; --yes: delete them"
    with asking(group, "dlq purge", about, description, admin=True) as purge:
        purge.add_argument("group", type=text)
        add_previewed(purge)
