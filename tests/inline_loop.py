"""An event loop of which everything is done at once, for tables that tests change without a loop,
and what drives handlers that are generators (broker/routing/router.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any, TypeVar, cast

R = TypeVar("R")


class _InlineLoop:
    """What a table asks of an event loop."""

    def get_debug(self) -> bool:
        return False

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=cast("asyncio.AbstractEventLoop", self))

    def call_soon(self, call: Callable[..., object], *args: object, **_context: object) -> None:
        call(*args)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        raise AssertionError(context)

    def run_in_executor(
        self, _pool: object, call: Callable[..., object], *args: object
    ) -> asyncio.Future[Any]:
        future = self.create_future()
        try:
            future.set_result(call(*args))
        except Exception as error:  # noqa: BLE001 - as an executor does
            future.set_exception(error)
        return future


INLINE = cast("asyncio.AbstractEventLoop", _InlineLoop())


def made(creation: asyncio.Future[None] | None) -> None:
    """What was to be made is there."""
    if creation is not None:
        creation.result()


def drive(steps: Generator[asyncio.Future[Any] | None, None, R] | R) -> R:
    """What a handler answers, all that it waits for being done already."""
    if not isinstance(steps, Generator):
        return steps
    try:
        while True:
            waited = next(steps)
            assert waited is None or waited.done()
    except StopIteration as ended:
        return cast("R", ended.value)
