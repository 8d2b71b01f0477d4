"""Roles for programs without an event loop: every call returns when it is done.

    with Producer("127.0.0.1:9876", "orders") as producer:
        producer.send(Message("orders", b"one more"))

All clients of a process share one event loop in a background thread (loop_thread.py); they may be
called from any thread, several at once. After a fork the child opens clients of its own. Listeners
of a `PushConsumer` are plain functions and run in threads of their own. Arguments, results and
errors are those of the asyncio classes of the same names, whose docstrings say more.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from aerobee.client.admin import Admin as AsyncAdmin
from aerobee.client.consuming.listener import Listener
from aerobee.client.consuming.pull_consumer import PullConsumer as AsyncPullConsumer
from aerobee.client.consuming.push_consumer import PushConsumer as AsyncPushConsumer
from aerobee.client.errors import ClientClosed
from aerobee.client.loop_thread import LoopThread
from aerobee.client.options import (
    Addresses,
    ClientOptions,
    ProducerOptions,
    PushOptions,
    TransactionOptions,
)
from aerobee.client.producing.producer import Producer as AsyncProducer
from aerobee.client.producing.transaction import TransactionListener
from aerobee.client.producing.transaction import TransactionProducer as AsyncTransactionProducer
from aerobee.protocol.bodies.common import MessageQueue

P = ParamSpec("P")
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
        """Close the client; a second call does no harm. In a child of the process that opened it
        nothing is done, since its connections are the parent's."""
        if self._thread is None or self._thread.is_inherited:
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


