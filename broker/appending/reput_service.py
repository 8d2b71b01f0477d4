"""The work after an append: dispatch to consume queues and index, and the pulls that wait for it.

The store does the work; this decides when: after the turn of the loop in which messages were
appended, or, where dispatch ends at a mark that a thread of the store moves (SYNC_FLUSH, a
transient pool), when that has moved. Many messages of one turn cost one pass. A queue or index that
cannot be written is the store's affair: it refuses sends, or becomes read-only, and says so.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from aerobee.broker.appending.held_pulls import HeldPulls
from aerobee.remoting.turns import Turns
from aerobee.store.message_store import MessageStore


class Slaves(Protocol):
    """The slaves of this broker (`broker/cluster/replication/`)."""

    def appended(self) -> None:
        """Messages were appended in the turn that ends: send them."""


class ReputService:
    """Dispatches what was appended, a round a turn of the loop, and replays the held pulls."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        store: MessageStore,
        held: HeldPulls,
        turns: Turns,
        *,
        flush_timed: bool,
        slaves: Slaves | None = None,
    ) -> None:
        """`flush_timed`: the flush thread keeps to its interval. `slaves` get what is appended."""
        self._loop = loop
        self._store = store
        self._held = held
        self._turns = turns
        self._slaves = slaves
        # Where messages become visible by a mark that a thread of the store moves, the thread is
        # woken and calls back.
        self._waits = store.marks.dispatch_waits
        self._wakes = self._waits or not flush_timed
        self._scheduled = False
        # Rounds go on in the next turns.
        self._behind = False

    def appended(self) -> None:
        """Messages were appended: what follows is done at the end of this turn of the loop, once
        for all of them."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._scheduled = False
        if self._slaves is not None:
            # First, so that they work while this broker does.
            self._slaves.appended()
        if self._wakes:
            self._store.request_flush()
        if not self._waits:
            self.run()

    def run(self) -> None:
        """Dispatch now: a round, and the others in the next turns."""
        if not self._behind and self._round():
            self._behind = True
            self._turns.add(self._round)

    def _round(self) -> bool:
        """One round; whether there is more."""
        arrivals, self._behind = self._store.dispatch_round(len(self._held) > 0)
        if arrivals:
            self._held.arrived(arrivals)
        return self._behind
