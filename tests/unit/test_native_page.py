"""docs/native.md lists every rule that stands twice, and each compiled function names its twin;
nothing of the wire or the files is typed in the compiled form a second time."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from aerobee.access import needs
from aerobee.protocol.frames import header_encode, signature
from aerobee.protocol.headers import send
from aerobee.protocol.headers.client import PullMessageHeader
from aerobee.protocol.headers.fields import fields_of
from aerobee.protocol.message.properties import SYSTEM_PROPERTIES

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "native.md").read_text()
SOURCES = sorted((ROOT / "native").glob("*.p[yx][xd]"))
_FUNCTION = re.compile(r"( *)(?:def|cdef|cpdef) (?!class )(?:[\w ]+ )?\*?(\w+)\((?!.* = )")
_CLASS = re.compile(r"cdef class (\w+)")
_TWIN = re.compile(r" *# Twin: (\S+ \S+)$")


def functions() -> Iterator[tuple[str, str | None]]:
    """Each function of the compiled form, `file.pyx Class.name`, and the twin that it names. Those
    declared in a `.pxd` have no body there, and stand in their `.pyx`."""
    for path in SOURCES:
        owner, twin = "", None
        for line in _statements(path.read_text()):
            found = _CLASS.match(line)
            if found or (line[:1].isalpha() and not line.startswith(("def", "cdef"))):
                owner = found[1] if found else ""
            function = _FUNCTION.match(line)
            if function and line.rstrip().endswith(":"):
                prefix = f"{owner}." if function[1] else ""
                yield f"{path.name} {prefix}{function[2]}", twin
            named = _TWIN.match(line)
            twin = named[1] if named else None


def _statements(text: str) -> Iterator[str]:
    """The lines; lines that an open bracket joins are one line."""
    joined = ""
    for line in text.splitlines():
        joined = f"{joined} {line.strip()}" if joined else line
        if _FUNCTION.match(joined) and joined.count("(") > joined.count(")"):
            continue
        yield joined
        joined = ""


def rows(heading: str, columns: int) -> list[list[str]]:
    """The rows of the table below a heading."""
    lines = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0].splitlines()
    found = [re.split(r" *\| *", line.strip("| ")) for line in lines if line.startswith("| ")]
    assert all(len(row) == columns for row in found)
    return found[1:]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_each_rule_that_stands_twice_has_a_row() -> None:
    """A compiled function names its twin and is in that row, or is said to have none."""
    listed = {
        one: names(plain)[0]
        for _, plain, compiled, _ in rows("Rules that stand twice", 4)
        for one in names(compiled)
    }
    alone = {one for cell, _ in rows("What has no twin", 2) for one in names(cell)}
    there = dict(functions())
    assert {one: twin for one, twin in there.items() if twin} == listed
    without = {one for one, twin in there.items() if not twin}
    whole = {one for one in alone if one.endswith(".*")}
    unknown = {
        one for one in without - alone if not any(one.startswith(part[:-1]) for part in whole)
    }
    assert not unknown, "neither a twin nor said to have none"
    gone = {
        one
        for one in alone
        if not any(name == one or name.startswith(one.rstrip("*")) for name in without)
    }
    assert not gone, "listed and not there"


def test_each_row_leads_to_what_it_names() -> None:
    for rule, plain, _, test in rows("Rules that stand twice", 4):
        path, name = names(plain)[0].split(" ")
        scope = ast.parse((ROOT / path).read_text()).body
        for part in name.split("."):
            found = [one for one in scope if getattr(one, "name", None) == part]
            assert found, f"{rule}: {path} has no {name}"
            scope = getattr(found[0], "body", [])
        assert (ROOT / names(test)[0]).exists(), rule


def test_no_name_of_the_wire_or_the_files_is_typed_again() -> None:
    known = {
        *SYSTEM_PROPERTIES, *send.LONG_KEYS, *header_encode.JSON_MEMBERS, signature.ACCESS_KEY,
        signature.SIGNATURE, signature.UNIQUE_KEY_QUERY, needs.PROPERTY_MULTI_DISPATCH,
        *(one.key for one in fields_of(PullMessageHeader)),
    }  # fmt: skip
    for path in SOURCES:
        text = re.sub(r'""".*?"""', "", path.read_text(), flags=re.DOTALL)
        typed = set(re.findall(r'b"([^"]*)"', text)) & known
        assert not typed, path.name


def test_no_place_in_a_record_or_a_file_is_typed_again() -> None:
    """A number is read or written at the beginning of something, or at a place that has a name."""
    typed = re.compile(r"\b(?:get|put)(?:16|32|64)\([^,()]*[+-] ?\d")
    for path in SOURCES:
        # The eight bytes of a number are cut here.
        text = path.read_text() if path.name != "bytes.pxd" else ""
        found = [line.strip() for line in text.splitlines() if typed.search(line)]
        assert not found, path.name
