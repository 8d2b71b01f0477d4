"""Queue locks of orderly consumers: one owner, leases that run out, renewals."""

from __future__ import annotations

import pytest

from aerobee.broker.requests.locks import OrderLocks
from aerobee.protocol.bodies.common import MessageQueue

Q0, Q1 = MessageQueue("T", "b", 0), MessageQueue("T", "b", 1)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def locks(clock: Clock) -> OrderLocks:
    return OrderLocks(60.0, clock)


def test_a_locked_queue_is_refused_to_another_client(locks: OrderLocks) -> None:
    assert locks.lock("g", "c1", [Q0]) == [Q0]
    assert locks.lock("g", "c2", [Q0, Q1]) == [Q1]


def test_groups_lock_apart(locks: OrderLocks) -> None:
    locks.lock("g", "c1", [Q0])
    assert locks.lock("h", "c2", [Q0]) == [Q0]


def test_a_lease_runs_out_unless_renewed(locks: OrderLocks, clock: Clock) -> None:
    locks.lock("g", "c1", [Q0, Q1])
    clock.now += 40
    locks.lock("g", "c1", [Q0])
    clock.now += 30
    assert locks.lock("g", "c2", [Q0, Q1]) == [Q1]
    assert locks.owner("g", Q0) == "c1"


def test_only_the_owner_unlocks(locks: OrderLocks) -> None:
    locks.lock("g", "c1", [Q0])
    locks.unlock("g", "c2", [Q0])
    assert locks.owner("g", Q0) == "c1"
    locks.unlock("g", "c1", [Q0])
    assert locks.owner("g", Q0) is None
    locks.unlock("unknown", "c1", [Q0])


def test_the_sweep_forgets_what_ran_out(locks: OrderLocks, clock: Clock) -> None:
    locks.lock("g", "c1", [Q0])
    clock.now += 61
    locks.sweep()
    assert locks.owner("g", Q0) is None
    assert locks.lock("g", "c2", [Q0]) == [Q0]
