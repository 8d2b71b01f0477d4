"""Peers that want everything, a daemon with 512 MB, and a good client (docs/reliability.md R13).

The daemon runs in a memory cgroup of 512 MB; the attackers (`attacks.py`) and the good client do
not. The good client sends and reads back a hundred messages a second, or as many as it gets. It is
counted for a while, then the attack begins, and it is counted again: in a campaign it has to keep
half of its rate; in each run the daemon has to stay up, and the client to go on.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import campaign
from tests.crash.crowds.attacks import LARGE, LARGE_KEY, LARGE_QUEUES
from tests.crash.crowds.memory_group import MemoryGroup
from tests.crash.judges.records import records_of
from tests.crash.running.aside import Aside
from tests.crash.running.link import (
    PULL,
    SEND,
    SUCCESS,
    SYSTEM_BUSY,
    Link,
    pull_fields,
    send_fields,
)
from tests.service.kit import Served
from tests.tools import need

LIMIT_BYTES = 512 << 20
LARGE_BYTES, LARGE_MESSAGES = (4 << 20) - 1_024, 12
#: Round trips a second that the good client wants.
_RATE = 100
_PROGRAM = Path(__file__).with_name("attacks.py")
_SCENARIOS = (
    "slow", "announced", "unread", "floods", "giants", "held", "queries", "views", "topics",
    "heartbeats",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _tools() -> None:
    need("memory cgroup")


class GoodClient(Aside):
    """Sends a message and reads it back, in steps of a hundredth of a second."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.rounds = 0
        #: Sends that were refused because they had waited too long.
        self.busy = 0
        self._port = port

    def work(self) -> None:
        with Link(self._port) as link:
            following = time.monotonic()
            while not self._done.wait(max(0.0, following - time.monotonic())):
                # Missed rounds are not made up for: that would hide that somebody stood still.
                following = max(following + 1 / _RATE, time.monotonic())
                body = b"good %d" % self.rounds
                sent = link.call(SEND, send_fields("Good", 0, {"KEYS": "k"}), body)
                if sent.code == SYSTEM_BUSY:
                    # Refused because it waited: nothing was stored, and it is not a round.
                    self.busy += 1
                    continue
                assert sent.code == SUCCESS, sent.remark
                at = int(sent.ext["queueOffset"])
                answer = link.call(PULL, pull_fields("Good", 0, at, 5_000))
                assert [one.body for one in records_of(answer.body)] == [body]
                self.rounds += 1

    def in_window(self, seconds: float) -> int:
        """Rounds in this number of seconds."""
        before = self.rounds
        self._done.wait(seconds)
        return self.rounds - before


@dataclass
class Outcome:
    """The result of an attack."""

    before: int = 0
    during: int = 0
    seconds: float = 1.0
    alive: bool = True
    kills: int = 0
    busy: int = 0
    failure: BaseException | None = None
    live: int = 0
    peak_bytes: int = 0
    attack: str = ""

    def wrong(self, *, half: bool) -> list[str]:
        """The faults; `half`: the good client has to keep half its rate."""
        found: list[str] = []
        if self.kills or not self.alive:
            found.append(f"the daemon was killed: {self.kills} by the limit")
        if self.failure is not None:
            found.append(f"the good client failed: {self.failure!r}")
        if self.live != 200:
            found.append(f"/live says {self.live}")
        if self.during < 1:
            found.append("the good client got nothing")
        if half and 2 * self.during < self.before:
            found.append(f"the good client had {self.before} rounds, then {self.during}")
        return found


def window_s() -> float:
    return 8.0 if campaign.is_full() else 1.0


def share() -> float:
    """How much of an attack: all of it, or what shows the same at once."""
    return 1.0 if campaign.is_full() else 0.1


