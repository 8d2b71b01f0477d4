"""P18: Spark reads commit log files, rows a second and rows a CPU-second.

    python -m tests.bench.spark_loads.spark_store [--rows 6000000] [--runs 5] [--spark 4.3]
    [--master MASTER]

A store of messages with 128 B bodies and the properties a client sets is written once to .cache and
read from the page cache. CPU is that of the driver's JVM and all Python workers. Each query runs
once before it counts; the best of the runs is told beside the middle one, since other work on the
machine only ever makes a run slower.
"""

from __future__ import annotations

import argparse
import shutil
import struct
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from aerobee.protocol.message.record import StoreMessage, encode_blank, encode_record
from aerobee.protocol.message.record_layout import pack_host
from tests.bench.loads import CACHE
from tests.bench.spark_loads.spark_cost import Cost, middles, new_driver, timed

SEGMENT_BYTES = 256 << 20
QUEUE_BYTES = 6_000_000
QUEUES = 8
ROWS = 6_000_000
HOST = pack_host("10.0.0.1", 10911)
FIVE = "topic,body,queueId,queueOffset,storeTimestamp"

#: Name, options, what is computed of it ("" = every row is taken and dropped).
LOADS: tuple[tuple[str, dict[str, str], str], ...] = (
    ("five columns, sum(length(body))", {"columns": FIVE}, "sum(length(body))"),
    ("five columns, noop", {"columns": FIVE}, ""),
    ("five columns, mapped, noop", {"columns": FIVE, "mapped": "true"}, ""),
    ("five columns, checkCrc, noop", {"columns": FIVE, "checkCrc": "true"}, ""),
    ("all columns, noop", {}, ""),
    ("one column, max(queueOffset)", {"columns": "queueOffset"}, "max(queueOffset)"),
)
# Reads one message only: the cost of a query by itself.
QUERY = ("a query", {"columns": "queueOffset", "endOffset": "1"}, "max(queueOffset)")


def build(root: Path, rows: int) -> None:
    """A store that ended in order, with its consume queues."""
    if (root / f"{rows}.rows").exists():
        return
    shutil.rmtree(root, ignore_errors=True)
    (root / "commitlog").mkdir(parents=True)
    units: list[bytearray] = [bytearray() for _ in range(QUEUES)]
    position = 0
    log = bytearray()
    for number in range(rows):
        record = encode_record(_message(number), number // QUEUES, position, 1_700_000_000_000)
        left = SEGMENT_BYTES - len(log)
        if len(record) + 8 > left:
            log += encode_blank(left) + bytes(left - 8)
            _write(root / "commitlog", position - SEGMENT_BYTES + left, log)
            position += left
            log = bytearray()
            record = encode_record(_message(number), number // QUEUES, position, 1_700_000_000_000)
        units[number % QUEUES] += struct.pack(">qiq", position, len(record), 0)
        log += record
        position += len(record)
    start = position - len(log)
    _write(root / "commitlog", start, log + bytes(SEGMENT_BYTES - len(log)))
    for queue_id, data in enumerate(units):
        data += bytes(-len(data) % QUEUE_BYTES)
        for first in range(0, len(data), QUEUE_BYTES):
            folder = root / "consumequeue" / "orders" / str(queue_id)
            _write(folder, first, data[first : first + QUEUE_BYTES])
    (root / f"{rows}.rows").touch()


def _message(number: int) -> StoreMessage:
    # Bodies and keys of varying length, so that no record is as long as the one before.
    body = (b"%012d" % number) * 10 + b"." * (number * 7 % 17)
    properties = (
        f"TAGS\x01tag{number % 7}\x02KEYS\x01order-{number}\x02"
        f"UNIQ_KEY\x01AC1100011F2C18B4AAC2{number:012X}\x02CLUSTER\x01DefaultCluster"
    )
    return StoreMessage(
        "orders", number % QUEUES, 0, 0, 1_700_000_000_000 + number, HOST, HOST, 0, 0, body,
        properties.encode(),
    )  # fmt: skip


def _write(folder: Path, start: int, data: bytes | bytearray) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{start:020d}").write_bytes(data)


def run_query(spark: Any, path: str, options: dict[str, str], expression: str) -> None:
    frame = spark.read.format("rocketmq-store").options(**options).load(path)
    if expression:
        frame.selectExpr(expression).collect()
    else:
        frame.write.format("noop").mode("overwrite").save()


def run(rows: int, runs: int, version: str, master: str = "local[2]") -> dict[str, list[Cost]]:
    """All runs by load, each told as it ends."""
    root = CACHE / "spark-store"
    build(root, rows)
    found: dict[str, list[Cost]] = {}
    driver = new_driver(version, CACHE / "spark-driver", master)
    try:
        for number, load in product(range(runs + 1), (*LOADS, QUERY)):
            name, options, expression = load
            given = {"path": str(root), "options": options, "expression": expression}
            _, cost = timed(driver, run_query, **given)
            if number:
                found.setdefault(name, []).append(cost)
                print(
                    f"{name:31} {cost.wall:5.2f} s  {rows / cost.wall / 1e6:5.2f} M rows/s  "
                    f"{rows / cost.cpu / 1e6:5.2f} M rows per CPU-second",
                    flush=True,
                )
    finally:
        driver.close()
    return found


def table(found: dict[str, list[Cost]], rows: int) -> str:
    """A line for each load: the best run, and the middle."""
    lines = [
        "| reading log files | M rows/s, best | middle | M rows per CPU-second, best | middle "
        "| JVM + Python CPU-seconds |",
        "|---|---|---|---|---|---|",
    ]
    for name, costs in found.items():
        if name == QUERY[0]:
            continue
        walls, cpus = [cost.wall for cost in costs], [cost.cpu for cost in costs]
        cells = [rows / pick(values) / 1e6 for values in (walls, cpus) for pick in (min, median)]
        middle = middles(costs)
        figures = " | ".join(f"{cell:.2f}" for cell in cells)
        lines.append(f"| {name} | {figures} | {middle.jvm:.2f} + {middle.python:.2f} |")
    alone = middles(found[QUERY[0]])
    lines += [
        "",
        f"{rows:,} messages. Of that, a query that reads a single one takes {alone.wall:.2f} s and "
        f"{alone.cpu:.2f} CPU-seconds.",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--spark", default="4.3")
    parser.add_argument("--master", default="local[2]")
    given = parser.parse_args()
    print(table(run(given.rows, given.runs, given.spark, given.master), given.rows))


if __name__ == "__main__":
    main()
