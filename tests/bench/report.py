"""The text of the pages: medians, spreads, ratios, goals, and the state of the machine."""

import datetime
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from aerobee.cli.bench import bench_result
from tests.bench.loads import Goal, Load
from tests.bench.turns import AT_MOST, RATIOS, Rounds, Turn

PAGE = Path(__file__).parent.parent.parent / "docs" / "benchmarks.md"
# Milliseconds of the fixed loop on a usual machine that has nothing else to do, and on a machine
# where others share the processors' caches.
_QUICK_MS, _SLOW_MS = 16.0, 24.0
_PACE_TOLERANCE, _BUSY = 1.1, 1.3


@dataclass(frozen=True, slots=True)
class Verdict:
    """A goal, as it is written, and whether it is reached."""

    goal: str
    reached: bool


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table of goals; empty cells are not measured, or make no sense."""

    name: str
    what: str
    ours: str
    theirs: str = ""
    ratio: str = ""
    verdicts: Sequence[Verdict] = field(default=())
    cpu_us: str = ""
    cpu_ratio: str = ""
    p50_us: str = ""
    p99_us: str = ""

    def __str__(self) -> str:
        goals = ", ".join(one.goal for one in self.verdicts)
        reached = ", ".join("yes" if one.reached else "**no**" for one in self.verdicts)
        cells = (self.name, self.what, self.ours, self.theirs, self.ratio, goals, reached)
        tail = (self.cpu_us, self.cpu_ratio, self.p50_us, self.p99_us)
        return "| " + " | ".join(cell or "-" for cell in (*cells, *tail)) + " |"


HEAD = (
    "| # | load or event | Aerobee | Java | ratio | goal | reached | CPU us a message "
    "| ratio, Java / Aerobee | p50 us | p99 us |\n" + "|---" * 11 + "|"
)


def middle(values: Sequence[float]) -> str:
    """Median and spread, in thousands where that reads better: `24.1 k (22.9-25.0)`."""
    mid = median(values)
    thousands = mid >= 10_000
    digits = 1 if thousands or 10 <= mid < 100 else 0 if mid >= 100 else 2
    low, middle, high = (
        f"{value / 1000:.1f}" if thousands else f"{value:,.{digits}f}"
        for value in (min(values), mid, max(values))
    )
    unit = " k" if thousands else ""
    return f"{middle}{unit}" + (f" ({low}-{high})" if len(values) > 1 else "")


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> str:
    return f"**{median(ours) / median(theirs):.2f}**" if ours and theirs else "-"


def ratios(found: Rounds, figure: str) -> list[float]:
    return [RATIOS[figure](ours, theirs) for ours, theirs in found]


def spread(values: Sequence[float]) -> str:
    """The median of ratios, and their range: `**2.31** (2.05-2.60)`."""
    return f"**{median(values):.2f}** ({min(values):.2f}-{max(values):.2f})"


def judge(found: Rounds, goals: Sequence[Goal]) -> Iterator[Verdict]:
    """Each goal against the median of its ratios."""
    for goal in goals:
        value = median(ratios(found, goal.figure))
        fit = value <= goal.bound if goal.figure in AT_MOST else value >= goal.bound
        word = "at most" if goal.figure in AT_MOST else "at least"
        yield Verdict(f"{goal.figure} {word} {goal.bound:g} ({value:.2f})", fit)


def load_rows(load: Load, found: Rounds) -> Iterator[Row]:
    """The row of a load; one more for what was read meanwhile, where something was.

    A round has one turn when only one broker is measured.
    """
    alone = len(found[0]) == 1
    yield Row(
        load.name,
        load.what,
        *_both(found, [[one.messages_per_s for one in turns] for turns in _columns(found)]),
        "" if alone else spread(ratios(found, "rate")),
        () if alone else [*judge(found, [one for one in load.goals if one.figure != "out"])],
        pair_of(found, "cpu_us", 1),
        "" if alone else spread(ratios(found, "processor")),
        pair_of(found, "p50_us", 0),
        pair_of(found, "p99_us", 0),
    )
    if "--pullers" in load.words:
        yield Row(
            load.name,
            "messages read meanwhile",
            *_both(found, [[one.out_per_s for one in turns] for turns in _columns(found)]),
            "" if alone else spread(ratios(found, "out")),
            () if alone else [*judge(found, [one for one in load.goals if one.figure == "out"])],
        )


def _columns(found: Rounds) -> list[tuple[Turn, ...]]:
    return list(zip(*found, strict=True))


def _both(found: Rounds, rates: list[list[float]]) -> tuple[str, str]:
    ours, *theirs = map(middle, rates)
    return ours, theirs[0] if theirs else ""


def pair_of(found: Rounds, figure: str, digits: int) -> str:
    """Medians of a figure of the turns of each server: `12.1 / 44.0`."""
    mids = (median(getattr(one, figure) for one in turns) for turns in _columns(found))
    return " / ".join(f"{mid:,.{digits}f}" for mid in mids)


def table(rows: Sequence[Row], calibration: list[dict[str, float]], notes: Sequence[str]) -> str:
    """The page's table of goals, with the state of the machine before it and `notes` after it."""
    lines = [heading("make bench", calibration), "", HEAD, *map(str, rows)]
    return "\n".join([*lines, *_after(notes)])


