"""One event loop in a thread of its own, shared by all blocking clients of a process.

It starts with the first client and ends with the last; `run` hands a coroutine over and waits for
its result. This is the only place of the client where threads meet the loop. It promises that

- coroutines of one thread start in the order of their calls;
- a coroutine is cancelled if its caller gives up (Ctrl-C) before the coroutine has ended;
- a call from the loop's own thread is refused, because it would wait for itself.

A thread does not outlive a fork. A child process starts a thread of its own, and clients that the
child inherited raise InheritedClient. The child neither uses nor closes their loop, because the
parent goes on with it, and both processes share its descriptors in the kernel.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from aerobee.client.errors import CallerError, InheritedClient
from aerobee.remoting.origin import Origin

T = TypeVar("T")


def new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's loop where it is installed, else asyncio's own."""
    try:
        import uvloop  # a good deal faster, and optional
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


class LoopThread:
    """The loop thread, with a count of its users; see `acquire` and `release`."""

    _lock = threading.Lock()
    _current: LoopThread | None = None
    # Threads of the process from which this process was forked: kept, so that nothing is finalized
    # here.
    _inherited: list[LoopThread] = []  # noqa: RUF012  of the class, on purpose

    def __init__(self) -> None:
        self._users = 0
        self._origin = Origin()
        self._loop = new_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="aerobee-client", daemon=True
        )

    @classmethod
    def acquire(cls) -> LoopThread:
        """The process's loop thread, started if it does not run; pair with `release`."""
        with cls._lock:
            if cls._current is None:
                cls._current = cls()
                cls._current._thread.start()
            cls._current._users += 1
            return cls._current

    @classmethod
    def begin_in_child(cls) -> None:
        """Begin anew in a forked process: without a thread, with a lock that nobody holds."""
        cls._lock = threading.Lock()
        if cls._current is not None:
            cls._inherited.append(cls._current)
            cls._current = None

    @property
    def is_inherited(self) -> bool:
        """Whether this is the thread of another process, which does not run here."""
        return self._origin.is_elsewhere

    def release(self) -> None:
        """Give up the use of the thread; the last user ends it."""
        if self.is_inherited:
            return
        with self._lock:
            self._users -= 1
            if self._users:
                return
            LoopThread._current = None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start `work` on the loop; the future gets its result. Not to be called on the loop's own
        thread.

        Raises InheritedClient in a process that was forked from the loop's.
        """
        if self.is_inherited:
            work.close()
            raise InheritedClient(self._origin.inherited("the client"))
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the loop and return its result, or raise what it raised."""
        if threading.current_thread() is self._thread:
            work.close()
            raise CallerError("a blocking client cannot be called from its own event loop")
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


os.register_at_fork(after_in_child=LoopThread.begin_in_child)
