"""How many messages wait for their next try, by retry topic: a group has them before it, and no
queue of its own has them yet (`lag.py`).

Counted are delayed messages whose own topic is a retry topic: up when one is stored where it waits,
down when it is stored where it goes, or never will be. Each level is counted by itself. What a
level has at a start is counted in the background, in slices of a turn, from its next message up to
its end as it was then:

    delivered | counted by now | not counted yet | stored since: counted by `waits`
              ^ the level      ^ position        ^ end

So a message between `position` and `end` that is delivered was not counted, and is not taken off.
What could not be read is passed over, and nobody knows whose it was: then the level is counted anew
in the same way, unless the count could not read it either. A count that goes on is not broken off
for that, or one of a level with much damage would never end: the next one begins when it is over.
Nothing is read where nothing waits.

What was accepted before its topic was deleted is nobody's: it is dropped when it is due.

Loop thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from aerobee.protocol.errors import CorruptRecord
from aerobee.protocol.message.properties import PROPERTY_REAL_TOPIC, real_queue
from aerobee.protocol.message.record import decode_record
from aerobee.protocol.names import RETRY_PREFIX, SCHEDULE_TOPIC, is_retry_topic
from aerobee.store.reading.delay_queues import DelayQueues, Due

log = logging.getLogger("aerobee.broker.delay")

# Bytes in the record of each waiting retry: most other records need not be taken apart.
_MARK = f"{PROPERTY_REAL_TOPIC}\x01{RETRY_PREFIX}".encode()


class _Level:
    """The count of a level; queue offsets from `position` up to `end` are still to be counted."""

    __slots__ = ("again", "counts", "end", "is_failing", "place", "position", "unread")

    def __init__(self, position: int = 0, end: int = 0) -> None:
        self.counts: dict[str, int] = {}
        self.position = position
        self.end = end
        self.place = position  # its next message
        self.unread = 0  # slots that the count could not read, and that were not passed over since
        self.again = False  # it is counted anew when this count is over
        self.is_failing = False  # its queue could not be read, and the log says so

    @property
    def is_counted(self) -> bool:
        return self.position >= self.end

    @property
    def may_be_wrong(self) -> bool:
        """Not where no retries are known and all was counted."""
        return bool(self.counts) or not self.is_counted


class RetriesWaiting:
    """The count of a broker. `record_at` reads the record at a log offset, None without a
    record; `deleted_at` gives the log offset at which a topic was deleted, or its second
    argument."""

    def __init__(
        self,
        queues: DelayQueues,
        record_at: Callable[[int], bytes | None],
        deleted_at: Callable[[str, int], int],
    ) -> None:
        self._queues = queues
        self._record_at = record_at
        self._deleted_at = deleted_at
        self._levels: dict[int, _Level] = {}

    # --- for those who judge groups

    def count(self, topic: str) -> int:
        """How many messages wait for a retry topic, of those that are counted by now."""
        return sum([level.counts.get(topic, 0) for level in self._levels.values()])

    def topics(self) -> set[str]:
        """The retry topics that messages wait for; a snapshot."""
        return {topic for level in self._levels.values() for topic in level.counts}

    # --- what the levels tell

    def begin(self, number: int, offset: int, end: int) -> None:
        """A level has waiting messages from queue offset `offset` up to `end`: they are counted by
        `step`. What was known of it is forgotten."""
        self._levels[number] = _Level(offset, end)

    def recount(self, number: int, offset: int, end: int) -> None:
        """Begin the count of a level again that has come to an end (see `begin`)."""
        level = self._levels.get(number)
        if level is not None and level.may_be_wrong:
            self.begin(number, offset, end)

    def passed_over(self, number: int, first: int, behind: int, count: int) -> None:
        """Between these queue offsets a level has passed `count` messages over."""
        level = self._levels.get(number)
        if level is None or not level.may_be_wrong:
            return
        level.place = behind
        if level.position <= first and behind <= level.end:
            return  # none of them was counted
        known = min(count, level.unread)
        level.unread -= known
        level.again = level.again or known < count
        self._go_on(number, level)

    def waits(self, number: int, topic: str) -> None:
        """A message for a retry topic was stored in a level."""
        level = self._levels.get(number)
        if level is None:
            level = self._levels[number] = _Level()
        level.counts[topic] = level.counts.get(topic, 0) + 1

    def done(self, number: int, due: Due) -> None:
        """A message for a retry topic waits no longer, whatever became of it."""
        level, topic = self._levels.get(number), due.message.topic
        if level is None or level.position <= due.queue_offset < level.end:
            return
        if due.log_offset >= self._deleted_at(topic, 0):
            left = level.counts.get(topic, 0) - 1
            if left > 0:
                level.counts[topic] = left
            else:
                level.counts.pop(topic, None)

    def reached(self, number: int, offset: int) -> None:
        """A level has come to a queue offset: nothing below it is counted any more."""
        level = self._levels.get(number)
        if level is not None:
            level.place = offset
            if not level.is_counted:
                level.position = max(level.position, offset)
                self._go_on(number, level)

    def forget(self, topic: str) -> None:
        """A topic was deleted, and that is remembered: what waits for it is dropped when due."""
        if is_retry_topic(topic):
            for level in self._levels.values():
                level.counts.pop(topic, None)

    def clear(self) -> None:
        """Forget all counts: this broker is a slave now, and counts nothing."""
        self._levels.clear()

    def close(self) -> None:
        """Read nothing more of the store."""
        for level in self._levels.values():
            level.position = level.end

    # --- counting what there is

    def step(self) -> bool:
        """Count one message; False where none is left, or none is visible yet."""
        for number, level in self._levels.items():
            if not level.is_counted and self._count_next(number, level):
                return True
        return False

    def _count_next(self, number: int, level: _Level) -> bool:
        try:
            log_offset, behind = self._queues.next_place(number, level.position)
            if behind <= level.position:
                return False
            topic = None if log_offset is None else self._retry_topic_at(number, log_offset)
            is_unread = log_offset is None and behind == level.position + 1
        except CorruptRecord:
            topic, is_unread = None, True
        except OSError as error:
            if not level.is_failing:
                log.error(
                    "retries that wait are not all counted, will be tried again delay_level=%d "
                    "from=%d why=%s", number, level.position, error,
                )  # fmt: skip
            level.is_failing = True
            return False
        level.position = behind
        level.unread += is_unread
        if topic is not None:
            level.counts[topic] = level.counts.get(topic, 0) + 1
        self._go_on(number, level)
        return True

    def _go_on(self, number: int, level: _Level) -> None:
        """Begin the count that was put off, if it is time."""
        if level.again and level.is_counted:
            self.begin(number, level.place, self._queues.end(number))

    def _retry_topic_at(self, number: int, log_offset: int) -> str | None:
        """The retry topic that the message there waits for in a level, if it does. Raises
        CorruptRecord for what the level will pass over."""
        record = self._record_at(log_offset)
        if record is None:
            raise CorruptRecord("there is no record")
        if _MARK not in record:
            return None
        message = decode_record(record)
        topic, _ = real_queue(message.properties)
        if (message.topic, message.queue_id) != (SCHEDULE_TOPIC, number - 1):
            raise CorruptRecord("the record is another queue's")
        if not is_retry_topic(topic) or log_offset < self._deleted_at(topic, 0):
            return None
        return topic
