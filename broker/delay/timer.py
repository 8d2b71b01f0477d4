"""Messages with a time of their own: stored where they wait, delivered when it has come
(docs/decisions/0016, store/FORMAT.md 12.4).

    put -> TIMER_TOPIC, queue of the hour -> (due) -> put where they were sent to -> consumers
                  ^                            `-> (delivery is further ahead) put again: rolled
                  '--------------------------------'

The hour that is now, and the next one shortly before it begins, are loaded: their entries are read
into the `Wheel`, eight bytes each. Everything happens in turns (`turns.py`), each of which loads,
puts in order or delivers a few.

One cursor says what is done (`delivery_progress.py`), which holds because nothing is ever stored
with an action time before it: a put raises it. A record that is stored but not visible yet
(SYNC_FLUSH) has the cursor wait for it, if its time is earlier than what would be delivered.

A message that cannot be put now is tried again, and all others wait for it. A message that can
never be put, or whose record is gone, is passed over and named in the log. Delivery is at least
once: what was delivered shortly before a kill is delivered again. Loop thread only.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from aerobee.broker.appending.appending import Appending
from aerobee.broker.broker_stats import MESSAGE_DELAY
from aerobee.broker.delay.backlog import TimerBacklog
from aerobee.broker.delay.delay_service import ScheduleMessageService
from aerobee.broker.delay.delivery_progress import Cursor, Done, TimerProgress
from aerobee.broker.delay.turns import DeliveryTurns, Head
from aerobee.broker.delay.wheel import Wheel
from aerobee.broker.second_step.second_step import TIMED, SecondStep
from aerobee.config.model import Settings
from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.errors import BadRequest, CorruptRecord
from aerobee.protocol.message.properties import (
    PROPERTY_REAL_TOPIC,
    PROPERTY_TIMER_DEL_UNIQUE_KEY,
    TIMER_PROPERTIES,
    decode_properties,
    real_queue,
)
from aerobee.protocol.message.record import Message, StoreMessage
from aerobee.protocol.message.record_layout import SYS_TRANSACTION_PREPARED
from aerobee.protocol.names import TIMER_TOPIC
from aerobee.store.errors import MessageIllegal, PropertiesTooLarge, StoreError, StoreNotWritable
from aerobee.store.reading.timed_messages import (
    BUCKETS,
    HOUR_MS,
    RECALLS_FROM,
    asked_ms,
    bucket_of,
    deliver_ms_of,
    delivered_form,
    next_action_ms,
    recalled_digest,
    rolled_form,
    waiting_form,
)
from aerobee.store.segments.results import PutResult

log = logging.getLogger("aerobee.broker.timer")

_MARKS = tuple(name.encode() + b"\x01" for name in TIMER_PROPERTIES)
# Messages delivered in one turn, and entries read.
_MOST_AT_ONCE = 32
_READ_ENTRIES = 2048
# The next hour is loaded this long before it begins.
_LEAD_MS = 300_000
# Looks at the wall clock, which may be set, with and without somebody waiting in this hour.
_CHECK_S = 0.1
_IDLE_S = 1.0
# For a record that is not visible yet.
_HIDDEN_S = 0.005
# The clock is set back by less than this without anybody taking notice.
_CLOCK_STEP_MS = 1000
_FOR_EVER = 1 << 62


@dataclass(slots=True)
class TimerCounts:
    """Counts of what the timer has done since the start."""

    delivered: int = 0
    rolled: int = 0
    recalled: int = 0
    passed_over: int = 0
    lost: int = 0


@dataclass(slots=True, eq=False)
class _Hour:
    """An hour that is loaded, or being loaded: `position` is the queue offset to be read next."""

    number: int
    position: int
    #: The queue offset of the recalls to be read next, and the messages that recalls name.
    recall_position: int
    recalled: set[bytes] = field(default_factory=set)

    @property
    def begin_ms(self) -> int:
        return self.number * HOUR_MS

    @property
    def end_ms(self) -> int:
        return (self.number + 1) * HOUR_MS


def roll_window_ms(settings: Settings) -> int:
    """How far ahead a waiting record is left alone: it has to outlive retention by far."""
    seconds = min(settings.timer_roll_window_seconds, settings.retention_hours * 3600 // 2)
    return seconds * 1000


class TimerService(DeliveryTurns[Head, TimerProgress]):
    """The timer of one broker. `appended` is to be called after puts; `put_delayed` stores what
    asks for a delay level or for nothing."""

    def __init__(
        self,
        appending: Appending,
        *,
        loop: asyncio.AbstractEventLoop,
        progress: TimerProgress,
        second_step: SecondStep,
        delays: ScheduleMessageService,
    ) -> None:
        super().__init__(loop, appending.clock_ms, progress, log, "timed")
        self._second_step = second_step
        self._store = store = appending.store
        self._queues = store.timers
        self._backlog = TimerBacklog(store.timers)
        self._stats = appending.stats
        self._reput = appending.reput
        self._delays = delays
        self._settings = appending.settings
        self._role = appending.role
        self._wheel = Wheel()
        self._hours: dict[int, _Hour] = {}
        # Puts that are not visible yet, with growing action times: (log offset after it, time).
        # The first is the earliest of all; a put is left out once one with an earlier time came
        # after it.
        self._hidden: deque[tuple[int, int]] = deque()
        self._head = Head()
        self._closed = False
        self.counts = TimerCounts()
        if appending.role.is_slave:
            self._show_progress()
        else:
            self._begin()

    # --- storing ----------------------------------------------------------------------------

    def deliver_at(self, properties: bytes) -> int | None:
        """When a message with these stored properties is to be delivered, if it waits for a time of
        its own; None if not, or if its time has passed.

        Raises MessageIllegal for a time that cannot be read or is too far ahead, and where the
        timer is off.
        """
        if not any(mark in properties for mark in _MARKS):
            return None
        values = decode_properties(str(properties, "utf-8", "surrogatepass"))
        now_ms = self._clock_ms()
        asked = asked_ms(values, now_ms, self._settings.timer_max_delay_seconds * 1000)
        if asked is None or asked <= now_ms:
            if PROPERTY_TIMER_DEL_UNIQUE_KEY in values:
                raise MessageIllegal(
                    f"timer message illegal: it recalls another ({PROPERTY_TIMER_DEL_UNIQUE_KEY}), "
                    "whose time has passed or is not named; name the time that it waits for"
                )
            return None
        if not self._settings.timer_enabled:
            raise MessageIllegal(
                "timer message refused: arbitrary delivery times are off on this broker "
                "(timerWheelEnable=false); send it with a delay level, or have it switched on"
            )
        self._follow_back(now_ms)
        # Nothing may come to lie before the cursor, which is ahead of the clock by a step at most.
        return max(asked, self._progress.done.cursor.action_ms)

    def put(self, message: StoreMessage) -> PutResult:
        """Store a message where it waits, by a delay level or a time of its own; a message that
        asks for neither, or for a time that has passed, goes to its topic. Raises a StoreError;
        then nothing was changed."""
        is_half = message.sys_flag & SYS_TRANSACTION_PREPARED
        deliver_ms = None if is_half else self.deliver_at(message.properties)
        if deliver_ms is None:
            return self._delays.put(message)
        return self.put_at(message, deliver_ms)

    def put_at(self, message: StoreMessage, deliver_ms: int) -> PutResult:
        """Store a message, or the recall of a message, that waits for the time that `deliver_at`
        gave. Raises a StoreError."""
        action_ms = next_action_ms(deliver_ms, self._clock_ms(), roll_window_ms(self._settings))
        held, most = self._queues.readable(bucket_of(action_ms)), self._settings.timer_messages
        if held >= most:
            raise StoreNotWritable(
                f"{held} messages wait for that hour, {most} may (limits.timer_messages); choose "
                "another time"
            )
        waiting = waiting_form(message, deliver_ms, action_ms)
        result = self._put(waiting)
        self._stats.stored(self._stats.topic(TIMER_TOPIC, MESSAGE_DELAY), 1, result.size)
        if waiting.queue_id >= RECALLS_FROM:
            self._recalled(deliver_ms, decode_properties(waiting.properties))
        self._wake_at(action_ms)
        return result

    def check_room_for_recall(self, deliver_ms: int) -> None:
        """Raises BadRequest (SYSTEM_BUSY) when an hour has as many recalls as it may have."""
        held = self._queues.readable(RECALLS_FROM + bucket_of(deliver_ms))
        most = self._settings.timer_recalls
        if held >= most:
            raise BadRequest(
                ResponseCode.SYSTEM_BUSY,
                f"recall refused: {held} messages of that hour are recalled, {most} may be "
                "(limits.timer_recalls); have the consumer leave the message out",
            )

    def _recalled(self, deliver_ms: int, properties: Mapping[str, str]) -> None:
        """A recall is stored: heed it if its hour is loaded, else it is loaded with it."""
        hour = self._hours.get(deliver_ms // HOUR_MS)
        digest = recalled_digest(properties)
        if hour is not None and digest is not None:
            hour.recalled.add(digest)

    def _put(self, waiting: StoreMessage) -> PutResult:
        """Store a record in the timer's topic."""
        result = self._store.log.put(waiting)
        hidden, action_ms = self._hidden, waiting.tags_code
        while hidden and hidden[-1][1] >= action_ms:
            hidden.pop()
        hidden.append((result.end, action_ms))
        return result

    def _until_ms(self, now_ms: int) -> int:
        """Up to where messages may be delivered: before all that is not visible yet, which may be a
        recall."""
        return min(now_ms, self._hidden_from() - 1)

    def _hidden_from(self) -> int:
        """The earliest action time of what is stored and not visible yet."""
        hidden, dispatched = self._hidden, self._store.dispatched
        while hidden and hidden[0][0] <= dispatched:
            hidden.popleft()
        return hidden[0][1] if hidden else _FOR_EVER

    # --- starting and stopping --------------------------------------------------------------

    def _begin(self) -> None:
        """Go on where the progress is. Without a file, at the first record that waits."""
        done = self._progress.done
        if self._progress.known is None:
            now_ms = self._clock_ms()
            first_ms = min([now_ms, *self._first_times()])
            done = Done(Cursor(first_ms // HOUR_MS * HOUR_MS, -1))
            if first_ms < now_ms:
                log.warning(
                    "no progress of the timer is known, all that its queues hold will be delivered "
                    "from_ms=%d", first_ms,
                )  # fmt: skip
            self._progress.moved(done)
        self._open(done.cursor.action_ms // HOUR_MS)

    def _first_times(self) -> list[int]:
        found: list[int] = []
        for queue_id in self._queues.ids():
            position, end, _ = self._queues.span(queue_id)
            while position < end:
                entries, position = self._queues.entries(queue_id, position, _MOST_AT_ONCE)
                if times := [one.action_ms for one in entries if one.action_ms]:
                    # The hours of a queue come one after the other.
                    found.append(min(times) // HOUR_MS * HOUR_MS)
                    break
        return found

    def _show_progress(self) -> None:
        """Hold nothing but the hour in which the progress is; without progress, the present one."""
        self._hours.clear()
        self._wheel = Wheel()
        self._hidden.clear()
        done = self._progress.known
        self._open((self._clock_ms() if done is None else done.cursor.action_ms) // HOUR_MS)

    # --- the role (`background/leading.py`)

    def lead(self, *, anew: bool) -> None:
        """See `Led`."""
        if anew:
            self._hours.clear()
            self._begin()
        self.start()

    def follow(self) -> None:
        """See `Led`."""
        super()._halt()
        self._show_progress()

    def copy(self) -> bytes:
        """The progress for slaves, which read it by `TimerProgress.read`."""
        return self._progress.copy()

    def replace(self, done: Done) -> None:
        """Take the master's progress, when the log has what the master had by then (see
        `DurableProgress.replace`). On a slave only."""
        self._progress.take(done)
        self._show_progress()

    def start(self) -> None:
        """Begin to deliver."""
        self._running = True
        self._arm()

    def close(self) -> None:
        """Deliver nothing more, for the store is about to close."""
        if not self._closed and not self._role.is_slave and (waiting := self.pending()):
            log.warning(
                "messages wait for a time of their own count=%d recalls=%d advice=they are "
                "delivered when this broker runs again, but for those that are recalled; before "
                "RocketMQ takes the directory over run aerobee store export-timers",
                waiting, self.recalls(),
            )  # fmt: skip
        self._halt()

    def _halt(self) -> None:
        super()._halt()
        self._closed = True

    # --- turns ------------------------------------------------------------------------------

    def _wake_at(self, action_ms: int) -> None:
        """Something waits for that time: be there."""
        if not self._running or action_ms // HOUR_MS not in self._hours:
            return
        at = self._loop.time() + max(0, action_ms - self._clock_ms()) / 1000
        if self._timer is None or at < self._wakes_at:
            self._arm_at(max(at, self._head.not_before))

    def _next_turn(self) -> float:
        return max(self._next_work(), self._head.not_before)

    def _next_work(self) -> float:
        """When there is something to be done, as loop time."""
        now, now_ms = self._loop.time(), self._clock_ms()
        if any(self._unread(hour) for hour in self._hours.values()):
            return now
        next_ms = self._wheel.next_ms
        if next_ms is not None and next_ms <= now_ms:
            return now if next_ms < self._hidden_from() else now + _HIDDEN_S
        hour = self._hour
        to_open = hour.number + 1 not in self._hours
        until_ms = hour.end_ms - (_LEAD_MS if to_open else 0)
        if next_ms is not None:
            until_ms = min(until_ms, next_ms)
        wait_s: float = max(0, until_ms - now_ms) / 1000
        if not wait_s and self._hidden_from() < hour.end_ms:
            wait_s = _HIDDEN_S
        return now + min(wait_s, _CHECK_S if len(self._wheel) else _IDLE_S)

    def _due(self, _now_ms: int) -> Head:
        return self._head

    def _serve(self, _head: Head, now_ms: int) -> None:
        """Do one thing of those that are to be done."""
        self._follow_back(now_ms)
        hour = self._hour
        if hour.number + 1 not in self._hours and now_ms >= hour.end_ms - _LEAD_MS:
            self._open(hour.number + 1)
        for one in self._hours.values():
            if self._unread(one):
                self._read(one)
                return
        if self._wheel.prepare(self._until_ms(now_ms)):
            return
        next_ms = self._wheel.next_ms
        if next_ms is not None and next_ms < hour.end_ms:
            self._deliver(now_ms)
        elif now_ms >= hour.end_ms and self._hidden_from() >= hour.end_ms:
            self._next_hour(hour)

    def _follow_back(self, now_ms: int) -> None:
        """If the clock was set back, what is stored from now on may be due before the cursor."""
        done = self._progress.done
        if now_ms >= done.cursor.action_ms - _CLOCK_STEP_MS:
            return
        log.warning(
            "the clock was set back, the timer goes with it from_ms=%d to_ms=%d",
            done.cursor.action_ms, now_ms,
        )  # fmt: skip
        written = self._store.written
        self._progress.moved(done.back_to(now_ms, written), written)
        self._hours.clear()
        self._wheel = Wheel()
        self._open(now_ms // HOUR_MS)

    # --- hours ------------------------------------------------------------------------------

    @property
    def _hour(self) -> _Hour:
        """The hour that is delivered."""
        return next(iter(self._hours.values()))

    def _open(self, number: int) -> None:
        """Begin to load an hour."""
        bucket = number % BUCKETS
        self._hours[number] = _Hour(
            number, self._queues.span(bucket).first, self._queues.span(RECALLS_FROM + bucket).first
        )

    def _next_hour(self, hour: _Hour) -> None:
        """All of an hour is done: the cursor stands before the next one."""
        del self._hours[hour.number]
        if not self._hours:
            self._open(hour.number + 1)
        done = self._progress.done
        self._progress.moved(done.at(max(Cursor(hour.end_ms, -1), done.cursor)))

    def _unread(self, hour: _Hour) -> bool:
        bucket, span = hour.number % BUCKETS, self._queues.span
        return (
            hour.position < span(bucket).end
            or hour.recall_position < span(RECALLS_FROM + bucket).end
        )

    def _read(self, hour: _Hour) -> None:
        """Load some entries, recalls first. Raises OSError."""
        begin_ms, end_ms = hour.begin_ms, hour.end_ms
        recalls = RECALLS_FROM + hour.number % BUCKETS
        if hour.recall_position < self._queues.span(recalls).end:
            self._read_recalls(hour, recalls)
            return
        entries, hour.position = self._queues.entries(
            hour.number % BUCKETS, hour.position, _READ_ENTRIES
        )
        has, add, log_min = self._progress.done.has, self._wheel.add, self._store.min_log_offset
        lost = 0
        for action_ms, log_offset in entries:
            if not begin_ms <= action_ms < end_ms or has(action_ms, log_offset):
                continue
            if log_offset < log_min:
                lost += 1
            else:
                add(action_ms, log_offset)
        if lost:
            self.counts.lost += lost
            log.error(
                "timed messages were deleted with their files before they were due count=%d "
                "hour_ms=%d advice=retention took them because a disk was nearly full", lost,
                begin_ms,
            )  # fmt: skip

    def _read_recalls(self, hour: _Hour, queue_id: int) -> None:
        entries, hour.recall_position = self._queues.entries(
            queue_id, hour.recall_position, _MOST_AT_ONCE
        )
        has = self._progress.done.has
        for action_ms, log_offset in entries:
            if not hour.begin_ms <= action_ms < hour.end_ms or has(action_ms, log_offset):
                continue
            message = self._queues.message(log_offset)
            digest = None if message is None else recalled_digest(message.properties)
            if digest is None:
                self.counts.lost += 1
                log.error("recall is gone or damaged, it has no effect log_offset=%d", log_offset)
            else:
                hour.recalled.add(digest)

    # --- delivery ---------------------------------------------------------------------------

    def _deliver(self, now_ms: int) -> None:
        """Do some of what is due. Raises StoreBroken, StoreClosed, OSError."""
        wheel = self._wheel
        cursor: Cursor | None = None
        end: int | None = None
        try:
            for _ in range(_MOST_AT_ONCE):
                first = wheel.first()
                # Asked each time: what was rolled a moment ago may be due before the next one.
                if first is None or first[0] > self._until_ms(now_ms):
                    break
                end = self._deliver_or_roll(*first, now_ms) or end
                wheel.take()
                cursor = Cursor(*first)
        except StoreError as error:
            self._put_failed(self._head, error, "")
        finally:
            if cursor is not None:
                done = self._progress.done
                self._progress.moved(done.at(max(cursor, done.cursor)), end)
            if end is not None:
                self._reput.appended()

    def _deliver_or_roll(self, action_ms: int, log_offset: int, now_ms: int) -> int | None:
        """Deliver or roll one record, or leave out what is recalled, or whose topic was deleted.
        Returns the log offset after what was stored, None if nothing is to be. Raises StoreError
        when it cannot be now."""
        message = self._queues.message(log_offset)
        if message is None:
            self.counts.lost += 1
            log.error("timed message is gone or damaged log_offset=%d", log_offset)
            return None
        result: PutResult | None
        try:
            deliver_ms = deliver_ms_of(message)
            if action_ms < deliver_ms:
                # Also if that has come by now: only its own hour knows of its recall.
                if self._is_dropped(message):
                    return None
                result = self._roll(message, deliver_ms, now_ms)
            elif recalled_digest(message.properties) in self._recalls_of(action_ms):
                self.counts.recalled += 1
                return None
            else:
                result = self._put_due(message)
        except (CorruptRecord, MessageIllegal, PropertiesTooLarge) as error:
            self.counts.passed_over += 1
            log.error(
                "timed message cannot be delivered log_offset=%d topic=%s reason=%s",
                log_offset, message.properties.get(PROPERTY_REAL_TOPIC), error,
            )  # fmt: skip
            return None
        self._head.failures = 0
        return None if result is None else result.end

    def _is_dropped(self, message: Message) -> bool:
        """Whether its topic was deleted meanwhile. A recall is no message, and is dropped in
        silence with the message that it means."""
        topic, _ = real_queue(message.properties)
        if PROPERTY_TIMER_DEL_UNIQUE_KEY in message.properties:
            return self._second_step.is_deleted(topic, message.log_offset)
        return self._second_step.drops(TIMED, topic, message)

    def _roll(self, message: Message, deliver_ms: int, now_ms: int) -> PutResult:
        action_ms = next_action_ms(deliver_ms, now_ms, roll_window_ms(self._settings))
        rolled = rolled_form(message, action_ms)
        result = self._put(rolled)
        if rolled.queue_id >= RECALLS_FROM:
            self._recalled(deliver_ms, message.properties)
        self.counts.rolled += 1
        return result

    def _recalls_of(self, action_ms: int) -> set[bytes]:
        hour = self._hours.get(action_ms // HOUR_MS)
        return set() if hour is None else hour.recalled

    def _put_due(self, message: Message) -> PutResult | None:
        due = delivered_form(message)
        result = self._second_step.put(TIMED, due, message.log_offset, self._store.log.put)
        if result is None:
            return None
        self.counts.delivered += 1
        self._stats.stored(self._stats.topic(due.topic, MESSAGE_DELAY), 1, result.size)
        return result

    # --- for administrators -----------------------------------------------------------------

    @property
    def begin_ms(self) -> int:
        """All records of the hours before are done."""
        return self._hour.begin_ms

    def is_done(self, action_ms: int, log_offset: int) -> bool:
        """Whether that record waits no more."""
        return self._progress.done.has(action_ms, log_offset)

    def pending(self) -> int:
        """How many records wait, without those that are done or were exported (`backlog.py`). A
        recalled message counts until its time: nobody looks which record a recall means."""
        done, count = self._progress.done, self._backlog.messages
        waiting = len(self._wheel)
        for hour in self._hours.values():
            waiting += count(hour.number, done, hour.position)
        return waiting + sum([count(number, done) for number in self._later_hours()])

    def recalls(self) -> int:
        """How many recalls there are for the hour that is delivered, and for later ones. Those
        further ahead than the roll window count as records that wait."""
        done, count = self._progress.done, self._backlog.recalls
        known = 0
        for hour in self._hours.values():
            known += len(hour.recalled) + count(hour.number, done, hour.recall_position)
        return known + sum([count(number, done) for number in self._later_hours()])

    def _later_hours(self) -> range:
        """Those that are not loaded and may have records."""
        return range(max(self._hours) + 1, self._hour.number + BUCKETS)

    def late_s(self) -> float:
        """For how long the first message that waits has been due."""
        next_ms = self._wheel.next_ms
        if next_ms is None or self._closed:
            return 0.0
        return max(0, self._clock_ms() - next_ms) / 1000.0
