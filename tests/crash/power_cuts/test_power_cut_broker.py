"""R2 with transactions and the timer: power goes while the real daemon prepares, decides, checks,
delivers and rolls on a recorded disk.

The broker's part is started on the disk of each state, and goes on until all is over: under
SYNC_FLUSH every answered decision and every answered message with a time of its own comes, each
commit once; in both modes no progress file is ahead of the disk, nothing comes early, and nothing
is delivered that nobody has committed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import campaign
from tests.crash.transactions.recorded import judge_cuts, record

pytestmark = pytest.mark.usefixtures("recorded_disks")

SUITE = "power cut and transactions"
_SHOWN = 5
#: States within which a control must be caught. Some recordings show nothing: syncs came just
#: before each save.
_STATES = 160
_RECORDINGS = 4


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_power_cut_costs_no_decision_and_no_delivery(folder: Path, seed: int, flush: str) -> None:
    recording = record(folder, flush, seed)
    states = recording.states(campaign.size(SUITE))
    wrong = judge_cuts(folder, recording, states)
    transactions, timed = len(recording.history.transactions), len(recording.timed)
    print(
        f"seed {seed}, {flush}: {len(states)} states of {transactions} transactions and {timed} "
        f"messages with a time of their own, {len(wrong)} wrong"
    )
    campaign.note(
        SUITE, len(states), wrong=len(wrong), transactions=transactions, timed_messages=timed
    )
    shown = {str(state): faults[:_SHOWN] for state, faults in list(wrong.items())[:_SHOWN]}
    assert not wrong, f"seed {seed}: {shown}"


@pytest.mark.parametrize(
    ("control", "rules", "load"),
    [
        ("timer-progress-ahead-of-sync", {"ahead"}, {"prepared": 0, "timed": 150}),
        ("transaction-progress-ahead-of-sync", {"ahead", "over"}, {"prepared": 150, "timed": 0}),
    ],
)
def test_progress_ahead_of_its_sync_is_caught(
    folder: Path, seed: int, control: str, rules: set[str], load: dict[str, int]
) -> None:
    """Each alone: the other one's progress has the log synced."""
    caught = looked_at = 0
    for turn in range(_RECORDINGS):
        place = folder / str(turn)
        place.mkdir()
        recording = record(place, "ASYNC_FLUSH", seed + turn, control, **load)
        for state in recording.states(_STATES):
            looked_at += 1
            (faults,) = judge_cuts(folder, recording, [state]).values() or [[]]
            caught += bool(rules & {one.invariant for one in faults})
            if campaign.enough(caught):
                break
        if caught:
            break
    print(f"control {control}: {caught} of {looked_at} states caught it")
    campaign.note_control(SUITE, control, caught, looked_at)
    assert caught, f"seed {seed}: nobody noticed"
