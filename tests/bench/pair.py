"""`make pair BASE=<commit>`: the working tree against another state of the code, under equal loads.

    python -m tests.bench.pair --base COMMIT [--pairs 15] [--loads P1,P2,P5,P6,P11] [--secs 1]

For each load both servers start on empty stores with equal settings and run side by side; the load
goes to them in turns of about a second, one after the other, and which goes first alternates, so
that a pace that rises or falls cancels out. Each server gets exactly the same requests: the number
that base answers with a second of processor time, however much of it others take. So both stores
hold the same messages after each pair, and what is compared is what the same work took: the time,
and the processor time of the server until it is idle again. Both servers and stores are replaced
every three pairs.

Every answer is checked, and after each turn the messages stored are counted; what is missing or
refused ends the run with status 1. The ratios decide nothing: the status is 0 whatever they are.
ratios.py says how they are judged.
"""

import argparse
import contextlib
import fcntl
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from ..interop.brokers import OurBroker
from ..ports import free_port
from . import report
from .__main__ import shape
from .loads import (
    HERE,
    LOADS,
    QUEUES,
    Load,
    LoadFailed,
    Lost,
    build,
    calibrate,
    cpu_seconds,
    generate,
    refuse_errors,
    stored,
)
from .ratios import PAIRS_MIN, ratio_of, verdict
from .stalls import KEEP
from .states import CannotCompare, State, commit, working_tree

ROOT = HERE.parent.parent
CACHE = ROOT / ".cache" / "pair"
PAIRS = 15
DEFAULT_LOADS = "P1,P2,P5,P6,P11"
#: After so many pairs both servers are started anew on empty stores: where a process happens to
#: have its memory makes it dearer or cheaper by a per cent or two for all its life.
PAIRS_A_LIFE = 3
#: Two stores with what some eight turns write at 200 MB/s, and the segments made ahead.
FREE_BYTES_MIN = 6 << 30
#: What pulls read: 128 B each, more than a processor caches.
FILL = Load("fill", "not counted", "batch --conns 16 --batch 32")
FILL_REQUESTS = 10_000
PACE_TOLERANCE, BUSY = 1.1, 1.3
INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_START_TRIES, _PORT_TAKEN = 5, "a port is in use"
_FIRST_REQUESTS = 512
_TURN_LIMIT_S = 120
_IDLE_S, _IDLE_SHARE, _IDLE_WAIT_S = 0.05, 0.1, 2.0


class StartFailed(Exception):
    """A server of one of the states did not come up; the text has its last words."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn of a server cost."""

    messages_per_s: float
    cpu_us: float  # a message
    cpu_s: float  # in all


Pairs = list[tuple[Turn, Turn]]  # (this, base)


