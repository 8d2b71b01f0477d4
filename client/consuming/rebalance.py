"""Rebalancing: from time to time every member of a group computes its part of the queues.

Clustering: the group's members as the broker lists them and the topic's queues as the name server
lists them go into the assignment strategy; broadcasting: every queue is ours. Queues that are no
longer ours are given away first, new ones are taken up if they can be (an order lock may still be
with its last holder); if something could not be done, another round follows soon, later each time.

A list without ourselves in it means that our heartbeat has not arrived there: nothing is changed,
the heartbeat is sent again. Giving everything away on such a list would stop a whole group for
seconds each time a broker restarts.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from typing import Final

from aerobee.client.assign import assign
from aerobee.client.connections.routes import read_queues
from aerobee.client.consuming.assignment import Assignment
from aerobee.client.consuming.consumer_state import ConsumerState
from aerobee.client.consuming.order_lock import OrderLocks
from aerobee.client.consuming.queue_puller import QueuePuller
from aerobee.client.errors import ClientError, NoRoute, reading
from aerobee.client.message import queue_text
from aerobee.protocol.bodies.clients import parse_consumer_list
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.bodies.routes import TopicRoute
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.headers.client import ConsumerListHeader
from aerobee.protocol.names import is_retry_topic

log = logging.getLogger(__name__)

_FIRST_RETRY_S: Final = 0.5


class Rebalancer:
    """Computes and applies this member's part of every subscribed topic."""

    def __init__(
        self,
        state: ConsumerState,
        assignment: Assignment,
        puller: QueuePuller,
        locks: OrderLocks | None,
    ) -> None:
        self._session = state.session
        self._state = state
        self._assignment = assignment
        self._puller = puller
        self._locks = locks
        self._retry_s = _FIRST_RETRY_S
        self._timer: asyncio.TimerHandle | None = None
        self.stopped = False

    async def run(self) -> None:
        """One round over all topics; never raises ClientError."""
        if self.stopped:
            return
        if self._timer is not None:
            self._timer.cancel()
        topics = sorted(self._state.subscriptions)
        complete = True
        for assigned in self._assignment.held():
            if assigned.queue.topic not in topics:
                self._assignment.release(assigned)
        for topic in topics:
            try:
                complete = await self._rebalance(topic) and complete
            except NoRoute as error:
                # A retry topic appears in the routes a moment after the group's first heartbeat.
                level = logging.DEBUG if is_retry_topic(topic) else logging.WARNING
                log.log(level, "topic not assigned topic=%s error=%s", topic, error)
                complete = False
            except ClientError as error:
                log.warning("rebalance failed topic=%s error=%s", topic, error)
                complete = False
        self._plan_retry(complete)

    def stop(self) -> None:
        """No further rounds."""
        self.stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _plan_retry(self, complete: bool) -> None:
        if complete:
            self._retry_s = _FIRST_RETRY_S
        elif not self.stopped:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._retry_s, self._state.rebalances.wake)
            longest = self._state.options.rebalance_interval_s
            self._retry_s = min(self._retry_s * 2, longest)

    async def _rebalance(self, topic: str) -> bool:
        """True when this member's part of the topic is now as it should be."""
        route = await self._session.routes.route(topic)
        queues = read_queues(topic, route)
        if not self._state.broadcasting:
            members = await self._members(topic, route)
            if self._session.client_id not in members:
                self._session.wake_heartbeat()
                return False
            strategy = self._state.options.strategy
            queues = assign(strategy, members, queues, self._session.client_id)
        return await self._apply(topic, set(queues))

    async def _members(self, topic: str, route: TopicRoute) -> list[str]:
        ext = ConsumerListHeader(self._state.group).to_ext()
        addresses = [a for broker in route.brokers for a in broker.addresses.values()]
        random.shuffle(addresses)
        failure: ClientError = NoRoute(f"the route of {topic!r} names no broker")
        for address in addresses:
            try:
                answer = await self._session.call(
                    address,
                    RequestCode.GET_CONSUMER_LIST_BY_GROUP,
                    ext,
                    accept=(ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR),
                )
                if answer.code != ResponseCode.SUCCESS:  # a group without members (WIRE.md 3.3)
                    return []
                with reading(address):
                    return parse_consumer_list(answer.body)
            except ClientError as error:
                failure = error
        raise failure

    async def _apply(self, topic: str, mine: set[MessageQueue]) -> bool:
        for assigned in self._assignment.held():
            if assigned.queue.topic == topic and assigned.queue not in mine:
                self._assignment.release(assigned)
        missing = {q for q in mine if self._assignment.get(q) is None}
        free = sorted(missing - self._assignment.busy())
        if self._locks is not None and free:
            locked_at = time.monotonic()
            free = sorted((await self._locks.lock(free)).held)
        else:
            locked_at = None
        taken = await asyncio.gather(*(self._take(queue, locked_at) for queue in free))
        return sum(taken) == len(missing)

    async def _take(self, queue: MessageQueue, locked_at: float | None) -> bool:
        try:
            await self._assignment.add(queue, self._puller.run, locked_at)
        except ClientError as error:
            log.warning("queue not taken queue=%s error=%s", queue_text(queue), error)
            return False
        return True
