"""Messages with a time of their own become messages of delay levels, for a broker that knows no
others (store/FORMAT.md 12.7).

Each message that waits and that a level reaches, and whose topic was not deleted meanwhile, is
stored with the lowest level that is not earlier than its time. Others are named and kept. Then all
up to what the levels reach counts as done: the timer goes on with the rest when this broker runs
again. Messages are durable before the progress says that they are stored; a run that is broken off
in between may be done again, and stores what it had stored a second time.

The caller's own thread, on a store that nobody else uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from aerobee.broker.delay.delivery_progress import Cursor, Done, Past
from aerobee.protocol.errors import CorruptRecord
from aerobee.protocol.message.properties import (
    PROPERTY_DELAY,
    PROPERTY_KEYS,
    PROPERTY_TIMER_DEL_UNIQUE_KEY,
    PROPERTY_UNIQUE_KEY,
    decode_properties,
    encode_properties,
    real_queue,
)
from aerobee.protocol.message.record import Message, StoreMessage
from aerobee.store.message_store import MessageStore
from aerobee.store.reading.delayed_messages import waiting_form
from aerobee.store.reading.timed_messages import (
    HOUR_MS,
    RECALLS_FROM,
    deliver_ms_of,
    delivered_form,
    next_action_ms,
    recalled_digest,
    rolled_form,
)

_READ_ENTRIES = 2048
_DISPATCH_EVERY = 512
# No log offset is greater.
_LAST_OFFSET = (1 << 63) - 1


class Kept(NamedTuple):
    """A message that no level reaches."""

    topic: str
    queue_id: int
    deliver_ms: int
    unique_id: str
    keys: str
    log_offset: int


@dataclass(slots=True)
class ExportReport:
    """Counts what was found, and done unless it was a dry run. `exported` counts by level."""

    exported: dict[int, int] = field(default_factory=dict)
    kept: int = 0
    recalled: int = 0
    #: Messages whose topics were deleted after they were stored.
    dropped: int = 0
    #: Log offsets of what cannot be read, or says of itself no place to go to.
    unusable: list[int] = field(default_factory=list)


class TimerExport:
    """One run over an open store. `listed` is called with each message that is kept."""

    def __init__(
        self,
        *,
        store: MessageStore,
        done: Done,
        now_ms: Callable[[], int],
        window_ms: int,
        listed: Callable[[Kept], None],
        deleted_at: Mapping[str, int],
        dry_run: bool,
    ) -> None:
        """`deleted_at`: log offsets of deletions by the topics' names."""
        self._store = store
        self._queues = store.timers
        self._done = done
        self._now_ms = now_ms
        self._window_ms = window_ms
        self._listed = listed
        self._deleted_at = deleted_at
        self._dry_run = dry_run
        levels = store.delays.levels
        # (delay in ms, level), the shortest first.
        self._levels = sorted(
            (levels.deliver_at_ms(level, 0), level) for level in range(1, levels.highest + 1)
        )
        self._began_ms = now_ms()
        #: Delivery times up to this one are reached.
        self._reach_ms = self._began_ms + self._levels[-1][0]
        # The queues as they were before anything was stored.
        self._spans = {queue_id: self._queues.span(queue_id) for queue_id in self._queues.ids()}
        self._recalled: set[bytes] = set()
        self._stored = 0
        # Records that still wait in the hour in which the reach ends.
        self._left = 0
        self.report = ExportReport()

    def run(self) -> None:
        """Export. Raises StoreError or OSError; what was stored until then stays."""
        for message in self._waiting():
            if message is not None and PROPERTY_TIMER_DEL_UNIQUE_KEY in message.properties:
                digest = recalled_digest(message.properties)
                if digest is not None:
                    self._recalled.add(digest)
        for queue_id in sorted(self._spans):
            if queue_id < RECALLS_FROM:
                self._export_queue(queue_id)
        self._store.dispatch()

    def done(self) -> Done:
        """The progress that belongs to what was stored, once that is durable."""
        end = Past(self._store.written, Cursor(self._reach_ms, _LAST_OFFSET), self._left)
        later = tuple([past for past in self._done.pasts if past.cursor > end.cursor])
        if self._done.cursor > end.cursor:
            later = (*later, Past(self._store.written, self._done.cursor))
        return Done(Cursor(self._began_ms, -1), (*later, end))

    def _waiting(self) -> Iterator[Message | None]:
        for queue_id in sorted(self._spans):
            for _, _, message in self._of_queue(queue_id):
                yield message

    def _of_queue(self, queue_id: int) -> Iterator[tuple[int, int, Message | None]]:
        """(action time, log offset, record) of each entry that is not done."""
        position, end, _ = self._spans[queue_id]
        log_min = self._store.min_log_offset
        while position < end:
            most = min(_READ_ENTRIES, end - position)
            entries, position = self._queues.entries(queue_id, position, most)
            for action_ms, log_offset in entries:
                if log_offset >= log_min and not self._done.has(action_ms, log_offset):
                    yield action_ms, log_offset, self._queues.message(log_offset)

    def _export_queue(self, queue_id: int) -> None:
        for action_ms, log_offset, message in self._of_queue(queue_id):
            self._count_left(action_ms)
            try:
                if message is None:
                    raise CorruptRecord("there is no such record")
                self._export(action_ms, log_offset, message)
            except CorruptRecord:
                self.report.unusable.append(log_offset)

    def _export(self, action_ms: int, log_offset: int, message: Message) -> None:
        deliver_ms = deliver_ms_of(message)
        is_recall = PROPERTY_TIMER_DEL_UNIQUE_KEY in message.properties
        if not is_recall and recalled_digest(message.properties) in self._recalled:
            self.report.recalled += 1
        elif log_offset < self._deleted_at.get(real_queue(message.properties)[0], 0):
            # Stored anew, it would be taken for a message of the topic made anew.
            self.report.dropped += 1
        elif deliver_ms > self._reach_ms:
            if not is_recall:
                self._keep(log_offset, message, deliver_ms)
            if action_ms <= self._reach_ms:
                # It would count as done.
                rolled = rolled_form(message, self._next_action_ms(deliver_ms))
                self._put(rolled)
                if rolled.queue_id < RECALLS_FROM:
                    self._count_left(rolled.tags_code)
        elif not is_recall:
            self._put_delayed(message, deliver_ms)

    def _count_left(self, action_ms: int) -> None:
        """A record waits for that time: so that the broker knows how many do (`backlog.py`)."""
        if action_ms > self._reach_ms and action_ms // HOUR_MS == self._reach_ms // HOUR_MS:
            self._left += 1

    def _next_action_ms(self, deliver_ms: int) -> int:
        action_ms = next_action_ms(deliver_ms, self._began_ms, self._window_ms)
        return min(deliver_ms, max(action_ms, self._reach_ms + 1))

    def _keep(self, log_offset: int, message: Message, deliver_ms: int) -> None:
        self.report.kept += 1
        to, properties = delivered_form(message), message.properties
        self._listed(
            Kept(
                to.topic,
                to.queue_id,
                deliver_ms,
                properties.get(PROPERTY_UNIQUE_KEY, ""),
                properties.get(PROPERTY_KEYS, ""),
                log_offset,
            )
        )

    def _put_delayed(self, message: Message, deliver_ms: int) -> None:
        now_ms = self._now_ms()
        level = next(
            (level for delay_ms, level in self._levels if now_ms + delay_ms >= deliver_ms),
            self._levels[-1][1],
        )
        plain = delivered_form(message)
        properties = decode_properties(plain.properties) | {PROPERTY_DELAY: str(level)}
        asking = msgspec.structs.replace(plain, properties=encode_properties(properties).encode())
        waiting = waiting_form(asking, level)
        assert waiting is not None
        self._put(waiting)
        self.report.exported[level] = self.report.exported.get(level, 0) + 1

    def _put(self, message: StoreMessage) -> None:
        if self._dry_run:
            return
        self._store.log.put(message)
        self._stored += 1
        if not self._stored % _DISPATCH_EVERY:
            self._store.dispatch()
