"""How many records wait for a time of their own, in hours that are not loaded (docs/operations.md).

Nothing is read but a few entries of each hour's queue: its entries lie in the order of the log, and
the hours that share it come one after the other. So where an hour begins, and where what a *past*
covers ends, is found by halving, once; the rest is numbering. A past that covers a part of an hour
may say how many records it left there; where it does not (the clock was set back), all count until
the hour is loaded. A record counts where that is not known: too many is harmless, too few would
have an operator believe that nothing waits.

Loop thread only.
"""

from __future__ import annotations

from aerobee.broker.delay.delivery_progress import Done, Past
from aerobee.store.reading.timed_messages import BUCKETS, HOUR_MS, RECALLS_FROM
from aerobee.store.reading.timer_queues import TimerQueues

# Places that are remembered: those of all hours, with a few pasts.
_MOST_PLACES = 8 * BUCKETS


class TimerBacklog:
    """How many records wait in the timer's queues of one broker."""

    def __init__(self, queues: TimerQueues) -> None:
        self._queues = queues
        # By queue, beginning of the hour and log offset; a place never changes.
        self._places: dict[tuple[int, int, int], int] = {}

    def messages(self, number: int, done: Done, position: int = 0) -> int:
        """Records of an hour that are not done, from queue offset `position` on."""
        queue_id, end_ms = number % BUCKETS, (number + 1) * HOUR_MS
        first = self._first(queue_id, number, done, position)
        count = self._queues.readable(queue_id, first)
        partly = [
            past
            for past in done.pasts
            if end_ms - HOUR_MS <= past.cursor.action_ms < end_ms and past.left is not None
        ]
        if not count or not partly:
            return count
        newest = max(partly, key=_below)
        behind = max(first, self._place(queue_id, number, newest.below))
        covered = count - self._queues.readable(queue_id, behind)
        return count - max(0, covered - (newest.left or 0))

    def recalls(self, number: int, done: Done, position: int = 0) -> int:
        """Recalls of an hour that are not done."""
        queue_id = RECALLS_FROM + number % BUCKETS
        first = self._first(queue_id, number, done, position)
        return self._queues.readable(queue_id, first)

    def _first(self, queue_id: int, number: int, done: Done, position: int) -> int:
        """The queue offset after all that pasts cover whole."""
        if not self._queues.readable(queue_id, position):
            return position
        end_ms = (number + 1) * HOUR_MS
        below = max([past.below for past in done.pasts if past.cursor.action_ms >= end_ms] or [0])
        return max(position, self._place(queue_id, number, below))

    def _place(self, queue_id: int, number: int, below: int) -> int:
        """Where the hour's records from the log offset `below` on begin."""
        key = queue_id, number, below
        place = self._places.get(key)
        if place is None:
            try:
                place = self._queues.first_from(queue_id, number * HOUR_MS, below)
            except OSError:
                # Loading the hour logs it. A stop goes on, and counts what is there.
                return 0
            if len(self._places) >= _MOST_PLACES:
                self._places.clear()
            self._places[key] = place
        return place


def _below(past: Past) -> int:
    return past.below
