"""A timer looks at or ends many connections, and others are served between its steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import cast

import pytest

from aerobee.protocol.frames.command import make_request
from aerobee.remoting.connection_limits import RemotingLimits
from aerobee.remoting.connections.calls import PendingCalls
from aerobee.remoting.connections.connection_set import ConnectionSet, SetMember
from aerobee.remoting.sweep import Sweep
from aerobee.remoting.turns import Turns
from tests.unit.remoting.conftest import StepClock


async def most_between_turns(done: Callable[[], int], all_of_them: int) -> int:
    """How much is done between two turns of the loop at most, until all is."""
    most, before = 0, done()
    async with asyncio.timeout(10):
        while before < all_of_them:
            await asyncio.sleep(0)
            now = done()
            most, before = max(most, now - before), now
    return most


async def test_a_sweep_goes_on_in_later_turns_and_one_runs_at_a_time() -> None:
    looked: list[int] = []
    begun = 0

    def steps() -> Iterator[None]:
        nonlocal begun
        begun += 1
        for number in range(200):
            looked.append(number)
            yield

    sweep = Sweep(Turns(StepClock()), steps)
    sweep.begin()
    assert 0 < len(looked) <= 12
    sweep.begin()
    assert await most_between_turns(lambda: len(looked), 200) <= 24
    await asyncio.sleep(0)
    assert (looked, begun) == (list(range(200)), 1)
    sweep.begin()
    assert begun == 2


async def test_a_sweep_that_raised_begins_anew() -> None:
    def steps() -> Iterator[None]:
        yield
        raise ZeroDivisionError

    sweep = Sweep(Turns(StepClock()), steps)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            sweep.begin()


class Idle:
    """A connection that its set closes when it looks at it."""

    peer = ("192.0.2.1", 1)
    unsent_bytes = 0
    held_bytes = 0
    last_active = 0.0

    def __init__(self, shared: ConnectionSet, closed: list[int]) -> None:
        self._shared, self._closed = shared, closed
        self.id = shared.add(cast("SetMember", self))

    def check_times(self, now: float) -> None:
        assert now > 0
        self._closed.append(self.id)
        self._shared.remove(cast("SetMember", self), "idle")


async def test_connections_that_end_together_end_in_slices_beside_others() -> None:
    shared = ConnectionSet(RemotingLimits(), "swept", turns=Turns(StepClock()))
    closed: list[int] = []
    for _ in range(10_000):
        Idle(shared, closed)
    shared._sweep()
    # The next sweep looks at a connection that joins while this sweep goes on.
    Idle(shared, closed)
    assert await most_between_turns(lambda: len(closed), 10_000) <= 24 * 32
    assert shared.stats.open == 1
    assert shared._timer is not None
    shared._timer.cancel()


async def test_calls_that_run_out_of_time_together_do_so_some_a_turn() -> None:
    calls = PendingCalls(asyncio.get_running_loop(), "peer", 16_384)
    futures = [calls.add(make_request(40), 0.0) for _ in range(16_384)]
    assert await most_between_turns(lambda: 16_384 - len(calls), 16_384) <= 256
    failures = await asyncio.gather(*futures, return_exceptions=True)
    assert {type(one).__name__ for one in failures} == {"RemotingTimeout"}
