"""The programs in Python and the commands that the pages about Spark show.

A page shows code in fences that name their language, and indented by four blanks up to an empty
line. A block of commands has one a line; a `\\` at the end of a line goes on in the next, and `  #`
begins a remark.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from tests.spark.kit import ROOT

#: Whole pages, and the section about Spark of the page for beginners.
PAGES = sorted(
    str(path.relative_to(ROOT))
    for pattern in ("pipeline*.md", "spark*.md")
    for path in (ROOT / "docs").glob(pattern)
)
GUIDE = "docs/getting-started.md"
_SECTION = re.compile(r"^## Data in Spark\n(.*?)^## ", re.DOTALL | re.MULTILINE)
#: Programs that a shell starts, as the pages have them.
_COMMAND = re.compile(r"(?:\S*/)?(?:aerobee|spark-submit|pip|make|python|cp|cd)\s")
_PYTHON = re.compile(r"\s*(?:from \w|import \w|\w+ = |\.option\(|read_archive\()")


class Shown(NamedTuple):
    """One program, or one command in one line; `kind` is python, command or other."""

    page: str
    kind: str
    text: str


def shown() -> list[Shown]:
    """All of it, in the order of the pages."""
    return [one for page in (*PAGES, GUIDE) for one in _shown_by(page)]


def _shown_by(page: str) -> Iterator[Shown]:
    text = (ROOT / page).read_text(encoding="utf-8")
    if page == GUIDE:
        section = _SECTION.search(text)
        assert section is not None
        text = section[1]
    for language, code in _blocks(text.splitlines()):
        if language == "python" or (not language and _PYTHON.match(code)):
            yield Shown(page, "python", code)
        elif language == "console" or _COMMAND.match(code):
            for line in code.replace("\\\n", " ").splitlines():
                yield Shown(page, "command", " ".join(line.partition("  #")[0].split()))
        else:
            yield Shown(page, "other", code)


def _blocks(lines: list[str]) -> Iterator[tuple[str, str]]:
    """The language, if a block names one, and the text of each; one without a blank line in it."""
    block: list[str] = []
    fence: str | None = None
    for line in [*lines, ""]:
        if line.startswith("```") and fence is None:
            fence = line[3:]
        elif line.startswith("```"):
            yield str(fence), "\n".join(block) + "\n"
            fence, block = None, []
        elif fence is not None:
            block.append(line)
        elif line.startswith("    "):
            block.append(line[4:])
        elif block:
            yield "", "\n".join(block) + "\n"
            block = []
