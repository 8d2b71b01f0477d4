"""A master, a slave and a router, each in a network namespace of its own, and faults between them.

    master 10.77.1.2 --- 10.77.1.1 router 10.77.2.1 --- 10.77.2.2 slave

All interfaces are made inside the namespaces, so the machine's own network has none of them, and
addresses are the same in each run. A name server and the clients are in the router's. Needs root.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.crash.disks.mounts import Stack
from tests.crash.running.link import Link
from tests.tools import tool

MASTER, SLAVE, ROUTER = "master", "slave", "router"
ADDRESSES = {MASTER: "10.77.1.2", SLAVE: "10.77.2.2", ROUTER: "10.77.1.1"}
_GATEWAYS = {MASTER: "10.77.1.1", SLAVE: "10.77.2.1"}
_NEW_NET = 0x40000000
_numbers = itertools.count()
_libc = ctypes.CDLL(None, use_errno=True)


class Links:
    """The namespaces and what goes between them; a context manager that takes them down."""

    def __init__(self) -> None:
        # Tests run side by side, so the names are those of this process and of no other one.
        number = next(_numbers)
        self._names = {role: f"aerobee-{os.getpid()}-{number}-{role}" for role in ADDRESSES}
        self._stack = Stack()

    def __enter__(self) -> Links:
        try:
            self._make()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _make(self) -> None:
        for name in self._names.values():
            _run("ip", "netns", "add", name)
            self._stack.add(lambda name=name: _run("ip", "netns", "del", name))  # type: ignore[misc]
        for role in self._names:
            self._ip(role, "link", "set", "dev", "lo", "up")
        for role, gateway in _GATEWAYS.items():
            inner = self._names[role]
            self._ip(
                ROUTER, "link", "add", "name", role, "type", "veth", "peer", "name", "out",
                "netns", inner,
            )  # fmt: skip
            self._ip(ROUTER, "addr", "add", f"{gateway}/24", "dev", role)
            self._ip(ROUTER, "link", "set", "dev", role, "up")
            self._ip(role, "addr", "add", f"{ADDRESSES[role]}/24", "dev", "out")
            self._ip(role, "link", "set", "dev", "out", "up")
            self._ip(role, "route", "add", "default", "via", gateway)
        with self.entered(ROUTER):
            # The kernel shows each thread the switch of its own namespace.
            Path("/proc/sys/net/ipv4/ip_forward").write_text("1")

    def _ip(self, role: str, *words: str) -> None:
        _run("ip", "-n", self._names[role], *words)

    def inside(self, role: str) -> list[str]:
        """The beginning of a command that is to run in that namespace; it keeps its process id.

        Not `ip netns exec`: that gives the command a copy of all mounts, and a file system which
        another test unmounts meanwhile stays mounted there, so its disk cannot be taken down.
        """
        return [tool("nsenter"), f"--net=/run/netns/{self._names[role]}"]

    @contextmanager
    def entered(self, role: str) -> Iterator[None]:
        """This thread is in that namespace; a socket that it opens stays there."""
        with (
            open("/proc/thread-self/ns/net") as home,
            open(f"/run/netns/{self._names[role]}") as there,
        ):
            _enter(there.fileno())
            try:
                yield
            finally:
                _enter(home.fileno())

    def connect(self, role: str, port: int, timeout_s: float = 2.0) -> Link:
        """A connection from the router to a port of that namespace. Raises OSError."""
        with self.entered(ROUTER):
            return Link(port, timeout_s, host=ADDRESSES[role])

    def is_open(self, role: str, port: int) -> bool:
        """Whether somebody listens there."""
        with self.entered(role), socket.socket() as probe:
            return probe.connect_ex((ADDRESSES[role], port)) == 0

    # --- faults -------------------------------------------------------------------------------

    def cut(self, role: str) -> None:
        """Nothing goes between the router and that namespace."""
        self._ip(ROUTER, "link", "set", "dev", role, "down")

    def join(self, role: str) -> None:
        """Undo `cut`."""
        self._ip(ROUTER, "link", "set", "dev", role, "up")

    def lose(self, source: str, target: str) -> None:
        """Packets from `source` to `target` vanish; the other way they arrive."""
        self._ip(ROUTER, *_way("add", source, target))

    def let_pass(self, source: str, target: str) -> None:
        """Undo `lose`."""
        self._ip(ROUTER, *_way("del", source, target))

    def slow(self, role: str, rate: str) -> None:
        """Packets to that namespace are as slow as `rate` says, like `1mbit`."""
        _run(
            "tc", "-n", self._names[ROUTER], "qdisc", "replace", "dev", role, "root", "tbf",
            "rate", rate, "burst", "16kb", "latency", "200ms",
        )  # fmt: skip

    def quick(self, role: str) -> None:
        """Undo `slow`."""
        _run("tc", "-n", self._names[ROUTER], "qdisc", "del", "dev", role, "root")


def _way(verb: str, source: str, target: str) -> tuple[str, ...]:
    return ("rule", verb, "from", ADDRESSES[source], "to", ADDRESSES[target], "blackhole")


def _enter(namespace: int) -> None:
    if _libc.setns(namespace, _NEW_NET):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), "setns")


def _run(program: str, *words: str) -> None:
    done = subprocess.run([tool(program), *words], capture_output=True, text=True)
    assert done.returncode == 0, f"{program} {' '.join(words)}: {done.stderr}"
