"""One assigned queue of a push consumer: its pulled messages, those done, the offset to commit.

Life of an `ProcessQueue`: made by a rebalance with the offset to start at, filled by its puller,
emptied by the listeners, `dropped` by a later rebalance. Invariants:

- Offsets come in rising order (one puller) and finish in any order (many listeners). What may be
  committed is the smallest offset not yet finished, so that a crash repeats messages, never skips.
- A `dropped` queue takes no more messages and starts no more listeners. Those at work may still
  finish and move the offset, until the queue is `released`: then it is somebody else's.

Everything runs on the client's event loop; no locks.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from aerobee.client.message import ReceivedMessage
from aerobee.protocol.bodies.common import MessageQueue


class ProcessQueue:
    """Bookkeeping of one assigned queue; see the module's text."""

    def __init__(self, queue: MessageQueue, start_offset: int) -> None:
        self.queue = queue
        self.pull_offset = start_offset
        self.committable = start_offset
        self.dropped = False
        self.released = False
        self.cached_count = 0
        self.cached_bytes = 0
        self.in_listener = 0
        self.locked_at: float | None = None
        self.last_pull_at: float = 0.0
        self.last_consume_at: float = 0.0
        self._waiting: deque[int] = deque()  # offsets handed out, rising
        # Bytes by message, for which its identity stands: a listener may change what it has.
        self._held: dict[int, int] = {}
        self._finished: set[int] = set()  # of those, the ones done out of turn
        self._changed = asyncio.Event()

    def add(self, messages: Sequence[ReceivedMessage]) -> None:
        """Take what a pull brought; offsets rise."""
        for message in messages:
            self._waiting.append(message.queue_offset)
            self._held[id(message)] = message.held_bytes
            self.cached_bytes += message.held_bytes
        self.cached_count += len(messages)

    def finish(self, messages: Iterable[ReceivedMessage]) -> int:
        """These are consumed, or safely sent back; returns the offset that may be committed."""
        for message in messages:
            self._finished.add(message.queue_offset)
            self.cached_bytes -= self._held.pop(id(message))
            self.cached_count -= 1
        last = None
        while self._waiting and self._waiting[0] in self._finished:
            last = self._waiting.popleft()
            self._finished.discard(last)
        if self._waiting:
            self.committable = self._waiting[0]
        elif last is not None:
            # Messages after the last were filtered out, or there would be more to do.
            self.committable = max(last + 1, self.pull_offset)
        self.signal()
        return self.committable

    def skip_to(self, next_offset: int) -> bool:
        """Everything up to `next_offset` was filtered out; True when that may be committed."""
        if self.cached_count:
            return False
        self.committable = max(self.committable, next_offset)
        return True

    @property
    def span(self) -> int:
        """Distance between the oldest unfinished offset and the newest pulled."""
        return self._waiting[-1] - self._waiting[0] if self._waiting else 0

    @property
    def oldest_offset(self) -> int:
        """The oldest unfinished offset, or 0 when nothing is cached."""
        return self._waiting[0] if self._waiting else 0

    @property
    def newest_offset(self) -> int:
        """The newest cached offset, or 0 when nothing is cached."""
        return self._waiting[-1] if self._waiting else 0

    def drop(self) -> None:
        """The queue is no longer ours: wakes whoever waits on it."""
        self.dropped = True
        self.signal()

    def signal(self) -> None:
        """Something changed: let every `wait_until` look again."""
        self._changed.set()

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds or the queue is dropped; looked at after each change."""
        while not self.dropped and not condition():
            self._changed.clear()
            await self._changed.wait()

    async def pause(self, seconds: float) -> None:
        """Wait that long, or until the queue is dropped."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.wait_until(lambda: False)

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no listener holds a message of this queue; False when time ran out."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.in_listener:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True
