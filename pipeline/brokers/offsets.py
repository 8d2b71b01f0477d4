"""Offsets of many queues: their JSON, limits shared over them, ranges split into partitions. Pure.

The JSON is that of RocketMQ's own Spark connector, `{topic: {broker: {"queue": offset}}}`, and is
also what a stream's checkpoint holds, with the last message read of each queue beside it under
`/last`, a name no topic can have. -2 stands for the earliest message, -1 for the end; neither
occurs in a checkpoint. Everything comes out sorted, so that equal offsets are equal text: Spark
compares the text to see whether there is anything new.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any, Final, NamedTuple

from aerobee.pipeline.option_map import parse_time_ms

EARLIEST: Final = -2
LATEST: Final = -1


class Queue(NamedTuple):
    """One queue of a topic on one broker."""

    topic: str
    broker: str
    number: int

    def __str__(self) -> str:
        return f"topic {self.topic}, broker {self.broker}, queue {self.number}"


Offsets = dict[Queue, int]
"""The offset of the next message to read, by queue."""

JsonOffsets = dict[str, dict[str, dict[str, int]]]

_MARKS: Final = "/last"


class Mark(NamedTuple):
    """Distinguishes a message from all others that its queue may have at that offset, by its place
    in the broker's log (bytes) and the time when it was stored (ms)."""

    log_offset: int
    store_ms: int


class Position(NamedTuple):
    """The place of a stream: `offsets`, and the message before each, if it is known."""

    offsets: Offsets
    marks: dict[Queue, Mark]


class Range(NamedTuple):
    """The offsets [start, end) of a queue."""

    queue: Queue
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


def to_json(offsets: Mapping[Queue, int]) -> JsonOffsets:
    """The nested form, sorted by topic, broker and queue."""
    nested: JsonOffsets = {}
    for queue in sorted(offsets):
        brokers = nested.setdefault(queue.topic, {})
        brokers.setdefault(queue.broker, {})[str(queue.number)] = offsets[queue]
    return nested


