"""Previews of changes: a hash of what was shown, and the refusal once that has moved on.

A change without `--yes` shows what it would do, and ends with the command that does exactly that.
Where the state may move between the two, that command names the hash of what was shown
(`--expect`), so that nobody is surprised by what others have done meanwhile.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from typing import Final

import msgspec

from aerobee.cli.documents.document import Document
from aerobee.cli.printing.output import CommandFailed, say

_DIGITS: Final = 12


def hash_of(shown: Document | Sequence[Document]) -> str:
    """The hash of what a preview shows, in hex digits: equal for equal documents."""
    import hashlib  # it brings a library that commands which only show something do without

    return hashlib.sha256(msgspec.json.encode(shown)).hexdigest()[:_DIGITS]


def check_expected(parsed: argparse.Namespace, shown: Document | Sequence[Document]) -> None:
    """Refuse when `--expect` names another state than what would be shown now. Raises
    CommandFailed."""
    if parsed.expect is not None and parsed.expect != (now := hash_of(shown)):
        raise CommandFailed(
            f"what was shown as {parsed.expect} has moved on (now {now}), so nothing was changed: "
            "look at the preview again, without --yes"
        )


def say_how_to(parsed: argparse.Namespace, shown: Document | Sequence[Document]) -> None:
    """End a preview: the command that does exactly what was shown."""
    words = [word for word in parsed.arguments if word not in ("--dry-run", "--json")]
    if "--expect" in words:
        at = words.index("--expect")
        del words[at : at + 2]
    command = shlex.join(["aerobee", *words, "--yes", "--expect", hash_of(shown)])
    say(f"nothing was changed; this does it: {command}")
