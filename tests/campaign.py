"""How much of each random or enumerated suite a run looks at: one table of sizes, quick and full.

`make test` runs the quick sizes: a part of the depth, which the run's seed draws. The seed changes
with each run, so the parts add up over the runs; it is printed at the head and at the end. The seed
also draws which dear tests run at all (tests/drawing.py): five runs in a row have every class of
case, every invariant and every control. `make campaign` sets `AEROBEE_CAMPAIGN=full` and runs all.

A suite asks `size` for its number, `draw` or `strided` for a part of an enumerated list, and `rng`
for its chance. A negative control looks until it has caught the fault (`enough`), and in full at
everything. A parametrised test with the mark `drawn("NAME")` runs a drawn part of its parameter
sets, in which each value of each parameter is (`cover`).

With `AEROBEE_FIGURES` naming a file, suites write what they counted there (`note`, `note_control`);
`python -m tests.campaign report FILE` makes rows of the table in docs/reliability.md from it, and
`--write` puts them there.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

T = TypeVar("T")

#: Not in the environment, where each daemon would warn of a variable that is no setting of it.
_seed: int | None = None

#: `full` or `quick`.
VARIABLE = "AEROBEE_CAMPAIGN"
SEED_VARIABLE = "AEROBEE_SEED"
FIGURES_VARIABLE = "AEROBEE_FIGURES"


class Suite(NamedTuple):
    """A row: how many `counted` things a run looks at."""

    quick: int
    full: int
    counted: str
    #: Why the quick number is enough between two campaigns.
    why: str


SUITES: dict[str, Suite] = {
    # --- tests/sim ---
    "storage model": Suite(
        2_000, 20_000, "states", "each plan has 200, with its share of extremes and damage"
    ),
    "broker model": Suite(
        160, 4_000, "states", "each plan has 40, of a life that is another each time"
    ),
    "replication model": Suite(
        1_000, 50_000, "lives", "each is of sixty steps, with a half of the faults there are"
    ),
    "n-th call": Suite(
        6, 1, "runs", "every 6th call of each kind; the beginning is drawn, so six runs meet all"
    ),
    "clocks": Suite(13, 13, "scenarios", "all: they take seconds"),
    "recovery by time": Suite(
        15, 60, "places", "R1's plans with clocks have more states; here the offsets file is gone"
    ),
    "clocks and the daemon": Suite(14, 14, "steps", "all: it is one life"),
    "protocol model": Suite(
        12, 500, "sequences", "of thirty steps, others each time; each has a restart or a kill"
    ),
    # --- tests/native ---
    "forms of the hot path": Suite(
        4, 200, "streams", "of 1,200 requests each: each kind some dozen times, cut anywhere"
    ),
    "hurt requests, in both forms": Suite(
        10, 1_000, "streams", "of 20 connections: most end with their first hurt length"
    ),
    "staged batches, in both forms": Suite(
        4, 100, "streams", "of twelve batches, with sends between: each odd property some times"
    ),
    "runs of records, in both forms": Suite(
        400, 20_000, "logs", "of a dozen records each; each byte of a record is changed besides"
    ),
    "stores made again, in both forms": Suite(
        60, 600, "stores", "of some dozen messages each, damaged, stripped or both"
    ),
    # --- tests/fuzz ---
    "hostile requests": Suite(
        5_000, 180_000, "inputs", "all of the corpus, and each code some dozen times, bent anew"
    ),
    "hostile requests, accounts": Suite(
        3_000, 100_000, "inputs", "half of them in each form; each kind of lie a hundred times"
    ),
    "hostile sockets": Suite(200, 2_000, "inputs", "what a socket adds does not depend on them"),
    "guided inputs": Suite(20_000, 20_000, "inputs", "in campaigns only: atheris is a tool of few"),
    "records of TLS": Suite(
        40, 2_000, "connections", "in both forms, a third of them damaged and a third cut anywhere"
    ),
    "hostile records": Suite(2_000, 20_000, "inputs", "the flips of R8 come on top"),
    # --- tests/crash ---
    "power cut": Suite(
        16, 80, "states", "each of five runs is cut in 16; the runs themselves differ each time"
    ),
    "power cut in a recovery": Suite(12, 60, "states", "two recoveries, six cuts in each"),
    "power cut and transactions": Suite(
        12, 100, "states", "of two runs each; the runs themselves differ each time"
    ),
    "sync failure": Suite(
        2, 6, "runs", "each kind under both modes; what else varies is drawn by the seed"
    ),
    "kill points": Suite(
        2, 200, "kills", "two of each call in each mode and of each function, which are drawn"
    ),
    "kill tools": Suite(
        10, 0, "kills", "each tool at changes from its beginning to its end, which are drawn"
    ),
    "kill steps": Suite(
        9, 0, "kills", "each named step of the compiled form once, at a drawn visit"
    ),
    "kill daemon": Suite(1, 5, "kills", "one of each call; the store alone is killed above"),
    "random kills": Suite(
        3, 100, "kills", "one store, others each time; the points that matter are enumerated above"
    ),
    "kill delayed": Suite(3, 6, "kills", "each meets some waiting, some due and some given out"),
    "kill waiting": Suite(
        4_000, 200_000, "messages", "half of them in each mode, a kill amid each thousand or so"
    ),
    "kill transactions": Suite(
        240, 10_000, "transactions", "some dozen of each outcome, over three kills instead of ten"
    ),
    "short lives": Suite(4, 100, "kills", "each loses what the one before it lost, or none does"),
    "kill store": Suite(3, 6, "kills", "a recovery in the test's process is followed by another's"),
    "kill pool": Suite(2, 5, "kills", "with each number of buffers, and one on what another left"),
    "kill staging": Suite(3, 3, "kills", "in both modes: fewer would not show enough"),
    "replication links": Suite(
        1, 10, "runs", "of each of six scenarios that the seed draws, of 5 seconds instead of 15"
    ),
    "slow disk": Suite(2, 6, "requests", "each length of a sync, and of each less of it"),
    "largest inputs": Suite(
        2, 0, "request codes", "two of all, others each time; the work of a turn is counted in each"
    ),
    "resources": Suite(2, 0, "scenarios", "two of ten, others each time; a tenth of each"),
    "few rights": Suite(
        2, 0, "codes of a peer", "two of all in each form, others each time; a quarter of each"
    ),
    "soak": Suite(8, 60, "seconds", "an hour by hand before a release: tests/crash/crowds/soak.py"),
    "flipped bits": Suite(
        3, 0, "runs", "each number of bits, each size of segments and each way to end"
    ),
    "damaged files": Suite(
        100, 0, "cases", "100 of each original, and each class of damage in it at least once"
    ),
    # --- tests/pythons.py ---
    "each Python": Suite(
        0, 0, "tests", "in campaigns only: unit, contract and native, as far as quick sizes go"
    ),
    # --- tests/contract ---
    "bit maps": Suite(2, 40, "brokers", "of four lives each, others each time"),
    # --- tests/unit ---
    "random stores": Suite(4, 12, "stores", "four lives of each kind, others each time"),
    # --- tests/interop ---
    "clients": Suite(
        1_200, 10_000, "messages", "each mode has 300, some in each queue; ten batches, all windows"
    ),
    "clients and a kill": Suite(
        500, 1_000, "messages", "at half the pace: each client is as long at it as in full"
    ),
    "crossing": Suite(
        500, 2_000, "messages", "files are smaller by as much, so as many of them are filled"
    ),
    "replicated": Suite(
        16_000, 1_000_000, "messages", "a dozen segments, half of them before the slave comes"
    ),
    "failed over": Suite(
        4_000, 100_000, "messages", "each of three clients reads them, from master, slave, master"
    ),
    "sql filter": Suite(1, 4, "rounds", "250 expressions a round, others each time; all corners"),
    "sql broker": Suite(
        300, 10_000, "expressions", "of 1,000 messages each, others each time; all documented ones"
    ),
    # --- tests/service ---
    "hostile handshakes": Suite(
        2_000, 20_000, "handshakes", "in waves of 1,000, each kind a tenth; the second shows growth"
    ),
    # --- tests/spark ---
    "spark messages": Suite(
        200_000, 1_000_000, "messages", "each partition has several pulls and Arrow batches"
    ),
    "spark kills": Suite(4, 10, "kills", "a broker's at each step of a batch, and a driver's"),
    "page commands": Suite(1, 0, "commands", "those of one form differ in their options"),
    "change data": Suite(
        4_000, 100_000, "changes", "each kind of change of both forms, in states of several batches"
    ),
    "lake kills": Suite(
        2, 20, "kills", "for each format one of a driver and one of a broker, at a drawn step"
    ),
}


def is_full() -> bool:
    """Whether this is a campaign."""
    chosen = os.environ.get(VARIABLE) or "quick"
    assert chosen in ("quick", "full"), f"{VARIABLE} is {chosen!r}, not quick or full"
    return chosen == "full"


def size(name: str) -> int:
    """The suite's number in this run."""
    suite = SUITES[name]
    return suite.full if is_full() else suite.quick


