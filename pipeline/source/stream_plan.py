"""Answers the questions of a streaming query: where to begin, how far to go, what to read.

Nothing here knows Spark; `topic_source.py` puts its classes around this. One object lives as long
as the query's driver process and may be asked a hundred times a second.

    initial()           once; kept outside the process where a later answer would differ
    latest(start, ...)  how far the next batch goes: the queues' ends, held back by limits. PySpark
                        before 4.2 asks for it before it asks for initial(), and without a start
    ranges(start, end)  what the batch reads; a queue that `start` lacks is read from its minimum
    done(end)           a batch is committed: offsets for the display of lag

A queue without a route (its broker is away) keeps the offset it had, so it is neither forgotten nor
read again. Before each batch `lives.py` checks that a queue is still the queue that was read.
"""

from __future__ import annotations

import logging
import time
from typing import Final

from aerobee.pipeline.brokers.offsets import Mark, Offsets, Position, Queue, Range, limited
from aerobee.pipeline.brokers.queue_offsets import (
    max_offsets,
    mean_sizes,
    min_offsets,
    store_group_offsets,
)
from aerobee.pipeline.errors import DataLoss, NoSuchTopic, OptionError, PipelineError
from aerobee.pipeline.source.batch_plan import SubscribedQueues
from aerobee.pipeline.source.initial_offsets import initial_offsets_of
from aerobee.pipeline.source.lives import QueueLives, other_life
from aerobee.pipeline.source.source_options import BatchLimits, SourceOptions

log = logging.getLogger("aerobee.pipeline")

NO_LIMITS: Final = BatchLimits()
# Sizes of messages are judged by this many of each queue.
_SAMPLE = 32


