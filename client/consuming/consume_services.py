"""The two ways in which pulled messages reach the listener: in any order, or each queue in its own.

Concurrent: a fixed number of workers reads one list of batches, whichever queue they are of.
Messages that failed go back to the broker for redelivery; what cannot go back is tried again here
after a while, because its offset must not be passed before the message is safe elsewhere.
Broadcasting has no redelivery: failures are logged and passed over.

Orderly: one task a queue, one batch at a time, the next only after success. A batch that failed is
given to the listener again after a pause, as often as it takes (or until `max_orderly_reconsume`,
then it goes back to the broker): skipping it would break the order. In clustering mode a queue is
consumed only while its lock at the broker is trusted (order_lock.py). A lock refused, or not
renewed in time, drops the queue; the next rebalance takes it up again from the stored offset once
the lock can be had, so nothing that another client did meanwhile is overlooked.
"""

from __future__ import annotations

import asyncio
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

Batch = tuple[ProcessQueue, list[ReceivedMessage]]


class ConsumeService:
    """Hands pulled messages to the listener."""

    def __init__(self, state: ConsumerState) -> None:
        self._state = state

    def start(self) -> None:
        """Start working."""

    def queue_added(self, assigned: ProcessQueue) -> None:
        """A queue has become ours."""

    def arrived(self, assigned: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        """Messages were pulled and added to the queue's bookkeeping."""
        raise NotImplementedError


class ConcurrentConsumeService(ConsumeService):
    """Spreads batches over `options.concurrency` workers."""

    def __init__(self, state: ConsumerState) -> None:
        super().__init__(state)
        # Bounded by the flow control of the pullers.
        self._batches: asyncio.Queue[Batch] = asyncio.Queue()

    def start(self) -> None:
        for number in range(self._state.options.concurrency):
            self._state.session.tasks.spawn(self._work(), f"worker {number}")

    def arrived(self, assigned: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        for batch in batches(messages, self._state.options.consume_batch):
            self._batches.put_nowait((assigned, batch))

    async def _work(self) -> None:
        while True:
            assigned, messages = await self._batches.get()
            if not assigned.dropped:  # else the queue's next owner gets them
                await self._consume(assigned, messages)

    async def _consume(self, assigned: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        consumed = await self._state.consume(assigned, messages)
        if consumed is Consumed.SUCCESS:
            self._state.finish(assigned, messages)
        elif self._state.broadcasting:
            for message in messages:
                log.warning("broadcast message failed and is passed over id=%s", message.msg_id)
            self._state.finish(assigned, messages)
        elif not assigned.dropped:
            await self._give_back(assigned, messages)

    async def _give_back(self, assigned: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        kept = [message for message in messages if not await self._state.give_back(message)]
        kept_offsets = {message.queue_offset for message in kept}
        gone = [message for message in messages if message.queue_offset not in kept_offsets]
        if gone:
            self._state.finish(assigned, gone)
        if kept:
            for message in kept:
                message.reconsume_times += 1
            loop = asyncio.get_running_loop()
            delay_s = self._state.options.local_retry_delay_s
            loop.call_later(delay_s, self._batches.put_nowait, (assigned, kept))


class OrderlyConsumeService(ConsumeService):
    """Consumes each queue in its own task."""

    def __init__(
        self,
        state: ConsumerState,
        locks: OrderLocks | None,
        assignment: Assignment,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(state)
        self._locks = locks
        self._assignment = assignment
        self._clock = clock
        self._waiting: dict[ProcessQueue, deque[list[ReceivedMessage]]] = {}

    def queue_added(self, assigned: ProcessQueue) -> None:
        self._waiting[assigned] = deque()
        self._state.session.tasks.spawn(
            self._consume_queue(assigned), f"orderly {queue_text(assigned.queue)}"
        )

    def arrived(self, assigned: ProcessQueue, messages: list[ReceivedMessage]) -> None:
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
