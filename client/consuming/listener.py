"""Calling the program's listener: coroutine functions on the loop, plain functions in threads.

A listener gets a list of messages of one queue, in queue order. Returning None or
`Consumed.SUCCESS` says all are done; `Consumed.RETRY` or an exception that none is. Whatever else
it returns is taken for a mistake in the program, and the messages are redelivered: better twice
than lost.
"""

from __future__ import annotations

import asyncio
import enum
import inspect
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

from aerobee.client.message import ReceivedMessage, queue_text

log = logging.getLogger(__name__)


class Consumed(enum.Enum):
    """What became of the messages given to a listener."""

    SUCCESS = "success"
    RETRY = "retry"


ListenerResult = Consumed | None
Listener = Callable[[list[ReceivedMessage]], Awaitable[ListenerResult] | ListenerResult]


class ListenerCall:
    """A listener with the threads it may need; what it raises comes out as its outcome."""

    def __init__(self, listener: Listener, threads: int) -> None:
        self._listener = listener
        self._threads: ThreadPoolExecutor | None = None
        call = getattr(listener, "__call__", listener)  # noqa: B004  an object may be a listener
        if not (inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(call)):
            self._threads = ThreadPoolExecutor(threads, thread_name_prefix="aerobee-listener")

    async def outcome(self, messages: list[ReceivedMessage]) -> tuple[Consumed, Exception | None]:
        """What became of the messages, and what the listener raised, if it did."""
        try:
            result = await self._call(messages)
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

    async def _call(self, messages: list[ReceivedMessage]) -> object:
        if self._threads is None:
            result = self._listener(messages)
        else:
            loop = asyncio.get_running_loop()
            result = await loop.run_in_executor(self._threads, self._listener, messages)
        # A plain function may still have made a coroutine (a lambda, a partial).
        return await result if inspect.isawaitable(result) else result

    def close(self) -> None:
        """Take no more calls; a call at work in a thread cannot be stopped and is left alone."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
