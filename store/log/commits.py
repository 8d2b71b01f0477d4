"""When what was appended is in the files, as far as the rest of the store needs to know.

Two variants, chosen when the store is built. `DirectCommits`: appends go into the files at once,
through their mappings, so the commit log itself is the mark, and all that is written is committed.
`PooledCommits` (`commit_service.py`): the transient pool holds the newest bytes back for a moment.
Reading, dispatching and syncing end at the mark in both cases.
"""

from collections.abc import Callable
from typing import Protocol

#: What a store without a pool answers when asked for its free buffers (protocol/WIRE.md 4.8).
NO_POOL = (1 << 31) - 1


class CommitMark(Protocol):
    """A mark that one thread moves and any may read. The time is to be read before the offset."""

    @property
    def committed_ms(self) -> int:
        """Store time of the newest record below `committed`."""

    @property
    def committed(self) -> int:
        """Log offset up to which the bytes are in the files."""


class Commits(Protocol):
    """The face of both variants."""

    mark: CommitMark
    #: Something was appended.
    wake: Callable[[], None]
    #: Called with the mark when it moved without an append, on the thread that moved it.
    on_moved: Callable[[int], None] | None

    def connect(self, flush: Callable[[], None]) -> None:
        """`flush` is to be called when there is something new in the files. Before `start`."""

    def start(self) -> None:
        """Start what moves the mark."""

    def stop(self) -> None:
        """Commit all that is written, and end."""

    @property
    def alive(self) -> bool:
        """Whether what moves the mark runs as it should."""

    @property
    def free_buffers(self) -> int:
        """Buffers of the transient pool that nobody has; NO_POOL without one."""


class DirectCommits:
    """There is nothing to do: the flush service hears of appends itself."""

    alive = True
    free_buffers = NO_POOL

    def __init__(self, log: CommitMark) -> None:
        self.mark = log
        self.wake: Callable[[], None]
        self.on_moved: Callable[[int], None] | None = None

    def connect(self, flush: Callable[[], None]) -> None:
        """Each append is something new in the files."""
        self.wake = flush

    def start(self) -> None:
        """Nothing to start."""

    def stop(self) -> None:
        """Nothing is held back."""
