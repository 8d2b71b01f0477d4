"""The arguments of `aerobee group` and `aerobee offset`."""

import argparse

from aerobee.cli.arguments.argument_types import text
from aerobee.cli.arguments.shared_arguments import (
    Commands,
    add_previewed,
    add_watch,
    asking,
    commands_of,
)
from aerobee.pipeline.argument_values import count, whole


def add_group(parser: argparse.ArgumentParser) -> None:
    """The commands of the group `parser`."""
    group = commands_of(parser)
    with asking(group, "group list", "groups that brokers know, with members and lag") as listing:
        about = "those of RocketMQ's own tools too"
        listing.add_argument("--all", action="store_true", help=about)
        listing.add_argument(
            "--behind",
            type=count,
            nargs="?",
            const=1,
            metavar="MESSAGES",
            help="only groups that are behind by as many (default: 1) or may be, the worst first",
        )
        add_watch(listing)
    about = "members, subscriptions and lag of a group"
    with asking(group, "group describe", about) as describe:
        describe.add_argument("group", type=text)
    _add_explain(group)
    _add_changes(group)


def _add_explain(group: Commands) -> None:
    description = (
        "Say why a group does not consume: no member, no permission, no offset, subscriptions that "
        "differ, two clients of one id, a queue that stands and the message it stands at, a queue "
        "that nobody pulls from, filters that nothing passes, messages that were deleted. Each "
        "finding has its remedy."
    )
    about = "why a group does not come on"
    with asking(group, "group explain", about, description) as explain:
        explain.add_argument("group", type=text)


def _add_changes(group: Commands) -> None:
    about = "make a group, before its first consumer does"
    with asking(group, "group create", about, admin=True) as create:
        create.add_argument("group", type=text)
        _add_group_settings(create)
    about = "change settings of a group"
    with asking(group, "group update", about, admin=True) as update:
        update.add_argument("group", type=text)
        _add_group_settings(update)
    description = (
        "Show what would go with a group, and delete it with --yes. Its offsets stay unless "
        "--offsets: a group that is made again under the name goes on where this one was. Members "
        "that are online make it again."
    )
    about = "delete a group"
    with asking(group, "group delete", about, description, admin=True) as delete:
        delete.add_argument("group", type=text)
        delete.add_argument("--offsets", action="store_true", help="and its offsets")
        _add_where(delete)


def _add_group_settings(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    about = "deliveries after which a message is dead (retryMaxTimes)"
    add("--retries", type=whole, metavar="TIMES", help=about)
    about = "queues of its retry topic (retryQueueNums)"
    add("--retry-queues", type=whole, metavar="QUEUES", help=about)
    for name, of_rocketmq in (
        ("--consume", "consumeEnable"),
        ("--broadcast", "consumeBroadcastEnable"),
        ("--notify", "notifyConsumerIdsChangedEnable"),
    ):
        about = f"whether that is allowed ({of_rocketmq})"
        if name == "--notify":
            about = f"whether members hear of each other at once ({of_rocketmq})"
        add(name, choices=("on", "off"), help=about)
    _add_where(parser)


def _add_where(parser: argparse.ArgumentParser) -> None:
    about = "only on this broker (default: on all)"
    parser.add_argument("--broker", type=text, metavar="NAME", help=about)
    add_previewed(parser)


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
        add_previewed(clone)
    _add_undo(group)


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
        add_previewed(reset)


def _add_undo(group: Commands) -> None:
    description = (
        "Show what it would mean to give a group these offsets; --yes does it. A reset, a clone "
        "and an undo print the words for it before they change anything. Members that are online "
        "are informed, which brokers of RocketMQ cannot do with offsets: stop the group there "
        "first."
    )
    about = "take a reset or a clone back"
    with asking(group, "offset undo", about, description, admin=True) as undo:
        undo.add_argument("group", type=text)
        where = "TOPIC/BROKER=QUEUE:OFFSET,..."
        about = "the offsets as they were, as the reset has printed them"
        undo.add_argument("offsets", type=text, nargs="+", metavar=where, help=about)
        add_previewed(undo)
