"""Arguments that many commands have: of settings, of asking brokers, of changing something.

A command changes something only with `--yes`: without it, and with `--dry-run`, it says what it
would do.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TypeAlias

from aerobee.cli.arguments.argument_types import seconds, text

#: The commands of a group, as argparse keeps them.
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
_CONNECTION: Final = "connection options"


def commands_of(parser: argparse.ArgumentParser) -> Commands:
    """The commands of the group `parser`."""
    return parser.add_subparsers(metavar="COMMAND", required=True)


@contextmanager
def asking(
    group: Commands,
    command: str,
    about: str,
    description: str | None = None,
    *,
    admin: bool = False,
) -> Iterator[argparse.ArgumentParser]:
    """The parser of a command that asks name servers and brokers; the arguments common to all of
    these follow its own arguments."""
    parser = group.add_parser(command.split()[-1], help=about, description=description)
    yield parser
    if admin:
        add_admin(parser)
    add_client(parser)
    add_json(parser)
    parser.set_defaults(command=command)


def add_json(parser: argparse.ArgumentParser) -> None:
    """`parsed.json`: a document in place of tables."""
    parser.add_argument("--json", action="store_true", help="JSON for scripts")


def add_settings(
    parser: argparse.ArgumentParser, file: str = "TOML, or a RocketMQ broker.conf"
) -> None:
    """Those that settings are loaded by; `file` says which file `-c` names."""
    add = parser.add_argument
    add("-c", "--config", metavar="FILE", help=file)
    add("--format", choices=("toml", "properties"), help="of FILE, if its content does not tell")
    add("--strict", action="store_true", help="unknown keys of a broker.conf are errors")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="one setting, repeatable")


def add_yes(parser: argparse.ArgumentParser) -> None:
    """`parsed.yes` is whether to do it. Asking for both is an error of usage."""
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--yes", action="store_true", help="do it (default: say what would be)")
    either.add_argument("--dry-run", action="store_true", help="say what would be, as without it")


def add_previewed(parser: argparse.ArgumentParser) -> None:
    """Those of a change that is first a preview: `parsed.yes` and `parsed.expect`."""
    add_yes(parser)
    add_expect(parser)


def add_expect(parser: argparse.ArgumentParser) -> None:
    """`parsed.expect`: the hash that a preview ended with, None without it
    (`cluster/previews.py`)."""
    parser.add_argument(
        "--expect", metavar="HASH", help="do it only if all is still as the preview showed it"
    )


def add_client(parser: argparse.ArgumentParser) -> None:
    """The arguments for name servers, brokers, account and TLS, which `cluster/command_session.py`
    reads; the help has them in a group of their own."""
    add = _connection_options(parser).add_argument
    add(
        "--context",
        type=text,
        metavar="NAME",
        help="a named connection (aerobee context list); the options below win over it (default: "
        "AEROBEE_CONTEXT, or the context in use if neither -n nor NAMESRV_ADDR is given)",
    )
    add_connection(parser)
    add("--timeout", type=seconds, default=5.0, metavar="SECONDS", help="for one answer (5)")


def add_connection(parser: argparse.ArgumentParser, *, is_required: bool = False) -> None:
    """The arguments that a context keeps; `is_required`: name servers have to be given."""
    add = _connection_options(parser).add_argument
    add(
        "-n",
        "--name-servers",
        type=text,
        required=is_required,
        metavar="HOST:PORT;...",
        help="where to ask which brokers there are"
        if is_required
        else "default: NAMESRV_ADDR of the environment, or 127.0.0.1:9876",
    )
    add(
        "--credentials",
        metavar="FILE",
        help="RocketMQ's tools.yml with accessKey and secretKey, for brokers that ask for accounts "
        "(default: AEROBEE_CREDENTIALS, or conf/tools.yml below ROCKETMQ_HOME)",
    )
    add("--tls", action="store_true", help="speak TLS to name servers and brokers")
    add("--trust-store", metavar="FILE", help="check their certificates against these, PEM")
    add(
        "--certificate",
        metavar="FILE",
        help="for servers and brokers that ask for a certificate, PEM",
    )
    add("--certificate-key", metavar="FILE", help="its key, where that is a file of its own")


def add_admin(parser: argparse.ArgumentParser) -> None:
    """The option for the ports where brokers take administrators' requests."""
    _connection_options(parser).add_argument(
        "--admin", type=text, metavar="HOST:PORT", action="append",
        help="where a broker takes what administrators ask for, if it has a port of its own for "
        "that (admin.port); once for each such broker",
    )  # fmt: skip


def _connection_options(parser: argparse.ArgumentParser) -> "argparse._ArgumentGroup":
    """The group of these options in the help of a command, made when it is first asked for."""
    found = (group for group in parser._action_groups if group.title == _CONNECTION)
    return next(found, None) or parser.add_argument_group(_CONNECTION)


def add_watch(parser: argparse.ArgumentParser) -> None:
    """`parsed.watch`: seconds between two runs, None for a single one (`printing/watch.py`)."""
    parser.add_argument(
        "--watch", type=seconds, nargs="?", const=2.0, metavar="SECONDS",
        help="show it again each SECONDS (2), until Ctrl-C",
    )  # fmt: skip
