"""Checks that a queue is still the queue that was read: topics are deleted and made again.

An offset alone does not show it: a topic that was made again counts from 0, and once it is as long
as the deleted topic was, reading goes on in its middle as if nothing had happened. So a checkpoint
holds the last message read of each queue (`Mark`: its place in the broker's log and the time it was
stored), and a batch begins only if that message is there still. A message that retention has
removed proves nothing; the limits of the queue then say what was lost.

Another message in its place, or no message, is data loss; under failOnDataLoss=false it is a
warning. Reading then goes on at the first message that was stored after the last message read. That
is the first message of a topic made anew, or the first after a power cut that took messages back
(ASYNC_FLUSH).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from aerobee.pipeline.brokers.offsets import Mark, Offsets, Position, Queue
from aerobee.pipeline.brokers.queue_offsets import messages_at, min_offsets, offsets_at
from aerobee.pipeline.source.batch_plan import SubscribedQueues

# A queue that has got nothing new is looked at again after this long: it may have been made again,
# of the same length.
LOOK_S: Final = 10.0


class QueueLives:
    """Looks at messages of the driver's queues. One thread."""

    def __init__(self, subscribed: SubscribedQueues) -> None:
        self._subscribed = subscribed
        self._brokers = subscribed.brokers
        self._group = subscribed.options.group
        # The end a queue was marked at, when, and the mark.
        self._marked: dict[Queue, tuple[int, float, Mark | None]] = {}

    def marks(self, ends: Offsets) -> dict[Queue, Mark]:
        """The last message before each end; a queue without such a message is left out."""
        now = time.monotonic()
        asked = {}
        for queue, end in ends.items():
            at, when, _ = self._marked.get(queue, (-1, 0.0, None))
            if end > 0 and (at != end or now - when > LOOK_S):
                asked[queue] = end
        seen = self._before(asked)
        self._marked |= {queue: (end, now, seen.get(queue)) for queue, end in asked.items()}
        found = {queue: self._marked[queue][2] for queue, end in ends.items() if end > 0}
        return {queue: mark for queue, mark in found.items() if mark is not None}

    def begins(self, start: Position, ends: Offsets) -> Offsets:
        """Where reading begins: at `start`, except for queues of `ends` that were made anew since.
        DataLoss, or a warning, for these."""
        offsets = {queue: at for queue, at in start.offsets.items() if queue in ends}
        begins = dict(start.offsets)
        for queue, found in self._others(offsets, start.marks).items():
            mark, offset, end = start.marks[queue], offsets[queue], ends[queue]
            begins[queue] = min(self._resumed(queue, mark), end)
            self._subscribed.report_loss(
                f"{other_life(queue, offset, mark, found)}; what came in between is lost"
                f"{self.and_on(begins[queue], end)}"
            )
        return begins

    def gone_ends(self, end: Position, moved: Offsets) -> Offsets:
        """The queues whose end was planned in an earlier life: nothing of them is read, for Spark
        may have kept a part of what was there under this batch; the next one begins anew."""
        planned = {
            queue: last for queue, last in moved.items() if not self._was_marked(queue, last, end)
        }
        gone = self._others(planned, end.marks)
        for queue, found in gone.items():
            text = other_life(queue, planned[queue], end.marks[queue], found)
            self._subscribed.report_loss(f"{text}; what this batch was to read is lost")
        return {queue: planned[queue] for queue in gone}

    def and_on(self, begin: int, end: int) -> str:
        """The end of a report of loss: where reading goes on."""
        if self._subscribed.options.fail_on_data_loss:
            return ""
        return f"; reading goes on at offset {begin}, with {end - begin} messages"

    def _was_marked(self, queue: Queue, last: int, end: Position) -> bool:
        """Whether it was this process that marked this end so."""
        at, _, known = self._marked.get(queue, (-1, 0.0, None))
        return at == last and known == end.marks.get(queue)

    def _others(
        self, offsets: Mapping[Queue, int], marks: Mapping[Queue, Mark]
    ) -> dict[Queue, Mark | None]:
        """The queues whose message before their offset is not the marked message; None where they
        have no message there."""
        asked = {queue: offset for queue, offset in offsets.items() if queue in marks}
        return {
            queue: found for queue, found in self._before(asked).items() if found != marks[queue]
        }

    def _resumed(self, queue: Queue, mark: Mark) -> int:
        """The offset of the first message stored after the marked one, which is not there."""
        lowest = min_offsets(self._brokers, [queue])
        first = messages_at(self._brokers, self._group, lowest).get(queue)
        if first is not None and first.log_offset > mark.log_offset:
            return lowest[queue]  # whatever the clock of the broker has done
        return offsets_at(self._brokers, self._group, [queue], mark.store_ms + 1)[queue]

    def _before(self, offsets: Offsets) -> dict[Queue, Mark | None]:
        places = {queue: offset - 1 for queue, offset in offsets.items() if offset > 0}
        return messages_at(self._brokers, self._group, places)


def other_life(queue: Queue, offset: int, mark: Mark, found: Mark | None) -> str:
    """Says which message was found in the place of the last message read."""
    was = f"the last message read, {offset - 1}, was stored at {_time(mark)}"
    now = "it is not there" if found is None else f"there is now a message stored at {_time(found)}"
    return (
        f"{queue}: {was}, and {now}: the topic was deleted and made again since, or its broker has "
        "lost or replaced what it had stored"
    )


def _time(mark: Mark) -> str:
    moment = datetime.fromtimestamp(mark.store_ms / 1000, UTC)
    return moment.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00") + "Z"
