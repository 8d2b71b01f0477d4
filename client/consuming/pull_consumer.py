"""The asyncio pull consumer: reads any queue from any offset, whenever asked.

It takes part in no rebalancing and sends no heartbeats, so it disturbs no group: the program says
which queue to read and keeps, or commits, its own offsets. Suits jobs, tools and replays; for
"each message once to one of us" there is PushConsumer.
"""

from __future__ import annotations

from aerobee.client import queue_offsets
from aerobee.client.connections.session import Session
from aerobee.client.consuming.puller import Pull, Puller, PullResult, make_subscription
from aerobee.client.consuming.send_back import send_back
from aerobee.client.message import ReceivedMessage
from aerobee.client.options import Addresses, ClientOptions, checked_group, checked_options
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.filters.property_filter import TAG_TYPE
from aerobee.protocol.filters.subscription import Subscription


class PullConsumer(queue_offsets.OffsetsRole):
    """Reads queues on demand. Belongs to the loop it was started on."""

    def __init__(
        self,
        name_servers: Addresses,
        group: str = "TOOLS_CONSUMER",
        options: ClientOptions | None = None,
    ) -> None:
        self.group = checked_group(group)
        super().__init__(Session(name_servers, checked_options(options, ClientOptions)))
        self._puller = Puller(self._session, group)
        self._subscriptions: dict[tuple[str, str, str], Subscription] = {}

    async def queues(self, topic: str, *, refresh: bool = False) -> list[MessageQueue]:
        """The readable queues of a topic, sorted; raises NoRoute for an unknown topic."""
        self._session.check_running()
        return await self._session.routes.read_queues(topic, refresh=refresh)

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        max_messages: int = 32,
        expression: str = "*",
        expression_type: str = TAG_TYPE,
        wait_ms: int = 0,
    ) -> PullResult:
        """Read from `offset` on, at most `max_messages`; wait up to `wait_ms` for a first one.

        `expression` is `*` or tags joined by `||`; with the type SQL92 it is a condition on the
        properties, and a wrong one raises RequestRefused, which says where. The result's
        `next_offset` is where to go on.
        """
        self._session.check_running()
        key = (queue.topic, expression_type, expression)
        subscription = self._subscriptions.get(key)
        if subscription is None:
            subscription = make_subscription(queue.topic, expression, expression_type)
            self._subscriptions[key] = subscription
        return await self._puller.pull(
            Pull(
                queue=queue,
                offset=offset,
                subscription=subscription,
                max_messages=max_messages,
                suspend_ms=wait_ms,
                inline=True,
            )
        )

    async def committed(self, queue: MessageQueue) -> int | None:
        """The group's committed offset, None without one."""
        self._session.check_running()
        return await queue_offsets.committed_offset(self._session, self.group, queue)

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Store where the group goes on; returns when the broker has it."""
        self._session.check_running()
        await queue_offsets.commit_offset(self._session, self.group, queue, offset)

    async def send_back(self, message: ReceivedMessage, delay_level: int = 0) -> None:
        """Have the broker redeliver a message through the group's retry topic."""
        self._session.check_running()
        await send_back(self._session, self.group, message, delay_level=delay_level)
