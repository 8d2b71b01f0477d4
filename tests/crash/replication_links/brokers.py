"""A master and its slave as real processes, each in its namespace, beside a name server."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.crash.disks.full_disk import tmpfs, use_all
from tests.crash.disks.mounts import Stack
from tests.crash.replication_links.links import ADDRESSES, MASTER, ROUTER, SLAVE, Links
from tests.service.kit import aerobee, wait_until

#: Ports in the brokers' own namespaces, where nobody else has any.
PORT, NAME_SERVER_PORT = 10911, 9876
START_S = 60.0
_STOP_S = 30.0
_DISK = "size=96m"
_TABLES = ("topics.json", "subscriptionGroup.json")

_BOTH = """
brokerClusterName = links
brokerName = pair
listenPort = {port}
namesrvAddr = {names}
bindAddress = {address}
brokerIP1 = {address}
mappedFileSizeCommitLog = 1048576
mappedFileSizeConsumeQueue = 60000
maxHashSlotNum = 1000
maxIndexNum = 4000
flushIntervalCommitLog = 50
cleanFileForciblyEnable = false
haSendHeartbeatInterval = 200
haHousekeepingInterval = 1000
slaveTimeout = 400
"""
#: Settings without a name in a broker.conf.
_SETTINGS = (
    "broker.vip_port_enabled=false",
    "broker.register_interval_ms=10000",
    "nameserver.enabled=false",
    "http.enabled=false",
    "store.disk_warning_ratio=1.0",
)


@dataclass(frozen=True)
class Modes:
    """How both keep messages; `by_name`: the slave asks the name server for its master."""

    master_flush: str
    slave_flush: str
    ack_durable: bool
    by_name: bool

    @classmethod
    def drawn(cls, chance: random.Random) -> Modes:
        flushes = ("ASYNC_FLUSH", "SYNC_FLUSH")
        return cls(
            chance.choice(flushes),
            chance.choice(flushes),
            chance.random() < 0.5,
            chance.random() < 0.5,
        )

    def file_of(self, role: str) -> str:
        """The broker.conf of one of them."""
        names = f"{ADDRESSES[ROUTER]}:{NAME_SERVER_PORT}"
        lines = _BOTH.format(port=PORT, names=names, address=ADDRESSES[role])
        own = self._of_master() if role == MASTER else self._of_slave()
        return lines + "\n".join(own) + "\n"

    def _of_master(self) -> list[str]:
        return ["brokerId = 0", "brokerRole = SYNC_MASTER", f"flushDiskType = {self.master_flush}"]

    def _of_slave(self) -> list[str]:
        own = ["brokerId = 1", "brokerRole = SLAVE", f"flushDiskType = {self.slave_flush}"]
        own.append(f"haAckDurable = {str(self.ack_durable).lower()}")
        if not self.by_name:
            own.append(f"haMasterAddress = {ADDRESSES[MASTER]}:{PORT + 1}")
        return own


class Broker:
    """One of the two: started, killed, stopped and started again on its store."""

    def __init__(self, folder: Path, links: Links, role: str, modes: Modes, store: Path) -> None:
        self.role, self.store, self.modes = role, store, modes
        self._links = links
        self._log = folder / f"{role}.log"
        conf = folder / f"{role}.conf"
        conf.write_text(modes.file_of(role))
        self._command = [*links.inside(role), *aerobee(), "serve", "-c", str(conf)]
        self._command += ["--store", str(store)]
        for setting in _SETTINGS:
            self._command += ["--set", setting]
        self._process: subprocess.Popen[bytes] | None = None
        self.kills = 0

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it; it is not ready yet."""
        self._process = _started(self._command, self._log)

    def ready(self) -> None:
        """Wait until its port is open."""
        deadline = time.monotonic() + START_S
        while not self._links.is_open(self.role, PORT):
            assert self.alive, f"the {self.role} has ended:\n{self.log}"
            assert time.monotonic() < deadline, f"not ready in {START_S} s:\n{self.log}"
            time.sleep(0.02)

    def tell(self, number: int) -> None:
        """A signal, if it runs."""
        if self.alive:
            assert self._process is not None
            os.kill(self._process.pid, number)

    def kill(self) -> None:
        """kill -9."""
        if self.alive:
            assert self._process is not None
            self._process.kill()
            self._process.wait()
            self.kills += 1

    def stop(self) -> int:
        """Stop it in order; its exit code."""
        assert self._process is not None
        self.tell(signal.SIGTERM)
        return self._process.wait(_STOP_S)

    def end(self) -> None:
        """End it for good, whatever state it is in."""
        if self.alive:
            assert self._process is not None
            self._process.kill()
            self._process.wait()

    def verify(self) -> str:
        """Text of the tool for stores when it finds something wrong. The broker is stopped."""
        command = [*aerobee(), "store", "verify", str(self.store)]
        done = subprocess.run(command, capture_output=True, text=True)
        return "" if done.returncode == 0 else done.stdout + done.stderr


class Pair:
    """Master, slave and name server of one run."""

    def __init__(self, links: Links, folder: Path, modes: Modes, slave_disk: Path) -> None:
        self.links, self.slave_disk = links, slave_disk
        self._rest = slave_disk / "rest"
        self.master = Broker(folder, links, MASTER, modes, folder / "master")
        self.slave = Broker(folder, links, SLAVE, modes, slave_disk / "slave")

    @property
    def both(self) -> tuple[Broker, Broker]:
        return self.master, self.slave

    def copy_tables(self) -> None:
        """The slave's topics and groups are the master's from its first start on."""
        config = self.slave.store / "config"
        config.mkdir(parents=True)
        for name in _TABLES:
            shutil.copy(self.master.store / "config" / name, config)

    def fill_slave_disk(self) -> None:
        """Nothing more fits on the slave's disk."""
        # To the last block, one after the other: the slave takes some of them meanwhile.
        self._rest = use_all(self.slave_disk)

    def free_slave_disk(self) -> None:
        """There is room again."""
        self._rest.unlink()


@contextmanager
def pair(folder: Path, modes: Modes) -> Iterator[Pair]:
    """Namespaces, the slave's disk and a running name server; all of it is taken down again."""
    folder.mkdir(parents=True)
    with Links() as links, tmpfs(folder / "disk", _DISK) as disk:
        stack = Stack()
        try:
            command = [
                *links.inside(ROUTER), *aerobee(), "nameserver", "--host", ADDRESSES[ROUTER],
                "--port", str(NAME_SERVER_PORT),
            ]  # fmt: skip
            names = _started(command, folder / "names.log")
            stack.add(names.wait)
            stack.add(names.kill)
            made = Pair(links, folder, modes, disk)
            for broker in made.both:
                stack.add(broker.end)
            wait_until(lambda: links.is_open(ROUTER, NAME_SERVER_PORT), "a name server", START_S)
            yield made
        finally:
            stack.close()


def _started(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as file:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
