"""P15 and P15b: how long after kill -9 until the first send is acknowledged, with gigabytes of log.

    python -m tests.bench.cases.restart [--mib 6144] [--runs 3] [--dry]

Each broker fills a store of its own with messages of 1 KiB and is killed. Then, in turn:

- restart: each works for three seconds, is killed, and is started again on what it left;
- takeover: Java works for three seconds and is killed; ours, or Java, starts on that;
- rebuild: consumequeue, index and checkpoint are deleted (and our offsets file, as if the store had
  come from elsewhere), and everything is made again.

Measured from the launch of the process to the first acknowledged send, log in the page cache.
"""

import argparse
import datetime
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from aerobee.store.disk.files import Files
from tests.bench.loads import CACHE, QUEUES, build, generate, stored
from tests.bench.report import HEAD, Row, Verdict, machine, middle, ratio, replace_table
from tests.bench.servers import KINDS, RETENTION, to_first_send
from tests.interop.brokers import Broker, StoreShape

TOPIC = "bench-fill"
MIB = 1 << 20
_FILL_S, _WORK_S = 4, 3
#: The goals: seconds on its own store, and ratios ours / Java of times and of rates.
OWN_MAX_S, TAKEOVER_RATIO_MAX, REBUILD_RATE_MIN = 1.0, 1.0, 1.0


def shape() -> StoreShape:
    """Production sizes."""
    return StoreShape(
        segment_bytes=1 << 30,
        queue_segment_bytes=6_000_000,
        index_slots=5_000_000,
        index_entries=20_000_000,
        extra=dict(RETENTION),
    )


def log_bytes(store: Path) -> int:
    """The size of the commit log's content: segments are reserved to their ends, so up to the last
    byte."""
    total = 0
    for path in (store / "commitlog").iterdir():
        with path.open("rb") as file:
            total += Files().last_nonzero(file.fileno(), 0, path.stat().st_size)
    return total


def fill(kind: str, mib: int, folder: Path) -> Path:
    """A store with that much log, left behind by a killed broker of that kind."""
    root = folder / f"restart-{kind}"
    shutil.rmtree(root, ignore_errors=True)
    broker = KINDS[kind](root, shape())
    broker.start()
    try:
        broker.create_topic(TOPIC, QUEUES)
        while stored(broker, TOPIC) * 1150 < mib * MIB:
            send(broker, _FILL_S)
    finally:
        broker.kill()
    return broker.store


def send(broker: Broker, secs: float) -> None:
    """Load: batches of messages of 1 KiB."""
    words = "batch --conns 16 --batch 32 --size 1024 --keys 1"
    generate(broker.port, TOPIC, words, secs=secs, warmup=0)


def start_on(kind: str, store: Path, folder: Path) -> float:
    """Seconds to the first send of a new process on `store`, which is then killed again."""
    broker = KINDS[kind](folder / f"restart-run-{kind}", shape(), store)
    try:
        return to_first_send(broker)
    finally:
        broker.kill()


def leave_behind(kind: str, store: Path, folder: Path) -> None:
    """A broker of that kind works on the store for a few seconds and is killed."""
    broker = KINDS[kind](folder / f"restart-run-{kind}", shape(), store)
    broker.start()
    try:
        send(broker, _WORK_S)
    finally:
        broker.kill()


def strip(store: Path) -> None:
    for name in ("consumequeue", "index"):
        shutil.rmtree(store / name, ignore_errors=True)
    for name in ("checkpoint", "offsets"):
        (store / name).unlink(missing_ok=True)


Found = dict[str, dict[str, list[float]]]


def measure(kinds: Sequence[str], mib: int, runs: int, folder: Path) -> Found:
    """Seconds by what is done and by kind, and the bytes of log in the end."""
    found: Found = {}

    def note(what: str, kind: str, figure: float) -> None:
        found.setdefault(what, {}).setdefault(kind, []).append(figure)
        words = f"{figure / 1e9:6.2f} GB of log" if what == "bytes" else f"{figure:6.2f} s"
        print(f"{what:9} {kind:5} {words}", flush=True)

    stores = {kind: fill(kind, mib, folder) for kind in kinds}
    for _ in range(runs):
        for kind in kinds if "java" in kinds else ():
            leave_behind("java", stores["java"], folder)
            note("takeover", kind, start_on(kind, stores["java"], folder))
        for kind in kinds:
            leave_behind(kind, stores[kind], folder)
            note("restart", kind, start_on(kind, stores[kind], folder))
    for _ in range(runs):
        for kind in kinds:
            strip(stores[kind])
            note("rebuild", kind, start_on(kind, stores[kind], folder))
    for kind in kinds:
        note("bytes", kind, log_bytes(stores[kind]))
        shutil.rmtree(stores[kind].parent)
    return found


def rows(found: Found) -> list[Row]:
    """The rows of P15 and P15b, beside their goals."""
    lines = []
    for what, goal, ratio_max, seconds_max in (
        ("restart", f"at most {OWN_MAX_S:g} s", None, OWN_MAX_S),
        ("takeover", f"ratio at most {TAKEOVER_RATIO_MAX:g}", TAKEOVER_RATIO_MAX, None),
    ):
        if "our" not in found.get(what, {}):
            continue
        ours, theirs = found[what]["our"], found[what].get("java")
        value = median(ours) if ratio_max is None or not theirs else median(ours) / median(theirs)
        bound = seconds_max or ratio_max or 0.0
        lines.append(_row(*WHAT[what], "s", ours, theirs, Verdict(goal, value <= bound)))
    if "our" in found["rebuild"]:
        ours, *others = (rebuild_rates(found, kind) for kind in found["rebuild"])
        verdicts = [
            Verdict(
                f"rate at least {REBUILD_RATE_MIN:g}",
                median(ours) >= REBUILD_RATE_MIN * median(theirs),
            )
            for theirs in others
        ]
        lines.append(_row(*WHAT["rebuild"], "MB/s", ours, others[0] if others else None, *verdicts))
    return lines


def rebuild_rates(found: Found, kind: str) -> list[float]:
    """Megabytes of log a second, start of the process included."""
    return [found["bytes"][kind][0] / seconds / 1e6 for seconds in found["rebuild"][kind]]


def _row(
    name: str,
    what: str,
    unit: str,
    ours: list[float],
    theirs: list[float] | None,
    *verdicts: Verdict,
) -> Row:
    our_cell, their_cell = (f"{middle(one)} {unit}" if one else "" for one in (ours, theirs))
    return Row(name, what, our_cell, their_cell, ratio(ours, theirs) if theirs else "", verdicts)


WHAT = {
    "restart": ("P15", "restart after kill -9 on its own store"),
    "takeover": ("P15", "start on a store that the Java broker left at kill -9"),
    "rebuild": ("P15b", "log a second, with queues, index and checkpoint deleted, start included"),
}


def table(found: Found, mib: int) -> str:
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    return "\n".join(
        [
            f"{now}, `python -m tests.bench.cases.restart {' '.join(sys.argv[1:])}`, {mib} MiB of "
            "log in "
            f"messages of 1 KiB, on {machine()}.",
            "",
            HEAD,
            *map(str, rows(found)),
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="restart", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--mib", type=int, default=6144)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--dry", action="store_true", help="leave docs/benchmarks.md as it is")
    options = parser.parse_args()
    build()
    text = table(measure([*KINDS], options.mib, options.runs, CACHE), options.mib)
    if not options.dry:
        replace_table("restart", text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
