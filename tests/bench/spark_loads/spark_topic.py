"""P17: Spark reads a topic of ours and one of Kafka's, in turn, in the same Spark session.

    python -m tests.bench.spark_loads.spark_topic [--rows 2000000] [--runs 5] [--masters
    local[1],local[2]]
                                      [--ways our,...] [--spark 4.3]

Both topics have 8 queues and the same bodies of 128 B, sent in batches of a size. Each query runs
before it counts; then the ways take turns, so that a slow minute of the machine hurts all.
Every sum is compared with what was sent.

The goals come from pairs: a session that reads ours and the tuned one of Kafka's in turn and
nothing else, so that the JVM has compiled as much of the one as of the other.
"""

from __future__ import annotations

import argparse
import shutil
import struct
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from tests.bench.loads import CACHE, Lost
from tests.bench.spark_loads.kafka import CONNECTOR, KafkaBroker
from tests.bench.spark_loads.spark_cost import Cost, middles, new_driver, timed
from tests.interop.brokers import Broker, OurBroker, StoreShape
from tests.spark.kit import Driver

TOPIC = "bench"
QUEUES = 8
BODY_BYTES = 128
_SEND_BATCH = 320
_BATCH = 100
_COLUMNS = ("topic", "body", "queueId", "queueOffset", "storeTimestamp")
_WAIT = {"kafka.fetch.max.wait.ms": "10"}


class Way(NamedTuple):
    """One source with some options."""

    name: str
    source: str
    what: str
    options: dict[str, str]


WAYS = (
    Way("our", "rocketmq", "Aerobee, defaults", {}),
    Way("named", "rocketmq", "Aerobee, columns named", {"columns": ",".join(_COLUMNS)}),
    Way("kafka", "kafka", "Kafka, defaults", {}),
    Way("wait", "kafka", "Kafka, no fetch wait", _WAIT),
    Way(
        "tuned",
        "kafka",
        "Kafka, tuned",
        {**_WAIT, "kafka.max.poll.records": "50000", "kafka.max.partition.fetch.bytes": "8388608"},
    ),
)
SUM, NOOP = "sum(length(body))", "noop"
MASTERS = ("local[1]", "local[2]")
#: master -> query -> name of the way -> runs
Results = dict[str, dict[str, dict[str, list[Cost]]]]


def bodies(first: int, count: int) -> list[bytes]:
    return [b"%0128d" % number for number in range(first, first + count)]


def fill_ours(broker: Broker, rows: int) -> None:
    """Batches with the properties that a client sets, the queues one after the other."""
    broker.create_topic(TOPIC, QUEUES)
    with broker.wire() as wire:
        for number, first in enumerate(range(0, rows, _BATCH)):
            count = min(_BATCH, rows - first)
            wire.done(_SEND_BATCH, _header(number % QUEUES), _batch(first, count))
        held = sum(wire.max_offset(TOPIC, queue) for queue in range(QUEUES))
    if held != rows:
        raise Lost(f"{held} messages of {rows} are in the topic")


def _header(queue: int) -> dict[str, Any]:
    return {
        "a": "bench", "b": TOPIC, "c": "TBW102", "d": QUEUES, "e": queue, "f": 0, "g": 0, "h": 0,
        "i": "WAIT\x01true", "j": 0, "k": "false", "m": "true",
    }  # fmt: skip


def _batch(first: int, count: int) -> bytes:
    parts = []
    for number, body in enumerate(bodies(first, count), first):
        text = b"UNIQ_KEY\x01AC1100011F2C18B4AAC2%012X\x02TAGS\x01TagA" % number
        size = 22 + len(body) + len(text)
        parts.append(struct.pack(">iiiii", size, 0, 0, 0, len(body)) + body)
        parts.append(struct.pack(">h", len(text)) + text)
    return b"".join(parts)


def fill_kafka(spark: Any, servers: str, topic: str, rows: int) -> None:
    """Send the same bodies through Spark's own sink, which sends batches of up to 16 KiB."""
    patient = {"kafka.delivery.timeout.ms": "600000", "kafka.max.block.ms": "300000"}
    spark.range(rows).selectExpr(
        "cast(lpad(cast(id as string), 128, '0') as binary) as value",
        "cast(id div 100 % 8 as int) as partition",
    ).write.format("kafka").options(
        **{"kafka.bootstrap.servers": servers, "topic": topic, **patient}
    ).save()


