"""The supervisor: starts the name server and the shards, keeps them running, stops them.

Start: the name server, then all shards at once (each may have a recovery to do). If one of them
cannot start, all stop: the fault has to show at the start, and the exit code is that child's.

Afterwards a child that ends by itself is started again after a pause, which doubles with each
failure in a row, up to 30 s; a minute of being ready ends the row. `FAILURES_MAX` in a row end all:
the supervisor exits with an error, and systemd decides, with its limits and its alarms, as for a
single broker. A child that gives no sign of life in time is killed first (child.py).

Stop: the shards, all at once, then the name server, at which they unregister.

Rolling restart (SIGUSR2): one child after the other is stopped in order and started. Each is ready
before the next stops; the name server comes last. The restart is done when the name server knows
all shards again: until then a client that asks finds only some of them. It ends at the first child
that does not become ready. A shard says that it returns when it stops, so that clients which ask
for routes meanwhile do not lose it. Between two shards there is a pause, because clients come back
to a shard only with their next heartbeat, and to a shard that a foreign name server has dropped
with their next look at routes.
"""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from aerobee.broker.monitoring.systemd import Notifier
from aerobee.shards.child import Child, Keeper, State

log = logging.getLogger("aerobee.shards")

FAILURES_MAX = 8
_PAUSE_FIRST_S = 1.0
_PAUSE_LAST_S = 30.0
_TICK_S = 1.0
# Looks for half a minute at least: shards try a lost name server again within 10 s.
_LOOKS = 300
_LOOK_S = 0.1
# The daemon's own exit codes (broker/lifecycle/broker_process.py): they mean the same to systemd.
_EXIT_FAILED = 1
_CODES_PASSED_ON = frozenset({1, 3, 78})
# A child that had no handler yet dies of the signal that stops it; nothing was open by then.
_STOPPED = frozenset({0, -signal.SIGTERM, -signal.SIGUSR2})


# The exit codes of a broker that people can do something about (lifecycle/broker_process.py).
_EXITS = {
    3: "a port is in use; its log names it",
    78: "its configuration is wrong; its log says how",
}


def _exit_text(code: int) -> str:
    """An exit code, and its meaning where it has one."""
    meaning = _EXITS.get(code)
    return f"code {code} ({meaning})" if meaning else f"code {code}"


class Processes(Protocol):
    """Makes the processes of a supervisor, and knows the name server beside the shards."""

    def make_child(self, name: str, keeper: Keeper) -> Child: ...

    async def ask_missing(self) -> Collection[str]:
        """Ask the name server which of the shards' brokers it does not know."""


