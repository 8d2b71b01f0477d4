"""Previews of changes: how they end, and when the command that they name is refused."""

from __future__ import annotations

import argparse
import shlex

import pytest

from aerobee.cli.cluster.previews import check_expected, hash_of, say_how_to
from aerobee.cli.documents.offsets import OffsetMove
from aerobee.cli.printing.output import CommandFailed

SHOWN = [OffsetMove(topic="T", broker="b", queue=4, before=7, after=9, change=2)]
LATER = [OffsetMove(topic="T", broker="b", queue=4, before=8, after=9, change=1)]


def test_a_preview_ends_with_the_command_that_does_what_it_showed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["offset", "reset", "a group", "T", "--dry-run", "--expect", "old", "--to", "latest"]
    say_how_to(argparse.Namespace(arguments=words), SHOWN)
    command = shlex.split(capsys.readouterr().err.split(": ", 1)[1])
    assert command == [
        *("aerobee", "offset", "reset", "a group", "T", "--to", "latest"),
        *("--yes", "--expect", hash_of(SHOWN)),
    ]


def test_a_state_that_has_moved_on_is_refused() -> None:
    expected = argparse.Namespace(expect=hash_of(SHOWN))
    check_expected(expected, SHOWN)
    check_expected(argparse.Namespace(expect=None), LATER)
    with pytest.raises(CommandFailed, match=f"{hash_of(SHOWN)} has moved on .now {hash_of(LATER)}"):
        check_expected(expected, LATER)
