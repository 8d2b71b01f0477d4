"""The queues a push consumer holds: taking them up, giving them away.

Taking up: find the offset to start at, start the pull loop. Giving away, in this order, so that the
next owner starts where we stopped: no more pulls and no new listeners; wait for the listeners at
work; store the offset; forget it; unlock. Until all that is done the queue counts as `releasing`
and is not taken up again here. The wait is bounded: a listener that takes longer finishes unheard,
and what it was given is delivered again by the next owner. Under an order lock that bound is long,
and the lock is then left to expire rather than given up under a running listener.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from aerobee.client import queue_offsets
from aerobee.client.consuming.consumer_state import ConsumerState
from aerobee.client.consuming.order_lock import OrderLocks
from aerobee.client.consuming.process_queue import ProcessQueue
from aerobee.client.message import queue_text
from aerobee.client.options import ConsumeFrom
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.names import is_retry_topic

log = logging.getLogger(__name__)

_HAND_OVER_S: Final = 1.0
_ORDERLY_HAND_OVER_S: Final = 30.0

PullLoop = Callable[[ProcessQueue], Coroutine[Any, Any, None]]


class Assignment:
    """Held queues by name, each with its pull loop."""

    def __init__(self, state: ConsumerState, locks: OrderLocks | None) -> None:
        self._session = state.session
        self._state = state
        self._locks = locks
        self._held: dict[MessageQueue, ProcessQueue] = {}
        self._loops: dict[ProcessQueue, asyncio.Task[None]] = {}
        self._releasing: dict[MessageQueue, asyncio.Task[None]] = {}

    def held(self) -> list[ProcessQueue]:
        """The queues consumed now."""
        return list(self._held.values())

    def get(self, queue: MessageQueue) -> ProcessQueue | None:
        """One held queue, by name."""
        return self._held.get(queue)

    def busy(self) -> set[MessageQueue]:
        """Queues held or still being given away."""
        return self._held.keys() | self._releasing.keys()

    async def add(
        self, queue: MessageQueue, pull: PullLoop, locked_at: float | None = None
    ) -> None:
        """Take up a queue at its stored offset and run `pull` for it.

        Raises ClientError when the offset cannot be learnt.
        """
        assert queue not in self.busy()
        offset = await self._start_offset(queue)
        assigned = ProcessQueue(queue, offset)
        assigned.locked_at = locked_at
        self._held[queue] = assigned
        self._loops[assigned] = self._state.session.tasks.spawn(
            pull(assigned), f"pull {queue_text(queue)}"
        )
        log.info("queue taken queue=%s offset=%d", queue_text(queue), offset)

    async def _start_offset(self, queue: MessageQueue) -> int:
        stored = await self._state.offsets.read(queue)
        if stored is not None:
            return stored
        offset = await self._first_offset(queue)
        # Stored even if no message ever comes: otherwise a restart would choose a later offset and
        # skip messages.
        self._state.offsets.update(queue, offset, only_forward=False)
        await self._state.offsets.persist([queue])
        return offset

    async def _first_offset(self, queue: MessageQueue) -> int:
        options = self._state.options
        # A group's own failed messages are never skipped, whatever the policy for the topic.
        if is_retry_topic(queue.topic) or options.consume_from is ConsumeFrom.FIRST:
            return await queue_offsets.min_offset(self._session, queue)
        if options.consume_from is ConsumeFrom.TIMESTAMP:
            return await queue_offsets.offset_at(self._session, queue, options.consume_timestamp_ms)
        return await queue_offsets.max_offset(self._session, queue)

    def release(
        self,
        assigned: ProcessQueue,
        *,
        reset_to: int | None = None,
        lost: bool = False,
        wait_s: float | None = None,
    ) -> None:
        """Give a queue away, or drop it and take it up again at `reset_to`; ends in background.

        `lost` says that somebody else may hold it already: our offset must not overwrite theirs.
        """
        if self._held.get(assigned.queue) is not assigned:
            return
        del self._held[assigned.queue]
        assigned.drop()
        self._loops.pop(assigned).cancel()
        if wait_s is None:
            wait_s = _HAND_OVER_S if self._locks is None else _ORDERLY_HAND_OVER_S
        self._releasing[assigned.queue] = self._state.session.tasks.spawn(
            self._finish_release(assigned, reset_to, lost, wait_s),
            f"release {queue_text(assigned.queue)}",
        )

    async def _finish_release(
        self, assigned: ProcessQueue, reset_to: int | None, lost: bool, wait_s: float
    ) -> None:
        queue, offsets = assigned.queue, self._state.offsets
        try:
            idle = await assigned.wait_idle(wait_s)
            assigned.released = True
            if not idle:
                log.warning("listener still at work, queue given away queue=%s", queue_text(queue))
            if reset_to is not None:
                offsets.update(queue, reset_to, only_forward=False)
            if not lost:
                await offsets.persist([queue])
            offsets.forget(queue)
            if self._locks is not None and idle and not lost:
                await self._locks.unlock([queue])
            log.info("queue released queue=%s", queue_text(queue))
        finally:
            del self._releasing[queue]
            self._state.rebalances.wake()

    async def release_all(self, wait_s: float) -> None:
        """Give every queue away and wait until that is done."""
        for assigned in self.held():
            self.release(assigned, wait_s=wait_s)
        if self._releasing:
            await asyncio.wait(list(self._releasing.values()))
