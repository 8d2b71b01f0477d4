"""The loads of the benchmark: what the generator is told, and what the result must be by then."""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..interop.brokers import Broker
from ..interop.wire import Wire

HERE = Path(__file__).parent
CACHE = HERE.parent.parent / ".cache" / "bench"
QUEUES = 4
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Load:
    """One shape of traffic. `topic` names another load whose messages are read."""

    name: str
    what: str
    words: str
    sync: bool = False
    topic: str = ""

    @property
    def pulls(self) -> bool:
        return self.words.startswith("pull")


LOADS = (
    Load("P1", "send, 1 connection, 128 B", "send --conns 1"),
    Load("P2", "send, 64 connections, 128 B", "send --conns 64"),
    Load("P3", "the same, binary headers", "send --conns 64 --header bin"),
    Load("P4", "send, 64 connections, 1 KiB", "send --conns 64 --size 1024"),
    Load("P5", "send, 16 connections, 32 in flight each, 128 B", "send --conns 16 --window 32"),
    Load("P6", "batch, 16 connections, 32 messages of 128 B", "batch --conns 16 --batch 32"),
    Load("P11", "pull, 4 connections, 32 messages a request", "pull --conns 4", topic="P6"),
    Load("P8", "send, 1 connection, SYNC_FLUSH", "send --conns 1", sync=True),
    Load("P9", "send, 64 connections, SYNC_FLUSH", "send --conns 64", sync=True),
)
WARM_UP = Load("warm-up", "not counted", "send --conns 64")


class Lost(AssertionError):
    """The broker does not hold what it acknowledged: its figures mean nothing."""


def build() -> None:
    """Compiles the generator and the calibration, when their sources are newer."""
    CACHE.mkdir(parents=True, exist_ok=True)
    for name in ("rmqload", "calibrate"):
        source, program = HERE / f"{name}.c", CACHE / name
        if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
            subprocess.run(
                ["cc", "-O2", "-pthread", "-o", str(program), str(source), "-lm"], check=True
            )


def calibrate() -> dict[str, float]:
    run = subprocess.run(
        [str(CACHE / "calibrate"), str(CACHE)], check=True, capture_output=True, text=True
    )
    figures: dict[str, float] = json.loads(run.stdout)
    return figures


def run_load(broker: Broker, load: Load, secs: float, warmup: float) -> dict[str, Any]:
    """One load against a running broker, checked: messages stored against messages acknowledged.

    Adds `cpu_us`, the broker's CPU time a message in microseconds. Raises Lost.
    """
    topic = f"bench-{load.topic or load.name}"
    if not load.topic:
        broker.create_topic(topic, QUEUES)
    cpu_before = cpu_seconds(broker.pid)
    run = subprocess.run(
        [
            str(CACHE / "rmqload"), *load.words.split(), "--port", str(broker.port), "--topic",
            topic, "--queues", str(QUEUES), "--secs", str(secs), "--warmup", str(warmup),
        ],
        check=True,
        capture_output=True,
        text=True,
        timeout=60 + 2 * (secs + warmup),
    )  # fmt: skip
    result: dict[str, Any] = json.loads(run.stdout)
    result["cpu_us"] = (cpu_seconds(broker.pid) - cpu_before) * 1e6 / max(1, result["acked"])
    check(broker, topic, load, result)
    return result


def check(broker: Broker, topic: str, load: Load, result: dict[str, Any]) -> None:
    if result["errors"]:
        raise Lost(f"{load.name}: {result['errors']} errors, code {result['last_error_code']}")
    with Wire(broker.address) as wire:
        stored = sum(wire.max_offset(topic, queue) for queue in range(QUEUES))
    # What was pulled was there, and a pull may end before its queue does; a send still under way at
    # the end may be stored or not.
    most = stored if load.pulls else result["acked"] + result["unanswered"]
    if not result["acked"] <= stored <= most:
        raise Lost(f"{load.name}: {stored} stored, {result['acked']} acknowledged")


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S
