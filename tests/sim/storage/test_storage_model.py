"""R1: after a crash at any place, with any part of what was unsynced, the promises hold.

The figures are in docs/reliability.md; how many states a run looks at is in tests/campaign.py. A
state that fails is named and can be looked at again with `python -m tests.sim.storage.replay NAME`.
"""

import pytest

from tests import campaign
from tests.sim.storage.explore import Result, explore
from tests.sim.storage.plans import PLANS, plan_named

pytestmark = pytest.mark.usefixtures("quiet")

SEEDS_PER_PLAN = 3
#: To find a seed's states costs as much as to look at this number of states.
LEAST_OF_A_SEED = 200
#: A few of the chosen states cannot be made: their damage finds nothing to hurt.
MORE = 1.25


@pytest.mark.parametrize("plan", [plan.name for plan in PLANS])
def test_promises_hold_after_crashes_everywhere(plan: str) -> None:
    """Short workloads have fewer states than their share: further seeds make up for them."""
    wanted = -(-campaign.size("storage model") // len(PLANS))
    share = round(MORE * max(LEAST_OF_A_SEED, wanted / SEEDS_PER_PLAN))
    rng = campaign.rng(f"storage model {plan}")
    found = Result()
    for _ in range(4 * SEEDS_PER_PLAN):
        if found.states < wanted:
            _look_at(plan, rng.randrange(1_000_000), share, found)
    print(f"{found.states} states of {found.candidates} choices at {found.places} places")
    campaign.note(
        "storage model", found.states,
        wrong=len(found.broken), choices=found.candidates, places=found.places,
    )  # fmt: skip
    assert found.states >= wanted


def _look_at(plan: str, seed: int, budget: int, found: Result) -> None:
    print(f"plan {plan} seed {seed}")
    result = explore(plan_named(plan), seed, budget)
    found.add(result)
    for broken in result.broken[:10]:
        print(f"python -m tests.sim.storage.replay {broken.name}")
        for fault in broken.faults:
            print(f"    {fault.invariant}: {fault.text}")
    assert not result.broken, f"{len(result.broken)} states, {result.by_invariant()}"
