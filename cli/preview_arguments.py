"""The arguments of every command that changes something only when it is told to: without them, and
with `--dry-run`, it says what it would do."""

import argparse


def add_yes(parser: argparse.ArgumentParser) -> None:
    """`parsed.yes` is whether to do it. Asking for both is an error of usage."""
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--yes", action="store_true", help="do it (default: say what would be)")
    either.add_argument("--dry-run", action="store_true", help="say what would be, as without it")
