"""Carries what was appended to consume queues, index and waiting consumers, once per loop turn.

The store's reput does the work; this decides when: after the turn of the loop in which messages
were appended (ASYNC_FLUSH), or after the durable mark moved (SYNC_FLUSH, where dispatch stays at or
behind durable). Many messages of one turn cost one pass. A queue or index that cannot be written is
the store's affair: it refuses sends or poisons itself, and says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from aerobee.store.segments.results import Arrival


class Dispatching(Protocol):
    """The part of a store this drives."""

    def dispatch(self) -> list[Arrival]: ...


class Dispatcher:
    """Schedules `store.dispatch()` on the loop and hands its arrivals on."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        store: Dispatching,
        on_arrivals: Callable[[list[Arrival]], None],
    ) -> None:
        self._loop = loop
        self._store = store
        self._on_arrivals = on_arrivals
        self._scheduled = False

    def schedule(self) -> None:
        """Dispatch at the end of this turn of the loop."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.run)

    def run(self) -> None:
        """Dispatch now; wakes held pulls for what arrived."""
        self._scheduled = False
        arrivals = self._store.dispatch()
        if arrivals:
            self._on_arrivals(arrivals)
