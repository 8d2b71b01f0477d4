"""Spark writes to a topic of ours, effectively once and at least once.

    python -m tests.bench.spark_loads.spark_sink [--rows 2000000] [--runs 5] [--masters
    local[1],local[2]]

Rows of 200 bytes that Spark makes as it goes, to a topic with 8 queues; each way writes once before
it counts, and then they take turns. How many are in the topic is looked at after each write.
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from tests.bench.loads import CACHE, Lost
from tests.bench.report import middle
from tests.bench.spark_loads.spark_cost import Cost, middles, new_driver, timed
from tests.interop.brokers import Broker, OurBroker, StoreShape
from tests.spark.kit import Driver

BODY_BYTES: Final = 200
GOAL: Final = 100_000.0
_QUEUES = 8
_MASTERS = ("local[1]", "local[2]")
_GUARANTEES = _ONCE, _LEAST = ("effectively once", "at least once")
#: (master, guarantee) -> runs
SinkResults = dict[tuple[str, str], list[Cost]]


def write(spark: Any, options: dict[str, str], rows: int, body_bytes: int) -> None:
    """Runs in the driver."""
    text = f"lpad(cast(id as string), {body_bytes}, '0')"
    frame = spark.range(rows).selectExpr(f"cast({text} as binary) as body")
    frame.write.format("rocketmq").options(**options).mode("append").save()


def run(rows: int, runs: int, version: str, masters: Sequence[str] = _MASTERS) -> SinkResults:
    """All runs, each told as it ends."""
    root = CACHE / "spark-sink"
    results: SinkResults = {}
    for master in masters:
        for guarantee, cost in _measured(root, master, version, rows, runs):
            results.setdefault((master, guarantee), []).append(cost)
            print(
                f"{master} {guarantee:17} {rows / cost.wall:9,.0f} rows/s  (JVM {cost.jvm:.2f} "
                f"s, Python {cost.python:.2f} s, broker {cost.broker:.2f} s)",
                flush=True,
            )
    return results


def _measured(
    root: Path, master: str, version: str, rows: int, runs: int
) -> Iterator[tuple[str, Cost]]:
    """Measure with a broker of its own: a second version's store would begin with the page cache
    full of the first version's writes, and that costs a third."""
    shutil.rmtree(root, ignore_errors=True)
    shape = StoreShape(segment_bytes=1 << 30, queue_segment_bytes=6_000_000)
    broker = OurBroker(root / "our", shape)
    try:
        broker.start()
        driver = new_driver(version, root, master)
        try:
            for number, guarantee in _turns(runs):
                cost = _write(broker, driver, f"sink-{number}", guarantee, rows)
                if number >= len(_GUARANTEES):  # the first write of each does not count
                    yield guarantee, cost
        finally:
            driver.close()
    finally:
        broker.kill()
        shutil.rmtree(root, ignore_errors=True)


def _turns(runs: int) -> Iterator[tuple[int, str]]:
    return enumerate(_GUARANTEES * (runs + 1))


def _write(broker: OurBroker, driver: Driver, topic: str, guarantee: str, rows: int) -> Cost:
    broker.create_topic(topic, _QUEUES)
    options = {"nameServer": broker.name_server, "topic": topic}
    if guarantee == _ONCE:
        options["jobId"] = topic
    # The rest that the write before has left to the disk would be counted with this write.
    os.sync()
    given = {"options": options, "rows": rows, "body_bytes": BODY_BYTES}
    _, cost = timed(driver, write, broker.pid, **given)
    _check(broker, topic, rows)
    return cost


def _check(broker: Broker, topic: str, rows: int) -> None:
    with broker.wire() as wire:
        held = sum(wire.max_offset(topic, queue) for queue in range(_QUEUES))
    if held != rows:
        raise Lost(f"{held} messages of {rows} are in {topic}")


def table(results: SinkResults, rows: int) -> str:
    """The table as docs/benchmarks.md has it."""
    lines = [
        "| writing a topic, 200 B | rows/s | us of a row: JVM + Python | broker's |",
        "|---|---|---|---|",
    ]
    for (master, guarantee), costs in results.items():
        mid = middles(costs)
        rates = middle([rows / cost.wall / 1000 for cost in costs])
        spent = f"{mid.jvm / rows * 1e6:.2f} + {mid.python / rows * 1e6:.2f}"
        brokers = f"{mid.broker / rows * 1e6:.2f}"
        lines.append(f"| {guarantee}, {master} | {rates} thousand | {spent} | {brokers} |")
    return "\n".join(lines)


def goals(results: SinkResults, rows: int) -> Iterator[tuple[str, float, float]]:
    """Yields each goal's name, the goal, and the measured figure."""
    for (master, guarantee), costs in results.items():
        if guarantee == _ONCE:
            what = f"sink, {guarantee}, {master}: rows/s of 200 B"
            yield what, GOAL, rows / middles(costs).wall


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--spark", default="4.3")
    parser.add_argument("--masters", default=",".join(_MASTERS))
    given = parser.parse_args()
    results = run(given.rows, given.runs, given.spark, given.masters.split(","))
    print(table(results, given.rows))


if __name__ == "__main__":
    main()
