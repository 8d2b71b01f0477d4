"""Reads docs/incidents.md: of each incident the commands, and the words that they say.

A section is `### id: how it is seen`. Lines indented by four are commands; those below a line that
begins with `Mend` are the remedy. Texts in backquotes of paragraphs that begin with `It says` stand
in what the commands print. Words in capitals stand for the names of the reader's own.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).parents[3] / "docs" / "incidents.md"
_HEAD = re.compile(r"### ([a-z-]+): ")
_PLACEHOLDER = re.compile(r"\b[A-Z][A-Z_]+\b")


class Incident(NamedTuple):
    """One section: commands for cause and remedy, what the former say, commands that mend."""

    looks: tuple[str, ...]
    says: tuple[str, ...]
    mends: tuple[str, ...]


def incidents() -> dict[str, Incident]:
    """All sections, by id."""
    found = {}
    for section in PAGE.read_text("utf-8").split("\n### ")[1:]:
        head = _HEAD.match(f"### {section}")
        assert head is not None, section[:60]
        found[head[1]] = _incident(section)
    return found


def _incident(section: str) -> Incident:
    section = section.split("\n## ")[0]
    looks: list[str] = []
    mends: list[str] = []
    into = looks
    for line in section.splitlines():
        if line.startswith("Mend"):
            into = mends
        elif line.startswith("    aerobee "):
            into.append(line.strip().split("   #")[0])
    paragraphs = [" ".join(one.split()) for one in section.split("\n\n")]
    told = [text for text in paragraphs if text.startswith("It says")]
    says = re.findall(r"`([^`]+)`", " ".join(told))
    return Incident(tuple(looks), tuple(says), tuple(mends))


def words_of(command: str, names: Mapping[str, str]) -> list[str]:
    """The words of a command after `aerobee`, with the reader's names in their places."""
    return shlex.split(filled(command, names))[1:]


def filled(text: str, names: Mapping[str, str]) -> str:
    """A text of the page with names in the places of the words in capitals."""
    return _PLACEHOLDER.sub(lambda word: names.get(word[0], word[0]), text)
