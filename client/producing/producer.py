"""The asyncio producer: send, send to a chosen queue, oneway, batch, many in flight.

    async with Producer("127.0.0.1:9876", "orders") as producer:
        result = await producer.send(Message("orders", b"one more"))

A send that fails in a way that another broker may cure (queue_choice.py) is tried again, up to
`retries` times, preferring a broker not tried yet. A time-out does not show whether the message was
stored, so a retried message may be stored twice, under one unique id: RocketMQ's producers behave
the same, and consumers that mind compare ids. Sends to one chosen queue are never moved to another.

Many sends may run at the same time, from one task each or by `send_many`; up to `max_in_flight` of
them wait for answers, the others for their turn. Sends to one broker share a connection; an Aerobee
broker stores them in the order they were started, unless any is retried. A Java broker's threads
overtake one another: where order matters there, wait for each send before the next.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Sequence

from aerobee.client.connections.background import wait_all
from aerobee.client.connections.session import Role, Session
from aerobee.client.errors import (
    BadMessage,
    CallTimeout,
    ClientError,
    NetworkError,
    NoRoute,
    SendFailed,
)
from aerobee.client.message import Message, ReceivedMessage
from aerobee.client.options import (
    Addresses,
    ProducerOptions,
    checked_group,
    checked_options,
    checked_timeout,
)
from aerobee.client.producing.message_trace import MessageTrace
from aerobee.client.producing.queue_choice import (
    QueueChooser,
    only_elsewhere,
    queue_by_key,
    worth_retrying,
)
from aerobee.client.producing.request_reply import Replies, as_request
from aerobee.client.producing.sender import Outgoing, Sender, SendResult, SendStatus
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.frames.command import Command
from aerobee.protocol.hashing import java_hash
from aerobee.protocol.message.recall import RecallHandle, decode_handle
from aerobee.protocol.names import REPLY_TOPIC_SUFFIX

Selector = Callable[[Sequence[MessageQueue], Message], MessageQueue]
"""Chooses one of a topic's queues for a message."""


