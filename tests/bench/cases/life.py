"""P13 and P14: how long a broker takes to its first acknowledged send, and its memory at rest.

Starts of ours and of Java's in turn, each on an empty store and with nothing else running.
"""

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tests.bench.report import Row, Verdict, middle, spread
from tests.bench.servers import KINDS, shape, to_first_send

MB = 1_000_000
START_RATIO_MAX = 0.4
IDLE_MB_MAX = 60.0
_REST_S = 1.0


@dataclass(frozen=True, slots=True)
class Life:
    """Figures of one start: seconds to the first acknowledged send, megabytes of all processes at
    rest."""

    ready_s: float
    idle_mb: float


def measure(kinds: Sequence[str], count: int, folder: Path) -> list[tuple[Life, ...]]:
    """Measure `count` rounds, each with a life of each kind."""
    return [tuple(live(kind, folder / kind) for kind in kinds) for _ in range(count)]


def live(kind: str, root: Path) -> Life:
    broker = KINDS[kind](root, shape("ASYNC_FLUSH"))
    try:
        ready_s = to_first_send(broker)
        broker.wait_ready()
        time.sleep(_REST_S)
        return Life(ready_s, broker.resident_bytes() / MB)
    finally:
        broker.kill()
        shutil.rmtree(root)


def rows(kinds: Sequence[str], lives: list[tuple[Life, ...]], wanted: Sequence[str]) -> list[Row]:
    """The rows of those of P13 and P14 that are wanted."""
    starts, idles = (
        [[getattr(life, figure) for life in column] for column in zip(*lives, strict=True)]
        for figure in ("ready_s", "idle_mb")
    )
    found = []
    if "P13" in wanted:
        ratios = _ratios(starts)
        goal = f"ratio at most {START_RATIO_MAX:g}"
        verdicts = [Verdict(goal, median(ratios) <= START_RATIO_MAX)] if ratios else []
        what = "start on an empty store to the first acknowledged send"
        found.append(_row("P13", what, "s", starts, verdicts))
    if "P14" in wanted:
        verdicts = [Verdict(f"at most {IDLE_MB_MAX:g} MB", median(idles[0]) <= IDLE_MB_MAX)]
        what = "resident memory at rest, all processes"
        found.append(_row("P14", what, "MB", idles, verdicts if kinds[0] == "our" else []))
    return found


def _ratios(columns: list[list[float]]) -> list[float]:
    return [ours / theirs for ours, theirs in zip(*columns, strict=True)] if columns[1:] else []


def _row(
    name: str, what: str, unit: str, columns: list[list[float]], verdicts: Sequence[Verdict]
) -> Row:
    ratios = _ratios(columns)
    ours, *theirs = (f"{middle(column)} {unit}" for column in columns)
    return Row(
        name, what, ours, theirs[0] if theirs else "", spread(ratios) if ratios else "", verdicts
    )