def read_topic(spark: Any, source: str, options: dict[str, str], expression: str) -> int | None:
    """Runs in the driver. Five columns each, under the names that the source has for them."""
    frame = spark.read.format(source).options(**options).load()
    if source == "kafka":
        frame = frame.select("topic", "value", "partition", "offset", "timestamp")
        expression = expression.replace("body", "value")
    else:
        frame = frame.select("topic", "body", "queueId", "queueOffset", "storeTimestamp")
    if expression != "noop":
        return int(frame.selectExpr(expression).collect()[0][0])
    frame.write.format("noop").mode("overwrite").save()
    return None


class Bench:
    """Two brokers with the same messages, and a Spark session at a time."""

    def __init__(self, root: Path, version: str, rows: int) -> None:
        shutil.rmtree(root, ignore_errors=True)
        self._root = root
        self._version = version
        self.rows = rows
        shape = StoreShape(segment_bytes=256 << 20, queue_segment_bytes=6_000_000)
        self._ours = OurBroker(root / "our", shape)
        self._kafka = KafkaBroker(root / "kafka", QUEUES)

    def __enter__(self) -> Bench:
        try:
            self._ours.start()
            self._kafka.start()
            self._fill()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._ours.kill()
        self._kafka.kill()
        shutil.rmtree(self._root, ignore_errors=True)

    def driver(self, master: str) -> Driver:
        return new_driver(self._version, self._root, master, sorted(CONNECTOR.glob("*.jar")))

    def _fill(self) -> None:
        fill_ours(self._ours, self.rows)
        driver = self.driver("local[2]")
        try:
            driver.run(fill_kafka, servers=self._kafka.address, topic=TOPIC, rows=self.rows)
        finally:
            driver.close()

    def measure(
        self, master: str, ways: Sequence[Way], runs: int, before: int
    ) -> Iterator[tuple[str, Way, Cost]]:
        """Query, way and cost of every run that counts; `before` rounds of them do not."""
        driver = self.driver(master)
        try:
            for number in range(-before, runs):
                for query, way in product((SUM, NOOP), ways):
                    cost = self._run(driver, way, query)
                    if number >= 0:
                        yield query, way, cost
        finally:
            driver.close()

    def _run(self, driver: Driver, way: Way, query: str) -> Cost:
        if way.source == "kafka":
            broker = self._kafka.pid
            where = {"kafka.bootstrap.servers": self._kafka.address, "subscribe": TOPIC}
        else:
            broker = self._ours.pid
            where = {"nameServer": self._ours.name_server, "topic": TOPIC}
        options = {**where, **way.options}
        found, cost = timed(
            driver, read_topic, broker, source=way.source, options=options, expression=query
        )
        sent = self.rows * BODY_BYTES
        if found not in (None, sent):
            raise Lost(f"{way.what}: {found} bytes came, {sent} were sent")
        return cost


def run(
    bench: Bench,
    runs: int,
    ways: Sequence[Way] = WAYS,
    masters: Sequence[str] = MASTERS,
    before: int = 1,
) -> Results:
    """All runs in one session for each master, each told as it ends."""
    results: Results = {}
    for master in masters:
        for query, way, cost in bench.measure(master, ways, runs, before):
            runs_of = results.setdefault(master, {}).setdefault(query, {})
            runs_of.setdefault(way.name, []).append(cost)
            print(
                f"{master} {query:17} {way.what:21} {bench.rows / cost.wall / 1e6:5.2f} M rows/s  "
                f"{bench.rows / cost.cpu / 1e6:5.2f} M rows per CPU-second  (JVM {cost.jvm:.2f} s, "
                f"Python {cost.python:.2f} s, broker {cost.broker:.2f} s)",
                flush=True,
            )
    return results


def filled(rows: int, version: str) -> Bench:
    """Both brokers with `rows` messages each; entering it starts and fills them."""
    return Bench(CACHE / "spark-topic", version, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--spark", default="4.3")
    parser.add_argument("--ways", default=",".join(way.name for way in WAYS))
    parser.add_argument("--masters", default=",".join(MASTERS))
    given = parser.parse_args()
    ways = [way for way in WAYS if way.name in given.ways.split(",")]
    with filled(given.rows, given.spark) as bench:
        results = run(bench, given.runs, ways, given.masters.split(","))
    for master, queries in results.items():
        for query, found in queries.items():
            for name, costs in found.items():
                print(master, query, name, middles(costs))


if __name__ == "__main__":
    main()
