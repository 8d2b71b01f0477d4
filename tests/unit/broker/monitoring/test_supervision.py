"""Claims about what the supervisor hears while the daemon recovers and runs."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from aerobee.broker.monitoring.health import HealthChecks, Verdict
from aerobee.broker.monitoring.systemd import Notifier, Supervision, status_line
from aerobee.broker.scheduler import Scheduler
from aerobee.store.stats_service import Rates


class Supervisor:
    """The other end of the notify socket."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setblocking(False)
        self.environ = {"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "20000"}

    async def next(self) -> str:
        async with asyncio.timeout(5):
            return (await asyncio.get_running_loop().sock_recv(self._socket, 4096)).decode()

    def silent(self) -> bool:
        try:
            self._socket.recv(4096)
        except BlockingIOError:
            return True
        return False

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    supervisor = Supervisor(tmp_path / "notify")
    yield supervisor
    supervisor.close()


async def test_each_step_of_recovery_is_told_and_asks_for_time(supervisor: Supervisor) -> None:
    health = HealthChecks()
    supervision = Supervision(Notifier(supervisor.environ), health)
    progress = supervision.begin_recovery(asyncio.get_running_loop())
    assert not health.ready
    thread = threading.Thread(target=progress, args=("reading the commit log", 1 << 30, 4 << 30))
    thread.start()
    assert await supervisor.next() == "STATUS=reading the commit log 25% (1.0 of 4.0 GiB)"
    assert await supervisor.next() == "EXTEND_TIMEOUT_USEC=60000000"
    thread.join()
    assert health.run()[0].reason == "reading the commit log 25% (1.0 of 4.0 GiB)"
    supervision.end_recovery()
    assert health.ready


async def test_word_of_progress_after_the_end_is_not_told(supervisor: Supervisor) -> None:
    supervision = Supervision(Notifier(supervisor.environ), HealthChecks())
    progress = supervision.begin_recovery(asyncio.get_running_loop())
    progress("reading the commit log", 4, 4)
    supervision.end_recovery()
    await asyncio.sleep(0)
    assert supervisor.silent()


async def test_watchdog_goes_hungry_while_a_thread_is_stuck(supervisor: Supervisor) -> None:
    asked = 0
    recovered = asyncio.Event()

    def threads_alive() -> bool:
        nonlocal asked
        asked += 1
        if asked == 3:
            recovered.set()
        return asked >= 3

    scheduler = Scheduler(asyncio.get_running_loop())
    supervision = Supervision(Notifier(supervisor.environ), HealthChecks())
    supervision.watch(scheduler, threads_alive, lambda: rates(0.0, 0.0))
    assert await supervisor.next() == "WATCHDOG=1"
    assert recovered.is_set()
    await scheduler.stop()


def rates(put: float, out: float) -> Rates:
    nothing = (0.0, 0.0, 0.0)
    return Rates((0.0, put, 0.0), nothing, nothing, nothing, (0.0, out, 0.0))


def test_status_is_what_is_wrong_or_else_the_traffic() -> None:
    well = Verdict("store", None, 0.0, "")
    full = Verdict("disk", "/data is 93% full", 0.0, "free space")
    assert status_line([well], rates(12.34, 5)) == "ready, 12.3 messages/s in, 5.0 messages/s out"
    assert status_line([well, full], rates(0, 0)) == "not ready: disk: /data is 93% full"
