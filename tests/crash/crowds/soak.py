"""A mixed load for as long as wanted, with kills, and a watch on growth (docs/reliability.md R16).

    python -m tests.crash.crowds.soak --minutes 60 --seed 1
    python -m tests.crash.crowds.soak --minutes 60 --lives 12 --rate 2000

Producers, consumers with held pulls and commits, batches, delayed messages, queries, heartbeats of
clients that come and go, topics that are made and deleted, connections that come and go, scrapes.
The daemon is killed some times. Each of its lives is watched from a warm-up on: private memory
(files' pages are not the daemon's), descriptors that are not files of the store, threads. The
samples of a life's first and last third are compared, by their medians: a leak of a thousandth of
the load's allocations shows in an hour, a rough one in a minute. A message that a consumer reads is
checked against the number that its sender wrote into it.

With `--rate` the generator of the benchmark sends that number of messages a second besides, in an
open loop over 64 connections, and retention deletes the oldest segments before their time, because
the disk counts as full.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from aerobee.protocol.message.batch import BatchItem, encode_batch
from tests import campaign
from tests.bench import loads
from tests.crash.disks.mounts import mount, unmount
from tests.crash.judges.records import Record, records_of
from tests.crash.power_cuts.recorded_disk import memory_folder
from tests.crash.running.link import (
    COMMIT,
    PULL,
    SEND,
    SUCCESS,
    SYSTEM_BUSY,
    Link,
    pull_fields,
    send_fields,
)
from tests.service.kit import Served

TOPIC, QUEUES = "Soak", 4
_BATCH, _QUERY, _HEART_BEAT, _DELETE = 320, 12, 34, 215
#: The allowed difference of a watched figure between two thirds of a life, beside a hundredth of
#: it.
MEMORY_SLACK_BYTES, DESCRIPTOR_SLACK, THREAD_SLACK = 12 << 20, 12, 3
_STEP_S = 0.02
# A disk for stores that retention keeps small, and how much of it may be used.
_DISK_BYTES = 1 << 30
_FORCED_AT = 0.3


class Sample(NamedTuple):
    """The holdings of a process at a moment."""

    at_s: float
    memory_bytes: int
    descriptors: int
    threads: int


class Watcher:
    """Samples a process; files below `store` are not counted, there are more with more messages."""

    def __init__(self, pid: int, store: Path) -> None:
        self.samples: list[Sample] = []
        self._folder = Path(f"/proc/{pid}")
        self._store = str(store.resolve()) + "/"
        self._begun = time.monotonic()

    def sample(self) -> None:
        """Take one; raises FileNotFoundError when the process is gone."""
        status = (self._folder / "status").read_text()
        found = {
            name: int(value) for name, value in re.findall(r"^(\w+):\s+(\d+)", status, re.MULTILINE)
        }
        count = 0
        for one in os.scandir(self._folder / "fd"):
            with suppress(FileNotFoundError):
                count += not os.readlink(one.path).startswith(self._store)
        self.samples.append(
            Sample(time.monotonic() - self._begun, found["RssAnon"] * 1024, count, found["Threads"])
        )

    def grown(self) -> list[str]:
        """Figures that are larger in the last third than in the first, beyond their usual
        variation."""
        third = len(self.samples) // 3
        if third < 3:
            return []
        first, last = self.samples[:third], self.samples[-third:]
        wrong: list[str] = []
        slacks = (MEMORY_SLACK_BYTES, DESCRIPTOR_SLACK, THREAD_SLACK)
        for name, slack in zip(Sample._fields[1:], slacks, strict=True):
            before = statistics.median(getattr(one, name) for one in first)
            after = statistics.median(getattr(one, name) for one in last)
            if after - before > slack + before // 100:
                wrong.append(f"{name} went from {before:,.0f} to {after:,.0f}")
        return wrong

    def per_hour(self) -> tuple[float, float, float]:
        """Slopes by least squares: bytes, descriptors and threads an hour."""
        if len(self.samples) < 3:
            return 0.0, 0.0, 0.0
        times = [one.at_s for one in self.samples]
        slopes = [
            statistics.linear_regression(times, [float(one[place]) for one in self.samples]).slope
            for place in (1, 2, 3)
        ]
        return slopes[0] * 3600, slopes[1] * 3600, slopes[2] * 3600


@dataclass
class Result:
    """The result of a run."""

    lives: int = 0
    sent: int = 0
    refused: int = 0
    read: int = 0
    wrong: list[str] = field(default_factory=list)
    slopes: list[tuple[float, float, float]] = field(default_factory=list)


def body_of(rng: random.Random) -> bytes:
    filler = rng.randbytes(rng.choice((20, 200, 200, 2_000)))
    return b"%08x:" % zlib.crc32(filler) + filler


def is_whole(body: bytes) -> bool:
    return int(body[:8], 16) == zlib.crc32(body[9:])


class Load:
    """Clients of one daemon until `stop`, or until it is gone."""

    def __init__(self, daemon: Served, seed: str, result: Result, *, killed: bool) -> None:
        self._daemon = daemon
        self._port = daemon.port
        self._seed = seed
        self._result = result
        self._killed = killed
        self._done = threading.Event()
        self._lock = threading.Lock()
        works: tuple[Callable[[random.Random], None], ...] = (
            self._produce, self._produce, self._consume, self._come_and_go, self._administer,
        )  # fmt: skip
        self._threads = [
            threading.Thread(target=self._guarded, args=(work, number))
            for number, work in enumerate(works)
        ]

    def start(self) -> None:
        with Link(self._port) as link:
            link.create_topic(TOPIC, QUEUES)
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()

    def dying(self) -> None:
        """The daemon is about to be killed: its clients' ends are no failures any more."""
        self._killed = True

    def _guarded(self, work: Callable[[random.Random], None], number: int) -> None:
        rng = random.Random(f"{self._seed} {number}")
        try:
            work(rng)
        except OSError as error:
            if not self._killed:
                self._result.wrong.append(f"{work.__name__}: {error!r}")
        except Exception as error:  # noqa: BLE001 - the run reports it
            self._result.wrong.append(f"{work.__name__}: {error!r}")

    def _produce(self, rng: random.Random) -> None:
        with Link(self._port) as link:
            while not self._done.wait(_STEP_S):
                kind = rng.random()
                properties = {"KEYS": f"k{rng.randrange(50)}", "WAIT": "true"}
                queue_id, count = rng.randrange(QUEUES), 1
                if kind < 0.1:
                    count = rng.randrange(1, 20)
                    items = [BatchItem(0, body_of(rng), b"") for _ in range(count)]
                    fields = {**send_fields(TOPIC, queue_id, properties), "m": "true"}
                    answer = link.call(_BATCH, fields, encode_batch(items))
                else:
                    if kind < 0.2:
                        properties["DELAY"] = "1"
                    fields = send_fields(TOPIC, queue_id, properties)
                    answer = link.call(SEND, fields, body_of(rng))
                # A request that waited too long is refused, on a machine that is late.
                assert answer.code in (SUCCESS, SYSTEM_BUSY), (answer.code, answer.remark)
                with self._lock:
                    if answer.code == SUCCESS:
                        self._result.sent += count
                    else:
                        self._result.refused += 1

    def _consume(self, rng: random.Random) -> None:
        del rng
        with Link(self._port) as link:
            positions = {
                queue_id: int(link.call(30, {"topic": TOPIC, "queueId": queue_id}).ext["offset"])
                for queue_id in range(QUEUES)
            }
            held = {self._pull(link, one, positions): one for one in range(QUEUES)}
            while not self._done.is_set():
                for answer in link.answers(0.2):
                    queue_id = held.pop(answer.opaque, None)
                    if queue_id is None:
                        continue
                    if answer.code == SUCCESS:
                        self._take(list(records_of(answer.body)))
                        positions[queue_id] = int(answer.ext["nextBeginOffset"])
                    held[self._pull(link, queue_id, positions)] = queue_id
                    fields = {"consumerGroup": "soak", "topic": TOPIC, "queueId": queue_id}
                    link.ask(COMMIT, {**fields, "commitOffset": positions[queue_id]})

    def _take(self, records: list[Record]) -> None:
        for one in records:
            if not is_whole(one.body):
                self._result.wrong.append("a message was read that nobody has sent so")
        self._result.read += len(records)

    def _pull(self, link: Link, queue_id: int, positions: dict[int, int]) -> int:
        return link.ask(PULL, pull_fields(TOPIC, queue_id, positions[queue_id], 2_000))

    def _come_and_go(self, rng: random.Random) -> None:
        number = 0
        while not self._done.wait(5 * _STEP_S):
            number += 1
            client = f"client-{number % 40}"
            body = {
                "clientID": client,
                "producerDataSet": [{"groupName": "PG"}],
                "consumerDataSet": [
                    {
                        "groupName": f"G{number % 10}", "consumeType": "CONSUME_PASSIVELY",
                        "messageModel": "CLUSTERING", "unitMode": False,
                        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                        "subscriptionDataSet": [{"topic": TOPIC, "subString": "*"}],
                    }
                ],
            }  # fmt: skip
            with Link(self._port) as link:
                _beat(link, json.dumps(body).encode())
                if rng.random() < 0.5:
                    link.ask(PULL, pull_fields(TOPIC, 0, 1 << 40, 30_000))

    def _administer(self, rng: random.Random) -> None:
        with Link(self._port) as link:
            number = 0
            while not self._done.wait(10 * _STEP_S):
                number += 1
                name = f"Passing{number % 5}"
                if number % 10 < 5:
                    link.create_topic(name, 2)
                else:
                    link.call(_DELETE, {"topic": name})
                now = time.time_ns() // 1_000_000
                fields = {
                    "topic": TOPIC, "key": f"k{rng.randrange(50)}", "maxNum": 32,
                    "beginTimestamp": now - 10_000, "endTimestamp": now,
                }  # fmt: skip
                answer = link.call(_QUERY, fields)
                assert answer.code in (SUCCESS, 22), answer.remark
                assert self._daemon.get("/metrics")[0] == 200


