"""A master and its slave, each ours or Java's, with a name server of its own process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests import campaign
from tests.interop.brokers import Broker, JavaBroker, OurBroker, StoreShape
from tests.interop.kit import JAVA_SLAVE, require
from tests.interop.processes import Child, wait_until
from tests.interop.wire import BROKER_RUNTIME_INFO, CLUSTER_INFO, SUCCESS, Wire
from tests.ports import free_port

QUICK_MS = "500"


class Kinds(NamedTuple):
    """Which broker is the master, and which the slave."""

    master: str
    slave: str

    @property
    def is_ours(self) -> bool:
        """Whether no Java is needed."""
        return self.master == self.slave == "ours"


OURS, JAVA, JAVA_5 = "ours", "java", "java5"
PAIRS = tuple(Kinds(*each) for each in ((OURS, OURS), (OURS, JAVA), (JAVA, OURS), (OURS, JAVA_5)))


class NameServer:
    """Ours, alone in its process; it outlives the brokers of a pair."""

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._child = Child(
            [sys.executable, "-m", "aerobee.cli", "nameserver", "--port", str(self.port)],
            root / "nameserver.log",
            {"HOME": str(root)},
        )
        wait_until(self._ready, 60, "the name server answers")

    def _ready(self) -> bool:
        assert self._child.running, self._child.tail()
        try:
            with Wire(self.address) as wire:
                wire.done(CLUSTER_INFO)
        except ConnectionError:
            return False
        return True

    def end(self) -> None:
        self._child.end()


class JavaSlave5(JavaBroker):
    """A broker of RocketMQ 5."""

    kind = "Java 5"
    version = JAVA_SLAVE


def shape_of(role: str, extra: dict[str, str]) -> StoreShape:
    return StoreShape(
        # A dozen segments and more, whatever the size of the run.
        segment_bytes=1 << (24 if campaign.is_full() else 20),
        queue_segment_bytes=600_000 if campaign.is_full() else 20_000,
        extra={
            "brokerRole": role,
            "brokerId": "1" if role == "SLAVE" else "0",
            "brokerIP2": "127.0.0.1",
            "bindAddress": "::",
            "slaveReadEnable": "true",
            # The first report of a Java slave comes after that time.
            "haSendHeartbeatInterval": QUICK_MS,
            # A master waits for a slave that long, by either name.
            "slaveTimeout": "1000",
            "syncFlushTimeout": "1000",
            "messageDelayLevel": "1s 2s",
            "timerWheelEnable": "false",
            **extra,
        },
    )


class Pair:
    """The brokers are made, and started by the test."""

    def __init__(self, root: Path, kinds: Kinds, **settings: str) -> None:
        """`settings` are both brokers', under RocketMQ's keys."""
        self._root = root
        self.kinds = kinds
        self._extra = {"brokerRole": "SYNC_MASTER", **settings}
        self.names = NameServer(root / "names")
        self.master = self._make("master", kinds.master, self._extra.pop("brokerRole"))
        self.slave = self._make("slave", kinds.slave, "SLAVE")

    def _make(self, name: str, kind: str, role: str) -> Broker:
        made = {OURS: OurBroker, JAVA: JavaBroker, JAVA_5: JavaSlave5}[kind]
        if kind != OURS:
            require("java-broker" if kind == JAVA else "java-slave")
        return made(
            self._root / name, shape=shape_of(role, self._extra), registers_at=self.names.address
        )

    def wait_level(self, patience_s: float = 60) -> int:
        """Wait until the slave has all of its master's log; returns where that ends."""
        ends: list[int] = []

        def level() -> bool:
            ends[:] = [log_end(self.master), log_end(self.slave)]
            return ends[0] == ends[1] == log_end(self.master)

        try:
            wait_until(level, patience_s, "the slave has all of its master's log", 0.1)
        except AssertionError as error:
            raise AssertionError(
                f"{error}: {ends}\n{self.slave.children[-1].tail()}\n"
                f"{self.master.children[-1].tail()}"
            ) from None
        return ends[0]

    def end(self) -> None:
        for broker in (self.slave, self.master):
            broker.kill()
        self.names.end()


@contextmanager
def pair_of(root: Path, kinds: Kinds, **settings: str) -> Iterator[Pair]:
    """A pair whose processes end with the block."""
    pair = Pair(root, kinds, **settings)
    try:
        yield pair
    finally:
        pair.end()


def log_end(broker: Broker) -> int:
    """Log offset after the broker's last byte."""
    with broker.wire() as wire:
        told = wire.call(BROKER_RUNTIME_INFO)
    if told.code != SUCCESS:
        return -1  # Java's in its first second
    _, _, rest = told.body.decode().partition('"commitLogMaxOffset":"')
    return int(rest.partition('"')[0])
