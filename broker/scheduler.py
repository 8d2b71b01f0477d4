"""The broker's periodic tasks, run by timers of the loop.

A task is a plain function. It is called on the loop, unless it was registered as `blocking`: then
it runs on a worker thread, and not again before the last run has ended. A task that raises is
logged with its traceback and run again at its next time; the loop and the other tasks go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

log = logging.getLogger("aerobee.broker.housekeeping")
state_log = logging.getLogger("aerobee.broker.state")


@dataclass(slots=True, eq=False)
class _Task:
    """One periodic function."""

    name: str
    interval_s: float
    run: Callable[[], object]
    blocking: bool
    failures: int = 0
    handle: asyncio.TimerHandle | None = None
    running: asyncio.Future[object] | None = None


class Scheduler:
    """Starts and stops the tasks of one loop together."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._tasks: list[_Task] = []
        self._stopped = False

    @property
    def failures(self) -> int:
        """Runs that raised, of all tasks together."""
        return sum(task.failures for task in self._tasks)

    def every(
        self,
        interval_s: float,
        name: str,
        run: Callable[[], object],
        *,
        blocking: bool = False,
        first_s: float | None = None,
    ) -> None:
        """Run a function every `interval_s` seconds, first after `first_s` (one interval)."""
        task = _Task(name, interval_s, run, blocking)
        self._tasks.append(task)
        self._schedule(task, interval_s if first_s is None else first_s)

    async def stop(self) -> None:
        """Run nothing more; waits for blocking tasks that are under way."""
        self._stopped = True
        running: list[asyncio.Future[object]] = []
        for task in self._tasks:
            if task.handle is not None:
                task.handle.cancel()
            if task.running is not None:
                running.append(task.running)
        if running:
            await asyncio.wait(running)

    def _schedule(self, task: _Task, after_s: float) -> None:
        if not self._stopped:
            task.handle = self._loop.call_later(after_s, self._turn, task)

    def _turn(self, task: _Task) -> None:
        if task.blocking:
            task.running = self._loop.run_in_executor(None, task.run)
            task.running.add_done_callback(lambda future: self._ended(task, future))
            return
        try:
            task.run()
        except Exception as error:  # noqa: BLE001 - the top of a task
            self._failed(task, error)
        self._schedule(task, task.interval_s)

    def _ended(self, task: _Task, future: asyncio.Future[object]) -> None:
        task.running = None
        if not future.cancelled() and (error := future.exception()) is not None:
            self._failed(task, error)
        self._schedule(task, task.interval_s)

    def _failed(self, task: _Task, error: BaseException) -> None:
        task.failures += 1
        log.error("duty failed name=%s", task.name, exc_info=error)


class Savable(Protocol):
    """A table with a file."""

    def take_changes(self) -> str | None: ...
    def save(self, text: str) -> None: ...
    def mark_unsaved(self) -> None: ...


def saver(loop: asyncio.AbstractEventLoop, what: str, table: Savable) -> Callable[[], None]:
    """A task that saves the table on a worker if it has changed; what fails is tried next time."""

    def run() -> None:
        text = table.take_changes()
        if text is not None:
            loop.run_in_executor(None, table.save, text).add_done_callback(ended)

    def ended(saved: asyncio.Future[None]) -> None:
        if not saved.cancelled() and (error := saved.exception()) is not None:
            state_log.error("%s not saved, will be tried again why=%s", what, error)
            table.mark_unsaved()

    return run
