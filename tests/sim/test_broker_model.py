"""R1 with transactions and the timer: after a crash at any place of a broker's life, with any part
of what was unsynced, every decision and every delivery that was promised comes, once.

A state that fails is named; `python -m tests.sim.broker.explore NAME` looks at it again.
"""

import pytest

from tests import campaign
from tests.sim.broker.controls import CONTROLS, BrokerControl
from tests.sim.broker.explore import explore
from tests.sim.broker.plans import PLANS, plan_named
from tests.sim.storage.explore import Result

pytestmark = pytest.mark.usefixtures("quiet")

SEEDS_PER_PLAN = 3
#: To find a seed's states costs as much as to look at this number of states.
LEAST_OF_A_SEED = 40


@pytest.mark.parametrize("plan", [plan.name for plan in PLANS])
def test_what_was_promised_comes_after_crashes_everywhere(plan: str) -> None:
    wanted = -(-campaign.size("broker model") // len(PLANS))
    share = max(LEAST_OF_A_SEED, -(-wanted // SEEDS_PER_PLAN))
    rng = campaign.rng(f"broker model {plan}")
    found = Result()
    while found.states < wanted:
        seed = rng.randrange(1_000_000)
        print(f"plan {plan} seed {seed}")
        result = explore(plan_named(plan), seed, share)
        found.add(result)
        for broken in result.broken[:10]:
            print(f"python -m tests.sim.broker.explore {broken.name}")
            for fault in broken.faults:
                print(f"    {fault.invariant}: {fault.text}")
        assert not result.broken, f"{len(result.broken)} states, {result.by_invariant()}"
        assert result.states, "a life without crashes"
    campaign.note(
        "broker model", found.states,
        wrong=len(found.broken), choices=found.candidates, places=found.places,
    )  # fmt: skip


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.name.replace(" ", "-"))
def test_control_is_caught(control: BrokerControl, monkeypatch: pytest.MonkeyPatch) -> None:
    control.break_rule(monkeypatch)
    result = explore(
        control.plan, 1, control.states,
        lambda result: campaign.enough(len(control.caught_by & result.by_invariant().keys())),
    )  # fmt: skip
    print(f"{control.name}: {len(result.broken)} of {result.states}, {result.by_invariant()}")
    campaign.note_control("broker model", control.name, len(result.broken), result.states)
    assert control.caught_by & result.by_invariant().keys()


@pytest.mark.parametrize(
    ("plan", "seed"),
    [
        ("broker-async-lives", 259738),
        ("broker-sync-lives", 640322),
        ("broker-sync-lives", 888598),
        ("broker-async", 282061),
    ],
)
def test_what_was_found_once_stays_mended(plan: str, seed: int) -> None:
    """Killed between the rename of the timer's file and the sync of its directory, the next life
    found nothing to write, and a power cut took the file. And progress of transactions went past a
    decided half message whose op message a kill had taken. And a message that was put aside was
    delivered twice when two of its copies were named, one after the other."""
    assert not explore(plan_named(plan), seed, LEAST_OF_A_SEED).broken
