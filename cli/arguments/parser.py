"""The arguments of `aerobee`, all of them. Nothing is run from here: each leaf sets `command`.

A call uses the arguments of one command out of fifty, so those of a command (of a whole group, such
as `topic`) are declared when its name has been read: `FILLED` says by which function of which
module, which is imported at that moment.
"""

import argparse
import importlib
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NoReturn

from aerobee import __version__
from aerobee.nearest_name import nearest_name
from aerobee.printable import printable

Fill = Callable[[argparse.ArgumentParser], None]

_MISSING: Final = ("required: COMMAND", "required: JOB")
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
        #: The exit code of a wrong command line.
        self.usage_code = 2

    def declare(self) -> None:
        """Declare the arguments, unless that has been done."""
        fill, self._fill = self._fill, None
        if fill is not None:
            fill(self)

    def error(self, message: str) -> NoReturn:
        if message.endswith(_MISSING):
            self.print_help(sys.stderr)
            self.exit(self.usage_code)
        self.print_usage(sys.stderr)
        self.exit(self.usage_code, f"{self.prog}: error: {printable(message)}\n")

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


def build_parser() -> Parser:
    """The parser of all commands; every leaf sets `command` to its words, such as "topic list"."""
    parser = Parser(
        prog="aerobee",
        description="A message broker that speaks RocketMQ 4.9's protocol.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, help="print it, and exit")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, (about, module, function) in FILLED.items():
        fill = partial(_fill, module, function)
        commands.add_parser(name, help=about, description=about, fill=fill)
    return parser


def _fill(module: str, function: str, parser: argparse.ArgumentParser) -> None:
    fill: Fill = getattr(importlib.import_module(f"aerobee.{module}"), function)
    fill(parser)


#: Each command, or group of commands: what it is about, and what declares its arguments.
FILLED: Final[Mapping[str, tuple[str, str, str]]] = {
    "serve": (
        "run the broker (with its name server) in the foreground",
        "cli.arguments.daemons",
        "add_serve",
    ),
    "nameserver": (
        "run a name server alone, in the foreground",
        "cli.arguments.daemons",
        "add_nameserver",
    ),
    "shards": (
        "the brokers that aerobee serve --shards runs on this machine, and how they are",
        "cli.arguments.daemons",
        "add_shards",
    ),
    "config": (
        "what is configured, and whether a file is right",
        "cli.arguments.configuration",
        "add_config",
    ),
    "acl": (
        "files of accounts: whether one is right, who may do what",
        "cli.arguments.configuration",
        "add_acl",
    ),
    "context": (
        "named connections: which name servers, account and TLS files commands use",
        "cli.arguments.configuration",
        "add_context",
    ),
    "topic": ("list, create, describe and delete topics", "cli.arguments.topics", "add_topic"),
    "group": (
        "list, describe, explain, create, update and delete consumer groups",
        "cli.arguments.groups",
        "add_group",
    ),
    "offset": (
        "where consumer groups are: show, reset, clone, undo",
        "cli.arguments.groups",
        "add_offset",
    ),
    "status": (
        "how the brokers are: what fails, how much they do, what is full soon",
        "cli.arguments.clients",
        "add_status",
    ),
    "client": ("list and show connected clients", "cli.arguments.clients", "add_clients"),
    "message": ("send, read, follow and find messages", "cli.arguments.messages", "add_message"),
    "dlq": (
        "dead letters: list, look at, export, send again, purge",
        "cli.arguments.dead_letters",
        "add_dlq",
    ),
    "broker": ("ask something of running brokers", "cli.arguments.brokers", "add_broker"),
    "audit": (
        "who has changed what, on brokers and name servers",
        "cli.arguments.audit",
        "add_audit",
    ),
    "bench": (
        "measure a running broker, this one or RocketMQ's: rates and latencies",
        "cli.bench.bench_arguments",
        "add_bench",
    ),
    "store": (
        "check, look into and mend a store whose broker is stopped",
        "cli.store.parser",
        "add_store",
    ),
    "doctor": (
        "whether this machine is fit for a broker, and what to do where it is not",
        "cli.arguments.doctor",
        "add_doctor",
    ),
    "check": (
        "one check for a monitoring system: lag, disk, dlq, certificate, connection",
        "cli.arguments.doctor",
        "add_check",
    ),
    "completion": (
        "the script that completes commands in a shell",
        "cli.arguments.configuration",
        "add_completion",
    ),
    "pipeline": (
        "Spark with our formats (shell, submit); jobs on it over a store's files: audit, rebuild, "
        "archive, replay, traffic, retention, dlq; and stream, of live topics to a lake",
        "cli.arguments.pipeline",
        "add_pipeline",
    ),
}
