"""Takes a topic away with its queues and the offsets of its groups.

Two ask for it: an administrator, on a master (`topics_and_groups.py`), and a slave whose master has
the topic no more. The topic is withdrawn from the file first; its queues' files take longer than
the loop can wait, so a worker removes them, and the topic leaves memory in the step in which its
queues leave the store. A topic's offsets may be many and go behind its queues, in steps; until they
have gone nobody makes a topic of its name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial

from aerobee.broker.broker_stats import BrokerStats
from aerobee.broker.tables.retries_waiting import RetriesWaiting
from aerobee.broker.tables.tables import Tables
from aerobee.protocol.names import is_light
from aerobee.store.disk.owner import OnOwner
from aerobee.store.message_store import MessageStore

_NO_MORE = object()


class TopicRemoval:
    """Removes topics of one broker."""

    def __init__(
        self,
        tables: Tables,
        *,
        stats: BrokerStats,
        store: MessageStore,
        on_loop: OnOwner,
        retries: RetriesWaiting,
    ) -> None:
        self._topics = tables.topics
        self._offsets = tables.offsets
        self._stats = stats
        self._store = store
        self._on_loop = on_loop
        self._retries = retries

    def remove(
        self, name: str, leaves: Callable[[], bool], left: Callable[[], None] = lambda: None
    ) -> bool:
        """Take the queues and offsets of a topic that was withdrawn or reserved; returns whether
        they have gone. Worker; raises OSError.

        `leaves` is called on the loop, in the step in which the queues leave; it calls `forget`, or
        returns False for a topic that stays. `left` is called on the worker behind it.
        """
        gone = False

        def confirm(_name: str) -> bool:
            nonlocal gone
            gone = leaves()
            return gone

        try:
            self._store.cleaning.remove_topics([name], self._on_loop, confirm)
        finally:
            try:
                if gone:
                    steps = self._offsets.remove_topic(name)
                    while self._on_loop(lambda: next(steps, _NO_MORE)) is not _NO_MORE:
                        pass
                    left()
            finally:
                # An obstacle has kept its queues; they stay, as those of an unknown topic.
                self._on_loop(lambda: self._topics.forget(name))
        return gone

    def forget(self, name: str) -> bool:
        """The topic leaves memory; returns whether it was there. Its offsets go behind it."""
        was_there = self._topics.leave(name)
        self._retries.forget(name)
        self._stats.forget_topic(name)
        if is_light(name):
            # It is there without being made: its offsets may not be others a moment later.
            for _ in self._offsets.remove_topic(name):
                pass
        return was_there

    async def remove_copied(self, name: str, log_begin: int) -> bool:
        """Remove a topic that the master has no more; returns whether it has gone. It stays if its
        queues have a message from `log_begin` on: the master has made it again. Raises StoreError,
        OSError. On a slave only."""
        if self._is_newer(name, log_begin):
            return False
        topics, loop = self._topics, asyncio.get_running_loop()
        while (change := topics.under_way(name)) is not None:
            await asyncio.wait([change])
        if name not in topics:
            return False
        try:
            await topics.withdraw(name)
        except asyncio.CancelledError:
            # Nobody goes on to its queues; they are those of an unknown topic then.
            topics.forget(name)
            raise
        leaves = partial(self._leaves_copied, name, log_begin)
        return await loop.run_in_executor(None, self.remove, name, leaves)

    async def remove_older(self, deletions: Mapping[str, int]) -> None:
        """Remove the queues of topics that the master has deleted, at these log offsets, and made
        again since: those queues that have messages of the deleted topic alone. Raises StoreError,
        OSError. On a slave only."""
        remove = self._store.cleaning.remove_older
        await asyncio.get_running_loop().run_in_executor(None, remove, deletions, self._on_loop)

    def _leaves_copied(self, name: str, log_begin: int) -> bool:
        if self._is_newer(name, log_begin):
            return False
        self.forget(name)
        return True

    def _is_newer(self, name: str, log_begin: int) -> bool:
        return self._store.newest_of(name) >= log_begin
