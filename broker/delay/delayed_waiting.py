"""Where delayed messages, and those with a time of their own, wait (`Waits` of second_step)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from aerobee.broker.delay.delay_service import ScheduleMessageService
from aerobee.broker.delay.timer import TimerService
from aerobee.broker.second_step.second_step import DELAYED, TIMED
from aerobee.broker.second_step.waiting_sources import WaitingRecords
from aerobee.store.message_store import MessageStore
from aerobee.store.reading.timed_messages import RECALLS_FROM

_READ_ENTRIES: Final = 512


class DelayedWaiting(WaitingRecords):
    """In the queues of the levels; retries are among them."""

    kind = DELAYED

    def __init__(self, delays: ScheduleMessageService, store: MessageStore) -> None:
        super().__init__(store.reader.record_at)
        self._delays = delays
        self._queues = store.delays

    def oldest(self) -> Iterator[int | None]:
        """See `Waits.oldest`."""
        for level, offset, _ in self._delays.waiting():
            yield next(self._queues.places(level, offset), None)

    def places(self) -> Iterator[int]:
        """See `Waits.places`."""
        for level, offset, _ in self._delays.waiting():
            yield from self._queues.places(level, offset)

    def sizes(self) -> Iterator[int]:
        """See `Waits.sizes`."""
        for _, offset, end in self._delays.waiting():
            yield max(0, end - offset)


class TimedWaiting(WaitingRecords):
    """In the queues of the hours."""

    kind = TIMED

    def __init__(self, timer: TimerService, store: MessageStore) -> None:
        super().__init__(store.reader.record_at)
        self._timer = timer
        self._queues = store.timers

    def oldest(self) -> Iterator[int | None]:
        """See `Waits.oldest`; for an hour that has begun it may be a record that is done."""
        for queue_id in self._queues.ids():
            for log_offset in self._in_queue(queue_id):
                yield log_offset
                if log_offset is not None:
                    break

    def places(self) -> Iterator[int | None]:
        """See `Waits.places`; recalls that lie by themselves are left out."""
        for queue_id in self._queues.ids():
            if queue_id < RECALLS_FROM:
                yield from self._in_queue(queue_id)

    def sizes(self) -> Iterator[int]:
        """See `Waits.sizes`; for an hour that has begun, records that are done count too."""
        for queue_id in self._queues.ids():
            if queue_id < RECALLS_FROM:
                first = self._queues.first_from(queue_id, self._timer.begin_ms, 0)
                yield self._queues.readable(queue_id, first)

    def _in_queue(self, queue_id: int) -> Iterator[int | None]:
        """The places in one queue, and None after each part of it that was read."""
        begin_ms, is_done = self._timer.begin_ms, self._timer.is_done
        position = self._queues.first_from(queue_id, begin_ms, 0)
        while position < self._queues.span(queue_id).end:
            entries, position = self._queues.entries(queue_id, position, _READ_ENTRIES)
            for action_ms, log_offset in entries:
                if action_ms >= begin_ms and not is_done(action_ms, log_offset):
                    yield log_offset
            yield None