class Server(OurBroker):
    """A broker of one state of the code, and how many messages it acknowledged for the load."""

    def __init__(self, state: State, folder: Path, load: Load) -> None:
        settings = shape("SYNC_FLUSH" if load.sync else "ASYNC_FLUSH")
        settings.extra = dict(KEEP)
        super().__init__(folder, settings)
        self.kind = state.name
        self.interpreter, self.entry = state.interpreter, (state.command,)
        self.topic = f"pair-{load.name}"
        self.acked = 0

    def come_up(self) -> None:
        """Starts the server. Raises StartFailed."""
        for tries_left in reversed(range(_START_TRIES)):
            with interrupts_later():
                self.launch()
            try:
                self.wait_ready()
                return
            except AssertionError as error:
                # Others look for free ports too, and may listen on one before the server does.
                if _PORT_TAKEN not in str(error) or not tries_left:
                    raise StartFailed(f"{self.kind}: {error}") from None
            self.port, self.name_server_port = free_port(), free_port()
            shutil.rmtree(self.root)
            self.root.mkdir()

    def turn(self, load: Load, requests: int) -> Turn:
        """Has the server answer that many requests. Raises Lost and LoadFailed."""
        try:
            before = cpu_seconds(self.pid)
            result = generate(
                self.port, self.topic, load.words, requests=requests, secs=_TURN_LIMIT_S
            )
            self._wait_idle()
            cpu = cpu_seconds(self.pid) - before
            count = stored(self, self.topic)
        except (LoadFailed, OSError) as error:
            words = self.children[-1].tail(2000)
            raise LoadFailed(f"{load.name}: {self.kind}: {error}\n{words}") from None
        refuse_errors(load, result)
        if not load.pulls:
            self.acked += result["acked"]
        if count != self.acked or not result["messages"]:
            raise Lost(
                f"{load.name}: {self.kind} holds {count} messages of {self.acked} acknowledged, "
                f"{result['messages']} came in the turn"
            )
        return Turn(result["messages_per_s"], cpu * 1e6 / result["messages"], cpu)

    def _wait_idle(self) -> None:
        """Returns when the work that the load left behind, flushing for one, is done."""
        deadline = time.monotonic() + _IDLE_WAIT_S
        while time.monotonic() < deadline:
            before = cpu_seconds(self.pid)
            time.sleep(_IDLE_S)
            if cpu_seconds(self.pid) - before < _IDLE_S * _IDLE_SHARE:
                return


@contextlib.contextmanager
def servers(states: Sequence[State], load: Load, folder: Path) -> Iterator[list[Server]]:
    """A server of each state on an empty store, with what the load needs; all is removed after."""
    running = [Server(state, folder / state.name, load) for state in states]
    try:
        for server in running:
            server.come_up()
            server.create_topic(server.topic, QUEUES)
            if load.pulls:
                server.turn(FILL, FILL_REQUESTS)
        yield running
    finally:
        with interrupts_later():
            for server in running:
                server.kill()
            shutil.rmtree(folder)


@contextlib.contextmanager
def interrupts_later() -> Iterator[None]:
    """An interrupt that comes inside is raised at the end: what runs inside is done whole."""
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _frame: came.append(number))
        for number in INTERRUPTS
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        raise KeyboardInterrupt


def measure(
    load: Load, states: tuple[State, State], pairs: int, secs: float, folder: Path
) -> tuple[Pairs, int]:
    """That many pairs of turns of one load, and the number of requests in each turn."""
    found: Pairs = []
    requests = 0
    while len(found) < pairs:
        with servers(states, load, folder) as (this, base):
            requests = warm_up(this, base, load, requests, secs)
            for _ in range(min(PAIRS_A_LIFE, pairs - len(found))):
                if len(found) % 2 == 0:
                    ours, theirs = this.turn(load, requests), base.turn(load, requests)
                else:
                    theirs, ours = base.turn(load, requests), this.turn(load, requests)
                found.append((ours, theirs))
    return found, requests


def warm_up(this: Server, base: Server, load: Load, requests: int, secs: float) -> int:
    """Turns that do not count. Returns how many requests the turns after them have.

    These are as many as cost base `secs` of processor time, unless `requests` says it already.
    """
    count = requests or _FIRST_REQUESTS
    while True:
        this.turn(load, count)
        cpu_s = base.turn(load, count).cpu_s
        if requests or cpu_s >= secs / 2:
            break
        count *= 2
    return requests or round(count * secs / cpu_s)


def summary(load: Load, found: Pairs, requests: int) -> str:
    """What the pairs of a load come to, in three lines."""
    cpu = ratio_of([this.cpu_us / base.cpu_us for this, base in found])
    rate = ratio_of([this.messages_per_s / base.messages_per_s for this, base in found])
    cpu_us = middles([(this.cpu_us, base.cpu_us) for this, base in found])
    rates = middles([(this.messages_per_s, base.messages_per_s) for this, base in found])
    return (
        f"{load.name}  {load.what}: {len(found)} pairs of {requests:,} requests\n"
        f"    processor time  {cpu_us} us a message: {cpu}: {verdict(cpu)}\n"
        f"    rate            {rates} messages/s: {rate}: {verdict(rate, 'quicker', 'slower')}"
    )


