"""Owns the background tasks of a client; no other module of this folder creates tasks.

A task that fails is logged with its traceback and remembered in `failures`; it never vanishes, and
it never takes the others with it: a push consumer whose heartbeat loop met a bug keeps consuming.
`close()` cancels what is left and waits for it, so no task runs after it has returned.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, TypeVar

from aerobee.client.errors import ClientClosed

log = logging.getLogger(__name__)

T = TypeVar("T")
AnyTask = asyncio.Task[Any]


class TaskOwner:
    """Creates, watches and ends the tasks of one client; belongs to one event loop."""

    def __init__(self, name: str) -> None:
        self.failures: list[BaseException] = []
        self._name = name
        self._tasks: set[AnyTask] = set()
        self._closed = False

    def spawn(
        self,
        work: Coroutine[Any, Any, T],
        name: str,
        *,
        expected: type[BaseException] | tuple[type[BaseException], ...] = (),
    ) -> asyncio.Task[T]:
        """Run `work` as a task of this owner; after `close()` it is cancelled at once.

        `expected` errors are not logged: somebody awaits the task and handles them.
        """
        task = asyncio.get_running_loop().create_task(work, name=f"{self._name}:{name}")
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, expected))
        if self._closed:
            task.cancel()
        return task

    def _ended(
        self, expected: type[BaseException] | tuple[type[BaseException], ...], task: AnyTask
    ) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, expected):
            return
        self.failures.append(error)
        log.error("background task failed task=%s", task.get_name(), exc_info=error)

    async def close(self) -> None:
        """Cancel every task and wait until all of them ended."""
        self._closed = True
        current = asyncio.current_task()
        while waiting := [task for task in self._tasks if task is not current]:
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting)


async def wait_shared(task: asyncio.Task[T]) -> T:
    """Wait for a task that several callers wait for, and return its result. If a caller is
    cancelled, the task goes on.

    Raises ClientClosed when the owner of the task was closed meanwhile.
    """
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        caller = asyncio.current_task()
        if task.cancelled() and caller is not None and not caller.cancelling():
            raise ClientClosed("the client was closed meanwhile") from None
        raise


async def wait_all(tasks: Sequence[asyncio.Task[T]]) -> list[T]:
    """Wait until all tasks have ended; then return their results, or raise the first error.

    If the caller is cancelled, the tasks are cancelled too. Raises ClientClosed as `wait_shared`
    does.
    """
    if not tasks:
        return []
    try:
        await asyncio.wait(tasks)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        raise
    if any(task.cancelled() for task in tasks):
        raise ClientClosed("the client was closed meanwhile")
    return [task.result() for task in tasks]


class Periodic:
    """Calls `work` every `interval_s` seconds, and at once when `wake()` is called.

    Wakes that come while `work` runs are folded into one further run. An exception of `work` is
    logged and the rhythm goes on: the next round may find the network working.
    """

    def __init__(self, interval_s: float, work: Callable[[], Awaitable[None]], name: str) -> None:
        assert interval_s > 0
        self.name = name
        self._interval_s = interval_s
        self._work = work
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Run the work as soon as the current round, if any, has ended."""
        self._woken.set()

    async def run(self) -> None:
        """The loop; give it to `TaskOwner.spawn`."""
        while True:
            # Before Python 3.12 `asyncio.wait_for` may swallow a cancellation.
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._woken.wait()
            self._woken.clear()
            try:
                await self._work()
            except Exception:  # top of a task: one failed round must not end the rhythm
                log.exception("periodic work failed name=%s", self.name)


class PlainCalls:
    """Calls functions of the program: coroutine functions on the loop, plain functions in threads.
    The threads are made at the first call of a plain function."""

    def __init__(self, threads: int, name: str) -> None:
        self._count = threads
        self._name = name
        self._threads: ThreadPoolExecutor | None = None

    async def call(self, function: Callable[..., Any], *arguments: object) -> object:
        """Call the function and return its result, or raise its error."""
        call = getattr(function, "__call__", function)  # noqa: B004  an object may be a function
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call):
            return await function(*arguments)
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._count, thread_name_prefix=self._name)
        loop = asyncio.get_running_loop()
        result = await loop.run_in_executor(self._threads, function, *arguments)
        # A plain function (a lambda, a partial) may have returned a coroutine.
        return await result if inspect.isawaitable(result) else result

    def close(self) -> None:
        """Take no more calls; a call at work in a thread cannot be stopped and is left alone."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


class FirstAlone:
    """Lets turns of a key run alone until a turn has ended without an exception; after that,
    several run at a time."""

    def __init__(self) -> None:
        self._done: set[Hashable] = set()
        self._first: dict[Hashable, asyncio.Lock] = {}

    def is_done(self, key: Hashable) -> bool:
        """Whether a first turn has ended without an exception."""
        return key in self._done

    def skip(self, key: Hashable) -> None:
        """Count the first turn of the key as done, so that no turn waits for it."""
        self._done.add(key)

    @asynccontextmanager
    async def turn(self, key: Hashable) -> AsyncIterator[None]:
        """Begin a turn: the first turn at once, any other when the turn before it has
        failed, or a turn has ended without an exception."""
        if key not in self._done:
            async with self._first.setdefault(key, asyncio.Lock()):
                if key not in self._done:
                    yield
                    self._done.add(key)
                    return
        yield
