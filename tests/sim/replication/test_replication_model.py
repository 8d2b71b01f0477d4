"""R17: a master and its slaves keep their promises whatever the network, crashes and disks do.

How many lives a run looks at is in tests/campaign.py. A life that fails is named by its seed:
`python -m tests.sim.replication.explore SEED` looks at it again.
"""

import pytest

from tests import campaign
from tests.sim.replication.cases import case_of
from tests.sim.replication.controls import CONTROLS, Control
from tests.sim.replication.explore import explore

pytestmark = pytest.mark.usefixtures("quiet")

PARTS = 4


@pytest.mark.parametrize("part", range(PARTS))
def test_slaves_have_what_was_promised_whatever_happens(part: int) -> None:
    wanted = -(-campaign.size("replication model") // PARTS)
    first = campaign.rng(f"replication model {part}").randrange(1 << 30)
    result = explore(range(first, first + wanted))
    for broken in result.broken[:10]:
        print(f"python -m tests.sim.replication.explore {broken.seed}")
        for fault in broken.faults:
            print(f"    {fault.invariant}: {fault.text}")
    campaign.note(
        "replication model", result.lives,
        wrong=len(result.broken), messages=result.sent, acknowledged=result.acknowledged,
    )  # fmt: skip
    assert not result.broken, f"{len(result.broken)} lives, {result.by_invariant()}"
    assert result.acknowledged > result.lives / 2, "hardly anything was replicated"


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.name.replace(" ", "-"))
def test_control_is_caught(control: Control) -> None:
    result = explore(
        range(control.lives), control.rules, control.case,
        lambda result: campaign.enough(len(control.caught_by & result.by_invariant().keys())),
    )  # fmt: skip
    print(f"{control.name}: {len(result.broken)} of {result.lives}, {result.by_invariant()}")
    campaign.note_control("replication model", control.name, len(result.broken), result.lives)
    assert control.caught_by & result.by_invariant().keys()


def test_a_seed_is_one_life() -> None:
    one, again = explore([7]), explore([7])
    assert (one.sent, one.acknowledged) == (again.sent, again.acknowledged)
    assert case_of(7) == case_of(7)
