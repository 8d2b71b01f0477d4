"""A turn of the loop ends after some milliseconds, whatever it serves (docs/decisions/0014).

A turn is what runs between two looks at the sockets. What arrived is served as it is read, until
the turn is over; what is left, and work that takes longer than one request may (`Steps`), goes on
in later turns: each unfinished job gets one slice in its order, so that nobody waits for more than
a turn, however much another has asked for. A newcomer with a small request is served at once, in
front of what is left over.

Answers of one turn leave together: the first at once, the others at the end. A write wakes its
client; with more clients than cores the scheduler then likes to let the client run where the
broker ran, once for each answer. A client alone gets its answer at once.

Loop thread only.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Generator
from time import perf_counter
from typing import Any, Protocol, TypeAlias

log = logging.getLogger("aerobee.remoting")

#: A request's work cut into steps. It yields None where a turn may end, or a future: it goes on
#: when that is done, and then asks its result itself. What it returns is the answer.
Steps: TypeAlias = Generator["asyncio.Future[Any] | None", None, bytes | None]

#: A slice of some work that takes longer; says whether there is more.
Job: TypeAlias = Callable[[], bool]

# Arrivals and work that is left over get this long each before the loop looks at its sockets again,
# besides the request that is served when the time is over.
TURN_S = 0.008
# A step that takes longer is remembered, for the log of stalls.
LONG_S = 0.02
# The slice of a connection, a request or a piece of the broker's own work. If many want a slice in
# the same turn they share it, but no slice gets too short to get anything done.
SLICE_S = 0.002
LEAST_SLICE_S = 0.00025


class Outlet(Protocol):
    """The part of a connection that a turn knows."""

    closed: bool
    # Bytes that are kept back until the turn ends.
    unwritten: int
    # (address text, port) of the other end.
    peer: tuple[str, int]

    def write(self, data: bytes) -> None:
        """Send whole frames."""


class Turns:
    """The turns of one loop, for all that it serves."""

    __slots__ = (
        "_jobs",
        "_kept",
        "_longest",
        "_loop",
        "_open",
        "_wrote",
        "clock",
        "late",
        "slice_s",
        "until",
    )

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self.clock = clock
        # When this turn is over, and whether whoever ended a slice has seen that it is: what
        # arrives then is put aside.
        self.until = 0.0
        self.late = False
        # How long a slice is now.
        self.slice_s = SLICE_S
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open = False
        self._wrote = False
        self._jobs: deque[Job] = deque()
        self._kept: list[tuple[Outlet, bytes]] = []
        # The longest hold of the loop since the last question: seconds, request code, connection.
        self._longest: tuple[float, int, tuple[str, int]] | None = None

    def slice_until(self, now: float) -> float:
        """When a slice that begins `now` is over; it begins the turn if it is the first."""
        if not self._open:
            self._begin(now)
        end = now + self.slice_s
        return end if end < self.until else self.until

    def share(self, number: int) -> None:
        """So many want a slice of this turn."""
        if number * SLICE_S > TURN_S:
            self.slice_s = max(LEAST_SLICE_S, TURN_S / number)
        else:
            self.slice_s = SLICE_S

    def write(self, connection: Outlet, data: bytes) -> None:
        """Write `data` in this turn."""
        if self._wrote:
            connection.unwritten += len(data)
            self._kept.append((connection, data))
            return
        if not self._open:
            self._begin(self.clock())
        self._wrote = True
        if not connection.closed:
            connection.write(data)

    def release(self, connection: Outlet) -> None:
        """Write what is kept for one connection now, because it ends."""
        kept = self._kept
        self._kept = [(other, data) for other, data in kept if other is not connection]
        connection.unwritten = 0
        for other, data in kept:
            if other is connection:
                connection.write(data)

    def add(self, job: Job) -> None:
        """Have `job` called once a turn from now on, as long as it says that there is more.

        One that raises is logged and dropped: it is to keep its own house.
        """
        if not self._open:
            self._begin(self.clock())
        self._jobs.append(job)

    def note_long(self, spent_s: float, code: int, connection: Outlet) -> None:
        """One request, or one slice of its steps, took longer than others like to wait."""
        if self._longest is None or spent_s > self._longest[0]:
            self._longest = (spent_s, code, connection.peer)

    def last_long(self) -> str | None:
        """Names the longest hold of the loop since the last call, for the log; None without any."""
        longest, self._longest = self._longest, None
        if longest is None:
            return None
        spent_s, code, (host, port) = longest
        return f"code={code} peer={host}:{port} ms={spent_s * 1000:.0f}"

    @property
    def waiting(self) -> int:
        """Jobs that go on in the next turns."""
        return len(self._jobs)

    # --- inside

    def _begin(self, now: float) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        self._open = True
        self.late = False
        self.until = now + TURN_S
        self.share(len(self._jobs))
        self._loop.call_soon(self._end)

    def _end(self) -> None:
        """All arrivals are served: their answers leave, then the jobs have their slices."""
        if self._kept:
            self._let_go()
        jobs = self._jobs
        if jobs:
            now = self.clock()
            self.until = now + TURN_S
            self.share(len(jobs))
            for _ in range(len(jobs)):
                self._slice(jobs.popleft())
                if self.clock() >= self.until:
                    break
            self._let_go()
        self._open = self._wrote = self.late = False
        if jobs:
            self._begin(self.clock())

    def _slice(self, job: Job) -> None:
        try:
            if job():
                self._jobs.append(job)
        except Exception:
            log.exception("work in steps failed")

    def _let_go(self) -> None:
        kept, self._kept = self._kept, []
        for connection, data in kept:
            connection.unwritten = 0
            if not connection.closed:
                connection.write(data)


class Spread:
    """Work of the owner's own that one event may make long: begun at once, and gone on with a slice
    a turn."""

    __slots__ = ("_going", "_step", "_turns")

    def __init__(self, turns: Turns, step: Callable[[], bool]) -> None:
        """`step` does a little; False when there was nothing to do."""
        self._turns = turns
        self._step = step
        self._going = False

    def go_on(self) -> None:
        """There is something to do: a slice of it now, unless the turns are at it already."""
        if not self._going:
            self._going = True
            if self._slice():
                self._turns.add(self._slice)

    def _slice(self) -> bool:
        """One slice; whether there is more."""
        turns = self._turns
        until = turns.slice_until(turns.clock())
        more = False
        try:
            while not more and self._step():
                more = turns.clock() >= until
        finally:
            # A step that raised ends this round; the next event begins another.
            self._going = more
        return more


class StepsJob:
    """Runs the steps of one request: a slice a turn, and after each future that they wait for."""

    __slots__ = ("_code", "_connection", "_done", "_steps", "_turns")

    def __init__(
        self,
        turns: Turns,
        steps: Steps,
        done: Callable[[bytes | None, Exception | None], None],
        code: int,
        connection: Outlet,
    ) -> None:
        """`done` gets the answer or what was raised, once, when the steps end as a job. They are
        those of a request with that code, of that connection."""
        self._turns = turns
        self._steps = steps
        self._done = done
        self._code = code
        self._connection = connection

    def __call__(self) -> bool:
        """One slice, as a job of the turns."""
        turns = self._turns
        started = turns.clock()
        more = self._slice(turns.slice_until(started))
        spent_s = turns.clock() - started
        if spent_s > LONG_S:
            turns.note_long(spent_s, self._code, self._connection)
        return more

    def _slice(self, until: float) -> bool:
        try:
            waits_for = self.advance(until)
        except StopIteration as end:
            self._done(end.value, None)
            return False
        except Exception as error:  # noqa: BLE001 - the top of a request; `done` answers it
            self._done(None, error)
            return False
        if waits_for is None:
            return True
        self.go_on_after(waits_for)
        return False

    def advance(self, until: float) -> asyncio.Future[Any] | None:
        """Run steps until the time is over (None) or a future is waited for.

        Raises what the steps raise; StopIteration with the answer when they have ended.
        """
        steps, clock = self._steps, self._turns.clock
        while True:
            waits_for = next(steps)
            if waits_for is not None:
                if not waits_for.done():
                    return waits_for
            elif clock() >= until:
                return None

    def go_on_after(self, future: asyncio.Future[Any] | None) -> None:
        """Go on when `future` is done; None: with the next slice."""
        if future is None:
            self._turns.add(self)
        else:
            future.add_done_callback(lambda _done: self._turns.add(self))


class Gate:
    """Lets a limited number of steps of a kind go on at a time, in the order of their arrival."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._waiting: deque[asyncio.Future[None]] = deque()

    def enter(self) -> Generator[asyncio.Future[Any], None, None]:
        """Steps that end when there is a place; then `leave` has to be called."""
        if not self._free:
            place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(place)
            yield place
        else:
            self._free -= 1

    def leave(self) -> None:
        """Give the place to whoever has waited longest."""
        if self._waiting:
            self._waiting.popleft().set_result(None)
        else:
            self._free += 1