class StreamPlan:
    """The plans of one streaming query. One thread."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self._subscribed = SubscribedQueues(options)
        self._lives = QueueLives(self._subscribed)
        self._kept_initial = initial_offsets_of(options, self._subscribed.brokers)
        self._initial: Offsets | None = None
        #: Whether Spark wanted to know where to begin, so batch 0 is not done.
        self._asked = False
        self._initial_dropped = False
        #: The last offset met of each queue and the message before it, for queues whose broker is
        #: away.
        self._known: Offsets = {}
        self._known_marks: dict[Queue, Mark] = {}
        self._away: list[Queue] = []
        self._is_ours = False  # the checkpoint is of topics that are read
        self._target: Offsets | None = None
        self._released_at = time.monotonic()  # the last batch that was long enough
        self.highest: Offsets = {}

    def close(self) -> None:
        """Close the connections."""
        self._subscribed.close()

    # --- where to begin ---------------------------------------------------------------------

    def initial(self) -> Position:
        """Where the query begins; the same each time."""
        self._asked = True
        return Position(dict(self._beginning()), {})

    def _beginning(self) -> Offsets:
        if self._initial is None:
            self._initial = self._begin()
            self._keep(Position(self._initial, {}))
        return self._initial

    def _begin(self) -> Offsets:
        queues = self._subscribed.queues()
        place = self.options.start
        offsets = self._subscribed.resolve(place, queues)
        if not place.moves:
            return offsets
        if self._kept_initial is None:
            log.warning(
                "the start is not kept outside this process: after a crash within the first batch "
                "the query must be started anew; option consumerGroup keeps it"
            )
            return offsets
        kept = self._kept_initial.load(queues)
        if kept:
            log.warning(
                "the start of an earlier try is used again, from %s", self._kept_initial.where
            )
        offsets |= kept
        self._kept_initial.store(offsets)
        return offsets

    def _drop_initial(self) -> None:
        """A start that did not need the initial offset: batch 0 is done, so it is dropped."""
        is_done = not self._initial_dropped and not self._asked and self.options.start.moves
        if is_done and self._kept_initial is not None:
            self._kept_initial.drop(self._subscribed.queues(list(self._known)))
        self._initial_dropped = True

    # --- how far to go ----------------------------------------------------------------------

    def freeze(self) -> None:
        """Make the present ends of the queues the end of the query (trigger availableNow)."""
        try:
            self._target = self._ends()
        except NoSuchTopic as error:
            raise NoSuchTopic(
                f"{error}; if a checkpoint has read it, it was deleted or its brokers are away: "
                "one made again is another topic"
            ) from error

    def latest(self, start: Position | None, limits: BatchLimits = NO_LIMITS) -> Position:
        """How far the next batch goes. `start` None: from what this process has seen so far, and
        without limits.

        Such a call may be the first of a new query, whose start is asked for later. So the start is
        resolved and kept before an end is returned; else the start could come to lie after that
        end.
        """
        if start is not None:
            self._check_topics(start)
            self._keep(start)
            self._drop_initial()
        elif self.options.start.moves and not self._initial_dropped:
            self._beginning()
        ends = self._ends()
        self.highest = dict(ends)
        self._say_away()
        if self._target is not None:
            target = self._target
            ends = {
                queue: min(end, max(target[queue], self._known.get(queue, 0)))
                for queue, end in ends.items()
                if queue in target
            }
        reached = list(ends)
        for queue, known in self._known.items():
            if ends.setdefault(queue, known) < known and self.options.fail_on_data_loss:
                self._report_shorter(queue, known, ends[queue])
        if start is not None and limits.are_set:
            begins = self._first(start, ends)
            if self._waits(begins, ends, limits):
                return start
            ends = self._held_back(begins, ends, limits)
        carried = {
            queue: mark
            for queue, mark in self._known_marks.items()
            if ends[queue] == self._known[queue]
        }
        there = {queue: ends[queue] for queue in reached}
        return Position(ends, carried | self._lives.marks(there))

    def _keep(self, position: Position) -> None:
        self._known |= position.offsets
        for queue in position.offsets:
            self._known_marks.pop(queue, None)
        self._known_marks |= position.marks

    def _ends(self) -> Offsets:
        return max_offsets(self._subscribed.brokers, self._subscribed.queues(list(self._known)))

    def _check_topics(self, start: Position) -> None:
        """Raises OptionError for a checkpoint none of whose queues is read here."""
        if self._is_ours:
            return
        topics = sorted({queue.topic for queue in start.offsets})
        if topics and not any(map(self._reads, topics)):
            raise OptionError(
                f"the checkpoint is of topic {', '.join(topics)}, which this query does not read: "
                "give the query a checkpointLocation of its own"
            )
        self._is_ours = True

    def _reads(self, topic: str) -> bool:
        return topic in self.options.topics or self.options.wants_topic(topic)

    def _say_away(self) -> None:
        """Warn of queues that cannot be reached, once for each change; DataLoss for those that
        their broker does not have any more."""
        away = sorted(set(self._known) - set(self.highest))
        if away == self._away:
            return
        self._away = away
        brokers = {(queue.topic, queue.broker) for queue in self.highest}
        for queue in away:
            text = f"{queue}: was read up to offset {self._known[queue]}"
            if not self._reads(queue.topic) or not self.options.wants(queue):
                log.warning("%s, and is not read any more; its place is kept", text)
            elif (queue.topic, queue.broker) in brokers:
                self._subscribed.report_loss(f"{text}, and its topic has no such queue any more")
            else:
                log.warning(
                    "%s, has no route and is waited for; if its broker has left for good, its "
                    "unread messages are lost; the other queues are read on", text,
                )  # fmt: skip

    def _report_shorter(self, queue: Queue, known: int, end: int) -> None:
        mark = self._known_marks.get(queue)
        if mark is None:
            self._subscribed.report_loss(
                f"{queue}: is to be read on from offset {known}, but ends at {end}"
            )
        else:
            self._subscribed.report_loss(other_life(queue, known, mark, None))

    def _first(self, start: Position, ends: Offsets) -> Offsets:
        """The first message that is there of each queue with news.

        What retention took is not counted: a limit of a thousand would have to pass over a million
        lost messages in a thousand empty batches.
        """
        moved = {
            queue: end
            for queue, end in ends.items()
            if queue in self.highest and end != start.offsets.get(queue)
        }
        first = self._lives.begins(start, moved)
        behind = [queue for queue, end in ends.items() if end > first.get(queue, -1)]
        lowest = min_offsets(self._subscribed.brokers, behind)
        return first | {queue: max(low, first.get(queue, 0)) for queue, low in lowest.items()}

    def _waits(self, begins: Offsets, ends: Offsets, limits: BatchLimits) -> bool:
        """Whether there are too few messages for a batch, and they have not waited long enough.

        A query with the trigger availableNow does not wait for more.
        """
        lag = sum(max(0, end - begins.get(queue, end)) for queue, end in ends.items())
        now = time.monotonic()
        if not limits.least_rows or self._target is not None or not lag:
            return False
        if lag < limits.least_rows and now - self._released_at < limits.delay_s:
            return True
        self._released_at = now
        return False

    def _held_back(self, begins: Offsets, ends: Offsets, limits: BatchLimits) -> Offsets:
        lags = {queue: end - begins.get(queue, end) for queue, end in ends.items()}
        lags = {queue: lag for queue, lag in lags.items() if lag > 0}
        most = [limits.most_rows] if limits.most_rows else []
        if limits.most_bytes and lags:
            places = [(queue, begins[queue]) for queue in lags]
            sizes = mean_sizes(self._subscribed.brokers, self.options.group, places, _SAMPLE)
            total = sum(lag * sizes.get(queue, 0) for queue, lag in lags.items())
            if total > limits.most_bytes:
                most.append(max(1, int(sum(lags.values()) * limits.most_bytes / total)))
        return limited(begins, ends, min(most)) if most else ends

    # --- what to read -----------------------------------------------------------------------

    def ranges(self, start: Position, end: Position) -> list[Range]:
        """The ranges that a batch reads; DataLoss where they are gone (or a warning, as asked).

        An empty range from an offset to itself is no batch: by such a range PySpark 4.0 tells a
        source that starts again how far was planned, also when batch 0 was not finished.
        """
        self._check_topics(start)
        if start.offsets != end.offsets:
            self._drop_initial()
        self._keep(start)
        self._keep(end)
        new = [queue for queue in end.offsets if queue not in start.offsets]
        moved = {
            queue: last
            for queue, last in end.offsets.items()
            if last != start.offsets.get(queue) or end.marks.get(queue) != start.marks.get(queue)
        }
        begins = min_offsets(self._subscribed.brokers, new) | self._lives.begins(start, moved)
        begins |= self._lives.gone_ends(end, moved)
        ranges = [Range(queue, begins[queue], last) for queue, last in sorted(end.offsets.items())]
        ranges = [one if one.size >= 0 else self._backwards(one) for one in ranges]
        return self._subscribed.check([one for one in ranges if one.size > 0])

    def _backwards(self, one: Range) -> Range:
        """A start beyond the end, which no mark explains."""
        begun = (self._initial or {}).get(one.queue)
        is_initial = self._asked and begun == one.start
        if is_initial and self.options.start.moves:
            raise DataLoss(
                f"{one.queue}: the first batch was planned to end at offset {one.end}, but the "
                f"start was resolved anew, at {one.start}. Without option consumerGroup the start "
                "of a stream is not kept. Begin with a new checkpoint, and with "
                "startingTimestamp or startingOffsets that reach back far enough"
            )
        # If the user named the start, nothing before it is read.
        lowest = min_offsets(self._subscribed.brokers, [one.queue])[one.queue]
        begin = one.end if is_initial else min(lowest, one.end)
        self._subscribed.report_loss(
            f"{one.queue}: the batch begins at {one.start} and ends at {one.end}"
            f"{self._lives.and_on(begin, one.end)}"
        )
        return Range(one.queue, begin, one.end)

    # --- afterwards -------------------------------------------------------------------------

    def done(self, end: Position) -> None:
        """A batch is committed. Failing to tell the brokers is a warning: it is display only."""
        if not self.options.commit_offsets:
            return
        try:
            store_group_offsets(self._subscribed.brokers, self.options.group, end.offsets)
        except PipelineError as error:
            log.warning("offsets not committed group=%s error=%s", self.options.group, error)
