"""Claims about what the supervisor hears while the daemon recovers and runs."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from aerobee.broker.background.scheduler import Scheduler
from aerobee.broker.monitoring.health_checks import HealthChecks, LoopMonitor, Verdict
from aerobee.broker.monitoring.systemd import Notifier, Supervision, Watchdog, status_line
from aerobee.store.message_store import MessageStore
from aerobee.store.store_stats import Rates


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

    def blocking(self, timeout_s: float) -> None:
        self._socket.settimeout(timeout_s)

    def receive(self) -> str:
        return self._socket.recv(4096).decode()

    def silent(self) -> bool:
        try:
            self._socket.recv(4096)
        except BlockingIOError:
            return True
        return False

    def close(self) -> None:
        self._socket.close()


class FakeStore:
    """A store whose threads live, and that serves nothing."""

    stats_service = SimpleNamespace(rates=lambda: rates(0.0, 0.0))

    def threads_alive(self) -> bool:
        return True


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

    class StuckAtFirst(FakeStore):
        def threads_alive(self) -> bool:
            nonlocal asked
            asked += 1
            return asked >= 3

    scheduler = Scheduler(asyncio.get_running_loop())
    supervision = Supervision(Notifier(supervisor.environ), HealthChecks())
    monitor = LoopMonitor(asyncio.get_running_loop())
    supervision.start(scheduler, cast("MessageStore", StuckAtFirst()), monitor)
    assert await supervisor.next() == "WATCHDOG=1"
    assert asked >= 3
    await scheduler.stop()
    supervision.stop()


async def test_a_busy_loop_is_not_killed(supervisor: Supervisor) -> None:
    """The loop serves something large here, for as long as three pings take: none came before."""
    scheduler = Scheduler(asyncio.get_running_loop())
    supervision = Supervision(Notifier(supervisor.environ), HealthChecks())
    monitor = LoopMonitor(asyncio.get_running_loop())
    monitor.start()
    supervision.start(scheduler, cast("MessageStore", FakeStore()), monitor)
    supervisor.blocking(10.0)
    assert [supervisor.receive() for _ in range(3)] == ["WATCHDOG=1"] * 3
    monitor.stop()
    await scheduler.stop()
    supervision.stop()


def test_a_loop_stuck_for_good_gets_no_more_pings_and_its_stacks_are_logged(
    supervisor: Supervisor, caplog: pytest.LogCaptureFixture
) -> None:
    stuck_s = 59.0
    monitor = cast("LoopMonitor", SimpleNamespace(stuck_s=lambda: stuck_s))
    watchdog = Watchdog(Notifier(supervisor.environ), monitor)
    assert watchdog.look()
    stuck_s = 61.0
    assert not watchdog.look()
    assert not watchdog.look()
    assert len(caplog.records) == 1
    assert "event loop stuck seconds=61" in caplog.text
    stuck_s = 0.0
    assert watchdog.look()


def rates(put: float, out: float) -> Rates:
    nothing = (0.0, 0.0, 0.0)
    return Rates((0.0, put, 0.0), nothing, nothing, nothing, (0.0, out, 0.0))


def test_status_is_what_is_wrong_or_else_the_traffic() -> None:
    well = Verdict("store", None, 0.0, "")
    full = Verdict("disk", "/data is 93% full", 0.0, "free space")
    assert status_line([well], rates(12.34, 5)) == "ready, 12.3 messages/s in, 5.0 messages/s out"
    assert status_line([well, full], rates(0, 0)) == "not ready: disk: /data is 93% full"
    note = Verdict("accounts", "stay as they were", 0.0, "", note=True)
    assert status_line([note, full], rates(0, 0)) == "not ready: disk: /data is 93% full"
    assert status_line([well, note], rates(1, 0)).startswith("ready, 1.0 messages/s in")
    assert status_line([well, note], rates(1, 0)).endswith("; accounts: stay as they were")
