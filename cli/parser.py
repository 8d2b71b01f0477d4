"""The arguments of `aerobee`, all of them. Nothing is run from here: each leaf sets `command`.

A call uses the arguments of one command out of fifty, so those of a command (of a whole group, such
as `topic`) are declared when its name has been read: `FILLED` says by which function. A large group
has a module of its own, which is imported at that moment.
"""

import argparse
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn

from aerobee import __version__
from aerobee.cli.arguments.argument_types import (
    assignment,
    delay,
    delay_level,
    port,
    seconds,
    shards,
    text,
)
from aerobee.cli.shared_arguments import add_json, add_settings, add_yes, asking
from aerobee.nearest_name import nearest_name
from aerobee.pipeline.jobs.common.argument_values import count, number
from aerobee.printable import printable
from aerobee.shards import SHARDS_MAX

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    Commands = _SubParsersAction[argparse.ArgumentParser]

Fill = Callable[[argparse.ArgumentParser], None]

_MISSING: Final = ("required: COMMAND", "required: JOB")
# The default of config/settings/delivery.py; a test compares them.
_DELAYS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
_EPILOG: Final = """\
first steps:
  aerobee serve                                   a broker with its name server
  aerobee message send orders "one coffee"        in another terminal
  aerobee message pull orders
"""


