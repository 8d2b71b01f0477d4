"""The same roles for programs without an event loop: every call returns when it is done.

    with Producer("127.0.0.1:9876", "orders") as producer:
        producer.send(Message("orders", b"one more"))

All clients of a process share one event loop in a background thread (loop_thread.py); they may be
called from any thread, several at once. Listeners of a `PushConsumer` are plain functions and run
in threads of their own. Arguments, results and errors are those of the asyncio classes of the same
names, whose docstrings say more.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, Generic, Protocol, Self, TypeVar

from aerobee.client import admin as asyncio_admin
from aerobee.client.consuming import pull_consumer as asyncio_pull_consumer
from aerobee.client.consuming import push_consumer as asyncio_push_consumer
from aerobee.client.consuming.listener import Listener
from aerobee.client.consuming.puller import PullResult
from aerobee.client.errors import ClientClosed
from aerobee.client.loop_thread import LoopThread
from aerobee.client.message import Message, MessageQueue, ReceivedMessage
from aerobee.client.options import Addresses, ClientOptions, ProducerOptions, PushOptions
from aerobee.client.producing import producer as asyncio_producer
from aerobee.client.producing.producer import Selector
from aerobee.client.producing.sender import SendResult
from aerobee.protocol.bodies.routes import ClusterInfo, TopicRoute
from aerobee.protocol.bodies.stats import ConnectionData, GroupProgress, QueueOffsets
from aerobee.protocol.bodies.topics import TopicData

T = TypeVar("T")


class _AsyncRole(Protocol):
    async def __aenter__(self) -> Any: ...
    async def close(self) -> None: ...


RoleT = TypeVar("RoleT", bound=_AsyncRole)


class _Role(Generic[RoleT]):
    """Start, stop and calls of one role; `_wrapped` is the asyncio one."""

    def __init__(self, wrapped: RoleT) -> None:
        self._wrapped = wrapped
        self._thread: LoopThread | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the client; `close` must follow."""
        assert self._thread is None, "a client is started once"
        self._thread = LoopThread.acquire()
        self._run(self._wrapped.__aenter__())

    def close(self) -> None:
        """Close the client; twice does no harm."""
        if self._thread is None:
            return
        try:
            self._run(self._wrapped.close())
        finally:
            thread, self._thread = self._thread, None
            thread.release()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._thread is None:
            work.close()
            raise ClientClosed("the client is not started, or is closed")
        return self._thread.run(work)


class Producer(_Role[asyncio_producer.Producer]):
    """Sends messages."""

    def __init__(
        self,
        name_servers: Addresses,
        group: str = "DEFAULT_PRODUCER",
        options: ProducerOptions | None = None,
    ) -> None:
        super().__init__(asyncio_producer.Producer(name_servers, group, options))

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        selector: Selector | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        """Send one message and wait until the broker has stored it."""
        work = self._wrapped.send(
            message, queue=queue, key=key, selector=selector, timeout_s=timeout_s
        )
        return self._run(work)

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        """Send messages of one topic as one request."""
        return self._run(self._wrapped.send_batch(messages, queue=queue, timeout_s=timeout_s))

    def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        selector: Selector | None = None,
    ) -> None:
        """Send without asking for an answer."""
        self._run(self._wrapped.send_oneway(message, queue=queue, key=key, selector=selector))

    def send_many(
        self, messages: Iterable[Message], *, key: str | None = None, in_flight: int = 256
    ) -> list[SendResult]:
        """Send messages, many at the same time; `messages` is read on the background thread."""
        return self._run(self._wrapped.send_many(messages, key=key, in_flight=in_flight))

    def queues(self, topic: str) -> list[MessageQueue]:
        """The queues a message of this topic may go to, sorted."""
        return self._run(self._wrapped.queues(topic))


class PullConsumer(_Role[asyncio_pull_consumer.PullConsumer]):
    """Reads queues on demand."""

    def __init__(
        self,
        name_servers: Addresses,
        group: str = "TOOLS_CONSUMER",
        options: ClientOptions | None = None,
    ) -> None:
        super().__init__(asyncio_pull_consumer.PullConsumer(name_servers, group, options))

    def queues(self, topic: str, *, refresh: bool = False) -> list[MessageQueue]:
        """The readable queues of a topic, sorted."""
        return self._run(self._wrapped.queues(topic, refresh=refresh))

    def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        max_messages: int = 32,
        expression: str = "*",
        wait_ms: int = 0,
    ) -> PullResult:
        """Read from `offset` on; wait up to `wait_ms` for a first message."""
        work = self._wrapped.pull(
            queue, offset, max_messages=max_messages, expression=expression, wait_ms=wait_ms
        )
        return self._run(work)

    def committed(self, queue: MessageQueue) -> int | None:
        """The group's committed offset, None when there is none."""
        return self._run(self._wrapped.committed(queue))

    def commit(self, queue: MessageQueue, offset: int) -> None:
        """Store where the group goes on."""
        self._run(self._wrapped.commit(queue, offset))

    def min_offset(self, queue: MessageQueue) -> int:
        """The oldest readable offset."""
        return self._run(self._wrapped.min_offset(queue))

    def max_offset(self, queue: MessageQueue) -> int:
        """The offset the next message will get."""
        return self._run(self._wrapped.max_offset(queue))

    def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The offset of the message stored nearest to a time."""
        return self._run(self._wrapped.offset_at(queue, timestamp_ms))

    def send_back(self, message: ReceivedMessage, delay_level: int = 0) -> None:
        """Have the broker redeliver a message through the group's retry topic."""
        self._run(self._wrapped.send_back(message, delay_level))


