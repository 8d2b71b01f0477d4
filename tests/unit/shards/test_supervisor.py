"""The supervisor keeps processes: small programs here that say READY and do what a test wants."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from aerobee.broker.monitoring.systemd import Notifier
from aerobee.shards import child as child_module
from aerobee.shards import supervisor as supervisor_module
from aerobee.shards.child import Child, Keeper, State
from aerobee.shards.supervisor import FAILURES_MAX, Supervisor

# Writes a line of its life into a file that all share: the order is what tests ask for.
PROGRAM = """
import os, signal, socket, sys
name = os.path.basename(os.environ["NOTIFY_SOCKET"])
def note(what):
    with open(sys.argv[1], "a") as file:
        file.write(f"{name} {what}\\n")
def tell(text):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
        to.sendto(text.encode(), os.environ["NOTIFY_SOCKET"])
def end(number, _):
    note("returns" if number == signal.SIGUSR2 else "stops")
    sys.exit(0)
def again(*_):
    tell("RELOADING=1")
    note("reads again")
    tell("READY=1")
signal.signal(signal.SIGTERM, end)
signal.signal(signal.SIGUSR2, end)
signal.signal(signal.SIGHUP, again)
note("starts")
"""
READY = 'tell("READY=1\\nSTATUS=well")\n'
FOR_EVER = "while True: signal.pause()\n"


class Heard(Notifier):
    """Records the supervisor's notifications."""

    def __init__(self) -> None:
        super().__init__({})
        self.said: list[str] = []
        self.watched_s: float | None = None

    @property
    def watchdog_interval_s(self) -> float | None:
        return self.watched_s

    def _send(self, *lines: str, patient: bool = True) -> None:
        self.said += lines


class Running:
    """A supervisor of programs; `life` are the lines they wrote."""

    def __init__(
        self,
        folder: Path,
        programs: dict[str, str],
        pause_s: float = 0.001,
        restart_pause_s: float = 0.0,
        **environ: str,
    ) -> None:
        self._file = folder / "life"
        self._programs = programs
        self._environ = {"PATH": os.environ["PATH"], **environ}
        self._folder = str(folder)
        self.told = Heard()
        names = [name for name in programs if name != "nameserver"]
        self.missing: set[str] = set()
        self.asked = 0
        self.supervisor = Supervisor(
            notifier=self.told,
            processes=self,
            shards=len(names),
            with_name_server="nameserver" in programs,
            pause_first_s=pause_s,
            restart_pause_s=restart_pause_s,
        )
        self.ready = asyncio.Event()
        self.task = asyncio.create_task(self.supervisor.run(self.ready.set))

    def make_child(self, name: str, keeper: Keeper) -> Child:
        program = PROGRAM + self._programs[name]
        command = [sys.executable, "-S", "-E", "-c", program, str(self._file)]
        return Child(name, command, self._environ, self._folder, keeper)

    async def ask_missing(self) -> set[str]:
        self.asked += 1
        return self.missing

    @property
    def life(self) -> list[str]:
        return self._file.read_text().splitlines() if self._file.exists() else []

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                assert not self.task.done(), self.life
                await asyncio.sleep(0.01)

    async def code(self) -> int:
        async with asyncio.timeout(20):
            return await self.task


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Callable[..., Running]]:
    started: list[Running] = []

    def starter(
        programs: dict[str, str],
        pause_s: float = 0.001,
        restart_pause_s: float = 0.0,
        **environ: str,
    ) -> Running:
        started.append(Running(tmp_path, programs, pause_s, restart_pause_s, **environ))
        return started[-1]

    yield starter
    for one in started:
        one.supervisor.stop()
        for child in one.supervisor.children:
            child.kill()
        with contextlib.suppress(TimeoutError):
            await one.code()


GOOD = READY + FOR_EVER
ALL_GOOD = {"nameserver": GOOD, "shard-0": GOOD, "shard-1": GOOD}


async def test_the_name_server_comes_first_and_goes_last(start: Callable[..., Running]) -> None:
    running = start(ALL_GOOD)
    await running.until(running.ready.is_set)
    assert "READY=1" in running.told.said
    assert running.supervisor.status() == "2 of 2 shards ready"
    running.supervisor.stop()
    assert await running.code() == 0
    assert running.life[0] == "nameserver starts"
    assert running.life[-1] == "nameserver stops"
    assert sorted(running.life[1:-1]) == [
        "shard-0 starts", "shard-0 stops", "shard-1 starts", "shard-1 stops",
    ]  # fmt: skip


async def test_one_that_dies_comes_back_and_the_other_stays(start: Callable[..., Running]) -> None:
    running = start(ALL_GOOD)
    await running.until(running.ready.is_set)
    first, second = running.supervisor.shards
    stayed = second.pid
    os.kill(first.pid, signal.SIGKILL)
    await running.until(lambda: first.failures == 1 and first.state is State.READY)
    assert second.pid == stayed
    running.supervisor.stop()
    assert await running.code() == 0


async def test_a_start_that_fails_ends_all_with_its_code(start: Callable[..., Running]) -> None:
    running = start({"shard-0": GOOD, "shard-1": "sys.exit(78)"})
    assert await running.code() == 78
    assert not running.ready.is_set()
    assert running.life.count("shard-1 starts") == 1


