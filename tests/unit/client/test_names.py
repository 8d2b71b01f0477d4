"""The names of `aerobee.client` are those its document tells of."""

import re
from pathlib import Path

from aerobee import client

DOCUMENT = Path(__file__).parents[3] / "docs" / "client.md"


def test_every_public_name_is_documented_and_nothing_else() -> None:
    text = DOCUMENT.read_text()
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    named = set(re.findall(r"`([A-Za-z_]+)`", "\n".join(cells))) | {"NetworkError"}
    assert named == set(client.__all__)
    assert "`NetworkError`" in text


def test_every_public_name_is_there() -> None:
    assert [name for name in client.__all__ if not hasattr(client, name)] == []