def _after(notes: Sequence[str]) -> Iterator[str]:
    for note in notes:
        yield from ("", note)


def heading(command: str, calibration: list[dict[str, float]]) -> str:
    """When and how it was measured, on what machine, in what state before and after."""
    moment = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    words = " ".join([command, *sys.argv[1:]])
    lines = [f"{moment}, `{words}`, on {machine()}."]
    for when, state in zip(("Before", "after"), calibration, strict=True):
        lines.append(f"{when}: {pace(state)}, {calibration_line([state])}.")
    return " ".join([*lines, *remarks(*calibration)])


def pace(state: dict[str, float]) -> str:
    """The machine's state in a word, from the fixed loop of plain Python."""
    loop_ms = state["python_loop_cpu_ms"]
    if loop_ms <= _QUICK_MS:
        return "quick"
    return "slow" if loop_ms >= _SLOW_MS else "neither quick nor slow"


def remarks(before: dict[str, float], after: dict[str, float]) -> Iterator[str]:
    """The objections of the calibrations to the figures between them."""
    if any(one["python_loop_ms"] > _BUSY * one["python_loop_cpu_ms"] for one in (before, after)):
        yield "Others wanted the processors too: the rates say little."
    change = after["python_loop_cpu_ms"] / before["python_loop_cpu_ms"]
    if not 1 / _PACE_TOLERANCE <= change <= _PACE_TOLERANCE:
        word = "slower" if change > 1 else "quicker"
        yield f"The machine became {word} meanwhile: the loop takes {change:.2f} of what it took."


def calibration_line(runs: list[dict[str, float]]) -> str:
    """The machine's state: medians of the calibrations, with the spread of several."""
    figures = {name: middle([run[name] for run in runs]) for name in runs[0]}
    return (
        f"fixed loop of plain Python {figures['python_loop_ms']} ms "
        f"({figures['python_loop_cpu_ms']} of processor), loopback round trip "
        f"{figures['round_trip_us']} us, memcpy {figures['memcpy_gb_per_s']} GB/s, "
        f"{figures['fdatasync_per_s']} fdatasync/s"
    )


def machine() -> str:
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    memory_kb = int(Path("/proc/meminfo").read_text().split()[1])
    own = bench_result.machine()
    cpu = names[0] if names else own["processor"]
    return (
        f"{own['cores']} cores ({cpu}), {memory_kb / 2**20:.0f} GiB, {own['system']}, "
        f"Python {own['python']}"
    )


def replace_table(name: str, text: str) -> None:
    """Puts `text` in the place of the last run's table of that name."""
    begin, end = f"<!-- {name}: table begins -->", f"<!-- {name}: table ends -->"
    page = PAGE.read_text()
    before, found, rest = page.partition(begin)
    assert found, f"{PAGE} has no place for the table {name}"
    _, _, after = rest.partition(end)
    PAGE.write_text(f"{before}{begin}\n{text}\n{end}{after}")
