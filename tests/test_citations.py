"""The project has each page and each section that its code and its pages cite.

Three pages are cited by number: `protocol/WIRE.md` and `store/FORMAT.md` by section, and
`docs/reliability.md` also by the numbers of faults, invariants and tests (B7, I3, R8). All other
pages are cited by name, or by name and heading.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
NUMBERED = ("protocol/WIRE.md", "store/FORMAT.md", "docs/reliability.md")
SUFFIXES = frozenset({".py", ".md", ".toml", ".yml", ".sh", ".java", ".go", ".js", ".service"})

# A citation may go on in the next line, behind the sign of a comment; backquotes do not matter.
_GAP = r"`?(?:[ \t]+|[ \t]*\n[ \t]*(?:#:?[ \t]*)?)"
_PLACE = r"(?:\d+(?:\.\d+)?|[BIR]\d+)"
_AND = rf"(?:,{_GAP}(?:bodies{_GAP}|and{_GAP})?|{_GAP}and{_GAP}|{_GAP}to{_GAP}|-)"
_CITATION = re.compile(rf"(?P<page>[\w./-]*\w\.md){_GAP}(?P<places>{_PLACE}(?:{_AND}{_PLACE})*)\b")
_HEADING_CITATION = re.compile(r"(?P<page>[\w./-]*\w\.md), (?P<heading>[A-Z]\w+)")
_PAGE = re.compile(r"(?<![\w/.:-])[\w./-]*\w\.md\b")
# Names that texts outside the project had: nobody who reads the project alone could follow them.
_OUTSIDE = re.compile(
    rf"spec/\w+|\b(?:wire|store){_GAP}spec\b|\(spec{_GAP}\d|\breliability{_GAP}(?:rule{_GAP})?[BIR]?\d"
    rf"|\((?:clients|design|operations|performance|spark|style){_GAP}\d"
)

_SECTION = re.compile(r"^#{2,3} (\d+(?:\.\d+)?)\.? ", re.MULTILINE)
_NUMBERED_ROW = re.compile(r"^\| ([BIR]\d+) \|", re.MULTILINE)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


class Cited(NamedTuple):
    """A place in a page that a text names."""

    page: str
    place: str


def sources() -> list[Path]:
    """Every text of the project but this one, which has wrong citations for its own sake."""
    found = [path for path in ROOT.iterdir() if path.is_file()]
    for folder in ROOT.iterdir():
        if folder.is_dir() and not folder.name.startswith("."):
            found += folder.rglob("*")
    wanted = (path for path in found if path.suffix in SUFFIXES or path.name == "Makefile")
    return sorted(
        path
        for path in wanted
        if path.is_file() and not path.is_symlink() and path != Path(__file__).resolve()
    )


@functools.cache
def pages() -> list[str]:
    return [str(path.relative_to(ROOT)) for path in sources() if path.suffix == ".md"]


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@functools.cache
def places_in(page: str) -> frozenset[str]:
    """The numbers by which a page may be cited."""
    text = text_of(ROOT / page)
    return frozenset(_SECTION.findall(text)) | frozenset(_NUMBERED_ROW.findall(text))


def page_named(name: str, citing: Path) -> str | None:
    """The page that a name means: a path from the root or from the citing file, or a file's name
    that only one page has."""
    for base in (ROOT, citing.parent):
        path = (base / name).resolve()
        if path.is_file() and path.is_relative_to(ROOT):
            return str(path.relative_to(ROOT))
    called_so = [page for page in pages() if page.rpartition("/")[2] == name]
    return called_so[0] if len(called_so) == 1 else None


def cited_in(text: str) -> Iterator[Cited]:
    for match in _CITATION.finditer(text):
        for place in re.findall(_PLACE, match["places"]):
            yield Cited(match["page"], place)


def wrong_in(text: str, citing: Path) -> list[str]:
    """The citations of a text that name a missing place, or a place outside the project."""
    wrong = [f"not in the project: {match[0]!r}" for match in _OUTSIDE.finditer(text)]
    for name in _PAGE.findall(text):
        if page_named(name, citing) is None:
            wrong.append(f"no such page: {name}")
    for cited in cited_in(text):
        page = page_named(cited.page, citing)
        if page is not None and (page not in NUMBERED or cited.place not in places_in(page)):
            wrong.append(f"no such section: {cited.page} {cited.place}")
    for match in _HEADING_CITATION.finditer(text):
        page = page_named(match["page"], citing)
        if page is None or page in NUMBERED:
            continue
        headings = _HEADING.findall(text_of(ROOT / page))
        if not any(heading.startswith(match["heading"]) for heading in headings):
            wrong.append(f"no such heading: {match[0]}")
    return wrong


def test_numbered_pages_have_their_numbers() -> None:
    for page in NUMBERED:
        text = text_of(ROOT / page)
        for found in (_SECTION.findall(text), _NUMBERED_ROW.findall(text)):
            assert len(set(found)) == len(found), f"{page} has a number twice"
        assert len(places_in(page)) > 20
    assert {"B1", "B22", "I1", "I14", "R1", "R9"} <= places_in("docs/reliability.md")


def test_what_is_cited_is_there() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {what}"
        for path in sources()
        for what in wrong_in(text_of(path), path)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "text",
    [
        "(store/FORMAT.md 99.1)",
        "(FORMAT.md 2.1, 2.99)",
        "(WIRE.md 3.1 to 3.99)",
        "# as in WIRE.md\n# 99",
        "(docs/reliability.md 3.2, B99)",
        "see `docs/reliability.md` I99",
        "(docs/operations.md 3)",
        "docs/operations.md, Nothing",
        "(nowhere.md)",
        "(spec/wire.md 3.1)",
        "(wire spec 3.1)",
        "store\n# spec 8.8",
        "(reliability 8)",
        "(style.md 3)",
    ],
)
def test_a_wrong_citation_is_found(text: str) -> None:
    assert wrong_in(text, ROOT / "store" / "some.py")


@pytest.mark.parametrize(
    "text",
    [
        "(store/FORMAT.md 2.1, 2.4 and 5.1)",
        "(WIRE.md 6.1-6.4, 6.8)",
        "(protocol/WIRE.md 4.2\n    # to 4.4)",
        "(docs/reliability.md B6, B17; section 3.2 of it)",
        "docs/operations.md, Damage",
        "see operations.md",
    ],
)
def test_a_right_citation_is_not(text: str) -> None:
    assert wrong_in(text, ROOT / "store" / "some.py") == []
