"""Spark sessions of the benchmark, and what a query costs: time, and CPU time by whom."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from tests.spark.kit import Driver, descendants

_TICKS = os.sysconf("SC_CLK_TCK")
# A user's JVM runs with these; the tests' drivers do without the optimizing compiler and compiled
# plans.
_JVM = {"spark.driver.extraJavaOptions": "-XX:+UseG1GC", "spark.sql.codegen.wholeStage": "true"}


class Cost(NamedTuple):
    """The cost of one query, in seconds. Only `jvm` and `python`, driver and workers, are
    Spark's."""

    wall: float
    jvm: float
    python: float
    broker: float

    @property
    def cpu(self) -> float:
        return self.jvm + self.python


def new_driver(version: str, folder: Path, master: str, jars: Sequence[Path] = ()) -> Driver:
    """One Spark session with Spark's defaults."""
    more = {"spark.jars": ",".join(str(path) for path in jars)} if jars else {}
    return Driver(version, folder, master=master, conf={**_JVM, **more})


def timed(
    driver: Driver, query: Callable[..., Any], broker: int | None = None, /, **given: Any
) -> tuple[Any, Cost]:
    """The result of a query in a running driver, and its cost; `broker` is the process it asks."""
    before, begun = _spent(driver.pid, broker), time.monotonic()
    found = driver.run(query, **given)
    wall = time.monotonic() - begun
    after = _spent(driver.pid, broker)
    return found, Cost(wall, *(late - early for late, early in zip(after, before, strict=True)))


def middles(costs: Sequence[Cost]) -> Cost:
    """The median of each kind of cost."""
    return Cost(*(median(values) for values in zip(*costs, strict=True)))


def _spent(driver: int, broker: int | None) -> tuple[float, float, float]:
    """CPU-seconds so far: of the JVM, of every Python process below the driver, of the broker."""
    while True:
        pids = _processes(driver)
        try:
            jvm, python = _sums(pids)
        except FileNotFoundError:
            continue
        # A process that ended meanwhile would be counted with its parent too, or not at all.
        if pids == _processes(driver):
            return jvm, python, sum(_times(broker)) if broker else 0.0


def _processes(driver: int) -> list[int]:
    return [driver, *descendants(driver)]


def _sums(pids: Sequence[int]) -> tuple[float, float]:
    jvm = python = 0.0
    for pid in pids:
        own, ended = _times(pid)
        if Path(f"/proc/{pid}/comm").read_text().strip() == "java":
            jvm += own
        else:
            python += own
        python += ended
    return jvm, python


def _times(pid: int) -> tuple[float, float]:
    """CPU-seconds of a process, and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user, system, ended_user, ended_system = (int(field) / _TICKS for field in fields[11:15])
    return user + system, ended_user + ended_system
