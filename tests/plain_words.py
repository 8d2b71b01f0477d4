"""Sentences that a stranger has to read twice, found in docstrings, comments and pages.

A sentence has a subject, a verb and an object, in that order. The rules are shapes that broke this
most often here; what they find is wrong nearly always, and is said in another way always.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

#: A docstring or comment does not begin so: a fragment, or a clause in the place of its subject.
BEGINNINGS = re.compile(
    r"(Of|Behind|As|The same|What|Who|Whoever|Whatever|Whose|Whom|Told)\b(?![^.]*\?)"
)
#: No sentence has these.
SHAPES = {
    "a clause in the place of the subject": re.compile(
        r"(?<=[.;:!?] )(Who|Whoever|Whatever|Whom)\b(?![^.]*\?)"
    ),
    "none as a predicate": re.compile(r"\b(is|are|was|were|be) none\b"),
    "so many of nothing": re.compile(r"\bso (many|much|few)\b"),
    "one as a noun": re.compile(
        r"\bone (that|who|which|whose)\b"
        r"|\b(is|are|be|as|of|for|to|with|(?<!one )by|from|than|no) one[.,;)]"
        r"|\b(there|where) is one\b"
    ),
    "told as a noun": re.compile(r"\b(the|those|a) told\b|(?<=[.;:] )Told\b"),
}
_CODE = re.compile(r"``?[^`]*``?")


class Text(NamedTuple):
    line: int
    text: str


class Finding(NamedTuple):
    line: int
    rule: str
    words: str


def judge(text: str) -> Iterator[tuple[str, str]]:
    """The rules that a docstring, comment or paragraph breaks, each with the words that do so."""
    flat = " ".join(_CODE.sub("`x`", text).split())
    if (begin := BEGINNINGS.match(flat)) is not None:
        yield f"begins with {begin[1]!r}", flat[:60]
    for rule, shape in SHAPES.items():
        for found in shape.finditer(flat):
            yield rule, flat[max(0, found.start() - 30) : found.end() + 30]


def findings(texts: Iterator[Text]) -> list[Finding]:
    return [Finding(line, *wrong) for line, text in texts for wrong in judge(text)]


def python_texts(source: str) -> Iterator[Text]:
    """Docstrings, and comments that stand on lines of their own, each block as a whole."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring:
                yield Text(node.body[0].lineno, docstring)
    yield from _comments(source)


def _comments(source: str) -> Iterator[Text]:
    # By lines, which is ten times as quick as by tokens; a text in a string that has such lines is
    # read by people as well.
    block: list[str] = []
    begin, margin = 0, ""
    for number, line in enumerate([*source.splitlines(), ""], 1):
        found = re.match(r"(\s*)#:? ?(.*)", line)
        if block and (found is None or found[1] != margin):
            yield Text(begin, " ".join(block))
            block = []
        if found is not None:
            begin, margin = (begin, margin) if block else (number, found[1])
            block.append(found[2])


def page_texts(page: str) -> Iterator[Text]:
    """Paragraphs and list items of a Markdown page; code, tables and headings are left out."""
    block: list[str] = []
    begin, in_code = 0, False
    for number, line in enumerate([*page.splitlines(), ""], 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        prose = line.strip() and not in_code and not line.startswith(("#", "|", "    ", "```", "<"))
        starts_item = re.match(r"\s*([-*]|\d+\.) ", line) is not None
        if block and (not prose or starts_item):
            yield Text(begin, " ".join(block))
            block = []
        if prose:
            begin = begin if block else number
            block.append(re.sub(r"^\s*([-*]|\d+\.) |\*\*", "", line).strip())


def texts_of(path: Path) -> Iterator[Text]:
    content = path.read_text()
    return page_texts(content) if path.suffix == ".md" else python_texts(content)
