"""A master dies and comes back, and so does a slave: consumers go on, and the logs stay equal."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import campaign
from tests.interop.brokers import Broker
from tests.interop.kit import require
from tests.interop.peers import PEERS
from tests.interop.processes import Child, Line, wait_until
from tests.interop.replication.load import NO_SLAVE, SEND_OK, SLAVE_TIMEOUT, load
from tests.interop.replication.pairs import OURS, PAIRS, Kinds, Pair, log_end, pair_of
from tests.interop.replication.stored_files import check_logs_equal, check_queues_equal
from tests.interop.wire import ROUTE, SUCCESS, Wire

COUNT = campaign.size("failed over")
QUEUES = 4
TOPIC, PROBES = "failover", "probes"
KILLS = 3 if campaign.is_full() else 1
PATIENCE_S = 300 if campaign.is_full() else 60
# Bytes of a load that a slave has taken when it dies.
SOME = 100_000
READERS = ("java-4.9.8", "go", "aerobee")
# Go's commits to masters alone, and begins with a master alone.
COMMIT_TO_SLAVES = ("java-4.9.8", "aerobee")
QUERY_OFFSET = 14


class Readers:
    """A consumer of each client, each a group of its own, that run all the time."""

    def __init__(self, pair: Pair, log: Path, children: list[Child]) -> None:
        self._pair = pair
        self._chance = campaign.rng("failed over")
        self._sent: set[str] = set()
        self._running = {
            name: PEERS[name].consume(pair.master, log, TOPIC, _group(name), timeout=600)
            for name in READERS
        }
        children += self._running.values()

    def send(self, prefix: str) -> None:
        """Send messages, and wait until those that were delayed are delivered too."""
        master = self._pair.master
        sent = load(master, TOPIC, QUEUES, COUNT, prefix=prefix, chance=self._chance)
        assert sent.codes.keys() == {SEND_OK}
        self._sent |= sent.bodies
        wait_until(lambda: stored(master) >= len(self._sent), 60, "all are delivered")

    def wait_all(self, patience_s: float = PATIENCE_S) -> None:
        """Each was handed all that was sent."""
        for child in self._running.values():
            child.wait_lines(lambda lines: self._sent <= set(_bodies(lines)), patience_s)

    def check_once(self, known: dict[str, list[int]]) -> None:
        """Messages that came twice lie behind the offsets that a broker knew, by group."""
        for name, child in self._running.items():
            seen: set[tuple[int, int]] = set()
            for line in child.lines:
                if "body" not in line:
                    continue
                place = line["queue"], line["offset"]
                if place in seen:
                    assert line["offset"] >= known[name][line["queue"]], (name, line, known)
                seen.add(place)

    @contextmanager
    def held_up(self) -> Iterator[None]:
        """They do nothing meanwhile."""
        for child in self._running.values():
            child.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            for child in self._running.values():
                child.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        for child in self._running.values():
            child.stop()

    def committed(self, broker: Broker, name: str) -> list[int]:
        """A group's offsets at a broker, by queue, -1 for none."""
        found = []
        with broker.wire() as wire:
            for queue in range(QUEUES):
                asked = {"consumerGroup": _group(name), "topic": TOPIC, "queueId": queue}
                answer = wire.call(QUERY_OFFSET, asked)
                found.append(int(answer.ext["offset"]) if answer.code == SUCCESS else -1)
        return found

    def known(self, broker: Broker) -> dict[str, list[int]]:
        """The offsets of each group at a broker."""
        return {name: self.committed(broker, name) for name in READERS}

    def wait_known(self, broker: Broker, readers: tuple[str, ...] = READERS) -> None:
        """A broker knows that these groups have read all."""

        def knows() -> bool:
            with broker.wire() as wire:
                ends = [wire.max_offset(TOPIC, queue) for queue in range(QUEUES)]
            return all(self.committed(broker, name) == ends for name in readers)

        wait_until(knows, 60, f"{broker.kind} knows that all was read", 0.2)


def _bodies(lines: list[Line]) -> list[str]:
    return [line["body"] for line in lines if "body" in line]


def _group(name: str) -> str:
    return f"readers-{name.replace('.', '_')}"