def middles(pairs: Sequence[tuple[float, float]]) -> str:
    """The medians of both states, this before base."""
    return " / ".join(report.middle([median(column)]) for column in zip(*pairs, strict=True))


def chosen(names: str) -> list[Load]:
    """The loads of a list like `P1,P2`, in its order. Raises CannotCompare."""
    wanted = [name.upper() for name in re.split(r"[,\s]+", names) if name]
    known = {load.name: load for load in LOADS}
    unknown = [name for name in wanted if name not in known]
    if unknown or not wanted:
        raise CannotCompare(
            f"no load {', '.join(unknown) or 'is named'}; there are {', '.join(known)}"
        )
    return [known[name] for name in dict.fromkeys(wanted)]


@contextlib.contextmanager
def alone() -> Iterator[Path]:
    """A folder for the stores, removed at the end; nobody else compares in this tree meanwhile."""
    CACHE.mkdir(parents=True, exist_ok=True)
    folder = CACHE / "run"
    with (CACHE / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CannotCompare(
                "another comparison goes on in this tree, and two would measure each other"
            ) from None
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
        free = shutil.disk_usage(CACHE).free
        if free < FREE_BYTES_MIN:
            raise CannotCompare(
                f"{CACHE} has {free >> 20} MiB free; the stores may take {FREE_BYTES_MIN >> 20} MiB"
            )
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def compare(options: argparse.Namespace, folder: Path) -> None:
    """Prints the comparison. Raises CannotCompare, StartFailed, LoadFailed, Lost."""
    loads = chosen(options.loads)
    if options.pairs < PAIRS_MIN or options.secs <= 0:
        raise CannotCompare(f"{PAIRS_MIN} pairs at least, of turns longer than nothing")
    states = working_tree(ROOT), commit(ROOT, options.base, CACHE)
    for state in states:
        print(f"{state.name}: {state.what}, Python {state.python}", flush=True)
    if len({state.python for state in states}) > 1:
        raise CannotCompare(
            f"the Pythons differ; remove .venv here or in {states[1].tree}, and set PYTHON=..."
        )
    build()
    before = calibrate()
    print(f"on {report.machine()}\nbefore: {report.calibration_line([before])}", flush=True)
    for load in loads:
        print(
            summary(load, *measure(load, states, options.pairs, options.secs, folder)), flush=True
        )
    after = calibrate()
    print(f"after:  {report.calibration_line([after])}", *remarks(before, after), sep="\n")


def remarks(before: dict[str, float], after: dict[str, float]) -> Iterator[str]:
    """What the calibrations say against the figures between them."""
    if any(one["python_loop_ms"] > BUSY * one["python_loop_cpu_ms"] for one in (before, after)):
        yield "Others wanted the processors too: the rates say little."
    change = after["python_loop_cpu_ms"] / before["python_loop_cpu_ms"]
    if not 1 / PACE_TOLERANCE <= change <= PACE_TOLERANCE:
        word = "slower" if change > 1 else "quicker"
        yield f"The machine became {word} meanwhile: the loop takes {change:.2f} of what it took."


def main() -> int:
    parser = argparse.ArgumentParser(prog="pair", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--base", default="", help="the commit to compare with")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--loads", default=DEFAULT_LOADS)
    parser.add_argument("--secs", type=float, default=1, help="of processor time, a turn")
    options = parser.parse_args()
    for number in INTERRUPTS:
        signal.signal(number, signal.default_int_handler)
    try:
        with alone() as folder:
            compare(options, folder)
    except CannotCompare as error:
        print(f"pair: {error}", file=sys.stderr)
        return 2
    except (StartFailed, LoadFailed, Lost) as error:
        print(f"pair: failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("pair: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
