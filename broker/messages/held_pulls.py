"""Pulls that found nothing and wait for a message (long polling).

A pull that asked to be suspended is held by (topic, queue). It leaves when a message that its tag
filter accepts arrives at or after its offset, or when its time is over; then it runs once more and
is answered with whatever it finds (protocol/WIRE.md 3.2, store/FORMAT.md 9). The reference looks at
expiries every 5 s, so a 2 s wait may last 5; here the sweep runs five times a second.

Bounded: a hold lasts at most `MAX_HOLD_S`, and there are at most `limit` of them, with
`limit_bytes` of filters and requests together; past that a pull is answered at once with
PULL_NOT_FOUND, which clients meet by asking again.

Spread: one message may answer 50,000 pulls. They are looked at and answered in slices (`Turns`);
what arrives meanwhile is noted and looked at next.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable
from functools import partial
from typing import NamedTuple

from aerobee.protocol.filters.property_filter import MessageFilter
from aerobee.protocol.frames.command import Command
from aerobee.protocol.headers.client import PullMessageHeader
from aerobee.remoting.connection import Connection
from aerobee.remoting.turns import Spread, Turns
from aerobee.store.segments.results import Arrival

MAX_HOLD_S = 120.0

# What a held pull costs beside its filter: request, header, texts, the place in the table.
_PULL_BYTES = 1024
# A tag's hash, beside its place in the set.
_CODE_BYTES = 32
# Pulls that are looked at in one step: some tenths of a millisecond.
_STEP = 256

_Key = tuple[str, int]
#: (queue offset, tag hash) of messages that arrived in a queue.
_Arrived = list[tuple[int, int]]


class HeldPull(NamedTuple):
    """One waiting pull: `codes` is its tag filter, None for all, and `wanted` the filter over
    properties of one that has such instead; times are the table's clock's."""

    since: float
    deadline: float
    connection: Connection
    request: Command
    header: PullMessageHeader
    codes: frozenset[int] | None
    replay: Callable[[HeldPull], None]
    wanted: MessageFilter | None = None


class HeldPulls:
    """Held pulls by (topic, queue id). Loop thread only."""

    def __init__(
        self,
        clock: Callable[[], float],
        limit: Callable[[], int],
        limit_bytes: Callable[[], int],
        turns: Turns,
    ) -> None:
        """The limits are asked for at each hold: they may change."""
        self._clock = clock
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._held: dict[_Key, list[HeldPull]] = {}
        self._count = 0
        #: Bytes of what is held, and how often a pull found no room.
        self.bytes = 0
        self.refused = 0
        # What has arrived for queues whose pulls are still to be looked at.
        self._arrived: dict[_Key, _Arrived] = {}
        # The queue whose pulls are being looked at; those that were not yet are in nobody's list.
        self._judged: _Key | None = None
        # Out of the table, to be replayed.
        self._leaving: deque[HeldPull] = deque()
        self._steps = self._endless_steps()
        self._work = Spread(turns, self._step)

    def __len__(self) -> int:
        return self._count

    def hold(
        self,
        connection: Connection,
        request: Command,
        header: PullMessageHeader,
        codes: frozenset[int] | None,
        hold_s: float,
        replay: Callable[[HeldPull], None],
        wanted: MessageFilter | None = None,
    ) -> bool:
        """Keep a pull for up to `hold_s` seconds; False when there is no room for it.

        `replay` answers it when it leaves, and must not raise: the pulls that leave with it have
        left the table already.
        """
        cost = _cost(codes)
        if self._count >= self._limit() or self.bytes + cost > self._limit_bytes():
            self.refused += 1
            return False
        now = self._clock()
        deadline = now + min(hold_s, MAX_HOLD_S)
        held = HeldPull(now, deadline, connection, request, header, codes, replay, wanted)
        self._held.setdefault((header.topic, header.queue_id), []).append(held)
        self._count += 1
        self.bytes += cost
        return True

    def held_s(self, pull: HeldPull) -> float:
        """Seconds that a pull has been held so far."""
        return self._clock() - pull.since

    def arrived(self, arrivals: Iterable[Arrival]) -> None:
        """Replay the pulls that these messages answer: as many as a slice allows, the others in the
        next turns."""
        if not self._count:
            return
        held, arrived = self._held, self._arrived
        for one in arrivals:
            key = (one.topic, one.queue_id)
            if key in held or key == self._judged:
                arrived.setdefault(key, []).append((one.queue_offset, one.tags_code))
        self._work.go_on()

    def sweep(self) -> None:
        """Replay what has waited long enough; forget those of closed connections."""
        now = self._clock()
        for key, pulls in list(self._held.items()):
            staying = self._parted(pulls, lambda p: p.deadline <= now or p.connection.closed)
            if staying:
                self._held[key] = staying
            else:
                del self._held[key]
        self._work.go_on()

    def release_all(self) -> None:
        """Replay everything, now: the broker is stopping."""
        while self._arrived or self._judged is not None:
            next(self._steps)
        for key in list(self._held):
            self._leaving += self._held.pop(key)
        while self._leaving:
            self._replay()

    # --- inside

    def _step(self) -> bool:
        """Judge some pulls, or replay one; False when nothing is to be done."""
        if not (self._arrived or self._leaving or self._judged is not None):
            return False
        next(self._steps)
        return True

    def _endless_steps(self) -> Generator[None, None, None]:
        """Judges the pulls of the queues in which something arrived, and replays."""
        while True:
            while self._leaving:
                self._replay()
                yield
            if not self._arrived:
                yield
                continue
            key = next(iter(self._arrived))
            arrived = self._arrived.pop(key)
            pulls = self._held.pop(key, [])
            self._judged = key
            for start in range(0, len(pulls), _STEP):
                # Out of the table before any replay: a replay may hold the same pull's successor.
                some = pulls[start : start + _STEP]
                staying = self._parted(some, partial(_answered_by, arrived))
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
        self._count -= 1
        self.bytes -= _cost(pull.codes)
        if not pull.connection.closed:
            pull.replay(pull)


def _cost(codes: frozenset[int] | None) -> int:
    return _PULL_BYTES + (sys.getsizeof(codes) + _CODE_BYTES * len(codes) if codes else 0)


def _answered_by(messages: list[tuple[int, int]], pull: HeldPull) -> bool:
    asked_offset = pull.header.queue_offset
    codes = pull.codes
    for queue_offset, tags_code in messages:
        if queue_offset >= asked_offset and (codes is None or tags_code in codes):
            return True
    return False
