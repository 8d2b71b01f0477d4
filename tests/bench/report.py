"""The table of docs/benchmarks.md: medians, spreads and ratios of the runs."""

import datetime
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from .loads import LOADS, Load

PAGE = Path(__file__).parent.parent.parent / "docs" / "benchmarks.md"
LIFE = (
    ("P13", "start on an empty store to first acknowledged send", "ready_s", "s"),
    ("P14", "resident memory, idle, all processes", "idle_mb", "MB"),
)
Results = dict[str, dict[str, list[dict[str, Any]]]]  # broker -> load -> runs


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


def column(results: Results, broker: str, name: str, figure: str) -> list[float]:
    return [float(run[figure]) for run in results.get(broker, {}).get(name, [])]


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> str:
    return f"**{median(ours) / median(theirs):.2f}**" if ours and theirs else "-"


def load_row(results: Results, load: Load) -> str | None:
    ours, theirs = (column(results, kind, load.name, "messages_per_s") for kind in ("our", "java"))
    if not ours and not theirs:
        return None
    cells = [load.name, load.what]
    cells += [middle(one) if one else "-" for one in (ours, theirs)]
    cells.append(ratio(ours, theirs))
    for figure in ("p50_us", "p99_us", "cpu_us"):
        pair = [column(results, kind, load.name, figure) for kind in ("our", "java")]
        digits = 1 if figure == "cpu_us" else 0
        cells.append(" / ".join(f"{median(one):,.{digits}f}" if one else "-" for one in pair))
    return "| " + " | ".join(cells) + " |"


def life_row(results: Results, name: str, what: str, figure: str, unit: str) -> str | None:
    ours, theirs = (column(results, kind, "life", figure) for kind in ("our", "java"))
    if not ours and not theirs:
        return None
    cells = [name, what, *(f"{middle(one)} {unit}" if one else "-" for one in (ours, theirs))]
    return "| " + " | ".join([*cells, ratio(ours, theirs)]) + " |"


def table(results: Results, calibration: list[dict[str, float]], command: str) -> str:
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    lines = [
        f"{now}, `{command}`, on {machine()}. Calibration: {calibration_line(calibration)}.",
        "",
        "| # | load | Aerobee, messages/s | Java, messages/s | ratio | p50 us | p99 us "
        "| CPU us a message |",
        "|---|---|---|---|---|---|---|---|",
        *filter(None, (load_row(results, load) for load in LOADS)),
        "",
        "| # | what | Aerobee | Java | ratio |",
        "|---|---|---|---|---|",
        *filter(None, (life_row(results, *words) for words in LIFE)),
    ]
    return "\n".join(lines)


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
    cpu = names[0] if names else platform.machine()
    return (
        f"{os.cpu_count()} cores ({cpu}), {memory_kb / 2**20:.0f} GiB, Linux {platform.release()}, "
        f"Python {platform.python_version()}"
    )


def replace_table(name: str, text: str) -> None:
    """Puts `text` in the place of the last run's table of that name."""
    begin, end = f"<!-- {name}: table begins -->", f"<!-- {name}: table ends -->"
    page = PAGE.read_text()
    before, found, rest = page.partition(begin)
    assert found, f"{PAGE} has no place for the table {name}"
    _, _, after = rest.partition(end)
    PAGE.write_text(f"{before}{begin}\n{text}\n{end}{after}")
