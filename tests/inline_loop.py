"""An event loop that does everything at once, for tables that tests change without a loop, and
`drive`, which runs handlers that are generators (broker/routing/router.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any, TypeVar, cast

R = TypeVar("R")


class _InlineLoop:
    """The methods of an event loop that a table calls."""

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
    """Fail unless the creation is over and has gone well."""
    if creation is not None:
        creation.result()


def drive(steps: Generator[asyncio.Future[Any] | None, None, R] | R) -> R:
    """The answer of a handler. Everything that the handler waits for has to be done already."""
    if not isinstance(steps, Generator):
        return steps
    try:
        while True:
            waited = next(steps)
            assert waited is None or waited.done()
    except StopIteration as ended:
        return cast("R", ended.value)
