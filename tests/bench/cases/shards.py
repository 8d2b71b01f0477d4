"""The gain of a second shard on a second core (P22): one broker, and two shards, side by side.

    python -m tests.bench.cases.shards [--turns 9] [--secs 1] [--warm-up 3] [--loads P2,P5] [--dry]

Both are up and take turns, as in `make bench`; ratios are those of two shards to one broker. Each
shard has a generator of its own, which is one thread: on two cores two shards and two generators
share them, so the rate is that of such a machine with its clients on it. The rate with the clients
elsewhere follows from the processor time a message: a shard has a core.
"""

import argparse
import contextlib
import json
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from aerobee.client.blocking_roles import Admin, PullConsumer
from tests.bench import report
from tests.bench.alone import interrupts_later, measured
from tests.bench.loads import CACHE, LOADS, QUEUES, Load, build, calibrate, generate
from tests.bench.turns import Rounds, TakesTurns, add_turn_options, check_turns, rounds, warm_up
from tests.ports import free_port
from tests.service.kit import Served

STRIDE = 10
SETTINGS = ("store.commit_log_segment_bytes=268435456", "store.index_slots=5000000",
            "store.index_entries=20000000")  # fmt: skip
FREE_BYTES_MIN = 15 << 30


class Brokers(TakesTurns):
    """A supervisor of `count` shards, or one broker; on a store of its own."""

    acked = 0

    def __init__(self, folder: Path, count: int) -> None:
        self.kind = "one broker" if count == 1 else f"{count} shards"
        self._http_port = free_port(1, 2)
        self._port = free_port(*(STRIDE * number for number in range(1, count)))
        self._count = count
        words = ["--port", str(self._port), "--http-port", str(self._http_port)]
        words += ["--shards", str(count)] if count > 1 else []
        for setting in SETTINGS:
            words += ["--set", setting]
        self._served = Served(folder, *words)
        self._served.http_port = self._http_port
        self._name_server = f"127.0.0.1:{self._served.name_server_port}"

    def __enter__(self) -> "Brokers":
        self._served.ready()
        return self

    def __exit__(self, *_: object) -> None:
        with interrupts_later():
            self._served.terminate()
            self._served.wait(120)
            self._served.close()

    def take_up(self, load: Load) -> None:
        self.topic, self.acked = f"bench-{load.name}", 0
        with Admin(self._name_server) as admin:
            admin.create_topic(self.topic, queues=QUEUES)

    def pids(self) -> list[int]:
        if self._count == 1:
            return [self._served.process.pid]
        shards = json.loads(self._served.get("/shards")[1])["shards"]
        return [shard["pid"] for shard in shards if "broker" in shard]

    def held(self) -> int:
        with PullConsumer(self._name_server, "bench") as consumer:
            return sum(map(consumer.max_offset, consumer.queues(self.topic)))

    def last_words(self) -> str:
        return self._served.log[-2000:]

    def work(self, load: Load, **size: float) -> list[dict[str, Any]]:
        ports = [self._port + number * STRIDE for number in range(self._count)]
        with ThreadPoolExecutor(self._count) as generators:
            return list(
                generators.map(lambda port: generate(port, self.topic, load.words, **size), ports)
            )


@contextlib.contextmanager
def both_up(folder: Path) -> Iterator[tuple[Brokers, Brokers]]:
    """Two shards, and one broker; all is removed after."""
    try:
        with contextlib.ExitStack() as stack:
            shards, one = (
                stack.enter_context(Brokers(folder / str(count), count)) for count in (2, 1)
            )
            yield shards, one
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(load: Load, options: argparse.Namespace, folder: Path) -> Rounds:
    with both_up(folder) as both:
        for brokers in both:
            brokers.take_up(load)
        warm_up(both, load, options.secs, options.warm_up)
        return rounds(both, range(options.turns), load, secs=options.secs)


HEAD = (
    "| # | load | two shards, messages/s | one broker | ratio | CPU us a message "
    "| ratio, one / two | p50 us | p99 us |\n" + "|---" * 9 + "|"
)


def row(load: Load, found: Rounds) -> str:
    """The page's line of a load."""
    line = next(report.load_rows(load, found))
    cells = (line.name, line.what, line.ours, line.theirs, line.ratio)
    return f"| {' | '.join((*cells, line.cpu_us, line.cpu_ratio, line.p50_us, line.p99_us))} |"


def compare(options: argparse.Namespace, folder: Path) -> None:
    """Prints the table, and replaces the page's."""
    check_turns(options.turns, options.secs)
    build()
    before = calibrate()
    loads = [load for load in LOADS if load.name in options.loads.upper().split(",")]
    lines = [row(load, measure(load, options, folder)) for load in loads]
    heading = report.heading("python -m tests.bench.cases.shards", [before, calibrate()])
    text = "\n".join([heading, "", HEAD, *lines])
    if not options.dry:
        report.replace_table("shards", text)
    print(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_turn_options(parser, "each")
    parser.add_argument("--warm-up", type=float, default=3, help="seconds for each, at least")
    parser.add_argument("--loads", default="P2,P5")
    parser.add_argument("--dry", action="store_true", help="print the table only")
    options = parser.parse_args()
    return measured("shards", compare, options, CACHE, FREE_BYTES_MIN)


if __name__ == "__main__":
    sys.exit(main())
