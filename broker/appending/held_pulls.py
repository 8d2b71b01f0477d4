"""Pulls that found nothing and wait for a message (long polling).

A pull that asked to be suspended is held by (topic, queue). It leaves when a message that its
filter accepts arrives at or after its offset, by its tag or its properties, or when its time is
over; then it runs once more and is answered with whatever it finds (protocol/WIRE.md 3.2,
store/FORMAT.md 9). It leaves too when its member says that it wants something else: then it gets
nothing and is sent to pull again, because a client chooses among what it gets by what it wanted
when it asked. The reference looks at expiries every 5 s, so a 2 s wait may last 5; here the sweep
runs five times a second.

Bounded: a hold lasts at most `MAX_HOLD_S`, and there are at most `limit` of them, with
`limit_bytes` of what they keep together: of each its place in its queue, its numbers, its names
and its filter. Past that a pull is answered at once with
PULL_NOT_FOUND, which clients meet by asking again.

Spread: one message may answer 50,000 pulls. They are looked at and answered in slices (`Turns`);
what arrives meanwhile is noted and looked at next.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

from aerobee.config.model import Settings
from aerobee.protocol.filters.property_filter import MessageFilter
from aerobee.protocol.filters.subscription import Subscription
from aerobee.protocol.frames.command import Command
from aerobee.protocol.frames.pending_request import keep_for_answer, text_bytes
from aerobee.protocol.headers.client import PullMessageHeader
from aerobee.remoting.connections.connection import Connection
from aerobee.remoting.turns import Spread, Turns
from aerobee.store.message_store import MessageStore
from aerobee.store.segments.results import Arrival

MAX_HOLD_S = 120.0

# Memory of a held pull beside its names and its filter: request, header, the place in the table.
_PULL_BYTES = 1024
# A tag's hash, beside its place in the set.
_CODE_BYTES = 32
# Pulls that are looked at in one step: some tenths of a millisecond.
_STEP = 256
# Bounds of judging by properties, in tenths of a microsecond: for a step, and for all arrivals of a
# queue, before they are left to the pulls themselves; likewise the most messages. A message that is
# looked up takes some 5 us.
_STEP_COST = 3_000
_DEAR = 100_000
_MOST_ARRIVED = 512
_LOOK_COST = 50
_LOOKS = 32
# Topics of members that want something else of them, between two looks. The pulls of further ones
# leave when their time is over or something arrives, and are sent to pull again then.
_MOST_RESTATED = 10_000
# Bytes of properties that take a tenth of a microsecond.
_PROPERTY_BYTES = 3

_Key = tuple[str, int]
#: A topic of which the member at a connection in a group wants something else.
_Restated = tuple[str, Connection, str]
#: (queue offset, tag hash) of messages that arrived in a queue.
_Arrived = list[tuple[int, int]]


class HeldPull(NamedTuple):
    """A waiting pull. `codes` is its tag filter, None for all; `wanted` is the filter over
    properties of a pull that has such a filter instead; `stated` is its member's statement about
    the topic, if any, when it came; times are those of the table's clock."""

    since: float
    deadline: float
    connection: Connection
    request: Command
    header: PullMessageHeader
    codes: frozenset[int] | None
    replay: Callable[[HeldPull], None]
    wanted: MessageFilter | None = None
    stated: Subscription | None = None


#: Steps that end with what says whether a pull leaves.
_Judging: TypeAlias = Generator[None, None, Callable[[HeldPull], bool]]
#: Judges the pulls held in a queue, of which it is given a list, by what has arrived there.
_Judge: TypeAlias = Callable[[_Key, _Arrived, list[HeldPull]], _Judging]


