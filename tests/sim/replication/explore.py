"""Lives of a master and its slaves, by their seeds; `python -m tests.sim.replication.explore SEED`
looks at one again."""

import logging
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from aerobee.native.form import chosen
from tests.sim.replication.cases import case_of
from tests.sim.replication.judge import judge
from tests.sim.replication.life import Life
from tests.sim.replication.machine import Case, Rules
from tests.sim.storage.checker import Fault, count_invariants


class Broken(NamedTuple):
    """A life in which something was wrong."""

    seed: int
    faults: list[Fault]


@dataclass
class Result:
    """The result of an exploration."""

    lives: int = 0
    sent: int = 0
    acknowledged: int = 0
    broken: list[Broken] = field(default_factory=list)

    def by_invariant(self) -> dict[str, int]:
        """How many lives broke each invariant."""
        return count_invariants([broken.faults for broken in self.broken])


def explore(
    seeds: Iterable[int],
    rules: Rules | None = None,
    change: Callable[[Case], Case] = lambda case: case,
    until: Callable[[Result], bool] = lambda _result: False,
) -> Result:
    """Look at a life of each seed, or until `until` is true; `change` makes another case of it."""
    result = Result()
    for seed in seeds:
        life, faults = live(seed, change(case_of(seed)), rules)
        result.lives += 1
        result.sent += len(life.sent)
        result.acknowledged += len(life.acked)
        if faults:
            result.broken.append(Broken(seed, faults))
        if until(result):
            break
    return result


def live(seed: int, case: Case, rules: Rules | None = None) -> tuple[Life, list[Fault]]:
    """One life, and what was wrong."""
    form = chosen() if case.compiled else None
    life = Life(seed, case, rules, None if form is None else form.store)
    try:
        life.run()
        return life, life.faults or judge(life)
    finally:
        life.give_back()


def main() -> int:
    """1 if the life is not as it should be."""
    seed = int(sys.argv[1])
    case = case_of(seed)
    print(case)
    logging.basicConfig(
        stream=sys.stdout, level=logging.WARNING, format="%(levelname)s %(message)s"
    )
    life, faults = live(seed, case)
    print("\n".join(life.log))
    for fault in faults:
        print(f"{fault.invariant}: {fault.text}")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
