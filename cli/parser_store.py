"""The arguments of `aerobee store`: tools for a store at rest."""

import argparse
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    Commands = _SubParsersAction[argparse.ArgumentParser]

_CODES: Final = """\
exit codes: 0 sound or done, 1 damage found, 2 usage, 3 could not, 78 configuration

Sizes of files come from --config or --set, as for serve, or are found from the files.
"""


def add_store(commands: "Commands") -> None:
    """The group and its commands."""
    text = "check, look into and mend a store whose broker is stopped"
    parser = commands.add_parser("store", help=text, description=text)
    group = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_verify(group)


def _add_verify(group: "Commands") -> None:
    parser = store_command(group, "verify", "read everything and say all that is wrong")
    parser.add_argument("--all", action="store_true", help="all findings, not the first of a kind")
    add_json(parser)


def store_command(group: "Commands", name: str, text: str) -> argparse.ArgumentParser:
    """A command on one store: DIR, the settings, --quiet."""
    parser = group.add_parser(
        name,
        help=text,
        description=text,
        epilog=_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("directory", metavar="DIR", help="the store's directory (storePathRootDir)")
    add("-c", "--config", metavar="FILE", help="the broker's TOML or broker.conf")
    add("--format", choices=("toml", "properties"), help="of FILE, if its content does not tell")
    add("--strict", action="store_true", help="unknown keys of a broker.conf are errors")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="one setting, repeatable")
    add("-q", "--quiet", action="store_true", help="no progress")
    parser.set_defaults(command=f"store {name}")
    return parser


def add_json(parser: argparse.ArgumentParser) -> None:
    """The option of all commands that report."""
    parser.add_argument("--json", action="store_true", help="JSON for scripts")