class Producer(Role):
    """Sends messages; one per program is enough. Belongs to the loop it was started on."""

    def __init__(
        self,
        name_servers: Addresses,
        group: str = "DEFAULT_PRODUCER",
        options: ProducerOptions | None = None,
    ) -> None:
        self.group = checked_group(group)
        self.options = checked_options(options, ProducerOptions)
        super().__init__(Session(name_servers, self.options))
        self._trace: MessageTrace | None = None
        if self.options.trace:
            self._trace = MessageTrace(self._session, group, self.options.trace_topic)
        on_stored = None if self._trace is None else self._trace.sent
        self._sender = Sender(self._session, group, self.options, on_stored)
        self._chooser = QueueChooser(self.options.avoid_failed_broker_s, time.monotonic)
        self._topics: set[str] = set()
        self._turns = asyncio.Semaphore(self.options.max_in_flight)
        self._replies = Replies()
        self._session.serve(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, self._replies.answer)

    async def close(self) -> None:
        """Close the connections; sends and requests that still wait fail.

        In a child of the process that started it nothing is done: all of that is the parent's.
        """
        if self._session.is_inherited:
            return
        self._replies.close()
        if self._trace is not None and self._session.running:
            await self._trace.flush()
        await super().close()

    def start(self) -> None:
        """Start heartbeats and route refreshes; connections are made by the first send."""
        self._session.join(self)
        super().start()
        if self._trace is not None:
            self._trace.start()

    # Member of the session

    @property
    def topics(self) -> Collection[str]:
        """Topics sent to so far."""
        return self._topics if self._trace is None else {*self._topics, *self._trace.topics}

    def consumer_data(self) -> None:
        """A producer group has no consumer data."""

    async def answer(self, command: Command) -> Command | None:
        """Answers nothing: requests to producers name no group, so they come by `Session.serve`."""
        return None

    # Sending

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        selector: Selector | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        """Send one message and wait until the broker has stored it.

        Without a choice the queues take turns and failures are retried elsewhere. `queue` names the
        queue, `key` sends all messages of one key to one queue, `selector` picks; none of these is
        moved to another queue. `timeout_s` bounds each attempt. Raises BadMessage, CallerError,
        NoRoute, SendFailed (after retries), PeerError or NetworkError (single attempt).
        """
        self._session.check_running()
        outgoing = self._sender.prepare(message)
        return await self._send(outgoing, message, queue, key, selector, timeout_s)

    async def _send(
        self,
        outgoing: Outgoing,
        message: Message,
        queue: MessageQueue | None,
        key: str | None,
        selector: Selector | None,
        timeout_s: float | None,
    ) -> SendResult:
        timeout_s = self._timeout(timeout_s)
        async with self._turns:
            queues = await self._queues(message.topic)
            chosen = queue or _choose(queues, message, key, selector)
            if chosen is not None:
                return await self._sender.attempt(outgoing, chosen, timeout_s)
            return await self._send_with_retries(outgoing, queues, timeout_s)

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        """Send messages of one topic as one request; they are stored together and in order."""
        self._session.check_running()
        outgoing = self._sender.prepare_batch(messages)
        timeout_s = self._timeout(timeout_s)
        async with self._turns:
            queues = await self._queues(outgoing.topic)
            if queue is not None:
                return await self._sender.attempt(outgoing, queue, timeout_s)
            return await self._send_with_retries(outgoing, queues, timeout_s)

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        selector: Selector | None = None,
    ) -> None:
        """Send without asking for an answer: it stays unknown whether the message arrived."""
        self._session.check_running()
        outgoing = self._sender.prepare(message)
        queues = await self._queues(message.topic)
        chosen = queue or _choose(queues, message, key, selector)
        if chosen is None:
            chosen = self._chooser.choose(message.topic, queues)
        address = self._session.master(chosen.broker_name)
        command = self._sender.command(outgoing, chosen, oneway=True)
        await self._session.pool.push(address, command)

    async def send_many(
        self, messages: Iterable[Message], *, key: str | None = None, in_flight: int = 256
    ) -> list[SendResult]:
        """Send messages, up to `in_flight` at the same time; results in the order given.

        Every message is attempted; the first failure is raised when all the others have ended.
        """
        assert in_flight > 0
        results: dict[int, SendResult | ClientError] = {}
        numbered = enumerate(messages)

        async def send_some() -> None:
            for number, message in numbered:
                try:
                    results[number] = await self.send(message, key=key)
                except ClientError as error:
                    results[number] = error

        tasks = [self._session.tasks.spawn(send_some(), "send many") for _ in range(in_flight)]
        await wait_all(tasks)
        sent = []
        for number in range(len(results)):
            result = results[number]
            if isinstance(result, ClientError):
                raise result
            sent.append(result)
        return sent

    async def request(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        selector: Selector | None = None,
        timeout_s: float = 3.0,
    ) -> ReceivedMessage:
        """Send a message and wait for the reply of whoever consumes it (`reply_to`).

        The choice of a queue is that of `send`. `timeout_s` bounds sending and waiting together.
        Raises what `send` raises, and CallTimeout when the message was stored and no reply came.
        """
        self._session.check_running()
        checked_timeout(timeout_s)
        asking, correlation_id = as_request(message, self._session.client_id, timeout_s)
        reply = self._replies.expect(correlation_id)
        sent: SendResult | None = None
        try:
            async with asyncio.timeout(timeout_s):
                await self._be_known(message.topic)
                sent = await self.send(asking, queue=queue, key=key, selector=selector)
                return await reply
        except TimeoutError as error:
            done = "it could not be sent" if sent is None else f"it was stored as {sent.msg_id}"
            raise CallTimeout(
                f"no reply to a request of topic {message.topic!r} in {timeout_s:g} s; {done}"
            ) from error
        finally:
            self._replies.forget(correlation_id)

    async def _be_known(self, topic: str) -> None:
        """Be known to all brokers from which a reply may come, those of the topic's clusters."""
        await self._queues(topic)
        for cluster in self._session.routes.clusters(topic):
            replies = cluster + REPLY_TOPIC_SUFFIX
            if replies not in self._topics:
                try:
                    await self._session.routes.route(replies)
                except NoRoute:
                    # The broker may tell nobody of that topic; then only its own can push.
                    continue
                self._topics.add(replies)
        await self._session.meet()

    async def recall(self, topic: str, handle: str, *, timeout_s: float | None = None) -> str:
        """Have a message that waits for a time of its own not delivered; returns its unique id.

        `handle` is the `recall_handle` of its SendResult. When it returns, the broker has noted the
        recall; that does not mean that there was such a message. Raises BadMessage for a text that
        is no handle, RequestRefused (code 604) when the message's time has come or the topic is not
        its own, NoRoute or NetworkError.
        """
        self._session.check_running()
        parts = _recalled(handle)
        timeout_s = self._timeout(timeout_s)
        async with self._turns:
            await self._queues(topic)
            return await self._sender.recall(topic, handle, parts.broker_name, timeout_s)

    def _timeout(self, timeout_s: float | None) -> float:
        return self.options.send_timeout_s if timeout_s is None else checked_timeout(timeout_s)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues a message of this topic may go to, sorted."""
        self._session.check_running()
        return list(await self._queues(topic))

    async def _queues(self, topic: str) -> list[MessageQueue]:
        known = self._session.routes.write_queues_nowait(topic)
        if known is not None:
            return known
        self._topics.add(topic)
        options = self.options
        return await self._session.routes.write_queues(
            topic, options.default_topic, options.default_topic_queues
        )

    async def _send_with_retries(
        self, outgoing: Outgoing, queues: Sequence[MessageQueue], timeout_s: float
    ) -> SendResult:
        attempts: list[tuple[str, ClientError]] = []
        tried: set[str] = set()
        unsure: SendResult | None = None
        for _ in range(self.options.retries + 1):
            queue = self._chooser.choose(outgoing.topic, queues, tried)
            tried.add(queue.broker_name)
            try:
                result = await self._sender.attempt(outgoing, queue, timeout_s)
            except ClientError as error:
                if not worth_retrying(error):
                    raise
                self._chooser.failed(queue.broker_name)
                if isinstance(error, NetworkError):
                    self._session.refresh_routes_soon()
                attempts.append((queue.broker_name, error))
                if only_elsewhere(error) and tried.issuperset(one.broker_name for one in queues):
                    break
                continue
            self._chooser.succeeded(queue.broker_name)
            if result.status is SendStatus.OK or not self.options.retry_when_not_flushed:
                return result
            unsure = result
        if unsure is not None:
            return unsure
        raise SendFailed(_failed_text(outgoing.topic, attempts), tuple(attempts))


def _recalled(handle: object) -> RecallHandle:
    """The message to recall. Raises BadMessage."""
    if not isinstance(handle, str) or not handle:
        raise BadMessage(
            f"a recall handle is the recall_handle of a message that waits for a time of its own, "
            f"got {handle!r}"
        )
    try:
        return decode_handle(handle)
    except ValueError as error:
        raise BadMessage(f"{handle!r} is no recall handle: {error}") from error


def _failed_text(topic: str, attempts: Sequence[tuple[str, ClientError]]) -> str:
    """The failures of the attempts; a failure of several attempts is named once."""
    ends = "; ".join(dict.fromkeys(f"{name}: {error}" for name, error in attempts))
    count = "1 attempt" if len(attempts) == 1 else f"{len(attempts)} attempts"
    return f"topic {topic!r}: {count} failed: {ends}"


def _choose(
    queues: Sequence[MessageQueue], message: Message, key: str | None, selector: Selector | None
) -> MessageQueue | None:
    if selector is not None:
        return selector(queues, message)
    if key is not None:
        return queue_by_key(queues, java_hash(key))
    return None
