"""Plots of the job `traffic`, as PNG files and as one HTML page that holds them and the numbers.

The page needs nothing but itself: pictures are in it, so it can be mailed. Drawing needs matplotlib
(extra `plots`), which the job asks for before it reads (checks.py); the page without pictures needs
nothing.
"""

from __future__ import annotations

import base64
import html
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from aerobee.pipeline.jobs.common.job_result import cell_text

Rows = Sequence[Mapping[str, Any]]

_MOST_LINES: Final = 8
_MOST_ROWS: Final = 200
_STYLE: Final = (
    "body{font:14px sans-serif;margin:2em auto;max-width:70em}table{border-collapse:collapse}"
    "td,th{padding:.2em .8em;border-bottom:1px solid #ddd;text-align:left}"
    "td.n{text-align:right}img{max-width:100%}pre{background:#f6f6f6;padding:1em}"
)
_TITLES: Final = {
    "hours": "Messages an hour, by topic",
    "topics": "Bytes by topic",
    "sizes": "Size of records by topic",
    "latency": "Latency from born to stored, by topic",
    "tags": "Messages by tag",
    "queues": "Messages by queue",
}


def write_plots(
    tables: Mapping[str, Rows], lines: Sequence[str], folder: str, *, pictures: bool = True
) -> list[str]:
    """Write `<plot>.png` and `index.html` into `folder`, made if need be; the paths.

    `tables` are the sums of the job by name. Without `pictures`, or without matplotlib, only the
    page is made.
    """
    os.makedirs(folder, exist_ok=True)
    drawn: dict[str, str] = {}
    for name, figure in (_figures(tables) if pictures else {}).items():
        path = os.path.join(folder, f"{name}.png")
        figure.savefig(path, dpi=110)
        drawn[name] = path
    page = os.path.join(folder, "index.html")
    with open(page, "w", encoding="utf-8") as opened:
        opened.write(html_page(tables, lines, drawn))
    return [*drawn.values(), page]


def can_draw() -> bool:
    """Whether matplotlib is there."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        return False
    return True


def html_page(tables: Mapping[str, Rows], lines: Sequence[str], pictures: Mapping[str, str]) -> str:
    """The page: the report, each picture, each table. Names from messages are escaped."""
    parts = [f"<h1>Traffic</h1><pre>{html.escape(chr(10).join(lines))}</pre>"]
    for name, path in pictures.items():
        with open(path, "rb") as opened:
            data = base64.b64encode(opened.read()).decode()
        title = _TITLES[name]
        parts.append(f'<h2>{title}</h2><img alt="{title}" src="data:image/png;base64,{data}">')
    for name, rows in tables.items():
        parts.append(f"<h2>{html.escape(name)}</h2>{_html_table(rows)}")
    body = "\n".join(parts)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Traffic</title>'
        f"<style>{_STYLE}</style><body>{body}</body></html>\n"
    )


def _html_table(rows: Rows) -> str:
    if not rows:
        return "<p>nothing</p>"
    names = "".join(f"<th>{html.escape(name)}</th>" for name in rows[0])
    lines = [
        "".join(
            f'<td class="{"n" if isinstance(value, int | float) else "t"}">'
            f"{html.escape(cell_text(value))}</td>"
            for value in row.values()
        )
        for row in rows[:_MOST_ROWS]
    ]
    more = f"<p>and {len(rows) - _MOST_ROWS} more</p>" if len(rows) > _MOST_ROWS else ""
    return f"<table><tr>{names}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>{more}"


def _figures(tables: Mapping[str, Rows]) -> dict[str, Any]:
    """A figure for each plot that there is something to draw for."""
    if not can_draw():
        return {}
    drawn: dict[str, tuple[str, Callable[[Any, Rows], None]]] = {
        "hours": ("hours", _draw_hours),
        "topics": ("topics", _draw_topics),
        "sizes": ("topics", _spread("size", "bytes")),
        "latency": ("topics", _spread("latency", "ms")),
        "tags": ("tags", _draw_tags),
        "queues": ("queues", _draw_queues),
    }
    figures = {}
    for name, (table, draw) in drawn.items():
        if tables.get(table):
            figures[name] = _figure(_TITLES[name], draw, tables[table])
    return figures


def _figure(title: str, draw: Callable[[Any, Rows], None], rows: Rows) -> Any:
    # pyplot is not used: it keeps every figure and asks for a display.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title)
    draw(axes, rows)
    axes.grid(visible=True, alpha=0.3)
    return figure


def _draw_hours(axes: Any, rows: Rows) -> None:
    hours = sorted({row["hour"] for row in rows})
    totals: dict[str, int] = {}
    for row in rows:
        totals[row["topic"]] = totals.get(row["topic"], 0) + row["messages"]
    shown = sorted(totals, key=lambda topic: -totals[topic])[:_MOST_LINES]
    for topic in shown:
        by_hour = {row["hour"]: row["messages"] for row in rows if row["topic"] == topic}
        axes.plot(hours, [by_hour.get(hour, 0) for hour in hours], marker="o", label=_plain(topic))
    axes.set_ylabel("messages")
    axes.tick_params("x", rotation=30)
    axes.legend(fontsize="small")


def _draw_topics(axes: Any, rows: Rows) -> None:
    shown = sorted(rows, key=lambda row: -row["bytes"])[:_MOST_LINES][::-1]
    axes.barh([_plain(row["topic"]) for row in shown], [row["bytes"] for row in shown])
    axes.set_xlabel("bytes")


def _draw_tags(axes: Any, rows: Rows) -> None:
    shown = sorted(rows, key=lambda row: -row["messages"])[: 2 * _MOST_LINES][::-1]
    names = [_plain(f"{row['topic']} / {row['tags'] or '(none)'}") for row in shown]
    axes.barh(names, [row["messages"] for row in shown])
    axes.set_xlabel("messages")


def _draw_queues(axes: Any, rows: Rows) -> None:
    shown = sorted(rows, key=lambda row: -row["messages"])[: 4 * _MOST_LINES]
    names = [_plain(f"{row['topic']}-{row['queueId']}") for row in shown]
    axes.bar(names, [row["messages"] for row in shown])
    axes.set_ylabel("messages")
    axes.tick_params("x", rotation=75, labelsize="x-small")


def _spread(prefix: str, unit: str) -> Callable[[Any, Rows], None]:
    """A line for each topic over its percentiles."""

    def draw(axes: Any, rows: Rows) -> None:
        names = [name for name in rows[0] if name.startswith(prefix)]
        labels = [name[len(prefix) :].replace("_", ".") for name in names]
        for row in rows[:_MOST_LINES]:
            values = [max(row[name] or 0, 0) for name in names]
            axes.plot(labels, values, marker="o", label=_plain(row["topic"]))
        axes.set_yscale("symlog")
        axes.set_ylabel(unit)
        axes.legend(fontsize="small")

    return draw


def _plain(text: str) -> str:
    """A name as a label; matplotlib would read a dollar as mathematics."""
    return text.replace("$", r"\$")
