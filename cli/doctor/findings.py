"""Makes findings, and the machine's small files readable for those who make them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from aerobee.cli.documents.doctor import Finding


def ok(check: str, subject: str, text: str) -> Finding:
    """All is well with it."""
    return Finding(check=check, subject=subject, state="ok", text=text, remedy=None)


def warning(check: str, subject: str, text: str, remedy: str) -> Finding:
    """It works, and may fail one day, or costs something."""
    return Finding(check=check, subject=subject, state="warning", text=text, remedy=remedy)


def fault(check: str, subject: str, text: str, remedy: str) -> Finding:
    """A broker or its clients cannot work like that."""
    return Finding(check=check, subject=subject, state="fault", text=text, remedy=remedy)


def unknown(check: str, subject: str, text: str, remedy: str | None = None) -> Finding:
    """It could not be found out; `text` says why."""
    return Finding(check=check, subject=subject, state="unknown", text=text, remedy=remedy)


class Machine(NamedTuple):
    """A machine, whose /proc and /sys lie below `root`, and the process `pid` of the broker that
    runs there, None without it."""

    root: Path = Path("/")
    pid: int | None = None

    def lines(self, path: str) -> Sequence[str] | None:
        """The lines of a small file, None where it cannot be read."""
        try:
            return (self.root / path).read_text("utf-8", "replace").splitlines()
        except OSError:
            return None

    def number(self, path: str) -> int | None:
        """The number that a file of the kernel's holds; None where it holds none."""
        lines = self.lines(path)
        text = lines[0].strip() if lines else ""
        return int(text) if text.isascii() and text.isdecimal() else None

    def of_process(self, file: str) -> Sequence[str] | None:
        """The lines of a file in the broker's folder of /proc; None where it cannot be read."""
        return None if self.pid is None else self.lines(f"proc/{self.pid}/{file}")