def _blocking(
    method: Callable[Concatenate[RoleT, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[_Role[RoleT], P], T]:
    """Makes of a method of the asyncio role a blocking method with the same signature."""

    @functools.wraps(method)
    def call(self: _Role[RoleT], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(method(self._wrapped, *args, **kwargs))

    return call


class Producer(_Role[AsyncProducer]):
    """Sends messages."""

    def __init__(
        self,
        name_servers: Addresses,
        group: str = "DEFAULT_PRODUCER",
        options: ProducerOptions | None = None,
    ) -> None:
        super().__init__(AsyncProducer(name_servers, group, options))

    send = _blocking(AsyncProducer.send)
    send_batch = _blocking(AsyncProducer.send_batch)
    send_oneway = _blocking(AsyncProducer.send_oneway)
    recall = _blocking(AsyncProducer.recall)
    # The messages are read on the background thread.
    send_many = _blocking(AsyncProducer.send_many)
    request = _blocking(AsyncProducer.request)
    queues = _blocking(AsyncProducer.queues)


class TransactionProducer(_Role[AsyncTransactionProducer]):
    """Sends messages that depend on local transactions; the listener is called in background
    threads."""

    def __init__(
        self,
        name_servers: Addresses,
        group: str,
        listener: TransactionListener,
        options: TransactionOptions | None = None,
        *,
        topics: Collection[str] = (),
    ) -> None:
        super().__init__(
            AsyncTransactionProducer(name_servers, group, listener, options, topics=topics)
        )

    send_in_transaction = _blocking(AsyncTransactionProducer.send_in_transaction)
    send = _blocking(AsyncTransactionProducer.send)
    send_batch = _blocking(AsyncTransactionProducer.send_batch)
    send_oneway = _blocking(AsyncTransactionProducer.send_oneway)
    send_many = _blocking(AsyncTransactionProducer.send_many)
    queues = _blocking(AsyncTransactionProducer.queues)


class PullConsumer(_Role[AsyncPullConsumer]):
    """Reads queues on demand."""

    def __init__(
        self,
        name_servers: Addresses,
        group: str = "TOOLS_CONSUMER",
        options: ClientOptions | None = None,
    ) -> None:
        super().__init__(AsyncPullConsumer(name_servers, group, options))

    queues = _blocking(AsyncPullConsumer.queues)
    pull = _blocking(AsyncPullConsumer.pull)
    committed = _blocking(AsyncPullConsumer.committed)
    commit = _blocking(AsyncPullConsumer.commit)
    min_offset = _blocking(AsyncPullConsumer.min_offset)
    max_offset = _blocking(AsyncPullConsumer.max_offset)
    offset_at = _blocking(AsyncPullConsumer.offset_at)
    send_back = _blocking(AsyncPullConsumer.send_back)


class PushConsumer(_Role[AsyncPushConsumer]):
    """One member of a consumer group; the listener is called in background threads."""

    def __init__(
        self,
        name_servers: Addresses,
        group: str,
        listener: Listener,
        options: PushOptions | None = None,
    ) -> None:
        super().__init__(AsyncPushConsumer(name_servers, group, listener, options))

    @property
    def client_id(self) -> str:
        """The id by which the broker knows this member."""
        return self._wrapped.client_id

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues consumed now, sorted."""
        return self._wrapped.queues

    subscribe = _blocking(AsyncPushConsumer.subscribe)
    unsubscribe = _blocking(AsyncPushConsumer.unsubscribe)


class Admin(_Role[AsyncAdmin]):
    """Administers brokers and looks into them."""

    def __init__(
        self,
        name_servers: Addresses,
        options: ClientOptions | None = None,
        *,
        admin_address: str | Sequence[str] | None = None,
        reads_slaves: bool = False,
        leaves_out_silent: bool = False,
    ) -> None:
        """See the asynchronous one."""
        admin = AsyncAdmin(
            name_servers,
            options,
            admin_address=admin_address,
            reads_slaves=reads_slaves,
            leaves_out_silent=leaves_out_silent,
        )
        super().__init__(admin)

    ask = _blocking(AsyncAdmin.ask)
    admin_ports = _blocking(AsyncAdmin.admin_ports)
    unanswered = _blocking(AsyncAdmin.unanswered)
    cluster = _blocking(AsyncAdmin.cluster)
    topics = _blocking(AsyncAdmin.topics)
    route = _blocking(AsyncAdmin.route)
    create_topic = _blocking(AsyncAdmin.create_topic)
    put_topic = _blocking(AsyncAdmin.put_topic)
    check_masters = _blocking(AsyncAdmin.check_masters)
    readable_brokers = _blocking(AsyncAdmin.readable_brokers)
    administered_masters = _blocking(AsyncAdmin.administered_masters)
    put_members_at = _blocking(AsyncAdmin.put_members_at)
    check_administered = _blocking(AsyncAdmin.check_administered)
    administered_at = _blocking(AsyncAdmin.administered_at)
    clean = _blocking(AsyncAdmin.clean)
    topic_settings = _blocking(AsyncAdmin.topic_settings)
    waiting_messages = _blocking(AsyncAdmin.waiting_messages)
    delete_topic = _blocking(AsyncAdmin.delete_topic)
    topic_stats = _blocking(AsyncAdmin.topic_stats)
    consume_progress = _blocking(AsyncAdmin.consume_progress)
    consumers = _blocking(AsyncAdmin.consumers)
    groups = _blocking(AsyncAdmin.groups)
    groups_of_topic = _blocking(AsyncAdmin.groups_of_topic)
    group_state = _blocking(AsyncAdmin.group_state)
    group_stats = _blocking(AsyncAdmin.group_stats)
    group_progress = _blocking(AsyncAdmin.group_progress)
    reset_group = _blocking(AsyncAdmin.reset_group)
    reset_queue = _blocking(AsyncAdmin.reset_queue)
    clone_offsets = _blocking(AsyncAdmin.clone_offsets)
    commit_offset = _blocking(AsyncAdmin.commit_offset)
    min_offset = _blocking(AsyncAdmin.min_offset)
    max_offset = _blocking(AsyncAdmin.max_offset)
    offset_at = _blocking(AsyncAdmin.offset_at)
    query_by_key = _blocking(AsyncAdmin.query_by_key)
    query_by_unique_key = _blocking(AsyncAdmin.query_by_unique_key)
    view = _blocking(AsyncAdmin.view)
    broker_settings = _blocking(AsyncAdmin.broker_settings)
    settings_at = _blocking(AsyncAdmin.settings_at)
    change_broker_settings = _blocking(AsyncAdmin.change_broker_settings)
    runtime_info = _blocking(AsyncAdmin.runtime_info)
    ha_state = _blocking(AsyncAdmin.ha_state)
