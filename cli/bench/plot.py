"""The picture of a measurement: rates and latencies by time, and latency by percentile.

Drawn from the document alone, so the figures in it are those of the file. Needs matplotlib, which
is imported only here.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from aerobee.cli.bench.bench_result import LATENCIES, aggregated
from aerobee.cli.printing.output import USAGE, CommandFailed

FORMATS: Final = (".svg", ".png", ".pdf")


def check_plot(path: Path) -> None:
    """Refuse what cannot be drawn, before anything is measured."""
    if path.suffix.lower() not in FORMATS:
        raise CommandFailed(f"--plot {path}: its name must end in {', '.join(FORMATS)}", USAGE)
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise CommandFailed(
            "--plot needs matplotlib, which is not installed: pip install '.[plots]' in the "
            "project's directory brings it",
            USAGE,
        ) from None


def draw(document: Mapping[str, Any], path: Path) -> None:
    """Write the picture. Raises OSError."""
    # pyplot is not used: it keeps every figure and asks for a display.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 11), layout="constrained")
    figure.suptitle(_plain(f"{document['workload']}: {document['driver']}"))
    rates, latencies, percentiles = figure.subplots(3)
    times = document["aerobee"]["secondEnds"]
    _draw_rates(rates, times, document)
    _draw_latencies(latencies, times, document)
    _draw_percentiles(percentiles, document)
    for axes in (rates, latencies, percentiles):
        axes.grid(visible=True, alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize="small")
    figure.savefig(path, dpi=110)


def _draw_rates(axes: Any, times: list[float], document: Mapping[str, Any]) -> None:
    axes.set_ylabel("messages/s")
    axes.set_xlabel("s")
    highest = 0.0
    for name, label in (
        ("publishRate", "publish"),
        ("consumeRate", "receive"),
        ("publishErrorRate", "failed"),
    ):
        if any(document[name]):
            axes.plot(times, document[name], label=label)
            highest = max(highest, *document[name])
    # A margin would be a part of the range of rates, nothing where they are the same all the time.
    axes.set_ylim(0, 1.1 * highest or 1)


def _draw_latencies(axes: Any, times: list[float], document: Mapping[str, Any]) -> None:
    axes.set_ylabel("latency, ms")
    axes.set_xlabel("s")
    for name, _, label in LATENCIES:
        if name == "publishDelayLatency" or not any(document.get(f"{name}Max", ())):
            continue
        for suffix, percent, style in (("50pct", "50 %", "-"), ("99pct", "99 %", "--")):
            axes.plot(times, document[f"{name}{suffix}"], style, label=f"{label} {percent}")
        axes.plot(times, document[f"{name}Max"], ":", label=f"{label} max")
    if axes.lines:
        axes.set_yscale("log")


def _draw_percentiles(axes: Any, document: Mapping[str, Any]) -> None:
    axes.set_ylabel("latency, ms")
    axes.set_xlabel("percent of all")
    nines = 0.0
    for name, _, label in LATENCIES:
        quantiles = document.get(f"{aggregated(name)}Quantiles")
        if not quantiles:
            continue
        # 100 % has no place on an axis of nines.
        points = [(float(percent), ms) for percent, ms in quantiles.items() if percent != "100.0"]
        places = [-math.log10(1 - percent / 100) for percent, _ in points]
        nines = max([nines, *places])
        axes.plot(places, [ms for _, ms in points], label=label)
    marks = range(math.ceil(nines) + 1)
    axes.set_xticks(list(marks), [_percent(mark) for mark in marks])
    if axes.lines:
        axes.set_yscale("log")


def _percent(nines: int) -> str:
    return f"{100 - 100 / 10**nines:.10g} %"


def _plain(text: str) -> str:
    """A text as a title; matplotlib would read a dollar as mathematics."""
    return text.replace("$", r"\$")