class Supervisor:
    """Keeps children. Call `run` once; all runs on its loop."""

    def __init__(
        self,
        *,
        notifier: Notifier,
        processes: Processes,
        shards: int,
        with_name_server: bool,
        pause_first_s: float = _PAUSE_FIRST_S,
        restart_pause_s: float = 0.0,
    ) -> None:
        """`restart_pause_s` is the pause between two shards in a rolling restart. Raises
        OSError."""
        self._notifier = notifier
        self._processes = processes
        self._restart_pause_s = restart_pause_s
        self._pause_first_s = pause_first_s
        self.shards = [processes.make_child(f"shard-{n}", self) for n in range(shards)]
        self.name_server = processes.make_child("nameserver", self) if with_name_server else None
        self.started = False
        self._stop = asyncio.Event()
        self._code = 0
        self._reloading = False
        self._keepers: list[asyncio.Task[None]] = []
        self._roll: asyncio.Task[None] | None = None

    @property
    def children(self) -> list[Child]:
        """All children, in the order of a rolling restart."""
        return [*self.shards, *self._name_server_group]

    async def run(self, on_ready: Callable[[], None]) -> int:
        """Start all, call `on_ready`, and keep them until `stop`; returns the exit code."""
        ticking = asyncio.create_task(self._tick_forever(), name="watches the shards")
        ticking.add_done_callback(_surface)
        try:
            await self._start()
            if not self._stop.is_set():
                self.started = True
                on_ready()
                self._notifier.ready(self.status())
            await self._stop.wait()
        finally:
            await self._stop_all()
            ticking.cancel()
            await asyncio.gather(ticking, *self._keepers, return_exceptions=True)
        return self._code

    def stop(self) -> None:
        """Stop all in order."""
        self._stop.set()

    def stop_at_once(self) -> None:
        """Pass a second signal on: the children leave at once, and recover at their next start."""
        for child in self.children:
            child.stop()

    def reload(self) -> None:
        """Have all read their configuration again."""
        for child in self.children:
            child.reload()
        if self.started:
            self._notifier.reloading()
            self._reloading = True
            self._tell()

    def restart_one_by_one(self) -> None:
        """Begin a rolling restart, unless one is under way or not all have started yet."""
        if not self.started or self._stop.is_set():
            log.warning("no rolling restart: the shards are starting or stopping")
        elif self._roll is not None and not self._roll.done():
            log.warning("no rolling restart: one is under way")
        else:
            self._roll = asyncio.create_task(self._restart_each())
            self._roll.add_done_callback(_surface)

    def status(self) -> str:
        """A line for people: how many are ready, and the status of the others."""
        ready = sum(child.state is State.READY for child in self.shards)
        others = [
            f"; {child.name}: {child.status or child.state.value}"
            for child in self.children
            if child.state is not State.READY
        ]
        return f"{ready} of {len(self.shards)} shards ready{''.join(others)}"

    # --- lives

    async def _start(self) -> None:
        """Start the name server, then the shards; a failure asks for the stop."""
        for group in (self._name_server_group, self.shards):
            starts = [self._begin(child) for child in group]
            waiting = asyncio.gather(*starts)
            stop = asyncio.create_task(self._stop.wait())
            either: set[asyncio.Future[Any]] = {waiting, stop}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            stop.cancel()
            if self._stop.is_set():
                waiting.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await waiting
                return

    @property
    def _name_server_group(self) -> list[Child]:
        return [self.name_server] if self.name_server else []

    def _begin(self, child: Child) -> "asyncio.Future[bool]":
        start = child.next_start
        keeper = asyncio.create_task(self._keep(child), name=f"keeps {child.name}")
        keeper.add_done_callback(_surface)
        self._keepers.append(keeper)
        # Cancelling a waiter must not cancel the start.
        return asyncio.shield(start)

    async def _keep(self, child: Child) -> None:
        """Run a child's lives, until it is not wanted any more."""
        while child.wanted and not self._stop.is_set():
            try:
                code = await child.live()
            except OSError as error:
                log.error("cannot start name=%s error=%s", child.name, error)
                self._give_up(_EXIT_FAILED)
                return
            if child.wanted and not self._restarting(child):
                await self._failed(child, code)

    def _restarting(self, child: Child) -> bool:
        asked, child.restart_asked = child.restart_asked, False
        return asked

    async def _failed(self, child: Child, code: int) -> None:
        if not self.started:
            log.error("did not start name=%s exit=%d", child.name, code)
            self._give_up(code if code in _CODES_PASSED_ON else _EXIT_FAILED)
            return
        child.note_failure()
        if child.failures_in_row >= FAILURES_MAX:
            log.critical(
                "failed %d times in a row, stopping all name=%s exit=%d: its own lines say why",
                child.failures_in_row, child.name, code,
            )  # fmt: skip
            self._give_up(_EXIT_FAILED)
            return
        pause_s = min(_PAUSE_LAST_S, self._pause_first_s * 2 ** (child.failures_in_row - 1))
        log.error(
            "ended by itself, starts again name=%s exit=%d failures=%d in_s=%.1f",
            child.name, code, child.failures_in_row, pause_s, extra={"each": True},
        )  # fmt: skip
        await child.pause(
            pause_s, f"ended by itself with {_exit_text(code)}, starts again in {pause_s:.1f} s"
        )

    def _give_up(self, code: int) -> None:
        if not self._stop.is_set():
            self._code = code
            self._stop.set()

    # --- stop and restart

    async def _stop_all(self) -> None:
        self._notifier.stopping("stopping the shards")
        if self._roll is not None:
            self._roll.cancel()
        for group in (self.shards, self._name_server_group):
            await self._stop_group(group)
        for child in self.children:
            child.close()

    async def _stop_group(self, group: Sequence[Child]) -> None:
        running = [child for child in group if child.state is not State.DOWN]
        for child in group:
            child.end()
        names = {f"keeps {child.name}" for child in group}
        keepers = [keeper for keeper in self._keepers if keeper.get_name() in names]
        if keepers:
            await asyncio.wait(keepers)
        for child in running:
            if child.last_code not in _STOPPED and self._code == 0:
                log.error("did not stop cleanly name=%s exit=%d", child.name, child.last_code)
                self._code = _EXIT_FAILED

    async def _restart_each(self) -> None:
        log.info("rolling restart begins")
        for number, shard in enumerate(self.shards):
            if number and not await self._pause_before(shard):
                return
            if not await self._restart(shard, signal.SIGUSR2):
                return
        if self.name_server:
            if not await self._restart(self.name_server, signal.SIGTERM):
                return
            if missing := await self._await_routes():
                log.error("rolling restart ends not_registered=%s", ",".join(sorted(missing)))
                return
        log.info("rolling restart is done")

    async def _restart(self, child: Child, by: signal.Signals) -> bool:
        """Restart a child; whether it is ready again. If not, the rolling restart ends."""
        came = child.next_start
        child.restart(by)
        if not await asyncio.shield(came):
            log.error(
                "rolling restart ends name=%s did not become ready; the others go on as they "
                "were", child.name,
            )  # fmt: skip
            return False
        log.info("restarted name=%s", child.name)
        return True

    async def _await_routes(self) -> Collection[str]:
        """Wait for routes; returns the brokers that the name server still does not know."""
        missing = await self._processes.ask_missing()
        for _ in range(_LOOKS):
            if not missing:
                break
            await asyncio.sleep(_LOOK_S)
            missing = await self._processes.ask_missing()
        return missing

    async def _pause_before(self, shard: Child) -> bool:
        """Pause; returns whether all others are ready then, so that this shard may stop."""
        log.info("waits for clients next=%s in_s=%.1f", shard.name, self._restart_pause_s)
        await asyncio.sleep(self._restart_pause_s)
        others = [other for other in self.shards if other is not shard]
        down = [other.name for other in others if other.state is not State.READY]
        if down:
            log.error("rolling restart ends next=%s not_ready=%s", shard.name, ",".join(down))
        return not down

    # --- signs of life

    async def _tick_forever(self) -> None:
        """Kill overdue children, and report to our own supervisor.

        We report only while no child is overdue: it has to deal with a child that cannot be killed.
        """
        interval_s = self._notifier.watchdog_interval_s
        while True:
            overdue = [child for child in self.children if child.is_overdue()]
            for child in overdue:
                log.error("no sign of life in time, killed name=%s pid=%d", child.name, child.pid)
                child.kill()
            if interval_s is not None and self.started and not overdue:
                self._notifier.watchdog()
            await asyncio.sleep(min(_TICK_S, interval_s or _TICK_S))

    def child_changed(self, _child: Child) -> None:
        """Pass its state on to our own supervisor."""
        if not self._stop.is_set():
            self._tell()

    def child_needs(self, seconds: float) -> None:
        """Ask our own supervisor for the time that a child asks for."""
        self._notifier.extend_timeout(seconds)

    def _tell(self) -> None:
        if self._reloading and not any(child.reloading for child in self.children):
            self._reloading = False
            self._notifier.ready(self.status())
        else:
            self._notifier.status(self.status())


def _surface(task: "asyncio.Task[None]") -> None:
    """Log a task that ended neither in order nor by cancellation: a bug, which must be seen."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("%s has stopped", task.get_name(), exc_info=error)
