"""From options to offsets: which queues are read, where they start and end, before Spark plans.

`SubscribedQueues` is the driver's view. It keeps the routes of what is subscribed and asks the name
servers again from time to time, so that new topics, new queues and brokers that moved are met
between batches without asking for each batch; a stream without new data asks a hundred times a
second. A batch read is planned here as well: once, when Spark plans a DataFrame; `stream_plan.py`
plans streams.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from aerobee.pipeline.brokers.brokers import Brokers
from aerobee.pipeline.brokers.offsets import EARLIEST, LATEST, Offsets, Queue, Range
from aerobee.pipeline.brokers.queue_offsets import max_offsets, min_offsets, offsets_at
from aerobee.pipeline.decode.selection import Selection
from aerobee.pipeline.errors import DataLoss, NoSuchTopic, OptionError
from aerobee.pipeline.source.source_options import OffsetSpec, SourceOptions
from aerobee.protocol.names import DLQ_PREFIX, RETRY_PREFIX, is_system_topic
from aerobee.remoting.errors import RemotingError

log = logging.getLogger("aerobee.pipeline")

ROUTES_INTERVAL_S: Final = 1.0


class SubscribedQueues:
    """The queues that the options name, and their offsets. One thread; close it."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.brokers = Brokers(options.access)
        self._queues: list[Queue] = []
        self._looked_at = float("-inf")

    def close(self) -> None:
        """Close the connections; it may be used again."""
        self.brokers.close()

    def queues(self, known: Sequence[Queue] = ()) -> list[Queue]:
        """The queues to read now, sorted, as known at most ROUTES_INTERVAL_S ago.

        A topic without a route is an error (NoSuchTopic), unless one of its queues is `known`:
        then its brokers are away for the moment, or it was deleted in a running stream.
        """
        now = time.monotonic()
        if now - self._looked_at >= ROUTES_INTERVAL_S:
            self._queues = self._look({queue.topic for queue in (*known, *self._queues)})
            self._looked_at = now
        return self._queues

    def _look(self, known_topics: set[str]) -> list[Queue]:
        found: list[Queue] = []
        for topic in self._topics():
            try:
                queues = self.brokers.queues(topic, refresh=True)
            except NoSuchTopic:
                if topic not in known_topics and self.options.pattern is None:
                    raise
                log.warning("topic=%s has no route at the moment", topic)
                continue
            except RemotingError as error:
                log.warning("route not refreshed topic=%s error=%s", topic, error)
                queues = self.brokers.queues(topic)
            found += [queue for queue in queues if self.options.wants(queue)]
        self._check_assigned(found, known_topics)
        return sorted(found)

    def _topics(self) -> Sequence[str]:
        if self.options.pattern is None:
            return self.options.topics
        try:
            return [
                topic
                for topic in self.brokers.topics()
                if self.options.wants_topic(topic) and not _is_internal(topic)
            ]
        except RemotingError as error:
            log.warning("topics not refreshed error=%s", error)
            return sorted({queue.topic for queue in self._queues})

    def _check_assigned(self, found: Sequence[Queue], known_topics: set[str]) -> None:
        missing = sorted((self.options.assigned or frozenset()) - set(found))
        fatal = [queue for queue in missing if queue.topic not in known_topics]
        if fatal:
            raise NoSuchTopic(f"option assign: there is no {fatal[0]}")

    # --- offsets ----------------------------------------------------------------------------

    def resolve(self, place: OffsetSpec, queues: Sequence[Queue]) -> Offsets:
        """The offset that a place means, for each queue; what is given as a number is not judged.

        OptionError when the place names a queue that is not read.
        """
        given, times = dict(place.offsets), dict(place.times)
        unknown = sorted({*given, *times} - set(queues))
        if unknown:
            raise OptionError(
                f"option {place.option}: {unknown[0]} is not read here; read are "
                f"{_spans(queues) or 'no queues'}"
            )
        if place.timestamp_ms is not None:
            times = dict.fromkeys(queues, place.timestamp_ms)
        offsets = {queue: given.get(queue, place.otherwise) for queue in queues}
        offsets |= self._at_times(times, place)
        for name, ask in ((EARLIEST, min_offsets), (LATEST, max_offsets)):
            named = [queue for queue, offset in offsets.items() if offset == name]
            offsets |= ask(self.brokers, named)
        return offsets

    def _at_times(self, times: Mapping[Queue, int], place: OffsetSpec) -> Offsets:
        offsets: Offsets = {}
        for time_ms in sorted(set(times.values())):
            asked = [queue for queue in times if times[queue] == time_ms]
            offsets |= offsets_at(self.brokers, self.options.group, asked, time_ms)
        if place.must_be_one:
            ends = max_offsets(self.brokers, list(offsets))
            none = sorted(queue for queue, offset in offsets.items() if offset >= ends[queue])
            if none:
                raise OptionError(
                    f"{none[0]}: has no message stored at {times[none[0]]} (ms since 1970) or later"
                    "; startingOffsetsByTimestampStrategy=latest starts it at its end"
                )
        return offsets

    def check(self, ranges: Sequence[Range]) -> list[Range]:
        """Returns the ranges, in the same order, cut to what their queues have.

        Raises DataLoss for a range that begins below its queue or ends beyond it; under
        failOnDataLoss=false the range is cut, with a warning.
        """
        queues = [one.queue for one in ranges]
        lowest, highest = min_offsets(self.brokers, queues), max_offsets(self.brokers, queues)
        checked = []
        for one in ranges:
            low, high = lowest[one.queue], highest[one.queue]
            start, end = max(one.start, low), min(one.end, high)
            if one.size > 0 and (start, end) != (one.start, one.end):
                self.report_loss(
                    f"{one.queue}: offsets {one.start} to {one.end - 1} are wanted, the queue has "
                    f"{low} to {high - 1}"
                )
            checked.append(Range(one.queue, start, max(start, end)))
        return checked

    def report_loss(self, text: str) -> None:
        """Raise DataLoss, or warn of it under failOnDataLoss=false."""
        if self.options.fail_on_data_loss:
            raise DataLoss(f"{text}; with failOnDataLoss=false the query goes on without them")
        log.warning("data loss %s", text)


