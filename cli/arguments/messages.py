"""The arguments of `aerobee message`."""

import argparse
from typing import Final

from aerobee.cli.arguments.argument_types import delay, delay_level, text
from aerobee.cli.arguments.shared_arguments import Commands, add_previewed, asking, commands_of
from aerobee.pipeline.argument_values import count, number

# The default of config/settings/delivery.py; a test compares them.
_DELAYS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
# That of protocol/names.py; a test compares them.
_TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
_IDS: Final = "the client's id (unique), or the broker's (offset)"


def add_message(parser: argparse.ArgumentParser) -> None:
    """The commands of the group `parser`."""
    group = commands_of(parser)
    _add_send(group)
    _add_cancel(group)
    _add_reading(group)
    about = "find messages by key or id"
    told = f"{about}; a message that waits for its time is found from its delivery on"
    with asking(group, "message query", about, told) as query:
        add = query.add_argument
        add("topic", type=text, nargs="?", help="needed with --key, and with a client's unique id")
        what = query.add_mutually_exclusive_group(required=True)
        what.add_argument("--key", type=text, help="one of the message's keys")
        ids = "message id: the broker's (offset) or the client's (unique)"
        what.add_argument("--id", type=text, help=ids)
        add("--max", type=count, default=32, metavar="N", help="most results (32)")
        add("--begin", type=text, metavar="TIME", help="stored at or after: ISO time or ms")
        add("--end", type=text, metavar="TIME", help="stored at or before")
        add("--full", action="store_true", help="whole bodies and all properties")
    _add_inspecting(group)
    _add_changing(group)


def _add_inspecting(group: Commands) -> None:
    """One message: how far each group is with it, and its trace."""
    about = "where a message is: for each group consumed, not yet, waiting for a try, dead"
    with asking(group, "message show", about, admin=True) as show:
        show.add_argument("id", type=text, metavar="ID", help=_IDS)
        told = "the topic of the message (default: all topics are looked at)"
        show.add_argument("--topic", type=text, metavar="NAME", help=told)
    about = "the time line of a message: sent, consumed, by whom"
    description = f"{about}; told by clients that have trace switched on"
    with asking(group, "message trace", about, description) as trace:
        trace.add_argument(
            "id", type=text, metavar="ID", help="the client's id, or one of its keys"
        )
        trace.add_argument(
            "--trace-topic", type=text, default=_TRACE_TOPIC, metavar="NAME",
            help=f"the topic that clients send their trace to ({_TRACE_TOPIC})",
        )  # fmt: skip


def _add_changing(group: Commands) -> None:
    """One message again, or past one message."""
    about = "say who would get a message again; --yes: send it again"
    description = (
        "Send a message again: to its topic, where all groups get it, or to one group alone. "
        "Without --yes nothing is sent."
    )
    with asking(group, "message resend", about, description) as resend:
        add = resend.add_argument
        add("target", type=text, metavar="TOPIC|GROUP", help="who gets it: all groups, or one")
        add(
            "id", type=text, metavar="ID", help="the client's id (unique), or the broker's (offset)"
        )
        about = "what the name is, where a topic and a group have it"
        add("--as", dest="kind", choices=("topic", "group"), help=about)
        add_previewed(resend)
    about = "say which message a group is stuck at; --yes: make it a dead letter and go on"
    description = (
        "Take the message at the head of a group's queue out of its way: it becomes a dead letter "
        "of the group, and the group goes on behind it. Without --yes nothing is changed."
    )
    with asking(group, "message skip", about, description, admin=True) as skip:
        add = skip.add_argument
        add("group", type=text)
        add("topic", type=text)
        add("--queue", type=number, required=True, metavar="N", help="number of the queue")
        add("--broker", type=text, metavar="NAME", help="where several brokers have the topic")
        add_previewed(skip)


