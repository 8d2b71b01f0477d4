"""kill -9 at any moment, under 8 producers and 4 consumers (docs/reliability.md R4).

A *store* lives through some lives. Each life is a daemon with settings drawn by its own seed, which
is killed at a drawn moment: while it starts, or under traffic. The next life begins with a read of
everything, which the checker compares with what all clients were told so far (I1 to I8); the last
one is stopped in order, and its files are read as well. `kill_points.py` kills where it matters
most; this kills where nobody has thought of.

    python -m tests.crash.daemon_kills.black_box --seed 1 --kills 500

runs some by hand and prints a line for each life and the sum at the end. Stores have the seeds N,
N+1, ... and ten lives each, so that parts can be run one after the other and added up:
--seed 1 --kills 500, --seed 51 --kills 500, ...
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from aerobee.config.model import Settings
from aerobee.store.message_store import MessageStore
from tests import campaign
from tests.crash.judges.checker import Violation, check
from tests.crash.judges.found import look
from tests.crash.judges.history import History, Promise, Sent
from tests.crash.judges.restarted import served
from tests.crash.power_cuts.recorded_disk import memory_folder
from tests.crash.running.daemons import SMALL, start_daemon
from tests.crash.running.traffic import Marks, Traffic
from tests.service.kit import Served

PRODUCERS, CONSUMERS = 8, 4
LIVES = 10
_SIZES = (80, 80, 80, 200, 1_500, 9_000)
#: Nobody gets so far before the kill.
_ENDLESS = 1 << 30
#: Index entries that are looked up at a store's end; each costs a query.
_KEYS = 200
#: Settings in which a life may differ from the life before. The sizes of files are a store's, and
#: stay.
CHOICES: dict[str, tuple[object, ...]] = {
    "store.flush_interval_ms": (1, 20, 500),
    "store.flush_least_pages": (0, 4),
    "store.flush_timed": ("false", "true"),
    "store.flush_thorough_interval_ms": (50, 300, 10_000),
    "store.consume_queue_flush_interval_ms": (10, 200, 1_000),
    "store.consume_queue_flush_least_pages": (0, 2),
    "store.index_safe": ("false", "true"),
    "store.check_reads": ("unchecked", "always", "never"),
    "broker.flush_consumer_offset_interval_ms": (100, 1_000),
}
FILE_SIZES: dict[str, tuple[int, ...]] = {
    "commit_log_segment_bytes": (65_536, 262_144, 1 << 20),
    "consume_queue_segment_bytes": (400, 4_000, 60_000),
    "index_entries": (60, 1_000),
}


class Life(NamedTuple):
    """The values drawn for one daemon. `early`: it is killed while it starts."""

    flush: str
    more: dict[str, object]
    early: bool
    kill_after_s: float
    pause_s: float

    @classmethod
    def drawn(cls, rng: random.Random) -> Life:
        early = rng.random() < 0.15
        return cls(
            rng.choice(("SYNC_FLUSH", "ASYNC_FLUSH")),
            {name: rng.choice(values) for name, values in CHOICES.items()},
            early,
            rng.uniform(0.02, 0.8) if early else rng.uniform(0.02, 1.2),
            rng.choice((0.0, 0.005, 0.02)),
        )


@dataclass
class Result:
    """The events that some stores have gone through."""

    kills: int = 0
    early: int = 0
    acked: int = 0
    unknown: int = 0
    wrong: list[str] = field(default_factory=list)

    def add(self, other: Result) -> None:
        self.kills += other.kills
        self.early += other.early
        self.acked += other.acked
        self.unknown += other.unknown
        self.wrong += other.wrong


class Store:
    """One store and its clients' history."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.seed = seed
        self.root = folder / "store"
        self.history = History()
        self.result = Result()
        self._folder = folder
        self._rng = random.Random(f"black box {seed}")
        self._sizes = {name: self._rng.choice(sizes) for name, sizes in FILE_SIZES.items()}
        self._traffic = Traffic(
            self.history,
            Marks(lambda _number: None),
            seed,
            topic_share=0.02,
            producers=PRODUCERS,
            consumers=CONSUMERS,
        )
        self._prepared = False

    def live(self, number: int) -> None:
        """One more life, which ends with its kill."""
        life = Life.drawn(random.Random(f"life {self.seed} {number}"))
        print(f"seed {self.seed} life {number}: {life} {self._sizes}", flush=True)
        with self._daemon(self._folder / f"life-{number}", life) as daemon:
            if life.early:
                # Sleeping is the fault here, not a wait for something.
                time.sleep(life.kill_after_s)
                daemon.process.kill()
                self.result.early += 1
            else:
                daemon.ready()
                self.judge(daemon.port, f"life {number}")
                self._under_traffic(daemon, life)
            daemon.process.wait(30)
        self.result.kills += 1

    def _under_traffic(self, daemon: Served, life: Life) -> None:
        if not self._prepared:
            self._traffic.prepare(daemon.port)
            self._prepared = True
        killer = threading.Timer(life.kill_after_s, daemon.process.kill)
        killer.start()
        try:
            # Clients end when their connections do.
            with suppress(OSError):
                self._traffic.run(daemon.port, _ENDLESS, _SIZES, life.pause_s)
        finally:
            killer.join()

    def judge(self, port: int, when: str) -> None:
        """Read everything, and compare it with what clients were told."""
        found = served(port, self.root)
        self._add(when, check(self.history, found, Promise()))

    def end(self) -> None:
        """A last life that is stopped in order; then the files are judged as well."""
        life = Life.drawn(random.Random(f"last life {self.seed}"))
        with self._daemon(self._folder / "last", life) as daemon:
            daemon.ready()
            self.judge(daemon.port, "the last life")
            daemon.terminate()
            if daemon.wait() != 0:
                self.result.wrong.append(f"seed {self.seed}: the last stop failed: {daemon.log}")
        settings = Settings.for_tests(
            store_path=str(self.root), disk_warning_ratio=1.0, **{**SMALL, **self._sizes}
        )
        store = MessageStore.open(settings)
        try:
            found = look(store, self.root, _KEYS)
        finally:
            store.close()
        promise = Promise(segment_bytes=self._sizes["commit_log_segment_bytes"])
        self._add("the files", check(self.history, found, promise))
        self.result.acked += len(self.history.acked())
        self.result.unknown += sum(1 for one in self.history.sends if one.outcome == "unknown")

    def _add(self, when: str, violations: list[Violation]) -> None:
        self.result.wrong += [
            f"seed {self.seed}, {when}: {one.rule} {one.text}" for one in violations[:20]
        ]

    @contextmanager
    def _daemon(self, folder: Path, life: Life, root: Path | None = None) -> Iterator[Served]:
        more = {f"store.{name}": size for name, size in self._sizes.items()} | life.more
        daemon = start_daemon(folder, root or self.root, life.flush, more=more)
        try:
            yield daemon
        finally:
            daemon.close()

    def without(self, lost: Sent) -> list[str]:
        """A negative control: the checker's findings on a copy whose log has lost this message."""
        copy = self._folder / "copy"
        shutil.copytree(self.root, copy)
        size = self._sizes["commit_log_segment_bytes"]
        start = lost.log_offset // size * size
        with (copy / "commitlog" / f"{start:020}").open("r+b") as log:
            log.seek(lost.log_offset - start)
            log.write(bytes(91))
        life = Life.drawn(random.Random(f"control {self.seed}"))
        with self._daemon(self._folder / "control", life, copy) as daemon:
            daemon.ready()
            found = served(daemon.port, copy)
        shutil.rmtree(copy)
        return [f"{one.rule} {one.text}" for one in check(self.history, found, Promise())]