class HeldPulls:
    """Held pulls by (topic, queue id). Loop thread only."""

    def __init__(
        self, settings: Settings, clock: Callable[[], float], turns: Turns, store: MessageStore
    ) -> None:
        """`store` has the properties that a pull by expression is judged by."""
        self._clock = clock
        # Its limits may change.
        self._settings = settings
        self._by_tags = _Lane(turns, _by_tags)
        self._by_properties = _Lane(turns, partial(_by_properties, store))
        self._lanes = (self._by_tags, self._by_properties)
        #: How often a pull found no room.
        self.refused = 0

    def __len__(self) -> int:
        return self._by_tags.count + self._by_properties.count

    @property
    def bytes(self) -> int:
        """Bytes of what is held."""
        return self._by_tags.bytes + self._by_properties.bytes

    def hold(
        self,
        connection: Connection,
        request: Command,
        header: PullMessageHeader,
        codes: frozenset[int] | None,
        hold_s: float,
        replay: Callable[[HeldPull], None],
        wanted: MessageFilter | None = None,
        stated: Subscription | None = None,
    ) -> bool:
        """Keep a pull for up to `hold_s` seconds; False when there is no room for it.

        `replay` answers it when it leaves, and must not raise: the pulls that leave with it have
        left the table already. `request` and what is held of `header` keep only what that needs.
        """
        cost = _cost(header, codes, wanted)
        if (
            len(self) >= self._settings.held_pulls
            or self.bytes + cost > self._settings.held_pull_bytes
        ):
            self.refused += 1
            return False
        now = self._clock()
        deadline = now + min(hold_s, MAX_HOLD_S)
        lane = self._by_tags if wanted is None else self._by_properties
        keep_for_answer(request)
        header = header.without_filter()
        pull = HeldPull(now, deadline, connection, request, header, codes, replay, wanted, stated)
        lane.hold(pull, cost)
        return True

    def each_queue(self) -> Iterator[tuple[HeldPull, ...]]:
        """The pulls that are held, some at a time. Those that come or leave meanwhile may be
        missing."""
        for lane in self._lanes:
            yield from lane.each_queue()

    def held_s(self, pull: HeldPull) -> float:
        """Seconds that a pull has been held so far."""
        return self._clock() - pull.since

    def waiting(self, topic: str, queue_id: int, group: str) -> Connection | None:
        """The connection by which a member of a group waits in a queue; None if none is among the
        first pulls that are held there."""
        for lane in self._lanes:
            for pull in lane.held_in((topic, queue_id))[:_LOOKS]:
                if pull.header.consumer_group == group and not pull.connection.closed:
                    return pull.connection
        return None

    def arrived(self, arrivals: Iterable[Arrival]) -> None:
        """Replay the pulls that messages answer: as many as a slice allows, the others in the
        next turns."""
        for lane in self._lanes:
            if lane.count:
                lane.arrived(arrivals)

    def restated(self, connection: Connection, group: str, topics: Iterable[str]) -> None:
        """Replay the pulls of a member that now wants something else of these topics."""
        for lane in self._lanes:
            if lane.count:
                lane.restated(connection, group, topics)

    def sweep(self) -> None:
        """Replay what has waited long enough; forget those of closed connections."""
        now = self._clock()
        for lane in self._lanes:
            lane.sweep(now)

    def release_all(self) -> None:
        """Replay everything, now: the broker is stopping."""
        for lane in self._lanes:
            lane.release_all()


