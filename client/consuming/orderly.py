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

from aerobee.client.consuming.consuming import Consuming
from aerobee.client.consuming.listener import Consumed
from aerobee.client.consuming.order_lock import LOCK_TRUST_S, OrderLocks
from aerobee.client.consuming.process_queue import AssignedQueue
from aerobee.client.message import MessageQueue, ReceivedMessage, queue_text

log = logging.getLogger(__name__)

LoseQueue = Callable[[AssignedQueue], None]
"""Told when a queue must be given up; the consumer drops it and rebalances."""


class OrderlyDispatcher:
    """Consumes each queue in its own task."""

    def __init__(
        self,
        consuming: Consuming,
        locks: OrderLocks | None,
        assigned: Callable[[], list[AssignedQueue]],
        lose: LoseQueue,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._consuming = consuming
        self._locks = locks
        self._assigned = assigned
        self._lose = lose
        self._clock = clock
        self._waiting: dict[AssignedQueue, deque[ReceivedMessage]] = {}

    def start(self) -> None:
        """Nothing to start: each queue brings its task."""

    def queue_added(self, assigned: AssignedQueue) -> None:
        """Start consuming the queue."""
        self._waiting[assigned] = deque()
        self._consuming.tasks.spawn(
            self._consume_queue(assigned), f"orderly {queue_text(assigned.queue)}"
        )

    def arrived(self, assigned: AssignedQueue, messages: list[ReceivedMessage]) -> None:
        """Put messages in line behind those of the same queue."""
        self._waiting[assigned].extend(messages)
        assigned.signal()

    async def renew_locks(self) -> None:
        """Ask for all locks again; queues whose lock is lost are given up."""
        if self._locks is None:
            return
        mine: dict[MessageQueue, AssignedQueue] = {}
        for assigned in self._assigned():
            if self.lock_trusted(assigned):
                mine[assigned.queue] = assigned
            else:
                # Even if we got it back now, somebody else may have had it in between.
                self._lock_expired(assigned)
        if not mine:
            return
        asked_at = self._clock()
        held, refused = await self._locks.lock(mine)
        for queue in held:
            # The lease runs from some moment after we asked: count from the asking.
            mine[queue].locked_at = asked_at
        for queue in refused:
            log.warning("lock lost queue=%s", queue_text(queue))
            self._lose(mine[queue])

    def lock_trusted(self, assigned: AssignedQueue) -> bool:
        """True while nobody else can hold the queue."""
        if self._locks is None:
            return True
        locked_at = assigned.locked_at
        return locked_at is not None and self._clock() - locked_at < LOCK_TRUST_S

    def _lock_expired(self, assigned: AssignedQueue) -> None:
        log.warning("lock expired queue=%s", queue_text(assigned.queue))
        self._lose(assigned)

    async def _consume_queue(self, assigned: AssignedQueue) -> None:
        waiting = self._waiting[assigned]
        size = self._consuming.options.consume_batch
        try:
            while True:
                await assigned.wait_until(lambda: bool(waiting))
                if assigned.dropped:
                    return
                messages = [waiting.popleft() for _ in range(min(size, len(waiting)))]
                await self._consume(assigned, messages)
        finally:
            del self._waiting[assigned]

    async def _consume(self, assigned: AssignedQueue, messages: list[ReceivedMessage]) -> None:
        """Until these are consumed, given back, or the queue is no longer ours."""
        while not assigned.dropped:
            if not self.lock_trusted(assigned):
                self._lock_expired(assigned)
                return
            if await self._consuming.consume(assigned, messages) is Consumed.SUCCESS:
                self._consuming.finish(assigned, messages)
                return
            await self._count_failure(assigned, messages)
            if not messages:
                return
            await assigned.pause(self._consuming.options.orderly_suspend_ms / 1000)

    async def _count_failure(
        self, assigned: AssignedQueue, messages: list[ReceivedMessage]
    ) -> None:
        """Count it; messages that reached their limit go to the broker and out of the list."""
        limit = self._consuming.options.max_orderly_reconsume
        for message in list(messages):
            if self._consuming.broadcasting or message.reconsume_times < limit:
                message.reconsume_times += 1
            elif await self._consuming.give_back(message):
                messages.remove(message)
                self._consuming.finish(assigned, [message])
