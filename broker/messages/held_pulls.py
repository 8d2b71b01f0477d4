"""Pulls that found nothing and wait for a message (long polling).

A pull that asked to be suspended is held by (topic, queue). It leaves when a message that its tag
filter accepts arrives at or after its offset, or when its time is over; then it runs once more and
is answered with whatever it finds (protocol/WIRE.md 3.2, store/FORMAT.md 9). The reference looks at
expiries every 5 s, so a 2 s wait may last 5; here the sweep runs five times a second.

Bounded: a hold lasts at most `MAX_HOLD_S`, and there are at most `limit` of them; past that a pull
is answered at once with PULL_NOT_FOUND, which clients meet by asking again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from aerobee.protocol.frames.command import Command
from aerobee.protocol.headers.client import PullMessageHeader
from aerobee.remoting.connection import Connection
from aerobee.store.segments.results import Arrival

MAX_HOLD_S = 120.0


class HeldPull(NamedTuple):
    """One waiting pull: `codes` is its tag filter, None for all; times are the table's clock's."""

    since: float
    deadline: float
    connection: Connection
    request: Command
    header: PullMessageHeader
    codes: frozenset[int] | None
    replay: Callable[[HeldPull], None]


class HeldPulls:
    """Held pulls by (topic, queue id). Loop thread only."""

    def __init__(self, clock: Callable[[], float], limit: int) -> None:
        self._clock = clock
        self._limit = limit
        self._held: dict[tuple[str, int], list[HeldPull]] = {}
        self._count = 0

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
    ) -> bool:
        """Keep a pull for up to `hold_s` seconds; False when there is no room for it.

        `replay` answers it when it leaves, and must not raise: the pulls that leave with it have
        left the table already.
        """
        if self._count >= self._limit:
            return False
        now = self._clock()
        deadline = now + min(hold_s, MAX_HOLD_S)
        held = HeldPull(now, deadline, connection, request, header, codes, replay)
        self._held.setdefault((header.topic, header.queue_id), []).append(held)
        self._count += 1
        return True

    def held_s(self, pull: HeldPull) -> float:
        """Seconds that a pull has been held so far."""
        return self._clock() - pull.since

    def arrived(self, arrivals: Iterable[Arrival]) -> None:
        """Replay the pulls that these messages answer."""
        if not self._count:
            return
        newest: dict[tuple[str, int], list[tuple[int, int]]] = {}
        held = self._held
        for topic, queue_id, queue_offset, tags_code in arrivals:
            key = (topic, queue_id)
            if key in held:
                newest.setdefault(key, []).append((queue_offset, tags_code))
        for key, messages in newest.items():
            self._leave(key, partial(_answered_by, messages))

    def sweep(self) -> None:
        """Replay what has waited long enough; forget those of closed connections."""
        if not self._count:
            return
        now = self._clock()
        for key in list(self._held):
            self._leave(key, lambda pull: pull.deadline <= now or pull.connection.closed)

    def release_all(self) -> None:
        """Replay everything: the broker is stopping."""
        for key in list(self._held):
            self._leave(key, lambda _pull: True)

    def _leave(self, key: tuple[str, int], goes: Callable[[HeldPull], bool]) -> None:
        going: list[HeldPull] = []
        staying: list[HeldPull] = []
        for pull in self._held[key]:
            (going if goes(pull) else staying).append(pull)
        if not going:
            return
        # Out of the table before any replay: a replay may hold the same pull's successor.
        if staying:
            self._held[key] = staying
        else:
            del self._held[key]
        self._count -= len(going)
        for pull in going:
            if not pull.connection.closed:
                pull.replay(pull)


def _answered_by(messages: list[tuple[int, int]], pull: HeldPull) -> bool:
    asked_offset = pull.header.queue_offset
    codes = pull.codes
    for queue_offset, tags_code in messages:
        if queue_offset >= asked_offset and (codes is None or tags_code in codes):
            return True
    return False
