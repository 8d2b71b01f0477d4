"""R1: after a crash at any place, with any part of what was unsynced, the promises hold.

The figures are in docs/reliability.md. `SIM_SEED` and `SIM_STATES` choose another sample and its
size: `SIM_SEED=7 SIM_STATES=200000 make sim`. A state that fails is named and can be looked at
again with `python -m tests.sim.replay NAME`.
"""

import logging
import os
from collections.abc import Iterator

import pytest

from tests.sim.explore import Result, explore
from tests.sim.plans import PLANS, plan_named

SEED = int(os.environ.get("SIM_SEED", "1"))
STATES = int(os.environ.get("SIM_STATES", "20000"))
SEEDS_PER_PLAN = 3
CASES = [(plan.name, SEED + more) for more in range(SEEDS_PER_PLAN) for plan in PLANS]

_all = Result()


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Recoveries have a lot to say, and here there are thousands of them."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize(("plan", "seed"), CASES)
def test_promises_hold_after_crashes_everywhere(plan: str, seed: int) -> None:
    _look_at(plan, seed, -(-STATES // len(CASES)))


def test_enough_states_were_looked_at() -> None:
    """Short workloads have fewer states than their share: further seeds make up for them."""
    if not _all.places:
        return  # A choice of cases is running, which is not about numbers.
    for seed in range(SEED + SEEDS_PER_PLAN, SEED + 2 * SEEDS_PER_PLAN):
        for plan in PLANS:
            if _all.states < STATES:
                _look_at(plan.name, seed, STATES - _all.states)
    print(f"{_all.states} states of {_all.candidates} choices at {_all.places} places")
    assert _all.states >= STATES


def _look_at(plan: str, seed: int, budget: int) -> None:
    print(f"plan {plan} seed {seed}")
    result = explore(plan_named(plan), seed, budget)
    _all.add(result)
    for broken in result.broken[:10]:
        print(f"python -m tests.sim.replay {broken.name}")
        for fault in broken.faults:
            print(f"    {fault.invariant}: {fault.text}")
    assert not result.broken, f"{len(result.broken)} states, {result.by_invariant()}"
