"""How quickly an empty slave copies its master's log, beside a plain copy over the same link.

    python -m tests.bench.cases.catching_up [--gib 10] [--secs 2] [--dry]

Master and slave are in network namespaces of their own with a router between them, so this needs
root. The plain copy sends the master's segments with sendfile, and its receiver writes them into a
file: what a program in C could hardly do better. Each copy is made twice, with nothing else going
on, and while 64 senders work (P2) for as long as it takes. Both are written to the page cache.
"""

import argparse
import re
import shutil
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from tests.bench import report
from tests.bench.alone import CannotMeasure, measured
from tests.bench.cases.stalls import KEEP
from tests.bench.loads import CACHE, LoadFailed, StartFailed, build, calibrate
from tests.crash.disks.mounts import Stack
from tests.crash.replication_links.links import ADDRESSES, MASTER, ROUTER, SLAVE, Links
from tests.interop.processes import Child, wait_until
from tests.interop.wire import BROKER_RUNTIME_INFO, Wire
from tests.service.kit import aerobee
from tests.tools import TOOLS

GIB = 1 << 30
PORT, NAME_SERVER_PORT, COPY_PORT = 10911, 9876, 10999
#: The goals: of the speed beside the plain copy, of P2's p99 beside that without a copy.
SPEED_MIN, P99_MAX = 0.7, 2.0
_READY_S, _COPY_S = 60, 600
_RUNS = 3
_LOG_END = re.compile(r'"commitLogMaxOffset":"(\d+)"')

_SENDER = """\
import os, socket, sys
host, port, size, *names = sys.argv[1:]
left = int(size)
with socket.create_connection((host, int(port))) as to:
    out = to.fileno()
    for name in sorted(names):
        with open(name, "rb") as file:
            at = 0
            while left and (sent := os.sendfile(out, file.fileno(), at, min(left, 1 << 20))):
                at, left = at + sent, left - sent
"""
_RECEIVER = """\
import socket, sys
host, port, name = sys.argv[1:]
room = memoryview(bytearray(1 << 20))
with socket.create_server((host, int(port))) as server:
    print("{}", flush=True)
    came, _ = server.accept()
    with came, open(name, "wb", buffering=0) as file:
        while count := came.recv_into(room):
            file.write(room[:count])
"""


class Copy(NamedTuple):
    """A copy of `size` bytes, 0 for none, and what the senders saw meanwhile: the figures of runs
    of the generator, one after the other."""

    size: int
    secs: float
    sends: list[dict[str, Any]]

    @property
    def mb_per_s(self) -> float:
        return self.size / self.secs / 1e6

    def sent(self, figure: str) -> float:
        """The median of the runs."""
        return median(run[figure] for run in self.sends)


class Machines:
    """A master with a log, a name server, and the place of a slave."""

    def __init__(self, links: Links, folder: Path, stack: Stack) -> None:
        self._links, self._folder, self._stack = links, folder, stack
        self._number = 0
        names = ["nameserver", "--host", ADDRESSES[ROUTER], "--port", str(NAME_SERVER_PORT)]
        self._run(ROUTER, "names", [*aerobee(), *names])
        self._wait(ROUTER, NAME_SERVER_PORT)
        self.start(MASTER, folder / "master")

    def _run(self, role: str, name: str, command: list[str], *, lines: bool = False) -> Child:
        child = Child(
            [*self._links.inside(role), *command], self._folder / f"{name}.log", lines=lines
        )
        self._stack.add(child.end)
        return child

    def _wait(self, role: str, port: int) -> None:
        try:
            wait_until(lambda: self._links.is_open(role, port), _READY_S, f"{role} listens")
        except AssertionError as error:
            raise StartFailed(str(error)) from None

    def start(self, role: str, store: Path) -> Child:
        """Start the master or a slave on `store`."""
        conf = self._folder / f"{role}.conf"
        lines = {
            "brokerClusterName": "catching-up",
            "brokerName": "pair",
            "brokerId": "0" if role == MASTER else "1",
            "brokerRole": "ASYNC_MASTER" if role == MASTER else "SLAVE",
            "namesrvAddr": f"{ADDRESSES[ROUTER]}:{NAME_SERVER_PORT}",
            "bindAddress": ADDRESSES[role],
            "brokerIP1": ADDRESSES[role],
            "brokerIP2": ADDRESSES[role],
            "listenPort": str(PORT),
            "storePathRootDir": str(store),
            **KEEP,
        }
        conf.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        settings = ["--set", "nameserver.enabled=false", "--set", "http.enabled=false"]
        child = self._run(role, role, [*aerobee(), "serve", "-c", str(conf), *settings])
        self._wait(role, PORT)
        return child

    @property
    def segments(self) -> list[Path]:
        return sorted((self._folder / "master" / "commitlog").iterdir())

    def log_end(self, role: str) -> int:
        """Log offset after the last byte of a broker."""
        with self._links.entered(ROUTER):
            wire = Wire(f"{ADDRESSES[role]}:{PORT}")
        with wire:
            told = _LOG_END.search(wire.call(BROKER_RUNTIME_INFO).body.decode())
        return int(told[1]) if told else -1

    def generate(self, words: str) -> dict[str, Any]:
        """Run the generator at the master; its figures."""
        self._number += 1
        options = f"{words} --host {ADDRESSES[MASTER]} --port {PORT} --topic sends"
        command = [str(CACHE / "rmqload"), *options.split()]
        child = self._run(ROUTER, f"sends-{self._number}", command, lines=True)
        lines = child.wait(_COPY_S)
        if len(lines) != 1:
            raise LoadFailed(f"rmqload {options}: {child.tail()}")
        return lines[0]

    def create_topic(self) -> None:
        with self._links.entered(ROUTER):
            wire = Wire(f"{ADDRESSES[MASTER]}:{PORT}")
        with wire:
            wire.create_topic("sends", 4)

    def fill(self, size: int) -> None:
        """Have a log of `size` bytes or more."""
        self.create_topic()
        while (end := self.log_end(MASTER)) < size:
            self.generate("batch --conns 16 --batch 32 --size 1024 --secs 4 --warmup 0")
            print(f"{end / GIB:.1f} GiB of log", flush=True)

    # --- the two ways to copy ---------------------------------------------------------------------

    def copy_plainly(self) -> tuple[int, float]:
        """Bytes and seconds of a copy with sendfile into a file."""
        size, target = self.log_end(MASTER), self._folder / "copied"
        address = [ADDRESSES[SLAVE], str(COPY_PORT)]
        receiver = self._run(
            SLAVE, "receiver", [sys.executable, "-c", _RECEIVER, *address, str(target)], lines=True
        )
        self._wait_line(receiver)
        began = time.monotonic()
        names = [str(path) for path in self.segments]
        self._run(MASTER, "sender", [sys.executable, "-c", _SENDER, *address, str(size), *names])
        receiver.process.wait(_COPY_S)
        secs = time.monotonic() - began
        copied = target.stat().st_size
        target.unlink()
        if copied != size:
            raise StartFailed(f"{copied} bytes of {size} were copied: {receiver.tail()}")
        return size, secs

    def _wait_line(self, child: Child) -> None:
        wait_until(lambda: child.lines, _READY_S, "the receiver listens")

    def catch_up(self) -> tuple[int, float]:
        """Bytes and seconds of an empty slave: from when it listens until it has all that the
        master had at its start."""
        store = self._folder / "slave"
        size = self.log_end(MASTER)
        slave = self.start(SLAVE, store)
        began = time.monotonic()
        wait_until(lambda: self.log_end(SLAVE) >= size, _COPY_S, "the slave has caught up", 0.05)
        secs = time.monotonic() - began
        slave.end()
        shutil.rmtree(store)
        return size, secs