class Parser(argparse.ArgumentParser):
    """A command refuses unknown options, with its usage. An unknown command is refused with the
    nearest name; without a command the help lists all.

    `fill` declares the arguments when the parser is asked for the first time."""

    def __init__(self, *arguments: Any, fill: Fill | None = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._fill = fill

    def declare(self) -> None:
        """Declare the arguments, unless that has been done."""
        fill, self._fill = self._fill, None
        if fill is not None:
            fill(self)

    def error(self, message: str) -> NoReturn:
        if message.endswith(_MISSING):
            self.print_help(sys.stderr)
            self.exit(2)
        super().error(printable(message))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            near = nearest_name(str(value), map(str, action.choices or ()))
            if near is None or not isinstance(action, argparse._SubParsersAction):
                raise
            # Without the long list of all.
            text = f"there is no {value!r}; did you mean {near}?"
            raise argparse.ArgumentError(None, text) from error

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        # argparse asks a command's parser for nothing, its help included, before this.
        self.declare()
        first = next(iter(sys.argv[1:] if args is None else args), "").partition("=")[0]
        if (
            self._subparsers is not None
            and first.startswith("-")
            and first not in self._option_string_actions
        ):
            self.error(f"{first} goes after the command, as in: {self.prog} COMMAND ... {first}")
        parsed, rest = super().parse_known_args(args, namespace)
        unknown = [one.partition("=")[0] for one in rest if one.startswith("-")]
        if unknown and self._subparsers is None:
            # The hyphens that all have in front make no name nearer.
            known = {name.lstrip("-"): name for name in self._option_string_actions}
            near = nearest_name(unknown[0].lstrip("-"), known)
            hint = f"; did you mean {known[near]}?" if near else ""
            self.error(f"unrecognized arguments: {' '.join(rest)}{hint}")
        return parsed, rest


class _Version(argparse.Action):
    """Prints that of the program, and which form of the hot path would run; when asked only, for
    the modules of that form are opened to know."""

    def __init__(self, option_strings: list[str], help: str, **_: object) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from aerobee.cli.printing.output import show
        from aerobee.native.form import wish_text

        show(f"aerobee {__version__} ({wish_text()})")
        parser.exit()


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands; every leaf sets `command` to its words, such as "topic list"."""
    parser: argparse.ArgumentParser = Parser(
        prog="aerobee",
        description="A message broker that speaks RocketMQ 4.9's protocol.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, help="print it, and exit")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, (about, fill) in FILLED.items():
        commands.add_parser(name, help=about, description=about, fill=fill)
    return parser


# The daemons


def _add_serve(parser: argparse.ArgumentParser) -> None:
    parser.description = "Run the broker. Port 0 for the name server or HTTP turns that part off."
    add_settings(parser)
    add = parser.add_argument
    add("-n", "--name-servers", metavar="HOST:PORT;...", help="name servers to register with")
    add("--store", metavar="DIR", help="directory of everything the broker keeps")
    add("--host", metavar="ADDR", help="address to listen on (default: loopback)")
    add("--port", type=port, metavar="N", help="port for clients (10911)")
    add("--nameserver-port", type=port, metavar="N", help="embedded name server (9876)")
    add("--http-port", type=port, metavar="N", help="metrics and health (5557)")
    add(
        "--shards", type=shards, default=1, metavar="N",
        help="run N brokers on this machine, each with store, ports and name of its own, under one "
        f"supervisor (1; at most {SHARDS_MAX})",
    )  # fmt: skip
    # The supervisor starts each shard with this.
    add("--as-shard", type=number, help=argparse.SUPPRESS)
    add("--dev", action="store_true", help="free ports and a store that is deleted at the end")
    add("-p", "--print-config", action="store_true", help="print all settings and exit")
    add("-m", "--print-important", action="store_true", help="print the important ones and exit")
    parser.set_defaults(command="serve")


def _add_nameserver(parser: argparse.ArgumentParser) -> None:
    add_settings(parser)
    parser.add_argument("--host", metavar="ADDR", help="address to listen on (default: loopback)")
    parser.add_argument("--port", type=port, metavar="N", help="port (9876; 0: a free one)")
    parser.add_argument("--supervised", action="store_true", help=argparse.SUPPRESS)
    parser.set_defaults(command="nameserver")


def _add_shards(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--http", type=text, default="127.0.0.1:5557", metavar="HOST:PORT",
        help="metrics and health of their supervisor (127.0.0.1:5557); https://HOST:PORT where it "
        "takes nothing but TLS",
    )  # fmt: skip
    parser.add_argument(
        "--timeout", type=seconds, default=10.0, metavar="SECONDS", help="for the answer (10)"
    )
    add_json(parser)
    parser.set_defaults(command="shards")


# Configuration


def _add_config(parser: argparse.ArgumentParser) -> None:
    group = _group(parser)
    show = group.add_parser(
        "show",
        help="every setting that counts, and why",
        description="Show the settings that a broker started with these files, this environment "
        "and these flags would have. Running brokers are not asked.",
    )
    show.add_argument("key", nargs="*", metavar="KEY", help="only these: names here, or RocketMQ's")
    add_settings(show)
    show.add_argument("--origin", action="store_true", help="where each value comes from")
    show.add_argument("--changed", action="store_true", help="only what somebody set")
    add_json(show)
    show.set_defaults(command="config show")
    explain = group.add_parser("explain", help="what a setting means")
    explain.add_argument("key", nargs="+", metavar="KEY", help="its name here, or RocketMQ's")
    explain.set_defaults(command="config explain")
    check = group.add_parser("check", help="read a file as serve would, and say what is wrong")
    check.add_argument("config", metavar="FILE")
    check.add_argument("--format", choices=("toml", "properties"), help="if FILE does not tell")
    check.add_argument("--strict", action="store_true", help="warnings fail as well")
    add_json(check)
    check.set_defaults(command="config check")


def _add_acl(parser: argparse.ArgumentParser) -> None:
    group = _group(parser)
    check = group.add_parser("check", help="read a file as a broker would, and say what is wrong")
    check.add_argument("file", metavar="FILE", help="plain_acl.yml, or the folder conf/acl")
    check.set_defaults(command="acl check")
    explain = group.add_parser("explain", help="what an account may do, and which line says so")
    explain.add_argument("file", nargs="+", metavar="FILE", help="files or folders of accounts")
    explain.add_argument("--account", required=True, metavar="KEY", help="its access key")
    explain.add_argument("--topic", metavar="T", help="may it send to it, may it read it?")
    explain.add_argument("--group", metavar="G", help="may it consume in it?")
    explain.set_defaults(command="acl explain")


# Topics and messages


def _add_topic(parser: argparse.ArgumentParser) -> None:
    group = _group(parser)
    with asking(group, "topic list", "topics the name server knows") as listing:
        about = "system, retry and dead letter ones too"
        listing.add_argument("--all", action="store_true", help=about)
    _add_create(group)
    with asking(group, "topic describe", "queues and offsets of a topic, by broker") as describe:
        describe.add_argument("topic", type=text)
    about = "say what a topic holds; --yes: delete it, with its messages"
    description = (
        "Delete a topic on all brokers: its messages cannot be read any more, and its groups' "
        "offsets in it are gone. Without --yes nothing is deleted."
    )
    with asking(group, "topic delete", about, description, admin=True) as delete:
        delete.add_argument("topic", type=text)
        add_yes(delete)


def _add_create(group: "Commands") -> None:
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


# Groups and offsets


def _add_group(parser: argparse.ArgumentParser) -> None:
    group = _group(parser)
    with asking(group, "group list", "groups that brokers know, with members and lag") as listing:
        about = "those of RocketMQ's own tools too"
        listing.add_argument("--all", action="store_true", help=about)
    about = "members, subscriptions and lag of a group"
    with asking(group, "group describe", about) as describe:
        describe.add_argument("group", type=text)


def _add_offset(parser: argparse.ArgumentParser) -> None:
    group = _group(parser)
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


def _add_reset(group: "Commands") -> None:
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


def _add_message(parser: argparse.ArgumentParser) -> None:
    group = _group(parser)
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


def _add_send(group: "Commands") -> None:
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


def _add_cancel(group: "Commands") -> None:
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


def _add_reading(group: "Commands") -> None:
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


def _add_broker(parser: argparse.ArgumentParser) -> None:
    group = _group(parser)
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


def _group(parser: argparse.ArgumentParser) -> "Commands":
    return parser.add_subparsers(metavar="COMMAND", required=True)


# Modules of their own


def _add_bench(parser: argparse.ArgumentParser) -> None:
    from aerobee.cli.bench.bench_arguments import add_bench

    add_bench(parser)


def _add_store(parser: argparse.ArgumentParser) -> None:
    from aerobee.cli.store.parser import add_store

    add_store(_group(parser))


def _add_pipeline(parser: argparse.ArgumentParser) -> None:
    from aerobee.pipeline.jobs.arguments import add_jobs
    from aerobee.pipeline.launch.words import add_launches

    jobs = parser.add_subparsers(metavar="JOB", required=True)
    add_launches(jobs)
    add_jobs(jobs)


#: Each command, or group of commands: what it is about, and what declares its arguments.
FILLED: Final[Mapping[str, tuple[str, Fill]]] = {
    "serve": ("run the broker (with its name server) in the foreground", _add_serve),
    "nameserver": ("run a name server alone, in the foreground", _add_nameserver),
    "shards": (
        "the brokers that aerobee serve --shards runs on this machine, and how they are",
        _add_shards,
    ),
    "config": ("what is configured, and whether a file is right", _add_config),
    "acl": ("files of accounts: whether one is right, who may do what", _add_acl),
    "topic": ("list, create, describe and delete topics", _add_topic),
    "group": ("list and describe consumer groups", _add_group),
    "offset": ("where consumer groups are: show, reset, clone", _add_offset),
    "message": ("send, read, follow and find messages", _add_message),
    "broker": ("ask something of running brokers", _add_broker),
    "bench": ("measure a running broker, this one or RocketMQ's: rates and latencies", _add_bench),
    "store": ("check, look into and mend a store whose broker is stopped", _add_store),
    "pipeline": (
        "Spark with our formats (shell, submit); jobs on it over a store's files: audit, rebuild, "
        "archive, replay, traffic, retention, dlq; and stream, of live topics to a lake",
        _add_pipeline,
    ),
}
