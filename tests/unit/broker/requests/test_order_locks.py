"""Queue locks of orderly consumers: one owner, leases that run out, renewals."""

from __future__ import annotations

import pytest

from aerobee.broker.requests.clients.order_locks import OrderLocks
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
    clock.now += 62
    swept(locks)
    assert len(locks) == 0
    assert locks.owner("g", Q0) is None
    assert locks.lock("g", "c2", [Q0]) == [Q0]


def swept(locks: OrderLocks) -> int:
    """How many steps it took."""
    steps = 0
    while locks.sweep_some():
        steps += 1
    return steps


def test_a_renewed_lock_outlives_the_sweep_of_its_first_lease(
    locks: OrderLocks, clock: Clock
) -> None:
    locks.lock("g", "c1", [Q0, Q1])
    clock.now += 40
    locks.lock("g", "c1", [Q0])
    clock.now += 22
    swept(locks)
    assert (locks.owner("g", Q0), len(locks)) == ("c1", 1)
    clock.now += 40
    swept(locks)
    assert len(locks) == 0


def test_a_sweep_goes_in_steps_and_looks_at_nothing_that_is_not_due(
    locks: OrderLocks, clock: Clock
) -> None:
    queues = [MessageQueue("T", "b", number) for number in range(1000)]
    locks.lock("g", "c1", queues)
    clock.now += 30
    locks.lock("h", "c1", queues)
    assert swept(locks) == 0
    clock.now += 32
    assert swept(locks) == 10
    assert len(locks) == 1000


def test_locking_and_unlocking_again_and_again_leaves_one_lock(
    locks: OrderLocks, clock: Clock
) -> None:
    for _ in range(100):
        clock.now += 0.5
        assert locks.lock("g", "c1", [Q0]) == [Q0]
        locks.unlock("g", "c1", [Q0])
    assert len(locks) == 1
    assert sum(map(len, locks._wheel.values())) == 1
    assert locks.lock("g", "c2", [Q0]) == [Q0]


def test_there_is_a_limit_above_which_held_locks_are_renewed(
    locks: OrderLocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aerobee.broker.requests.clients.order_locks.MAX_LOCKS", 1)
    assert locks.lock("g", "c1", [Q0, Q1]) == [Q0]
    assert locks.lock("g", "c1", [Q0, Q1]) == [Q0]
    assert locks.lock("h", "c1", [Q1]) == []
