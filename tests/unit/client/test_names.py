"""The names of `aerobee.client` are those its document tells of, and come when they are needed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_a_name_is_looked_for_once() -> None:
    """To look whether there is a module of that name takes 12 us, at each `client.Message(...)`."""
    found = client.Message
    assert vars(client)["Message"] is found


def test_any_module_may_be_the_first_that_a_program_imports() -> None:
    """`from aerobee.client.consuming.push_consumer import PushConsumer`, as a program's first line,
    was a circular import: modules below ask the package for one another before they are there."""
    below = [path.stem for path in Path(client.__file__).parent.glob("[a-z]*")]
    for name in sorted(below):
        with pytest.raises(AttributeError, match="is not imported"):
            client.__getattr__(name)
    code = "from aerobee.client.consuming.push_consumer import PushConsumer"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
