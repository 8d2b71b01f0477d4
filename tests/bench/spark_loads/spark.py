"""`make bench-spark`: Spark reads a topic of ours and one of Kafka's (P17), and log files (P18),
and writes to a topic of ours.

    python -m tests.bench.spark_loads.spark [--rows 2000000] [--store-rows 6000000] [--runs 5]
        [--pairs 9] [--parts P17,P18,sink] [--ways our,kafka,...] [--masters local[1],local[2]]
        [--spark 4.3] [--dry]

Replaces the table of Spark in docs/benchmarks.md, with the goals and what came of them, unless
--dry. spark_topic.py, spark_store.py and spark_sink.py say what is done.
"""

import argparse
import datetime
import sys
from collections.abc import Iterator
from statistics import median

from tests.bench.loads import build, calibrate
from tests.bench.report import calibration_line, machine, middle, replace_table
from tests.bench.spark_loads import spark_sink, spark_store, spark_topic
from tests.bench.spark_loads.spark_cost import Cost, middles
from tests.bench.spark_loads.spark_topic import WAYS

StoreResults = dict[str, list[Cost]]
#: Ways that are measured in a session with TUNED alone, and their names in the goals.
PAIRED = {"our": "our defaults", "named": "five columns named"}
TUNED = "tuned"
#: Rounds before the JVM's rate is level.
_WARM = 3


def topic_table(results: spark_topic.Results, rows: int) -> Iterator[str]:
    yield (
        "| reading a topic | source | M rows/s | M rows per CPU-second "
        "| JVM + Python CPU-seconds | broker's |"
    )
    yield "|---|---|---|---|---|---|"
    for master, queries in results.items():
        for query, found in queries.items():
            for way in WAYS:
                if way.name in found:
                    yield _topic_row(f"{query}, {master}", way.what, found[way.name], rows)


def _topic_row(query: str, source: str, costs: list[Cost], rows: int) -> str:
    mid = middles(costs)
    rates = middle([rows / cost.wall / 1e6 for cost in costs])
    per_cpu = middle([rows / cost.cpu / 1e6 for cost in costs])
    cpu = f"{mid.jvm:.2f} + {mid.python:.2f}"
    return f"| {query} | {source} | {rates} | {per_cpu} | {cpu} | {mid.broker:.2f} |"


def pair_goals(results: spark_topic.Results, way: str) -> Iterator[tuple[str, float, float]]:
    """Yields each goal's name, the goal, and the median of the pairs' ratios."""
    what = PAIRED[way]
    for master, queries in results.items():
        for query, found in queries.items():
            pairs = list(zip(found[TUNED], found[way], strict=True))
            name = f"P17 {query}, {master}, {what} against Kafka tuned"
            yield f"{name}: rows/s", 1.0, median([kafka.wall / our.wall for kafka, our in pairs])
            per_cpu = median([kafka.cpu / our.cpu for kafka, our in pairs])
            yield f"{name}: rows per CPU-second", 1.5, per_cpu


def store_goals(found: StoreResults, rows: int) -> Iterator[tuple[str, float, float]]:
    for name in ("five columns, sum(length(body))", "five columns, noop"):
        yield f"P18 {name}: M rows/s on two cores", 1.0, rows / middles(found[name]).wall / 1e6
        yield f"P18 {name}: M rows per CPU-second", 0.6, rows / _cpu(found[name]) / 1e6
    every, one = found["all columns, noop"], found["one column, max(queueOffset)"]
    yield "P18 all columns: M rows per CPU-second", 0.4, rows / _cpu(every) / 1e6
    yield "P18 one column: M rows/s on two cores", 3.0, rows / middles(one).wall / 1e6


def _cpu(costs: list[Cost]) -> float:
    return median([cost.cpu for cost in costs])


def goal_table(goals: list[tuple[str, float, float]]) -> Iterator[str]:
    yield "| goal | at least | reached |"
    yield "|---|---|---|"
    for what, least, reached in goals:
        missed = "" if reached >= least else ", missed"
        yield f"| {what} | {least:.1f} | **{reached:.2f}**{missed} |"


def head(options: argparse.Namespace, calibration: list[dict[str, float]]) -> str:
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    words = " ".join(sys.argv[1:])
    command = f'make bench-spark ARGS="{words}"' if words else "make bench-spark"
    return (
        f"{now}, `{command}`, on {machine()}. PySpark {options.spark}, Spark's Kafka source 4.2.0, "
        f"Kafka 4.3.1; topics of {options.rows:,} messages, {options.runs} runs, goals of P17 by "
        f"{options.pairs} pairs. Calibrated before "
        f"and after: {calibration_line(calibration)}."
    )


def topic(options: argparse.Namespace) -> tuple[str, list[tuple[str, float, float]]]:
    """The table of all ways, and the goals."""
    ways = [way for way in WAYS if way.name in options.ways.split(",")]
    masters = options.masters.split(",")
    goals: list[tuple[str, float, float]] = []
    with spark_topic.filled(options.rows, options.spark) as bench:
        for name in PAIRED:
            pair = [way for way in ways if way.name in (name, TUNED)]
            if len(pair) == 2:
                results = spark_topic.run(bench, options.pairs, pair, masters, _WARM)
                goals += pair_goals(results, name)
        results = spark_topic.run(bench, options.runs, ways, masters)
    return "\n".join(topic_table(results, options.rows)), goals


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench-spark", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--store-rows", type=int, default=spark_store.ROWS, help="of P18")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=9, help="of P17's goals")
    parser.add_argument("--parts", default="P17,P18,sink")
    parser.add_argument("--ways", default=",".join(way.name for way in WAYS))
    parser.add_argument("--masters", default=",".join(spark_topic.MASTERS))
    parser.add_argument("--spark", default="4.3")
    parser.add_argument("--dry", action="store_true", help="leave docs/benchmarks.md as it is")
    options = parser.parse_args()

    build()
    calibration = [calibrate()]
    tables: list[str] = []
    goals: list[tuple[str, float, float]] = []
    if "P17" in options.parts:
        found_ways, more = topic(options)
        tables.append(found_ways)
        goals += more
    if "P18" in options.parts:
        found = spark_store.run(options.store_rows, options.runs, options.spark)
        tables.append(spark_store.table(found, options.store_rows))
        goals += store_goals(found, options.store_rows)
    if "sink" in options.parts:
        written = spark_sink.run(options.rows, options.runs, options.spark)
        tables.append(spark_sink.table(written, options.rows))
        goals += spark_sink.goals(written, options.rows)
    calibration.append(calibrate())
    tables.append("\n".join(goal_table(goals)))
    text = "\n\n".join([head(options, calibration), *tables])
    if not options.dry:
        replace_table("bench-spark", text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