def set_seed(number: int) -> None:
    """The run has this seed; tests/conftest.py says so before anything is drawn."""
    global _seed
    _seed = number


def seed() -> int:
    """The run's seed, the same in all workers of xdist."""
    assert _seed is not None, "nobody has set the seed"
    return _seed


def rng(name: str) -> random.Random:
    """Chance of this run; one name's does not shift another's."""
    return random.Random(f"{seed()} {name}")


def draw(
    name: str, cases: Iterable[T], by: Callable[[T], Hashable] = lambda _case: None
) -> list[T]:
    """So many of the cases as the suite's size, in their order; but one of each class at least.

    `by` says the class of a case. The classes share the size equally; what a small class leaves
    over goes to the others. A campaign that is to have all has a full size of 0.
    """
    every = list(cases)
    count = size(name)
    if count == 0 or count >= len(every):
        return every
    return part(every, count, rng(f"draw {name}"), by)


def part(
    every: Sequence[T], count: int, chance: random.Random, by: Callable[[T], Hashable]
) -> list[T]:
    """`draw` for those who have the size and the chance from somebody else."""
    classes: dict[Hashable, list[int]] = defaultdict(list)
    for number, case in enumerate(every):
        classes[by(case)].append(number)
    for numbers in classes.values():
        chance.shuffle(numbers)
    chosen = [numbers.pop() for numbers in classes.values()]
    while len(chosen) < count:
        left = [numbers for numbers in classes.values() if numbers]
        chosen += [numbers.pop() for numbers in left[: count - len(chosen)]]
    return [every[number] for number in sorted(chosen)]