def _beat(link: Link, body: bytes) -> None:
    """A heartbeat; the broker's notification of a changed group may come before its answer."""
    wanted = link.ask(_HEART_BEAT, {}, body)
    while True:
        for answer in link.answers():
            if answer.is_response and answer.opaque == wanted:
                assert answer.code == SUCCESS, answer.remark
                return


class OpenLoop:
    """The generator of the benchmark, beside the other clients of one daemon; nothing at rate 0."""

    def __init__(self, port: int, rate: float, seconds: float) -> None:
        words = f"send --conns 64 --warmup 0 --topic SoakRate --rate {rate} --secs {seconds}"
        command = [str(loads.CACHE / "rmqload"), *words.split(), "--port", str(port)]
        self._process: subprocess.Popen[str] | None = None
        if rate:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )

    def end(self, result: Result, *, killed: bool) -> None:
        """It has ended by itself, or by its daemon's death: how many were acknowledged, and what
        went wrong."""
        if self._process is None:
            return
        said = self._process.communicate(timeout=60)[0].strip()
        if self._process.returncode == 0:
            found = json.loads(said)
            result.sent += found["acked"]
            if found["errors"]:
                result.wrong.append(f"the open loop: {said}")
        elif not killed:
            result.wrong.append(f"the open loop: {said}")