def from_json(value: Any, lowest: int = 0) -> Offsets:
    """Offsets from the nested form. ValueError names the place that is wrong.

    `lowest` is EARLIEST where the two names for ends are allowed.
    """

    def offset_of(value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < lowest:
            raise ValueError("is no offset")
        return value

    return _by_queue(value, offset_of)


def _by_queue(value: Any, read: Callable[[Any], int]) -> Offsets:
    offsets: Offsets = {}
    for topic, brokers in _members(value, "the offsets").items():
        if topic == _MARKS:
            continue
        for broker, queues in _members(brokers, f"topic {topic!r}").items():
            for number, offset in _members(queues, f"broker {broker!r} of {topic!r}").items():
                queue = Queue(topic, broker, _queue_number(number))
                try:
                    offsets[queue] = read(offset)
                except ValueError as error:
                    raise ValueError(f"{queue}: {offset!r} {error}") from None
    return offsets


def position_to_json(position: Position) -> dict[str, Any]:
    """Offsets, and with them the marks, as a checkpoint holds them."""
    nested: dict[str, Any] = dict(to_json(position.offsets))
    marks: dict[str, dict[str, dict[str, list[int]]]] = {}
    for queue in sorted(position.marks):
        brokers = marks.setdefault(queue.topic, {})
        brokers.setdefault(queue.broker, {})[str(queue.number)] = list(position.marks[queue])
    return {_MARKS: marks, **nested} if marks else nested


def position_from_json(value: Any) -> Position:
    """The position in a checkpoint, of whichever version. ValueError as `from_json`."""
    offsets = from_json(value)
    marks: dict[Queue, Mark] = {}
    for topic, brokers in _members(value.get(_MARKS, {}), "the marks").items():
        for broker, queues in _members(brokers, f"marks of {topic!r}").items():
            for number, mark in _members(queues, f"marks of {broker!r}").items():
                queue = Queue(topic, broker, _queue_number(number))
                if not isinstance(mark, list) or [type(one) for one in mark] != [int, int]:
                    raise ValueError(f"{queue}: {mark!r} is no mark of a message")
                marks[queue] = Mark(*mark)
    return Position(offsets, marks)


def parse_offsets(text: str) -> Offsets:
    """Offsets that a user wrote, -2 and -1 among them. ValueError as `from_json`."""
    return from_json(_loads(text), EARLIEST)


def parse_times(text: str) -> dict[Queue, int]:
    """Times in ms by queue, in the form of offsets; each a number of them, or a text in ISO 8601.
    ValueError as `from_json`."""

    def time_of(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            raise ValueError("is no time")
        return parse_time_ms(str(value))

    return _by_queue(_loads(text), time_of)


def parse_assign(text: str) -> frozenset[Queue]:
    """The queues of `{topic: {broker: [queue, ...]}}`. ValueError names what is wrong."""
    queues: set[Queue] = set()
    for topic, brokers in _members(_loads(text), "the assignment").items():
        for broker, numbers in _members(brokers, f"topic {topic!r}").items():
            if not isinstance(numbers, list) or not numbers:
                raise ValueError(f"broker {broker!r} of {topic!r} must have a list of queues")
            queues |= {Queue(topic, broker, _queue_number(number)) for number in numbers}
    if not queues:
        raise ValueError("no queue is named")
    return frozenset(queues)


def _loads(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON: {error}") from error


def _members(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} must be an object, found {json.dumps(value)[:60]}")
    return value


def _queue_number(value: Any) -> int:
    text = str(value)
    if isinstance(value, bool) or not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise ValueError(f"{value!r} is no queue number")
    return int(text)


def limited(start: Mapping[Queue, int], end: Mapping[Queue, int], most: int) -> Offsets:
    """Ends so that at most `most` messages lie in between, shared in proportion to each lag.

    Every queue of `end` is in the result; a queue that `start` lacks stays at its end. The shares
    are rounded so that they add up to `most`: with any lag at all, something is read.
    """
    assert most > 0
    lags = {queue: max(0, last - start.get(queue, last)) for queue, last in end.items()}
    total = sum(lags.values())
    if total <= most:
        return dict(end)
    shares = {queue: lag * most // total for queue, lag in lags.items()}
    left = most - sum(shares.values())
    # The largest remainders get one more each; of equal ones the first queues.
    by_remainder = sorted(lags, key=lambda queue: (-(lags[queue] * most % total), queue))
    for queue in by_remainder[:left]:
        shares[queue] += 1
    return {queue: last - lags[queue] + shares[queue] for queue, last in end.items()}


def split(ranges: Iterable[Range], at_least: int | None, most: int | None = None) -> list[Range]:
    """The ranges that have messages, the largest cut first, until there are `at_least` of them and
    each has `most` messages at most.

    Pieces of one range differ by one message at most; no piece is empty. Sorted by queue and start.
    """
    whole = sorted(one for one in ranges if one.size > 0)
    pieces = [-(-one.size // most) if most else 1 for one in whole]
    heap = [
        (-float(one.size) / pieces[number], number)
        for number, one in enumerate(whole)
        if pieces[number] < one.size
    ]
    heapq.heapify(heap)
    for _ in range((at_least or 0) - sum(pieces)):
        if not heap:
            break
        _, number = heapq.heappop(heap)
        pieces[number] += 1
        if pieces[number] < whole[number].size:
            heapq.heappush(heap, (-whole[number].size / pieces[number], number))
    return [
        piece
        for one, count in zip(whole, pieces, strict=True)
        for piece in _cut(one, min(count, one.size))
    ]


def _cut(whole: Range, count: int) -> list[Range]:
    marks = [whole.start + whole.size * number // count for number in range(count + 1)]
    return [Range(whole.queue, first, last) for first, last in pairwise(marks)]
