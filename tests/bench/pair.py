"""`make pair BASE=<commit>`: the working tree against another state of the code, under equal loads.

    python -m tests.bench.pair --base COMMIT [--pairs 15] [--loads P1,P2,P5,P6,P11] [--secs 1]

For each load both servers start on empty stores with equal settings and run side by side; the load
goes to them in turns of about a second, one after the other, and which goes first alternates, so
that a pace that rises or falls cancels out. Each server gets exactly the same requests: the number
that base answers with a second of processor time, however much of it others take. So both stores
hold the same messages after each pair, and what is compared is what the same work took: the time,
and the processor time of the server until it is idle again. Both servers and stores are replaced
every three pairs. turns.py has what this shares with `make bench`.

Every answer is checked, and after each turn the messages stored are counted; a missing or refused
message ends the run with status 1. The ratios decide nothing: the status is 0 whatever they are.
ratios.py says how they are judged.
"""

import argparse
import contextlib
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from tests.bench import report
from tests.bench.alone import CannotMeasure, measured
from tests.bench.cases.stalls import KEEP
from tests.bench.loads import HERE, LOADS, Load, build, calibrate
from tests.bench.ratios import PAIRS_MIN, ratio_of, verdict
from tests.bench.servers import OurServer, flush_of, running, shape
from tests.bench.states import State, commit, working_tree
from tests.bench.turns import Rounds, equal_requests, rounds

ROOT = HERE.parent.parent
CACHE = ROOT / ".cache" / "pair"
PAIRS = 15
DEFAULT_LOADS = "P1,P2,P5,P6,P11"
#: After this number of pairs both servers are started anew on empty stores: the place of its memory
#: makes a process dearer or cheaper by a per cent or two for all its life.
PAIRS_A_LIFE = 3
#: Two stores with what some eight turns write at 200 MB/s, and the segments made ahead.
FREE_BYTES_MIN = 6 << 30


class Server(OurServer):
    """A broker of one state of the code."""

    def __init__(self, state: State, folder: Path, load: Load) -> None:
        settings = shape(flush_of(load))
        settings.extra = dict(KEEP)
        super().__init__(folder, settings)
        self.kind = state.name
        self.interpreter, self.entry = state.interpreter, (state.command,)


@contextlib.contextmanager
def servers(states: Sequence[State], load: Load, folder: Path) -> Iterator[Sequence[Server]]:
    """A server of each state on an empty store, with what the load needs; all is removed after."""
    both = [Server(state, folder / state.name, load) for state in states]
    with running(both, folder):
        for server in both:
            server.take_up(load)
        yield both


def measure(
    load: Load, states: Sequence[State], pairs: int, secs: float, folder: Path
) -> tuple[Rounds, int]:
    """That many pairs of turns of one load, and the number of requests in each turn."""
    found: Rounds = []
    requests = 0
    while len(found) < pairs:
        with servers(states, load, folder) as both:
            this, base = both
            requests = equal_requests(this, base, load, requests, secs)
            numbers = range(len(found), min(len(found) + PAIRS_A_LIFE, pairs))
            found += rounds(both, numbers, load, requests)
    return found, requests


def summary(load: Load, found: Rounds, requests: int) -> str:
    """The result of the pairs of a load, in three lines."""
    cpu = ratio_of([this.cpu_us / base.cpu_us for this, base in found])
    rate = ratio_of([this.messages_per_s / base.messages_per_s for this, base in found])
    cpu_us = middles([(this.cpu_us, base.cpu_us) for this, base in found])
    rates = middles([(this.messages_per_s, base.messages_per_s) for this, base in found])
    return (
        f"{load.name}  {load.what}: {len(found)} pairs of {requests:,} requests\n"
        f"    processor time  {cpu_us} us a message: {cpu}: {verdict(cpu)}\n"
        f"    rate            {rates} messages/s: {rate}: {verdict(rate, 'quicker', 'slower')}"
    )


def middles(pairs: Sequence[tuple[float, float]]) -> str:
    """The medians of both states, this before base."""
    return " / ".join(report.middle([median(column)]) for column in zip(*pairs, strict=True))


def chosen(names: str) -> list[Load]:
    """The loads of a list like `P1,P2`, in its order. Raises CannotMeasure."""
    wanted = [name.upper() for name in re.split(r"[,\s]+", names) if name]
    known = {load.name: load for load in LOADS}
    unknown = [name for name in wanted if name not in known]
    if unknown or not wanted:
        raise CannotMeasure(
            f"no load {', '.join(unknown) or 'is named'}; there are {', '.join(known)}"
        )
    return [known[name] for name in dict.fromkeys(wanted)]


def compare(options: argparse.Namespace, folder: Path) -> None:
    """Prints the comparison. Raises CannotMeasure, StartFailed, LoadFailed, Lost."""
    loads = chosen(options.loads)
    if options.pairs < PAIRS_MIN or options.secs <= 0:
        raise CannotMeasure(
            f"{PAIRS_MIN} pairs at least (PAIRS=, --pairs), because fewer give no interval of 99 % "
            "(tests/bench/ratios.py), of turns longer than nothing (--secs)"
        )
    states = working_tree(ROOT), commit(ROOT, options.base, CACHE)
    for state in states:
        print(f"{state.name}: {state.what}, Python {state.python}", flush=True)
    if len({state.python for state in states}) > 1:
        raise CannotMeasure(
            f"the Pythons differ; remove .venv here or in {states[1].tree}, and set PYTHON=..."
        )
    build()
    before = calibrate()
    print(f"on {report.machine()}\nbefore: {report.calibration_line([before])}", flush=True)
    for load in loads:
        print(
            summary(load, *measure(load, states, options.pairs, options.secs, folder)), flush=True
        )
    after = calibrate()
    print(f"after:  {report.calibration_line([after])}", *report.remarks(before, after), sep="\n")


def main() -> int:
    parser = argparse.ArgumentParser(prog="pair", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--base", default="", help="the commit to compare with")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--loads", default=DEFAULT_LOADS)
    parser.add_argument("--secs", type=float, default=1, help="of processor time, a turn")
    options = parser.parse_args()
    return measured("pair", compare, options, CACHE, FREE_BYTES_MIN)


if __name__ == "__main__":
    sys.exit(main())
