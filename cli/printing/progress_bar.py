"""The progress of a long command: a bar on a terminal, a line now and then in a pipe.

Both go to standard error and say bytes, rate and time left. Rich draws the bar and is imported only
when there is a terminal to draw on.
"""

import sys
import time
from typing import TYPE_CHECKING, Any, Final, Self

from aerobee.cli.printing.output import say
from aerobee.pipeline.jobs.common.job_result import size_text
from aerobee.printable import printable

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

_LINE_EVERY_S: Final = 5.0


class Progress:
    """Called with (what, done bytes, all bytes). A context manager; `shown` False says nothing."""

    def __init__(self, *, shown: bool = True) -> None:
        self._shown = shown
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None
        self._what = ""
        self._started = self._last_line = 0.0

    def __enter__(self) -> Self:
        if self._shown and sys.stderr.isatty():
            self._bar = _make_bar()
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, what: str, done_bytes: int, total_bytes: int) -> None:
        """`done_bytes` of `total_bytes` of the step `what` are done."""
        if not self._shown:
            return
        done = min(done_bytes, total_bytes)
        if self._bar is not None:
            self._draw(what, done, total_bytes)
        else:
            self._print(what, done, total_bytes)

    def _draw(self, what: str, done: int, total: int) -> None:
        assert self._bar is not None
        if what != self._what or self._task is None:
            if self._task is not None:
                self._bar.update(self._task, completed=self._bar.tasks[self._task].total)
            self._what = what
            self._task = self._bar.add_task(printable(what), total=total)
        self._bar.update(self._task, completed=done, total=total)

    def _print(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if what != self._what:
            self._what, self._started, self._last_line = what, now, now
        if now - self._last_line < _LINE_EVERY_S:
            return
        self._last_line = now
        rate = done / (now - self._started)
        left = f", {duration((total - done) / rate)} left" if rate else ""
        share = f" ({done / total:.0%})" if total else ""
        sizes = f"{size_text(done)} of {size_text(total)}"
        say(f"{what}: {sizes}{share}, {size_text(int(rate))}/s{left}")


def duration(seconds: float) -> str:
    """A time for people."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _make_bar() -> Any:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.progress import Progress as RichProgress

    return RichProgress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
