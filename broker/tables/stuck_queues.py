"""Finds the queues in which a group that is online does not come on, in slices, in the background.

A queue is *stuck* when the group's offset has stood for a minute although the group was given
messages that it has not consumed: a listener hangs, fails on the same message again and again, or
takes longer than a minute for a message. It is *left* when the group was given nothing for a minute
although messages wait for it there: a member has paused, holds too many messages, or the queue is
nobody's.

A look compares where each such queue is with where it was at the look before; nothing is counted
on the way of a send, a pull or a commit. So a span is at most one look too short, and never too
long. Queues that a group has wholly consumed are not remembered, nor are those of groups without a
member, of members that keep their own offsets, and light ones.

Bounded: `MOST_WATCHED` queues. Further ones are counted (`unwatched`), and how long they stand is
not known.

Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from aerobee.broker.tables.clients import ClientTable
from aerobee.broker.tables.lag import ConsumerLag, QueueLag
from aerobee.protocol.names import is_light

#: Queues that groups online are behind in, some 600 bytes each while a look is under way.
MOST_WATCHED: Final = 20_000
# Queues that are looked at in one step, some 5 us each.
_STEP: Final = 32

_Pair = tuple[str, str]


class _Seen(NamedTuple):
    """Where a group was in a queue, and since when (by the clock); None where it comes on."""

    committed: int
    given_out: int
    stands_since: float | None
    left_since: float | None


class Standing(NamedTuple):
    """For how many seconds a group has not come on in a queue; None where it does."""

    #: With messages that it was given and has not consumed, and whether that is too long.
    stands_s: float | None = None
    is_stuck: bool = False
    #: Given nothing, though messages wait for it, and whether that is too long.
    left_s: float | None = None
    is_left: bool = False


class StuckQueues:
    """Watches the queues of one broker. `clock` gives monotonic seconds; a queue that stands for
    `stuck_s` is stuck, or left."""

    def __init__(
        self, lag: ConsumerLag, clients: ClientTable, clock: Callable[[], float], stuck_s: float
    ) -> None:
        self._lag = lag
        self._clients = clients
        self._clock = clock
        self._stuck_s = stuck_s
        # By (group, topic) and queue id: of the last look that is over, and of the one under way.
        self._seen: dict[_Pair, dict[int, _Seen]] = {}
        self._next: dict[_Pair, dict[int, _Seen]] = {}
        self._look: Iterator[None] | None = None
        #: Queues that the last look found no room for.
        self.unwatched = 0

    def step(self) -> bool:
        """Do a little of a look, which begins if none is under way; False at its end."""
        if self._look is None:
            self._look = self._steps()
        if next(self._look, self) is self:
            self._look = None
            return False
        return True

    def standing(self, group: str, topic: str, queue_id: int) -> Standing:
        """For how long the group stands in a queue, as far as the looks have seen."""
        seen = self._seen.get((group, topic), {}).get(queue_id)
        if seen is None:
            return Standing()
        now, most = self._clock(), self._stuck_s
        since = seen.stands_since, seen.left_since
        stands_s, left_s = (None if one is None else now - one for one in since)
        return Standing(stands_s, (stands_s or 0) >= most, left_s, (left_s or 0) >= most)

    def counts(self) -> Iterator[tuple[str, str, int]]:
        """(group, topic, stuck queues) of each pair that has such queues; a step each."""
        for (group, topic), queues in list(self._seen.items()):
            found = sum(self.standing(group, topic, queue_id).is_stuck for queue_id in queues)
            yield group, topic, found

    def _steps(self) -> Iterator[None]:
        now = self._clock()
        room = MOST_WATCHED
        looked = unwatched = 0
        for live in self._clients.consumer_groups():
            yield
            for topic in list(live.subscriptions):
                if is_light(topic):
                    continue
                before = self._seen.get((live.name, topic), {})
                found: dict[int, _Seen] = {}
                for one in self._lag.queues(live.name, topic):
                    looked += 1
                    if looked % _STEP == 0:
                        yield
                    if not one.messages:
                        continue
                    if len(found) < room:
                        found[one.queue_id] = _seen_now(one, before.get(one.queue_id), now)
                    else:
                        unwatched += 1
                if found:
                    self._next[live.name, topic] = found
                    room -= len(found)
        self._seen, self._next, self.unwatched = self._next, {}, unwatched


def _seen_now(one: QueueLag, before: _Seen | None, now: float) -> _Seen:
    """Where a group is in a queue now, and since when it has not come on."""
    stands = left = None
    if one.given_out > one.begin:
        stands = now
        if before is not None and before.committed == one.committed:
            stands = now if before.stands_since is None else before.stands_since
    if one.given_out < one.end:
        left = now
        if before is not None and before.given_out == one.given_out:
            left = now if before.left_since is None else before.left_since
    return _Seen(one.committed, one.given_out, stands, left)
