"""Things of which the first must have ended before others of its kind begin."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager


class FirstAlone:
    """For each key one turn ends, without an exception, before there are several at a time."""

    def __init__(self) -> None:
        self._done: set[Hashable] = set()
        self._first: dict[Hashable, asyncio.Lock] = {}

    def is_done(self, key: Hashable) -> bool:
        """Whether a first turn has ended."""
        return key in self._done

    def skip(self, key: Hashable) -> None:
        """Others need not wait: somebody else has had the first turn."""
        self._done.add(key)

    @asynccontextmanager
    async def turn(self, key: Hashable) -> AsyncIterator[None]:
        """A turn; it waits for the first one, or is it."""
        if key not in self._done:
            async with self._first.setdefault(key, asyncio.Lock()):
                if key not in self._done:
                    yield
                    self._done.add(key)
                    return
        yield