def strided(name: str, what: str, begin: int, end: int) -> range:
    """The numbers of one stride from `begin` to `end`: the suite's size is the step, and the seed
    draws the first number.

    This is for a list whose end only a run can find. `what` names the list, so that each list
    begins at a number of its own.
    """
    step = size(name)
    return range(begin + rng(f"{name} {what}").randrange(step), end, step)


def cover(name: str, sets: Sequence[Mapping[str, Hashable]], what: str = "") -> list[int]:
    """Places of drawn parameter sets: each value of each parameter is in one, at least the suite's
    size are chosen. `what` names the test. A campaign that is to have all has a full size of 0."""
    count = size(name)
    if count == 0 or count >= len(sets):
        return list(range(len(sets)))
    order = list(range(len(sets)))
    rng(f"cover {name} {what}").shuffle(order)
    missing = {pair for one in sets for pair in one.items()}
    chosen: list[int] = []
    while order and (missing or len(chosen) < count):
        best = max(order, key=lambda number: len(missing & set(sets[number].items())))
        order.remove(best)
        chosen.append(best)
        missing -= set(sets[best].items())
    return sorted(chosen)


def enough(caught: int) -> bool:
    """Whether a control may stop: it has caught the fault, and nobody wants to know how often."""
    return caught > 0 and not is_full()


# --- figures --------------------------------------------------------------------------------------


def note(name: str, count: int, **more: int) -> None:
    """The suite has looked at `count` more of what it counts; `more` are other figures of it."""
    _write({"suite": name, "count": count, "more": more})


def note_control(name: str, control: str, caught: int, of: int) -> None:
    """A control of the suite was caught by `caught` of the `of` cases that were looked at."""
    _write({"suite": name, "control": control, "caught": caught, "of": of})


def _write(line: Mapping[str, object]) -> None:
    """Append one line; short enough for several processes to do so at once."""
    path = os.environ.get(FIGURES_VARIABLE)
    assert line["suite"] in SUITES
    if path:
        with open(path, "a") as file:
            file.write(json.dumps({**line, "seed": seed()}) + "\n")


PAGE = Path(__file__).parents[1] / "docs" / "reliability.md"
_HEAD = ("| suite | looked at | found | controls caught | run |", "|---|---|---|---|---|")


def report(lines: Iterable[str], date: str) -> dict[str, str]:
    """By the suite's name a row, in Markdown, of what was counted. Controls alone make none."""
    counts: Counter[str] = Counter()
    more: dict[str, Counter[str]] = defaultdict(Counter)
    controls: dict[str, dict[str, tuple[int, int]]] = defaultdict(dict)
    seeds: dict[str, int] = {}
    for line in lines:
        one = json.loads(line)
        name = one["suite"]
        seeds[name] = one["seed"]
        if "control" in one:
            caught, of = controls[name].get(one["control"], (0, 0))
            controls[name][one["control"]] = (caught + one["caught"], of + one["of"])
        else:
            counts[name] += one["count"]
            more[name].update(one["more"])
    rows: dict[str, str] = {}
    for name in (name for name in SUITES if name in counts):
        looked_at = f"{counts[name]:,} {SUITES[name].counted}"
        found = ", ".join(f"{n:,} {what.replace('_', ' ')}" for what, n in more[name].items())
        caught = ", ".join(f"{what} {n:,} of {of:,}" for what, (n, of) in controls[name].items())
        rows[name] = f"| {name} | {looked_at} | {found} | {caught} | {date}, seed {seeds[name]} |"
    return rows


def with_rows(page: str, rows: Mapping[str, str]) -> str:
    """The page with these rows in its table; rows of suites that did not run stay as they are."""
    before, head, behind = page.partition("\n".join(_HEAD) + "\n")
    assert head, "the page has no table of figures"
    table, end, after = behind.partition("\n\n")
    known = {line.split("|")[1].strip(): line for line in table.splitlines()} | rows
    return before + head + "\n".join(known[name] for name in SUITES if name in known) + end + after


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    parser.add_argument("command", choices=["report"])
    parser.add_argument("figures", type=Path)
    parser.add_argument("--write", action="store_true", help=f"put it into {PAGE.name}")
    asked = parser.parse_args()
    date = time.strftime("%Y-%m-%d", time.localtime(asked.figures.stat().st_mtime))
    rows = report(asked.figures.read_text().splitlines(), date)
    print("\n".join([*_HEAD, *rows.values()]))
    if asked.write:
        PAGE.write_text(with_rows(PAGE.read_text(), rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
