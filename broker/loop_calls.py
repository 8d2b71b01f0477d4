"""Calls from worker threads to the loop that wait for their result.

For long work that has to touch the loop's state now and then: it runs on a worker, and each short
step that belongs to the loop is handed over.

Guarantees
- The call runs on the loop, in a turn of its own; the worker waits, and gets its result or the
  exception it raised.
- A loop that is closed is a RuntimeError in the worker; a loop that has stopped turning for good
  while a worker waits would keep that worker. The daemon ends its workers before its loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


class LoopCalls:
    """Hands calls to one loop. Worker threads only; on the loop itself it would wait for ever."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def __call__(self, call: Callable[[], T], /) -> T:
        """Run `call` on the loop and give its result."""
        result: Future[T] = Future()

        def run() -> None:
            try:
                result.set_result(call())
            except BaseException as error:  # noqa: BLE001 - raised again where it was asked for
                result.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        return result.result()
