"""`make bench`: our broker and the Java broker under the same loads, in turn, on this machine.

    python -m tests.bench [--runs 5] [--secs 3] [--warmup 1] [--loads P1,P2] [--only our|java]
                          [--dry]

Each turn starts a broker on an empty store, measures its start and its idle memory, warms it up,
runs the loads, checks after each that every acknowledged message is stored, and removes the store.
Turns alternate between the two, so that a slow minute of the machine hurts both; medians are
compared.
"""

import argparse
import json
import shutil
import sys
import time
from typing import Any

from ..interop.brokers import Broker, JavaBroker, OurBroker, StoreShape
from ..interop.kit import missing
from ..interop.processes import wait_until
from ..interop.wire import Wire
from . import report
from .loads import CACHE, LOADS, WARM_UP, Load, build, calibrate, run_load

SEGMENT_BYTES = 256 << 20
MB = 1_000_000


class BenchJavaBroker(JavaBroker):
    """With its optimising compiler, and memory enough to do its best."""

    heap = ("-Xms2g", "-Xmx2g", "-XX:MaxDirectMemorySize=1g")
    compiler = ()


KINDS: dict[str, type[Broker]] = {"our": OurBroker, "java": BenchJavaBroker}


def shape(flush: str) -> StoreShape:
    """Production sizes but for the segments, small enough to be removed after each turn."""
    return StoreShape(
        flush=flush,
        segment_bytes=SEGMENT_BYTES,
        queue_segment_bytes=6_000_000,
        index_slots=5_000_000,
        index_entries=20_000_000,
    )


def start(kind: str, flush: str) -> tuple[Broker, float]:
    """A broker on an empty store, and the seconds from launch to first acknowledged send."""
    root = CACHE / kind
    shutil.rmtree(root, ignore_errors=True)
    broker = KINDS[kind](root, shape(flush))
    begun = time.monotonic()
    broker.launch()
    wait_until(lambda: first_send(broker), 60, "the first acknowledged send", every_s=0.005)
    ready_s = time.monotonic() - begun
    broker.wait_ready()
    return broker, ready_s


def first_send(broker: Broker) -> bool:
    try:
        with Wire(broker.address) as wire:
            return wire.send("bench-first", 0, b"first").code == 0
    except (ConnectionError, TimeoutError):
        return False


def idle_mb(broker: Broker) -> float:
    time.sleep(1)
    return broker.resident_bytes() / MB


def turn(
    kind: str, loads: list[Load], options: argparse.Namespace, results: report.Results
) -> None:
    """One broker through its loads: once for each flush mode that they need."""
    runs = results.setdefault(kind, {})
    for sync in (False, True):
        own = [load for load in loads if load.sync == sync]
        if not own:
            continue
        broker, ready_s = start(kind, "SYNC_FLUSH" if sync else "ASYNC_FLUSH")
        try:
            life = {"ready_s": ready_s, "idle_mb": idle_mb(broker)}
            runs.setdefault("life", []).append(life)
            run_load(broker, WARM_UP, options.secs, 0)
            for load in own:
                result = run_load(broker, load, options.secs, options.warmup)
                runs.setdefault(load.name, []).append(result)
                say(kind, load, result)
        finally:
            broker.kill()
            shutil.rmtree(broker.root, ignore_errors=True)


def say(kind: str, load: Load, result: dict[str, Any]) -> None:
    print(
        f"{kind:5} {load.name:4} {result['messages_per_s']:>9,.0f} messages/s  "
        f"p50 {result['p50_us']:,.0f} us  p99 {result['p99_us']:,.0f} us  "
        f"CPU {result['cpu_us']:.1f} us a message",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--secs", type=float, default=3)
    parser.add_argument("--warmup", type=float, default=1)
    parser.add_argument("--loads", default=",".join(load.name for load in LOADS))
    parser.add_argument("--only", choices=list(KINDS))
    parser.add_argument("--dry", action="store_true", help="leave docs/benchmarks.md as it is")
    options = parser.parse_args()

    wanted = options.loads.split(",")
    loads = [load for load in LOADS if load.name in wanted or load.name in topics_of(wanted)]
    kinds = [options.only] if options.only else list(KINDS)
    lack = missing("java-broker")
    if "java" in kinds and lack is not None:
        print(f"bench: without the Java broker ({lack})", file=sys.stderr)
        kinds.remove("java")

    build()
    results: report.Results = {}
    calibration = []
    for number in range(options.runs):
        calibration.append(calibrate())
        print(f"run {number + 1} of {options.runs}: {calibration[-1]}", flush=True)
        for kind in kinds:
            turn(kind, loads, options, results)
    text = report.table(results, calibration, " ".join(["make bench", *sys.argv[1:]]))
    (CACHE / "results.json").write_text(json.dumps(results, indent=1))
    if not options.dry:
        report.replace_table("bench", text)
    print(text)
    return 0


def topics_of(names: list[str]) -> set[str]:
    """Loads that have to run first, because others read what they wrote."""
    return {load.topic for load in LOADS if load.name in names and load.topic}


if __name__ == "__main__":
    sys.exit(main())
