"""The loads of the benchmark: the generator's options, and the result wanted at this time."""

import json
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from aerobee.cli.bench.loads import BATCH, PULL, SEND, LoadShape, Mode
from tests.interop.brokers import Broker

HERE = Path(__file__).parent
CACHE = HERE.parent.parent / ".cache" / "bench"
QUEUES = 4


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound of the ratio ours / Java of a figure, as turns.RATIOS has them."""

    figure: str
    bound: float


def rate(bound: float) -> Goal:
    return Goal("rate", bound)


@dataclass(frozen=True, slots=True)
class Load:
    """A load of the table of `aerobee bench`, and what Aerobee has to do under it beside the Java
    broker. `more` are further words of the generator's."""

    name: str
    what: str
    shape: LoadShape
    goals: tuple[Goal, ...] = ()
    sync: bool = False
    more: str = ""

    @property
    def pulls(self) -> bool:
        """Whether it only reads, and wants messages to be there."""
        return self.shape.mode is Mode.PULL

    @property
    def words(self) -> str:
        """How loop.h says it."""
        shape = self.shape
        options = {
            "batch": shape.batch or None,
            "size": shape.size if shape.size != SEND.size else None,
            "window": shape.in_flight if shape.in_flight > 1 else None,
            "rate": shape.rate,
        }
        words = [f"{shape.mode} --conns {shape.connections}"]
        words += [f"--{name} {value:.10g}" for name, value in options.items() if value is not None]
        return " ".join([*words, self.more] if self.more else words)


_MANY = SEND._replace(connections=64)
_LONE = SEND._replace(connections=1)
LOADS = (
    Load("P1", "send, 1 connection, 128 B", _LONE, (rate(2.5),)),
    Load(
        "P2",
        "send, 64 connections, 128 B",
        _MANY,
        (rate(2.5), Goal("processor", 4.0), Goal("p99", 0.5)),
    ),
    Load("P3", "the same, binary headers", _MANY, (rate(2.3),), more="--header bin"),
    Load("P4", "send, 64 connections, 1 KiB", _MANY._replace(size=1024), (rate(2.0),)),
    Load(
        "P5",
        "send, 16 connections, 32 in flight each, 128 B",
        SEND._replace(in_flight=32),
        (rate(4.5),),
    ),
    Load("P6", "batch, 16 connections, 32 messages of 128 B", BATCH, (rate(1.5),)),
    Load(
        "P7", "batch, 16 connections, 32 messages of 1 KiB", BATCH._replace(size=1024), (rate(1.5),)
    ),
    Load("P8", "send, 1 connection, SYNC_FLUSH", _LONE, (rate(2.0),), sync=True),
    Load("P9", "send, 64 connections, SYNC_FLUSH", _MANY, (rate(2.0), Goal("p99", 0.5)), sync=True),
    Load(
        "P10",
        "open loop, 10,000 sends a second, 64 connections",
        _MANY._replace(rate=10_000),
        (Goal("p50", 0.7), Goal("p99", 0.2)),
    ),
    Load(
        "P11",
        "pull, 4 connections, 32 messages a request",
        PULL,
        (rate(2.0), Goal("processor", 3.0)),
    ),
    Load(
        "P12",
        "send, 64 connections, and 4 long-polling pulls",
        _MANY,
        (rate(1.5), Goal("out", 1.5)),
        more="--pullers 4",
    ),
)


class StartFailed(Exception):
    """A server did not come up; the text has its last words."""


class LoadFailed(RuntimeError):
    """The generator could not do its work: no connection, a broken answer, not done in time."""


class Lost(AssertionError):
    """The broker does not hold what it acknowledged: its figures mean nothing."""


def build() -> None:
    """Compiles the generators and the calibration, when their sources are newer."""
    for name in ("rmqload", "neighbourload", "calibrate"):
        compile_program(name, name)


def compile_program(program: str, name: str, *flags: str) -> None:
    """Makes `program` of the source `name`.c, when that is newer. `flags` are libraries too."""
    CACHE.mkdir(parents=True, exist_ok=True)
    source, target = HERE / f"{name}.c", CACHE / program
    newest = max(path.stat().st_mtime for path in (source, HERE / "loop.h"))
    if not target.exists() or target.stat().st_mtime < newest:
        subprocess.run(
            ["cc", "-O2", "-pthread", "-o", str(target), str(source), "-lm", *flags], check=True
        )


def calibrate() -> dict[str, float]:
    """The machine's speed at the moment: the figures of calibrate.c, and Python's own pace."""
    run = subprocess.run(
        [str(CACHE / "calibrate"), str(CACHE)], check=True, capture_output=True, text=True
    )
    loops = [python_loop_ms() for _ in range(9)]
    wall, processor = (median(figures) for figures in zip(*loops, strict=True))
    return {"python_loop_ms": wall, "python_loop_cpu_ms": processor, **json.loads(run.stdout)}


def python_loop_ms() -> tuple[float, float]:
    """A fixed piece of plain Python, as a broker's is: its time, and what of that it computed.

    The first is longer than the second when others want the processors as well. The second grows
    when others share the processors' caches and clock.
    """
    begun, computed = time.perf_counter(), time.thread_time()
    table: dict[str, bytes] = {}
    for number in range(50_000):
        key = f"order-{number % 1000}"
        table[key] = table.get(key, b"")[-64:] + number.to_bytes(8, "big")
    return (time.perf_counter() - begun) * 1e3, (time.thread_time() - computed) * 1e3


def generate(
    port: int, topic: str, words: str, program: str = "rmqload", /, **options: float | str
) -> dict[str, Any]:
    """Runs the generator with `words`, the first of them its mode, and returns what it counted.

    `options` are further ones of loop.h. Raises LoadFailed when it could not do its work; requests
    that the broker refused are in the figure `errors`, which is the caller's to look at.
    """
    words += f" --port {port} --topic {topic} --queues {QUEUES}"
    words += "".join(f" --{name} {value}" for name, value in options.items())
    run = subprocess.run([str(CACHE / program), *words.split()], capture_output=True, text=True)
    if run.returncode:
        raise LoadFailed(f"{program} {words}: {run.stderr.strip() or run.stdout.strip()}")
    result: dict[str, Any] = json.loads(run.stdout)
    return result


def refuse_errors(load: Load, result: dict[str, Any]) -> None:
    if result["errors"]:
        raise Lost(f"{load.name}: {result['errors']} errors, code {result['last_error_code']}")


def stored(broker: Broker, topic: str) -> int:
    """How many messages the broker holds of a topic of the generator's."""
    with broker.wire() as wire:
        return sum(wire.max_offset(topic, queue) for queue in range(QUEUES))


def cpu_seconds(pid: int) -> float:
    """Processor time of a process so far, of its threads that have ended too.

    To the nanosecond: the clock that clock_getcpuclockid() names, which adds up what schedstat
    shows of each thread.
    """
    return time.clock_gettime(~pid << 3 | 2)
