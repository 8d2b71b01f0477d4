"""SIGKILL of the real daemon at a system call, under producers, a consumer and topics being made.

It does as test_kill_points.py does to the store alone, with everything around it: the answers, the
state files, the acknowledgements that wait. The daemon runs under strace, is killed when one of its
threads makes its n-th call, and is started again without; clients' histories are the judge
(checker.py).
"""

import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests import campaign
from tests.crash.judges.checker import check
from tests.crash.judges.history import History, Promise
from tests.crash.judges.restarted import served
from tests.crash.kills.kill_runs import at_call
from tests.crash.running.daemons import start_daemon
from tests.crash.running.traffic import Marks, Traffic
from tests.service.kit import Served
from tests.tools import need

#: Which of a thread's calls it dies at: starting makes the first of them, running the others.
CALLS = {
    "pwrite64": (1, 4, 12, 30),
    "fdatasync": (1, 4, 12, 24),
    "fsync": (1, 4, 8, 12, 20),
    "ftruncate": (1, 2, 4, 8),
    "fallocate": (1, 2, 3, 4),
    "rename": (1, 2, 3),
}
MESSAGES = 50


def end_traced(daemon: Served) -> None:
    """End a daemon that runs under strace: killing strace would leave it running."""
    pid = daemon.process.pid
    with suppress(FileNotFoundError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            os.kill(int(child), signal.SIGKILL)
    daemon.process.wait(30)
    daemon.close()


@contextmanager
def traced(folder: Path, store: Path, flush: str, call: str, nth: int) -> Iterator[Served]:
    tracer = ("strace", "-f", "-qq", "-o", "/dev/null", *at_call(call, nth))
    daemon = start_daemon(folder, store, flush, prefix=tracer)
    try:
        yield daemon
    finally:
        end_traced(daemon)


def run_until_killed(folder: Path, store: Path, flush: str, call: str, nth: int) -> History:
    """The answers that clients got from a daemon that died at that call, or did not meet it."""
    history = History()
    traffic = Traffic(history, Marks(lambda _number: None), seed=nth)
    with traced(folder, store, flush, call, nth) as daemon:
        done = False
        with suppress(AssertionError, OSError):
            daemon.ready()
            traffic.prepare(daemon.port)
            traffic.run(daemon.port, MESSAGES // 2)
            done = True
        if not done:
            daemon.process.wait(10)  # nothing else is a reason to fail here
    return history


@pytest.mark.parametrize("call", CALLS)
def test_daemon_killed_at_a_call_loses_nothing_acknowledged(
    folder: Path, call: str, seed: int
) -> None:
    need("strace")
    rng = random.Random(f"{seed} {call}")
    wrong: list[str] = []
    kills = rng.sample(CALLS[call], min(len(CALLS[call]), campaign.size("kill daemon")))
    for nth in sorted(kills):
        flush = rng.choice(("SYNC_FLUSH", "ASYNC_FLUSH"))
        place = folder / f"{call}-{nth}"
        history = run_until_killed(place / "killed", place / "store", flush, call, nth)
        again = start_daemon(place / "again", place / "store", flush)
        try:
            again.ready()
            found = served(again.port, place / "store")
            wrong += [
                f"{call} {nth} {flush}: {one.rule} {one.text}"
                for one in check(history, found, Promise())
            ]
            again.terminate()
            assert again.wait() == 0, again.log
        finally:
            again.close()
        print(f"{call} {nth} {flush}: {len(history.acked())} acknowledged")
    campaign.note("kill daemon", len(kills), wrong=len(wrong))
    assert wrong == []