#: Arguments of a daemon that deletes its oldest segments as soon as a part of its disk is used.
_RETENTION = (
    *("--set", f"retention.disk_max_used_percent={_FORCED_AT * 100 - 10:.0f}"),
    *("--set", f"retention.disk_force_ratio={_FORCED_AT}"),
    *("--set", "retention.clean_interval_ms=1000"),
)


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of its own, in memory. Only root may make one."""
    target = folder / "disk"
    target.mkdir()
    mount("aerobee-soak", target, "tmpfs", f"size={_DISK_BYTES}")
    try:
        yield target
    finally:
        unmount(target)


def run(folder: Path, seed: int, seconds: float, lives: int, rate: float = 0) -> Result:
    """Runs `lives` lives of a daemon on one store, of equal length, all but the last ended by a
    kill."""
    result = Result()
    store = folder / "store"
    if rate:
        loads.build()
    more = _RETENTION if rate else ()
    for number in range(lives):
        daemon = Served(folder / f"life-{number}", *more, store=store)
        try:
            daemon.ready()
            open_loop = OpenLoop(daemon.port, rate, seconds / lives - 1)
            watcher = Watcher(daemon.process.pid, store)
            load = Load(daemon, f"{seed} {number}", result, killed=False)
            load.start()
            _watch(watcher, seconds / lives, result)
            if number < lives - 1:
                load.dying()
                daemon.process.kill()
                daemon.process.wait(30)
                load.stop()
                open_loop.end(result, killed=True)
            else:
                load.stop()
                open_loop.end(result, killed=False)
                daemon.terminate()
                if daemon.wait() != 0:
                    result.wrong.append(f"the last stop failed: {daemon.log[-2_000:]}")
        finally:
            daemon.close()
        result.lives += 1
        result.slopes.append(watcher.per_hour())
        result.wrong += [f"life {number}: {one}" for one in watcher.grown()]
    if rate and (store / "commitlog" / f"{0:020}").exists():
        result.wrong.append("retention has deleted nothing: the run was too short for it")
    return result


def _watch(watcher: Watcher, seconds: float, result: Result) -> None:
    """Sample after a warm-up of a fifth."""
    begun = time.monotonic()
    pause = threading.Event()
    pause.wait(seconds / 5)
    while time.monotonic() - begun < seconds and not result.wrong:
        watcher.sample()
        pause.wait(max(0.05, seconds / 200))


@contextmanager
def leaky(what: str) -> Iterator[int]:
    """A negative control: the id of a process that leaks memory, descriptors or threads."""
    leak = {
        "memory": "kept.append(bytearray(b'x' * (1 << 20)))",
        "descriptors": "kept.append(open('/dev/null'))",
        "threads": (
            "t = threading.Thread(target=threading.Event().wait, daemon=True); t.start(); "
            "kept.append(t)"
        ),
    }[what]
    program = f"import threading, time\nkept = []\nwhile True:\n    {leak}\n    time.sleep(0.02)"
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.crowds.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--lives", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=0.0, help="messages a second in an open loop")
    asked = parser.parse_args()
    campaign.set_seed(asked.seed)
    print(f"seed {asked.seed}", flush=True)
    with memory_folder() as folder, small_disk(folder) if asked.rate else nullcontext(folder) as at:
        result = run(at, asked.seed, asked.minutes * 60, asked.lives, asked.rate)
    note(result, round(asked.minutes * 60))
    for number, (memory, descriptors, threads) in enumerate(result.slopes):
        print(
            f"life {number}: {memory / (1 << 20):+.2f} MiB, {descriptors:+.1f} descriptors, "
            f"{threads:+.1f} threads an hour"
        )
    print(
        f"{asked.minutes:g} minutes, {result.lives} lives, {result.sent} sent, "
        f"{result.refused} refused, {result.read} read, {len(result.wrong)} wrong"
    )
    print("\n".join(result.wrong[:20]))
    return bool(result.wrong)


def note(result: Result, seconds: int) -> None:
    """Write the figures."""
    campaign.note(
        "soak",
        seconds,
        wrong=len(result.wrong),
        lives=result.lives,
        messages_sent=result.sent,
        sends_refused=result.refused,
        messages_read=result.read,
    )


if __name__ == "__main__":
    sys.exit(main())
