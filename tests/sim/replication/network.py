"""A connection between a slave and its master, as TCP gives it: two streams of bytes.

What is sent arrives later, split and joined at any place. A connection that loses bytes ends: what
arrives is always a beginning of what was sent. One side may hear of the end long before the other
does, or never; then it ends the connection when it has waited long enough.
"""

import random

from aerobee.protocol.replication import ReportDecoder
from aerobee.store.log.replication.feed import Follower
from tests.sim.replication.machine import Machine


class Stream:
    """One direction."""

    def __init__(self) -> None:
        self.flight = bytearray()
        # Nothing more is carried; `silent`: the receiver does not hear of it.
        self.ended = self.silent = False

    def send(self, data: bytes) -> None:
        """Give bytes to the network; a sender does not hear that they are lost."""
        if not self.ended:
            self.flight += data

    def take(self, chance: random.Random) -> bytes:
        """The bytes that arrive now: some of those under way, or all."""
        size = len(self.flight)
        if size and chance.random() < 0.6:
            size = chance.randint(1, size)
        data = bytes(self.flight[:size])
        del self.flight[:size]
        return data

    def end(self, chance: random.Random, *, silent: bool, whole: bool = False) -> None:
        """Carry nothing more; unless `whole`, an end of what is under way is lost as well."""
        if not whole:
            del self.flight[chance.randint(0, len(self.flight)) :]
        self.ended, self.silent = True, self.silent or silent

    @property
    def heard(self) -> bool:
        """Whether the receiver hears that the stream has ended."""
        return self.ended and not self.silent and not self.flight


class Link:
    """A connection, and what each side keeps for it."""

    def __init__(self, slave: Machine, follower: Follower) -> None:
        self.slave = slave
        self.to_slave, self.to_master = Stream(), Stream()
        self.slave_open = self.master_open = True
        # The master's side; `slave.appender` is the other.
        self.follower = follower
        self.reports = ReportDecoder()
        # Bytes that have arrived at the slave and wait to be taken.
        self.arrived = bytearray()
        self.last_report = -1
        # The logs of both were compared up to there; -1 before the master has taken the slave.
        self.compared = -1

    def cut(self, chance: random.Random) -> None:
        """The network fails."""
        for stream in (self.to_slave, self.to_master):
            stream.end(chance, silent=chance.random() < 0.4)

    def close_slave(self, chance: random.Random, *, silent: bool = False) -> None:
        """The slave's side is gone; what it sent may still arrive."""
        self.slave_open = False
        self.to_slave.end(chance, silent=True)
        self.to_master.end(chance, silent=silent, whole=not silent)

    def close_master(self, chance: random.Random, *, silent: bool = False) -> None:
        """The master's side is gone; what it sent may still arrive."""
        self.master_open = False
        self.to_master.end(chance, silent=True)
        self.to_slave.end(chance, silent=silent, whole=not silent)
