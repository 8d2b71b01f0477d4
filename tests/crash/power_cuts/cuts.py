"""Judging many crash states of one recording, and saying what was wrong with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.crash.judges.checker import Violation
from tests.crash.judges.restarted import judge_daemon
from tests.crash.power_cuts.block_log import CrashState
from tests.crash.power_cuts.power_cut import Judge
from tests.crash.power_cuts.recording import Plan, Recording
from tests.crash.power_cuts.replay import keep

#: One state in this number is given to the whole daemon.
EVERY_DAEMON = 20
#: Violations and states that a failure names.
SHOWN = 5
#: A run in which many records are in flight at once and any part of them may reach the disk.
TORN = Plan("SYNC_FLUSH", 0, "ext3", sync_delay_ms=10, burst=16, restart=False)


def judge_all(
    recording: Recording,
    judge: Judge,
    states: Sequence[CrashState],
    *,
    daemon: bool = False,
    until: Callable[[list[Violation]], bool] = lambda _found: False,
) -> dict[CrashState, list[Violation]]:
    """The states that are not as promised, and what is wrong with each. It stops after the first
    state whose violations are enough, as `until` says."""
    wrong: dict[CrashState, list[Violation]] = {}
    for number, (state, disk) in enumerate(recording.log.images(states)):
        known, promise = recording.known(state.cut), recording.promise(state.cut)
        found = judge.judge(disk, known, promise)
        if daemon and number % EVERY_DAEMON == EVERY_DAEMON // 2:
            found += judge_daemon(judge, disk, known, promise)
        if found:
            wrong[state] = found
        if until(found):
            break
    return wrong


def report(recording: Recording, wrong: dict[CrashState, list[Violation]], of: int) -> str:
    """The violations found, and the command that judges these states again."""
    lines = [f"{len(wrong)} of {of} crash states are wrong"]
    for state, violations in list(wrong.items())[:SHOWN]:
        lines += [f"state {state}: {len(violations)} violations"]
        lines += [f"    {one.rule}: {one.text}" for one in violations[:SHOWN]]
    states = " ".join(str(state) for state in list(wrong)[:SHOWN])
    lines.append(
        f"again: .venv/bin/python -m tests.crash.power_cuts.replay {keep(recording)} {states}"
    )
    return "\n".join(lines)