def copies(machines: Machines, secs: float) -> Iterator[tuple[str, Copy]]:
    """The copies, by what they are called; first P2 alone, where nothing is copied."""
    p2 = f"send --conns 64 --secs {secs} --warmup 0"
    machines.generate(p2)
    yield "P2 alone", Copy(0, 1.0, [machines.generate(p2) for _ in range(_RUNS)])
    ways = (("plain copy", machines.copy_plainly), ("catching up", machines.catch_up))
    for name, copy in ways:
        yield name, Copy(*copy(), [])
    for name, copy in ways:
        with ThreadPoolExecutor(1) as aside:
            work, sends = aside.submit(copy), []
            while not work.done():
                sends.append(machines.generate(p2))
            yield f"{name} during P2", Copy(*work.result(), sends[:-1] or sends)


@contextmanager
def machines_in(folder: Path) -> Iterator[Machines]:
    folder.mkdir(parents=True)
    stack = Stack()
    with Links() as links:
        try:
            yield Machines(links, folder, stack)
        finally:
            stack.close()


HEAD = "| what | MB/s | P2, messages/s | P2, p99 us |\n" + "|---" * 4 + "|"


def row(name: str, copy: Copy) -> str:
    """The page's line of a copy."""
    speed = f"{copy.mb_per_s:,.0f}" if copy.size else "-"
    sends = (
        [f"{copy.sent(one):,.0f}" for one in ("messages_per_s", "p99_us")] if copy.sends else "--"
    )
    return f"| {' | '.join((name, speed, *sends))} |"


def verdicts(found: dict[str, Copy]) -> Iterator[str]:
    """A line for each goal."""
    for during in ("", " during P2"):
        share = found[f"catching up{during}"].mb_per_s / found[f"plain copy{during}"].mb_per_s
        yield f"- catching up / plain copy{during}: {share:.2f} (goal: {SPEED_MIN})"
    longer = found["catching up during P2"].sent("p99_us") / found["P2 alone"].sent("p99_us")
    yield f"- P2's p99 while a slave catches up / alone: {longer:.2f} (goal: {P99_MAX:g} at most)"


def compare(options: argparse.Namespace, folder: Path) -> None:
    """Prints the table, and replaces the page's."""
    for name in ("netns", "mount", "ip", "tc", "nsenter"):
        there, bring = TOOLS[name]
        if not there():
            raise CannotMeasure(f"{name} is missing: {bring}")
    build()
    before = calibrate()
    with machines_in(folder) as machines:
        machines.fill(round(options.gib * GIB))
        found = {}
        for name, copy in copies(machines, options.secs):
            found[name] = copy
            print(row(name, copy), flush=True)
    heading = report.heading("python -m tests.bench.cases.catching_up", [before, calibrate()])
    text = "\n".join([heading, "", HEAD, *map(row, found, found.values()), "", *verdicts(found)])
    if not options.dry:
        report.replace_table("catching-up", text)
    print(text)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="catching-up", description=(__doc__ or "").partition("\n\n")[0]
    )
    parser.add_argument("--gib", type=float, default=10, help="of the master's log (10)")
    parser.add_argument("--secs", type=float, default=2, help="of a run of the senders (2)")
    parser.add_argument("--dry", action="store_true", help="print the table only")
    options = parser.parse_args()
    return measured("catching-up", compare, options, CACHE, round(3 * options.gib * GIB))


if __name__ == "__main__":
    sys.exit(main())
