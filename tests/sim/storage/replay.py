"""Looks at one crash state again: `python -m tests.sim.storage.replay plan:seed:life:place:choice`.

Prints the workload's steps, what of the disk was in doubt and which way it was taken, what recovery
logged, and what is wrong. `--disk DIR` also writes the state there, for a look with other tools.
"""

import argparse
import logging
import os
import sys
from pathlib import Path

from tests.sim.disk.crash_model import State
from tests.sim.storage.explore import StateName, judge, states_at
from tests.sim.storage.plans import plan_named
from tests.sim.storage.recovered import ROOT
from tests.sim.storage.workload import Runner


def main() -> int:
    """1 if the state is not as it should be."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.storage.replay")
    parser.add_argument("name", type=StateName.parse)
    parser.add_argument("--disk", type=Path)
    options = parser.parse_args()
    name: StateName = options.name
    plan = plan_named(name.plan)
    runner = Runner(plan, name.seed)
    recorded = runner.run()[name.life]
    print("\n".join(runner.log))
    (built,) = states_at(recorded, name.place, [name.choice], describe=True)
    print(f"--- life {name.life}, crash at {name.place} of {len(recorded.journal)}")
    print("\n".join(built.description))
    if options.disk is not None:
        write(built.state, options.disk)
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(levelname)s %(message)s")
    faults = judge(plan, recorded, name.place, built)
    for fault in faults:
        print(f"{fault.invariant}: {fault.text}")
    print("broken" if faults else "all invariants hold")
    return bool(faults)


def write(state: State, target: Path) -> None:
    """Put the state into a directory."""
    for path, content in sorted(state.items()):
        place = target / os.path.relpath(path, ROOT)
        if content is None:
            place.mkdir(parents=True, exist_ok=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)


if __name__ == "__main__":
    sys.exit(main())
