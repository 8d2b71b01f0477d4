"""Delayed messages: stored where they wait, delivered when they are due (store/FORMAT.md 12.1).

    put -> SCHEDULE_TOPIC_XXXX, queue level-1 -> (due) -> put where they were sent to -> consumers

One turn (`turns.py`) delivers some messages of one level, so that a level far behind holds up no
other. One timer serves all levels. It runs out when the first waiting message is due, but never
later than `_CHECK_S` from now; without a waiting message there is no timer, and `put` starts it
again.

A message that can never be put (its properties or its topic break the store's rules) is passed over
and named in the log, or its level would stand still for ever, as it does in RocketMQ.

Delivery is at least once: what was delivered shortly before a kill is delivered again
(`delivery_progress.py`). Loop thread only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from aerobee.broker.appending.appending import Appending
from aerobee.broker.broker_stats import MESSAGE_DELAY
from aerobee.broker.delay.delivery_progress import DelayProgress
from aerobee.broker.delay.turns import DeliveryTurns, Head
from aerobee.broker.routing.router import Handler
from aerobee.broker.second_step.second_step import DELAYED, SecondStep
from aerobee.broker.tables.retries_waiting import RetriesWaiting
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.frames.command import Command, encode_success
from aerobee.protocol.frames.fastjson import dumps
from aerobee.protocol.message.record import StoreMessage
from aerobee.protocol.names import SCHEDULE_GROUP, SCHEDULE_TOPIC, is_retry_topic
from aerobee.remoting.connections.connection import Connection
from aerobee.store.errors import MessageIllegal, PropertiesTooLarge, StoreError
from aerobee.store.reading.delay_queues import Due, Look
from aerobee.store.reading.delayed_messages import waiting_form
from aerobee.store.segments.results import PutResult

log = logging.getLogger("aerobee.broker.delay")

# RocketMQ looks at each level as often.
_CHECK_S = 0.1


class LevelStats(NamedTuple):
    """One level for /metrics and administrators; `end` counts what is stored, visible or not.
    `late_s`: for how long the first waiting message has been due."""

    level: int
    offset: int
    end: int
    delivered: int
    passed_over: int
    late_s: float


@dataclass(slots=True, eq=False, kw_only=True)
class _Level(Head):
    """The message at the head of a level, and what has become of those before it."""

    number: int
    offset: int
    # Wall time at which there is something to be done; None when nothing waits.
    due_ms: int | None = None
    delivered: int = 0
    passed_over: int = 0

    @property
    def shown(self) -> str:
        return f" delay_level={self.number}"


class ScheduleMessageService(DeliveryTurns[_Level, DelayProgress]):
    """All levels of one broker."""

    def __init__(
        self,
        appending: Appending,
        *,
        loop: asyncio.AbstractEventLoop,
        progress: DelayProgress,
        second_step: SecondStep,
        retries: RetriesWaiting,
    ) -> None:
        super().__init__(loop, appending.clock_ms, progress, log, "delayed")
        self._second_step = second_step
        self._retries = retries
        self._commit_log = appending.store.log
        self._queues = appending.store.delays
        self._stats = appending.stats
        self._reput = appending.reput
        self._count_deliveries = appending.settings.schedule_message_stats
        self._levels: dict[int, _Level] = {}
        self._last_served = 0
        self._closed = False
        if appending.role.is_slave:
            self._show_progress()
        else:
            self._load()

    # --- storing ----------------------------------------------------------------------------

    def put(self, message: StoreMessage) -> PutResult:
        """Store a message where it waits for its level; one without a level, where it goes.

        Raises a StoreError; then nothing was changed.
        """
        waiting = waiting_form(message, self._queues.levels.highest)
        if waiting is None:
            return self._commit_log.put(message)
        result = self._commit_log.put(waiting)
        self._stats.stored(
            self._stats.topic(SCHEDULE_TOPIC, MESSAGE_DELAY), 1, result.size, waiting.queue_id
        )
        level = waiting.queue_id + 1
        if is_retry_topic(message.topic):
            self._retries.waits(level, message.topic)
        self._stored(level, result.store_timestamp_ms)
        return result

    def _stored(self, number: int, store_ms: int) -> None:
        level = self._levels.get(number)
        if level is None:
            level = self._levels[number] = _Level(number=number, offset=0)
            self._progress.moved(number, 0)
        if level.due_ms is None:
            level.due_ms = self._queues.levels.deliver_at_ms(number, store_ms)
            if self._timer is None:
                self._arm()

    # --- starting and stopping --------------------------------------------------------------

    def _known_levels(self) -> Iterator[_Level]:
        """Each level at its place in the progress file, corrected to what its queue has. A file
        that is an older one is completed from the queues."""
        added: list[str] = []
        for number in sorted({*self._queues.waiting_levels(), *self._progress.table()}):
            first, end = self._queues.range_of(number)
            known = self._progress.of(number)
            offset = first if known is None else min(max(known, first), end)
            if known is not None and offset != known:
                log.error(
                    "delay progress corrected delay_level=%d from=%d to=%d queue=%d-%d",
                    number, known, offset, first, end,
                )  # fmt: skip
                self._progress.moved(number, offset)
            if known is None and offset < end:
                log.warning(
                    "no progress of a delay level is known, all its messages will be delivered "
                    "delay_level=%d from=%d count=%d", number, offset, end - offset,
                )  # fmt: skip
            if known is None and self._progress.from_backup:
                self._progress.moved(number, offset)
                added.append(f"{number} (from {offset} of {first}-{end})")
            yield _Level(number=number, offset=offset)
        if added:
            log.warning(
                "levels added to the delay progress from their queues, because the table is that "
                "of its backup path=%s levels=%s", self._progress.path, ", ".join(added),
            )  # fmt: skip

    def _load(self) -> None:
        """Read where the levels are, before anything is put: a place beyond what the queue has
        would hide new messages."""
        self._levels = {level.number: level for level in self._known_levels()}
        for level in self._levels.values():
            self._retries.begin(level.number, level.offset, self._queues.end(level.number))

    def _show_progress(self) -> None:
        """Have the levels where the progress says, whether or not their queues have come so far:
        the log and the progress of a slave are copied one after the other."""
        places = self._progress.table()
        self._levels = {number: _Level(number=number, offset=at) for number, at in places.items()}

    # --- the role (`background/leading.py`)

    def lead(self, *, anew: bool) -> None:
        """See `Led`."""
        if anew:
            self._load()
        self.start()

    def follow(self) -> None:
        """See `Led`."""
        self._halt()
        self._retries.clear()
        self._show_progress()

    def replace(self, places: Mapping[int, int]) -> None:
        """Take the next queue offset of each level from the master, when the log has what the
        master had by then (see `DurableProgress.replace`). On a slave only."""
        self._progress.replace(places)
        self._show_progress()

    def start(self) -> None:
        """Begin to deliver."""
        self._running = True
        for level in self._levels.values():
            waiting = self._queues.end(level.number) - level.offset
            if waiting <= 0:
                continue
            level.due_ms = 0
            if level.number > self._queues.levels.highest:
                log.warning(
                    "messages of a level that messageDelayLevel has no more are delivered at the "
                    "time they were sent for delay_level=%d count=%d", level.number, waiting,
                )  # fmt: skip
        self._arm()

    def close(self) -> None:
        """Deliver nothing more, and read nothing more of the store."""
        self._closed = True
        self._retries.close()
        self._halt()

    # --- turns ------------------------------------------------------------------------------

    def _next_turn(self) -> float | None:
        now, now_ms = self._loop.time(), self._clock_ms()
        waits = [
            self._wait_s(level, level.due_ms, now, now_ms)
            for level in self._levels.values()
            if level.due_ms is not None
        ]
        return now + min(*waits, _CHECK_S) if waits else None

    def _wait_s(self, level: _Level, due_ms: int, now: float, now_ms: int) -> float:
        wait_ms = self._queues.levels.wait_ms(level.number, due_ms, now_ms)
        return max(wait_ms / 1000, level.not_before - now)

    def _due(self, now_ms: int) -> _Level | None:
        """The next level that is due, if any."""
        now = self._loop.time()
        ready = [
            level
            for level in self._levels.values()
            if level.due_ms is not None and self._wait_s(level, level.due_ms, now, now_ms) <= 0
        ]
        if not ready:
            return None
        # In turns: the first level after the level that was served last.
        level = min(ready, key=lambda one: (one.number <= self._last_served, one.number))
        self._last_served = level.number
        return level

    # --- delivery ---------------------------------------------------------------------------

    def _serve(self, level: _Level, now_ms: int) -> None:
        look = self._queues.look(level.number, level.offset, now_ms)
        end: int | None = None
        reached = level.offset
        try:
            for due in look.due:
                reached = due.queue_offset
                end = self._put_due(level, due) or end
                if is_retry_topic(due.message.topic):
                    self._retries.done(level.number, due)
            reached = look.next_offset
            level.passed_over += look.passed_over
            self._wait_for_next(level, look, now_ms)
            if level.due_ms is None:
                self._retries.recount(level.number, reached, self._queues.end(level.number))
            elif look.passed_over:
                self._retries.passed_over(level.number, level.offset, reached, look.passed_over)
        except StoreError as error:
            self._put_failed(level, error, f"{level.shown} queue_offset={reached}")
        finally:
            if reached != level.offset or end is not None:
                level.offset = reached
                self._progress.moved(level.number, reached, end)
                self._retries.reached(level.number, reached)
            if end is not None:
                self._reput.appended()

    def _put_due(self, level: _Level, due: Due) -> int | None:
        """Store a message where it was sent to. Returns the log offset after it, None for a message
        that can never be stored, or not any more."""
        message = due.message
        try:
            result = self._second_step.put(DELAYED, message, due.log_offset, self._commit_log.put)
        except (MessageIllegal, PropertiesTooLarge) as error:
            level.passed_over += 1
            log.error(
                "delayed message cannot be delivered delay_level=%d queue_offset=%d topic=%s "
                "reason=%s",
                level.number, due.queue_offset, message.topic, error,
            )  # fmt: skip
            return None
        level.failures = 0
        if result is None:
            return None
        level.delivered += 1
        if self._count_deliveries:
            stats = self._stats
            stats.stored(
                stats.topic(message.topic, MESSAGE_DELAY), 1, result.size, message.queue_id
            )
            delivered = stats.consumer(SCHEDULE_GROUP, SCHEDULE_TOPIC)
            delivered.messages_out += 1
            delivered.bytes_out += result.size
        return result.end

    def _wait_for_next(self, level: _Level, look: Look, now_ms: int) -> None:
        level.due_ms = None if look.wait_ms is None else now_ms + look.wait_ms
        hidden = look.wait_ms is None and look.next_offset < self._queues.end(level.number)
        if hidden:  # stored, but not visible before its sync
            level.due_ms = now_ms
        no_step = look.wait_ms == 0 and look.next_offset == level.offset
        if hidden or no_step:
            self._retry(level)

    # --- for administrators -----------------------------------------------------------------

    def waiting(self) -> list[tuple[int, int, int]]:
        """Each level, its next queue offset and the queue offset after its last message."""
        queues = self._queues
        return [
            (level.number, level.offset, queues.end(level.number))
            for level in self._levels.values()
        ]

    @property
    def highest_level(self) -> int:
        """The last level of the settings."""
        return self._queues.levels.highest

    def level_stats(self) -> list[LevelStats]:
        """All levels that have or had messages, in order."""
        now_ms = self._clock_ms()
        return [self._stats_of(level, now_ms) for _, level in sorted(self._levels.items())]

    def _stats_of(self, level: _Level, now_ms: int) -> LevelStats:
        end = max(self._queues.end(level.number), level.offset)
        due_ms = None
        if not self._closed:
            due_ms = self._queues.delivery_time(level.number, level.offset)
        late_s = 0.0 if due_ms is None else max(0, now_ms - due_ms) / 1000
        return LevelStats(
            level.number, level.offset, end, level.delivered, level.passed_over, late_s
        )

    def handlers(self) -> dict[int, Handler]:
        """The handlers by request code."""
        return {RequestCode.GET_ALL_DELAY_OFFSET: self._all_offsets}

    def _all_offsets(self, _connection: Connection, command: Command) -> bytes:
        """The next queue offset of each level, as slaves fetch them (protocol/WIRE.md 3.5, 4.8)."""
        return encode_success(command, self.copy())

    def copy(self) -> bytes:
        """The next queue offset of each level, for slaves: see `DelayProgress.read`."""
        levels = sorted(self._levels.items())
        return dumps({"offsetTable": {number: level.offset for number, level in levels}})