def _add_send(group: Commands) -> None:
    with asking(group, "message send", "send messages") as send:
        add = send.add_argument
        add("topic", type=text)
        add("body", nargs="?", help="text of the message (default: standard input)")
        add("--lines", action="store_true", help="each line of standard input is a message")
        add("--tags", type=text, default="", metavar="TAG", help="the tag consumers filter by")
        add(
            "--keys", "--key", type=text, action="append", default=[], metavar="KEY",
            help="to find it again, repeatable",
        )  # fmt: skip
        add(
            "--property", type=text, action="append", default=[], metavar="NAME=VALUE",
            help="repeatable",
        )  # fmt: skip
        _add_times(send)
        about = "messages of one order key share a queue"
        add("--order-key", type=text, metavar="TEXT", help=about)
        add("--queue", type=number, metavar="N", help="number of the queue to send to")
        about = "with --queue, where several brokers have the topic"
        add("--broker", type=text, metavar="NAME", help=about)
        add("--repeat", type=count, default=1, metavar="N", help="send it N times")
        add("--oneway", action="store_true", help="do not wait for an answer")


def _add_times(send: argparse.ArgumentParser) -> None:
    """When a message is to be delivered."""
    send.add_argument(
        "--delay-level", type=delay_level, default=0, metavar="N",
        help=f"have the broker deliver it later, level 1 to 18: {_DELAYS}, "
        "if its messageDelayLevel does not say otherwise",
    )  # fmt: skip
    when = send.add_mutually_exclusive_group()
    when.add_argument(
        "--deliver-at", type=text, metavar="TIME",
        help="have the broker deliver it then: ISO time or ms since 1970, up to 40 days ahead; "
        "at once if it has passed",
    )  # fmt: skip
    when.add_argument(
        "--delay", type=delay, metavar="SPAN",
        help="have the broker deliver it after that: seconds, or such as 90s, 15m, 2h, 3d",
    )  # fmt: skip


def _add_cancel(group: Commands) -> None:
    about = "have a message that waits for a time of its own not delivered"
    told = f"{about}; nobody checks whether such a message waits"
    with asking(group, "message cancel", about, told) as cancel:
        add = cancel.add_argument
        add("topic", type=text)
        about = "what `message send` printed as its recall handle"
        add("handle", type=text, nargs="?", help=about)
        about = "in place of the handle: the client's unique id"
        add("--id", type=text, metavar="ID", help=about)
        add(
            "--deliver-at", type=text, metavar="TIME",
            help="with --id: its time, to the millisecond, as `message send` printed it: ISO time "
            "or ms since 1970",
        )  # fmt: skip
        add("--broker", type=text, metavar="NAME", help="with --id: where several have the topic")


def _add_reading(group: Commands) -> None:
    """`pull` reads the messages that are there, `tail` goes on; they differ in their defaults."""
    for name, start, most, about in (
        ("pull", "earliest", 32, "print messages that are there, leaving no trace"),
        ("tail", "latest", None, "print messages as they arrive, until Ctrl-C"),
    ):
        with asking(group, f"message {name}", about) as parser:
            add = parser.add_argument
            add("topic", type=text)
            where = f"earliest, latest, an offset, or a time (ISO or ms); default {start}"
            add("--from", type=text, dest="start", default=start, metavar="WHERE", help=where)
            about = f"most messages ({most or 'no end'})"
            add("--count", type=count, default=most, metavar="N", help=about)
            what = parser.add_mutually_exclusive_group()
            what.add_argument("--tags", type=text, metavar="EXPR", help="such as 'A || B' (all)")
            what.add_argument(
                "--sql", type=text, metavar="EXPR",
                help="a SQL92 condition on properties, such as 'a > 3', if enablePropertyFilter is "
                "on",
            )  # fmt: skip
            add("--queue", type=number, metavar="N", help="only this queue")
            add("--broker", type=text, metavar="NAME", help="only this broker")
            add("--full", action="store_true", help="whole bodies and all properties")
