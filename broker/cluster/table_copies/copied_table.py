"""A table that a slave has as its master has it: how it is copied, and how a copy is taken."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple


class CopiedTable(NamedTuple):
    """A table that is taken whole. The methods are those of its owner, on the loop but for `read`.

    Its values say that something was done, such as a message delivered: a slave takes a copy only
    when its log has what the master had by then.
    """

    #: One of `replica_tables.TABLES`.
    name: str
    #: Makes the copy, in steps.
    copy: Callable[[], Generator[None, None, bytes]]
    #: Reads a copy. Raises ValueError, KeyError, TypeError. Any thread.
    read: Callable[[bytes], Any]
    #: Takes what `read` gave. On a slave only.
    replace: Callable[[Any], None]
    #: Another text after each change; None: the copy is small enough to be compared by its digest.
    version: Callable[[], str] | None = None
    #: Whether a copy may be taken at once, wherever the log is.
    at_once: bool = False


def in_one_step(copy: Callable[[], bytes]) -> Callable[[], Generator[None, None, bytes]]:
    """The copy of a small table."""

    def steps() -> Generator[None, None, bytes]:
        yield None
        return copy()

    return steps
