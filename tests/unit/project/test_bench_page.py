"""docs/bench.md names options, commands and the keys of workloads; here it is held to it."""

import argparse
import re
from pathlib import Path

from aerobee.cli.arguments.parser import Parser, build_parser
from aerobee.cli.bench.workload import _KEYS

PAGE = (Path(__file__).parents[3] / "docs" / "bench.md").read_text()
WORDS = frozenset(re.findall(r"--[a-z][a-z-]*", PAGE))


def leaves() -> dict[str, argparse.ArgumentParser]:
    found: dict[str, argparse.ArgumentParser] = {}

    def walk(parser: argparse.ArgumentParser) -> None:
        assert isinstance(parser, Parser)
        parser.declare()
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for leaf in action.choices.values():
                    walk(leaf)
        command = parser.get_default("command") or ""
        if command.startswith("bench "):
            found[command] = parser

    walk(build_parser())
    return found


def test_every_option_is_on_the_page_and_no_other() -> None:
    own = {
        name
        for parser in leaves().values()
        for name in parser._option_string_actions
        if name.startswith("--") and name != "--help"
    }
    assert own == WORDS


def test_every_command_and_every_key_is_on_the_page() -> None:
    assert len(leaves()) == 5
    for command in leaves():
        assert f"aerobee {command}" in PAGE
    for key in _KEYS:
        assert f"`{key}`" in PAGE


def test_defaults_in_brackets_are_those_of_the_parser() -> None:
    send = leaves()["bench send"]
    assert (send.get_default("queues"), send.get_default("size")) == (8, 128)
    assert (send.get_default("warm_up"), send.get_default("duration")) == (10.0, 30.0)
    assert send.get_default("connections") == 16
    assert leaves()["bench pull"].get_default("connections") == 4
    assert leaves()["bench pull"].get_default("messages") == 100_000
