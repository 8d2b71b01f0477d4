"""Gives out the delayed messages of one level that are due: one turn's work.

A message that cannot be put now (disk full) is tried again after `_RETRY_S`, and its level waits
for it: nothing is lost, nothing overtakes. One that can never be put (its properties or its topic
break the store's rules) is passed over and named in the log, or its level would stand still for
ever, as it does in the reference. Loop thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from aerobee.broker.delay.progress import DelayProgress
from aerobee.broker.stats import MESSAGE_DELAY, BrokerStats
from aerobee.protocol.message.record import StoreMessage
from aerobee.protocol.names import SCHEDULE_GROUP, SCHEDULE_TOPIC
from aerobee.store.errors import (
    MessageIllegal,
    PropertiesTooLarge,
    StoreBroken,
    StoreClosed,
    StoreError,
)
from aerobee.store.reading.delay_queues import DelayQueues, Due, Look
from aerobee.store.segments.results import PutResult

log = logging.getLogger("aerobee.broker.delay")

_RETRY_S = 0.1


class DelayStore(Protocol):
    """What is asked of the store."""

    @property
    def delays(self) -> DelayQueues: ...
    def put(self, message: StoreMessage, /) -> PutResult: ...


class Level:
    """A level's head: when it is due, and what has become of those before it."""

    __slots__ = ("delivered", "due_ms", "failures", "not_before", "number", "offset", "passed_over")

    def __init__(self, number: int, offset: int) -> None:
        self.number = number
        self.offset = offset
        # Wall time at which there is something to be done; None when nothing waits.
        self.due_ms: int | None = None
        self.not_before = 0.0  # loop time
        self.failures = 0  # of the message at the head
        self.delivered = 0
        self.passed_over = 0


class Delivery:
    """Puts what is due; `time` is the loop's. `appended` is called after puts."""

    def __init__(
        self,
        store: DelayStore,
        progress: DelayProgress,
        stats: BrokerStats,
        appended: Callable[[], None],
        time: Callable[[], float],
        *,
        count: bool,
    ) -> None:
        self._put = store.put
        self._queues = store.delays
        self._progress = progress
        self._stats = stats
        self._appended = appended
        self._time = time
        self._count = count
        self.put_failures = 0

    def serve(self, level: Level, now_ms: int) -> None:
        """Give out some of what is due. Raises StoreBroken, StoreClosed; OSError from reading."""
        look = self._queues.look(level.number, level.offset, now_ms)
        end: int | None = None
        reached = level.offset
        try:
            for due in look.due:
                reached = due.queue_offset
                end = self._put_due(level, due) or end
            reached = look.next_offset
            level.passed_over += look.passed_over
            self._wait_for_next(level, look, now_ms)
        except StoreError as error:
            self._put_failed(level, reached, error)
        finally:
            if reached != level.offset or end is not None:
                level.offset = reached
                self._progress.moved(level.number, reached, end)
            if end is not None:
                self._appended()

    def _put_due(self, level: Level, due: Due) -> int | None:
        """Store one where it goes; the log offset behind it, None if it can never be stored."""
        message = due.message
        try:
            result = self._put(message)
        except (MessageIllegal, PropertiesTooLarge) as error:
            level.passed_over += 1
            log.error(
                "delayed message cannot be delivered level=%d queue_offset=%d topic=%s reason=%s",
                level.number, due.queue_offset, message.topic, error,
            )  # fmt: skip
            return None
        level.delivered += 1
        level.failures = 0
        if self._count:
            stats = self._stats
            stats.stored(stats.topic(message.topic, MESSAGE_DELAY), 1, result.size)
            given_out = stats.consumer(SCHEDULE_GROUP, SCHEDULE_TOPIC)
            given_out.messages_out += 1
            given_out.bytes_out += result.size
        return result.end

    def _put_failed(self, level: Level, queue_offset: int, error: StoreError) -> None:
        self.put_failures += 1
        level.failures += 1
        if isinstance(error, StoreBroken | StoreClosed):
            raise error
        level.not_before = self._time() + _RETRY_S
        if level.failures & (level.failures - 1) == 0:  # 1, 2, 4, 8, ...
            log.error(
                "delayed message not delivered, will be tried again level=%d queue_offset=%d "
                "tries=%d why=%s", level.number, queue_offset, level.failures, error,
            )  # fmt: skip

    def _wait_for_next(self, level: Level, look: Look, now_ms: int) -> None:
        level.due_ms = None if look.wait_ms is None else now_ms + look.wait_ms
        hidden = look.wait_ms is None and look.next_offset < self._queues.end(level.number)
        if hidden:  # stored, but not visible before its sync
            level.due_ms = now_ms
        no_step = look.wait_ms == 0 and look.next_offset == level.offset
        if hidden or no_step:
            level.not_before = self._time() + _RETRY_S
