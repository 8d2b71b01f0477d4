"""The states that crashes of a broker's lives may leave, as `tests/sim/storage/explore.py` does it
for the store; `python -m tests.sim.broker.explore plan:seed:life:place:choice` looks at one
again."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

from tests.sim.broker.judge import judge_state
from tests.sim.broker.life import BrokerPlan, BrokerRecorded, BrokerRunner
from tests.sim.broker.plans import plan_named
from tests.sim.disk.crash_choices import is_kill, picks_of
from tests.sim.disk.crash_model import CrashModel
from tests.sim.storage.explore import Broken, Result, StateName, collect, shares, thin_out


def explore(
    plan: BrokerPlan,
    seed: int,
    budget: int,
    until: Callable[[Result], bool] = lambda _result: False,
) -> Result:
    """Run the plan and look at up to `budget` states of its crashes, or `until` is true."""
    result = Result()
    lives = BrokerRunner(plan, seed).run()
    found = [collect(one.start, one.journal, result, hurts=False) for one in lives]
    for number, share in enumerate(shares([len(one) for one in found], budget)):
        chosen = thin_out(found[number], share, seed)
        for place, choices in sorted(chosen.items()):
            for choice in choices:
                name = StateName(plan.name, seed, number, place, choice)
                _look(plan, lives[number], name, result)
            if until(result):
                return result
    return result


def _look(plan: BrokerPlan, recorded: BrokerRecorded, name: StateName, result: Result) -> None:
    model = CrashModel.at(recorded.start, recorded.journal[: name.place])
    doubts = model.doubts()
    state = model.build(doubts, picks_of(name.choice, doubts))
    killed = is_kill(name.choice)
    result.states += 1
    faults = judge_state(plan, recorded, name.place, state, killed=killed)
    if faults:
        result.broken.append(Broken(name, faults))


def main() -> int:
    name = StateName.parse(sys.argv[1])
    plan, result = plan_named(name.plan), Result()
    runner = BrokerRunner(plan, name.seed)
    recorded = runner.run()[name.life]
    print("\n".join(runner.log))
    print(f"--- life {name.life}, crash at {name.place} of {len(recorded.journal)}")
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(levelname)s %(message)s")
    _look(plan, recorded, name, result)
    for broken in result.broken:
        print("\n".join(f"{fault.invariant}: {fault.text}" for fault in broken.faults))
    return bool(result.broken)


if __name__ == "__main__":
    sys.exit(main())