class _Lane:
    """Pulls that are judged in the same way. One lane's judging does not keep the other's waiting:
    that by properties may be dear."""

    __slots__ = (
        "_arrived",
        "_held",
        "_judge",
        "_judged",
        "_leaving",
        "_restated",
        "_steps",
        "_sweep_until",
        "_sweeping",
        "_work",
        "bytes",
        "count",
    )

    def __init__(self, turns: Turns, judge: _Judge) -> None:
        self._judge = judge
        self._held: dict[_Key, list[HeldPull]] = {}
        self.count = 0
        self.bytes = 0
        # Arrivals for queues whose pulls are still to be looked at.
        self._arrived: dict[_Key, _Arrived] = {}
        # The queue whose pulls are being looked at; those that were not yet are in nobody's list.
        self._judged: _Key | None = None
        # A sweep that is to begin, and whether one is under way.
        self._sweep_until: float | None = None
        self._sweeping = False
        # Members that want something else of a topic, whose pulls are to be looked for: one look
        # at the pulls is for all that have said so since the look before.
        self._restated: set[_Restated] = set()
        # Out of the table, to be replayed.
        self._leaving: deque[HeldPull] = deque()
        self._steps = self._endless_steps()
        self._work = Spread(turns, self._step)

    def hold(self, pull: HeldPull, cost: int) -> None:
        """Keep a pull."""
        self._held.setdefault((pull.header.topic, pull.header.queue_id), []).append(pull)
        self.count += 1
        self.bytes += cost

    def each_queue(self) -> Iterator[tuple[HeldPull, ...]]:
        """The pulls of each queue, `_STEP` at a time."""
        for key in list(self._held):
            pulls = tuple(self._held.get(key, ()))
            for at in range(0, len(pulls), _STEP):
                yield pulls[at : at + _STEP]

    def held_in(self, key: _Key) -> Sequence[HeldPull]:
        """The pulls that are held in a queue, without those that are being looked at now."""
        return self._held.get(key, ())

    def arrived(self, arrivals: Iterable[Arrival]) -> None:
        """Note what has arrived, and judge by it."""
        held, arrived = self._held, self._arrived
        for one in arrivals:
            key = (one.topic, one.queue_id)
            if key in held or key == self._judged:
                arrived.setdefault(key, []).append((one.queue_offset, one.tags_code))
        self._work.go_on()

    def restated(self, connection: Connection, group: str, topics: Iterable[str]) -> None:
        """Replay the pulls that a member has in these topics."""
        for topic in topics:
            if len(self._restated) >= _MOST_RESTATED:
                break
            self._restated.add((topic, connection, group))
        self._work.go_on()

    def sweep(self, now: float) -> None:
        """Replay what has waited until `now`; forget those of closed connections."""
        self._sweep_until = now
        self._work.go_on()

    def release_all(self) -> None:
        """Replay everything, now."""
        while self._arrived or self._judged is not None or self._sweeping:
            next(self._steps)
        for key in list(self._held):
            self._leaving += self._held.pop(key)
        while self._leaving:
            self._replay()

    # --- inside

    def _step(self) -> bool:
        """Judge some pulls, or replay one; False when nothing is to be done."""
        due = self._sweep_until is not None or self._sweeping or self._restated
        if not (self._arrived or self._leaving or self._judged is not None or due):
            return False
        next(self._steps)
        return True

    def _endless_steps(self) -> Generator[None, None, None]:
        """Judges the pulls of the queues in which something arrived, and replays."""
        while True:
            while self._leaving:
                self._replay()
                yield
            # Each in its turn: none of them, however often there is something to do, keeps the
            # others waiting.
            if self._restated:
                yield from self._sweep_restated()
            if self._sweep_until is not None:
                now, self._sweep_until = self._sweep_until, None
                yield from self._sweep_all(now)
            if self._arrived:
                yield from self._judge_one()
            else:
                yield

    def _sweep_all(self, now: float) -> Generator[None, None, None]:
        """Looks at all pulls; those whose time is over leave between two looks."""

        def goes(pull: HeldPull) -> bool:
            return pull.deadline <= now or pull.connection.closed

        yield from self._sweep_queues(goes, None)

    def _sweep_restated(self) -> Generator[None, None, None]:
        """Looks at the pulls of the topics of which members want something else."""
        restated, self._restated = self._restated, set()

        def goes(pull: HeldPull) -> bool:
            return (pull.header.topic, pull.connection, pull.header.consumer_group) in restated

        yield from self._sweep_queues(goes, {topic for topic, _, _ in restated})

    def _sweep_queues(
        self, goes: Callable[[HeldPull], bool], topics: Container[str] | None
    ) -> Generator[None, None, None]:
        """Looks at the pulls of the queues of these topics, None: of all."""
        self._sweeping = True
        looked_at = 0
        for key in list(self._held):
            if topics is not None and key[0] not in topics:
                looked_at += 1
                if looked_at >= _STEP:
                    looked_at = 0
                    yield
                continue
            pulls = self._held.pop(key, [])
            self._judged = key
            for start in range(0, len(pulls), _STEP):
                some = pulls[start : start + _STEP]
                if staying := self._parted(some, goes):
                    self._held.setdefault(key, []).extend(staying)
                looked_at += len(some)
                if looked_at >= _STEP:
                    looked_at = 0
                    yield
            self._judged = None
            while self._leaving:
                self._replay()
                yield
        self._sweeping = False

    def _judge_one(self) -> Generator[None, None, None]:
        """Judges the pulls of one queue. What it knows of them goes with it: the steps are never
        at their end, and would keep the last queue's pulls and their connections."""
        key = next(iter(self._arrived))
        arrived = self._arrived.pop(key)
        pulls = self._held.pop(key, [])
        self._judged = key
        goes = yield from self._judge(key, arrived, pulls)
        for start in range(0, len(pulls), _STEP):
            # Out of the table before any replay: a replay may hold the same pull's successor.
            some = pulls[start : start + _STEP]
            staying = self._parted(some, goes)
            if staying:
                self._held.setdefault(key, []).extend(staying)
            yield
        self._judged = None

    def _parted(self, pulls: list[HeldPull], goes: Callable[[HeldPull], bool]) -> list[HeldPull]:
        """Those that stay; the others are leaving."""
        staying: list[HeldPull] = []
        for pull in pulls:
            (self._leaving if goes(pull) else staying).append(pull)
        return staying

    def _replay(self) -> None:
        pull = self._leaving.popleft()
        self.count -= 1
        self.bytes -= _cost(pull.header, pull.codes, pull.wanted)
        if not pull.connection.closed:
            pull.replay(pull)


