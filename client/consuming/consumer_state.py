"""State that the parts of a push consumer share: settings, offsets, listener, counters."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from aerobee.client.connections.background import Periodic
from aerobee.client.connections.session import Session
from aerobee.client.consuming.listener import Consumed, ListenerCall
from aerobee.client.consuming.offset_store import OffsetStore
from aerobee.client.consuming.process_queue import ProcessQueue
from aerobee.client.message import ReceivedMessage
from aerobee.client.options import Model, PushOptions
from aerobee.client.producing.message_trace import MessageTrace
from aerobee.protocol.filters.subscription import Subscription
from aerobee.protocol.message.properties import PROPERTY_RETRY_TOPIC
from aerobee.protocol.names import retry_topic


@dataclass(slots=True)
class TopicCounters:
    """Counts of the listener's work on one topic's messages, since the consumer started."""

    consumed: int = 0
    failed: int = 0
    listener_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class ConsumerState:
    """One push consumer's shared state.

    `subscriptions` are by topic; `rebalances` can be woken; `give_back` makes the broker redeliver
    a message.
    """

    group: str
    options: PushOptions
    session: Session
    subscriptions: dict[str, Subscription]
    rebalances: Periodic
    offsets: OffsetStore
    listener: ListenerCall
    give_back: Callable[[ReceivedMessage], Awaitable[bool]]
    trace: MessageTrace | None = None
    counters: dict[str, TopicCounters] = field(default_factory=dict)

    @property
    def broadcasting(self) -> bool:
        """Each member gets every message; nothing is redelivered."""
        return self.options.model is Model.BROADCASTING

    async def consume(self, assigned: ProcessQueue, messages: list[ReceivedMessage]) -> Consumed:
        """Give messages to the listener, keeping count; retried ones under their own topic."""
        restore_topics(self.group, messages)
        topic = messages[0].topic
        assigned.in_listener += 1
        started = time.monotonic()
        begun = None if self.trace is None else self.trace.consuming(messages)
        try:
            consumed, error = await self.listener.outcome(messages)
        finally:
            assigned.in_listener -= 1
            assigned.last_consume_at = time.time()
            assigned.signal()
        if self.trace is not None and begun is not None:
            success = consumed is Consumed.SUCCESS
            self.trace.consumed(begun, success=success, raised=error is not None)
        counters = self.counters.setdefault(topic, TopicCounters())
        counters.listener_s += time.monotonic() - started
        if consumed is Consumed.SUCCESS:
            counters.consumed += len(messages)
        else:
            counters.failed += len(messages)
        return consumed

    def finish(self, assigned: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        """These need no more care: move the offset to be stored, if the queue is still ours."""
        offset = assigned.finish(messages)
        if not assigned.released:
            self.offsets.update(assigned.queue, offset, only_forward=True)


def restore_topics(group: str, messages: list[ReceivedMessage]) -> None:
    """A message read from the group's retry topic shows the topic it was first sent to."""
    retry = retry_topic(group)
    for message in messages:
        if message.topic == retry and (origin := message.properties.get(PROPERTY_RETRY_TOPIC)):
            message.topic = origin