def run(folder: Path, seed: int, kills: int, *, control: bool = False) -> tuple[Result, list[str]]:
    """Makes `kills` kills, over as many stores as that takes; returns also the findings of a
    control, if asked."""
    total = Result()
    caught: list[str] = []
    for number in range(0, kills, LIVES):
        place = folder / f"store-{number}"
        store = Store(place, seed + number // LIVES)
        for life in range(min(LIVES, kills - number)):
            store.live(life)
        if control and not caught and store.history.acked():
            caught = store.without(store.history.acked()[-1])
        store.end()
        total.add(store.result)
        shutil.rmtree(place)
    return total, caught


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.crash.daemon_kills.black_box", description=__doc__
    )
    parser.add_argument("--seed", type=int, default=1, help="of the first store")
    parser.add_argument("--kills", type=int, default=100)
    asked = parser.parse_args()
    campaign.set_seed(asked.seed)
    with memory_folder() as folder:
        result, caught = run(folder, asked.seed, asked.kills, control=True)
    campaign.note("random kills", result.kills, **figures(result))
    campaign.note_control("random kills", "an acked record is gone", bool(caught), 1)
    print("\n".join(result.wrong))
    stores = -(-asked.kills // LIVES)
    print(
        f"seeds {asked.seed} to {asked.seed + stores - 1}: {result.kills} kills, {result.early} "
        f"of them while it started; {result.acked} messages acknowledged, {result.unknown} of "
        f"unknown outcome; {len(result.wrong)} wrong; the control was "
        f"{'caught' if caught else 'NOT caught'}"
    )
    return bool(result.wrong) or not caught


def figures(result: Result) -> dict[str, int]:
    """For docs/reliability.md."""
    return {
        "wrong": len(result.wrong),
        "of_them_while_starting": result.early,
        "messages_acknowledged": result.acked,
        "of_unknown_outcome": result.unknown,
    }


if __name__ == "__main__":
    sys.exit(main())
