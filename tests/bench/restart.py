"""P15 and P15b: how long after kill -9 until the first send is acknowledged, with gigabytes of log.

    python -m tests.bench.restart [--mib 6144] [--runs 3] [--dry]

Each broker fills a store of its own with messages of 1 KiB and is killed. Then, in turn:

- restart: each works for three seconds, is killed under load, and is started again on what it left;
- takeover: Java works for three seconds and is killed under load; ours, or Java, starts on that;
- rebuild: consumequeue, index and checkpoint are deleted (and our offsets file, as if the store had
  come from elsewhere), and everything is made again.

Measured from the launch of the process to the first acknowledged send, log in the page cache.
"""

import argparse
import datetime
import shutil
import sys
import time
from pathlib import Path

from aerobee.store.disk.files import Files

from ..interop.brokers import Broker, StoreShape
from .__main__ import KINDS, first_send
from .loads import CACHE, QUEUES, build, generate, stored
from .report import machine, middle, ratio, replace_table

TOPIC = "bench-fill"
MIB = 1 << 20
_WAIT_S = 300.0


def shape() -> StoreShape:
    """Production sizes."""
    return StoreShape(
        segment_bytes=1 << 30,
        queue_segment_bytes=6_000_000,
        index_slots=5_000_000,
        index_entries=20_000_000,
        # Copies of gigabytes fill disks; what the loads are about is not retention.
        extra={"fileReservedTime": "720", "diskSpaceCleanForciblyRatio": "0.97"},
    )


def to_first_send(broker: Broker) -> float:
    """Starts the broker; seconds from launch to the first acknowledged send."""
    begun = time.monotonic()
    broker.launch()
    while not first_send(broker):
        if time.monotonic() - begun > _WAIT_S or not broker.children[-1].running:
            raise RuntimeError(f"{broker.kind} took no send\n{broker.children[-1].tail()}")
        time.sleep(0.005)
    return time.monotonic() - begun


def log_bytes(store: Path) -> int:
    """What the commit log holds: segments are reserved to their ends, so up to the last byte."""
    total = 0
    for path in (store / "commitlog").iterdir():
        with path.open("rb") as file:
            total += Files().last_nonzero(file.fileno(), 0, path.stat().st_size)
    return total


def fill(kind: str, mib: int) -> Path:
    """A store with that much log, left behind by a killed broker of that kind."""
    root = CACHE / f"restart-{kind}"
    shutil.rmtree(root, ignore_errors=True)
    broker = KINDS[kind](root, shape())
    broker.start()
    try:
        broker.create_topic(TOPIC, QUEUES)
        while stored(broker, TOPIC) * 1150 < mib * MIB:
            send(broker, 4)
    finally:
        broker.kill()
    return broker.store


def send(broker: Broker, secs: int) -> None:
    """Load: batches of messages of 1 KiB."""
    words = "batch --conns 16 --batch 32 --size 1024 --keys 1"
    generate(broker.port, TOPIC, words, secs=secs, warmup=0)


def start_on(kind: str, store: Path) -> float:
    """Seconds to the first send of a new process on `store`, which is then killed again."""
    broker = KINDS[kind](CACHE / f"restart-run-{kind}", shape(), store)
    try:
        return to_first_send(broker)
    finally:
        broker.kill()


def leave_behind(kind: str, store: Path) -> None:
    """A broker of that kind works on the store for a few seconds and is killed under load."""
    broker = KINDS[kind](CACHE / f"restart-run-{kind}", shape(), store)
    broker.start()
    try:
        send(broker, 3)
    finally:
        broker.kill()


def strip(store: Path) -> None:
    for name in ("consumequeue", "index"):
        shutil.rmtree(store / name, ignore_errors=True)
    for name in ("checkpoint", "offsets"):
        (store / name).unlink(missing_ok=True)


def measure(mib: int, runs: int) -> dict[str, dict[str, list[float]]]:
    found: dict[str, dict[str, list[float]]] = {}

    def note(what: str, kind: str, seconds: float) -> None:
        found.setdefault(what, {}).setdefault(kind, []).append(seconds)
        print(f"{what:9} {kind:5} {seconds:6.2f} s", flush=True)

    stores = {kind: fill(kind, mib) for kind in KINDS}
    for _ in range(runs):
        for kind in KINDS:
            leave_behind("java", stores["java"])
            note("takeover", kind, start_on(kind, stores["java"]))
        for kind in KINDS:
            leave_behind(kind, stores[kind])
            note("restart", kind, start_on(kind, stores[kind]))
    for _ in range(runs):
        for kind in KINDS:
            strip(stores[kind])
            note("rebuild", kind, start_on(kind, stores[kind]))
    for kind in KINDS:
        note("bytes", kind, log_bytes(stores[kind]))
        shutil.rmtree(stores[kind].parent)
    return found


WHAT = {
    "restart": ("P15", "restart after kill -9 on its own store"),
    "takeover": ("P15", "start on a store that the Java broker left at kill -9"),
    "rebuild": ("P15b", "start with queues, index and checkpoint deleted"),
}


def table(found: dict[str, dict[str, list[float]]], mib: int) -> str:
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    lines = [
        f"{now}, `python -m tests.bench.restart {' '.join(sys.argv[1:])}`, {mib} MiB of log in "
        f"messages of 1 KiB, on {machine()}.",
        "",
        "| # | seconds to the first acknowledged send | Aerobee | Java | ratio of times |",
        "|---|---|---|---|---|",
    ]
    for what, (number, text) in WHAT.items():
        ours, theirs = found[what]["our"], found[what]["java"]
        lines.append(
            f"| {number} | {text} | {middle(ours)} s | {middle(theirs)} s | {ratio(ours, theirs)} |"
        )
    rates = [
        f"{kind} {middle([found['bytes'][kind][0] / s / 1e6 for s in found['rebuild'][kind]])} MB/s"
        for kind in KINDS
    ]
    return "\n".join(
        [*lines, "", f"Rebuilding, start of the process included: {', '.join(rates)}."]
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="restart", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--mib", type=int, default=6144)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--dry", action="store_true", help="leave docs/benchmarks.md as it is")
    options = parser.parse_args()
    build()
    text = table(measure(options.mib, options.runs), options.mib)
    if not options.dry:
        replace_table("restart", text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
