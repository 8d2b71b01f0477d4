"""Calling the program's listener: coroutine functions on the loop, plain functions in threads.

A listener gets a list of messages of one queue, in queue order. None or `Consumed.SUCCESS`,
returned, says that all messages are done; `Consumed.RETRY` or an exception says that no message is.
Any other value that it returns is taken for a mistake in the program, and the messages are
redelivered: better twice than lost. A message whose body cannot be made plain is not handed over at
all, and has failed.
"""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Awaitable, Callable, Iterator

from aerobee.client.connections.background import PlainCalls
from aerobee.client.message import ReceivedMessage, UnreadableMessage, queue_text

log = logging.getLogger(__name__)


# Without a package each message of a topic may be unreadable.
_UNREADABLE_SAID_S = 60.0


class Consumed(enum.Enum):
    """The fate of the messages given to a listener."""

    SUCCESS = "success"
    RETRY = "retry"


ListenerResult = Consumed | None
Listener = Callable[[list[ReceivedMessage]], Awaitable[ListenerResult] | ListenerResult]


def batches(messages: list[ReceivedMessage], size: int) -> Iterator[list[ReceivedMessage]]:
    """The messages in order, `size` at a time; a message that cannot be read is alone, so that no
    other fails with it."""
    batch: list[ReceivedMessage] = []
    for message in messages:
        alone = isinstance(message, UnreadableMessage)
        if batch and (alone or len(batch) == size):
            yield batch
            batch = []
        batch.append(message)
        if alone:
            yield batch
            batch = []
    if batch:
        yield batch


class ListenerCall:
    """A listener with the threads it may need; what it raises comes out as its outcome."""

    def __init__(self, listener: Listener, threads: int) -> None:
        self._listener = listener
        self._threads = PlainCalls(threads, "aerobee-listener")
        self._unreadable = 0  # since it was last said
        self._unreadable_said_at = -_UNREADABLE_SAID_S

    async def outcome(self, messages: list[ReceivedMessage]) -> tuple[Consumed, Exception | None]:
        """The fate of the messages, and what the listener raised, if it did.

        If any of them cannot be read, the listener is not called; all have failed.
        """
        for message in messages:
            if isinstance(message, UnreadableMessage):
                self._say_unreadable(message)
                return Consumed.RETRY, message.why
        try:
            result = await self._threads.call(self._listener, messages)
        except Exception as error:  # the program's fault, which ends neither queue nor consumer
            first = messages[0]
            log.exception(
                "listener failed topic=%s queue=%s offset=%d messages=%d",
                first.topic,
                queue_text(first.queue),
                first.queue_offset,
                len(messages),
            )
            return Consumed.RETRY, error
        if result is None:
            return Consumed.SUCCESS, None
        if isinstance(result, Consumed):
            return result, None
        log.error("listener must return Consumed or None, got %r; redelivering", result)
        return Consumed.RETRY, None

    def _say_unreadable(self, message: UnreadableMessage) -> None:
        self._unreadable += 1
        now = time.monotonic()
        if now - self._unreadable_said_at < _UNREADABLE_SAID_S:
            return
        log.error(
            "message cannot be read and counts as failed topic=%s queue=%s offset=%d since_last=%d "
            "why=%s",
            message.topic,
            queue_text(message.queue),
            message.queue_offset,
            self._unreadable,
            message.why,
        )
        self._unreadable, self._unreadable_said_at = 0, now

    def close(self) -> None:
        """Take no more calls."""
        self._threads.close()
