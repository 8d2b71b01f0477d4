"""The log of a slave is its master's, byte by byte: ours and Java's, in each pairing that works."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import campaign
from tests.interop.brokers import Broker
from tests.interop.kit import require
from tests.interop.peers import PEERS
from tests.interop.processes import wait_until
from tests.interop.replication.load import NO_SLAVE, SEND_OK, SLAVE_TIMEOUT, load
from tests.interop.replication.pairs import JAVA, OURS, PAIRS, Kinds, Pair, log_end, pair_of
from tests.interop.replication.stored_files import check_logs_equal, check_queues_equal

COUNT = campaign.size("replicated")
CLIENTS = 1_000
QUEUES = 4
TOPIC = "copied"


@pytest.mark.parametrize("kinds", PAIRS, ids="-".join)
def test_a_slave_has_all_of_its_master(kinds: Kinds, tmp_path: Path) -> None:
    """An empty slave gets each segment that its master has, then all that comes, and the answers
    to senders say what it has."""
    require("java-4.9.8")
    chance = campaign.rng("replicated")
    with pair_of(tmp_path, kinds) as pair:
        pair.master.start()
        pair.master.create_topic(TOPIC, QUEUES)
        early = load(pair.master, TOPIC, QUEUES, COUNT // 2, prefix="early", chance=chance)
        assert early.codes.keys() == {NO_SLAVE}

        pair.slave.start()
        end = pair.wait_level()
        check_logs_equal(pair.master, pair.slave, end, least_segments=3)

        options = {"modes": "sync,async,oneway,batch", "keys": "yes"}
        client = PEERS["java-4.9.8"].produce(pair.master, tmp_path, TOPIC, CLIENTS, **options)
        late = load(pair.master, TOPIC, QUEUES, COUNT // 2, prefix="late", chance=chance)
        assert late.codes.keys() == {SEND_OK}
        assert client.wait(60)[-1] == {"done": CLIENTS, "failed": 0}
        with hanging(pair):
            hung = load(pair.master, TOPIC, QUEUES, 20, prefix="hung", chance=chance)
            assert hung.codes.keys() == {SLAVE_TIMEOUT}
        wait_until(lambda: answer(pair.master) == SEND_OK, 30, "the slave counts again", 0.5)

        # Delays pass, and the copies that they make come too.
        least = CLIENTS + len(early.bodies | late.bodies | hung.bodies) + 1
        wait_until(lambda: stored(pair.master) >= least, 60, "all are delivered")
        end = pair.wait_level()
        check_logs_equal(pair.master, pair.slave, end, least_segments=6)
        queues = check_queues_equal(pair.master, pair.slave)
        assert {f"{TOPIC}/{queue}" for queue in range(QUEUES)} < queues.keys()


@pytest.mark.parametrize("kinds", [Kinds(JAVA, OURS), Kinds(OURS, OURS)], ids="-".join)
def test_a_given_address_has_to_be_that_of_the_compared_master(
    kinds: Kinds, tmp_path: Path
) -> None:
    with pair_of(tmp_path, kinds) as pair:
        pair.master.start()
        pair.master.create_topic(TOPIC, QUEUES)
        load(pair.master, TOPIC, QUEUES, 50, prefix="given", chance=campaign.rng("given"))
        # The port for clients takes connections, but serves no slaves.
        given = pair.slave.shape.extra
        given["haMasterAddress"] = f"127.0.0.1:{pair.master.port}"
        pair.slave.start()
        wait_until(
            lambda: "another pair" in pair.slave.children[-1].tail(), 30, "the slave refuses", 0.1
        )
        assert log_end(pair.slave) == 0
        pair.slave.stop()
        given["haMasterAddress"] = f"localhost:{pair.master.port + 1}"
        pair.slave.start()
        end = pair.wait_level()
        check_logs_equal(pair.master, pair.slave, end, least_segments=1)


@contextmanager
def hanging(pair: Pair) -> Iterator[None]:
    """The slave does nothing meanwhile, and its connections stay."""
    os.kill(pair.slave.pid, signal.SIGSTOP)
    try:
        # Each thread stops when it next enters the kernel.
        wait_until(lambda: set(_states(pair.slave.pid)) == {"T"}, 10, "the slave is stopped")
        yield
    finally:
        os.kill(pair.slave.pid, signal.SIGCONT)


def _states(pid: int) -> list[str]:
    """The states of a process's threads, as the kernel names them."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return [(one / "stat").read_text().rpartition(")")[2].split()[0] for one in threads]


def answer(master: Broker) -> int:
    """The code for a message that is sent now."""
    with master.wire() as wire:
        return wire.send(TOPIC, 0, b"answer").code


def stored(broker: Broker) -> int:
    with broker.wire() as wire:
        return sum(wire.max_offset(TOPIC, queue) for queue in range(QUEUES))
