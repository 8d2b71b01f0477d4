"""Faults of master, slave and the way between them. Each begins, lasts and is over."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from tests.crash.replication_links.brokers import Broker, Pair
from tests.crash.replication_links.clients import Clients
from tests.crash.replication_links.links import MASTER, SLAVE


class Faults:
    """The faults of one run, one after the other."""

    def __init__(self, pair: Pair, clients: Clients, chance: random.Random) -> None:
        self._pair = pair
        self._links = pair.links
        self._clients = clients
        self._chance = chance
        self._never = threading.Event()
        self.count = 0
        #: The longest wait of somebody else at the master while the slave stood still.
        self.held_up_s = 0.0

    def go_on(self, kinds: tuple[str, ...], seconds: float) -> None:
        """Faults of these kinds, for that long; all are over at the end."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._last(min(left, 0.1), min(left, 0.6))
            KINDS[self._chance.choice(kinds)](self)
            self.count += 1
            if self._chance.random() < 0.7:
                self._follow(until)

    def _follow(self, until: float) -> None:
        """Let the slave be a copy again, so that the next fault meets one."""
        before = len(self._clients.promised)
        while len(self._clients.promised) == before and time.monotonic() < until:
            self._never.wait(0.05)

    def _last(self, least_s: float, most_s: float) -> None:
        # A length of the run, not a wait for something to happen.
        self._never.wait(self._chance.uniform(least_s, most_s))

    def _one(self) -> Broker:
        return self._chance.choice(self._pair.both)

    def cut(self) -> None:
        """One of them is alone."""
        role = self._one().role
        self._links.cut(role)
        self._last(0.2, 2.0)
        self._links.join(role)

    def lose(self) -> None:
        """One of them does not hear the other one, who hears it."""
        way = self._chance.choice(((MASTER, SLAVE), (SLAVE, MASTER)))
        self._links.lose(*way)
        self._last(0.2, 2.5)
        self._links.let_pass(*way)

    def slow(self) -> None:
        """Blocks of the master take their time, or reports of the slave do."""
        role = self._chance.choice((MASTER, SLAVE, SLAVE))
        self._links.slow(role, f"{self._chance.choice((200, 500, 2000))}kbit")
        self._last(0.5, 2.5)
        self._links.quick(role)

    def hold(self) -> None:
        """One of them stands still, and goes on."""
        broker = self._one()
        self._clients.waited_s = 0.0
        broker.tell(signal.SIGSTOP)
        self._last(0.1, 2.5)
        if broker is self._pair.slave:
            self.held_up_s = max(self.held_up_s, self._clients.waited_s)
        broker.tell(signal.SIGCONT)

    def kill(self) -> None:
        """One of them dies, and is started again."""
        broker = self._one()
        broker.kill()
        self._last(0.0, 0.5)
        broker.start()
        broker.ready()

    def storm(self) -> None:
        """One of them dies again and again, amid its start."""
        broker = self._one()
        for _ in range(3):
            broker.kill()
            broker.start()
            self._last(0.05, 0.8)
        broker.kill()
        broker.start()
        broker.ready()

    def fill(self) -> None:
        """The slave's disk is full for a while; at times the slave is killed meanwhile."""
        self._pair.fill_slave_disk()
        self._last(0.5, 2.0)
        if self._chance.random() < 0.3:
            self._pair.slave.kill()
        self._pair.free_slave_disk()
        if not self._pair.slave.alive:
            self._pair.slave.start()
            self._pair.slave.ready()


KINDS: Final[Mapping[str, Callable[[Faults], None]]] = {
    "cut": Faults.cut,
    "lose": Faults.lose,
    "slow": Faults.slow,
    "hold": Faults.hold,
    "kill": Faults.kill,
    "storm": Faults.storm,
    "fill": Faults.fill,
}
#: The kinds of each scenario.
SCENARIOS: Final[Mapping[str, tuple[str, ...]]] = {
    "cuts": ("cut", "cut", "lose"),
    "one way": ("lose",),
    "slow": ("slow", "slow", "hold"),
    "standing still": ("hold",),
    "kills": ("kill", "kill", "storm"),
    "full disk": ("fill", "fill", "slow"),
}
