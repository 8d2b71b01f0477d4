"""The storage model catches a store with one of its rules taken away: a detector that does not
ring is the bug."""

import pytest

from tests import campaign
from tests.sim.storage.controls import CONTROLS, Control
from tests.sim.storage.explore import explore

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.name.replace(" ", "-"))
def test_control_is_caught(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    control.break_rule(monkeypatch)
    result = explore(
        control.plan, 1, control.states, control.rules,
        lambda result: campaign.enough(len(control.caught_by & result.by_invariant().keys())),
    )  # fmt: skip
    print(f"{control.name}: {len(result.broken)} of {result.states}, {result.by_invariant()}")
    campaign.note_control("storage model", control.name, len(result.broken), result.states)
    assert control.caught_by & result.by_invariant().keys()
