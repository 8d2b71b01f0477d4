"""A SYNC_MASTER and its slave as real processes, around which the network and the machine fail.

Clients send to the master and read from both, faults of a drawn kind come one after the other, and
then all is well again. The master answers again (I13) and the slave catches up; both are stopped
and their files are judged. At last the master's store is thrown away, and the slave alone serves
what was promised.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests import campaign
from tests.crash.judges.checker import Violation
from tests.crash.judges.history import Found
from tests.crash.replication_links.brokers import PORT, Modes, Pair, pair
from tests.crash.replication_links.clients import Clients, ends
from tests.crash.replication_links.faults import SCENARIOS, Faults
from tests.crash.replication_links.judge import judge_slave, judge_stores
from tests.crash.replication_links.links import MASTER, SLAVE, Links
from tests.crash.running.link import PULL, pull_fields
from tests.crash.running.traffic import QUEUES, TOPIC
from tests.service.kit import wait_until
from tests.tools import need

NAME = "replication links"
#: Sends are answered, and the slave is as far as the master, so long after the last fault.
WELL_S = 10.0


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_what_was_promised_is_on_the_slave(folder: Path, scenario: str, seed: int) -> None:
    need("netns", "mount", "ip", "tc", "nsenter")
    wrong: list[str] = []
    runs = campaign.size(NAME)
    for number in range(runs):
        place = folder / str(number)
        chance = random.Random(f"{seed} {scenario} {number}")
        found = run(place, chance, SCENARIOS[scenario])
        wrong += [f"run {number}: {one.rule} {one.text}" for one in found]
        shutil.rmtree(place)
    assert wrong == []


def test_a_command_in_a_namespace_keeps_the_mounts() -> None:
    need("netns", "mount", "ip", "tc", "nsenter")
    show = ["readlink", "/proc/self/ns/mnt", "/proc/self/ns/net"]
    with Links() as links:
        shown = subprocess.run([*links.inside(SLAVE), *show], capture_output=True, text=True)
    mounts, network = shown.stdout.split()
    assert mounts == os.readlink("/proc/self/ns/mnt")
    assert network != os.readlink("/proc/self/ns/net")


def run(place: Path, chance: random.Random, kinds: tuple[str, ...]) -> list[Violation]:
    """One life of a pair; what is wrong with it."""
    modes = Modes.drawn(chance)
    with pair(place, modes) as brokers:
        clients = Clients(brokers.links, chance.randrange(1 << 30))
        begin(brokers, clients)
        faults = Faults(brokers, clients, chance)
        try:
            clients.start()
            wait_until(lambda: clients.promised, "a send that is answered SEND_OK")
            faults.go_on(kinds, 15.0 if campaign.is_full() else 5.0)
            well_s = be_well(brokers, clients)
        finally:
            clients.stop()
        print(f"{modes}: {faults.count} faults, {dict(clients.answers)}, {dict(clients.read)} read")
        held_ms = faults.held_up_s * 1000
        print(f"well in {well_s:.1f} s, others waited {held_ms:.0f} ms while the slave stood still")
        wrong = judged(brokers, clients)
    figures = {"faults": faults.count, "replicated": len(clients.promised)}
    campaign.note(NAME, 1, wrong=len(wrong), **figures)
    return wrong


def begin(brokers: Pair, clients: Clients) -> None:
    """Start both, with the topic and the consumers' group on both."""
    brokers.master.start()
    brokers.master.ready()
    with brokers.links.connect(MASTER, PORT) as link:
        link.create_topic(TOPIC, QUEUES)
        # A group is made by its first pull.
        fields = pull_fields(TOPIC, 0, 0, 0)
        link.call(PULL, fields)
    groups = brokers.master.store / "config" / "subscriptionGroup.json"
    wait_until(lambda: has_text(groups, fields["consumerGroup"]), "the group is on the disk")
    clients.history.topics[TOPIC] = 0
    brokers.copy_tables()
    brokers.slave.start()
    brokers.slave.ready()


def has_text(path: Path, text: object) -> bool:
    """Whether the file is there and has it."""
    return path.exists() and str(text) in path.read_text()


def be_well(brokers: Pair, clients: Clients) -> float:
    """Wait until a send is promised again, and then until the slave has all; how long it took."""
    began = time.monotonic()
    before = len(clients.promised)
    try:
        wait_until(
            lambda: len(clients.promised) > before, "a send that is answered SEND_OK", WELL_S
        )
        clients.send_no_more()
        wait_until(lambda: level(brokers), "the slave is as far as the master", WELL_S)
    except AssertionError as error:
        logs = "".join(f"\n{one.role}:\n{one.log[-3000:]}" for one in brokers.both)
        raise AssertionError(f"{error}; {dict(clients.answers)}{logs}") from error
    return time.monotonic() - began


def level(brokers: Pair) -> bool:
    """Whether both have as many messages in each queue."""
    try:
        return ends(brokers.links, SLAVE) == ends(brokers.links, MASTER)
    except OSError:
        return False


def judged(brokers: Pair, clients: Clients) -> list[Violation]:
    """Stop both and judge them, then the slave alone."""
    wrong = [
        Violation("stop", f"the {one.role} ended with {code}:\n{one.log[-2000:]}")
        for one in brokers.both
        if (code := one.stop()) != 0
    ]
    stores = brokers.master.store, brokers.slave.store
    wrong += judge_stores(clients.history, clients.promised, *stores)
    wrong += [
        Violation("I6", f"{one.role}: {text}") for one in brokers.both if (text := one.verify())
    ]
    shutil.rmtree(brokers.master.store)
    brokers.slave.start()
    brokers.slave.ready()
    with brokers.links.connect(SLAVE, PORT) as link:
        served = {(TOPIC, queue_id): link.read_queue(TOPIC, queue_id) for queue_id in range(QUEUES)}
    found = Found(
        {key: records for key, (records, _) in served.items()},
        {key: reach for key, (_, reach) in served.items()},
    )
    return wrong + judge_slave(clients.history, clients.promised, found)