@contextmanager
def limited_daemon(
    folder: Path, *, large: int = LARGE_MESSAGES
) -> Iterator[tuple[Served, MemoryGroup]]:
    """A daemon in its group, with this number of large messages."""
    with MemoryGroup(LIMIT_BYTES) as group:
        files = ("sh", "-c", 'ulimit -n "$(ulimit -H -n)"; exec "$0" "$@"')
        daemon = Served(
            folder,
            "--set",
            "store.commit_log_segment_bytes=67108864",
            prefix=(*group.prefix, *files),
        )
        try:
            daemon.ready()
            with Link(daemon.port) as link:
                link.create_topic("Good", 4)
                link.create_topic(LARGE, LARGE_QUEUES)
                fields = send_fields(LARGE, 0, {"KEYS": LARGE_KEY})
                for number in range(large):
                    answer = link.call(SEND, fields, b"%d" % number + bytes(LARGE_BYTES))
                    assert answer.code == SUCCESS, answer.remark
            yield daemon, group
        finally:
            daemon.close()


@contextmanager
def under_attack(name: str, port: int) -> Iterator[list[str]]:
    """The attack's process within the block; its output at its end is in the list then."""
    said: list[str] = []
    with subprocess.Popen(
        [sys.executable, str(_PROGRAM), name, str(port), str(share())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as attacker:
        assert attacker.stdin is not None
        assert attacker.stdout is not None
        try:
            assert attacker.stdout.readline() == "ready\n"
            yield said
            attacker.stdin.close()
            said.append(attacker.stdout.read().strip())
        finally:
            attacker.kill()


def attacked(folder: Path, name: str) -> Outcome:
    """Count the good client before and during one attack."""
    outcome = Outcome(seconds=window_s())
    with limited_daemon(folder) as (daemon, group):
        with GoodClient(daemon.port) as client:
            client.in_window(0.3)
            outcome.before = client.in_window(outcome.seconds)
            with under_attack(name, daemon.port) as said:
                outcome.during = client.in_window(outcome.seconds)
                with suppress(OSError):
                    outcome.live = daemon.get("/live")[0]
                outcome.alive = daemon.process.poll() is None
        outcome.busy, outcome.failure = client.busy, client.failure
        outcome.kills = group.kills()
        outcome.peak_bytes = group.peak_bytes()
        outcome.attack = said[0] if said else ""
    return outcome


def hold(folder: Path, name: str) -> None:
    """Run a scenario, note and judge it."""
    outcome = attacked(folder, name)
    wrong = outcome.wrong(half=campaign.is_full())
    print(f"{name}: {outcome}")
    campaign.note("resources", 1, wrong=len(wrong))
    assert wrong == [], f"{name}: {outcome}"
    assert json.loads(outcome.attack), "the attack has done nothing"


@pytest.mark.drawn("resources")
@pytest.mark.parametrize("name", _SCENARIOS)
def test_an_attack_leaves_the_daemon_up_and_a_good_client_served(folder: Path, name: str) -> None:
    hold(folder, name)


# --- controls -------------------------------------------------------------------------------------


def test_a_process_that_takes_more_than_the_limit_is_caught() -> None:
    taking = "data = [bytearray(b'x' * (1 << 20)) for _ in range(2_000)]; print(len(data))"
    with MemoryGroup(64 << 20) as group:
        ran = subprocess.run(
            [*group.prefix, sys.executable, "-c", taking], capture_output=True, check=False
        )
        outcome = Outcome(100, 100, kills=group.kills(), live=200)
        peak = group.peak_bytes()
    caught = any("killed" in one for one in outcome.wrong(half=False))
    campaign.note_control("resources", "memory without a limit", int(caught), 1)
    assert ran.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
    assert caught
    assert peak <= 64 << 20


def test_a_daemon_that_stands_still_is_caught(folder: Path) -> None:
    """Stopped for two thirds of the time, so that whoever waits for it gets a third of its rate."""
    outcome = Outcome(live=200)
    with limited_daemon(folder, large=0) as (daemon, _), GoodClient(daemon.port) as client:
        client.in_window(0.3)
        outcome.before = client.in_window(1.5)
        begun = client.rounds
        for _ in range(3):
            os.kill(daemon.process.pid, signal.SIGSTOP)
            client.in_window(0.4)
            os.kill(daemon.process.pid, signal.SIGCONT)
            client.in_window(0.1)
        outcome.during = client.rounds - begun
    caught = any("then" in one for one in outcome.wrong(half=True))
    campaign.note_control("resources", "a daemon that stands still", int(caught), 1)
    assert caught, outcome
