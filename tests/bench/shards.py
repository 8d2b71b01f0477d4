"""What a second shard on a second core gives (P22): one broker, and two shards, in turns.

    python -m tests.bench.shards [--runs 3] [--secs 3] [--loads P2,P5] [--dry]

Each shard has a generator of its own, which is one thread: on two cores two shards and two
generators share them, so the rate says what such a machine does with its clients on it. What it
would be with the clients elsewhere follows from the processor time a message: a shard has a core.
"""

import argparse
import datetime
import json
import shutil
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from aerobee.client.blocking import Admin, PullConsumer

from ..ports import free_port
from ..service.kit import Served
from .loads import CACHE, LOADS, QUEUES, Load, Lost, build, calibrate, cpu_seconds, generate
from .report import calibration_line, machine, middle, replace_table

STRIDE = 10
SETTINGS = ("store.commit_log_segment_bytes=268435456", "store.index_slots=5000000",
            "store.index_entries=20000000")  # fmt: skip


class Figures(NamedTuple):
    """Of one load on one kind: messages a second in all, processor microseconds a message."""

    rate: float
    cpu_us: float


class Brokers:
    """A supervisor of `count` shards, or one broker; on a store of its own."""

    def __init__(self, folder: Path, count: int) -> None:
        self._http_port = free_port(1, 2)
        self._port = free_port(STRIDE)
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
        self._served.terminate()
        self._served.wait(120)
        self._served.close()

    def run(self, load: Load, secs: float) -> Figures:
        """The load on all at once, checked: what was acknowledged is stored."""
        topic = f"bench-{load.name}"
        with Admin(self._name_server) as admin:
            admin.create_topic(topic, queues=QUEUES)
        pids = self._pids()
        before = sum(map(cpu_seconds, pids))
        ports = [self._port + number * STRIDE for number in range(self._count)]
        with ThreadPoolExecutor(self._count) as generators:
            results = list(
                generators.map(lambda port: generate(port, topic, load.words, secs=secs), ports)
            )
        spent = sum(map(cpu_seconds, pids)) - before
        self._check(topic, results)
        acked = sum(result["acked"] for result in results)
        rate = sum(result["messages_per_s"] for result in results)
        return Figures(rate, spent * 1e6 / acked)

    def _pids(self) -> list[int]:
        if self._count == 1:
            return [self._served.process.pid]
        shards = json.loads(self._served.get("/shards")[1])["shards"]
        return [shard["pid"] for shard in shards if "broker" in shard]

    def _check(self, topic: str, results: list[dict[str, Any]]) -> None:
        with PullConsumer(self._name_server, "bench") as consumer:
            stored = sum(map(consumer.max_offset, consumer.queues(topic)))
        acked = sum(result["acked"] for result in results)
        most = acked + sum(result["unanswered"] for result in results)
        if any(result["errors"] for result in results) or not acked <= stored <= most:
            raise Lost(f"{topic}: {stored} stored, {acked} acknowledged")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--secs", type=float, default=3.0)
    parser.add_argument("--loads", default="P2,P5")
    parser.add_argument("--dry", action="store_true", help="print the table only")
    options = parser.parse_args()
    build()
    loads = [load for load in LOADS if load.name in options.loads.split(",")]
    found: dict[tuple[str, int], list[Figures]] = defaultdict(list)
    before = calibrate()
    for _ in range(options.runs):
        for count in (1, 2):
            folder = CACHE / f"shards-{count}"
            shutil.rmtree(folder, ignore_errors=True)
            with Brokers(folder, count) as brokers:
                for load in loads:
                    found[load.name, count].append(brokers.run(load, options.secs))
            shutil.rmtree(folder, ignore_errors=True)
    text = table(loads, found, [before, calibrate()])
    print(text)
    if not options.dry:
        replace_table("shards", text)
    return 0


def table(
    loads: list[Load],
    found: dict[tuple[str, int], list[Figures]],
    calibration: list[dict[str, float]],
) -> str:
    """The page's lines: the state of the machine, then a row for each load."""
    moment = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    command = " ".join(["python -m tests.bench.shards", *sys.argv[1:]])
    lines = [
        f"{moment}, `{command}`, on {machine()}. {calibration_line(calibration)}",
        "",
        "| load | one broker, messages/s | two shards | CPU us a message, one | two |",
        "|---|---|---|---|---|",
    ]
    for load in loads:
        rates = [middle([one.rate for one in found[load.name, count]]) for count in (1, 2)]
        costs = [middle([one.cpu_us for one in found[load.name, count]]) for count in (1, 2)]
        lines.append(f"| {load.name} {load.what} | {' | '.join(rates + costs)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
