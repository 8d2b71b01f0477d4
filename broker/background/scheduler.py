"""The broker's periodic tasks, run by timers of the loop.

A task is a plain function. It is called on the loop, unless it was registered as `blocking`: then
it runs on a worker thread, and not again before the last run has ended. A task that raises is
logged with its traceback and run again at its next time; the loop and the other tasks go on.

Tables with a file are saved by a `Saver` each: soon after a change, then at intervals, on a worker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from aerobee.store.disk.files import is_full

log = logging.getLogger("aerobee.broker.housekeeping")
state_log = logging.getLogger("aerobee.broker.state")

C = TypeVar("C")


@dataclass(slots=True, eq=False)
class _Task:
    """A periodic function."""

    name: str
    interval_s: float
    run: Callable[[], object]
    blocking: bool
    failures: int = 0
    handle: asyncio.TimerHandle | None = None
    running: asyncio.Future[object] | None = None


class Scheduler:
    """Starts and stops the tasks of a loop together."""

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
        """Run nothing more; wait for blocking tasks that are under way."""
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


async def save_all(saves: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """Run all saves one after the other, whichever fails: a table that cannot be written keeps no
    other from being saved. Raises the first error, at the end; later errors are logged."""
    first: Exception | None = None
    for save in saves:
        try:
            await save()
        except Exception as error:  # noqa: BLE001 - raised or logged
            if first is None:
                first = error
            else:
                state_log.error("another table could not be saved at the end", exc_info=error)
    if first is not None:
        raise first


class Savable(Protocol[C]):
    """A table with a file."""

    def take_changes(self) -> C | None:
        """The changes to be saved now, None without changes. On the loop."""
        ...

    def save(self, changes: C) -> None:
        """Write the changes. On a worker; raises OSError."""
        ...

    def mark_unsaved(self) -> None:
        """The last `save` failed: the next `take_changes` gives its changes again. On the loop."""
        ...

    def mark_lost(self) -> None:
        """The file is gone with all that was saved: the next `take_changes` gives that again. On
        the loop, while no save runs."""
        ...


class Saver(Generic[C]):
    """Saves a table outside the loop: soon after its first change, then once an interval.

    A broker that dies again and again after a second has to keep the progress of its consumers. So
    while changes have come for less than `SOON_FOR_S` they are saved as soon as the last save lets
    them; only a table that goes on changing waits for the interval between two saves. A table that
    did not change for an interval begins anew.

    One save runs at a time, and at most half of the time. A save that fails is logged, and tried
    again each second until it works: `failure` has the reason, and the broker is not ready. Loop
    thread only.
    """

    #: The interval of calls of `look`.
    LOOK_S = 0.05
    #: The time between two saves of a table that has only begun to change: 200 ms after a change
    #: its save is done, with a look and the save itself.
    SOON_S = 0.08
    SOON_FOR_S = 3.0
    #: The time after a failed save.
    AGAIN_S = 1.0

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        what: str,
        table: Savable[C],
        interval_s: float,
        pool: Executor | None = None,
    ) -> None:
        """`what` names the table in the log; saves run in `pool`."""
        self._loop = loop
        self._what = what
        self._pool = pool
        self._table = table
        self._interval_s = interval_s
        self._running: asyncio.Future[None] | None = None
        self._closed = self._is_lost = False
        #: The reason why the last save failed; None if it did not.
        self.failure: SaveFailure | None = None
        # The times when changes began to come, when the last save began, and when the next one may.
        self._changing_since = self._began = self._next = float("-inf")

    def look(self) -> None:
        """Begin to save if the table has changed and it is time."""
        now = self._loop.time()
        if self._closed or self._running is not None or now < self._next:
            return
        self._note_lost()
        changes = self._table.take_changes()
        if changes is None:
            return
        if now > self._began + self._interval_s + 2 * self.LOOK_S:
            self._changing_since = now
        soon = now < self._changing_since + self.SOON_FOR_S
        self._began = now
        self._next = now + (min(self.SOON_S, self._interval_s) if soon else self._interval_s)
        self._running = self._loop.run_in_executor(self._pool, self._table.save, changes)
        self._running.add_done_callback(self._ended)

    def save_again(self) -> None:
        """Let the next save write all of the table: the file is gone."""
        self._is_lost = True

    def _note_lost(self) -> None:
        if self._is_lost:
            self._is_lost = False
            self._table.mark_lost()

    async def close(self) -> None:
        """Save the present changes, and nothing after them. Raises OSError."""
        self._closed = True
        if self._running is not None:
            await asyncio.wait([self._running])
        self._note_lost()
        changes = self._table.take_changes()
        if changes is not None:
            await self._loop.run_in_executor(self._pool, self._table.save, changes)

    def _ended(self, saved: asyncio.Future[None]) -> None:
        self._running = None
        now = self._loop.time()
        self._next = max(self._next, now + (now - self._began))
        if saved.cancelled():
            return
        error, before = saved.exception(), self.failure
        self.failure = None if error is None else SaveFailure.of(self._what, error)
        if error is None:
            if before is not None:
                state_log.warning("%s saved again", self._what)
            return
        if self.failure != before:
            state_log.error("%s not saved, will be tried again why=%s", self._what, error)
        self._table.mark_unsaved()
        self._next = now + min(self._interval_s, self.AGAIN_S)


class SaveFailure(NamedTuple):
    """`what` names the file, or its content; `why` is the fault alone."""

    what: str
    why: str

    @classmethod
    def of(cls, what: str, error: BaseException) -> SaveFailure:
        """The failure of a save that raised `error`, which may have been made for a client of an
        OSError."""
        fault = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(fault, OSError) or fault.strerror is None:
            return cls(what, str(error))
        why = f"the disk is full ({fault.strerror})" if is_full(fault) else fault.strerror
        return cls(what, why)

    def __str__(self) -> str:
        return f"{self.what} cannot be saved: {self.why}"


def sentence_of(failures: Iterable[SaveFailure]) -> str:
    """A sentence of all failures, each fault once."""
    by_fault: dict[str, list[str]] = {}
    for what, why in failures:
        by_fault.setdefault(why, []).append(what)
    return "; ".join(str(SaveFailure(", ".join(what), why)) for why, what in by_fault.items())
