"""What retention would delete for a given age or size, and what each group would lose by it.

Whole segments go, oldest first, never the last one; a segment is as old as its last message. A
group loses the messages of its queues between where it stands and where the queue would begin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from aerobee.protocol.frames.fastjson import loads

#: (topic, queue id): the queue's first offset, the one behind its last, and for a log offset the
#: first offset of a message at or above it.
QueueEnds = tuple[int, int, Callable[[int], int]]

_GROUP = "@"


class SegmentFacts(NamedTuple):
    """Log offsets [start, end), bytes on disk, and the store time of its last message."""

    start: int
    end: int
    size: int
    last_ms: int


class Policy(NamedTuple):
    """An age in hours, a total size of the log in bytes, or both: what breaks one of them goes."""

    hours: float | None = None
    size: int | None = None

    @property
    def name(self) -> str:
        """For a report's row."""
        parts = [f"{self.hours:g} h"] if self.hours is not None else []
        return " or ".join([*parts, *([f"{self.size} bytes"] if self.size is not None else [])])


class Outcome(NamedTuple):
    """What a policy does to the log. `begin` is the log offset it begins at then."""

    policy: str
    segments: int
    freed: int
    left: int
    begin: int
    oldest_ms: int


class Loss(NamedTuple):
    """What a group loses in one queue: messages not consumed yet, and those that stay."""

    policy: str
    group: str
    topic: str
    queue_id: int
    committed: int
    behind: int
    lost: int


class Committed(NamedTuple):
    """Where a group stands in a queue."""

    group: str
    topic: str
    queue_id: int
    offset: int


def outcome(policy: Policy, segments: Sequence[SegmentFacts], now_ms: int) -> Outcome:
    """Apply the policy to the segments (in order, at least one)."""
    assert segments
    left = sum(one.size for one in segments)
    gone = 0
    for one in segments[:-1]:
        is_old = policy.hours is not None and one.last_ms + policy.hours * 3_600_000 <= now_ms
        is_beyond = policy.size is not None and left > policy.size
        if not is_old and not is_beyond:
            break
        left -= one.size
        gone += 1
    freed = sum(one.size for one in segments[:gone])
    first = segments[gone]
    oldest_ms = segments[gone - 1].last_ms if gone else first.last_ms
    return Outcome(policy.name, gone, freed, left, first.start, oldest_ms)


def losses(
    result: Outcome,
    committed: Iterable[Committed],
    queues: Callable[[str, int], QueueEnds | None],
) -> Iterator[Loss]:
    """What each group that is behind would lose; queues that are gone count for nothing."""
    for one in committed:
        ends = queues(one.topic, one.queue_id)
        if ends is None:
            continue
        first, end, first_at = ends
        stands = max(first, one.offset)
        if stands >= end:
            continue
        begin = min(end, max(first, first_at(result.begin)))
        yield Loss(
            result.policy, one.group, one.topic, one.queue_id, one.offset, end - stands,
            max(0, begin - stands),
        )  # fmt: skip


def committed_offsets(data: bytes) -> Iterator[Committed]:
    """What `consumerOffset.json` or `lmqConsumerOffset.json` say; JsonError when it is no JSON."""
    table = loads(data)
    if not isinstance(table, dict):
        return
    for key, queues in _member(table, "offsetTable"):
        topic, _, group = key.rpartition(_GROUP)
        for number, offset in queues.items() if isinstance(queues, dict) else ():
            if str(number).isdecimal() and isinstance(offset, int):
                yield Committed(group, topic, int(number), offset)
    for key, offset in _member(table, "lmqOffsetTable"):
        topic, _, group = key.rpartition(_GROUP)
        if isinstance(offset, int):
            yield Committed(group, topic, 0, offset)


def _member(table: dict[str, object], name: str) -> Iterator[tuple[str, object]]:
    found = table.get(name)
    if isinstance(found, dict):
        yield from found.items()
