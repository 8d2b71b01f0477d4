"""Plans a run of deletion: the dry run and the real run read the same plan.

Segments go from the oldest on, never one in the middle, never the last one, and only if all of it
is durable, dispatched and synced in the queues: the caller passes that mark as `safe_end`. If a
group still needs messages that go, that is found out, logged and counted, but does not keep them:
the time and the space that were set decide, as in the reference.

It is pure, but for the times, which it asks for one segment after the other.
"""

from collections.abc import Callable, Mapping, Sequence
from os.path import dirname
from typing import NamedTuple, TypeAlias

from aerobee.store.background.retention.segment_times import LastStored, SegmentPlace, dated
from aerobee.store.background.retention.triggers import FORCED, RetentionRules, Verdict

#: Most segments one run deletes (store/FORMAT.md 10.1).
MOST_A_RUN = 10

#: Committed offsets: (topic, queue id) -> group -> queue offset that it will consume next.
OffsetsByQueue: TypeAlias = Mapping[tuple[str, int], Mapping[str, int]]


class Doomed(NamedTuple):
    """A segment that goes. `reason` is the trigger, or FORCED if it has not expired."""

    path: str
    start: int
    end: int
    last: LastStored
    reason: str


class Need(NamedTuple):
    """A group that has not consumed `messages` that go; the first is at `queue_offset`."""

    group: str
    topic: str
    queue_id: int
    queue_offset: int
    messages: int


class RetentionPlan(NamedTuple):
    """Everything that a run would delete, oldest first."""

    now_ms: int
    verdict: Verdict
    doomed: tuple[Doomed, ...] = ()
    #: The reason why no more than that goes, for people.
    stopped_by: str = ""
    needs: tuple[Need, ...] = ()

    @property
    def bytes(self) -> int:
        """Disk space that becomes free."""
        return sum(one.end - one.start for one in self.doomed)

    @property
    def new_min(self) -> int | None:
        """Log offset at which the log would begin; None if nothing goes."""
        return self.doomed[-1].end if self.doomed else None


def choose(
    rules: RetentionRules,
    verdict: Verdict,
    segments: Sequence[SegmentPlace],
    last_stored: Callable[[SegmentPlace, SegmentPlace], LastStored],
    safe_end: int,
    now_ms: int,
    most: int = MOST_A_RUN,
) -> RetentionPlan:
    """The segments that go at `now_ms`, oldest first. `last_stored` may raise OSError.

    `segments` is the whole log; the last segment is still being written.
    """
    doomed: list[Doomed] = []

    def up_to_here(stopped_by: str) -> RetentionPlan:
        return RetentionPlan(now_ms, verdict, tuple(doomed), stopped_by)

    if not verdict.triggers:
        return up_to_here("neither the hour nor a disk triggers deletion")
    freed: dict[str, int] = {}
    for number, segment in enumerate(segments[:-1]):
        if len(doomed) >= most:
            return up_to_here(f"at most {most} segments go in one run")
        if segment.end > safe_end:
            return up_to_here("the next one is not wholly synced and dispatched yet")
        last = dated(segments, number, now_ms, last_stored)
        reason = verdict.triggers[0]
        if now_ms < last.time_ms + rules.retention_ms:
            if not verdict.forced:
                return up_to_here("the next one has not expired")
            if verdict.relieved(freed):
                return up_to_here("what goes makes enough room")
            reason = FORCED
        directory = dirname(segment.path)
        freed[directory] = freed.get(directory, 0) + segment.end - segment.start
        doomed.append(Doomed(segment.path, segment.start, segment.end, last, reason))
    return up_to_here("the last segment never goes")


def needs_in_queue(
    offsets: Mapping[str, int], topic: str, queue_id: int, begin: int, keep_from: int
) -> list[Need]:
    """The groups that have not consumed all of [begin, keep_from) of a queue, most behind first."""
    needs = [
        Need(group, topic, queue_id, max(begin, committed), messages)
        for group, committed in offsets.items()
        if (messages := unconsumed(committed, begin, keep_from))
    ]
    return sorted(needs, key=lambda need: -need.messages)


def unconsumed(committed: int, begin: int, end: int) -> int:
    """The number of messages of [begin, end) of a queue that a group has not consumed."""
    return max(0, end - max(begin, committed))
