"""Concurrent listening: any idle worker takes the next messages, whichever queue they are of.

A fixed number of workers reads one list of batches. Messages that failed go back to the broker for
redelivery; what cannot go back is tried again here after a while, because its offset must not be
passed before the message is safe elsewhere. Broadcasting has no redelivery: failures are logged and
passed over.
"""

from __future__ import annotations

import asyncio
import logging

from aerobee.client.consuming.consumer_state import ConsumerState
from aerobee.client.consuming.listener import Consumed, batches
from aerobee.client.consuming.process_queue import ProcessQueue
from aerobee.client.message import ReceivedMessage

log = logging.getLogger(__name__)

Batch = tuple[ProcessQueue, list[ReceivedMessage]]


class ConcurrentConsumeService:
    """Spreads batches over `options.concurrency` workers."""

    def __init__(self, state: ConsumerState) -> None:
        self._state = state
        # Bounded by the flow control of the pullers.
        self._batches: asyncio.Queue[Batch] = asyncio.Queue()

    def start(self) -> None:
        """Start the workers."""
        for number in range(self._state.options.concurrency):
            self._state.session.tasks.spawn(self._work(), f"worker {number}")

    def queue_added(self, assigned: ProcessQueue) -> None:
        """Nothing to prepare: workers serve all queues."""

    def arrived(self, assigned: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        """Put messages in line for the workers."""
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
