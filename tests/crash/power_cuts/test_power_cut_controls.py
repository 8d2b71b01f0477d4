"""R2's negative controls: a store with one rule broken is caught by the same states and checks.

Each looks until a state has given it away; in a campaign at all, and notes their share.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests import campaign
from tests.crash.judges.checker import Violation
from tests.crash.power_cuts.block_log import CrashState
from tests.crash.power_cuts.cuts import TORN, judge_all, report
from tests.crash.power_cuts.recording import Plan, record

pytestmark = pytest.mark.usefixtures("recorded_disks")

# Saves of tables sync more than the directory entry they are about, so only one state in thirteen
# shows that an entry is not synced.
STATES = 160

#: The fault in the daemon, the run that shows it, the rules of which at least one must notice.
IN_THE_DAEMON = [
    ("ack-before-sync", Plan("SYNC_FLUSH", 0, messages=25, sync_delay_ms=3), {"I1"}),
    ("dispatch-ahead-of-durable", Plan("SYNC_FLUSH", 0, messages=25, sync_delay_ms=10), {"I10"}),
    ("no-directory-sync", Plan("SYNC_FLUSH", 0, messages=25, topic_share=1.0), {"config"}),
    ("never-flushed", Plan("ASYNC_FLUSH", 0, messages=25, pause_s=0.5, restart=False), {"I1"}),
    ("offsets-file-ahead-of-sync", Plan("ASYNC_FLUSH", 0, "ext3", pause_s=0.02), {"I1", "I8"}),
]


def is_bad_crc(reason: str, _: int) -> bool:
    return reason == "CRC"


def is_followed(_: str, worst_size: int) -> bool:
    return worst_size > 0


#: The faults in the recovery, their runs and rules, and the torn tails for which the rule is there.
#: Few states have one: `LOOKED_AT` states are looked at, and `JUDGED` of them judged.
IN_THE_RECOVERY = [
    ("bad-crc-accepted", replace(TORN, messages=25, sizes=(20_000,)), {"I2"}, is_bad_crc),
    ("no-zeroing-after-a-cut", replace(TORN, sizes=(1_500,)), {"I2", "I3", "I5"}, is_followed),
]
LOOKED_AT, JUDGED = 400, 20


def caught(wrong: dict[CrashState, list[Violation]], rules: set[str]) -> int:
    """How many states gave the control away by one of the rules."""
    return sum(bool(rules & {one.rule for one in some}) for some in wrong.values())


def noted(wrong: dict[CrashState, list[Violation]], rules: set[str], control: str, of: int) -> int:
    """The number of states that gave the control away, printed and written to the figures."""
    found = caught(wrong, rules)
    met = Counter(rule for some in wrong.values() for rule in {one.rule for one in some})
    print(f"control {control}: {found} of {of} states caught it: {dict(met)}")
    campaign.note_control("power cut", control, found, of)
    return found


@pytest.mark.parametrize(
    ("control", "plan", "rules"), IN_THE_DAEMON, ids=[one[0] for one in IN_THE_DAEMON]
)
def test_broken_daemon_is_caught(
    folder: Path, seed: int, control: str, plan: Plan, rules: set[str]
) -> None:
    recording = record(folder, replace(plan, seed=seed, control=control))
    looked_at = 0

    def is_enough(found: list[Violation]) -> bool:
        nonlocal looked_at
        looked_at += 1
        return campaign.enough(len(rules & {one.rule for one in found}))

    states = recording.states(STATES, seed)
    wrong = judge_all(recording, recording.judge(folder), states, until=is_enough)
    assert noted(wrong, rules, control, looked_at), f"{recording.summary()}: nobody noticed"


@pytest.mark.parametrize(
    ("control", "plan", "rules", "is_meant"),
    IN_THE_RECOVERY,
    ids=[one[0] for one in IN_THE_RECOVERY],
)
def test_broken_recovery_is_caught(
    folder: Path,
    seed: int,
    control: str,
    plan: Plan,
    rules: set[str],
    is_meant: Callable[[str, int], bool],
) -> None:
    recording = record(folder, replace(plan, seed=seed))
    judge = recording.judge(folder)
    candidates = recording.log.images(recording.states(LOOKED_AT, seed, in_flight=4))
    meant = (state for state, disk in candidates if is_meant(*judge.torn_tail(disk)))
    found: dict[CrashState, list[Violation]] = {}
    looked_at = 0
    for state in itertools.islice(meant, JUDGED):
        looked_at += 1
        wrong = judge_all(recording, judge, [state])
        assert not wrong, report(recording, wrong, 1)
        found |= judge_all(recording, replace(judge, control=control), [state])
        if campaign.enough(caught(found, rules)):
            break
    assert looked_at, f"{recording.summary()}: no state has the tail it takes"
    assert noted(found, rules, control, looked_at), f"{recording.summary()}: nobody noticed"
