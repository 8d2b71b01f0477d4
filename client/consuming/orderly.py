"""Orderly listening: one task a queue, one batch at a time, the next only after success.

A batch that failed is given to the listener again after a pause, as often as it takes (or until
`max_orderly_reconsume`, then it goes back to the broker): skipping it would break the order. In
clustering mode a queue is consumed only while its lock at the broker is trusted (order_lock.py). A
lock refused, or not renewed in time, drops the queue; the next rebalance takes it up again from the
stored offset once the lock can be had, so nothing that another client did meanwhile is overlooked.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable

from aerobee.client.consuming.assignment import Assignment
from aerobee.client.consuming.consumer_state import ConsumerState
from aerobee.client.consuming.listener import Consumed, batches
from aerobee.client.consuming.order_lock import LOCK_TRUST_S, OrderLocks
from aerobee.client.consuming.process_queue import ProcessQueue
from aerobee.client.message import ReceivedMessage, queue_text
from aerobee.protocol.bodies.common import MessageQueue

log = logging.getLogger(__name__)


class OrderlyConsumeService:
    """Consumes each queue in its own task."""

    def __init__(
        self,
        state: ConsumerState,
        locks: OrderLocks | None,
        assignment: Assignment,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state = state
        self._locks = locks
        self._assignment = assignment
        self._clock = clock
        self._waiting: dict[ProcessQueue, deque[list[ReceivedMessage]]] = {}

    def start(self) -> None:
        """Nothing to start: each queue brings its task."""

    def queue_added(self, assigned: ProcessQueue) -> None:
        """Start consuming the queue."""
        self._waiting[assigned] = deque()
        self._state.session.tasks.spawn(
            self._consume_queue(assigned), f"orderly {queue_text(assigned.queue)}"
        )

    def arrived(self, assigned: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        """Put messages in line behind those of the same queue."""
        self._waiting[assigned].extend(batches(messages, self._state.options.consume_batch))
        assigned.signal()

    async def renew_locks(self) -> None:
        """Ask for all locks again; queues whose lock is lost are given up."""
        if self._locks is None:
            return
        mine: dict[MessageQueue, ProcessQueue] = {}
        for assigned in self._assignment.held():
            if self.lock_trusted(assigned):
                mine[assigned.queue] = assigned
            else:
                # Even if we got it back now, another client may have held it in between.
                self._lock_expired(assigned)
        if not mine:
            return
        asked_at = self._clock()
        answer = await self._locks.lock(mine)
        for queue in answer.held:
            # The lease runs from some moment after we asked: count from the asking.
            mine[queue].locked_at = asked_at
        for queue in answer.refused:
            log.warning("lock lost queue=%s", queue_text(queue))
            self._assignment.release(mine[queue], lost=True)

    def lock_trusted(self, assigned: ProcessQueue) -> bool:
        """True while no other client can hold the queue."""
        if self._locks is None:
            return True
        locked_at = assigned.locked_at
        return locked_at is not None and self._clock() - locked_at < LOCK_TRUST_S

    def _lock_expired(self, assigned: ProcessQueue) -> None:
        log.warning("lock expired queue=%s", queue_text(assigned.queue))
        self._assignment.release(assigned, lost=True)

    async def _consume_queue(self, assigned: ProcessQueue) -> None:
        waiting = self._waiting[assigned]
        try:
            while True:
                await assigned.wait_until(lambda: bool(waiting))
                if assigned.dropped:
                    return
                await self._consume(assigned, waiting.popleft())
        finally:
            del self._waiting[assigned]

    async def _consume(self, assigned: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        """Until these are consumed, given back, or the queue is no longer ours."""
        while not assigned.dropped:
            if not self.lock_trusted(assigned):
                self._lock_expired(assigned)
                return
            if await self._state.consume(assigned, messages) is Consumed.SUCCESS:
                self._state.finish(assigned, messages)
                return
            await self._count_failure(assigned, messages)
            if not messages:
                return
            await assigned.pause(self._state.options.orderly_suspend_ms / 1000)

    async def _count_failure(self, assigned: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        """Count it; messages that reached their limit go to the broker and out of the list."""
        limit = self._state.options.max_orderly_reconsume
        for message in list(messages):
            if self._state.broadcasting or message.reconsume_times < limit:
                message.reconsume_times += 1
            elif await self._state.give_back(message):
                messages.remove(message)
                self._state.finish(assigned, [message])
