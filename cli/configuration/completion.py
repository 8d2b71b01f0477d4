"""`aerobee completion` and the manual pages: all commands and options, for shells and for `man`.

Arguments of commands are declared when a command is parsed (`arguments/parser.py`); here all are,
because a script for a shell has to know them at once.

Both libraries write from argparse's parser: shtab the scripts, argparse-manpage the page
(`make man`). Neither is imported by any other command. shtab is the extra `completion` and not a
dependency, for a broker has no use of it; a script that was written once needs it no more. Scripts
made ahead and kept in the package would be half a megabyte that has to be made anew with each
option of each command.

    python -m aerobee.cli.configuration.completion FILE    writes aerobee(1)
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from aerobee import __version__
from aerobee.cli.arguments.parser import Parser, build_parser
from aerobee.cli.printing.output import OK, CommandFailed, show_script

# The kinds of values that a shell can complete, by the name that the help has for them.
_FILES: Final = frozenset({"FILE", "FILE.tar.gz"})
_FOLDERS: Final = frozenset({"DIR", "DIRECTORY", "FOLDER"})


def print_completion(parsed: argparse.Namespace) -> int:
    """Print the script for a shell."""
    try:
        import shtab
    except ImportError:
        raise CommandFailed(
            "the library shtab is not installed: pip install 'aerobee[completion]'"
        ) from None
    parser = declared_parser()
    for action in actions_of(parser):
        name = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
        kind = shtab.FILE if name in _FILES else shtab.DIRECTORY if name in _FOLDERS else None
        if kind is not None:
            action.complete = kind  # type: ignore[attr-defined]  # shtab's own attribute
    show_script(shtab.complete(parser, shell=parsed.shell))
    return OK


def declared_parser() -> argparse.ArgumentParser:
    """The parser of `aerobee` with the arguments of every command."""
    parser = build_parser()
    for _ in actions_of(parser):
        pass
    return parser


def actions_of(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Each argument of a parser and of all commands below it, which are declared for that."""
    if isinstance(parser, Parser):
        parser.declare()
    for action in list(parser._actions):
        yield action
        if isinstance(action, argparse._SubParsersAction):
            # A command with two names is one parser.
            for below in {id(one): one for one in action.choices.values()}.values():
                yield from actions_of(below)


def manual_page() -> str:
    """The manual page aerobee(1), in troff."""
    from argparse_manpage.manpage import Manpage

    parser: Any = declared_parser()
    parser.man_short_description = "a message broker that speaks RocketMQ 4.9's protocol"
    names = {"manual_title": "Aerobee", "project_name": "aerobee", "version": __version__}
    return str(Manpage(parser, names, format="pretty"))


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(manual_page(), encoding="utf-8")
