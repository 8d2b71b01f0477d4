"""R2: power goes while the real daemon runs on a recorded disk; nothing promised is lost.

The disk's log of one run is cut in hundreds of places, and of what had no barrier behind it yet any
part may be there: each such image is mounted, recovered, read, written to, and judged
(`power_cut.py`). One in twenty is given to the whole daemon.

How writes of several threads interleave is the machine's affair, so a seed alone does not bring the
same log again. When something is wrong the recording is kept, and the printed command judges the
same states of it again.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests import campaign
from tests.crash.judges.checker import differing
from tests.crash.power_cuts.block_log import choose_states
from tests.crash.power_cuts.cuts import SHOWN, TORN, judge_all, report
from tests.crash.power_cuts.recording import Plan, record, record_recovery

pytestmark = pytest.mark.usefixtures("recorded_disks")

RUNS = {
    "sync": Plan("SYNC_FLUSH", 0),
    "sync-torn": Plan("SYNC_FLUSH", 0, "ext3"),
    "async": Plan("ASYNC_FLUSH", 0, "ext4-1k"),
    "async-torn": Plan("ASYNC_FLUSH", 0, "ext3"),
    # Slow enough for segments to go while messages come.
    "sync-expiry": Plan("SYNC_FLUSH", 0, expiry=True, pause_s=0.1),
}


@pytest.mark.parametrize("name", RUNS)
def test_power_cut_costs_nothing_promised(folder: Path, seed: int, name: str) -> None:
    recording = record(folder, replace(RUNS[name], seed=seed))
    print(f"seed {seed}, {name}: {recording.summary()}")
    states = recording.states(campaign.size("power cut"), seed)
    wrong = judge_all(recording, recording.judge(folder), states, daemon=True)
    print(f"{len(states)} crash states, {len(wrong)} wrong")
    campaign.note("power cut", len(states), wrong=len(wrong))
    assert not wrong, report(recording, wrong, len(states))


def test_power_cut_during_a_recovery_changes_nothing(folder: Path, seed: int) -> None:
    """Power goes, and again while what it left is being recovered: the same bytes (I9)."""
    recording = record(folder, replace(TORN, seed=seed))
    judge = recording.judge(folder)
    suite = "power cut in a recovery"
    recoveries = 4 if campaign.is_full() else 2
    cuts = campaign.size(suite) // recoveries
    for state, disk in recording.log.images(recording.states(recoveries, seed, in_flight=4)):
        known, promise = recording.known(state.cut), recording.promise(state.cut)
        expected = judge.files_after_recovery(disk)
        log = record_recovery(folder, judge, disk)
        rng = random.Random(f"{seed} {state}")
        for again, image in log.images(choose_states(log, rng, cuts, log.index_of_mark(0))):
            wrong = judge.judge(image, known, promise)
            wrong += differing(expected, judge.files_after_recovery(image))
            campaign.note(suite, 1, wrong=len(wrong))
            assert not wrong, f"seed {seed}, {state} then {again}: {wrong[:SHOWN]}"
