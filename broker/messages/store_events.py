"""Brings to the event loop what the store's threads see: marks that moved, and a failure.

Guarantees
- `moved` and `broken` may be called from any thread. The follower is called on the loop only.
- However often marks move, at most one call waits for the loop; it reads the marks when it runs, so
  it misses no move.
- Nothing is called when the loop is closed, which it may be between the daemon's stop and the last
  sync of the store; no answer waits then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol

from aerobee.store.errors import StoreBroken
from aerobee.store.log.marks import Marks, StoreListener


class StoreFollower(Protocol):
    """The broker that is served from the store. Loop thread only."""

    def marks_moved(self) -> None:
        """Answers may leave, and messages may have become visible."""

    def store_broke(self, error: StoreBroken) -> None:
        """No mark moves any more."""


class StoreEvents(StoreListener):
    """The listener of a broker's store, made before it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._follower: StoreFollower | None = None
        self._moved = False

    def follow(self, follower: StoreFollower) -> None:
        """The broker is built; before that nothing waits that could be told."""
        self._follower = follower

    def moved(self, _marks: Marks) -> None:
        if not self._moved:
            self._moved = True
            self._call_loop(self._tell_moved)

    def broken(self, error: StoreBroken) -> None:
        self._call_loop(partial(self._tell_broken, error))

    def _call_loop(self, callback: Callable[[], None]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback)

    def _tell_moved(self) -> None:
        # Cleared before the marks are read: a mark that moves from here on calls again.
        self._moved = False
        if self._follower is not None:
            self._follower.marks_moved()

    def _tell_broken(self, error: StoreBroken) -> None:
        if self._follower is not None:
            self._follower.store_broke(error)
