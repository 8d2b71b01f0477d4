"""Delayed messages: put where they wait, given out when they are due (store/FORMAT.md 12.1).

    put -> SCHEDULE_TOPIC_XXXX, queue level-1 -> (due) -> put where they were sent to -> consumers

Levels are served in turns of the loop: one turn gives out some messages of one level
(`delay/delivery.py`), so that a level far behind holds up nobody. One timer serves all levels. It
runs out when the first waiting message is due, but never later than `_LOOK_S` from now, because the
wall clock may be set forth meanwhile; without a waiting message there is no timer, and `put` starts
it again.

Delivery is at least once: what was given out shortly before a kill is given out again
(`delay/progress.py`). Loop thread only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import NamedTuple

from aerobee.broker.delay.delivery import DelayStore, Delivery, Level
from aerobee.broker.delay.progress import DelayProgress
from aerobee.broker.stats import MESSAGE_DELAY, BrokerStats
from aerobee.protocol.message.record import StoreMessage
from aerobee.protocol.names import SCHEDULE_TOPIC
from aerobee.store.errors import StoreError
from aerobee.store.reading.delayed_messages import waiting_form
from aerobee.store.segments.results import PutResult

log = logging.getLogger("aerobee.broker.delay")

# As the reference, which looks at each level so often.
_LOOK_S = 0.1
# After an error that nobody expected.
_LONG_RETRY_S = 10.0


class LevelFigures(NamedTuple):
    """One level for /metrics and administrators; `end` counts what is stored, visible or not.
    `late_s`: for how long the first one that waits has been due."""

    level: int
    offset: int
    end: int
    delivered: int
    passed_over: int
    late_s: float


class ScheduleMessageService:
    """All levels of one broker. `appended` is to be called after puts."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        store: DelayStore,
        progress: DelayProgress,
        stats: BrokerStats,
        appended: Callable[[], None],
        clock_ms: Callable[[], int],
        *,
        count_deliveries: bool = True,
    ) -> None:
        self._loop = loop
        self._store_put = store.put
        self._queues = store.delays
        self._progress = progress
        self._stats = stats
        self._delivery = Delivery(
            store, progress, stats, appended, loop.time, count=count_deliveries
        )
        self._clock_ms = clock_ms
        # Before anything is put: a place beyond what the queue has would hide new messages.
        self._levels = {level.number: level for level in self._known_levels()}
        self._timer: asyncio.Handle | None = None
        self._last_served = 0
        self._running = self._closed = False

    # --- storing ----------------------------------------------------------------------------

    def put(self, message: StoreMessage) -> PutResult:
        """Store a message where it waits for its level; at once where it goes if it asks for none.

        Raises a StoreError; then nothing was changed.
        """
        waiting = waiting_form(message, self._queues.levels.highest)
        if waiting is None:
            return self._store_put(message)
        result = self._store_put(waiting)
        self._stats.stored(self._stats.topic(SCHEDULE_TOPIC, MESSAGE_DELAY), 1, result.size)
        self._stored(waiting.queue_id + 1, result.store_timestamp_ms)
        return result

    def _stored(self, number: int, store_ms: int) -> None:
        level = self._levels.get(number)
        if level is None:
            level = self._levels[number] = Level(number, 0)
            self._progress.moved(number, 0)
        if level.due_ms is None:
            level.due_ms = self._queues.levels.deliver_at_ms(number, store_ms)
            if self._timer is None:
                self._arm()

    # --- starting and stopping --------------------------------------------------------------

    def _known_levels(self) -> Iterator[Level]:
        """Where the progress says, less what is gone and what never was."""
        for number in sorted({*self._queues.waiting_levels(), *self._progress.table()}):
            first, end = self._queues.range_of(number)
            known = self._progress.of(number)
            offset = first if known is None else min(max(known, first), end)
            if known is not None and offset != known:
                log.error(
                    "delay progress corrected level=%d from=%d to=%d queue=%d-%d",
                    number, known, offset, first, end,
                )  # fmt: skip
                self._progress.moved(number, offset)
            if known is None and offset < end:
                log.warning(
                    "no progress of a delay level is known, all its messages will be delivered "
                    "level=%d from=%d count=%d", number, offset, end - offset,
                )  # fmt: skip
            yield Level(number, offset)

    def start(self) -> None:
        """Begin to give out."""
        self._running = True
        for level in self._levels.values():
            waiting = self._queues.end(level.number) - level.offset
            if waiting <= 0:
                continue
            level.due_ms = 0
            if level.number > self._queues.levels.highest:
                log.warning(
                    "messages of a level that messageDelayLevel has no more are delivered at the "
                    "time they were sent for level=%d count=%d", level.number, waiting,
                )  # fmt: skip
        self._arm()

    def close(self) -> None:
        """Give out nothing more, and read nothing more of the store."""
        self._closed = True
        self._halt()

    def _halt(self) -> None:
        self._running = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def save_last(self) -> None:
        """Write how far all is durable. For the store to call when it is closing; any thread."""
        text = self._progress.take_changes()
        if text is None:
            return
        try:
            self._progress.save(text)
        except OSError as error:
            log.error("delay progress not saved, messages will come twice why=%s", error)

    # --- turns ------------------------------------------------------------------------------

    def _arm(self) -> None:
        """Have the next turn when the first level is due; none if no level waits."""
        if not self._running:
            return
        now, now_ms = self._loop.time(), self._clock_ms()
        waits = [
            self._wait_s(level, level.due_ms, now, now_ms)
            for level in self._levels.values()
            if level.due_ms is not None
        ]
        if not waits:
            self._timer = None
        elif (wait_s := min(waits)) <= 0:
            self._timer = self._loop.call_soon(self._turn)
        else:
            self._timer = self._loop.call_later(min(wait_s, _LOOK_S), self._turn)

    def _wait_s(self, level: Level, due_ms: int, now: float, now_ms: int) -> float:
        wait_ms = self._queues.levels.wait_ms(level.number, due_ms, now_ms)
        return max(wait_ms / 1000, level.not_before - now)

    def _turn(self) -> None:
        """Serve the next level that is due, if any."""
        now, now_ms = self._loop.time(), self._clock_ms()
        ready = [
            level
            for level in self._levels.values()
            if level.due_ms is not None and self._wait_s(level, level.due_ms, now, now_ms) <= 0
        ]
        if ready:
            # In turns: the first one behind the level that was served last.
            level = min(ready, key=lambda one: (one.number <= self._last_served, one.number))
            self._last_served = level.number
            self._serve(level, now_ms)
        self._arm()

    def _serve(self, level: Level, now_ms: int) -> None:
        try:
            self._delivery.serve(level, now_ms)
        except StoreError as error:
            log.error("delayed messages wait for a restart why=%s", error)
            self._halt()
        except Exception:
            log.exception("delayed delivery failed, will be tried again level=%d", level.number)
            level.not_before = self._loop.time() + _LONG_RETRY_S

    # --- figures ----------------------------------------------------------------------------

    @property
    def highest_level(self) -> int:
        """The last level of the settings."""
        return self._queues.levels.highest

    @property
    def put_failures(self) -> int:
        """Due messages that could not be stored and were or will be tried again."""
        return self._delivery.put_failures

    def figures(self) -> list[LevelFigures]:
        """All levels that have or had messages, in order."""
        now_ms = self._clock_ms()
        return [self._figures_of(level, now_ms) for _, level in sorted(self._levels.items())]

    def _figures_of(self, level: Level, now_ms: int) -> LevelFigures:
        end = max(self._queues.end(level.number), level.offset)
        due_ms = None
        if not self._closed:
            due_ms = self._queues.delivery_time(level.number, level.offset)
        late_s = 0.0 if due_ms is None else max(0, now_ms - due_ms) / 1000
        return LevelFigures(
            level.number, level.offset, end, level.delivered, level.passed_over, late_s
        )
