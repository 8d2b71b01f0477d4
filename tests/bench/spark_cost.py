"""What a query costs: seconds on the clock, and seconds of processor by whom."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ..spark.kit import Driver, descendants

_TICKS = os.sysconf("SC_CLK_TCK")


class Cost(NamedTuple):
    """Of one query. `cpu` is that of the driver, its JVM and all Python workers."""

    wall: float
    cpu: float
    broker: float  # the broker's processor time, which does not count


def cpu_seconds(pid: int) -> float:
    """Of a process and everything below it, those that have ended included."""
    total = 0
    for one in (pid, *descendants(pid)):
        try:
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        except FileNotFoundError:
            continue
        total += sum(int(field) for field in fields[11:15])
    return total / _TICKS


def timed(
    driver: Driver, query: Callable[..., Any], broker: int | None = None, /, **given: Any
) -> tuple[Any, Cost]:
    """What a query gives in a running driver, and its cost; `broker` is the process it asks."""
    asked = cpu_seconds(broker) if broker else 0.0
    cpu, begun = cpu_seconds(driver.pid), time.monotonic()
    found = driver.run(query, **given)
    wall = time.monotonic() - begun
    spent = cpu_seconds(driver.pid) - cpu
    return found, Cost(wall, spent, cpu_seconds(broker) - asked if broker else 0.0)