class PushConsumer(_Role[asyncio_push_consumer.PushConsumer]):
    """One member of a consumer group; the listener is called in background threads."""

    def __init__(
        self,
        name_servers: Addresses,
        group: str,
        listener: Listener,
        options: PushOptions | None = None,
    ) -> None:
        super().__init__(asyncio_push_consumer.PushConsumer(name_servers, group, listener, options))

    @property
    def client_id(self) -> str:
        """By which the broker knows this member."""
        return self._wrapped.client_id

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues consumed now, sorted."""
        return self._wrapped.queues

    def subscribe(self, topic: str, expression: str = "*") -> None:
        """Consume a topic, all of it or the tags joined by `||`."""
        self._run(self._wrapped.subscribe(topic, expression))

    def unsubscribe(self, topic: str) -> None:
        """Stop consuming a topic."""
        self._run(self._wrapped.unsubscribe(topic))


class Admin(_Role[asyncio_admin.Admin]):
    """Administers brokers and looks into them."""

    def __init__(self, name_servers: Addresses, options: ClientOptions | None = None) -> None:
        super().__init__(asyncio_admin.Admin(name_servers, options))

    def cluster(self) -> ClusterInfo:
        """All brokers by name, and the clusters they form."""
        return self._run(self._wrapped.cluster())

    def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        return self._run(self._wrapped.topics())

    def route(self, topic: str) -> TopicRoute:
        """Where a topic lives."""
        return self._run(self._wrapped.route(topic))

    def create_topic(
        self,
        topic: str,
        *,
        queues: int = 8,
        perm: int = 6,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> None:
        """Create or change a topic."""
        work = self._wrapped.create_topic(
            topic, queues=queues, perm=perm, cluster=cluster, broker=broker
        )
        self._run(work)

    def put_topic(self, broker: str, settings: TopicData) -> None:
        """Create a topic on one broker's master, or replace all its settings there."""
        self._run(self._wrapped.put_topic(broker, settings))

    def topic_settings(
        self, topic: str, *, cluster: str | None = None, broker: str | None = None
    ) -> dict[str, TopicData | None]:
        """What a topic is like on every master, by broker name; None where it does not exist."""
        return self._run(self._wrapped.topic_settings(topic, cluster=cluster, broker=broker))

    def delete_topic(self, topic: str) -> None:
        """Delete a topic on every broker and name server."""
        self._run(self._wrapped.delete_topic(topic))

    def topic_stats(self, topic: str) -> dict[MessageQueue, QueueOffsets]:
        """The offsets at both ends of each queue."""
        return self._run(self._wrapped.topic_stats(topic))

    def consume_progress(
        self, group: str, topic: str | None = None
    ) -> dict[MessageQueue, GroupProgress]:
        """How far a group has consumed each queue."""
        return self._run(self._wrapped.consume_progress(group, topic))

    def consumers(self, group: str) -> list[ConnectionData]:
        """The members of a consumer group that are online."""
        return self._run(self._wrapped.consumers(group))

    def query_by_key(
        self,
        topic: str,
        key: str,
        *,
        max_messages: int = 64,
        begin_ms: int = 0,
        end_ms: int = asyncio_admin.FAR_FUTURE_MS,
    ) -> list[ReceivedMessage]:
        """Messages of a topic that carry a key, oldest first."""
        work = self._wrapped.query_by_key(
            topic, key, max_messages=max_messages, begin_ms=begin_ms, end_ms=end_ms
        )
        return self._run(work)

    def query_by_unique_key(self, topic: str, msg_id: str) -> list[ReceivedMessage]:
        """Messages sent under one unique id."""
        return self._run(self._wrapped.query_by_unique_key(topic, msg_id))

    def view(self, offset_msg_id: str) -> ReceivedMessage:
        """The message a broker's id names."""
        return self._run(self._wrapped.view(offset_msg_id))

    def runtime_info(self, address: str) -> dict[str, str]:
        """A broker's own figures by name."""
        return self._run(self._wrapped.runtime_info(address))
