"""The documents of `--json` and their schemas: each command has one, and fields are only added."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator

import pytest

from aerobee.cli.arguments.parser import Parser, build_parser
from aerobee.cli.documents.registry import DOCUMENTS, UNTYPED
from aerobee.cli.documents.schema_pages import FOLDER, page_of, schema_text, taken_away


def with_json(parser: argparse.ArgumentParser) -> Iterator[str]:
    """The commands below a parser that take --json."""
    if isinstance(parser, Parser):
        parser.declare()
    groups = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    for group in groups:
        for below in group.choices.values():
            yield from with_json(below)
    if not groups and "--json" in parser._option_string_actions:
        yield parser.get_default("command") or parser.prog


def test_each_command_that_prints_json_has_its_document() -> None:
    known = {name for name in with_json(build_parser()) if not name.startswith("pipeline")}
    assert known - UNTYPED == set(DOCUMENTS)
    assert not UNTYPED & set(DOCUMENTS)


@pytest.mark.parametrize("command", sorted(DOCUMENTS))
def test_a_schema_is_that_of_the_code(command: str) -> None:
    assert page_of(command).read_text("utf-8") == schema_text(command), (
        "run: python -m aerobee.cli.documents.schema_pages"
    )


def test_no_schema_is_left_of_what_no_command_prints() -> None:
    assert {path.name for path in FOLDER.glob("*.json")} == {page_of(one).name for one in DOCUMENTS}


def schema(**fields: object) -> dict[str, object]:
    return {"$defs": {"One": {"properties": fields}}}


@pytest.mark.parametrize(
    ("after", "lost"),
    [
        (schema(a={"type": "integer"}, b={"type": "string"}), []),
        (schema(b={"type": "string"}), ["One.a"]),
        (schema(a={"type": "string"}), ["One.a"]),
        (schema(a={"anyOf": [{"type": "integer"}, {"type": "null"}]}), ["One.a"]),
        ({"$defs": {}}, ["One.a"]),
    ],
)
def test_a_field_that_is_gone_or_other_than_promised_is_found(
    after: dict[str, object], lost: list[str]
) -> None:
    assert taken_away(schema(a={"type": "integer"}), after) == lost


def test_schemas_are_json() -> None:
    for command in DOCUMENTS:
        assert json.loads(schema_text(command))["title"] == command
