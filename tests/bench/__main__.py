"""`make bench`: our broker beside the Java broker, P1 to P16, in one table with its goals.

    python -m tests.bench [--turns 9] [--secs 1] [--warm-up 10] [--loads P1,P2,P15,...]
                          [--only our|java] [--starts 3] [--mib 6144]
                          [--backlog 10000000] [--dry]

For each load of P1 to P12 both brokers start on empty stores and stay up side by side. Both are
warmed under that very load, ten seconds at least and until the rate is level, because the JVM
compiles for so long; then each takes --turns turns of a second, one after the other (turns.py).
After each turn the messages stored are compared with those acknowledged, and a difference, or a
single error, ends it all. Ratios are those of turns that ran one after the other.

P13 and P14 are life.py's, P15 and P15b restart.py's (--mib of log, --starts times), P16
backlog.py's. All stores but the one of P16 are removed.
"""

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tests.bench import report
from tests.bench.alone import CannotMeasure, measured
from tests.bench.cases import backlog, life, restart
from tests.bench.loads import CACHE, LOADS, Load, build, calibrate
from tests.bench.servers import KINDS, SERVERS, JavaServer, OurServer, flush_of, running, shape
from tests.bench.turns import (
    TURNS,
    WARM_UP_BOUND,
    Rounds,
    add_turn_options,
    check_turns,
    rounds,
    warm_up,
)
from tests.interop.kit import missing

EVENTS = ("P13", "P14", "P15", "P15B", "P16")
STORES = CACHE / "starts"
NAMES = {OurServer.kind: "Aerobee", JavaServer.kind: "Java"}
#: The store of P16 and a copy of it; else two stores that P7 fills, or those of P15.
FREE_BYTES_MIN = 30 << 30


class Bench:
    """The parts that are wanted, one after the other; rows, notes and raw figures of them."""

    def __init__(self, options: argparse.Namespace, kinds: Sequence[str], folder: Path) -> None:
        self.rows: list[report.Row] = []
        self._unlevel: list[str] = []
        self.figures: dict[str, object] = {}
        self._options, self._kinds, self._folder = options, kinds, folder
        self._wanted = wanted_of(options.loads)

    def run(self) -> None:
        for load in (load for load in LOADS if load.name in self._wanted):
            found = self._load(load)
            self.figures[load.name] = [list(map(dataclasses.asdict, turns)) for turns in found]
            self._add(report.load_rows(load, found))
        if {"P13", "P14"} & set(self._wanted):
            lives = life.measure(self._kinds, self._options.turns, self._folder)
            self.figures["life"] = [list(map(dataclasses.asdict, one)) for one in lives]
            self._add(life.rows(self._kinds, lives, self._wanted))
        if {"P15", "P15B"} & set(self._wanted):
            mib, starts = self._options.mib, self._options.starts
            times = restart.measure(self._kinds, mib, starts, self._folder / "restart")
            self.figures["restart"] = times
            self._add(row for row in restart.rows(times) if row.name.upper() in self._wanted)
        if "P16" in self._wanted and "our" in self._kinds:
            options, contents = self._options, backlog.contents_of(self._options.backlog)
            folder = self._folder / "backlog"
            stored = backlog.measure(contents, options.turns, options.secs, folder, STORES)
            self._add(backlog.rows(stored))

    def notes(self) -> Iterator[str]:
        """Facts that a reader of the rows has to know."""
        if self._options.turns != TURNS:
            yield f"Each load had {self._options.turns} turns, not {TURNS}."
        if self._unlevel:
            bound_s = WARM_UP_BOUND * self._options.warm_up
            yield f"Not level after {bound_s:g} s of warm-up: {', '.join(self._unlevel)}."

    def _add(self, rows: Iterable[report.Row]) -> None:
        for row in rows:
            self.rows.append(row)
            print(row, flush=True)

    def _load(self, load: Load) -> Rounds:
        options = self._options
        both = [SERVERS[kind](self._folder / kind, shape(flush_of(load))) for kind in self._kinds]
        with running(both, self._folder):
            for server in both:
                server.take_up(load)
            unlevel = warm_up(both, load, options.secs, options.warm_up)
            self._unlevel += [f"{NAMES[kind]} in {load.name}" for kind in unlevel]
            return rounds(both, range(options.turns), load, secs=options.secs)


def wanted_of(names: str) -> list[str]:
    """The numbers of a list like `P2,P15`. Raises CannotMeasure."""
    known = [*(load.name for load in LOADS), *EVENTS]
    wanted = [name.strip().upper() for name in names.split(",")] if names else known
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise CannotMeasure(f"no {', '.join(unknown)}; there are {', '.join(known)}")
    return wanted


def kinds_of(only: str | None) -> list[str]:
    """The brokers to measure: without the Java broker, ours alone."""
    kinds = [only] if only else list(KINDS)
    lack = missing("java-broker")
    if "java" in kinds and lack is not None:
        if only:
            raise CannotMeasure(lack)
        print(f"bench: without the Java broker ({lack})", file=sys.stderr)
        kinds.remove("java")
    return kinds


def bench(options: argparse.Namespace, folder: Path) -> None:
    """Prints the table, and replaces the page's. Raises what its parts raise."""
    check_turns(options.turns, options.secs)
    if options.starts < 1:
        raise CannotMeasure("--starts must be at least 1")
    run = Bench(options, kinds_of(options.only), folder)
    build()
    begun = time.monotonic()
    before = calibrate()
    print(f"before: {report.calibration_line([before])}", flush=True)
    run.run()
    took = f"It took {(time.monotonic() - begun) / 60:.0f} minutes."
    text = report.table(run.rows, [before, calibrate()], [*run.notes(), took])
    (CACHE / "results.json").write_text(json.dumps(run.figures, indent=1))
    if not options.dry:
        report.replace_table("bench", text)
    print(f"\n{text}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__.partition("\n\n")[0])
    add_turn_options(parser, "each broker")
    parser.add_argument("--warm-up", type=float, default=10, help="seconds for each, at least")
    parser.add_argument("--loads", default="", help="some of P1 to P16, like P2,P15")
    parser.add_argument("--only", choices=list(KINDS))
    parser.add_argument("--starts", type=int, default=3, help="of each kind, for P15")
    parser.add_argument("--mib", type=int, default=6144, help="of log, for P15")
    parser.add_argument("--backlog", type=int, default=10_000_000, help="messages, for P16")
    parser.add_argument("--dry", action="store_true", help="leave docs/benchmarks.md as it is")
    options = parser.parse_args()
    return measured("bench", bench, options, CACHE, FREE_BYTES_MIN)


if __name__ == "__main__":
    sys.exit(main())
