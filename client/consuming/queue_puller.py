"""The pull loop of one assigned queue: wait for room, pull, hand on, again.

Flow control limits the messages that are pulled and not yet consumed: their number, their bytes,
and in concurrent mode the span of their offsets, because one stuck message holds back the committed
offset of all after it. The loop waits on the queue's own signal, not on a timer, so it goes on the
moment there is room.

An answer counts only while the subscription is still that of the pull.
"""

from __future__ import annotations

import logging
import time
from typing import Final

from aerobee.client.consuming.assignment import Assignment
from aerobee.client.consuming.consume_services import ConsumeService
from aerobee.client.consuming.consumer_state import ConsumerState
from aerobee.client.consuming.process_queue import ProcessQueue
from aerobee.client.consuming.puller import Pull, Puller, PullResult, PullStatus
from aerobee.client.errors import ClientError, NetworkError
from aerobee.client.message import queue_text
from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.filters.subscription import Subscription

log = logging.getLogger(__name__)

_FLOW_CONTROL_DELAY_S: Final = 0.02
# The broker does not know our subscription: the next heartbeat, sent at once, carries it.
_UNKNOWN_SUBSCRIPTION: Final = frozenset(
    {ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST}
)
_SUBSCRIPTION_DELAY_S: Final = 1.0
# A broker that answers "nothing" at once instead of holding the pull is not asked in a tight loop.
_EMPTY_ANSWER_S: Final = 0.1


class QueuePuller:
    """Runs pull loops for a push consumer."""

    def __init__(
        self, state: ConsumerState, service: ConsumeService, assignment: Assignment
    ) -> None:
        self._session = state.session
        self._state = state
        self._puller = Puller(state.session, state.group)
        self._service = service
        self._assignment = assignment

    async def run(self, assigned: ProcessQueue) -> None:
        """Pull until the queue is dropped."""
        self._service.queue_added(assigned)
        while True:
            await assigned.wait_until(lambda: self._has_room(assigned))
            subscription = self._state.subscriptions.get(assigned.queue.topic)
            if assigned.dropped:
                return
            if subscription is None:
                # Given away here too: if the topic is subscribed to again before the next round of
                # rebalancing, that keeps the queue, and nobody would pull from it any more.
                self._assignment.release(assigned)
                return
            pull = self._pull(assigned, subscription)
            started = time.monotonic()
            try:
                result = await self._puller.pull(pull)
            except ClientError as error:
                await self._failed(assigned, error)
                continue
            if not self._still_wanted(subscription):
                continue
            self._take(assigned, result)
            stuck = result.next_offset == pull.offset and not result.messages
            if stuck and time.monotonic() - started < _EMPTY_ANSWER_S:
                await assigned.pause(_EMPTY_ANSWER_S)

    def _still_wanted(self, subscription: Subscription) -> bool:
        """Whether the answer to a pull with this subscription counts: not if the expression has
        changed since. A broker may have chosen by the new expression, or have passed messages that
        it selects; so the same offset is pulled again."""
        now = self._state.subscriptions.get(subscription.topic)
        return now is not None and (now.type, now.expression) == (
            subscription.type,
            subscription.expression,
        )

    def _has_room(self, assigned: ProcessQueue) -> bool:
        options = self._state.options
        return (
            assigned.cached_count < options.cached_messages_per_queue
            and assigned.cached_bytes < options.cached_bytes_per_queue
            and (options.orderly or assigned.span <= options.cached_span_per_queue)
        )

    def _pull(self, assigned: ProcessQueue, subscription: Subscription) -> Pull:
        state = self._state
        return Pull(
            queue=assigned.queue,
            offset=assigned.pull_offset,
            subscription=subscription,
            max_messages=state.options.pull_batch,
            suspend_ms=state.options.suspend_ms,
            # Offset 0 says nothing a broker would not assume; Java's consumers keep it back too.
            commit=state.offsets.to_carry(assigned.queue) or None,
        )

    def _take(self, assigned: ProcessQueue, result: PullResult) -> None:
        if assigned.dropped:
            return
        assigned.last_pull_at = time.time()
        if result.status is PullStatus.OFFSET_MOVED:
            log.warning(
                "offset moved queue=%s asked=%d given=%d min=%d max=%d",
                queue_text(assigned.queue),
                assigned.pull_offset,
                result.next_offset,
                result.min_offset,
                result.max_offset,
            )
            self._assignment.release(assigned, reset_to=result.next_offset)
            return
        assigned.pull_offset = result.next_offset
        if result.messages:
            assigned.add(result.messages)
            self._service.arrived(assigned, result.messages)
        elif assigned.skip_to(result.next_offset):
            self._state.offsets.update(assigned.queue, assigned.committable, only_forward=True)

    async def _failed(self, assigned: ProcessQueue, error: ClientError) -> None:
        delay_s = self._state.options.pull_retry_delay_s
        if error.code == ResponseCode.FLOW_CONTROL:
            delay_s = _FLOW_CONTROL_DELAY_S
        elif error.code in _UNKNOWN_SUBSCRIPTION:
            self._session.wake_heartbeat()
            delay_s = _SUBSCRIPTION_DELAY_S
        elif isinstance(error, NetworkError):
            self._session.refresh_routes_soon()
        name = queue_text(assigned.queue)
        log.warning("pull failed queue=%s error=%s; again in %s s", name, error, delay_s)
        await assigned.pause(delay_s)