async def test_too_many_failures_in_a_row_end_all_with_an_error(
    start: Callable[..., Running], tmp_path: Path
) -> None:
    go = tmp_path / "go"
    waits = f"import time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
    running = start({"shard-0": GOOD, "shard-1": READY + waits + "sys.exit(7)"})
    await running.until(running.ready.is_set)
    go.touch()
    assert await running.code() == 1
    assert running.life.count("shard-1 starts") == FAILURES_MAX
    assert running.life.count("shard-0 starts") == 1


async def test_a_stop_ends_a_start_under_way(start: Callable[..., Running]) -> None:
    running = start({"shard-0": GOOD, "shard-1": FOR_EVER})
    await running.until(lambda: {"shard-0 starts", "shard-1 starts"} <= {*running.life})
    running.supervisor.stop()
    assert await running.code() == 0
    assert not running.ready.is_set()


async def test_a_rolling_restart_has_each_ready_before_the_next_stops(
    start: Callable[..., Running],
) -> None:
    running = start(ALL_GOOD)
    await running.until(running.ready.is_set)
    before = len(running.life)
    running.supervisor.restart_one_by_one()
    await running.until(lambda: len(running.life) == before + 6)
    # A shard that is to come back says so to the name servers.
    assert running.life[before:] == [
        *("shard-0 returns", "shard-0 starts", "shard-1 returns", "shard-1 starts"),
        *("nameserver stops", "nameserver starts"),
    ]
    assert [child.failures for child in running.supervisor.children] == [0, 0, 0]


async def test_a_rolling_restart_is_done_when_the_name_server_knows_all(
    start: Callable[..., Running], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    running = start(ALL_GOOD)
    await running.until(running.ready.is_set)
    running.missing = {"broker-a", "broker-b"}
    running.supervisor.restart_one_by_one()
    await running.until(lambda: running.asked > 2)
    assert "rolling restart is done" not in caplog.text
    running.missing = set()
    await running.until(lambda: "rolling restart is done" in caplog.text)

    monkeypatch.setattr(supervisor_module, "_LOOKS", 0)
    running.missing = {"broker-b"}
    running.supervisor.restart_one_by_one()
    await running.until(lambda: "rolling restart ends not_registered=broker-b" in caplog.text)


async def test_a_rolling_restart_ends_when_the_one_before_dies_in_the_pause(
    start: Callable[..., Running], caplog: pytest.LogCaptureFixture
) -> None:
    running = start(ALL_GOOD, pause_s=60.0, restart_pause_s=0.5)
    await running.until(running.ready.is_set)
    first, second = running.supervisor.shards
    running.supervisor.restart_one_by_one()
    await running.until(
        lambda: running.life.count("shard-0 starts") == 2 and first.state is State.READY
    )
    first.kill()
    await running.until(lambda: "rolling restart ends next=shard-1" in caplog.text)
    assert second.state is State.READY
    assert running.life.count("shard-1 starts") == 1


async def test_a_rolling_restart_ends_at_one_that_does_not_come_back(
    start: Callable[..., Running], tmp_path: Path
) -> None:
    (tmp_path / "may-start").touch()
    picky = f"if not os.path.exists({str(tmp_path / 'may-start')!r}): sys.exit(1)\n"
    running = start({"shard-0": picky + GOOD, "shard-1": GOOD}, pause_s=0.3)
    await running.until(running.ready.is_set)
    (tmp_path / "may-start").unlink()
    running.supervisor.restart_one_by_one()
    await running.until(lambda: running.supervisor.shards[0].failures >= 1)
    (tmp_path / "may-start").touch()
    await running.until(lambda: running.supervisor.shards[0].state is State.READY)
    assert running.life.count("shard-1 starts") == 1


async def test_a_reload_is_over_when_all_have_read_again(start: Callable[..., Running]) -> None:
    running = start(ALL_GOOD)
    await running.until(running.ready.is_set)
    del running.told.said[:]
    running.supervisor.reload()
    assert any(line.startswith("RELOADING") for line in running.told.said)
    await running.until(lambda: "READY=1" in running.told.said)
    assert sum(line.endswith("reads again") for line in running.life) == 3


async def test_one_that_is_never_ready_is_killed(
    start: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_module, "_START_S", 0.05)
    running = start({"shard-0": FOR_EVER})
    assert await running.code() == 1


async def test_one_without_a_sign_of_life_is_killed_and_comes_back(
    start: Callable[..., Running],
) -> None:
    once = "if not os.path.exists(sys.argv[1] + '.once'):\n    open(sys.argv[1] + '.once', 'w')\n"
    beats = "import time\nwhile True:\n    tell('WATCHDOG=1')\n    time.sleep(0.1)\n"
    running = start({"shard-0": READY + once + "    signal.pause()\n" + beats},
                    WATCHDOG_USEC="1500000")  # fmt: skip
    shard = running.supervisor.shards[0]
    await running.until(lambda: shard.failures == 1 and shard.state is State.READY)
    assert shard.last_code == -signal.SIGKILL


async def test_our_own_watchdog_is_fed_while_none_is_overdue(start: Callable[..., Running]) -> None:
    running = start({"shard-0": GOOD})
    running.told.watched_s = 0.01
    await running.until(lambda: "WATCHDOG=1" in running.told.said)


async def test_more_time_that_a_start_asks_for_is_asked_for_above(
    start: Callable[..., Running],
) -> None:
    running = start({"shard-0": "tell('EXTEND_TIMEOUT_USEC=90000000')\n" + GOOD})
    await running.until(running.ready.is_set)
    assert "EXTEND_TIMEOUT_USEC=90000000" in running.told.said
