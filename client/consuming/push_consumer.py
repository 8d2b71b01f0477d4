"""The asyncio push consumer: gives its share of a group's messages to a listener.

    async def handle(messages: list[ReceivedMessage]) -> None:
        print(messages[0].body)

    async with PushConsumer("127.0.0.1:9876", "billing", handle) as consumer:
        await consumer.subscribe("orders")
        await asyncio.Event().wait()

This module only puts the parts together and starts and stops them in order:

    rebalance.py          finds which queues are ours
    assignment.py         takes these queues up, and gives queues up
    queue_puller.py       pulls from them, with a task for each queue
    consume_services.py   calls the listener
    send_back.py          gives messages on which the listener failed back to the broker
    offset_store.py       stores the group's offsets

Delivery is at least once: the offset after a message is stored only when this message, and all
before it, were consumed or given back to the broker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Self

from aerobee.client.connections.background import Periodic
from aerobee.client.connections.session import Session
from aerobee.client.consuming.assignment import Assignment
from aerobee.client.consuming.consume_services import (
    ConcurrentConsumeService,
    ConsumeService,
    OrderlyConsumeService,
)
from aerobee.client.consuming.consumer_requests import ConsumerRequests
from aerobee.client.consuming.consumer_state import ConsumerState
from aerobee.client.consuming.listener import Listener, ListenerCall
from aerobee.client.consuming.offset_store import BrokerOffsets, LocalOffsets, OffsetStore
from aerobee.client.consuming.order_lock import OrderLocks
from aerobee.client.consuming.puller import make_subscription
from aerobee.client.consuming.queue_puller import QueuePuller
from aerobee.client.consuming.rebalance import Rebalancer
from aerobee.client.consuming.send_back import SendBack
from aerobee.client.errors import CallerError, NetworkError, NoRoute
from aerobee.client.options import Addresses, Model, PushOptions, checked_group, checked_options
from aerobee.client.producing.message_trace import MessageTrace
from aerobee.protocol.bodies.clients import CONSUME_PASSIVELY, CheckClientConfig, ConsumerData
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.bodies.routes import MASTER_ID
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.filters.property_filter import TAG_TYPE
from aerobee.protocol.filters.subscription import Subscription
from aerobee.protocol.frames.command import Command
from aerobee.protocol.names import retry_topic, why_no_group_topic

log = logging.getLogger("aerobee.client")

_DEFAULT_INSTANCE = "DEFAULT"


class PushConsumer:
    """One member of a consumer group. Belongs to the loop it was started on."""

    def __init__(
        self,
        name_servers: Addresses,
        group: str,
        listener: Listener,
        options: PushOptions | None = None,
    ) -> None:
        self.group = checked_group(group)
        self.options = checked_options(options, PushOptions)
        if not callable(listener):
            raise CallerError(f"a listener must be a function, got {type(listener).__name__}")
        self._session = Session(name_servers, self.options)
        self._listener = ListenerCall(listener, self.options.concurrency)
        self._subscriptions: dict[str, Subscription] = {}
        self._rebalances = Periodic(self.options.rebalance_interval_s, self._rebalance, "rebalance")
        self._rebalance_task: asyncio.Task[None] | None = None
        self._rebalance_turn = asyncio.Lock()  # subscribe() and the periodic round
        self._offsets = self._open_offsets()
        self._build()
        if self.options.model is Model.CLUSTERING:
            self._subscribe_to_retries()

    def _subscribe_to_retries(self) -> None:
        topic = retry_topic(self.group)
        if (why := why_no_group_topic(topic)) is not None:
            log.warning(
                "messages on which the listener fails are tried again by this consumer alone, "
                "without end, and never become dead letters group=%s reason=%s",
                self.group,
                why,
            )
            return
        self._subscriptions[topic] = make_subscription(topic)

    def _open_offsets(self) -> OffsetStore:
        if self.options.model is Model.CLUSTERING:
            return BrokerOffsets(self._session, self.group)
        instance = self.options.instance_name or _DEFAULT_INSTANCE
        return LocalOffsets(self.options.offset_directory, instance, self.group)

    def _build(self) -> None:
        session, options = self._session, self.options
        clustering = options.model is Model.CLUSTERING
        self._state = ConsumerState(
            group=self.group,
            options=options,
            session=session,
            subscriptions=self._subscriptions,
            rebalances=self._rebalances,
            offsets=self._offsets,
            listener=self._listener,
            give_back=SendBack(session, self.group, options.max_reconsume),
            trace=MessageTrace(session, self.group, options.trace_topic) if options.trace else None,
        )
        locks = OrderLocks(session, self.group) if options.orderly and clustering else None
        self._assignment = Assignment(self._state, locks)
        service: ConsumeService
        self._orderly: OrderlyConsumeService | None = None
        if options.orderly:
            service = OrderlyConsumeService(self._state, locks, self._assignment)
            self._orderly = service
        else:
            service = ConcurrentConsumeService(self._state)
        self._service = service
        puller = QueuePuller(self._state, service, self._assignment)
        self._rebalancer = Rebalancer(self._state, self._assignment, puller, locks)
        self._requests = ConsumerRequests(self._state, self._assignment)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # Member of the session

    @property
    def topics(self) -> Collection[str]:
        """Subscribed topics, the group's retry topic included, and that of traces."""
        trace = self._state.trace
        subscribed = self._subscriptions.keys()
        return subscribed if trace is None else {*subscribed, *trace.topics}

    def consumer_data(self) -> ConsumerData:
        """This group's part of a heartbeat (protocol/WIRE.md 4.2)."""
        return ConsumerData(
            group=self.group,
            consume_type=CONSUME_PASSIVELY,
            message_model=self.options.model.value,
            consume_from_where=self.options.consume_from.value,
            subscriptions=tuple(self._subscriptions.values()),
        )

    async def answer(self, command: Command) -> Command | None:
        """Answer a broker's request."""
        return await self._requests.answer(command)

    # For programs

    @property
    def client_id(self) -> str:
        """The id by which the broker knows this member."""
        return self._session.client_id

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues consumed now, sorted; the group's retry queues included."""
        return sorted(assigned.queue for assigned in self._assignment.held())

    async def subscribe(
        self, topic: str, expression: str = "*", expression_type: str = TAG_TYPE
    ) -> None:
        """Consume a topic, all of it or the tags joined by `||`; before or after `start`.

        With the type SQL92 the expression is a condition on the properties of messages, such as
        `amount > 10 AND region IN ('n', 's')`. A condition that a broker cannot serve raises
        PeerError here, or in `start`, with the fault and its place.

        When the consumer runs, returns after a first attempt to take up the topic's queues.
        """
        subscription = make_subscription(topic, expression, expression_type)
        if self._session.running:
            await self._check(subscription)
        self._subscriptions[topic] = subscription
        if self._session.running:
            await self._announce()

    async def unsubscribe(self, topic: str) -> None:
        """Stop consuming a topic; this consumer gives up its queues."""
        if self._subscriptions.pop(topic, None) is not None and self._session.running:
            await self._announce()

    async def start(self) -> None:
        """Join the group; returns after a first attempt to take up queues.

        Peers that cannot be reached now are tried again in the background. Raises CallerError, or
        OffsetFileInUse when broadcasting.
        """
        self._offsets.open()
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise

    async def _start(self) -> None:
        self._session.join(self)
        self._session.start()
        self._service.start()
        if self._state.trace is not None:
            self._state.trace.start()
        for subscription in list(self._subscriptions.values()):
            await self._check(subscription)
        tasks, options = self._session.tasks, self.options
        persist = Periodic(options.offset_store_interval_s, self._persist, "offsets")
        tasks.spawn(persist.run(), persist.name)
        if self._orderly is not None:
            renew = Periodic(options.lock_interval_s, self._orderly.renew_locks, "locks")
            tasks.spawn(renew.run(), renew.name)
        await self._announce()
        self._rebalance_task = tasks.spawn(self._rebalances.run(), self._rebalances.name)

    async def close(self) -> None:
        """Leave the group: finish listeners at work, store offsets, unregister, disconnect.

        In a forked child of the process that started it, this does nothing: all of it is the
        parent's to do.
        """
        if self._session.is_inherited:
            return
        self._rebalancer.stop()
        if self._session.running:
            if self._rebalance_task is not None:
                self._rebalance_task.cancel()
                await asyncio.wait([self._rebalance_task])
            await self._assignment.release_all(self.options.close_timeout_s)
            if self._state.trace is not None:
                await self._state.trace.flush()
            await self._session.close()
        self._offsets.close()
        self._listener.close()

    async def _check(self, subscription: Subscription) -> None:
        """Ask the topic's brokers whether they can filter by this expression. Raises PeerError if
        any cannot; a broker that cannot be reached now judges it at the first pull."""
        if subscription.type == TAG_TYPE:
            return
        session = self._session
        await session.routes.refresh([subscription.topic])
        body = CheckClientConfig(session.client_id, self.group, subscription).encode()
        try:
            queues = await session.routes.read_queues(subscription.topic)
            for broker in sorted({queue.broker_name for queue in queues}):
                address = session.routes.readable_address(broker, MASTER_ID)
                if address is not None:
                    await session.call(address, RequestCode.CHECK_CLIENT_CONFIG, body=body)
        except (NoRoute, NetworkError) as error:
            log.info("expression not checked topic=%s why=%s", subscription.topic, error)

    async def _announce(self) -> None:
        """Let the brokers know our subscriptions, then take up queues."""
        await self._session.routes.refresh(sorted(self._subscriptions))
        await self._session.heartbeat()
        await self._rebalance()

    async def _rebalance(self) -> None:
        async with self._rebalance_turn:
            await self._rebalancer.run()

    async def _persist(self) -> None:
        queues = [assigned.queue for assigned in self._assignment.held()]
        await self._offsets.persist(queues)