def _cost(
    header: PullMessageHeader, codes: frozenset[int] | None, wanted: MessageFilter | None
) -> int:
    cost = _PULL_BYTES + text_bytes(header.consumer_group) + text_bytes(header.topic)
    if wanted is not None:
        # Those of groups are counted where they are remembered; one of a pull's own lives with it.
        return cost + wanted.size
    return cost + (sys.getsizeof(codes) + _CODE_BYTES * len(codes) if codes else 0)


def _by_tags(_key: _Key, arrived: _Arrived, _pulls: list[HeldPull]) -> _Judging:
    """By the hashes of the tags, which are at hand."""
    yield from ()
    return partial(_answered_by, arrived)


def _answered_by(messages: _Arrived, pull: HeldPull) -> bool:
    asked_offset = pull.header.queue_offset
    codes = pull.codes
    for queue_offset, tags_code in messages:
        if queue_offset >= asked_offset and (codes is None or tags_code in codes):
            return True
    return False


def _by_properties(
    store: MessageStore, key: _Key, arrived: _Arrived, pulls: list[HeldPull]
) -> _Judging:
    """By the messages' properties: each filter, which many pulls may share, finds the last message
    that it wants. When that becomes dear, the others are taken to want the last one of all: their
    pulls are repeated, which judges again, in turns with those of everybody else."""
    newest = max([queue_offset for queue_offset, _ in arrived])
    last: dict[MessageFilter, int] = {}
    left = _DEAR if len(arrived) <= _MOST_ARRIVED else 0
    properties: list[bytes | None] = []
    for queue_offset, _ in reversed(arrived if left else []):
        properties.append(store.reader.properties_at(*key, queue_offset))
        left -= _LOOK_COST
        if len(properties) % _LOOKS == 0:
            yield
    for number, pull in enumerate(pulls, 1):
        if number % _STEP == 0:
            yield
        wanted = pull.wanted
        if wanted is None or wanted in last:
            continue
        last[wanted] = newest
        if left <= 0:
            continue
        spent = 0
        last[wanted] = -1
        for (queue_offset, _), text in zip(reversed(arrived), properties, strict=True):
            spent += wanted.cost + (len(text) // _PROPERTY_BYTES if text else 0)
            if text is None or wanted.matches(text):
                last[wanted] = queue_offset
                break
            if spent >= _STEP_COST:
                left, spent = left - spent, 0
                yield
        left -= spent
        if spent:
            yield
    return lambda pull: pull.wanted is None or last[pull.wanted] >= pull.header.queue_offset