@pytest.mark.parametrize("kinds", PAIRS, ids="-".join)
def test_consumers_go_on_from_the_slave_and_back(
    kinds: Kinds, tmp_path: Path, children: list[Child]
) -> None:
    for name in ("java-4.9.8", "go"):
        require(name)
    with pair_of(tmp_path, kinds, flushConsumerOffsetInterval="500") as pair:
        pair.master.start()
        pair.master.create_topic(TOPIC, QUEUES)
        pair.slave.start()
        wait_until(lambda: is_kept(pair), 60, "the slave counts")
        readers = Readers(pair, tmp_path, children)
        readers.send("first")
        readers.wait_all()
        readers.wait_known(pair.slave)

        with readers.held_up():
            readers.send("second")
            pair.wait_level()
            known = readers.known(pair.slave)
            pair.master.kill()
            wait_until(lambda: not is_routed(pair, pair.master), 30, "clients hear of the slave")
        # Clients ask for routes each half a minute.
        readers.wait_all()
        readers.check_once(known)
        readers.wait_known(pair.slave, COMMIT_TO_SLAVES)

        with readers.held_up():
            at_slave = readers.known(pair.slave)
            pair.master.start()
            if kinds.master == OURS:
                # It asked its slave before it let clients know of it.
                check_not_behind(readers.known(pair.master), at_slave)
            wait_until(lambda: is_kept(pair), 60, "the slave follows its master again")
        readers.send("third")
        readers.wait_all()
        readers.check_once(known)
        readers.end()
        end = pair.wait_level()
        check_logs_equal(pair.master, pair.slave, end, least_segments=1)
        check_queues_equal(pair.master, pair.slave, killed_java=kinds.master != OURS)


@pytest.mark.parametrize("kinds", PAIRS, ids="-".join)
def test_a_slave_that_was_killed_goes_on(kinds: Kinds, tmp_path: Path) -> None:
    """It dies amid what it is sent, several times, wherever its last record ends then. The brokers
    have IPv6 addresses, which their records keep."""
    chance = campaign.rng("killed slaves")
    with pair_of(tmp_path, kinds, brokerIP1="::1") as pair, ThreadPoolExecutor(1) as beside:
        pair.master.start()
        pair.master.create_topic(TOPIC, QUEUES)
        for turn in range(KILLS):
            pair.slave.start()
            wait_until(lambda: is_kept(pair), 60, "the slave counts")
            start = log_end(pair.slave)
            sending = beside.submit(
                load, pair.master, TOPIC, QUEUES, COUNT, prefix=f"{turn}", chance=chance
            )
            wait_end(pair.slave, start + SOME)
            pair.slave.kill()
            assert sending.result().codes.keys() <= {SEND_OK, NO_SLAVE, SLAVE_TIMEOUT}
        pair.slave.start()
        wait_until(lambda: is_kept(pair), 60, "the slave counts")
        end = pair.wait_level()
        check_logs_equal(pair.master, pair.slave, end, least_segments=2)
        check_queues_equal(pair.master, pair.slave, killed_java=kinds.slave != OURS)


def wait_end(broker: Broker, least: int) -> None:
    wait_until(lambda: log_end(broker) >= least, 60, f"a log of {least} bytes", 0.01)


def check_not_behind(known: dict[str, list[int]], least: dict[str, list[int]]) -> None:
    for name, offsets in least.items():
        pairs = zip(known[name], offsets, strict=True)
        assert all(mine >= its for mine, its in pairs), (name, known, least)


def is_kept(pair: Pair) -> bool:
    """Whether a message that is sent now is told to be on the slave, too."""
    with pair.master.wire() as wire:
        return wire.send(PROBES, 0, b"probe").code == SEND_OK


def is_routed(pair: Pair, broker: Broker) -> bool:
    """Whether clients are told of a broker."""
    with Wire(pair.names.address) as names:
        return f':{broker.port}"'.encode() in names.done(ROUTE, {"topic": TOPIC}).body


def stored(broker: Broker) -> int:
    with broker.wire() as wire:
        return sum(wire.max_offset(TOPIC, queue) for queue in range(QUEUES))
