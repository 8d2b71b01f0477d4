"""What follows an append: dispatch to consume queues and index, and the pulls that wait for it.

The store does the work; this decides when: after the turn of the loop in which messages were
appended, or, where dispatch ends at a mark that a thread of the store moves (SYNC_FLUSH, a
transient pool), when that has moved. Many messages of one turn cost one pass. A queue or index that
cannot be written is the store's affair: it refuses sends, or becomes read-only, and says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aerobee.broker.messages.held_pulls import HeldPulls
from aerobee.remoting.turns import Turns
from aerobee.store.message_store import MessageStore


class ReputService:
    """Dispatches what was appended, a round a turn of the loop, and replays the held pulls."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        store: MessageStore,
        held: HeldPulls,
        turns: Turns,
    ) -> None:
        self._loop = loop
        self._store = store
        self._held = held
        self._turns = turns
        self._scheduled = False
        # Rounds go on in the next turns.
        self._behind = False

    def schedule(self) -> None:
        """Dispatch at the end of this turn of the loop."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.run)

    def run(self) -> None:
        """Dispatch now: a round, and the others in the next turns."""
        self._scheduled = False
        if not self._behind and self._round():
            self._behind = True
            self._turns.add(self._round)

    def _round(self) -> bool:
        """One round; whether there is more."""
        arrivals, self._behind = self._store.dispatch_round(len(self._held) > 0)
        if arrivals:
            self._held.arrived(arrivals)
        return self._behind

    def _schedule_flush(self) -> None:
        """Wake the thread that moves the mark at the end of this turn of the loop: once for all
        that is appended in it."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        self._store.request_flush()

    def after_append(self, *, flush_timed: bool) -> Callable[[], None]:
        """The function to be called when messages were appended.

        Where they become visible by a mark that a thread of the store moves, that thread is woken;
        it calls back, and then they are dispatched. Otherwise they are dispatched at the end of the
        turn, and the flush thread is woken only if it does not keep to its interval.
        """
        schedule, request_flush = self.schedule, self._store.request_flush
        if self._store.marks.dispatch_waits:
            return self._schedule_flush
        if flush_timed:
            return schedule

        def schedule_and_flush() -> None:
            schedule()
            request_flush()

        return schedule_and_flush
