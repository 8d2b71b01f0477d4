"""Whether a send has to wait because a segment is made, synced, deleted or scrubbed.

    python -m tests.bench.cases.stalls [--secs 30] [--rate 5000] [--dry]

An open loop: sends are due at fixed times, and their latency counts from then, so a send that
waited behind another counts as well. Each row is a run of our broker of its own; the first is the
measure of the others: segments so large that nothing is made, synced at leisure, nothing deleted.
The excess of a row's worst send over that run's comes from the work, or from the machine.
"""

import argparse
import datetime
import shutil
import sys
from dataclasses import dataclass, field

from tests.bench.loads import CACHE, QUEUES, build, generate, stored
from tests.bench.report import machine, replace_table
from tests.interop.brokers import OurBroker, StoreShape

MIB = 1 << 20
TOPIC = "bench-stalls"
#: Old segments go as soon as the disk is fuller than nothing, at each look.
DELETE = {
    "diskSpaceCleanForciblyRatio": "0.01",
    "diskMaxUsedSpaceRatio": "10",
    "cleanResourceInterval": "1000",
    "scrub.bytes_per_second": "0",
}
KEEP = {
    "diskSpaceCleanForciblyRatio": "0.99",
    "fileReservedTime": "720",
    "scrub.bytes_per_second": "0",
}
SCRUB = {**KEEP, "scrub.bytes_per_second": str(64 * MIB)}


@dataclass(frozen=True, slots=True)
class Run:
    """A row: what goes on, the segments' size, settings, and how much log there is before."""

    what: str
    segment_mib: int
    extra: dict[str, str] = field(default_factory=lambda: dict(KEEP))
    flush: str = "ASYNC_FLUSH"
    before_mib: int = 0


RUNS = (
    Run("nothing of it", 1024),
    Run("a segment of 16 MiB made and rolled every 3 s", 16),
    Run("a segment of 1 GiB made ahead, the one before full", 1024, before_mib=1020),
    Run("16 MiB segments deleted every second", 16, DELETE),
    Run("1 GiB segments deleted", 1024, DELETE, before_mib=3072),
    Run("3 GiB scrubbed at 64 MiB/s", 1024, SCRUB, before_mib=3072),
    Run("SYNC_FLUSH, nothing of it", 1024, flush="SYNC_FLUSH"),
    Run("SYNC_FLUSH, 16 MiB segments made, rolled and deleted", 16, DELETE, flush="SYNC_FLUSH"),
)  # fmt: skip


def load(broker: OurBroker, words: str, secs: float) -> dict[str, float]:
    result: dict[str, float] = generate(broker.port, TOPIC, words, secs=secs, warmup=1)
    assert not result["errors"], result
    return result


def fill(broker: OurBroker, mib: int) -> None:
    while stored(broker, TOPIC) * 1150 < mib * MIB:
        load(broker, "batch --conns 8 --batch 32 --size 1024", 1)


def measure(run: Run, secs: float, rate: int) -> dict[str, float]:
    root = CACHE / "stalls"
    shutil.rmtree(root, ignore_errors=True)
    shape = StoreShape(
        flush=run.flush,
        segment_bytes=run.segment_mib * MIB,
        queue_segment_bytes=6_000_000,
        index_slots=5_000_000,
        index_entries=20_000_000,
        extra={"diskMaxUsedSpaceRatio": "95", **(KEEP if run.before_mib else run.extra)},
    )
    broker = OurBroker(root, shape)
    broker.start()
    try:
        broker.create_topic(TOPIC, QUEUES)
        if run.before_mib:
            fill(broker, run.before_mib)
            # Started anew, there is something that was not checked yet.
            broker.stop()
            shape.extra = {"diskMaxUsedSpaceRatio": "95", **run.extra}
            broker.start()
        return load(broker, f"send --conns 64 --size 1024 --rate {rate}", secs)
    finally:
        broker.kill()
        shutil.rmtree(root, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="stalls", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--secs", type=float, default=30)
    parser.add_argument("--rate", type=int, default=5000)
    parser.add_argument("--dry", action="store_true", help="leave docs/benchmarks.md as it is")
    options = parser.parse_args()
    build()
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    lines = [
        f"{now}, {options.rate} sends of 1 KiB a second for {options.secs:g} s each, on "
        f"{machine()}.",
        "",
        "| meanwhile | p50 ms | p99 ms | p99.9 ms | worst ms |",
        "|---|---|---|---|---|",
    ]
    for run in RUNS:
        result = measure(run, options.secs, options.rate)
        cells = [f"{result[name] / 1000:.2f}" for name in ("p50_us", "p99_us", "p999_us", "max_us")]
        lines.append(f"| {' | '.join([run.what, *cells])} |")
        print(lines[-1], flush=True)
    if not options.dry:
        replace_table("stalls", "\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
