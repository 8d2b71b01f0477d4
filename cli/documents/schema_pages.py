"""Writes docs/json: a JSON Schema (2020-12) for the document of each command.

    python -m aerobee.cli.documents.schema_pages

Scripts rely on what a schema promises, so a field is only added: what would take one away, or give
it another type, is refused, and nothing is written.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from aerobee.cli.documents.registry import DOCUMENTS

FOLDER: Final = Path(__file__).resolve().parents[2] / "docs" / "json"


def page_of(command: str) -> Path:
    """The file with the schema of a command's document."""
    return FOLDER / f"{command.replace(' ', '-')}.json"


def schema_text(command: str) -> str:
    """The schema of a command's document, as it stands in its file."""
    found = msgspec.json.schema(DOCUMENTS[command])
    named = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": command, **found}
    return json.dumps(named, indent=1, ensure_ascii=False) + "\n"


def taken_away(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The fields that the schema `before` promises and `after` does not, as Type.field."""
    now = dict(_fields(after))
    return sorted(
        f"{type_name}.{field}"
        for (type_name, field), kind in _fields(before)
        if not _takes(now.get((type_name, field)), kind)
    )


def _fields(schema: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], Any]]:
    """Each field of each type in a schema: (type, field), and what its value may be."""
    for type_name, definition in schema.get("$defs", {}).items():
        for field, kind in definition.get("properties", {}).items():
            yield (type_name, field), kind


def _takes(now: Any, before: Any) -> bool:
    """Whether a script that reads values of the kind `before` reads those of the kind `now`."""
    return now is not None and set(_kinds(now)) <= set(_kinds(before))


def _kinds(kind: Mapping[str, Any]) -> Iterator[str]:
    """The kinds of values that a field may have, each as text."""
    for one in kind.get("anyOf", [kind]):
        yield json.dumps({key: one[key] for key in one if key not in ("default", "description")})


def main() -> int:
    """Write all files; returns the exit code."""
    texts = {page_of(command): schema_text(command) for command in DOCUMENTS}
    lost = [
        f"{page.name}: {field}"
        for page, text in texts.items()
        if page.exists()
        for field in taken_away(json.loads(page.read_text("utf-8")), json.loads(text))
    ]
    if lost:
        sys.stderr.write("these would be taken away from scripts:\n" + "\n".join(lost) + "\n")
        return 1
    FOLDER.mkdir(exist_ok=True)
    for page, text in texts.items():
        page.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