def batch_ranges(options: SourceOptions, pushed: Selection | None = None) -> list[Range]:
    """The ranges to read, sorted by queue; empty ones are left out. `pushed` narrows them.

    Raises DataLoss for offsets given that the queue does not have, unless failOnDataLoss=false.
    """
    subscribed = SubscribedQueues(options)
    try:
        queues = subscribed.queues()
        if not queues:
            _warn_of_nothing(options)
        if pushed is not None:
            queues = [queue for queue in queues if pushed.has_queue(*queue)]
        start = _resolved(subscribed, queues, "start")
        end = _resolved(subscribed, queues, "end")
        if pushed is not None:
            _narrow(subscribed, pushed, start, end)
        elif options.start.offsets:
            _check_starts(subscribed, start, end)
        ranges = [Range(queue, start[queue], end[queue]) for queue in queues]
        return subscribed.check([one for one in ranges if one.size > 0])
    finally:
        subscribed.close()


def _spans(queues: Iterable[Queue]) -> str:
    """The queues by topic and broker."""
    numbers: dict[tuple[str, str], list[int]] = defaultdict(list)
    for queue in queues:
        numbers[queue.topic, queue.broker].append(queue.number)
    return ", ".join(
        f"queues {min(found)} to {max(found)} of topic {topic}, broker {broker}"
        for (topic, broker), found in sorted(numbers.items())
    )


def _warn_of_nothing(options: SourceOptions) -> None:
    """No rows are an answer, but a misspelt pattern gives them too."""
    if options.pattern is not None:
        log.warning(
            "option subscribePattern: %r matches no topic: there are no rows", options.pattern
        )


def _resolved(subscribed: SubscribedQueues, queues: list[Queue], which: str) -> Offsets:
    place = subscribed.options.start if which == "start" else subscribed.options.end
    resolved = subscribed.resolve(place, subscribed.queues())
    return {queue: resolved[queue] for queue in queues}


def _check_starts(subscribed: SubscribedQueues, start: Offsets, end: Offsets) -> None:
    for queue in sorted(start):
        if start[queue] > end[queue]:
            subscribed.report_loss(
                f"{queue}: reading begins at {start[queue]}, but ends at {end[queue]}"
            )


def _narrow(subscribed: SubscribedQueues, pushed: Selection, start: Offsets, end: Offsets) -> None:
    queues, group = list(start), subscribed.options.group
    for queue in queues:
        start[queue] = max(start[queue], pushed.start_offset or 0)
        if pushed.end_offset is not None:
            end[queue] = min(end[queue], pushed.end_offset)
    if pushed.start_ms is not None:
        first = offsets_at(subscribed.brokers, group, queues, pushed.start_ms)
        start |= {queue: max(start[queue], first[queue]) for queue in queues}
    if pushed.end_ms is not None:
        last = offsets_at(subscribed.brokers, group, queues, pushed.end_ms)
        end |= {queue: min(end[queue], last[queue]) for queue in queues}


def _is_internal(topic: str) -> bool:
    """Topics that a pattern does not mean: the system's, and those of groups."""
    return is_system_topic(topic) or topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
